"""Denoising theory: cases G13 to G23 of the reference tables."""

from __future__ import annotations

from math import exp, sqrt

from privkit.accountants import denoising, denoising_softmax
from privkit.accountants.denoising import LinearLayer, Noise
from privkit.accountants.golden.case import Case

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
)
