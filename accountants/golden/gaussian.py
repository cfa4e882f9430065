"""The Gaussian mechanism exactly and by Rényi orders, conversions, Laplace noise, clip sets and counter-examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log, sqrt
from typing import Literal

import numpy as np

from privkit.accountants import answer
from privkit.accountants.bounds import gaussian, laplace, renyi, subsampling
from privkit.accountants.calibration import calibrate
from privkit.accountants.golden.case import Case
from privkit.accountants.shuffles import laws
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import FixedCounts, FixedRatio
from privkit.accountants.spec.parts import CutMix, EveryRound, Mixup, Noise, NoMixing, WithoutReplacement
from privkit.accountants.spec.sensitivity import Ball, Clamp, OneHot
from privkit.accountants.spec.shift import laplace_shift

_BALLE_WANG = "Balle and Wang 2018, Theorem 8"
_SAMPLED = "Balle, Barthe and Gaboardi 2018, Theorem 9, with Balle and Wang 2018"
_DERIVED = "derived"
_CUTMIXSL = "Oh et al., DP-CutMixSL, Table 1"
_ACCURATE = "Xu et al., Accurate Split Learning on Noisy Signals, Table 11"
_DP_ACCOUNTING = "dp-accounting 0.6.0"
_AUTODP = "autodp 0.2.3.1"

DP_ACCOUNTING_ORDERS: tuple[float, ...] = (
    *(1 + i / 10 for i in range(1, 100)),
    *(float(i) for i in range(11, 64)),
    *(128.0, 256.0, 512.0, 1024.0),
)
_FINE = np.linspace(1.01, 50.0, 400_001)
"""Orders so close that the smallest ε on them is that over all orders, to 1e-9."""


def table_1(
    mixing: NoMixing | Mixup | CutMix | None = None,
    *,
    chosen: int | None = None,
    dimensions: int = 10,
    rounds: int = 1,
    site: str = "mixer",
) -> SplitMechanism:
    """The setting of Table 1 at σ = 16/255 with one-hot labels; k of n = 10 where `chosen` is given, else everyone."""
    return SplitMechanism(
        smashed=Clamp(low=0, high=0.15, dimensions=dimensions),
        labels=OneHot(),
        noise=Noise(smashed=16 / 255, labels=16 / 255, site=site),  # type: ignore[arg-type]
        lower_model="frozen",
        mixing=mixing or NoMixing(),
        participation=EveryRound() if chosen is None else WithoutReplacement(chosen=chosen, clients=10),
        rounds=rounds,
    )


def _epsilon(mechanism: SplitMechanism, delta: float = 1e-5) -> Callable[[], float]:
    """ε of the certificate."""
    return lambda: answer.epsilon(mechanism, delta).epsilon


def _second_order(mechanism: SplitMechanism) -> Callable[[], float]:
    """Rényi divergence of order 2."""
    return lambda: answer.rdp(mechanism, [2]).values[0]


def _tanh(coordinates: int, sigma: float, law: Literal["gaussian", "laplace"] = "gaussian") -> SplitMechanism:
    """One release of tanh outputs in [−1, 1]^n."""
    smashed, noise = Clamp(low=-1, high=1, dimensions=coordinates), Noise(law=law, smashed=sigma)
    return SplitMechanism(smashed=smashed, noise=noise, lower_model="frozen")


def _classic(delta: float) -> float:
    """√(2·ln(1.25/δ)), the constant of Theorem 3.5."""
    return sqrt(2 * log(1.25 / delta))


def _case(name: str, what: str, compute: Callable[[], float], expected: float, rel: float, source: str) -> Case:
    """A case with a relative tolerance."""
    return Case(id=name, what=what, compute=compute, expected=expected, rel=rel, source=source)


def _rdp(name: str, sensitivity: float, sigma: float, order: float, rounds: int, expected: float) -> Case:
    """αTμ²/2."""
    return _case(
        f"gauss_rdp_{name}",
        f"Gaussian Rényi divergence, α = {order:g}, S = {sensitivity:g}, σ = {sigma:g}, T = {rounds}",
        lambda: float(rounds * gaussian.rdp(order, sensitivity / sigma)),
        expected,
        1e-12,
        _DP_ACCOUNTING,
    )


def _exact(name: str, mu: float, delta: float, expected: float) -> Case:
    """ε(δ) against another library."""
    what = f"exact Gaussian ε, μ = {mu:.4g}, δ = {delta:g}"
    return _case(f"gauss_exact_{name}", what, lambda: gaussian.epsilon(delta, mu), expected, 1e-8, _DP_ACCOUNTING)


def _converted(
    name: str,
    formula: Callable[..., np.ndarray],
    orders: float | Sequence[float] | np.ndarray,
    rdp: Callable[[], object],
    delta: float,
    expected: float,
    rel: float,
    source: str,
) -> Case:
    """Smallest ε over the orders by one conversion."""
    what = f"from Rényi to ε by {formula.__name__}, δ = {delta:g}"
    return _case(name, what, lambda: float(np.min(formula(orders, rdp(), delta))), expected, rel, source)


def _curve(orders: object, mu: float) -> Callable[[], object]:
    """A Gaussian's Rényi curve."""
    return lambda: gaussian.rdp(orders, mu)  # type: ignore[arg-type]


def _mixup(*ratios: float) -> Mixup:
    """Fixed ratios."""
    return Mixup(ratio=FixedRatio(ratios=ratios))


_UNEVEN = CutMix(ratio=FixedCounts(counts=(7, 3)), patches=10)  # λN whole, so that no patch is rounded up

_REFERENCE = (
    _case("B01", "DP-SL, one release", _epsilon(table_1()), 383.0494927078823, 1e-9, _BALLE_WANG),
    _case("B02", "the same at δ = 0.5", _epsilon(table_1(), 0.5), 281.5799326114445, 1e-9, _BALLE_WANG),
    Case(
        id="B03",
        what="5 of 10 clients at δ = 0.5: nothing left to prove",
        compute=_epsilon(table_1(chosen=5), 0.5),
        expected=0.0,
        abs=1e-12,
        source=_SAMPLED,
    ),
    _case("B04", "DP-SL, 2 of 10 clients", _epsilon(table_1(chosen=2)), 372.5354702754416, 1e-8, _SAMPLED),
    _case(
        "B05",
        "DP-MixSL, 2 of 10",
        _epsilon(table_1(Mixup(ratio=FixedRatio.equal(2)), chosen=2)),
        114.41704787996488,
        1e-8,
        _SAMPLED,
    ),
    _case(
        "B06",
        "DP-MixSL, 5 of 10",
        _epsilon(table_1(Mixup(ratio=FixedRatio.equal(5)), chosen=5)),
        29.421320778706193,
        1e-8,
        _SAMPLED,
    ),
    _case("B10", "DP-SL, D_s = 3072", _epsilon(table_1(dimensions=3072)), 9604.617961737713, 1e-9, _DERIVED),
    _case("B11", "DP-SL, D_s = 12480", _epsilon(table_1(dimensions=12480)), 37058.21703152744, 1e-9, _DERIVED),
    _case("B12", "DP-SL, 600 releases", _epsilon(table_1(rounds=600)), 172030.13726619192, 1e-9, _DERIVED),
    _case(
        "B14",
        "σ for ε = 8 in one release, D_s = 3072",
        lambda: calibrate(table_1(dimensions=3072), "sigma", epsilon=8, delta=1e-5).value,
        5.0618923012746295,
        1e-8,
        _BALLE_WANG,
    ),
    _case("B15", "δ at ε = 800, μ = 40", lambda: gaussian.delta(800, 40), 0.49003266481169994, 1e-9, _BALLE_WANG),
    _case("B16", "ε at δ = 1e-5, μ = 1", lambda: gaussian.epsilon(1e-5, 1), 4.377178095681228, 1e-10, _BALLE_WANG),
    _case(
        "C01",
        "DP-MixSL (.5, .5), noise before mixing, α = 2",
        _second_order(table_1(_mixup(0.5, 0.5), site="client")),
        282.579345703125,
        1e-10,
        _DERIVED,
    ),
    _case(
        "C02",
        "DP-CutMixSL (.7, .3), noise before masks, α = 2",
        _second_order(table_1(_UNEVEN, site="client")),
        469.1846292429957,
        1e-10,
        _DERIVED,
    ),
    _case(
        "C03",
        "DP-MixSL (.7, .3), noise before mixing, α = 2: more than DP-CutMixSL",
        _second_order(table_1(_mixup(0.7, 0.3), site="client")),
        477.46165308459047,
        1e-10,
        _DERIVED,
    ),
    _case(
        "C06",
        "one-hot labels alone, α = 2",
        lambda: float(gaussian.rdp(2, OneHot().sensitivity("replace_one", "l2").value / (16 / 255))),
        508.00781250000006,
        1e-10,
        _CUTMIXSL,
    ),
    _case(
        "C07",
        "diameter of {s ≥ 0, ‖s‖ ≤ 3}",
        lambda: Ball(radius=3, nonnegative=True).sensitivity("replace_one", "l2").value,
        4.242640687119286,
        1e-12,
        _DERIVED,
    ),
    _case(
        "C08",
        "diameter of [−1, 1]²⁵⁶",
        lambda: Clamp(low=-1, high=1, dimensions=256).sensitivity("replace_one", "l2").value,
        32.0,
        1e-12,
        _DERIVED,
    ),
    _case(
        "C09",
        "global clip, a random quarter of the patches kept, α = 8",
        lambda: answer.rdp(
            SplitMechanism(
                smashed=Ball(radius=0.5),
                noise=Noise(smashed=1.0),
                lower_model="frozen",
                mixing=CutMix(ratio=FixedCounts(counts=(1, 1, 1, 1)), patches=4),
                random_masks=True,
            ),
            [8],
        ).values[0],
        3.8019579484117405,
        1e-10,
        _DERIVED,
    ),
    _case(
        "E06",
        "round-robin is no sampling: δ at the ε that 1 of 10 would have",
        lambda: gaussian.delta(float(subsampling.amplify(gaussian.epsilon(1e-5 / 0.1, 1), 0.1)), 1),
        0.04015342474172874,
        1e-8,
        _DERIVED,
    ),
    _converted("E07", renyi.mironov, 2, _curve(2, 1), 1e-5, 12.512925464970229, 1e-10, "Mironov 2017, Proposition 3"),
    _converted(
        "E08",
        renyi.canonne,
        _FINE,
        _curve(_FINE, 1),
        1e-5,
        4.728386984943314,
        1e-6,
        "Canonne, Kamath and Steinke 2020, Proposition 12",
    ),
    _case(
        "E09",
        "later releases carry the record: true δ at the ε claimed for one release of ten",
        lambda: gaussian.delta(gaussian.epsilon(1e-5, 1), sqrt(10)),
        0.45770737014373797,
        1e-8,
        _DERIVED,
    ),
    _case("F15", "μ for ε = 6.68", lambda: gaussian.mu_for(6.68, 1e-5), 1.4335296323341096, 1e-9, _BALLE_WANG),
    _case(
        "F14",
        "standard deviation of variance 4 averaged over 60 releases",
        lambda: laws.averaged_noise_std(2.0, 60),
        0.2581988897471611,
        1e-12,
        "Yao et al., patch shuffling, §V.B.3",
    ),
    _case("G02", "tanh, n = 256, σ = 0.3", _epsilon(_tanh(256, 0.3)), 6142.830074264813, 1e-9, _ACCURATE),
    _case("G03", "tanh, n = 256, σ = 0.5", _epsilon(_tanh(256, 0.5)), 2319.9849888821777, 1e-9, _ACCURATE),
    _case("G04", "tanh, n = 256, σ = 0.7", _epsilon(_tanh(256, 0.7)), 1238.9084562840835, 1e-9, _ACCURATE),
    _case("G05", "tanh, n = 16, σ = 0.3", _epsilon(_tanh(16, 0.3)), 468.3586398873242, 1e-9, _ACCURATE),
    _case(
        "G06",
        "tanh, n = 256, Laplace b = 0.3: pure ε",
        lambda: laplace_shift(_tanh(256, 0.3, "laplace"))[0],
        1706.6666666666667,
        1e-12,
        _ACCURATE,
    ),
    _case(
        "G09",
        "true δ at Theorem 3.5's σ for ε = 20",
        lambda: gaussian.delta(20, 20 / _classic(1e-5)),
        0.0015266946955248529,
        1e-8,
        _DERIVED,
    ),
)

_ORACLES = (
    _rdp("S1_s1_a2", 1, 1, 2, 1, 1.0),
    _rdp("S2_s1_a2", 2, 1, 2, 1, 4.0),
    _rdp("S0.5_s3_a32", 0.5, 3, 32, 1, 0.4444444444444444),
    _rdp("S1_s1.5_a1.5", 1, 1.5, 1.5, 1, 0.3333333333333333),
    _rdp("S1_s4_a256", 1, 4, 256, 1, 8.0),
    _rdp("compose_s10_T100_a2", 1, 10, 2, 100, 1.0),
    _rdp("compose_s10_T1000_a16", 1, 10, 16, 1000, 80.0),
    _exact("s1_d1e-05", 1, 1e-5, 4.377178095681137),
    _exact("s2_d1e-05", 0.5, 1e-5, 1.9930914044151198),
    _exact("s5_d1e-06", 0.2, 1e-6, 0.8341175486240523),
    _exact("s50_d1e-05", 0.02, 1e-5, 0.058632255306082876),
    _exact("T1000_s10", sqrt(1000) / 10, 1e-5, 17.856586830107616),
    _case(
        "gauss_calibrate_eps1_d1e-5",
        "σ for ε = 1, δ = 1e-5, S = 1",
        lambda: 1 / gaussian.mu_for(1, 1e-5),
        3.7306316348159374,
        1e-8,
        _DP_ACCOUNTING,
    ),
    _converted(
        "conv_mironov_a8_r0.5_d1e-05",
        renyi.mironov,
        8,
        lambda: 0.5,
        1e-5,
        2.14470363785289,
        1e-12,
        "Mironov 2017, Proposition 3",
    ),
    _converted(
        "conv_bbghs_cks_a8_r0.5_d1e-05",
        renyi.canonne,
        8,
        lambda: 0.5,
        1e-5,
        1.7141091678455336,
        1e-12,
        _DP_ACCOUNTING,
    ),
    _converted(
        "conv_mironov_a32_r1.0_d1e-06",
        renyi.mironov,
        32,
        lambda: 1.0,
        1e-6,
        1.4456616309020733,
        1e-12,
        "Mironov 2017, Proposition 3",
    ),
    _converted(
        "conv_mironov_a1.5_r0.2_d1e-05",
        renyi.mironov,
        1.5,
        lambda: 0.2,
        1e-5,
        23.225850929940457,
        1e-12,
        "Mironov 2017, Proposition 3",
    ),
    _converted(
        "conv_bbghs_cks_a1.5_r0.2_d1e-05",
        renyi.canonne,
        1.5,
        lambda: 0.2,
        1e-5,
        21.316308425056018,
        1e-12,
        _DP_ACCOUNTING,
    ),
    _converted(
        "conv_grid_dp_accounting_gauss_s2",
        renyi.canonne,
        DP_ACCOUNTING_ORDERS,
        _curve(DP_ACCOUNTING_ORDERS, 0.5),
        1e-5,
        2.165715659029443,
        1e-10,
        _DP_ACCOUNTING,
    ),
    _converted(
        "conv_cont_bbghs_gauss_s2",
        renyi.canonne,
        _FINE,
        _curve(_FINE, 0.5),
        1e-5,
        2.1657155451754853,
        1e-6,
        _AUTODP,
    ),
    _converted(
        "conv_cont_mironov_gauss_s2",
        renyi.mironov,
        _FINE,
        _curve(_FINE, 0.5),
        1e-5,
        2.5242629560940406,
        1e-6,
        _AUTODP,
    ),
    _case(
        "rdp_delta_from_eps_gauss_s2_eps2",
        "δ at ε = 2 over a grid of orders, μ = 0.5",
        lambda: float(
            np.exp(renyi.best_delta(DP_ACCOUNTING_ORDERS, gaussian.rdp(DP_ACCOUNTING_ORDERS, 0.5), 2.0).value)
        ),
        3.9488981964019665e-05,
        1e-9,
        _DP_ACCOUNTING,
    ),
    *(
        _case(
            f"laplace_rdp_b{scale}_a{order}",
            f"Laplace Rényi divergence, b = {scale}, α = {order}",
            lambda order=order, scale=scale: float(laplace.rdp(order, 1 / scale)),  # type: ignore[misc]
            expected,
            1e-10,
            _DP_ACCOUNTING,
        )
        for scale, order, expected in (
            (1.0, 2, 0.6191236299985929),
            (2.0, 2, 0.200303896173616),
            (0.5, 1.5, 1.4368091584145994),
        )
    ),
    _case(
        "laplace_eps_b1.0_T1",
        "exact Laplace ε at δ = 1e-5, b = 1",
        lambda: laplace.epsilon(1e-5, 1.0),
        0.9999800002999969,
        1e-4,
        _DP_ACCOUNTING,
    ),
    _case(
        "zcdp_rho.1_a8",
        "ρ-zCDP is the Rényi curve of μ = √(2ρ)",
        lambda: float(gaussian.rdp(8, sqrt(2 * 0.1))),
        0.8,
        1e-12,
        _DP_ACCOUNTING,
    ),
)

CASES: tuple[Case, ...] = (*_REFERENCE, *_ORACLES)
