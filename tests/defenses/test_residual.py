"""Honest noise is refuted as rarely as is stated, whatever the clean release was taken to be; less noise is found."""

from math import sqrt

import pytest
import torch
from torch import Generator, Tensor

from privkit.defenses.residual import Law, refuted_by, times_declared, unlike
from tests.small import generator

ROWS, NUMBERS = 40, 16
CLEAN = torch.rand(ROWS, NUMBERS, generator=generator())


def drawn(law: Law, draws: Generator, *shape: int) -> Tensor:
    """Noise of scale 1."""
    if law == "gaussian":
        return torch.randn(*shape, generator=draws)
    pair = torch.empty(2, *shape).exponential_(generator=draws)
    return pair[0] - pair[1]


NOISE = drawn("gaussian", generator(1), ROWS, NUMBERS)
HALF = torch.arange(NUMBERS) < NUMBERS // 2
LESS: dict[str, Tensor] = {
    "none": torch.zeros(ROWS, NUMBERS),
    "three quarters": 0.75 * NOISE,
    "on half of the numbers": NOISE * HALF,
    "on all rows but one": NOISE * (torch.arange(ROWS) != 3).unsqueeze(1),
    "the same in each row": 1.3 * NOISE[:1].expand(ROWS, -1),
    "the same in two halves": NOISE[:20].repeat(2, 1),
    "opposite in two halves": torch.cat([NOISE[:20], -NOISE[:20]]),
    "the same for four numbers each": NOISE[:, :4].repeat(1, 4),
    "in eight directions": NOISE[:, :8] @ drawn("gaussian", generator(2), 8, NUMBERS) / sqrt(8),
    "bounded": sqrt(12) * (torch.rand(ROWS, NUMBERS, generator=generator(3)) - 0.5),
    "of two values": NOISE.sign(),
    "of another law": drawn("laplace", generator(4), ROWS, NUMBERS) / sqrt(2),
}


@pytest.mark.parametrize("name", LESS)
def test_less_noise_is_found(name: str) -> None:
    assert refuted_by(CLEAN, CLEAN + LESS[name], law="gaussian", scale=1.0)


@pytest.mark.parametrize("name", ["none", "three quarters", "the same in two halves", "the same for four numbers each"])
def test_less_laplace_noise_is_found(name: str) -> None:
    whole = drawn("laplace", generator(5), ROWS, NUMBERS)
    less = {
        "none": 0 * whole,
        "three quarters": 0.75 * whole,
        "the same in two halves": whole[:20].repeat(2, 1),
        "the same for four numbers each": whole[:, :4].repeat(1, 4),
    }
    assert not refuted_by(CLEAN, CLEAN + whole, law="laplace", scale=1.0)
    assert refuted_by(CLEAN, CLEAN + less[name], law="laplace", scale=1.0)


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_honest_noise_is_refuted_no_more_often_than_stated(law: Law) -> None:
    """Also about a wrong clean release: with an error of its own on each number, in each row, or on some rows."""
    draws, refuted, trials = generator(6), 0, 240
    for trial in range(trials):
        rows, numbers = ((3, 30), (60, 8), (25, 25), (90, 1))[trial % 4]
        clean = torch.rand(rows, numbers, generator=draws)
        error = (
            torch.zeros(rows, numbers),
            0.3 * torch.randn(rows, numbers, generator=draws),
            torch.randn(rows, 1, generator=draws).expand(-1, numbers),
            3 * (torch.rand(rows, 1, generator=draws) < 0.1).float().expand(-1, numbers),
        )[trial // 4 % 4]
        released = clean + error + drawn(law, draws, rows, numbers)
        refuted += bool(refuted_by(clean, released, law=law, scale=1.0, level=0.1))
    assert refuted / trials < 0.1


def test_any_scale_can_be_declared() -> None:
    for scale in (1e-300, 1e-9, 1e9, 1e300):
        refutation = refuted_by(CLEAN, CLEAN + 0.1 * NOISE, law="gaussian", scale=scale)
        assert bool(refutation) == (scale > 1)
    assert times_declared(CLEAN, CLEAN + NOISE, law="gaussian", scale=1e-300) > 1e9


def test_numbers_without_noise_are_left_alone_where_that_is_declared() -> None:
    scale = torch.where(HALF, 2.0, 0.0)
    released = CLEAN + scale * NOISE
    assert not refuted_by(CLEAN, released, law="gaussian", scale=scale)
    assert refuted_by(CLEAN, CLEAN + NOISE * HALF, law="gaussian", scale=scale)


def test_a_scale_that_is_rounded_is_no_lie() -> None:
    clean = torch.zeros(400, 64)
    noise = drawn("gaussian", generator(7), 400, 64)
    assert not refuted_by(clean, 2 / 3 * noise, law="gaussian", scale=0.67)
    assert refuted_by(clean, 2 / 3 * noise, law="gaussian", scale=0.7)


def test_the_mean_of_noisy_answers_is_a_clean_release_with_a_blur() -> None:
    answers = CLEAN + drawn("gaussian", generator(8), 4, ROWS, NUMBERS)
    given = {"law": "gaussian", "scale": 1.0, "blur": 0.5}
    assert not refuted_by(answers.mean(0), CLEAN + NOISE, **given)  # type: ignore[arg-type]
    assert refuted_by(answers.mean(0), CLEAN, **given)  # type: ignore[arg-type]


def test_a_law_without_a_derived_test_is_refused_in_words() -> None:
    sentence = "these laws: gaussian, laplace; no test is derived for 'uniform'"
    with pytest.raises(ValueError, match=sentence):
        refuted_by(CLEAN, CLEAN + NOISE, law="uniform", scale=1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=sentence):
        unlike(NOISE.double().numpy(), "uniform")
