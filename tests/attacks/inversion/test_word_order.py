"""The order of known words: what the pairs of own texts say, and the cheapest order where all can be tried."""

from itertools import permutations

import pytest
import torch
from torch import Generator, Tensor

from privkit.attacks.inversion.word_order import WordPairs, likeliest_order

WORDS, LENGTH = 30, 6


def chains(count: int, seed: int) -> Tensor:
    """Texts of a language in which one of three words follows each word."""
    draws = Generator().manual_seed(seed)
    after = torch.randint(WORDS, (WORDS, 3), generator=Generator().manual_seed(99))
    texts = torch.randint(WORDS, (count, 1), generator=draws)
    for _ in range(LENGTH - 1):
        following = after[texts[:, -1], torch.randint(3, (count,), generator=draws)]
        texts = torch.cat([texts, following.unsqueeze(1)], 1)
    return texts


def test_the_costs_of_words_behind_another_are_those_of_one_law() -> None:
    """Shares of all words behind any word sum to one."""
    pairs = WordPairs(chains(200, 0), WORDS)
    every = torch.arange(WORDS).unsqueeze(0)
    assert pairs.nats(every).shape == (1, WORDS + 1, WORDS)
    torch.testing.assert_close(pairs.nats(every).neg().exp().sum(2), torch.ones(1, WORDS + 1))


def test_the_cheapest_order_is_found_where_all_can_be_tried() -> None:
    pairs = WordPairs(chains(200, 0), WORDS)
    words = torch.rand(20, WORDS, generator=Generator().manual_seed(1)).argsort(1)[:, :LENGTH]  # no word twice
    costs = torch.rand(20, LENGTH, LENGTH, generator=Generator().manual_seed(2))
    found, nats = likeliest_order(costs, words, pairs), pairs.nats(words)

    def cost(row: int, order: list[int]) -> float:
        steps = zip([0, *(token + 1 for token in order)], order, strict=False)
        return sum(float(nats[row, before, token]) for before, token in steps) + float(
            costs[row, order, range(LENGTH)].sum()
        )

    for row in range(20):
        least = min(cost(row, list(order)) for order in permutations(range(LENGTH)))
        assert cost(row, found[row].tolist()) == pytest.approx(least, rel=1e-4)


def test_a_language_puts_words_in_order_and_independent_words_stay_out_of_it() -> None:
    own, private = chains(400, 3), chains(100, 4)
    even = torch.zeros(100, LENGTH, LENGTH)
    mixed = private.gather(1, torch.rand(100, LENGTH, generator=Generator().manual_seed(5)).argsort(1))

    def right(own: Tensor) -> float:
        order = likeliest_order(even, mixed, WordPairs(own, WORDS))
        return float((mixed.gather(1, order) == private).float().mean())

    loose = torch.randint(WORDS, own.shape, generator=Generator().manual_seed(6))
    assert right(own) > 0.8
    assert right(loose) < 0.4


def test_every_token_has_one_place_also_in_long_texts() -> None:
    words = torch.randint(5, (3, 70), generator=Generator().manual_seed(0))  # nearly all beginnings recur
    order = likeliest_order(torch.zeros(3, 70, 70), words, WordPairs(words, 5))
    assert order.sort(1).values.equal(torch.arange(70).expand(3, 70))
