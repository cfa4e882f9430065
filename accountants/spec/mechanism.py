"""What a split-learning mechanism releases, to whom and how often: the specification that the accountants charge."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from privkit.accountants import validate
from privkit.accountants.base import Relation, Unit
from privkit.accountants.bounds.randomized_response import Categories
from privkit.accountants.spec.mixing import (
    EXACT_PATCHES,
    DirichletCounts,
    DirichletRatio,
    FixedCounts,
    FixedRatio,
    RatioLaw,
    RealizedRatios,
    kept_share,
)
from privkit.accountants.spec.parts import (
    ALWAYS,
    UNMIXED,
    CutMix,
    EveryRound,
    Mixup,
    Noise,
    NoMixing,
    Poisson,
    PrivateUpdates,
    WithoutReplacement,
)
from privkit.accountants.spec.secrets import HiddenMask, RandomAllocation, check_secrets
from privkit.accountants.spec.sensitivity import CLIP_SETS, ClipSet, PatchBall, l1_coordinates

Array = NDArray[np.float64]

LARGEST_SHIFT = 1e100
"""Sensitivity over noise: nothing is hidden long before, and its square must stay a number."""


@dataclass(frozen=True, kw_only=True)
class ShiftLaw:
    """The Gaussian shift of one release, sensitivity over noise, as a law over the round's public coins.

    Attributes:
        mu: [J] ≥ 0.
        log_weight: [J] log probabilities.
        profile: whether the (ε, δ) profile of the law is exact for the worst neighbors. False where only the Rényi
            divergence is known to be largest there.
    """

    mu: Array
    log_weight: Array
    profile: bool = True

    @property
    def constant(self) -> float | None:
        """μ, where it is no random variable."""
        return float(self.mu[0]) if self.mu.size == 1 else None

    def merged(self) -> ShiftLaw:
        """Neighboring points of one μ as one point: nodes of a quadrature inside one number of patches.

        >>> ShiftLaw(mu=np.array([1.0, 1.0, 2.0]), log_weight=np.log([0.25, 0.25, 0.5])).merged().mu.tolist()
        [1.0, 2.0]
        """
        starts = np.flatnonzero(np.append(True, np.diff(self.mu) != 0))
        if starts.size == self.mu.size:
            return self
        return replace(self, mu=self.mu[starts], log_weight=np.logaddexp.reduceat(self.log_weight, starts))


@dataclass(frozen=True, kw_only=True)
class SplitMechanism:
    """A split-learning mechanism: what one record or client gives away to the server in a run.

    Attributes:
        smashed: where one record's smashed data lie for sure.
        noise: what is added, and where.
        lower_model: "frozen"; "trained" on raw data; "averaged" (trained, and averaged over clients or otherwise sent
            out); or `PrivateUpdates`.
        relation: neighboring relation.
        unit: "record" or "client".
        labels: where one record's label lies; None where labels are not released.
        mixing: how releases of a group are combined.
        participation: who takes part in a round.
        rounds: T ≥ 1; with a record as the unit, the number of releases of that record (one an epoch).
        releases: releases a round that belong to one unit: the batch size b for clients, 1 for records.
        random_masks: whether masks are uniform and fresh; matters for clip sets that bound only the whole norm.

    Raises:
        ValueError: for combinations that cannot be accounted for; the sentence says why and what can.

    >>> from privkit.accountants.spec.sensitivity import Clamp
    >>> SplitMechanism(
    ...     smashed=Clamp(low=0, high=1, dimensions=4), noise=Noise(smashed=2.0), lower_model="frozen"
    ... ).shift().constant
    1.0
    """

    kind: ClassVar[str] = "split_mechanism"
    smashed: ClipSet
    noise: Noise
    lower_model: Literal["frozen", "trained", "averaged"] | PrivateUpdates
    relation: Relation = "replace_one"
    unit: Unit = "record"
    labels: ClipSet | None = None
    mixing: NoMixing | Mixup | CutMix | HiddenMask = UNMIXED
    participation: EveryRound | WithoutReplacement | Poisson | RandomAllocation = ALWAYS
    rounds: int = 1
    releases: int = 1
    random_masks: bool = False

    def __post_init__(self) -> None:
        validate.instance("smashed", self.smashed, (*CLIP_SETS, Categories))
        validate.instance("labels", self.labels, (*CLIP_SETS, type(None)))
        validate.instance("noise", self.noise, (Noise,))
        if isinstance(self.mixing, CutMix) and isinstance(self.smashed, PatchBall):
            validate.choice("patches of the clip set", str(self.smashed.patches), (str(self.mixing.patches),))
        validate.instance("mixing", self.mixing, (NoMixing, Mixup, CutMix, HiddenMask))
        validate.instance(
            "participation", self.participation, (EveryRound, WithoutReplacement, Poisson, RandomAllocation)
        )
        validate.choice("relation", self.relation, ("replace_one", "add_or_remove_one"))
        validate.choice("unit", self.unit, ("record", "client"))
        validate.whole("rounds", self.rounds)
        validate.whole("releases", self.releases)
        if (self.labels is None) != (self.noise.labels is None):
            raise ValueError(
                "labels and their noise go together: give both where labels are released, neither where they are not "
                "(a label that is released without noise has no finite ε)"
            )
        if not isinstance(self.lower_model, PrivateUpdates):
            validate.choice("lower_model", self.lower_model, ("frozen", "trained", "averaged"))
        self._check_composition()
        self._check_participation()
        self._check_noise()
        if check_secrets(self):
            return
        self._scaled("l1" if self.noise.law == "laplace" else "l2")  # refuses what the clip set has no answer for

    def _check_composition(self) -> None:
        """Later releases of other records must not carry this record through the lower model (§4e)."""
        if self.unit == "record" and self.releases != 1:
            raise ValueError(f"releases must be 1 with a record as the unit, got {self.releases}; rounds counts them")
        if self.unit == "record" and self.lower_model in ("trained", "averaged"):
            raise ValueError(
                "record-level accounting does not hold with a lower model trained on raw data: later releases of other "
                "records carry this record through the weights. Sound are lower_model='frozen', unit='client' with "
                "lower_model='trained', or differentially private updates of the lower model (PrivateUpdates)"
            )
        if isinstance(self.lower_model, PrivateUpdates) and (self.unit, self.relation) != ("record", "replace_one"):
            raise ValueError(
                "PrivateUpdates cover the replacement of one record; use unit='record' and relation='replace_one', or "
                "keep the lower model with its client (lower_model='trained', unit='client')"
            )
        if self.unit == "client" and self.lower_model == "averaged":
            raise ValueError(
                "averaging lower models sends out what a client's raw data did to them, which no noise here covers: "
                "keep lower models local, freeze them, or train them with PrivateUpdates"
            )

    def _check_participation(self) -> None:
        """Each sampling theorem has its relation and its mixing."""
        kind, ratio = self.participation.kind, getattr(self.mixing, "ratio", None)
        if kind == "poisson":
            if self.relation != "add_or_remove_one":
                raise ValueError(
                    "poisson sampling is accounted for under add_or_remove_one; for replace_one sample k of n"
                )
            if ratio is not None:
                raise ValueError("a Poisson subset has no fixed group to mix; sample k of n (without_replacement)")
        elif self.relation != "replace_one" and ratio is not None:
            raise ValueError("in a mixed group one client's share is another's gap, so use relation='replace_one'")
        if isinstance(self.participation, WithoutReplacement):
            if self.relation != "replace_one":
                raise ValueError("sampling k of n fixes the number of clients, so use relation='replace_one'")
            if self.drawn_once and self.participation.rate < 1:
                raise ValueError(
                    "ratios that are drawn once need a group that stays together, and k of n clients are drawn anew: "
                    "use every_round, or ratios that are drawn in every round"
                )
            if ratio is not None and self.participation.chosen != ratio.group:
                raise ValueError(
                    f"the {self.participation.chosen} sampled clients form one mixing group, but the ratios are for "
                    f"{ratio.group}"
                )
        if isinstance(ratio, RealizedRatios):
            if kind != "every_round":
                raise ValueError("realized ratios show who took part, so no sampling amplifies; use every_round")
            if ratio.rounds != self.rounds:
                raise ValueError(f"realized ratios hold {ratio.rounds} rounds, but rounds={self.rounds}")
        if self.drawn_once and self._one_patch:
            raise ValueError(
                "no bound is derived for ratios drawn once with masks fresh in every round under a clip of the whole "
                "release: clip every coordinate or patch, or draw the ratios in every round"
            )

    def _check_noise(self) -> None:
        """Laplace noise is accounted for where its shift is fixed."""
        ratio = getattr(self.mixing, "ratio", None)
        if self.noise.law == "laplace":
            if not isinstance(ratio, FixedRatio | FixedCounts | None):
                raise ValueError(
                    "Laplace noise is accounted for with fixed ratios; use Gaussian noise with random ones"
                )
            if self.participation.kind == "poisson":
                raise ValueError(
                    "Laplace noise is accounted for in every round or k of n; use Gaussian noise with Poisson"
                )
            if self.noise.site == "client" and self.mixing.group > 1:
                raise ValueError("a sum of Laplace variables is not Laplace; add the noise at the mixer")

    @property
    def drawn_once(self) -> bool:
        """Whether random ratios are drawn once and kept for all rounds."""
        return getattr(getattr(self.mixing, "ratio", None), "drawn", "every_round") == "once"

    @property
    def joint(self) -> bool:
        """Whether the shift is that of all rounds together: for realized ratios, and for those that are drawn once."""
        return self.drawn_once or isinstance(getattr(self.mixing, "ratio", None), RealizedRatios)

    @property
    def composed_rounds(self) -> int:
        """Rounds that one round is composed over: 1 where the shift is that of all rounds."""
        return 1 if self.joint else self.rounds

    @property
    def charged_together(self) -> int:
        """Rounds that a ledger charges as one: an epoch of a random allocation, or all rounds of a joint shift."""
        if isinstance(self.participation, RandomAllocation):
            return self.participation.epoch_rounds
        return self.rounds if self.joint else 1

    @property
    def participation_shows(self) -> bool:
        """Whether somebody may learn who took part: sampling then hides nobody and only makes releases rarer.

        Clients that collude know who was drawn beside them. A lower model that learns remembers it: what other clients
        release later then depends on a secret that the proof of amplification draws anew in every round.
        """
        return self.participation.rate < 1 and (self.colluders_know or self.lower_model != "frozen")

    @property
    def colluders_know(self) -> bool:
        """Whether colluding clients know who took part: the n − k that were not drawn reveal it; coins do not."""
        drawn = isinstance(self.participation, WithoutReplacement)
        return drawn and bool(getattr(self.mixing, "colluding", False))

    @property
    def sampling(self) -> EveryRound | WithoutReplacement | Poisson | RandomAllocation:
        """The participation that is secret: amplification is credited to it alone."""
        return ALWAYS if self.participation_shows else self.participation

    @property
    def ragged(self) -> bool:
        """Whether patches hold different numbers of coordinates, as in DP-CutMixSL's Table 1 (D_s = 10, N = 64).

        Only the largest number of coordinates in a patch is then known, not where each lies.
        """
        dimensions = getattr(self.smashed, "dimensions", None)
        if not isinstance(self.mixing, CutMix) or self.mixing.group == 1:
            return False
        return dimensions is not None and dimensions % self.mixing.patches != 0

    @property
    def update_shift(self) -> float | None:
        """μ² of the lower model's noisy updates together, 0 where there are none; None where sampling hides some."""
        lower = self.lower_model
        if not isinstance(lower, PrivateUpdates):
            return 0.0
        return lower.steps / lower.noise_multiplier**2 if lower.rate == 1 else None

    @property
    def attained(self) -> bool:
        """Whether the accounted shift is that of the worst neighbors, so that an exact ε is a lower bound, too.

        False in these cases, whose charge may be above the worst neighbors':

        * hidden ratios: they are charged as if published;
        * Dirichlet ratios of more than two clients that add their own noise: ‖λ‖² is bounded from below;
        * a density of ratios over more than `EXACT_PATCHES` patches: it is rounded up;
        * masks of which it is open how much distance, or whose noise, they keep: under a clip of the whole release a
          mask may miss the patch that differs;
        * secretly drawn clients of unequal or random shares: it is not told whose share is which, but charged as if it
          were, or as if it were the largest;
        * Laplace noise with a participation that shows: it is charged as if everyone took part;
        * lower models that might show who took part.
        """
        mixing, ratio = self.mixing, getattr(self.mixing, "ratio", None)
        if self.ragged or (self.participation_shows and not self.colluders_know):
            return False
        if self.participation_shows and self.noise.law != "gaussian":  # charged as if everyone took part
            return False
        if isinstance(mixing, CutMix) and mixing.group > 1 and not self.smashed.additive:
            return False
        if isinstance(mixing, CutMix) and mixing.overfull and self.noise.site == "client":
            return False
        if isinstance(ratio, FixedRatio | FixedCounts) and self.participation.rate < 1:
            shares = ratio.ratios if isinstance(ratio, FixedRatio) else ratio.counts
            return max(shares) == min(shares)
        if not isinstance(ratio, DirichletRatio | DirichletCounts):
            return True
        if self.sampling.rate < 1 and ratio.group > 1:  # seated at random: ratios are told, but not whose they are
            return False
        coarse = isinstance(mixing, CutMix) and mixing.patches > EXACT_PATCHES
        if coarse and isinstance(ratio, DirichletRatio):
            return False
        return ratio.published and not (self.noise.site == "client" and ratio.group > 2)

    @property
    def law(self) -> RatioLaw | None:
        """Of the mixing ratios of one round; None without mixing."""
        ratio = getattr(self.mixing, "ratio", None)
        if ratio is None or isinstance(ratio, RealizedRatios):
            return None
        return ratio.law(self.mixing.patches if isinstance(self.mixing, CutMix) else None)

    def shift(self) -> ShiftLaw:
        """μ of one round's releases of one unit, for Gaussian noise; of all rounds together where `joint`.

        μ² = b·(s·S_s²/σ_s² + y·S_y²/σ_y²) with the shares s, y that mixing leaves. Where it shows who takes part, μ = 0
        with the probability of being left out: a public coin that no data enter.

        Source: DP-CutMixSL Eq. 19 and 20, with realized counts, the noise's site and the neighbor's own λ put right.
        """
        law = self._taking_part()
        if not self.participation_shows:
            return law
        rate = self.participation.rate
        return ShiftLaw(
            mu=np.concatenate([[0.0], law.mu]),
            log_weight=np.concatenate([[np.log1p(-rate)], np.log(rate) + law.log_weight]),
            profile=law.profile,
        )

    def _taking_part(self) -> ShiftLaw:
        """μ of a unit that takes part."""
        whole, label = self._scaled("l2")
        if isinstance(self.mixing, NoMixing | HiddenMask):  # without credit to masks
            return ShiftLaw(mu=np.array([sqrt(self.releases * (whole**2 + label**2))]), log_weight=np.zeros(1))
        ratio = self.mixing.ratio
        patches = self.mixing.patches if isinstance(self.mixing, CutMix) else None
        if isinstance(ratio, RealizedRatios):
            every = ratio.per_round(patches)
            s, y = self._shares(every)
            squared = self.releases * (s * whole**2 + y * label**2).sum(0)
            return ShiftLaw(mu=np.array([sqrt(squared.max())]), log_weight=np.zeros(1))
        releases = self.releases * (self.rounds if self.drawn_once else 1)
        law = ratio.law(patches, sqrt(releases * (whole**2 + label**2)))
        s, y = self._shares(law)
        if self._one_patch:
            # All of the distance may lie in one patch, which a uniform mask keeps with probability q.
            with np.errstate(divide="ignore"):
                kept, dropped = np.log(law.share), np.log1p(-law.share)
            squared = np.concatenate([whole**2 + y * label**2, y * label**2])
            log_weight = np.concatenate([law.log_weight + kept, law.log_weight + dropped])
            return ShiftLaw(mu=np.sqrt(releases * squared), log_weight=log_weight, profile=False)
        # One λ for all releases of a round has the larger Rényi divergence (Jensen), but no order of the profiles.
        profile = law.ratio.size == 1 or self.releases == 1 or self.drawn_once
        mu = np.sqrt(releases * (s * whole**2 + y * label**2))
        return ShiftLaw(mu=mu, log_weight=law.log_weight, profile=profile).merged()

    def laplace_shift(self) -> tuple[float, int]:
        """L1 sensitivity over the scale of one round's releases, and the number of coordinates if it is 1 (else 0)."""
        whole, label = self._scaled("l1")
        dimensions = getattr(self.smashed, "dimensions", 0)
        law = self.law
        if law is None:
            total = whole + label
        else:
            keeps = law.ratio if isinstance(self.mixing, Mixup) else self._kept(law.share)
            total = float(np.max(keeps * whole + law.ratio * label))
        alone = isinstance(self.mixing, NoMixing) and self.labels is None
        one = dimensions == 1 and alone and self.releases == 1
        return self.releases * total, int(one)

    def laplace_parts(self) -> tuple[tuple[float, int], ...]:
        """Independent Laplace variables that are at least as bad as one round's releases: (shift over scale, how many).

        Source: derived; `sensitivity.l1_coordinates` says what is worst where only a sum is bounded.
        """
        whole, label = self._scaled("l1")
        many = l1_coordinates(self.smashed, self.relation)
        shift, kept, ratio = whole / many, many, 1.0
        if (law := self.law) is not None:
            ratio = float(law.ratio.max())
            if isinstance(self.mixing, CutMix):
                kept = ceil(float(self._kept(law.share).max()) * many - 1e-6)
            else:
                shift *= ratio
        found = [(shift, kept * self.releases)]
        if self.labels is not None:
            classes = l1_coordinates(self.labels, self.relation)
            found.append((ratio * label / classes, classes * self.releases))
        return tuple((shift, count) for shift, count in found if count and shift)

    def _scaled(self, norm: Literal["l1", "l2"]) -> tuple[float, float]:
        """Sensitivities of smashed data and label over their noise, without mixing."""
        whole = self.smashed.sensitivity(self.relation, norm).value / self.noise.smashed
        label = 0.0
        if self.labels is not None and self.noise.labels is not None:
            label = self.labels.sensitivity(self.relation, norm).value / self.noise.labels
        if not max(whole, label) < LARGEST_SHIFT:
            raise ValueError(
                f"sigma is too small: the sensitivity is {max(whole, label):.3g} times the noise, and "
                f"{LARGEST_SHIFT:g} times is the most that is accounted for"
            )
        return whole, label

    @property
    def _one_patch(self) -> bool:
        """Whether the clip bounds the whole release only, under masks that are uniform and fresh."""
        return isinstance(self.mixing, CutMix) and self.random_masks and not self.smashed.additive

    def _kept(self, share: Array) -> Array:
        """Largest share of the squared (or absolute) distance that a share of whole patches can hold."""
        assert isinstance(self.mixing, CutMix)
        if not self.smashed.additive:
            return np.where(share > 0, 1.0, 0.0)
        dimensions = getattr(self.smashed, "dimensions", None)
        return share if dimensions is None else kept_share(share, self.mixing.patches, dimensions)

    def _shares(self, law: RatioLaw) -> tuple[Array, Array]:
        """Shares of the squared distance that are left in smashed data and label, in units of the noise's variance."""
        assert isinstance(self.mixing, Mixup | CutMix)
        squared = law.ratio**2
        if self.noise.site == "client":
            own = squared if self.mixing.colluding else law.norm
            squared = np.divide(squared, own, out=np.zeros_like(squared), where=own > 0)
        if isinstance(self.mixing, Mixup):
            return squared, squared
        return self._kept(law.share), squared
