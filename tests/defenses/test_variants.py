"""The three variants of batch shuffling: each releases by its own exact law, and its receipt charges that one."""

from collections import Counter, defaultdict
from itertools import permutations
from math import log10

import pytest
import torch
from scipy.stats import chisquare
from torch import Generator

from privkit.accountants.shuffles import certificates
from privkit.accountants.shuffles.variants import VARIANTS, Variant
from privkit.defenses.batch_shuffle import BatchShuffle, message_orders
from privkit.defenses.patch_shuffle import PatchShuffle
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
    z = torch.arange(160.0).view(2, 5, 16, 1)
    _, receipt = BatchShuffle(variant=variant).apply(z, torch.zeros(2, 5), Generator())
    expected = certificates.batch_shuffle(tokens=16, batch=5, kept=6, variant=variant, multiplicities=[1] * 80)
    assert receipt.certificate() == expected
    assert expected.statement == certificates.batch_shuffle(tokens=16, batch=5, kept=6, variant=variant).statement


@every_reading
@pytest.mark.parametrize("kinds", [(0, 0, 1, 2, 0, 3), (0, 0, 0, 1, 1, 1), (0, 1, 2, 3, 4, 4), (0,) * 6])
def test_no_guess_at_what_a_batch_looks_like_beats_the_count(variant: Variant, kinds: tuple[int, ...]) -> None:
    tokens, batch, kept = 3, 2, 1
    plain = [[0, 1, 2], [3, 4, 5]]
    looks: dict[tuple[int, ...], float] = defaultdict(float)
    for order in permutations(range(6)):
        odds = release_probability([order[:3], order[3:]], plain, kept=kept, variant=variant)
        looks[tuple(kinds[token] for token in order)] += float(odds)
    z = torch.tensor([float(kind) for kind in kinds]).view(1, batch, tokens, 1)
    defense = BatchShuffle(keep=0.34, variant=variant)
    claim = defense.apply(z, torch.zeros(1, batch), Generator().manual_seed(0))[1].certificate()
    assert max(looks.values()) <= 10 ** -claim.quantities["log10_permutations"] * (1 + 1e-9)
    assert (claim.kind == "nothing") == (claim.quantities["log10_permutations"] == 0)


def test_equal_patches_are_counted_in_the_message_with_the_fewest_orders() -> None:
    z = torch.rand(3, 4, 5, 2, generator=Generator().manual_seed(0))
    z[1, 0, :3] = z[1, 0, 0] * (1 + 1e-7)  # equal up to rounding
    alone, whole = (
        defense.apply(z, torch.zeros(3, 4), Generator().manual_seed(0))[1]
        for defense in (PatchShuffle(), BatchShuffle(keep=0.4))
    )
    assert sorted(alone.multiplicities or []) == [1, 1, 3]
    assert sorted(whole.multiplicities or []) == [1] * 17 + [3]
    assert (alone.log10_alike, whole.log10_alike) == pytest.approx((log10(6), log10(6)))
    assert alone.certificate().quantities["log10_permutations"] == pytest.approx(log10(120 / 6))
    assert "up to 10^0.8 give the same release" in whole.certificate().statement


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
