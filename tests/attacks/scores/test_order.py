"""Measures of a guessed order against a count by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator

from privkit.attacks.order.piece_solver import gradient_distance
from privkit.attacks.scores.order import direct_accuracy, equal_tokens, membership_accuracy, neighbor_accuracy


def brute_neighbors(guessed: list[int], truth: list[int], side: int) -> float:
    """Each true pair of one picture, looked up by hand."""
    hits = 0
    for a, place in enumerate(truth):
        for b, other in enumerate(truth):
            for step in (1, side):
                pair = other - place == step and (step == side or place % side < side - 1)
                kept = guessed[b] - guessed[a] == step and (step == side or guessed[a] % side < side - 1)
                hits += pair and kept
    return hits / (2 * side * (side - 1))


@given(st.permutations(range(9)), st.permutations(range(9)))
@settings(max_examples=50, deadline=None)
def test_accuracies_against_a_count_by_hand(guessed: list[int], truth: list[int]) -> None:
    one, two = torch.tensor([guessed]), torch.tensor([truth])
    assert neighbor_accuracy(one, two, batch=1).item() == pytest.approx(brute_neighbors(guessed, truth, 3))
    assert direct_accuracy(one, two, batch=1).item() == pytest.approx(np.mean(np.equal(guessed, truth)))
    assert membership_accuracy(one, two, batch=1).item() == 1


def test_equal_pieces_are_interchangeable_and_others_are_not() -> None:
    truth = torch.arange(18).view(2, 9)
    swapped = truth.clone()
    swapped[0, 0], swapped[1, 4] = 13, 0  # the first picture's corner against the second one's middle
    tokens = torch.arange(18.0).view(2, 9, 1)
    tokens[1, 4] = tokens[0, 0]
    kinds = equal_tokens(tokens, 2)
    for measure in (direct_accuracy, neighbor_accuracy, membership_accuracy):
        assert measure(swapped, truth, batch=2).max() < 1
        assert measure(swapped, truth, batch=2, kinds=kinds).tolist() == [1, 1]
        assert measure(swapped, truth, batch=2, kinds=torch.arange(18).view(2, 9)).max() < 1


def test_accuracies_refuse_what_is_no_arrangement() -> None:
    truth = torch.arange(18).view(2, 9)
    with pytest.raises(ValueError, match="exactly once"):
        direct_accuracy(torch.zeros_like(truth), truth, batch=2)
    with pytest.raises(ValueError, match="one shape"):
        direct_accuracy(truth[:1], truth, batch=2)
    with pytest.raises(ValueError, match="square grid"):
        neighbor_accuracy(truth.view(3, 6), truth.view(3, 6), batch=3)


def test_gradient_distance_against_the_definition() -> None:
    pieces = torch.rand(1, 3, 4, 4, 3, generator=Generator().manual_seed(0))
    found = gradient_distance(pieces)[0]
    a, b = pieces[0, 0].double(), pieces[0, 2].double()
    total = 0.0
    for left, right in ((a, b), (b.flip(1), a.flip(1))):
        inside = left[:, -1] - left[:, -2]
        covariance = torch.cov(inside.T) + torch.eye(3) / 255**2
        gap = right[:, 0] - left[:, -1] - inside.mean(0)
        total += float(torch.einsum("rc,cd,rd->", gap, torch.linalg.inv(covariance), gap))
    assert found[0, 2].item() == pytest.approx(total, rel=1e-3)
