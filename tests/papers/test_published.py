"""The papers' formulas as published: printed numbers, definitions that share no code, and objections that bite."""

import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import permutations, product
from math import ceil, comb, exp, inf, isfinite, log, sqrt
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.stats import beta, norm

import privkit.accountants
from privkit.accountants import table
from privkit.accountants.bounds import subsampling
from privkit.papers.accurate_sl import claims as accurate_sl
from privkit.papers.accurate_sl import composition
from privkit.papers.accurate_sl import table_11 as published_table_11
from privkit.papers.as_published import as_published
from privkit.papers.dp_cutmixsl import claims as dp_cutmixsl
from privkit.papers.dp_cutmixsl import group_size
from privkit.papers.dp_cutmixsl.setting import Mechanism, Setting, table_1
from privkit.papers.patch_shuffling import claims as patch_shuffling
from privkit.papers.values import printed
from tests.accountants.one_release import exact, profile

MECHANISMS: tuple[Mechanism, ...] = get_args(Mechanism)
PRINTED_SIZES = {
    "dp_mixsl": printed("dp_cutmixsl", "Fig. 7", "DP-MixSL", "k₂*"),
    "dp_cutmixsl": printed("dp_cutmixsl", "Fig. 7", "DP-CutMixSL", "k₃*"),
}
SIGMA = st.floats(0.01, 50.0)
ORDER = st.floats(1.01, 200.0)
DELTA = st.floats(1e-12, 0.9)

FIGURE_7 = """
1 2259.0253 2259.0253 563.5493 563.5493 139.6802 139.6802
2 564.2424 621.3933 140.3734 154.6611 34.4061 37.9781
3 250.6708 301.4716 62.2846 74.9848 15.1880 18.3631
4 141.0665 183.9297 35.0993 45.8151 8.6076 11.2864
5 90.4254 127.0020 22.6063 31.7505 5.6533 7.9378
6 62.9777 94.7282 15.8812 23.8188 4.1136 6.0923
7 46.4719 74.4641 11.8703 18.8684 3.2319 4.9715
8 35.7924 60.7959 9.3006 15.5515 2.6913 4.2433
9 28.4969 51.0750 7.5651 13.2096 2.3418 3.7456
10 23.2995 43.8738 6.3447 11.4883 2.1060 3.3919
"""
"""k, then Mix and Cut at σ = 8, 16 and 32/255: made from the paper's text by another program."""


def one_number(**changes: Any) -> Setting:
    """DP-SL of one number in [0, 1] with σ = 1, so that μ = 1."""
    base: dict[str, Any] = {
        "mechanism": "dp_sl",
        "sigma": 1.0,
        "dimensions": 1,
        "clip": 1.0,
        "label_dimensions": 1,
        "labels": "none",
        "group": 1,
        "clients": 10,
        "noise_site": "mixer",
        "sampling": "without_replacement",
    }
    return Setting(**{**base, **changes})


settings_of_releases = st.builds(
    lambda group, extra, ratio, **rest: Setting(
        group=group,
        clients=group + extra,
        mixing_ratio=None if rest["mechanism"] == "dp_sl" or ratio is None else max(ratio, 1 / group),
        **rest,
    ),
    mechanism=st.sampled_from(MECHANISMS),
    sigma=SIGMA,
    sigma_labels=st.none() | SIGMA,
    dimensions=st.integers(1, 5000),
    clip=st.floats(0.01, 5.0),
    label_dimensions=st.integers(1, 20),
    labels=st.sampled_from(["one_hot", "unit_box", "none"]),
    classes=st.none() | st.integers(1, 20),
    group=st.integers(1, 8),
    extra=st.integers(0, 30),
    ratio=st.none() | st.integers(50, 1000).map(lambda thousandths: thousandths / 1000),
    concentration=st.none() | st.floats(0.1, 10.0),
    patches=st.none() | st.integers(1, 100),
    noise_site=st.sampled_from(["mixer", "client"]),
    sampling=st.sampled_from(["without_replacement", "partition"]),
)


# Printed and reference numbers


def test_figure_7_equals_the_table() -> None:
    figure = group_size.figure_7()
    rows = np.array([[float(x) for x in line.split()] for line in FIGURE_7.split("\n") if line])
    assert np.array_equal(rows[:, 0], figure.groups)
    assert np.abs(rows[:, 1::2] - figure.epsilon["dp_mixsl"]).max() <= 0.5001e-4
    assert np.abs(rows[:, 2::2] - figure.epsilon["dp_cutmixsl"]).max() <= 0.5001e-4
    plain = np.array([2260.6348, 565.1587, 141.2897]) + log(2) + np.log(np.arange(1, 11) / 10)[:, None]
    assert np.abs(plain - figure.epsilon["dp_sl"]).max() <= 1e-4
    assert not figure.sound
    assert figure.objection


def test_printed_group_sizes() -> None:
    for mechanism in MECHANISMS[1:]:
        size = PRINTED_SIZES[mechanism]
        setting = table_1(mechanism, group=1, sigma=16 / 255)
        assert round(group_size.published_group_size(setting, 2, 0.5), 2) == size


def test_table_11_readings() -> None:
    rows = list(published_table_11.table_11())
    assert len(rows) == 24
    gaussian_mnist = [row for row in rows if row.printed.noise == "gaussian" and "MNIST" in row.printed.name]
    assert [round(row.formula, 1) for row in gaussian_mnist] == [258.4, 155.0, 110.7]
    assert [round(row.exact, 1) for row in gaussian_mnist] == [6142.8, 2320.0, 1238.9]
    assert [round(row.exact / row.certificate.epsilon, 1) for row in gaussian_mnist] == [11.8, 7.7, 5.6]
    for row in rows:
        n, scale, certificate = row.printed.dimensions, row.printed.scale, row.certificate
        if row.printed.noise == "laplace":
            assert row.exact == pytest.approx(2 * n / scale)
            assert row.printed.half == pytest.approx(sqrt(n) / scale, abs=0.06)
        else:
            assert profile(row.exact, 2 * sqrt(n) / scale) == pytest.approx(1e-5, rel=1e-6, abs=0)
        assert certificate.epsilon == 2 * row.printed.half
        assert certificate.sound == (certificate.epsilon >= row.exact)
        assert certificate.lower == row.exact
    assert [(r.printed.dimensions, r.printed.scale) for r in rows if r.certificate.sound] == [(16, 0.7)]
    names = [r for r in rows if "Names" in r.printed.name and r.printed.noise == "gaussian"]
    assert all("√800" in r.certificate.objection for r in names)
    assert [round(r.exact / r.certificate.epsilon) for r in names] == [334, 219, 159]


def test_the_example_table_reproduces_the_figure_and_table_11() -> None:
    path = Path(privkit.accountants.__file__).parent / "examples" / "papers.csv"
    entries = list(table.read(table.load(path)))
    assert [entry.error for entry in entries] == [""] * len(entries)
    figure = group_size.figure_7()
    mixing = [entry for entry in entries if entry.cells["mechanism"] in MECHANISMS]
    assert len(mixing) == sum(curve.size for curve in figure.epsilon.values())
    for entry in mixing:
        assert entry.mechanism is not None
        assert entry.delta is not None
        at = int(entry.cells["group"]) - 1, int(np.argmin(np.abs(figure.sigmas - entry.mechanism.noise.smashed)))
        found = as_published(entry.mechanism, entry.delta, paper="dp_cutmixsl").epsilon
        kind = next(mechanism for mechanism in MECHANISMS if mechanism == entry.cells["mechanism"])
        assert found == pytest.approx(figure.epsilon[kind][at], rel=1e-12)
    others = [entry for entry in entries if entry.cells["mechanism"] not in MECHANISMS]
    for entry, bound in zip(others, published_table_11.TABLE_11, strict=True):
        assert entry.mechanism is not None
        assert (entry.cells["mechanism"], entry.mechanism.noise.smashed) == (bound.noise, bound.scale)
        if entry.cells["mechanism"] == "laplace" and "Names" not in entry.name:
            found = as_published(entry.mechanism, 1e-5, paper="accurate_sl").epsilon
            assert found == pytest.approx(2 * bound.half, rel=0.01)
    assert len({entry.name for entry in entries}) == len(entries)


# Theorem 1


def worst_shift(mechanism: str, ratios: list[float], width: float, masks: list[list[int]]) -> float:
    """Largest squared distance of two mixed means over all corners of [0, width]^D, by trying every pair of corners."""
    found = 0.0
    for client, ratio in enumerate(ratios):
        weights = np.array(masks[client], float) if mechanism == "dp_cutmixsl" else np.full(len(masks[0]), ratio)
        for one, other in product(product((0.0, width), repeat=len(weights)), repeat=2):
            found = max(found, float(np.sum((weights * (np.array(one) - np.array(other))) ** 2)))
    return found


@pytest.mark.parametrize("kept", [(2, 2), (3, 1), (1, 1, 2), (4,)])
@pytest.mark.parametrize("mechanism", ["dp_mixsl", "dp_cutmixsl"])
def test_theorem_1_is_the_divergence_of_the_worst_neighbors(mechanism: Mechanism, kept: tuple[int, ...]) -> None:
    total, width, sigma, order = 4, 0.7, 0.9, 3.5
    starts = np.cumsum((0, *kept))
    masks = [[int(starts[i] <= j < starts[i + 1]) for j in range(total)] for i in range(len(kept))]
    shift = worst_shift(mechanism, [m / total for m in kept], width, masks) / sigma**2
    mu = sqrt(shift)
    moment, _ = quad(
        lambda x: exp(order * norm.logpdf(x, mu) + (1 - order) * norm.logpdf(x)), order * mu - 12, order * mu + 12
    )
    setting = one_number(
        mechanism=mechanism,
        sigma=sigma,
        dimensions=total,
        clip=width,
        group=len(kept),
        mixing_ratio=max(kept) / total,
        patches=total,
    )
    assert dp_cutmixsl.rdp(setting, order) == pytest.approx(log(moment) / (order - 1), rel=1e-8)
    assert dp_cutmixsl.theorem_1(setting, order=order, delta=1e-5).sound


@given(setting=settings_of_releases, order=ORDER)
def test_order_of_the_three_mechanisms(setting: Setting, order: float) -> None:
    base = replace(setting, mixing_ratio=None, mechanism="dp_sl")
    one, two, three = (dp_cutmixsl.rdp(replace(base, mechanism=m), order) for m in MECHANISMS)
    assert two <= three * (1 + 1e-12)
    assert three <= one * (1 + 1e-12)


@given(setting=settings_of_releases, order=ORDER, factor=st.floats(1.01, 10.0), delta=DELTA)
def test_more_noise_gives_a_smaller_epsilon(setting: Setting, order: float, factor: float, delta: float) -> None:
    assert setting.sigma is not None
    noisier = replace(
        setting, sigma=setting.sigma * factor, sigma_labels=(setting.sigma_labels or setting.sigma) * factor
    )
    assert dp_cutmixsl.rdp(noisier, order) == pytest.approx(
        dp_cutmixsl.rdp(setting, order) / factor**2, rel=1e-9, abs=0
    )
    after, before = (dp_cutmixsl.corollary_1_epsilon(s, order, delta) for s in (noisier, setting))
    assert after <= before * (1 + 1e-12)


@given(setting=settings_of_releases, order=ORDER)
def test_larger_groups_mix_more_but_sample_more(setting: Setting, order: float) -> None:
    assume(setting.group < setting.clients)
    even = replace(setting, mixing_ratio=None)
    larger = replace(even, group=even.group + 1)
    if even.mechanism == "dp_sl":
        assert dp_cutmixsl.rdp(larger, order) == dp_cutmixsl.rdp(even, order)
        small, large = (dp_cutmixsl.corollary_1_epsilon(s, order, 0.1) for s in (even, larger))
        assert small < large
    else:
        assert dp_cutmixsl.rdp(larger, order) < dp_cutmixsl.rdp(even, order)


@given(setting=settings_of_releases, order=ORDER, delta=DELTA)
def test_a_fixed_ratio_is_sound_exactly_where_the_release_is_no_more_telling(
    setting: Setting, order: float, delta: float
) -> None:
    """Rebuilds the release: ratios that λ_max leaves, mixed noise, whole patches and what they hold, real labels."""
    setting = replace(setting, concentration=None)
    k, top = setting.group, setting.ratio
    ratios = [1.0] if setting.mechanism == "dp_sl" else [top] + [(1 - top) / (k - 1)] * (k - 1) if k > 1 else [1.0]
    averaged = sum(r * r for r in ratios) if setting.noise_site == "client" else 1.0
    length = setting.classes or setting.label_dimensions
    label = {"none": 0.0, "one_hot": 2.0 * (length > 1), "unit_box": float(length)}[setting.labels] * top**2 / averaged
    smashed = setting.clip**2 * setting.dimensions
    if setting.mechanism == "dp_cutmixsl":
        n, d = setting.patches, setting.dimensions
        if n is None:
            smashed *= top
        else:  # whole patches, each of which can hold ⌈D/N⌉ of the coordinates
            kept = ceil(n * (Fraction(1, k) if top == 1 / k else Fraction(round(top * 1000), 1000)))
            smashed *= min(d, kept * ceil(d / n)) / d
    else:
        smashed *= top**2 / averaged
    assert setting.sigma is not None
    true = order / 2 * (smashed / setting.sigma**2 + label / (setting.sigma_labels or setting.sigma) ** 2)
    claim = dp_cutmixsl.rdp(setting, order)
    assume(abs(true - claim) > 1e-9 * claim or true == claim)
    certificate = dp_cutmixsl.theorem_1(setting, order=order, delta=delta)
    assert certificate.sound == (true <= claim)
    assert certificate.epsilon == pytest.approx(claim - log(delta) / (order - 1), rel=1e-12)


def test_random_ratios_exceed_the_plug_in() -> None:
    setting = replace(table_1("dp_mixsl", group=2, sigma=16 / 255), concentration=2.0)
    full = dp_cutmixsl.rdp(replace(setting, mechanism="dp_sl"), 2)
    peak = full
    value, _ = quad(lambda x: beta.pdf(x, 2, 2) * exp(full * x * x - peak), 0, 1, epsabs=0, limit=500, points=[0.99])
    assert log(value) + peak == pytest.approx(552.891, abs=1e-3)
    assert log(value) + peak > 3 * dp_cutmixsl.rdp(setting, 2)
    certificate = dp_cutmixsl.theorem_1(setting, order=2, delta=1e-5)
    assert not certificate.sound
    assert "Dir(2)" in certificate.objection


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mechanism": "dp_mixsl", "group": 2, "noise_site": "client"}, "averaged"),
        ({"mechanism": "dp_mixsl", "group": 2, "noise_site": "client", "mixing_ratio": 0.7}, "reverses"),
        ({"mechanism": "dp_cutmixsl", "group": 2, "noise_site": "client", "labels": "unit_box"}, "averaged"),
        ({"mechanism": "dp_cutmixsl", "group": 9, "patches": 64}, "whole patches"),
        ({"mechanism": "dp_cutmixsl", "group": 2, "patches": 2, "mixing_ratio": 0.50000001}, "whole patches"),
        ({"labels": "unit_box", "label_dimensions": 2, "classes": 10}, "D_y = 2"),
        ({"mechanism": "dp_mixsl", "group": 2, "concentration": 0.5}, "Dir(0.5)"),
    ],
)
def test_objections_name_what_fails(changes: dict[str, Any], words: str) -> None:
    certificate = dp_cutmixsl.theorem_1(one_number(**changes), order=2, delta=1e-5)
    assert not certificate.sound
    assert words in certificate.objection


def test_what_holds_is_not_objected_to() -> None:
    for changes in (
        {"mechanism": "dp_mixsl", "group": 2, "mixing_ratio": 0.7},
        {"mechanism": "dp_mixsl", "group": 2, "mixing_ratio": 1.0, "concentration": 2.0},
        {"mechanism": "dp_cutmixsl", "group": 2, "noise_site": "client"},  # no labels: each coordinate has one noise
        {"mechanism": "dp_cutmixsl", "group": 4, "patches": 64, "dimensions": 64},
        {"mechanism": "dp_cutmixsl", "group": 4, "patches": 64, "dimensions": 640},
        {
            "mechanism": "dp_cutmixsl",
            "group": 2,
            "patches": 100,
            "dimensions": 100,
            "mixing_ratio": 0.55,
        },  # 0.55·100 > 55 in floats
        {
            "mechanism": "dp_cutmixsl",
            "group": 11,
            "clients": 11,
            "patches": 66,
            "dimensions": 66,
            "mixing_ratio": 1 / 11,
        },
        {"labels": "one_hot", "label_dimensions": 2, "classes": 10},
    ):
        assert dp_cutmixsl.theorem_1(one_number(**changes), order=2, delta=1e-5).sound, changes
    loose = dp_cutmixsl.theorem_1(one_number(labels="one_hot", label_dimensions=10), order=2, delta=1e-5)
    assert loose.sound
    assert any("5 times too large" in sentence for sentence in loose.assumptions)


# Corollary 1


@example(epsilon=1e-12, rate=0.3)
@example(epsilon=1.5, rate=1e-9)
@example(epsilon=699.9, rate=1e-9)
@example(epsilon=700.1, rate=1e-9)
@given(epsilon=st.floats(1e-20, 50_000.0), rate=st.floats(1e-9, 1.0))
def test_amplification_equals_sixty_digits(epsilon: float, rate: float) -> None:
    with localcontext() as context:
        context.prec = 60
        context.Emax, context.Emin = 10**6, -(10**6)
        expected = float((1 + Decimal(rate) * (Decimal(epsilon).exp() - 1)).ln())
    found = subsampling.amplify(epsilon, rate)
    assert isfinite(found)
    assert found == pytest.approx(expected, rel=1e-13, abs=0)


@given(mu=st.floats(0.05, 20.0), k=st.integers(1, 10), order=st.floats(1.1, 64.0), delta=st.floats(1e-9, 0.4))
def test_corollary_1_bounds_the_exact_profile_of_a_sampled_release(
    mu: float, k: int, order: float, delta: float
) -> None:
    setting = one_number(clip=mu, group=k)
    certificate = dp_cutmixsl.corollary_1(setting, order=order, delta=delta)
    rate = k / 10
    after = certificate.quantities["delta_after_sampling"]
    assert after == pytest.approx(rate * delta, rel=1e-12, abs=0)
    unsampled = exact(mu, after / rate) if after < rate else 0.0
    assert log(1 - rate + rate * exp(unsampled)) <= certificate.epsilon + 1e-9
    assert certificate.sound


def test_round_robin_groups_break_corollary_1() -> None:
    setting = one_number(sampling="partition")
    certificate = dp_cutmixsl.corollary_1(setting, order=5.8, delta=1e-5)
    assert certificate.epsilon < 3.1 < 4.377 < exact(1.0)
    assert not certificate.sound
    assert "round-robin" in certificate.objection
    assert dp_cutmixsl.corollary_1(replace(setting, group=10), order=5.8, delta=1e-5).sound


def test_a_large_delta_is_called_out() -> None:
    assert "proves little" in dp_cutmixsl.corollary_1(one_number(), order=2, delta=0.5).statement
    assert "proves little" not in dp_cutmixsl.corollary_1(one_number(), order=2, delta=1e-5).statement


# Group sizes


@given(setting=settings_of_releases, order=ORDER, delta=DELTA)
def test_exact_minimizer_solves_the_stationarity_equation(setting: Setting, order: float, delta: float) -> None:
    assume(setting.mechanism != "dp_sl")
    b, c = dp_cutmixsl.smashed_rdp(setting, order), dp_cutmixsl.label_rdp(setting, order)
    b, c = (b, c) if setting.mechanism == "dp_cutmixsl" else (0.0, b + c)
    start = -log(delta) / (order - 1)
    k = group_size.exact_group_size(setting, order, delta)

    def log_height(log_k: float) -> float:
        exponent = b * exp(-log_k) + c * exp(-2 * log_k) + start
        return log_k + (log(np.expm1(exponent)) if exponent < 30 else exponent)

    best = log_height(log(k))
    for step in (0.5, 0.05, 0.005):
        assert best <= log_height(log(k) + step) + 1e-12 * abs(best) + 1e-12
        assert best <= log_height(log(k) - step) + 1e-12 * abs(best) + 1e-12
    found = minimize_scalar(log_height, bounds=(log(k) - 3, log(k) + 3), method="bounded")
    assert best <= found.fun + 1e-9 * max(1.0, abs(best))


@given(
    mechanism=st.sampled_from(["dp_mixsl", "dp_cutmixsl"]),
    sigma=st.floats(0.03, 5.0),
    order=st.floats(1.2, 30.0),
    delta=DELTA,
    clients=st.integers(1, 80),
)
def test_best_group_is_the_best_of_all(
    mechanism: Mechanism, sigma: float, order: float, delta: float, clients: int
) -> None:
    setting = replace(table_1(mechanism, group=1, sigma=sigma), clients=clients)
    best = group_size.best_group(setting, order, delta)
    values = [dp_cutmixsl.corollary_1_epsilon(replace(setting, group=k), order, delta) for k in range(1, clients + 1)]
    assert values[best - 1] <= min(values) * (1 + 1e-12)


def test_published_sizes_are_no_minimizers() -> None:
    for mechanism, exact_size in zip(MECHANISMS[1:], (42.15, 91.22), strict=True):
        setting = replace(table_1(mechanism, group=1, sigma=16 / 255), clients=1000)
        best, printed = group_size.best_group(setting, 2, 0.5), PRINTED_SIZES[mechanism]
        assert abs(best - exact_size) < 1
        at = [dp_cutmixsl.corollary_1_epsilon(replace(setting, group=k), 2, 0.5) for k in (best, round(printed))]
        assert at[0] < at[1]


def test_without_mixing_there_is_no_minimizer() -> None:
    setting = table_1("dp_sl", group=3, sigma=0.1)
    assert group_size.best_group(setting, 2, 0.5) == 1
    for of in (group_size.exact_group_size, group_size.published_group_size):
        with pytest.raises(ValueError, match="dp_mixsl or dp_cutmixsl"):
            of(setting, 2, 0.5)


# Accurate split learning


@given(sensitivity=st.floats(0.01, 30.0), sigma=st.floats(0.1, 10.0), delta=st.floats(1e-10, 0.5))
def test_theorem_3_5_is_sound_exactly_up_to_the_exact_profile(sensitivity: float, sigma: float, delta: float) -> None:
    certificate = accurate_sl.theorem_3_5(sensitivity=sensitivity, sigma=sigma, delta=delta)
    claim, mu = certificate.epsilon, sensitivity / sigma
    assert claim == pytest.approx(sqrt(2 * log(1.25 / delta)) * mu, rel=1e-12)
    limit = accurate_sl.theorem_3_5_limit(delta)[0]
    assume(abs(claim / limit - 1) > 1e-6)
    assert certificate.sound == (profile(claim, mu) <= delta) == (claim < limit)
    assert certificate.sound or claim >= 1  # the theorem itself


@given(delta=st.floats(1e-300, 0.99))
def test_the_limit_of_theorem_3_5_is_where_the_profile_meets_delta(delta: float) -> None:
    epsilon, mu = accurate_sl.theorem_3_5_limit(delta)
    assert epsilon >= 1
    assert epsilon == pytest.approx(mu * sqrt(2 * log(1.25 / delta)), rel=1e-12)
    if delta > 1e-12:
        assert profile(epsilon, mu) == pytest.approx(delta, rel=1e-6, abs=0)


def test_the_limit_at_the_usual_delta() -> None:
    assert accurate_sl.theorem_3_5_limit(1e-5) == pytest.approx((8.4198, 1.7378967461343204), rel=1e-5)
    assert profile(20.0, 20.0 / sqrt(2 * log(1.25e5))) == pytest.approx(0.0015266946955248529, rel=1e-9, abs=0)


def test_half_the_diameter_is_objected_to() -> None:
    certificate = accurate_sl.theorem_3_5(sensitivity=0.25, sigma=1.0, delta=1e-5, diameter=0.5)
    assert certificate.epsilon > 1 > 0
    assert profile(certificate.epsilon, 0.5) > 1e-5
    assert not certificate.sound
    assert "by up to 0.5 in L2" in certificate.objection
    assert certificate.lower == pytest.approx(exact(0.5), rel=1e-6)


def composed_response(epsilon: float, rounds: int, at: float) -> float:
    """Exact δ of T randomized responses at ε′ = `at`, summed over the counts of the likelier answer."""
    p = exp(epsilon) / (1 + exp(epsilon))
    return sum(
        comb(rounds, i) * max(0.0, p**i * (1 - p) ** (rounds - i) - exp(at) * p ** (rounds - i) * (1 - p) ** i)
        for i in range(rounds + 1)
    )


@given(epsilon=st.floats(0.01, 1.5), rounds=st.integers(1, 60), slack=st.floats(1e-8, 0.5))
def test_composition_covers_the_worst_pure_mechanism(epsilon: float, rounds: int, slack: float) -> None:
    published = composition.theorem_a7_epsilon(epsilon, rounds, slack)
    tighter = composition.theorem_a7_epsilon(epsilon, rounds, slack, drift="kairouz_oh_viswanath")
    assert tighter < published
    assert composed_response(epsilon, rounds, tighter) <= slack * (1 + 1e-9)


@given(epsilon=st.floats(0.001, 40_000.0), rounds=st.integers(1, 10**6), slack=st.floats(1e-12, 0.99))
def test_composition_does_not_overflow(epsilon: float, rounds: int, slack: float) -> None:
    with localcontext() as context:
        context.prec = 40
        context.Emax, context.Emin = 10**6, -(10**6)
        e, t = Decimal(epsilon), Decimal(rounds)
        true = e * (2 * t * -Decimal(slack).ln()).sqrt() + t * e * (e.exp() - 1)
        logarithm = float(true.log10())
    assert composition.log10_theorem_a7_epsilon(epsilon, rounds, slack) == pytest.approx(
        logarithm, rel=1e-12, abs=1e-12
    )
    found = composition.theorem_a7_epsilon(epsilon, rounds, slack)
    assert found == (pytest.approx(float(true), rel=1e-12) if epsilon < 700 else inf)
    assert isfinite(composition.theorem_a7_epsilon(epsilon, rounds, slack, drift="kairouz_oh_viswanath"))


def test_composed_certificates() -> None:
    once = accurate_sl.theorem_3_5(sensitivity=0.02, sigma=1.0, delta=1e-9)
    frozen = composition.theorem_a7(once, rounds=1000, slack=1e-5, lower_model="frozen")
    assert frozen.sound
    assert frozen.delta == pytest.approx(1.1e-5)
    tighter = composition.theorem_a7(once, rounds=1000, slack=1e-5, lower_model="frozen", drift="kairouz_oh_viswanath")
    assert tighter.epsilon < frozen.epsilon
    assert tighter.delta == pytest.approx(
        float(1 - (1 - Decimal("1e-9")) ** 1000 * (1 - Decimal("1e-5"))), rel=1e-9, abs=0
    )
    for model in ("trained", "averaged"):
        hole = composition.theorem_a7(once, rounds=1000, slack=1e-5, lower_model=model)
        assert not hole.sound
        assert "later release" in hole.objection
    client = composition.theorem_a7(replace(once, unit="client"), rounds=9, slack=1e-5, lower_model="trained")
    assert client.sound
    assert composition.theorem_a7(once, rounds=9, slack=1e-5, lower_model="dp_trained").sound


def test_composition_that_proves_nothing_says_so() -> None:
    once = accurate_sl.theorem_3_5(sensitivity=0.02, sigma=1.0, delta=1e-5)
    spent = composition.theorem_a7(once, rounds=10**6, slack=1e-5, lower_model="frozen")
    assert (spent.epsilon, spent.delta) == (inf, None)
    assert "nothing is proven" in spent.statement
    loud = replace(once, epsilon=6142.8, lower=None)
    beyond = composition.theorem_a7(loud, rounds=10, slack=1e-5, lower_model="frozen")
    assert (beyond.epsilon, beyond.delta) == (inf, None)
    assert "61428" in beyond.statement
    assert beyond.quantities["log10_published_epsilon"] == pytest.approx((6142.8 + log(61428)) / log(10))
    with pytest.raises(ValueError, match="nothing to compose"):
        composition.theorem_a7(spent, rounds=2, slack=1e-5, lower_model="frozen")


def test_unsound_rounds_stay_unsound() -> None:
    once = accurate_sl.theorem_3_5(sensitivity=10.0, sigma=1.0, delta=1e-5)
    composed = composition.theorem_a7(once, rounds=2, slack=1e-5, lower_model="frozen")
    assert not once.sound
    assert composed.objection == once.objection


@given(epsilon=st.floats(1e-6, 5000.0), delta=st.floats(1e-12, 0.999))
def test_theorem_3_7_puts_delta_above_epsilon(epsilon: float, delta: float) -> None:
    mu = accurate_sl.theorem_3_7_mu(epsilon, delta)
    assert mu > 0
    assert norm.sf(epsilon / mu - mu / 2) == pytest.approx(delta, rel=1e-6, abs=0)  # loss ~ N(μ²/2, μ²)
    if epsilon < 500:
        assert profile(epsilon, mu) <= delta * (1 + 1e-9)  # its premise is the stronger one


def test_theorem_3_7_certificates() -> None:
    assert accurate_sl.theorem_3_7(epsilon=1, delta=1e-5, noise="independent").sound
    assert "density" in accurate_sl.theorem_3_7(epsilon=1, delta=1e-5, noise="backpropagated").objection


@given(n=st.integers(1, 5000), scale=st.floats(0.01, 10.0))
def test_laplace_diameters(n: int, scale: float) -> None:
    right, read = (accurate_sl.laplace_epsilon(n, scale, norm=x) for x in ("l1", "l2"))
    assert right == pytest.approx(read * sqrt(n), rel=1e-12)
    assert read <= right * (1 + 1e-12)


# Patch shuffling


def outcomes(batch: tuple[tuple[int, ...], ...], kept: int) -> dict[tuple[tuple[int, ...], ...], float]:
    """Law of Algorithm 2 as written, by trying every draw."""
    found: dict[tuple[tuple[int, ...], ...], float] = {}
    draws = 0
    for orders in product(*(permutations(image) for image in batch)):
        pool = [token for image in orders for token in image[kept:]]
        for dealt in permutations(pool):
            moved = len(batch[0]) - kept
            result = tuple(image[:kept] + dealt[i * moved : (i + 1) * moved] for i, image in enumerate(orders))
            found[result] = found.get(result, 0) + 1
            draws += 1
    return {key: count / draws for key, count in found.items()}


def test_proposition_2_fails_as_soon_as_a_patch_is_kept() -> None:
    identity, swapped = ((1, 2), (3, 4)), ((3, 4), (1, 2))
    first, second = outcomes(identity, 1), outcomes(swapped, 1)
    assert first[identity] == pytest.approx(1 / 8)
    assert identity not in second
    assert not patch_shuffling.proposition_2(tokens=2, batch=2, kept=1).sound
    assert outcomes(identity, 0) == pytest.approx(outcomes(swapped, 0))
    assert patch_shuffling.proposition_2(tokens=2, batch=2, kept=0).sound


def test_the_printed_epsilon_of_the_baseline() -> None:
    certificate = patch_shuffling.dp_baseline()
    assert (certificate.epsilon, certificate.delta, certificate.sound) == (6.68, None, False)
    assert "could not be matched" in certificate.objection
    assert profile(6.68, certificate.quantities["mu"]) == pytest.approx(1e-5, rel=1e-6, abs=0)


# All certificates, and bad input


@given(setting=settings_of_releases, order=ORDER, delta=DELTA)
def test_certificates_are_whole(setting: Setting, order: float, delta: float) -> None:
    for certificate in (
        dp_cutmixsl.theorem_1(setting, order=order, delta=delta),
        dp_cutmixsl.corollary_1(setting, order=order, delta=delta),
    ):
        assert isfinite(certificate.epsilon)
        assert certificate.delta == delta
        assert certificate.relation == "replace_one"
        assert certificate.unit == "record"
        assert certificate.source
        assert certificate.assumptions
        assert "\n" not in certificate.statement + certificate.objection
        assert json.loads(json.dumps(certificate.quantities)) == certificate.quantities


JUNK = st.sampled_from([float("nan"), inf, -inf, -1.0, -1, 0, True, None, "1", [1.0]])
REAL_FUNCTIONS: list[tuple[Callable[..., object], tuple[float, ...]]] = [
    (dp_cutmixsl.conversion, (2.0, 1e-5)),
    (accurate_sl.theorem_3_5_epsilon, (1.0, 1.0, 1e-5)),
    (accurate_sl.theorem_3_5_limit, (1e-5,)),
    (accurate_sl.theorem_3_7_mu, (1.0, 1e-5)),
    (composition.log10_theorem_a7_epsilon, (1.0, 10, 1e-5)),
    (lambda n, b: accurate_sl.laplace_epsilon(n, b, norm="l1"), (16, 0.3)),
    (lambda s, e, d: accurate_sl.theorem_3_5(sensitivity=s, sigma=e, delta=d), (1.0, 1.0, 1e-5)),
    (lambda e, d: accurate_sl.theorem_3_7(epsilon=e, delta=d, noise="independent"), (1.0, 1e-5)),
    (lambda n, b: patch_shuffling.proposition_2(tokens=n, batch=b, kept=0), (16, 8)),
    (lambda d: patch_shuffling.dp_baseline(delta=d), (1e-5,)),
]


@given(which=st.sampled_from(REAL_FUNCTIONS), junk=JUNK, data=st.data())
def test_junk_is_refused_with_a_sentence(
    which: tuple[Callable[..., object], tuple[float, ...]], junk: object, data: st.DataObject
) -> None:
    function, good = which
    at = data.draw(st.integers(0, len(good) - 1))
    function(*good)
    with pytest.raises(ValueError, match="must"):
        function(*[junk if i == at else value for i, value in enumerate(good)])


@given(
    name=st.sampled_from(
        ["sigma", "dimensions", "clip", "label_dimensions", "group", "clients", "mechanism", "labels"]
    ),
    junk=JUNK,
)
def test_a_setting_refuses_junk(name: str, junk: object) -> None:
    with pytest.raises(ValueError, match=f"^{name} must"):
        one_number(**{name: junk})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"group": 11}, "group must be a whole number >= 1 and <= 10, got 11"),
        ({"group": 2.0}, "group must be a whole number"),
        ({"mechanism": "dp_mixsl", "group": 2, "mixing_ratio": 0.4}, "mixing_ratio must"),
        ({"mechanism": "dp_mixsl", "group": 2, "mixing_ratio": 1.1}, "mixing_ratio must"),
        ({"mixing_ratio": 0.5}, "mixes nothing"),
        ({"mechanism": "dp_mixup"}, "one of dp_sl, dp_mixsl, dp_cutmixsl, got 'dp_mixup'"),
        ({"noise_site": "server"}, "noise_site must be one of mixer, client"),
        ({"sampling": "poisson"}, "sampling must be one of without_replacement, partition"),
        ({"concentration": 0.0}, "concentration must"),
        ({"patches": 0}, "patches must"),
        ({"classes": -3}, "classes must"),
        ({"sigma_labels": float("nan")}, "sigma_labels must"),
        ({"sigma": None, "variance": 16 / 255}, "sigma=0.25049"),
        ({"variance": -1.0}, "variance must be a finite number > 0"),
    ],
)
def test_a_setting_says_what_is_allowed(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        one_number(**changes)


@pytest.mark.parametrize("order", [1, 1.0, 0.5, -2, float("nan"), inf, True, None])
def test_orders_must_exceed_one(order: Any) -> None:
    for call in (
        lambda: dp_cutmixsl.rdp(one_number(), order),
        lambda: dp_cutmixsl.theorem_1(one_number(), order=order, delta=1e-5),
        lambda: dp_cutmixsl.corollary_1(one_number(), order=order, delta=1e-5),
        lambda: group_size.best_group(one_number(mechanism="dp_mixsl"), order, 1e-5),
    ):
        with pytest.raises(ValueError, match="order must be a finite number > 1"):
            call()


def test_extreme_noise_gives_no_silent_number() -> None:
    with pytest.raises(ValueError, match="too small"):
        dp_cutmixsl.rdp(one_number(sigma=1e-200), 2)
    with pytest.raises(ValueError, match="too small"):
        accurate_sl.theorem_3_5(sensitivity=1.0, sigma=1e-200, delta=1e-5)
    with pytest.raises(ValueError, match="too large"):
        group_size.exact_group_size(one_number(mechanism="dp_mixsl", sigma=1e200), 2, 1e-5)
    for mechanism in ("dp_mixsl", "dp_cutmixsl"):
        for order, delta, sigma in ((1 + 1e-15, 1e-300, 1.0), (1e6, 0.999999, 1e-3), (2, 1e-300, 1e-140)):
            size = group_size.exact_group_size(one_number(mechanism=mechanism, sigma=sigma), order, delta)
            assert isfinite(size)
            assert size > 0


def test_a_choice_that_does_not_exist() -> None:
    once = accurate_sl.theorem_3_5(sensitivity=0.02, sigma=1.0, delta=1e-9)
    for call in (
        lambda: accurate_sl.laplace_epsilon(1, 1.0, norm="linf"),  # type: ignore[arg-type]
        lambda: accurate_sl.theorem_3_7(epsilon=1, delta=1e-5, noise="gaussian"),  # type: ignore[arg-type]
        lambda: composition.theorem_a7_epsilon(1.0, 1, 0.1, drift="none"),  # type: ignore[arg-type]
        lambda: composition.theorem_a7(once, rounds=1, slack=0.1, lower_model="mean"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match="must be"):
            call()
