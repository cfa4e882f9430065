"""Random mixing ratios: Rényi divergences, exact profiles, rounding to whole patches and hidden ratios."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import numpy as np
from scipy.special import gammaln, logsumexp

from privkit.accountants import answer
from privkit.accountants.bounds import mixture, subsampled_rdp
from privkit.accountants.golden.case import Case
from privkit.accountants.golden.gaussian import table_1
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletCounts, DirichletRatio, FixedRatio, RealizedRatios
from privkit.accountants.spec.parts import CutMix, Mixup, Noise
from privkit.accountants.spec.sensitivity import Clamp
from privkit.accountants.spec.shift import ShiftLaw

_DERIVED = "derived"
_MPMATH = "mpmath 1.3.0, closed form"
_CUTMIXSL = "Oh et al., DP-CutMixSL, §III.C"
_LAW = ShiftLaw(mu=np.array([0.3, 0.7]), log_weight=np.log([0.5, 0.5]))


def _mixed(mixing: Mixup | CutMix, mu: float) -> SplitMechanism:
    """One release without labels whose unmixed shift is μ; one coordinate a patch."""
    coordinates = mixing.patches if isinstance(mixing, CutMix) else 1
    clip = Clamp(low=0, high=mu / sqrt(coordinates), dimensions=coordinates)
    return SplitMechanism(smashed=clip, noise=Noise(smashed=1.0), lower_model="frozen", mixing=mixing)


def _dirichlet(concentration: float, clients: int, patches: int | None = None) -> Mixup | CutMix:
    """Ratios from Dir(α_M); CutMix where patches are given."""
    ratio = DirichletRatio(concentration=concentration, clients=clients)
    return Mixup(ratio=ratio) if patches is None else CutMix(ratio=ratio, patches=patches)


def _assumed(concentration: float, clients: int, patches: int | None) -> ShiftLaw:
    """CutMix in the setting of Table 1 if the published share of the coordinates were kept: λ, or ⌈λN⌉/N."""
    law = DirichletRatio(concentration=concentration, clients=clients).law(patches)
    whole = table_1().smashed.sensitivity("replace_one", "l2").value * 255 / 16
    return ShiftLaw(mu=np.sqrt(law.share * whole**2 + law.ratio**2 * 2 * (255 / 16) ** 2), log_weight=law.log_weight)


def _assumed_rdp(concentration: float, clients: int, patches: int | None = 64) -> Callable[[], float]:
    """Its Rényi divergence of order 2."""
    return lambda: float(mixture.rdp(2, _assumed(concentration, clients, patches)))


def _shares(concentration: float, clients: int, c: float) -> ShiftLaw:
    """CutMix without labels if a share of exactly λ were kept."""
    law = DirichletRatio(concentration=concentration, clients=clients).law(None)
    return ShiftLaw(mu=np.sqrt(law.ratio * 2 * c), log_weight=law.log_weight)


def _rdp(mechanism: SplitMechanism, order: float = 2) -> Callable[[], float]:
    """The Rényi curve at one order."""
    return lambda: answer.rdp(mechanism, [order]).values[0]


def _hidden_ratio() -> float:
    """Rényi divergence of order 2 with hidden ratios and nothing else in the mixture, larger direction."""
    law = DirichletRatio(concentration=2, clients=2).law(None)
    return float(subsampled_rdp.mixture_gaussian_rdp([2], (2 * law.ratio).tolist(), np.exp(law.log_weight).tolist())[0])


def _hidden_mask() -> float:
    """ln E e^{J/2} over the overlap J ~ Hypergeometric(64, 32, 32) of two independent masks."""
    j = np.arange(33.0)
    log_choose = gammaln(33) - gammaln(j + 1) - gammaln(33 - j)
    return float(logsumexp(2 * log_choose + 0.5 * j) - logsumexp(2 * log_choose))


def _case(
    name: str, what: str, compute: Callable[[], float], expected: float, rel: float, source: str = _DERIVED
) -> Case:
    """A case with a relative tolerance."""
    return Case(id=name, what=what, compute=compute, expected=expected, rel=rel, source=source)


CASES: tuple[Case, ...] = (
    _case(
        "C04",
        "share of patches kept by 1 of 9, over 1/9",
        lambda: float(9 * FixedRatio.equal(9).law(64).share[0]),
        1.125,
        1e-12,
        _CUTMIXSL,
    ),
    Case(
        id="C05",
        what="⌈0.37·64⌉ + ⌈0.63·64⌉: masks cannot be exclusive",
        compute=lambda: float(64 * RealizedRatios(ratios=((0.37, 0.63),)).per_round(64).share.sum()),
        expected=65,
        source=_CUTMIXSL,
    ),
    _case("D01", "Mixup, k = 2, α_M = 2, α = 2", _rdp(table_1(_dirichlet(2, 2))), 552.8908300640743, 1e-8),
    _case(
        "D02",
        "CutMix if a share of exactly λ were kept",
        _assumed_rdp(2, 2, None),
        552.9944975216669,
        1e-8,
    ),
    _case("D03", "CutMix at its share, ⌈64λ⌉ patches", _assumed_rdp(2, 2), 553.1041480937132, 1e-8),
    _case("D04", "Mixup, k = 5", _rdp(table_1(_dirichlet(2, 5))), 521.7434495305412, 1e-8),
    _case("D05", "CutMix at its share, k = 10, ⌈64λ⌉ patches", _assumed_rdp(2, 10), 479.496423578306, 1e-8),
    _case("D06", "CutMix at its share, k = 4, α_M = 6", _assumed_rdp(6, 4), 486.9089680130175, 1e-8),
    _case(
        "D07", "Mixup, k = 3, α = 5, c = 0.4", _rdp(_mixed(_dirichlet(2, 3), sqrt(0.8)), 5), 0.5490369297254349, 1e-9
    ),
    _case(
        "D08",
        "CutMix if a share of exactly λ were kept, k = 3, α = 5, c = 0.4",
        lambda: float(mixture.rdp(5, _shares(2, 3, 0.4))),
        0.9478352663967402,
        1e-9,
    ),
    _case(
        "D09",
        "CutMix, Dirichlet-multinomial counts of 16 patches, k = 3, α = 5, c = 0.4",
        _rdp(_mixed(CutMix(ratio=DirichletCounts(concentration=2, clients=3), patches=16), sqrt(0.8)), 5),
        1.0491707396084806,
        1e-9,
    ),
    _case(
        "D10",
        "exact ε, Mixup, μ = 2, k = 2, α_M = 2",
        lambda: answer.epsilon(_mixed(_dirichlet(2, 2), 2), 1e-5).epsilon,
        7.73437417931696,
        1e-6,
    ),
    _case(
        "D11",
        "true δ at the ε that a fixed 1/2 would claim",
        lambda: answer.delta(_mixed(_dirichlet(2, 2), 2), 4.377178095681228).delta or 0.0,
        0.0031694120797689748,
        1e-8,
    ),
    _case(
        "D12",
        "exact ε, DP-CutMixSL of Table 1 at its share, k = 2, α_M = 2",
        lambda: mixture.invert(mixture.profile(_assumed(2, 2, 64)), 1e-5),
        337.00321498209223,
        1e-6,
    ),
    _case("D13", "hidden ratios, zero background, α = 2, μ = 2", _hidden_ratio, 1.2593623997247658, 1e-9),
    _case("D14", "hidden masks of 32 of 64 patches, zero background, α = 2", _hidden_mask, 8.506620275406775, 1e-9),
    _case(
        "known_lambda_rdp_a2",
        "ratios .3 or .7, told, α = 2",
        lambda: float(mixture.rdp(2, _LAW)),
        0.3098680718400073,
        1e-12,
        _MPMATH,
    ),
    _case(
        "known_lambda_rdp_a8",
        "ratios .3 or .7, told, α = 8",
        lambda: float(mixture.rdp(8, _LAW)),
        1.8609809276489464,
        1e-12,
        _MPMATH,
    ),
    _case(
        "pldmix_known_lambda_T1",
        "exact ε with ratios .3 or .7, told",
        lambda: mixture.invert(mixture.profile(_LAW), 1e-5),
        2.7928482477965995,
        1e-4,
        "dp-accounting 0.6.0",
    ),
)
