"""Arrangements are scored as by hand, their limits cover what they say, and the bits stay an upper bound."""

from itertools import permutations
from math import factorial, log, log2
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import entr
from scipy.stats import t as student_t
from torch import Generator, Tensor

from privkit.accountants.shuffles.certificates import batch_shuffle
from privkit.accountants.shuffles.entropy import patch_entropy_bits
from privkit.attacks.goals.order import Permutation
from privkit.attacks.scores.order import direct_accuracy, equal_tokens
from privkit.audit.goals.reconstruct import order
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
    counts = (n * 9, n * 12, n * 9)
    assert [one.share.value * count for one, count in zip(measured, counts, strict=True)] == pytest.approx(found)
    assert 0 < found[0] < n * 9
    assert scores.direct.share.n == scores.neighbor.share.n == n
    left = torch.arange(batch * 9).view(1, batch, 9).repeat(n // batch, 1, 1).view(n, 9)
    stays = brute(left.tolist(), truth.tolist(), batch, side)
    floors = [one.left_alone * count for one, count in zip(measured, counts, strict=True)]
    assert floors == pytest.approx(stays)


def test_limits_against_their_definitions() -> None:
    truth = orders(10, 4)
    guess = truth.clone()
    guess[:3, :2] = truth[:3, :2].flip(1)
    found = arrangement_scores(guess, truth, batch=1, confidence=0.9).direct
    assert (found.share.value, found.share.n) == (34 / 40, 10)
    shares, odds = np.repeat([0.5, 1.0], [3, 7]), np.log(0.85 / 0.15)
    half = student_t.ppf(0.95, 9) * shares.std(ddof=1) / 10**0.5 / (0.85 * 0.15)
    limits = [1 / (1 + np.exp(-(odds + sign * half))) for sign in (-1, 1)]
    assert [found.share.low, found.share.high] == pytest.approx(limits)
    a, mean = found.sound_low, 0.85
    divergence = mean * np.log(mean / a) + (1 - mean) * np.log((1 - mean) / (1 - a))
    assert 10 * divergence == pytest.approx(np.log(10))


def test_limits_cover_images_that_stand_or_fall_as_one() -> None:
    """Each image is wholly solved with probability one half, or wholly wrong. One of pieces covered below 60 %."""
    rng, truth = np.random.default_rng(0), orders(30, 16)
    wrong = truth.roll(1, 1)
    covered = np.zeros(2)
    for _ in range(100):
        solved = torch.from_numpy(rng.random(30) < 0.5).unsqueeze(1)
        found = arrangement_scores(torch.where(solved, truth, wrong), truth, batch=1).direct
        covered += [found.share.low <= 0.5 <= found.share.high, found.sound_low <= 0.5]
    assert covered[0] > 88
    assert covered[1] >= 95


def test_bits_are_an_upper_bound_on_a_known_posterior() -> None:
    """The order is solved with probability p, and otherwise every other order is as likely."""
    t, p, rng = 5, 0.6, np.random.default_rng(1)
    everything = torch.tensor(list(permutations(range(t))))
    most = log2(factorial(t))
    entropy = -p * log2(p) - (1 - p) * log2((1 - p) / (factorial(t) - 1))
    below = 0
    for _ in range(60):
        truth = everything[torch.from_numpy(rng.integers(0, len(everything), 200))]
        other = everything[torch.from_numpy(rng.integers(0, len(everything), 200))]
        guess = torch.where(torch.from_numpy(rng.random(200) < p).unsqueeze(1), truth, other)
        found = arrangement_scores(guess, truth, batch=1)
        assert found.bits_left is not None
        assert found.bits_before == pytest.approx(most)
        assert found.bits_left < most
        below += found.bits_left < entropy
    assert below <= 3  # 95 % one-sided; the bound is also loose here


def test_a_failed_attack_proves_nothing_and_a_perfect_one_leaves_little() -> None:
    truth = orders(100, 16)
    failed = arrangement_scores(truth.roll(1, 1), truth, batch=1)
    assert failed.bits_left == failed.bits_before == pytest.approx(log2(factorial(16)))
    assert failed.direct.share.low == pytest.approx(0, abs=1e-12)
    assert failed.direct.share.value == failed.direct.sound_low == 0
    solved = arrangement_scores(truth, truth, batch=1)
    assert solved.direct.share.value == solved.direct.share.high == 1
    assert solved.bits_left is not None
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
    assert capped.bits_left is None


def test_equal_pieces_count_as_one() -> None:
    truth = torch.tensor([[0, 1, 2, 3]])
    guess = torch.tensor([[1, 0, 2, 3]])
    kinds = equal_tokens(torch.tensor([[[5.0], [5.0], [1.0], [2.0]]]), 1)
    assert arrangement_scores(guess, truth, batch=1).direct.share.value == 0.5
    assert arrangement_scores(guess, truth, batch=1, kinds=kinds).direct.share.value == 1


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("word", ["abcde", "aabcd", "aabbc", "aaaab", "abba", "abc"])
def test_no_law_of_an_order_has_more_bits_than_the_share_of_right_places_leaves(word: str) -> None:
    """Random posteriors over all orders of up to five pieces, some of them equal, against random and best guesses."""
    t, rng = len(word), np.random.default_rng(3)
    kind = torch.tensor([ord(letter) for letter in word])
    everything = torch.tensor(list(permutations(range(t))))
    looks = [tuple(kind[order.argsort()].tolist()) for order in everything]
    number = np.unique(looks, axis=0, return_inverse=True)[1].ravel()
    right = np.stack(
        [
            direct_accuracy(guess.expand_as(everything), everything, batch=1, kinds=kind.expand_as(everything)).numpy()
            for guess in everything
        ]
    )
    for _ in range(40):
        given = rng.dirichlet(np.full(len(everything), rng.choice([0.003, 0.03, 1.0])), size=3)  # of three releases
        bits = [entr(np.bincount(number, weights=law)).sum() / log(2) for law in given]
        for guesses in (rng.integers(len(everything), size=3), (right @ given.T).argmax(0)):
            share = float(np.mean([right[guess] @ law for guess, law in zip(guesses, given, strict=True)]))
            assert np.mean(bits) <= patch_entropy_bits(t, share) + 1e-9


def test_a_guess_that_mixes_images_up_keeps_the_bound() -> None:
    """Two images of three pieces, some equal across images; the guess may put any piece of both anywhere."""
    rng, one = np.random.default_rng(4), list(permutations(range(3)))
    pairs = torch.tensor([[first, [3 + place for place in second]] for first in one for second in one])
    for word in ("abcdef", "abcabc", "aabaab", "aabbba"):
        kinds = torch.tensor([ord(letter) for letter in word]).view(2, 3)
        looks = np.array([[kinds[n][pair[n].argsort()].tolist() for n in range(2)] for pair in pairs])
        numbers = [np.unique(looks[:, n], axis=0, return_inverse=True)[1].ravel() for n in range(2)]
        for _ in range(40):
            law = rng.dirichlet(np.full(len(pairs), rng.choice([0.01, 0.1, 1.0])))
            guess = torch.from_numpy(rng.permutation(6)).view(1, 2, 3).expand_as(pairs)
            right = direct_accuracy(
                guess.flatten(0, 1), pairs.flatten(0, 1), batch=2, kinds=kinds.repeat(len(pairs), 1)
            ).view(-1, 2)
            share = float(law @ right.mean(1).numpy())
            bits = [entr(np.bincount(number, weights=law)).sum() / log(2) for number in numbers]
            assert np.mean(bits) <= patch_entropy_bits(3, share) + 1e-9


@pytest.mark.parametrize(
    ("messages", "wrong", "shown"), [(1, 0, None), (2, 0, 5485), (2, 0.074, 5526), (10, 0.074, 3096), (10, 1, 5526)]
)
def test_bits_rest_on_all_tokens_of_whole_messages(messages: int, wrong: float, shown: int | None) -> None:
    """Batch shuffling of 50 images of 16 tokens: one message can show nothing, whatever the attack."""
    outcomes = batch_shuffle(tokens=16, batch=50, kept=6).quantities["log10_outcomes"]
    truth = orders(messages, 800)
    guess, many = truth.clone(), round(800 * wrong)
    guess[:, :many] = truth[:, :many].roll(1, 1)
    found = arrangement_scores(guess.view(-1, 16), truth.view(-1, 16), batch=50, most_bits=outcomes * log2(10))
    assert found.direct.share.value == pytest.approx(1 - wrong, abs=1e-3)
    assert round(found.bits_before) == 5526
    assert (found.bits_left and round(found.bits_left)) == shown


def test_equal_pieces_have_fewer_orders() -> None:
    truth = orders(40, 16)
    kinds = (torch.arange(16) // 2).repeat(40, 1)
    plain, paired = (arrangement_scores(truth, truth, batch=1, kinds=known) for known in (None, kinds))
    assert plain.bits_before - paired.bits_before == pytest.approx(8)
    assert plain.bits_left == paired.bits_left
    assert arrangement_scores(truth, truth, batch=1, kinds=torch.zeros_like(kinds)).bits_left is None  # no order at all


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


def test_a_row_has_no_bits_of_a_single_message() -> None:
    """Fifty victims are one message where images are mixed, and fifty images where they are not."""
    smashed = torch.rand(1, 50, 16, 4, generator=Generator().manual_seed(1))
    found = {}
    for defense in (BatchShuffle(keep=0.4), PatchShuffle()):
        release, receipt = defense.apply(smashed, torch.zeros(1, 50), Generator().manual_seed(2))
        context: Any = SimpleNamespace(
            recording=SimpleNamespace(
                receipts=[receipt], views=[SimpleNamespace(smashed=release.smashed.flatten(0, 1))]
            ),
            attack=SimpleNamespace(mounting=SimpleNamespace(passes=1)),
            config=SimpleNamespace(training=SimpleNamespace(batch_size=50)),
            certificate=receipt.certificate(),
        )
        truth = true_arrangement(receipt)
        assert truth is not None
        found[defense.name] = order(context, Permutation(source=truth))
    told, note = found["batch_shuffle"]
    assert "bits_left" not in told
    assert "with so few messages (1), no attack could show that the order of one message has lost any bit" in note
    assert told["bits_before"].method == "orders of the tokens of one message that look different"
    told, note = found["patch_shuffle"]
    assert told["bits_left"].value < 0.3 * told["bits_before"].value
    assert "over whole images" in told["bits_left"].method
    assert "so few" not in note


def test_refuses_what_is_no_arrangement() -> None:
    truth = orders(4, 4)
    with pytest.raises(ValueError, match="divides the 4 images, got 3"):
        arrangement_scores(truth, truth, batch=3)
    with pytest.raises(ValueError, match="exactly once"):
        arrangement_scores(torch.zeros_like(truth), truth, batch=1)
    with pytest.raises(ValueError, match="one shape"):
        arrangement_scores(truth[:2], truth, batch=1)
