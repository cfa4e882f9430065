"""DP-CutMixSL's Fig. 7: its numbers, and the group size that is really the best."""

from dataclasses import replace
from math import exp, log

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from privkit.papers.dp_cutmixsl import claims as dp_cutmixsl
from privkit.papers.dp_cutmixsl import group_size
from privkit.papers.dp_cutmixsl.setting import GroupRelease, Mechanism, table_1
from tests.papers import dp_cutmixsl_reference as reference
from tests.papers.releases import DELTA, MECHANISMS, ORDER, PRINTED_SIZES, settings_of_releases

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


# Printed and reference numbers


def test_figure_7_equals_the_table() -> None:
    figure = {mechanism: group_size.figure_7(mechanism) for mechanism in MECHANISMS}
    rows = np.array([[float(x) for x in line.split()] for line in FIGURE_7.split("\n") if line])
    assert np.array_equal(rows[:, 0], np.arange(1, 11))
    assert np.abs(rows[:, 1::2] - figure["dp_mixsl"]).max() <= 0.5001e-4
    assert np.abs(rows[:, 2::2] - figure["dp_cutmixsl"]).max() <= 0.5001e-4
    plain = np.array([2260.6348, 565.1587, 141.2897]) + log(2) + np.log(np.arange(1, 11) / 10)[:, None]
    assert np.abs(plain - figure["dp_sl"]).max() <= 1e-4


def test_printed_group_sizes() -> None:
    for mechanism in MECHANISMS[1:]:
        size = PRINTED_SIZES[mechanism]
        setting = table_1(mechanism, group=1, sigma=16 / 255)
        assert round(group_size.published_group_size(setting, 2, 0.5), 2) == size


# Group sizes


@given(setting=settings_of_releases, order=ORDER, delta=DELTA)
def test_exact_minimizer_solves_the_stationarity_equation(setting: GroupRelease, order: float, delta: float) -> None:
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
    best = reference.best_group(setting, order, delta)
    values = [dp_cutmixsl.corollary_1_epsilon(replace(setting, group=k), order, delta) for k in range(1, clients + 1)]
    assert values[best - 1] <= min(values) * (1 + 1e-12)


def test_published_sizes_are_no_minimizers() -> None:
    for mechanism, exact_size in zip(MECHANISMS[1:], (42.15, 91.22), strict=True):
        setting = replace(table_1(mechanism, group=1, sigma=16 / 255), clients=1000)
        best, printed = reference.best_group(setting, 2, 0.5), PRINTED_SIZES[mechanism]
        assert abs(best - exact_size) < 1
        at = [dp_cutmixsl.corollary_1_epsilon(replace(setting, group=k), 2, 0.5) for k in (best, round(printed))]
        assert at[0] < at[1]


def test_without_mixing_there_is_no_minimizer() -> None:
    setting = table_1("dp_sl", group=3, sigma=0.1)
    assert reference.best_group(setting, 2, 0.5) == 1
    for of in (group_size.exact_group_size, group_size.published_group_size):
        with pytest.raises(ValueError, match="dp_mixsl or dp_cutmixsl"):
            of(setting, 2, 0.5)
