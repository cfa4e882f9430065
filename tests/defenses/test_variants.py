"""The three variants of batch shuffling: each releases by its own exact law, and its receipt charges that one."""

from collections import Counter
from itertools import permutations

import pytest
import torch
from scipy.stats import chisquare
from torch import Generator

from privkit.accountants.shuffles import certificates
from privkit.accountants.shuffles.variants import VARIANTS, Variant
from privkit.defenses.batch_shuffle import BatchShuffle, message_orders
from tests.accountants.shuffles.release_laws import distinct_outcomes, release_probability

ROUNDS = 40_000  # the messages of one call: as many independent rounds
every_reading = pytest.mark.parametrize("variant", VARIANTS)


def released(variant: Variant, tokens: int, batch: int, kept: int) -> list[tuple[int, ...]]:
    """What each of many messages released, its tokens numbered through."""
    defense = BatchShuffle(keep=round(kept / tokens + 0.005, 2), variant=variant)  # as a decimal, 2 of 3 is 0.67
    z = torch.zeros(ROUNDS, batch, tokens, 1)
    _, receipt = defense.apply(z, torch.zeros(ROUNDS, batch), Generator().manual_seed(1))
    assert receipt.kept == kept
    local = receipt.source.flatten(1) - batch * tokens * torch.arange(ROUNDS).unsqueeze(1)
    return [tuple(row) for row in local.tolist()]


@pytest.mark.slow(but=1)
@every_reading
@pytest.mark.parametrize(("tokens", "batch", "kept"), [(2, 2, 1), (3, 2, 2), (2, 3, 1)])
def test_releases_follow_the_exact_law_of_their_reading(variant: Variant, tokens: int, batch: int, kept: int) -> None:
    seen = Counter(released(variant, tokens, batch, kept))
    size = batch * tokens
    plain = [list(range(i, i + tokens)) for i in range(0, size, tokens)]
    law = {}
    for order in permutations(range(size)):
        outcome = [order[i : i + tokens] for i in range(0, size, tokens)]
        if odds := release_probability(outcome, plain, kept=kept, variant=variant):
            law[order] = float(odds)
    assert set(seen) == set(law)
    assert len(law) == distinct_outcomes(tokens, batch, kept, variant=variant)
    expected = [ROUNDS * odds for odds in law.values()]
    assert chisquare([seen[order] for order in law], expected).pvalue > 1e-4


@every_reading
def test_each_receipt_charges_its_own_reading(variant: Variant) -> None:
    _, receipt = BatchShuffle(variant=variant).apply(torch.zeros(2, 5, 16, 1), torch.zeros(2, 5), Generator())
    assert receipt.certificate() == certificates.batch_shuffle(tokens=16, batch=5, kept=6, variant=variant)


def test_where_kept_tokens_lie() -> None:
    z, y, first = torch.zeros(3, 4, 10, 1), torch.zeros(3, 4), 10 * torch.arange(12).view(3, 4, 1)
    written = BatchShuffle(variant="algorithm_2").apply(z, y, Generator().manual_seed(0))[1].source
    assert ((written[:, :, :4] // 10) * 10 == first).all()
    inplace = BatchShuffle(variant="kept_in_place").apply(z, y, Generator().manual_seed(0))[1].source
    assert ((inplace == first + torch.arange(10)).sum(2) >= 4).all()


def test_messages_are_dealt_independently() -> None:
    """Two messages of one call: all pairs of their orders are equally likely, though one permutation draws both."""
    orders = {order: i for i, order in enumerate(permutations(range(3)))}
    draws, pairs = Generator().manual_seed(0), torch.zeros(6, 6)
    for _ in range(9_000):
        one, other = message_orders(2, 3, draws).tolist()
        pairs[orders[tuple(one)], orders[tuple(other)]] += 1
    assert chisquare(pairs.flatten().numpy()).pvalue > 1e-4


def test_an_unknown_reading_is_refused() -> None:
    with pytest.raises(ValueError, match="variant must be one of algorithm_2"):
        BatchShuffle(variant="as_told")  # type: ignore[arg-type]
