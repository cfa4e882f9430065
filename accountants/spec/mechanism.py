"""The specification of a split-learning mechanism, from which the accountants compute privacy bounds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

from privkit.accountants import validate
from privkit.accountants.spec.mixing import (
    EXACT_PATCHES,
    DirichletCounts,
    DirichletRatio,
    Fixed,
    FixedRatio,
    RealizedRatios,
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
from privkit.accountants.spec.secrets import HiddenMask, RandomAllocation, ShuffledEpochs, check_secrets
from privkit.accountants.spec.sensitivity import Categories, ClipSet, PatchBall
from privkit.accountants.spec.shift import ShiftLaw, one_patch, over_noise, shift_law
from privkit.constraints import Checked, Count
from privkit.shared.certificate import Relation, Unit

Mixing = NoMixing | Mixup | CutMix | HiddenMask
Participation = EveryRound | ShuffledEpochs | WithoutReplacement | Poisson | RandomAllocation


@dataclass(frozen=True, kw_only=True)
class SplitMechanism(Checked):
    """The specification of a split-learning mechanism: what the server receives of one record or client in a run.

    Attributes:
        smashed: the clip set, which contains the smashed data (activations at the cut layer) of every record;
            `Categories` for randomized response.
        noise: law and size of the noise on smashed data and labels.
        lower_model: training of the client's segment: "frozen"; "trained" on raw data; "averaged", i.e. trained on raw
            data and then sent to others, for example to be averaged over clients; or `PrivateUpdates`.
        relation, unit: neighboring runs differ in one record or one client (`unit`), which is replaced, or added or
            removed (`relation`).
        labels: the set that contains one record's label; None if labels are not released.
        mixing: how the messages of several clients are mixed, or masked.
        participation: who takes part in a round.
        rounds: number of rounds T ≥ 1. With a record as the unit and `EveryRound`, only the rounds that release this
            record count, one per epoch.
        releases: number of releases of one unit in a round: the batch size b for a client, 1 for a record.
        random_masks: whether CutMix draws its masks uniformly in every round. Otherwise the server is taken to know
            them. The bound is lower with random masks if the clip set limits only the norm of the whole release.

    Raises:
        ValueError: for combinations without a derived bound; the message says why, and what is supported.

    Four numbers in [0, 1] have the L2 sensitivity 2, so the shift at σ = 2 is 1:

    >>> from privkit.accountants.spec.sensitivity import Clamp
    >>> SplitMechanism(
    ...     smashed=Clamp(low=0, high=1, dimensions=4), noise=Noise(smashed=2.0), lower_model="frozen"
    ... ).shift().constant
    1.0
    """

    kind: ClassVar[str] = "split_mechanism"
    smashed: ClipSet | Categories
    noise: Noise
    lower_model: Literal["frozen", "trained", "averaged"] | PrivateUpdates
    relation: Relation = "replace_one"
    unit: Unit = "record"
    labels: ClipSet | None = None
    mixing: Mixing = UNMIXED
    participation: Participation = ALWAYS
    rounds: Count = 1
    releases: Count = 1
    random_masks: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        law = self.noise.distribution
        law.check(self)  # first, since no other relation or sampling gives these combinations a bound
        check_secrets(self)
        if isinstance(self.mixing, CutMix) and isinstance(self.smashed, PatchBall):
            validate.choice("patches of the clip set", str(self.smashed.patches), (str(self.mixing.patches),))
        if (self.labels is None) != (self.noise.labels is None):
            raise ValueError(
                "labels and their noise go together: give both if labels are released, neither if not (a label that "
                "is released without noise has no finite ε)"
            )
        self._check_composition()
        self._check_participation()
        if not law.answers:
            over_noise(self, law.norm)  # raises if the clip set has no sensitivity for this case

    def _check_composition(self) -> None:
        if self.unit == "record" and self.releases != 1:
            raise ValueError(f"releases must be 1 with a record as the unit, got {self.releases}; rounds counts them")
        if self.unit == "record" and self.lower_model in ("trained", "averaged"):
            raise ValueError(
                "record-level accounting does not hold with a lower model trained on raw data: its weights carry a "
                "record into later releases of other records. Use lower_model='frozen', unit='client' with "
                "lower_model='trained', or differentially private updates of the lower model (PrivateUpdates)"
            )
        if isinstance(self.lower_model, PrivateUpdates) and (self.unit, self.relation) != ("record", "replace_one"):
            raise ValueError(
                "PrivateUpdates cover the replacement of one record; use unit='record' and relation='replace_one', or "
                "keep the lower model with its client (lower_model='trained', unit='client')"
            )
        if self.unit == "client" and self.lower_model == "averaged":
            raise ValueError(
                "averaging sends out lower models that were trained on raw data, and no noise here covers this: keep "
                "lower models local, freeze them, or train them with PrivateUpdates"
            )

    def _check_participation(self) -> None:
        kind, ratio = self.participation.kind, getattr(self.mixing, "ratio", None)
        if kind == "poisson":
            if self.relation != "add_or_remove_one":
                raise ValueError(
                    "poisson sampling needs relation='add_or_remove_one' (in privkit epsilon: --relation "
                    "add_or_remove_one); or sample k of n (without_replacement)"
                )
            if ratio is not None:
                raise ValueError("a Poisson subset has no fixed group to mix; sample k of n (without_replacement)")
        elif self.relation != "replace_one" and ratio is not None:
            raise ValueError(
                "in a mixed group, removing a client changes the others' shares, so use relation='replace_one'"
            )
        if isinstance(self.participation, WithoutReplacement):
            if self.relation != "replace_one":
                raise ValueError("sampling k of n fixes the number of clients, so use relation='replace_one'")
            if self.drawn_once and self.participation.rate < 1:
                raise ValueError(
                    "ratios that are drawn once need a fixed group, but k of n clients are drawn anew in every round: "
                    "use every_round, or ratios that are drawn in every round"
                )
            if ratio is not None and self.participation.chosen != ratio.group:
                raise ValueError(
                    f"the {self.participation.chosen} sampled clients form one mixing group, but the ratios are for "
                    f"{ratio.group}"
                )
        if isinstance(ratio, RealizedRatios):
            if kind != "every_round":
                raise ValueError(
                    "realized ratios show who took part, so sampling gives no amplification; use every_round"
                )
            if ratio.rounds != self.rounds:
                raise ValueError(f"realized ratios hold {ratio.rounds} rounds, but rounds={self.rounds}")
        if kind == "shuffled_epochs" and self.joint:
            raise ValueError(
                "ratios that are realized or drawn once are fixed to rounds, but a shuffled epoch draws each unit's "
                "round: use every_round with the rounds of one unit, or ratios that are drawn in every round"
            )
        if one_patch(self) and self.drawn_once:
            raise ValueError(
                "no bound is derived for ratios drawn once with masks fresh in every round under a clip of the whole "
                "release: clip every coordinate or patch, or draw the ratios in every round"
            )

    @property
    def drawn_once(self) -> bool:
        """Whether random mixing ratios are drawn once and kept for all rounds."""
        return getattr(getattr(self.mixing, "ratio", None), "drawn", "every_round") == "once"

    @property
    def joint(self) -> bool:
        """Whether `shift` covers all rounds of a run, because mixing ratios are realized (given) or drawn only once."""
        return self.drawn_once or isinstance(getattr(self.mixing, "ratio", None), RealizedRatios)

    @property
    def turn(self) -> int:
        """Number of rounds in which each record or client takes part once: 1, or the rounds of a shuffled epoch."""
        return self.participation.epoch_rounds if isinstance(self.participation, ShuffledEpochs) else 1

    @property
    def turns(self) -> int:
        """The largest number of rounds in which a record or client takes part: T, or the number of shuffled epochs,
        rounded up."""
        return -(-self.rounds // self.turn)

    @property
    def composed_rounds(self) -> int:
        """How often `shift` is composed in a run: 1 if it covers all rounds, otherwise T or the number of shuffled
        epochs."""
        return 1 if self.joint else self.turns

    @property
    def charged_together(self) -> int:
        """Number of rounds that a ledger charges at once: those of a shuffled or randomly allocated epoch, all rounds
        if `joint`, and otherwise 1."""
        if isinstance(self.participation, RandomAllocation | ShuffledEpochs):
            return self.participation.epoch_rounds
        return self.rounds if self.joint else 1

    @cached_property
    def participation_shows(self) -> bool:
        """Whether an adversary may learn who took part in a round. If so, sampling only makes releases rarer.

        Colluding clients know who was drawn with them. A trained lower model remembers the sample, so later releases
        depend on this sample, whereas the proof of amplification needs a fresh sample in every round.
        """
        return self.participation.rate < 1 and (self.colluders_know or self.lower_model != "frozen")

    @property
    def colluders_know(self) -> bool:
        """Whether colluding clients know who took part in a round.

        If k of n clients are drawn, the n − k others can say that they were not drawn. Under Poisson sampling the
        others reveal nothing.
        """
        drawn = isinstance(self.participation, WithoutReplacement)
        return drawn and bool(getattr(self.mixing, "colluding", False))

    @property
    def sampling(self) -> Participation:
        """The participation; `EveryRound` if an adversary may see who takes part (only secret sampling amplifies)."""
        return ALWAYS if self.participation_shows else self.participation

    @property
    def seated(self) -> bool:
        """Whether unequal fixed mixing ratios belong to places in a group, which sampled clients take at random."""
        ratio = getattr(self.mixing, "ratio", None)
        return isinstance(self.participation, WithoutReplacement) and isinstance(ratio, Fixed) and not ratio.even

    @property
    def secret_seat(self) -> bool:
        """Whether the server cannot know which message, mixing ratio or patches belong to the record or client that
        differs between neighbors.

        Sampled clients send messages without identity and take random places in a group. Colluding clients know their
        own places and masks, and so they know the remaining client's place.
        """
        mixing, drawn = self.mixing, isinstance(self.participation, WithoutReplacement)
        if not isinstance(mixing, Mixup | CutMix) or mixing.group == 1:
            alone = getattr(self.participation, "chosen", 1) == 1 or self.participation.rate == 1
            return drawn and not alone and not getattr(mixing, "colluding", False)
        if not getattr(mixing.ratio, "published", True):
            return True
        if isinstance(mixing, CutMix):
            if mixing.colluding:
                return self.random_masks and mixing.overfull
            return self.random_masks or drawn
        alike = isinstance(mixing.ratio, FixedRatio) and mixing.ratio.even
        return drawn and not alike and not mixing.colluding

    @property
    def ragged(self) -> bool:
        """Whether the patches of CutMix hold different numbers of coordinates, as in DP-CutMixSL's Table 1 (10
        coordinates, 64 patches). Then only the largest number of coordinates in a patch is known.
        """
        dimensions = getattr(self.smashed, "dimensions", None)
        if not isinstance(self.mixing, CutMix) or self.mixing.group == 1:
            return False
        return dimensions is not None and dimensions % self.mixing.patches != 0

    @property
    def attained(self) -> bool:
        """Whether some neighbors have exactly the privacy loss that is accounted for: an exact ε is then a lower bound,
        too.

        The answer is False if the bound may exceed the privacy loss of the worst neighbors. Masks without
        `random_masks` are a fixed part of the mechanism, which the server knows.
        """
        mixing, ratio = self.mixing, getattr(self.mixing, "ratio", None)
        if isinstance(mixing, HiddenMask) or isinstance(self.participation, RandomAllocation | ShuffledEpochs):
            return False  # no pair of neighbors is known to reach the bounds of secret places and rounds
        if self.secret_seat or isinstance(self.lower_model, PrivateUpdates):
            # The bound treats a secret as public, and raises small shifts (`ShiftLaw.raised`). The worst neighbors of
            # updates need not be the worst neighbors of the releases.
            return False
        if self.ragged or (self.participation_shows and not self.colluders_know):
            return False  # only the largest patch is known; lower models may reveal who took part
        if not self.noise.distribution.attained(self):
            return False
        if isinstance(mixing, CutMix) and mixing.group > 1 and not self.smashed.additive:
            return False  # masks may miss the patch that differs
        if isinstance(mixing, CutMix) and mixing.overfull and self.noise.site == "client":
            return False  # masks may overlap, and then it is unknown whose noise is left
        if not isinstance(ratio, DirichletRatio | DirichletCounts):
            return True
        coarse = isinstance(mixing, CutMix) and mixing.patches > EXACT_PATCHES
        if coarse and isinstance(ratio, DirichletRatio):
            return False  # its ratios are rounded up to a coarse grid
        return not (self.noise.site == "client" and ratio.group > 2)  # then ‖λ‖² is only bounded from below

    def shift(self) -> ShiftLaw:
        """The distribution of the Gaussian shift μ of one record or client in one round, or in all if `joint`."""
        return shift_law(self)
