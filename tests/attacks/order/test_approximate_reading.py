"""Own tokens behind a block that mixes each token with the strangers in its row."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import NotApplicable, QueryResult
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.inversion.known_lower import before_block
from privkit.attacks.order.approximate_reading import even_heaps
from privkit.attacks.order.own_tokens import OwnTokens, own_tokens
from privkit.attacks.order.token_reading import AffineMap
from privkit.attacks.patches import Geometry
from privkit.attacks.query_rules import QueryRules
from privkit.audit.run import run_audit
from privkit.defenses.batch_shuffle import BatchShuffle
from privkit.defenses.patch_shuffle import PatchShuffle
from privkit.settings.resolve import resolve
from privkit.torch_utils.behind import Behind
from privkit.wire.channel import Queries, black_box_query, shared_lower
from tests.attacks.order.puzzles import AUXILIARY, BATCH, VICTIMS, T, clients, pixels, projected

KEPT = int(0.4 * T) / T


class Wide(nn.Module):
    """A linear lower segment whose tokens are large beside what a drawn block adds, as a trained one's are."""

    def forward(self, images: Tensor) -> Tensor:
        return 4 * projected(images)


@cache
def held(defense: Any) -> tuple[ImageObservation, Behind]:
    """What an adversary with queries holds, and the lower segment with the block."""
    edge = clients(Wide(), defense)
    query = black_box_query(edge)
    view = query(VICTIMS[:BATCH], Generator().manual_seed(7)).view
    observation = ImageObservation(
        views=[view], image_shape=(3, 32, 32), batch_size=BATCH, auxiliary=AUXILIARY, query=query
    )
    whole = shared_lower(edge)
    assert isinstance(whole, Behind)
    return observation, whole


def read(observation: ImageObservation, passes: int = 1) -> OwnTokens:
    geometry = Geometry.of(observation.views[0].smashed, observation.image_shape)
    return own_tokens(
        observation.views[0], observation, geometry, Generator().manual_seed(0), 100, passes, approximate=True
    )


@cache
def known() -> tuple[OwnTokens, Tensor]:
    """Own tokens as they were read, and the released tokens that they were read from, without those of copies."""
    observation, came = held(BatchShuffle(keep=0.4, frozen_block=True))[0], []
    ask = observation.query
    assert ask is not None

    def query(images: Tensor, draws: Generator) -> QueryResult:
        answer = ask(images, draws)
        if len(images.unique(dim=0)) == BATCH:  # no copies
            came.append(answer.view.smashed)
        return answer

    return read(replace(observation, query=query)), torch.cat(came)


@pytest.mark.slow
def test_own_tokens_are_matched_with_the_patches_that_were_sent() -> None:
    """Each one was sent for that patch, or for one that looks like it, as the block undone shows."""
    (own, released), (_, whole) = known(), held(BatchShuffle(keep=0.4, frozen_block=True))
    before = before_block(whole.block, released)[0].flatten(0, 1)
    which = torch.cdist(own.tokens.flatten(0, 1), released.flatten(0, 1)).argmin(1)
    sent = whole.front(AUXILIARY[: len(own.tokens)]).flatten(0, 1)
    apart = (before[which] - sent).square().mean(1)
    assert (apart < 0.01 * sent.var(0).mean()).double().mean() >= 0.99
    assert apart.mean() < 0.01 * sent.var(0).mean()
    assert own.keep == pytest.approx(KEPT, abs=0.05)
    assert not own.in_order


def test_patches_behind_private_tokens_are_decoded() -> None:
    (own, _), (observation, _) = known(), held(BatchShuffle(keep=0.4, frozen_block=True))
    seen = AffineMap.fit(own.tokens, own.patches, 1e-4)(observation.views[0].smashed).flatten(0, 1)
    sent = pixels(VICTIMS[:BATCH]).flatten(0, 1)
    error = torch.cdist(seen, sent).amin(1).square().mean() / sent.shape[1]
    assert error < 0.3 * (sent - own.patches.mean((0, 1))).square().mean()
    assert torch.cdist(seen, sent).argmin(1).unique().numel() > 0.9 * len(sent)


def test_behind_a_patch_shuffle_the_block_hides_nothing() -> None:
    """A block treats all tokens alike, so that a row of the same tokens gives the same tokens."""
    own, (observation, whole) = read(held(PatchShuffle(frozen_block=True))[0]), held(PatchShuffle(frozen_block=True))
    assert observation.query is not None
    alone = whole(AUXILIARY[: len(own.tokens)])
    assert ((own.tokens - alone).abs().amax(2) < 1e-3).double().mean() > 0.95
    assert own.keep == 1.0


@pytest.mark.slow
def test_passes_are_put_together_approximately() -> None:
    """Tokens of several passes show more of whose they are."""
    observation, _ = held(BatchShuffle(keep=0.4, frozen_block=True))
    assert read(observation, passes=8).keep > KEPT + 0.2


def test_says_how_many_rounds_it_takes() -> None:
    observation, _ = held(BatchShuffle(keep=0.4, frozen_block=True))
    assert observation.query is not None
    rules = QueryRules(rounds=20)
    few = replace(observation, rules=rules, query=Queries(observation.query, rules))
    with pytest.raises(NotApplicable, match="at least 42 to read"):
        read(few)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("share", [1.0, 0.0], ids=["drowned", "empty"])
def test_says_that_tokens_do_not_show_their_patches(share: float) -> None:
    """Noise three times as large as the tokens, or tokens that have nothing of the images."""
    observation, _ = held(BatchShuffle(keep=0.4, frozen_block=True))
    ask = observation.query
    assert ask is not None

    def noisy(images: Tensor, draws: Generator) -> QueryResult:
        answer = ask(images, draws)
        smashed = answer.view.smashed
        drawn = torch.randn(smashed.shape, generator=draws) * smashed.std()
        return replace(answer, view=replace(answer.view, smashed=share * smashed + 3 * drawn))

    with pytest.raises(NotApplicable, match="of the variance of the sent patches"):
        read(replace(observation, query=noisy))


def test_even_heaps_give_equal_patches_several() -> None:
    draws = Generator().manual_seed(1)
    centers = torch.randn(2, T, 8, generator=draws)
    centers[:, 5:] = centers[:, 5:6]  # as black patches
    messages = centers.repeat_interleave(BATCH, 1)
    messages = messages + 0.01 * torch.randn(messages.shape, generator=draws)
    found = even_heaps(messages[:, torch.randperm(BATCH * T, generator=draws)], T)
    near = torch.cdist(found, centers[:, :6])
    assert near.amin(2).max() < 0.05
    counts = torch.nn.functional.one_hot(near.argmin(2), 6).sum(1)
    assert counts.tolist() == 2 * [[1, 1, 1, 1, 1, T - 5]]


@pytest.mark.slow
def test_an_audit_of_batch_shuffling_with_the_block_falls_to_queries(tmp_path: Path) -> None:
    """The block is undone: SSIM .89 and MSE .005 at seed 0; the mean image has .18 and .069.

    1,000 images, five in each message of copies, and two rounds that show what returns."""
    options = {"defense": "batch_shuffle:frozen_block=true", "attack": ["jigsaw"], "budget": "quick", "threads": 1}
    config = resolve(options)
    defended = next(one for one in config.defenses if one.name != "none")
    (row,) = run_audit(replace(config, defenses=(defended,)), out=tmp_path).rows
    assert row.status == "done"
    assert row.recovered["unaligned"]["ssim"].value > 0.7
    assert row.recovered["unaligned"]["mse"].value < 0.4 * row.floors["mean_image"]["unaligned"]["mse"].value
    assert row.queries == 202
