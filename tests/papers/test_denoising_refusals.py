"""Bad input to the denoising theory, and any input at all."""

import subprocess
import sys
import warnings
from math import inf, isfinite, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privkit.papers.accurate_sl import denoising as theory
from privkit.papers.accurate_sl import denoising_simulation as simulation
from privkit.papers.accurate_sl import denoising_softmax
from privkit.papers.accurate_sl.denoising import CutNoise, LinearLayer
from privkit.papers.accurate_sl.denoising_simulation import Settings
from tests.papers import lemma_a2
from tests.papers.layers import COUNTER

BAD_NUMBERS = [nan, inf, -inf, True, "1", None, 1j]
UNIT_LAYER = LinearLayer(signal=1, diagonal=1, weight=1)
UNIT_NOISE = CutNoise(law="gaussian", scale=1)


@pytest.mark.parametrize("bad", [*BAD_NUMBERS, -0.01, 1.01])
def test_refuses_shares_outside_0_to_1(bad: float) -> None:
    for call in (theory.mask_mse, theory.scale_mse, theory.mask_scale_gap, theory.masking_no_worse):
        with pytest.raises(ValueError, match="must be a finite number >= 0 and <= 1"):
            call(UNIT_LAYER, bad, UNIT_NOISE)
    with pytest.raises(ValueError, match="p must be"):
        theory.least_variance_for_masking(UNIT_LAYER, bad)
    for sums in (lemma_a2.log_exp_sum, lemma_a2.log_exp_sum_squared):
        with pytest.raises(ValueError, match="p must be"):
            sums([[1.0]], [1.0], bad, UNIT_NOISE)
    with pytest.raises(ValueError, match="lam must be"):
        denoising_softmax.softmax_loss_gap(*COUNTER, 1.0, bad)


@pytest.mark.parametrize("bad", [*BAD_NUMBERS, 0, -1.0])
def test_refuses_what_is_no_noise(bad: float) -> None:
    with pytest.raises(ValueError, match="scale must be a finite number > 0"):
        CutNoise(law="gaussian", scale=bad)
    with pytest.raises(ValueError, match="sigma must be"):
        denoising_softmax.loss_slope(*COUNTER, bad)
    with pytest.raises(ValueError, match="each of scales must be"):
        Settings(scales=(0.3, bad))


@pytest.mark.parametrize("bad", [*BAD_NUMBERS, 1.0, 0.5, -2.0])
def test_refuses_alpha_up_to_1(bad: float) -> None:
    with pytest.raises(ValueError, match="alpha must be a finite number > 1"):
        theory.scaling_no_worse(UNIT_LAYER, bad, UNIT_NOISE)


@pytest.mark.parametrize(
    ("weights", "features"),
    [
        ([[1.0, nan]], [1.0, 1.0]),
        ([[1.0, 1.0]], [1.0, inf]),
        ([[1.0, 1.0]], [1.0]),
        ([1.0, 1.0], [1.0, 1.0]),
        ([[1.0], [1.0, 2.0]], [1.0]),
        ([[]], []),
        ([], []),
        ([["a"]], [1.0]),
        ([[1j]], [1.0]),
        ([[0.0, 0.0]], [1.0, 1.0]),
        ([[1e200, 0.0]], [1e200, 1.0]),
        (None, None),
    ],
)
def test_refuses_what_is_no_layer(weights: list[list[float]], features: list[float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        LinearLayer.of(weights, features)


def test_refuses_the_rest_with_a_sentence() -> None:
    with pytest.raises(ValueError, match="law must be one of gaussian, laplace"):
        CutNoise(law="normal", scale=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="MX = 0"):
        lemma_a2.best_alpha(LinearLayer(signal=0, diagonal=1, weight=1), UNIT_NOISE)
    assert theory.best_scale(LinearLayer(signal=0, diagonal=1, weight=1), UNIT_NOISE) == 0
    with pytest.raises(ValueError, match="no row of zeros, got one in row 1"):
        denoising_softmax.least_variance_by_theorem_3_4([[1.0, 0.0], [0.0, 0.0]], [1.0, 1.0])
    with pytest.raises(ValueError, match="two classes"):
        denoising_softmax.softmax_loss_gap([[1.0], [2.0], [3.0]], [1.0], 0, 1.0)
    with pytest.raises(ValueError, match="label must be"):
        denoising_softmax.softmax_loss_gap([[1.0], [2.0]], [1.0], 2, 1.0)
    with pytest.raises(ValueError, match="mask must be one of"):
        lemma_a2.log_exp_sum_squared([[1.0]], [1.0], 0.5, UNIT_NOISE, mask="rows")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="too large for a float"):
        denoising_softmax.lognormal_error(800)
    with pytest.raises(ValueError, match="quantity must be one of"):
        simulation.simulate(Settings(), ("f_1",))
    with pytest.raises(ValueError, match="scales must hold"):
        Settings(scales=())
    for field, bad in [("rows", 1), ("columns", 0), ("draws", 1), ("points", 1), ("seed", -1), ("draws", 10.0)]:
        with pytest.raises(ValueError, match=f"{field} must be a whole number"):
            Settings(**{field: bad})  # type: ignore[arg-type]


wild = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=300)
@given(a=wild, b=wild, f=wild, scale=wild, p=wild, law=st.sampled_from(["gaussian", "laplace"]))
def test_any_number_gives_a_sound_answer_or_a_sentence(
    a: float, b: float, f: float, scale: float, p: float, law: str
) -> None:
    calls, found, reason = (theory.mask_mse, theory.scale_mse, theory.mask_scale_gap), [], ""
    try:
        layer, noise = LinearLayer(signal=a, diagonal=b, weight=f), CutNoise(law=law, scale=scale)  # type: ignore[arg-type]
        found = [call(layer, p, noise) for call in calls]
        found += [theory.best_scale(layer, noise), theory.best_keep(layer, noise)]
        theory.masking_no_worse(layer, p, noise)
        theory.scaling_no_worse(layer, 1 + abs(p), noise)
    except ValueError as error:
        reason = str(error)
    if reason:
        assert "must be" in reason
    else:
        assert all(isfinite(value) and value >= 0 for value in found)
        assert max(found[-2:]) <= 1


@given(m=st.lists(wild, min_size=4, max_size=4), x=st.lists(wild, min_size=2, max_size=2), scale=wild, p=wild)
def test_any_layer_gives_a_finite_logarithm_or_a_sentence(
    m: list[float], x: list[float], scale: float, p: float
) -> None:
    weights = [m[:2], m[2:]]
    for law in ("gaussian", "laplace"):
        for mask in ("shared", "per_row"):
            first, second, reason = nan, nan, ""
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                try:
                    noise = CutNoise(law=law, scale=scale)
                    first = lemma_a2.log_exp_sum(weights, x, p, noise)
                    second = lemma_a2.log_exp_sum_squared(weights, x, p, noise, mask=mask)
                    denoising_softmax.least_variance_by_theorem_3_4(weights, x)
                except ValueError as error:
                    reason = str(error)
            assert "must" in reason or "finite only" in reason or (isfinite(first) and isfinite(second))


def test_imports_neither_torch_nor_matplotlib() -> None:
    code = (
        "import sys, privkit.papers.accurate_sl.denoising_simulation, privkit.papers.accurate_sl.composition;"
        "print(sorted({'torch', 'matplotlib', 'scipy.integrate', 'scipy.stats'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
