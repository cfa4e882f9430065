"""Formulas as published: the example table and bad input."""

from collections.abc import Callable
from math import isfinite
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import privkit.accountants
from privkit.accountants import table
from privkit.papers.accurate_sl import claims as accurate_sl
from privkit.papers.accurate_sl import composition
from privkit.papers.accurate_sl import table_11 as published_table_11
from privkit.papers.as_published import TABLE_1_ORDER, as_published
from privkit.papers.dp_cutmixsl import claims as dp_cutmixsl
from privkit.papers.dp_cutmixsl import group_size
from privkit.papers.dp_cutmixsl import setting as dp_cutmixsl_setting
from privkit.papers.patch_shuffling import claims as patch_shuffling
from tests.papers.releases import JUNK, MECHANISMS, one_number


def test_the_example_table_reproduces_the_figure_and_table_11() -> None:
    path = Path(privkit.accountants.__file__).parent / "examples" / "papers.csv"
    entries = list(table.read(table.load_rows(path)))
    assert [entry.error for entry in entries] == [""] * len(entries)
    sigmas = np.array([8, 16, 32]) / 255
    figure = {mechanism: group_size.figure_7(mechanism) for mechanism in MECHANISMS}
    mixing = [entry for entry in entries if entry.cells["mechanism"] in MECHANISMS]
    assert len(mixing) == sum(curve.size for curve in figure.values())
    for entry in mixing:
        assert entry.mechanism is not None
        assert entry.delta is not None
        at = (
            int(entry.cells["group"]) - 1,
            int(np.argmin(np.abs(sigmas - entry.mechanism.noise.smashed))),
        )
        found = as_published(entry.mechanism, entry.delta, paper="dp_cutmixsl", order=TABLE_1_ORDER).epsilon
        kind = next(mechanism for mechanism in MECHANISMS if mechanism == entry.cells["mechanism"])
        assert found == pytest.approx(figure[kind][at], rel=1e-12)
    others = [entry for entry in entries if entry.cells["mechanism"] not in MECHANISMS]
    for entry, bound in zip(others, published_table_11.TABLE_11, strict=True):
        assert entry.mechanism is not None
        assert (entry.cells["mechanism"], entry.mechanism.noise.smashed) == (bound.noise, bound.scale)
        if entry.cells["mechanism"] == "laplace" and "Names" not in entry.name:
            found = as_published(entry.mechanism, 1e-5, paper="accurate_sl").epsilon
            assert found == pytest.approx(2 * bound.half, rel=0.01)
    assert len({entry.name for entry in entries}) == len(entries)


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.5, 1 - 1e-12])
def test_a_claim_is_converted_at_the_order_with_the_least_epsilon(
    name: dp_cutmixsl_setting.Mechanism, delta: float
) -> None:
    setting = dp_cutmixsl_setting.table_1(name, group=2, sigma=16 / 255)
    best = dp_cutmixsl.best_order(setting, delta)
    for formula in (dp_cutmixsl.theorem_1, dp_cutmixsl.corollary_1):
        found = formula(setting, order=best, delta=delta).epsilon
        others = 1 + (best - 1) * np.array([1e-3, 0.5, 0.99, 1.01, 2, 1e3])
        assert all(found <= formula(setting, order=order, delta=delta).epsilon * (1 + 1e-12) for order in others)


def test_a_fixed_order_does_not_hide_that_a_claim_undercuts() -> None:
    mechanism = table.mechanism_of(
        {
            "mechanism": "dp_cutmixsl",
            "sigma": "16/255",
            "dimensions": 10,
            "clip_high": 0.15,
            "labels": "one_hot",
            "group": 2,
            "patches": 64,
        }
    )
    claim = as_published(mechanism, 1e-5)
    assert claim.order == pytest.approx(1.3846, abs=1e-3)
    assert claim.epsilon < privkit.accountants.answer.epsilon(mechanism, 1e-5).epsilon
    assert claim.epsilon < as_published(mechanism, 1e-5, order=TABLE_1_ORDER).epsilon
    assert not claim.sound


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
