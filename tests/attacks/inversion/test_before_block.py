"""A block that clients run behind a shuffle protects nothing from an adversary who knows it."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import View
from privkit.attacks.goals.reconstruct import ImageObservation, Reconstruction
from privkit.attacks.inversion.jigsaw_white_box import JigsawWhiteBox
from privkit.attacks.inversion.known_lower import before_block, without_block
from privkit.attacks.inversion.white_box import WhiteBox
from privkit.attacks.order.jigsaw import Jigsaw
from privkit.attacks.query_rules import Counted, QueryRules
from privkit.defenses.batch_shuffle import BatchShuffle
from privkit.torch_utils.behind import Behind
from privkit.training.clients import frozen_block
from privkit.wire.channel import Queries, black_box_query, shared_lower
from tests.attacks.order.puzzles import AUXILIARY, BATCH, VICTIMS, T, clients, projected


class Wide(nn.Module):
    """A linear lower segment whose tokens are large beside what a drawn block adds, as a trained one's are."""

    def forward(self, images: Tensor) -> Tensor:
        return 4 * projected(images)


LOWER = Wide()
BLOCK = frozen_block(64, 0).eval().requires_grad_(False)


def steep(times: float) -> nn.Module:
    """The drawn block with larger weights, as after training, or far beyond it."""
    block = frozen_block(64, 0).eval().requires_grad_(False)
    for name, weight in block.named_parameters():
        if "weight" in name and "norm" not in name:
            weight.mul_(times)
    return block


def test_a_drawn_block_is_undone_row_by_row() -> None:
    tokens = LOWER(VICTIMS)
    found, residual = before_block(BLOCK, BLOCK(tokens))
    assert (found - tokens).norm() < 1e-5 * tokens.norm()
    assert (BLOCK(tokens) - tokens).norm() > 1e-2 * tokens.norm()
    assert residual.max() < 1e-5
    alone, _ = before_block(BLOCK, BLOCK(tokens[3:4]))
    torch.testing.assert_close(alone, found[3:4], atol=1e-4, rtol=1e-4)


def test_the_residual_says_how_near_a_block_was_undone() -> None:
    """Whatever its weights: it is that of the tokens that are returned, and no row got worse."""
    block, tokens = steep(20.0), LOWER(VICTIMS)
    released = block(tokens)
    found, residual = before_block(block, released)
    left = (block(found) - released).flatten(1).norm(dim=1) / released.flatten(1).norm(dim=1)
    torch.testing.assert_close(residual, left, atol=1e-5, rtol=1e-3)
    start = (block(released) - released).flatten(1).norm(dim=1) / released.flatten(1).norm(dim=1)
    assert (residual <= start).all()


def seen(block: nn.Module, defense: BatchShuffle) -> tuple[ImageObservation, Tensor]:
    """What an adversary with weights holds, and the tokens as they were released before the block."""
    edge = clients(LOWER, defense)
    edge.block = block
    query = black_box_query(edge)
    views = [query(part, Generator().manual_seed(n)).view for n, part in enumerate(VICTIMS.split(BATCH))]
    edge.block = None
    plain = black_box_query(edge)
    before = [plain(part, Generator().manual_seed(n)).view.smashed for n, part in enumerate(VICTIMS.split(BATCH))]
    edge.block = block
    held = ImageObservation(
        views=views,
        image_shape=(3, 32, 32),
        batch_size=BATCH,
        auxiliary=AUXILIARY,
        query=query,
        lower=shared_lower(edge),
    )
    return held, torch.cat(before)


def test_views_and_answers_are_those_without_the_block() -> None:
    held, before = seen(BLOCK, BatchShuffle(keep=0.4, frozen_block=True))
    found, note = without_block(held)
    assert isinstance(held.lower, Behind)
    assert not isinstance(found.lower, Behind)
    torch.testing.assert_close(torch.cat([view.smashed for view in found.views]), before, atol=1e-4, rtol=1e-4)
    assert found.query is not None
    answer = found.query(VICTIMS[:BATCH], Generator().manual_seed(0)).view.smashed
    torch.testing.assert_close(answer, before[:BATCH], atol=1e-4, rtol=1e-4)
    assert "undone: relative residual" in note


def test_an_adversary_without_the_weights_undoes_the_public_block() -> None:
    """Recorded rounds are counted as the clients count them."""
    held, before = seen(BLOCK, BatchShuffle(keep=0.4, frozen_block=True))
    assert held.query is not None
    queries = Queries(held.query, QueryRules())
    found, note = without_block(replace(held, lower=None, block=BLOCK, query=queries))
    assert found.lower is found.block is None
    torch.testing.assert_close(torch.cat([view.smashed for view in found.views]), before, atol=1e-4, rtol=1e-4)
    assert "undone: relative residual" in note
    assert isinstance(found.query, Counted)
    found.query.rounds += 3
    found.query(VICTIMS[:BATCH], Generator().manual_seed(0))
    assert queries.rounds == 4
    assert not isinstance(without_block(replace(held, lower=None, block=BLOCK))[0].query, Counted)


def test_a_block_that_is_not_undone_is_named() -> None:
    held, _ = seen(steep(20.0), BatchShuffle(keep=0.4, frozen_block=True))
    assert "only in part" in without_block(held)[1]
    found, note = without_block(replace(held, lower=None, block=steep(20.0)))
    assert "not undone" in note
    assert found.query is held.query
    assert all(one is other for one, other in zip(found.views, held.views, strict=True))


def test_without_a_block_nothing_changes() -> None:
    held = ImageObservation(
        views=[View(round=0, smashed=LOWER(VICTIMS))], image_shape=(3, 32, 32), batch_size=BATCH, lower=LOWER
    )
    assert without_block(held) == (held, "")


class Unmoved:
    """A solver that leaves every token where it is."""

    def solve(self, view: View, number: int) -> Tensor:
        return torch.arange(BATCH * T).view(BATCH, T)


def test_the_jigsaw_white_box_solves_and_inverts_what_lay_before_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    held, before = seen(BLOCK, BatchShuffle(keep=0.4, frozen_block=True))
    shown: list[ImageObservation] = []

    def learn(attack: Jigsaw, observation: ImageObservation, *rest: Any) -> tuple[Unmoved, dict[str, Any], None]:
        shown.append(observation)
        return Unmoved(), {"sources": []}, None

    def run(attack: WhiteBox, observation: ImageObservation, *rest: Any) -> Reconstruction:
        shown.append(observation)
        return Reconstruction(images=torch.zeros_like(VICTIMS))

    monkeypatch.setattr(Jigsaw, "learn", learn)
    monkeypatch.setattr(WhiteBox, "run", run)
    found = JigsawWhiteBox().run(held, Generator())
    assert "undone" in found.note
    for one in shown:
        torch.testing.assert_close(torch.cat([view.smashed for view in one.views]), before, atol=1e-4, rtol=1e-4)
        assert one.lower is not None
        torch.testing.assert_close(one.lower(VICTIMS), LOWER(VICTIMS))
