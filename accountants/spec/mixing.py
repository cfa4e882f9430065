"""Mixing ratios and their distributions. A client's ratio limits how much of the distance between neighbors is left
after mixing.

A law (distribution) is a list of points with probabilities. Each point has the mixing ratio λ and the share q of
patches that the client fills. A fixed ratio has one point, a law of counts of N patches has N + 1 points, and a density
has the nodes of a quadrature.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isclose, log, log1p, sqrt
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Le
from scipy.special import betaln, expit, log_expit, logsumexp

from privkit.accountants import validate
from privkit.constraints import Checked, Positive, Probability, Whole
from privkit.shared.array import Array

_MOST_PIECES = 100_000  # pieces of a quadrature over ratios, at most ten nodes each
EXACT_PATCHES = 4096
"""Most patches N for which random ratios are rounded up to multiples of 1/N. For larger N, fewer values are used."""
LARGEST = 1_000_000  # most clients in a group and most patches of an image, since a law is an array over them
ArrayCount = Annotated[int, Ge(1), Le(LARGEST)]  # a number of clients or patches


@dataclass(frozen=True, kw_only=True)
class RatioLaw:
    """The distribution of one client's mixing ratio λ, and of the share q = N_i/N of the N patches that the client
    fills, as J points."""

    ratio: Array  # [J] λ in [0, 1]
    share: Array  # [J] q in [0, 1]; equals `ratio` if patches are not rounded
    norm: Array  # [J] lower bound on ‖λ‖² over the group, for noise that clients add before mixing
    log_weight: Array  # [J] logarithms of the probabilities; the probabilities sum to 1


def kept_share(share: Array, patches: int, dimensions: int) -> Array:
    """The largest share of D = `dimensions` coordinates that N_i of N patches can hold: min(D, N_i·⌈D/N⌉)/D. `share`
    holds values N_i/N; the result has its shape.

    This assumes that no patch holds more than ⌈D/N⌉ coordinates.

    Source: derived. DP-CutMixSL uses N_i/N, although its Table 1 divides 10 coordinates among 64 patches.
    """
    if dimensions % patches == 0:
        return share
    return np.minimum(1.0, np.round(share * patches) * ceil(dimensions / patches) / dimensions)


class _Fixed(Checked):
    """Fixed mixing ratios of the clients, or of the places in a group if sampled clients take random places."""

    @property
    def values(self) -> tuple[float, ...]:
        """One number for each client, proportional to its ratio."""
        raise NotImplementedError

    def points(self, patches: int | None) -> tuple[list[float], list[float]]:
        """The k ratios, and the k shares of patches that the clients fill, as lists of floats."""
        raise NotImplementedError

    @property
    def group(self) -> int:
        return len(self.values)

    @property
    def even(self) -> bool:
        return len(set(self.values)) == 1

    def law(self, patches: int | None, sharpness: float = 1.0) -> RatioLaw:
        ratios, shares = self.points(patches)
        largest = ratios.index(max(ratios))
        return _one_ratio(ratios[largest], shares[largest], sum(one**2 for one in ratios))

    def seats(self, patches: int | None) -> RatioLaw:
        ratios, shares = self.points(patches)
        ratio, first, number = np.unique(ratios, return_index=True, return_counts=True)
        norm = np.full(ratio.size, sum(one**2 for one in ratios))
        share = np.array(shares)[first]
        return RatioLaw(ratio=ratio, share=share, norm=norm, log_weight=np.log(number / len(ratios)))


@dataclass(frozen=True, kw_only=True)
class FixedRatio(_Fixed):
    """Fixed mixing ratios λ_i (`ratios`) of the clients in a group. The ratios sum to 1 and are the same in every
    round, as in Theorem 1 of DP-CutMixSL.

    With CutMix, client i fills N_i = ⌈λ_i·N⌉ of N patches, and the bound uses the share N_i/N. If some λ_i·N is not
    whole, the counts sum to more than N, so masks cannot be exclusive (use `FixedCounts`). A ratio within two rounding
    errors of a fraction m/N is taken as m/N.
    """

    kind: ClassVar[str] = "fixed"
    ratios: tuple[Probability, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.ratios:
            raise ValueError("ratios must hold at least one client's ratio, got none")
        if not isclose(sum(self.ratios), 1, abs_tol=1e-9):
            raise ValueError(f"mixing ratios must sum to 1, got {sum(self.ratios):g} from {self.ratios}")

    @classmethod
    def equal(cls, group: int) -> FixedRatio:
        """Build equal ratios λ_i = 1/k for a `group` of k ≥ 1 clients."""
        return cls(ratios=(1 / validate.whole("group", group, most=LARGEST),) * group)

    @property
    def values(self) -> tuple[float, ...]:
        return self.ratios

    def points(self, patches: int | None) -> tuple[list[float], list[float]]:
        ratios = list(self.ratios)
        return ratios, ratios if patches is None else rounded_up_to_patches(np.array(ratios), patches).tolist()


@dataclass(frozen=True, kw_only=True)
class FixedCounts(_Fixed):
    """The numbers N_i ≥ 0 of patches (`counts`) that the clients fill in every round. They sum to the number N of
    patches, so the clients' masks are exclusive and cover all patches.

    >>> FixedCounts(counts=(32, 32)).law(64).share.tolist()
    [0.5]
    """

    kind: ClassVar[str] = "counts"
    counts: tuple[Whole, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if sum(self.counts) < 1:
            raise ValueError(f"counts must sum to the number of patches, got {self.counts}")

    @property
    def values(self) -> tuple[float, ...]:
        return self.counts

    def points(self, patches: int | None) -> tuple[list[float], list[float]]:
        if patches is not None and sum(self.counts) != patches:
            raise ValueError(f"counts must sum to the {patches} patches, got {sum(self.counts)} from {self.counts}")
        ratios = [count / sum(self.counts) for count in self.counts]
        return ratios, ratios


@dataclass(frozen=True, kw_only=True)
class RealizedRatios:
    """Mixing ratios that were drawn in a run: `ratios[t][i]` belongs to round t and client i; each round sums to 1.

    The ratios are public and independent of the data, so the accountant may condition on them. The squared shifts μ²
    are summed over rounds for each client, and the largest sum is taken: max_i Σ_t, not Σ_t max_i.

    Source: derived.
    """

    kind: ClassVar[str] = "realized"
    ratios: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if not self.ratios or len({len(row) for row in self.ratios}) != 1:
            raise ValueError("realized ratios must be a non-empty table with one column per client")
        for row in self.ratios:
            FixedRatio(ratios=tuple(row))

    @property
    def group(self) -> int:
        return len(self.ratios[0])

    @property
    def rounds(self) -> int:
        return len(self.ratios)

    def per_round(self, patches: int | None) -> RatioLaw:
        """The ratios and shares of N = `patches` patches as arrays [rounds, clients]; every round has the weight 1."""
        ratio = np.array(self.ratios)
        share = ratio if patches is None else rounded_up_to_patches(ratio, patches)
        norm = np.broadcast_to((ratio**2).sum(1, keepdims=True), ratio.shape)
        return RatioLaw(ratio=ratio, share=share, norm=norm, log_weight=np.zeros_like(ratio))


@dataclass(frozen=True, kw_only=True)
class _Dirichlet(Checked):
    """Common base of mixing ratios and patch counts with a symmetric Dirichlet distribution.

    Attributes:
        concentration: α_M > 0, the parameter of the distribution; ratios are nearly equal if it is large.
        clients: k, the number of clients in the group.
        published: whether the server learns the ratios λ, and with CutMix the client of each patch. Hidden ratios have
            the same bound as published ratios, by joint convexity. (Other clients' data can reveal λ.)
        drawn: "every_round" for fresh ratios in each round; "once" for ratios that every client keeps for all rounds,
            while masks may still be fresh. Over many rounds, "once" costs more privacy, since a large λ stays.
    """

    concentration: Positive
    clients: ArrayCount
    published: bool = True
    drawn: Literal["every_round", "once"] = "every_round"

    @property
    def group(self) -> int:
        return self.clients

    def _law(self, ratio: Array, share: Array, log_weight: Array) -> RatioLaw:
        # Noise before mixing has variance ∝ ‖λ‖² ≥ λ² + (1−λ)²/(k−1), with equality for two clients.
        norm = ratio**2 + (1 - ratio) ** 2 / (self.clients - 1)
        return RatioLaw(ratio=ratio, share=share, norm=norm, log_weight=log_weight)


@dataclass(frozen=True, kw_only=True)
class DirichletRatio(_Dirichlet):
    """Mixing ratios λ ~ Dirichlet(α_M, …, α_M) of k clients. One client's λ is then Beta(α_M, (k−1)·α_M).

    Source: Dirichlet masks of DP-CutMixSL §III.C; the law of the marginal is derived.

    >>> law = DirichletRatio(concentration=2, clients=2).law(None)
    >>> round(float((np.exp(law.log_weight) * law.ratio).sum()), 12)
    0.5
    """

    kind: ClassVar[str] = "dirichlet"

    def law(self, patches: int | None, sharpness: float = 1.0) -> RatioLaw:
        if self.clients == 1:
            return _one_ratio(1.0, 1.0, 1.0)
        a, b = self.concentration, (self.clients - 1) * self.concentration
        edges = np.array([1.0]) if patches is None else _edges(patches)
        ratio, log_weight = beta_nodes(a, b, edges[:-1], sharpness)
        share = ratio if patches is None else edges[np.searchsorted(edges, ratio).clip(max=edges.size - 1)]
        return self._law(ratio, share, log_weight)


@dataclass(frozen=True, kw_only=True)
class DirichletCounts(_Dirichlet):
    """Patch counts N_i ~ Dirichlet-multinomial(N, α_M) of k clients, with mixing ratios λ_i = N_i/N. The counts sum to
    the number N of patches, as CutMix needs.

    Source: CutMixSL §3.2; one client's count is Beta-binomial(N, α_M, (k−1)·α_M).

    >>> law = DirichletCounts(concentration=2, clients=3).law(16)
    >>> len(law.ratio), round(float(np.exp(law.log_weight).sum()), 12)
    (17, 1.0)
    """

    kind: ClassVar[str] = "dirichlet_counts"

    def law(self, patches: int | None, sharpness: float = 1.0) -> RatioLaw:
        if patches is None:
            raise ValueError("dirichlet_counts draws numbers of patches: use it with cutmix, or dirichlet with mixup")
        if self.clients == 1:
            return _one_ratio(1.0, 1.0, 1.0)
        a, k, j = self.concentration, self.clients, np.arange(patches + 1.0)
        # a(a+1)…(a+j−1) / (ka)^j in logarithms, for this client's a and the others' (k−1)·a: a large α_M cancels
        own, others = (np.append(0, np.cumsum(_log_ratios(j[:-1], c))) for c in (a, (k - 1) * a))
        log_weight = own + others[::-1] - j * log(k) + j[::-1] * log1p(-1 / k) - betaln(j + 1, j[::-1] + 1)
        log_weight -= logsumexp(log_weight)
        return self._law(j / patches, j / patches, log_weight)


Fixed = FixedRatio | FixedCounts  # ratios that are the same in every round
Ratio = FixedRatio | FixedCounts | RealizedRatios | DirichletRatio | DirichletCounts
"""A law of mixing ratios; `group` is the number k of clients.

Except for realized ratios, `law(patches, sharpness)` is the `RatioLaw` of the client that loses most privacy. `patches`
is N for CutMix and None for Mixup. `sharpness` is the largest μ of the release. It sets the quadrature's resolution:
integrands vary on a scale of 1/μ in λ. Fixed ratios are `even` if they are all equal. They also have `seats(patches)`:
the law of one client's ratio if clients take the places in the group uniformly at random. If the ratios are equal, this
law has one point.
"""


def rounded_up_to_patches(ratio: Array, patches: int) -> Array:
    """⌈λN⌉/N: each mixing ratio λ rounded up to a whole number of N = `patches` patches. A ratio within two rounding
    errors of m/N is taken as m/N.
    """
    return np.asarray(np.ceil(np.nextafter(ratio, 0) * patches) / patches)


def beta_nodes(a: float, b: float, breaks: Array, sharpness: float = 1.0) -> tuple[Array, Array]:
    """Increasing nodes λ and log weights of a quadrature for a Beta(a, b) variable. The quadrature is exact to rounding
    for the integrands exp(tλ²) and δ(ε; μλ), the profile of a Gaussian release of shift μλ; μ is `sharpness`.

    In x = logit λ the density has tails e^{ax} and e^{−bx}, and no singularity for any a, b > 0. At the peak of an
    integrand like exp(tλ²) times the density, the curvature is at most about 2(a + b), so Gauss–Legendre quadrature on
    short pieces is exact for any peak. The length of a piece in x is at most 1 and at most 2/√(a + b), which is below
    the standard deviation of x. The length in λ is at most 1/μ, the scale on which δ(ε; μλ) varies. Mass beyond the
    last piece counts as λ = 1. No piece crosses one of the `breaks` in (0, 1), at which the integrand may jump. A
    weight may be far below the smallest float.
    """
    low, high = log(a) - log(b) - 45 / a - 5, 45 / b + 30  # from below the mode, which is near −ln k for k clients
    longest = min(1.0, 2 / sqrt(a + b))
    if high - low > (_MOST_PIECES - sharpness) * longest:
        kind, do = (
            ("even", "lower the concentration") if longest < 1e-3 else ("uneven", "raise the concentration or sigma")
        )
        raise ValueError(
            f"ratios with concentration={a:g} under a shift of {sharpness:.3g} are too {kind} to integrate: {do}, or "
            "give fixed ratios"
        )
    turns = np.arange(1, ceil(sharpness)) / ceil(sharpness)
    inner = np.unique(np.concatenate([breaks, turns]))
    inner = np.log(inner) - np.log1p(-inner)
    edges = np.concatenate([[low], inner[(inner > low) & (inner < high)], [high]])
    counts = np.maximum(1, np.ceil(np.diff(edges) / longest).astype(int))
    widths = np.repeat(np.diff(edges) / counts, counts)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.repeat(edges[:-1], counts) + (np.arange(widths.size) - first) * widths
    # Four nodes are as exact as ten on pieces below a sixteenth of the length that the integrand allows.
    short = widths < longest / 16
    short &= np.diff(expit(np.append(starts, high))) * ceil(sharpness) < 1 / 16
    x, weight = (
        np.concatenate(both)
        for both in zip(
            *(_legendre(starts[kind], widths[kind], size) for kind, size in ((short, 4), (~short, 10))), strict=True
        )
    )
    order = np.argsort(x)
    x, log_weight = x[order], np.log(weight[order])
    log_weight += a * log_expit(x) + b * log_expit(-x) - betaln(a, b)
    ratio, log_weight = np.append(expit(x), 1.0), np.append(log_weight, -b * high - log(b) - betaln(a, b))
    return ratio, log_weight - logsumexp(log_weight)


def _log_ratios(j: Array, c: float) -> Array:
    """ln((c + j) / c) for c > 0, whose j/c may overflow."""
    return np.log1p(j / c) if c > 1 else np.log(c + j) - log(c)


def _legendre(starts: Array, widths: Array, size: int) -> tuple[Array, Array]:
    node, weight = np.polynomial.legendre.leggauss(size)
    return (starts[:, None] + widths[:, None] * (node + 1) / 2).ravel(), np.outer(widths / 2, weight).ravel()


def _edges(patches: int) -> Array:
    """The shares to which a ratio is rounded up: all j/N, or only some of them if N is large, to keep arrays small."""
    counts = np.arange(1, patches + 1)
    if patches > EXACT_PATCHES:
        growing = EXACT_PATCHES * (patches / EXACT_PATCHES) ** np.linspace(0, 1, 2 * EXACT_PATCHES)
        counts = np.unique(np.append(counts[:EXACT_PATCHES], np.ceil(growing).clip(max=patches))).astype(int)
    return counts / patches


def _one_ratio(ratio: float, share: float, norm: float) -> RatioLaw:
    return RatioLaw(ratio=np.array([ratio]), share=np.array([share]), norm=np.array([norm]), log_weight=np.zeros(1))
