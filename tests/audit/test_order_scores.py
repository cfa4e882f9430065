"""Arrangements are scored as by hand, their limits cover what they say, and the bits stay an upper bound."""

from itertools import permutations
from math import comb, factorial, log2
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from privkit.attacks.scores.order import kinds_of
from privkit.audit.order_scores import arrangement_scores, true_arrangement
from privkit.defenses.batch_shuffle import BatchShuffle
from privkit.defenses.patch_shuffle import PatchShuffle
from privkit.defenses.receipts import Nothing
from privkit.defenses.spectral_shuffle import SpectralShuffle


def orders(n: int, t: int, seed: int = 0) -> Tensor:
    return torch.rand(n, t, generator=Generator().manual_seed(seed)).argsort(1)


def brute(guess: list[list[int]], truth: list[list[int]], batch: int, side: int) -> tuple[int, int, int]:
    """Direct, neighbor and membership hits, piece by piece."""
    t = side * side
    direct = neighbor = member = 0
    for first in range(0, len(truth), batch):
        pieces = [(b, i) for b in range(batch) for i in range(t)]
        real = {piece: truth[first + piece[0]][piece[1]] for piece in pieces}
        said = {piece: guess[first + piece[0]][piece[1]] for piece in pieces}
        for piece in pieces:
            direct += real[piece] == said[piece]
            member += real[piece] // t == said[piece] // t
            for other in pieces:
                for step in (1, side):
                    beside = [
                        at[other] - at[piece] == step
                        and at[other] // t == at[piece] // t
                        and (step == side or at[piece] % side < side - 1)
                        for at in (real, said)
                    ]
                    neighbor += all(beside)
    return direct, neighbor, member


def tail(hits: int, trials: int, p: float) -> float:
    """Odds of at least as many hits."""
    return sum(comb(trials, i) * p**i * (1 - p) ** (trials - i) for i in range(hits, trials + 1))


@pytest.mark.parametrize("batch", [1, 3])
def test_hits_are_those_of_a_count_by_hand(batch: int) -> None:
    n, side = 6, 3
    truth = orders(n // batch, batch * side**2, 1)
    guess = truth.clone()
    guess[:, 3:7] = truth[:, 3:7].roll(1, 1)
    guess[0], truth, guess = guess[0].flip(0), truth.view(n, -1), guess.view(n, -1)
    scores = arrangement_scores(guess, truth, batch=batch)
    found = brute(guess.tolist(), truth.tolist(), batch, side)
    assert scores.neighbor is not None
    measured = (scores.direct, scores.neighbor, scores.membership)
    assert tuple(round(accuracy.share.value * accuracy.share.n) for accuracy in measured) == found
    assert 0 < found[0] < scores.direct.share.n == n * 9
    assert scores.neighbor.share.n == n * 12
    left = torch.arange(batch * 9).view(1, batch, 9).repeat(n // batch, 1, 1).view(n, 9)
    stays = brute(left.tolist(), truth.tolist(), batch, side)
    floors = [accuracy.left_alone * accuracy.share.n for accuracy in measured]
    assert floors == pytest.approx(stays)


def test_limits_against_their_definitions() -> None:
    truth = orders(10, 4)
    guess = truth.clone()
    guess[:3, :2] = truth[:3, :2].flip(1)
    found = arrangement_scores(guess, truth, batch=1, confidence=0.9).direct
    assert (found.share.value, found.share.n) == (34 / 40, 40)
    assert tail(34, 40, found.share.low) == pytest.approx(0.05)  # Clopper and Pearson: either tail has half of the risk
    assert 1 - tail(35, 40, found.share.high) == pytest.approx(0.05)
    a, mean = found.sound_low, 0.85
    divergence = mean * np.log(mean / a) + (1 - mean) * np.log((1 - mean) / (1 - a))
    assert 10 * divergence == pytest.approx(np.log(10))


def test_only_the_sound_limit_covers_images_that_stand_or_fall_as_one() -> None:
    """Each image is wholly solved with probability one half, or wholly wrong."""
    rng, truth = np.random.default_rng(0), orders(30, 16)
    wrong = truth.roll(1, 1)
    covered = np.zeros(2)
    for _ in range(100):
        solved = torch.from_numpy(rng.random(30) < 0.5).unsqueeze(1)
        found = arrangement_scores(torch.where(solved, truth, wrong), truth, batch=1).direct
        covered += [found.share.low <= 0.5 <= found.share.high, found.sound_low <= 0.5]
    assert covered[0] < 60  # of 95 that an interval of independent pieces would have
    assert covered[1] >= 95


def test_bits_are_an_upper_bound_on_a_known_posterior() -> None:
    """The order is solved with probability p, and otherwise every other order is as likely."""
    t, p, rng = 5, 0.6, np.random.default_rng(1)
    everything = torch.tensor(list(permutations(range(t))))
    most = log2(factorial(t))
    entropy = -p * log2(p) - (1 - p) * log2((1 - p) / (factorial(t) - 1))
    below = 0
    for seed in range(60):
        truth = everything[torch.from_numpy(rng.integers(0, len(everything), 200))]
        other = everything[torch.from_numpy(rng.integers(0, len(everything), 200))]
        guess = torch.where(torch.from_numpy(rng.random(200) < p).unsqueeze(1), truth, other)
        found = arrangement_scores(guess, truth, batch=1, seed=seed)
        assert found.bits_before == pytest.approx(most)
        assert found.bits_left < most
        below += found.bits_left < entropy
    assert below <= 3  # 95 % one-sided; the bound is also loose here


def test_a_failed_attack_proves_nothing_and_a_perfect_one_leaves_little() -> None:
    truth = orders(100, 16)
    failed = arrangement_scores(truth.roll(1, 1), truth, batch=1)
    assert failed.bits_left == failed.bits_before == pytest.approx(log2(factorial(16)))
    assert failed.direct.share.low == failed.direct.share.value == failed.success_at_least == 0
    solved = arrangement_scores(truth, truth, batch=1)
    assert solved.direct.share.value == solved.direct.share.high == 1
    assert solved.bits_left < 0.25 * solved.bits_before


def test_units_are_messages_where_images_are_mixed() -> None:
    apart, together = orders(6, 4) + 4 * (torch.arange(6) % 3).unsqueeze(1), orders(2, 12).view(6, 4)
    for guess, truth, unit, units, secret in (
        (apart, apart, "image", 6, 4),
        (together, together, "message", 2, 12),
        (apart, together, "message", 2, 12),
        (together, apart, "message", 2, 4),  # the order of an image is the secret, though the attack mixed them up
    ):
        found = arrangement_scores(guess, truth, batch=3)
        assert (found.unit, found.units, found.tokens) == (unit, units, secret)
        assert found.bits_before == pytest.approx(log2(factorial(secret)))
    capped = arrangement_scores(together, together, batch=3, most_bits=5.0)
    assert capped.bits_before == 5
    assert capped.bits_left <= 5


def test_equal_pieces_count_as_one() -> None:
    truth = torch.tensor([[0, 1, 2, 3]])
    guess = torch.tensor([[1, 0, 2, 3]])
    kinds = kinds_of(torch.tensor([[[5.0], [5.0], [1.0], [2.0]]]), 1)
    assert arrangement_scores(guess, truth, batch=1).direct.share.value == 0.5
    assert arrangement_scores(guess, truth, batch=1, kinds=kinds).direct.share.value == 1


def test_no_neighbors_without_a_square_grid() -> None:
    assert arrangement_scores(orders(2, 6), orders(2, 6), batch=1).neighbor is None


@pytest.mark.parametrize("defense", [BatchShuffle(keep=0.4), PatchShuffle(), SpectralShuffle()], ids=lambda d: d.name)
def test_receipts_are_read_as_what_was_released(defense: Any) -> None:
    smashed = torch.rand(3, 4, 9, 8, generator=Generator().manual_seed(1))
    release, receipt = defense.apply(smashed, torch.zeros(3, 4), Generator().manual_seed(2))
    truth = true_arrangement(receipt)
    assert truth is not None
    plain = smashed if defense.name != "spectral_shuffle" else defense._spectral_tokens(smashed)
    for message in range(3):
        rows = truth[4 * message : 4 * message + 4]
        assert torch.equal(plain[message].flatten(0, 1)[rows], release.smashed[message])
    found = arrangement_scores(truth, truth, batch=4)
    assert found.unit == ("message" if defense.name == "batch_shuffle" else "image")


def test_what_shuffles_nothing_has_no_arrangement() -> None:
    assert true_arrangement(Nothing(reason="it stays")) is None


def test_refuses_what_is_no_arrangement() -> None:
    truth = orders(4, 4)
    with pytest.raises(ValueError, match="divides the 4 images, got 3"):
        arrangement_scores(truth, truth, batch=3)
    with pytest.raises(ValueError, match="exactly once"):
        arrangement_scores(torch.zeros_like(truth), truth, batch=1)
    with pytest.raises(ValueError, match="one shape"):
        arrangement_scores(truth[:2], truth, batch=1)
