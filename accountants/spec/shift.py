"""The shift for Gaussian and Laplace bounds: a release's largest change between neighbors, divided by the noise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import TYPE_CHECKING, Literal

import numpy as np

from privkit.accountants.spec.mixing import RatioLaw, RealizedRatios, kept_share
from privkit.accountants.spec.parts import CutMix, Mixup, NoMixing
from privkit.accountants.spec.secrets import HiddenMask
from privkit.accountants.spec.sensitivity import l1_coordinates
from privkit.shared.array import Array

if TYPE_CHECKING:
    from privkit.accountants.spec.mechanism import SplitMechanism


_CERTAIN = np.zeros(1)  # log weight of a law with one point
FEW = 256  # most points of a law that a composition treats one by one, within milliseconds
# largest sensitivity divided by noise: even far smaller shifts hide nothing, and its square must not overflow
_LARGEST_SHIFT = 1e100


@dataclass(frozen=True, kw_only=True)
class ShiftLaw:
    """The distribution of a release's Gaussian shift μ (sensitivity divided by the noise's standard deviation) over the
    public random draws of a round.

    `mu` [J] holds the possible shifts, ≥ 0, and `log_weight` [J] the logarithms of their probabilities. If `profile` is
    False, the law bounds only the Rényi divergence: the worst neighbors may have another (ε, δ) profile.
    """

    mu: Array
    log_weight: Array
    profile: bool = True

    @property
    def constant(self) -> float | None:
        """μ if the law has only one value, else None."""
        return float(self.mu[0]) if self.mu.size == 1 else None

    def merged(self) -> ShiftLaw:
        """The same distribution, in which consecutive points with equal μ become one point."""
        starts = np.flatnonzero(np.append(True, np.diff(self.mu) != 0))
        if starts.size == self.mu.size:
            return self
        return replace(self, mu=self.mu[starts], log_weight=np.logaddexp.reduceat(self.log_weight, starts))

    def raised(self, points: int = FEW) -> ShiftLaw:
        """A distribution with at most `points` points: shifts are grouped, and each shift is raised to the largest of
        its group. A distribution with at most `points` points is returned unchanged.

        A Gaussian profile increases with μ, so the profile of the result is an upper bound. It is at most the profile
        of the largest shift. The largest shifts stay single. The other groups have equal shares of a measure: one half
        of it is the step of μ, and the other half is √(p·Δμ²), where p is a point's probability. The second half keeps
        the mean of μ² low.

        Source: derived.

        >>> many = ShiftLaw(mu=np.linspace(0, 1, 1001), log_weight=np.full(1001, -np.log(1001)))
        >>> few = many.raised()
        >>> few.mu.size <= 256, float(few.mu[-1]), round(float(np.exp(few.log_weight) @ few.mu), 3)
        (True, 1.0, 0.502)
        """
        if self.mu.size <= points:
            return self
        kept = points // 16  # the largest shifts stay unchanged, since they determine ε at small δ
        order = np.argsort(self.mu)
        mu, log_weight = self.mu[order], self.log_weight[order]
        steps, growth = np.diff(mu[:-kept]), np.sqrt(np.exp(log_weight[: -kept - 1]) * np.diff(mu[:-kept] ** 2))
        place = np.cumsum(steps / max(steps.sum(), 1e-300) + growth / max(growth.sum(), 1e-300))
        classes = np.ceil(place / 2 * (points - kept - 2))
        starts = np.flatnonzero(np.concatenate([[1], np.diff(classes, prepend=0), np.ones(kept)]))
        ends = np.append(starts[1:], mu.size) - 1
        return replace(self, mu=mu[ends], log_weight=np.logaddexp.reduceat(log_weight, starts))


def shift_law(mechanism: SplitMechanism) -> ShiftLaw:
    """The distribution of the shift μ under Gaussian noise, for one record or client: in one round, or in all rounds
    together if `mechanism.joint`.

    μ² = b·(s·S_s²/σ_s² + y·S_y²/σ_y²), with the number b of releases in a round, the sensitivities S_s of smashed data
    and S_y of the label, and their noises σ_s and σ_y. s and y are the shares of the squared distances that mixing
    leaves. If participation is public, μ is 0 with the probability that the record or client is not sampled; this draw
    is independent of the data.

    A random place in the mixture is treated as public. The place is independent of the data, so the mean divergence
    over places is an upper bound (joint convexity). If places give more than 256 shifts, small shifts are raised
    (`ShiftLaw.raised`).

    Source: DP-CutMixSL Eq. 19 and 20, corrected for the drawn counts, the place where noise is added, and the attacked
    client's own λ.
    """
    law = _taking_part(mechanism)
    if not mechanism.participation_shows:
        return law
    rate = mechanism.participation.rate
    return ShiftLaw(
        mu=np.concatenate([[0.0], law.mu]),
        log_weight=np.concatenate([[np.log1p(-rate)], np.log(rate) + law.log_weight]),
        profile=law.profile,
    )


def laplace_shift(mechanism: SplitMechanism) -> tuple[float, int]:
    """Two numbers: the L1 sensitivity of a round's releases, divided by the noise's scale; and 1 if the releases
    consist of one number, else 0."""
    whole, label = over_noise(mechanism, "l1")
    dimensions = getattr(mechanism.smashed, "dimensions", 0)
    law = ratio_law(mechanism)
    if law is None:
        total = whole + label
    else:
        keeps = law.ratio if isinstance(mechanism.mixing, Mixup) else _kept_distance(mechanism, law.share)
        total = float(np.max(keeps * whole + law.ratio * label))
    alone = isinstance(mechanism.mixing, NoMixing) and mechanism.labels is None
    one = dimensions == 1 and alone and mechanism.releases == 1
    return mechanism.releases * total, int(one)


def laplace_parts(mechanism: SplitMechanism) -> tuple[tuple[float, int], ...]:
    """Independent Laplace variables that dominate one round's releases, as pairs (shift divided by the scale, number of
    variables with this shift).

    Source: derived. If only a sum over coordinates is bounded, `sensitivity.l1_coordinates` gives the worst case.
    """
    whole, label = over_noise(mechanism, "l1")
    many = l1_coordinates(mechanism.smashed, mechanism.relation)
    shift, kept, ratio = whole / many, many, 1.0
    if (law := ratio_law(mechanism)) is not None:
        ratio = float(law.ratio.max())
        if isinstance(mechanism.mixing, CutMix):
            kept = ceil(float(_kept_distance(mechanism, law.share).max()) * many - 1e-6)
        else:
            shift *= ratio
    parts = [(shift, kept * mechanism.releases)]
    if mechanism.labels is not None:
        classes = l1_coordinates(mechanism.labels, mechanism.relation)
        parts.append((ratio * label / classes, classes * mechanism.releases))
    return tuple((shift, count) for shift, count in parts if count and shift)


def ratio_law(mechanism: SplitMechanism, sharpness: float = 1.0) -> RatioLaw | None:
    """The distribution of the mixing ratio λ in one round; None without mixing, and for realized ratios. Fixed ratios
    give the λ of the client that loses most privacy, or of a random place if sampled clients take random places.
    `sharpness`, the largest shift μ, sets the resolution of the quadrature."""
    ratio = getattr(mechanism.mixing, "ratio", None)
    if ratio is None or isinstance(ratio, RealizedRatios):
        return None
    patches = mechanism.mixing.patches if isinstance(mechanism.mixing, CutMix) else None
    law: RatioLaw = ratio.seats(patches) if mechanism.seated else ratio.law(patches, sharpness)
    return law


def over_noise(mechanism: SplitMechanism, norm: Literal["l1", "l2"]) -> tuple[float, float]:
    """The sensitivities of smashed data and label without mixing, each divided by its noise; the second is 0 without a
    label. Raises ValueError if a quotient is 1e100 or more."""
    whole = mechanism.smashed.sensitivity(mechanism.relation, norm) / mechanism.noise.smashed
    label = 0.0
    if mechanism.labels is not None and mechanism.noise.labels is not None:
        label = mechanism.labels.sensitivity(mechanism.relation, norm) / mechanism.noise.labels
    if not max(whole, label) < _LARGEST_SHIFT:
        raise ValueError(
            f"sigma is too small: the sensitivity is {max(whole, label):.3g} times the noise, and "
            f"{_LARGEST_SHIFT:g} times is the most that is accounted for"
        )
    return whole, label


def one_patch(mechanism: SplitMechanism) -> bool:
    """Whether the clip set bounds only the whole release, and CutMix draws its masks uniformly in every round."""
    return isinstance(mechanism.mixing, CutMix) and mechanism.random_masks and not mechanism.smashed.additive


def _taking_part(mechanism: SplitMechanism) -> ShiftLaw:
    whole, label = over_noise(mechanism, "l2")
    if isinstance(mechanism.mixing, NoMixing | HiddenMask):  # masks are not credited here
        return ShiftLaw(mu=np.array([sqrt(mechanism.releases * (whole**2 + label**2))]), log_weight=_CERTAIN)
    ratio = mechanism.mixing.ratio
    if isinstance(ratio, RealizedRatios):
        every = ratio.per_round(mechanism.mixing.patches if isinstance(mechanism.mixing, CutMix) else None)
        s, y = _squared_shares(mechanism, every)
        squared = mechanism.releases * (s * whole**2 + y * label**2).sum(0)
        return ShiftLaw(mu=np.array([sqrt(squared.max())]), log_weight=_CERTAIN)
    releases = mechanism.releases * (mechanism.rounds if mechanism.drawn_once else 1)
    law = ratio_law(mechanism, sqrt(releases * (whole**2 + label**2)))
    assert law is not None
    s, y = _squared_shares(mechanism, law)
    if one_patch(mechanism):
        # All of the distance may lie in one patch, which a uniform mask keeps with probability q.
        with np.errstate(divide="ignore"):
            kept, dropped = np.log(law.share), np.log1p(-law.share)
        squared = np.concatenate([whole**2 + y * label**2, y * label**2])
        log_weight = np.concatenate([law.log_weight + kept, law.log_weight + dropped])
        return ShiftLaw(mu=np.sqrt(releases * squared), log_weight=log_weight, profile=False)
    # One λ for all releases of a round gives the larger Rényi divergence (Jensen), but not always the larger (ε, δ)
    # profile. A seat (place in the mixture) is taken once per round.
    profile = law.ratio.size == 1 or mechanism.releases == 1 or mechanism.drawn_once or mechanism.seated
    mu = np.sqrt(releases * (s * whole**2 + y * label**2))
    found = ShiftLaw(mu=mu, log_weight=law.log_weight, profile=profile).merged()
    return found.raised() if mechanism.seated and mechanism.secret_seat else found


def _kept_distance(mechanism: SplitMechanism, share: Array) -> Array:
    """The largest part of the squared distance (with Laplace noise, the distance) that a `share` of the patches can
    hold."""
    assert isinstance(mechanism.mixing, CutMix)
    if not mechanism.smashed.additive:
        return np.where(share > 0, 1.0, 0.0)
    dimensions = getattr(mechanism.smashed, "dimensions", None)
    return share if dimensions is None else kept_share(share, mechanism.mixing.patches, dimensions)


def _squared_shares(mechanism: SplitMechanism, law: RatioLaw) -> tuple[Array, Array]:
    """Shares of the squared distance that mixing leaves in smashed data and in the label, for noise of variance 1."""
    assert isinstance(mechanism.mixing, Mixup | CutMix)
    squared = law.ratio**2
    if mechanism.noise.site == "client":
        own = squared if mechanism.mixing.colluding else law.norm
        squared = np.divide(squared, own, out=np.zeros_like(squared), where=own > 0)
    if isinstance(mechanism.mixing, Mixup):
        return squared, squared
    return _kept_distance(mechanism, law.share), squared
