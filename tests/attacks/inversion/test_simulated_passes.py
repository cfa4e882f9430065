"""Own tokens that can be read are shuffled without a query; others are sent anew, and the rules hold."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import NotApplicable
from privkit.attacks.goals.reconstruct import Reconstruction
from privkit.attacks.inversion.adaptive import Adaptive, SimulatedPasses
from privkit.attacks.inversion.recurrence import copy_distance, intersected
from privkit.attacks.order.own_tokens import OwnTokens
from privkit.attacks.patches import Geometry, patchify
from privkit.attacks.query_rules import QueryRules
from privkit.defenses.spectral_shuffle import SpectralShuffle
from privkit.training.clients import frozen_block
from privkit.wire.channel import CountingSession, Queries
from tests.attacks.inversion.passes import (
    AUXILIARY,
    BATCH,
    CHANNELS,
    EMBEDDING,
    PLACES,
    Release,
    batch_shuffled,
    error,
    knowledge,
    noise,
    noisy,
    noisy_shuffled,
    run,
    shuffled,
    tokens,
    views,
)
from tests.attacks.sessions import Killed, Session
from tests.attacks.victims import answering


def asking(
    attack: Adaptive, release: Release, session: Any = None, seed: int = 0, **rules: Any
) -> tuple[Reconstruction, int]:
    """The attack under a threat model, and the rounds that it asked."""
    allowed = QueryRules(**rules)
    queries = Queries(answering(release), allowed)
    held = replace(knowledge(release), views=views(release, attack.passes), query=queries, rules=allowed)
    found = attack.run(held, Generator().manual_seed(seed), CountingSession(session or Session(), queries))
    return found, queries.rounds


@pytest.mark.slow
@pytest.mark.parametrize(
    ("release", "passes", "rounds"), [(shuffled, 3, 16 + 20 + 1), (batch_shuffled, 6, 16 + 2 + 400 // 4)]
)
def test_tokens_that_can_be_read_are_shuffled_without_a_query(release: Release, passes: int, rounds: int) -> None:
    """The decoder starts with the patches behind tokens, and learns more from fewer rounds.

    One seed's errors after four epochs differ by less than seeds do; those of three after one epoch by far more.
    """
    errors = {
        images: sum(
            error(asking(Adaptive(passes=passes, epochs=1, read=images), release, seed=seed)[0]) for seed in range(3)
        )
        for images in (None, 0)
    }
    assert errors[None] < 0.95 * errors[0]
    read, anew = (asking(Adaptive(passes=passes, epochs=4, read=images), release) for images in (None, 0))
    assert read[1] == rounds < anew[1]
    assert "tokens of 400 own images were read" in read[0].note
    assert not anew[0].note


def spectral(images: Tensor, draws: Generator) -> Tensor:
    """Frequencies in any order: tokens are not patches."""
    release, _ = SpectralShuffle(patch=4).apply(tokens(images).unsqueeze(0), torch.zeros(1, len(images)), draws)
    return release.smashed[0]


def moved(images: Tensor, draws: Generator) -> Tensor:
    """Patches whose tokens show their places."""
    places = torch.randn(PLACES, CHANNELS, generator=Generator().manual_seed(3))
    order = torch.rand(len(images), PLACES, generator=draws).argsort(1)
    return (tokens(images) + places).gather(1, order.unsqueeze(2).expand(-1, -1, CHANNELS))


@pytest.mark.slow
def test_tokens_that_show_their_places_are_read() -> None:
    assert "tokens of 400 own images were read" in asking(Adaptive(passes=2, epochs=1), moved)[0].note


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("release", "rounds", "why"),
    [
        (noisy_shuffled, 2, "sent twice gave different tokens"),
        (noise, 2, "sent twice gave different tokens"),
        (spectral, 21, "so tokens may be assigned to wrong patches"),
    ],
)
def test_tokens_that_cannot_be_read_are_sent_anew(release: Release, rounds: int, why: str) -> None:
    found, anew = (asking(Adaptive(passes=3, epochs=1, read=images), release) for images in (None, 0))
    assert torch.equal(found[0].images, anew[0].images)
    assert found[1] == anew[1] + rounds
    assert "sent anew in each epoch" in found[0].note
    assert why in found[0].note


def test_tokens_are_read_behind_a_public_block() -> None:
    """Without the block, the tokens of its rows change with the images beside them, and cannot be read."""
    block = frozen_block(CHANNELS, 0).eval()
    release = partial(behind, block)
    known = replace(knowledge(release), views=views(release, 2), block=block)
    found = Adaptive(passes=2, epochs=1).run(known, Generator().manual_seed(0))
    assert "undone: relative residual at most" in found.note
    assert "tokens of 400 own images were read" in found.note


def behind(block: nn.Module, images: Tensor, draws: Generator) -> Tensor:
    """Tokens that a shuffle of whole messages moves, and a block mixes with the others of their row.

    They are large beside what the block adds, also those of empty patches.
    """
    return block(4 * batch_shuffled(images, draws) + torch.linspace(-4, 4, CHANNELS))  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("combine", ["pool", "intersect"])
def test_noise_on_tokens_in_place_is_averaged_and_not_simulated(combine: Any) -> None:
    found, anew = (run(Adaptive(passes=3, epochs=1, combine=combine, read=images), noisy) for images in (None, 0))
    assert torch.equal(found.images, anew.images)


@pytest.mark.slow
def test_reading_keeps_the_rules_of_the_threat_model() -> None:
    """It takes what rounds there are, and sends no copy of an image where that is forbidden."""
    few, rounds = asking(Adaptive(passes=3, epochs=1), batch_shuffled, rounds=60)
    assert rounds == 60
    assert "tokens of 168 own images were read" in few.note
    no_copies, _ = asking(Adaptive(passes=3, epochs=1), shuffled, copies=False)
    assert "tokens of 400 own images were read" in no_copies.note
    for read in (0, None):
        with pytest.raises(NotApplicable, match="allows 20 rounds of own images, and the attack asks for more"):
            asking(Adaptive(passes=3, epochs=1, read=read), batch_shuffled, rounds=20)


@pytest.mark.slow
def test_rounds_that_read_tokens_count_once_after_a_kill() -> None:
    attack, killed = Adaptive(passes=3, epochs=2, read=60), Session(dies_after=1)
    straight, rounds = asking(attack, batch_shuffled)
    with pytest.raises(Killed):
        asking(attack, batch_shuffled, killed)
    resumed, again = asking(attack, batch_shuffled, Session(state=killed.state))
    assert again == rounds == 16 + 2 + 60
    assert torch.equal(resumed.images, straight.images)


def test_simulated_passes_are_like_those_that_crossed() -> None:
    draws, images = Generator().manual_seed(1), AUXILIARY[:200]
    own = OwnTokens(tokens=tokens(images), patches=patchify(images, 4), keep=0.52, in_order=False)
    sent = [torch.cat([batch_shuffled(part, draws) for part in images.split(BATCH)]) for _ in range(4)]
    passes = torch.stack([x.reshape(-1, BATCH * PLACES, CHANNELS) for x in sent])
    copies = copy_distance(passes[0], passes[1])
    crossed = intersected(passes, BATCH, copies)
    simulated = SimulatedPasses(
        own=own, geometry=Geometry.of(own.tokens, (1, 8, 8)), passes=4, size=BATCH, copies=copies, pool=False
    )
    dealt, patches = simulated.known(draws)
    torch.testing.assert_close(patches @ EMBEDDING, dealt[..., :-1])

    def pure(found: Tensor) -> float:
        return (torch.cdist(found, own.tokens).amin(2) < 0.02).double().mean().item()

    assert pure(dealt[..., :-1]) == pytest.approx(pure(crossed.tokens), abs=0.03)
    assert 0.6 < pure(dealt[..., :-1]) < 0.98
    assert dealt[..., -1].mean() == pytest.approx(crossed.support.mean().item(), abs=0.01)
    assert dealt[..., -1].std() == pytest.approx(crossed.support.std().item(), abs=0.02)
