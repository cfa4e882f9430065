"""Values of the paper's theorems and of the theory of denoising that were recomputed from its text."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, sqrt

from privkit.accountants.golden.case import Case
from privkit.papers.accurate_sl import claims, denoising, denoising_softmax
from privkit.papers.accurate_sl.composition import theorem_a7_epsilon
from privkit.papers.accurate_sl.denoising import LinearLayer, Noise

_M2 = (
    (-0.4767757315013672, -0.4030177131717534, 0.6284514811885606, -0.8161681157298062, 0.200201051931308),
    (0.45712105362358924, -0.6241978532667931, -0.8897067453338636, -0.4500612641879238, 0.31486602975118516),
    (0.124531325560856, -0.6998754733893278, -0.13473841839042566, 0.3385945971490405, -0.15443065345974438),
)
_X2 = (0.2663687985482328, 0.9348719049873533, 0.36612964461925057, -0.21675033383994768, -0.6254948605598039)
_M11 = (
    (-0.7428595944616008, -0.0014442751197700776, 0.20299671524671492, -0.9426219832561109),
    (-0.7041478308450881, 0.856422045920739, -0.8591588476916063, -0.740452101201404),
    (0.8966569065835501, 0.24376718559276567, -0.26201375254041803, 0.022780043606525302),
)
_X11 = (0.3256859050335985, -0.4493823684777414, -0.7240638542660893, 0.5760791890079837)

_SEED_2 = LinearLayer.of(_M2, _X2)
_AVERAGE = LinearLayer.average(rows=10, columns=16)
_UNIT = Noise(law="gaussian", scale=1.0)
_HALF = Noise(law="gaussian", scale=0.5)
_COUNTER = ((20.0, 3.0), (20.0, 0.0)), (0.0, 1.0), 0, sqrt(0.0075)
_ACCURATE_SL = "Xu et al., accurate split learning"
_THEOREM_A7 = f"{_ACCURATE_SL}, Theorem A.7"


def _case(name: str, what: str, compute: Callable[[], float], expected: float, rel: float, source: str) -> Case:
    """A case with a relative tolerance."""
    return Case(id=name, what=what, compute=compute, expected=expected, rel=rel, source=source)


CASES: tuple[Case, ...] = (
    Case(
        id="G13",
        what="A = ‖MX‖², seed 2",
        compute=lambda: _SEED_2.signal,
        expected=1.2548512039683646,
        rel=1e-10,
        source="numpy PCG64",
    ),
    Case(
        id="G14",
        what="mean squared error of masking, seed 2, p = .5, σ = 1",
        compute=lambda: denoising.mask_mse(_SEED_2, 0.5, _UNIT),
        expected=2.539613595439274,
        rel=1e-10,
        source=f"{_ACCURATE_SL}, Eq. 9; Monte Carlo 2.54191 ± .00390",
    ),
    Case(
        id="G15",
        what="mean squared error of scaling, seed 2, λ = .2, σ = 1",
        compute=lambda: denoising.scale_mse(_SEED_2, 0.2, _UNIT),
        expected=0.9568943809815594,
        rel=1e-10,
        source=f"{_ACCURATE_SL}, Eq. 13; Monte Carlo .95729 ± .00076",
    ),
    Case(
        id="G16",
        what="best α, seed 2, σ = 1",
        compute=lambda: denoising.best_alpha(_SEED_2, _UNIT),
        expected=4.063901320639825,
        rel=1e-10,
        source="derived",
    ),
    Case(
        id="G17",
        what="best λ of the mean error over U[−1, 1], σ = .7",
        compute=lambda: denoising.best_scale(_AVERAGE, Noise(law="gaussian", scale=0.7)),
        expected=0.40485829959514175,
        rel=1e-12,
        source="derived: 1/(1 + 3σ²)",
    ),
    Case(
        id="G18",
        what="σ from which masking helps on the average over U[−1, 1]",
        compute=lambda: sqrt(denoising.least_variance_for_masking(_AVERAGE, 0.5)),
        expected=0.5773502691896257,
        rel=1e-12,
        source="derived: σ² > 1/3",
    ),
    Case(
        id="G19",
        what="E S of the softmax denominator, seed 11, p = .5, σ = .5",
        compute=lambda: exp(denoising_softmax.log_exp_sum(_M11, _X11, 0.5, _HALF)),
        expected=3.068784292076857,
        rel=1e-10,
        source=f"{_ACCURATE_SL}, Lemma A.2 (i); Monte Carlo 3.06888 ± .00053",
    ),
    Case(
        id="G20",
        what="E S², one mask for all rows, seed 11, p = .5, σ = .5",
        compute=lambda: exp(denoising_softmax.log_exp_sum_squared(_M11, _X11, 0.5, _HALF)),
        expected=10.559611834097055,
        rel=1e-10,
        source=f"{_ACCURATE_SL}, Lemma A.2 (ii); Monte Carlo 10.55897 ± .00448",
    ),
    Case(
        id="G21",
        what="error of Lemma A.4 for a lognormal variable, s² = 4",
        compute=lambda: denoising_softmax.lognormal_error(4.0),
        expected=-24.799075016572118,
        rel=1e-10,
        source="derived: s²/2 − (e^{s²} − 1)/2",
    ),
    Case(
        id="G22",
        what="counter-example to Theorem 3.4: E|L(MX) − L(MX̃)|",
        compute=lambda: denoising_softmax.softmax_loss_gap(*_COUNTER),
        expected=0.010023096696607517,
        rel=1e-6,
        source="derived, quadrature",
    ),
    Case(
        id="G23",
        what="counter-example to Theorem 3.4 at λ = .99 (larger than G22)",
        compute=lambda: denoising_softmax.softmax_loss_gap(*_COUNTER, lam=0.99),
        expected=0.0102722706919165,
        rel=1e-6,
        source="derived, quadrature",
    ),
    _case(
        "G08",
        "μ at which Theorem 3.5 stops being a bound",
        lambda: claims.theorem_3_5_limit(1e-5)[1],
        1.7378967461343204,
        1e-8,
        "derived",
    ),
    _case(
        "G01",
        "Theorem 3.5, sensitivity 16, σ = 0.3 (printed: 260)",
        lambda: claims.theorem_3_5_epsilon(16, 0.3, 1e-5),
        258.3896140056208,
        1e-10,
        "Xu et al., Accurate Split Learning on Noisy Signals, Theorem 3.5 and Table 11",
    ),
    _case(
        "G07",
        "Laplace noise read with the L2 diameter, n = 16, b = 0.7 (printed: 5.7·2)",
        lambda: claims.laplace_epsilon(16, 0.7, norm="l2"),
        11.428571428571429,
        1e-12,
        "Xu et al., Accurate Split Learning on Noisy Signals, Table 11",
    ),
    _case(
        "G10",
        "Theorem A.7, 100 rounds of ε = 0.1",
        lambda: theorem_a7_epsilon(0.1, 100, 1e-5),
        5.8502350929445575,
        1e-10,
        _THEOREM_A7,
    ),
    _case(
        "G11",
        "the same with the smaller drift",
        lambda: theorem_a7_epsilon(0.1, 100, 1e-5, drift="kairouz_oh_viswanath"),
        5.298109661766881,
        1e-10,
        "Kairouz, Oh and Viswanath 2015",
    ),
    _case(
        "G12",
        "μ of Theorem 3.7 for Gaussian noise, ε = 1, δ = 1e-5",
        lambda: claims.theorem_3_7_mu(1, 1e-5),
        0.228358974795543,
        1e-9,
        "derived from Xu et al., Theorem 3.7",
    ),
)
