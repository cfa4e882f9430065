"""Alignment of guesses with the truth, against definitions that share no code with it."""

from itertools import permutations

import numpy as np
import pytest
import torch

from privkit.attacks.goals.reconstruct import match, score


def images(count: int, seed: int = 0, side: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).random((count, 1, side, side), dtype=np.float32)


def test_matching_is_the_best_of_all_assignments() -> None:
    truth, guess = images(5), images(5, seed=1)
    errors = np.square(truth[:, None].astype(float) - guess[None]).mean((2, 3, 4))
    best = min(sum(errors[i, order[i]] for i in range(5)) for order in permutations(range(5)))
    chosen = match(truth, guess, 5)
    assert errors[np.arange(5), chosen].sum() == pytest.approx(best)


def test_matching_stays_inside_a_message() -> None:
    truth = images(12)
    moved = truth.reshape(3, 4, 1, 8, 8)[:, [2, 0, 3, 1]].reshape(truth.shape)
    np.testing.assert_array_equal(moved[match(truth, moved, 4)], truth)
    crossed = np.roll(truth, 4, axis=0)
    assert (match(truth, crossed, 4) // 4 == np.arange(12) // 4).all()
    assert score(torch.from_numpy(truth), torch.from_numpy(crossed), 4)["matched"]["mse"].min() > 0


def test_matched_is_never_worse_than_unaligned() -> None:
    scores = score(torch.from_numpy(images(20)), torch.from_numpy(images(20, seed=3)), 10)
    assert scores["matched"]["mse"].mean() <= scores["unaligned"]["mse"].mean()


def test_small_images_have_no_ssim() -> None:
    scores = score(torch.from_numpy(images(4, side=6)), torch.from_numpy(images(4, seed=1, side=6)), 4)
    assert set(scores["unaligned"]) == {"mse", "psnr"}
