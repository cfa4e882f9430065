"""What own tokens show of those of others."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from privkit.attacks.base import NoSession, NotApplicable, QueryResult
from privkit.attacks.inversion.sara import Sara
from privkit.attacks.order.drag_reorder import DragReorder
from privkit.attacks.order.jigsaw import Jigsaw
from privkit.attacks.order.own_tokens import own_row_share, own_tokens
from privkit.attacks.order.token_reading import Asker, match_own_tokens, same_tokens, token_scale
from privkit.attacks.patches import Geometry
from privkit.attacks.query_rules import QueryRules
from privkit.defenses.batch_shuffle import BatchShuffle
from privkit.wire.channel import CountingSession, Queries, black_box_query
from tests.attacks.order.puzzles import (
    AUXILIARY,
    BATCH,
    VICTIMS,
    Projected,
    T,
    clients,
    in_full,
    passing,
    pixels,
    projected,
    run,
    scene,
    several_messages,
    shuffled,
)
from tests.attacks.sessions import Killed, Session
from tests.attacks.victims import answering, crops

QUICK: list[Any] = [Jigsaw(epochs=1, kicks=1), DragReorder(epochs=1)]


def blurred(images: Tensor) -> Tensor:
    """Each token is the mean of those around it."""
    maps = projected(images).transpose(1, 2).unflatten(2, (4, 4))
    return torch.nn.functional.avg_pool2d(maps, 3, 1, 1).flatten(2).transpose(1, 2)


def halved(images: Tensor) -> Tensor:
    """Half of the tokens are zeros."""
    return projected(images) * torch.arange(2.0).repeat(T // 2).unsqueeze(1)


def moved(images: Tensor) -> Tensor:
    """All images in one other order."""
    return projected(images)[:, torch.randperm(T, generator=Generator().manual_seed(3))]


def crowded(images: Tensor) -> Tensor:
    """Tokens that depend on all patches of their image, as behind a block of a transformer."""
    tokens = projected(images)
    return (tokens + tokens.mean(1, keepdim=True)).tanh()


def geometry_of(lower: Any) -> Geometry:
    return Geometry.of(lower(VICTIMS), (3, 32, 32))


def test_what_own_tokens_show_does_not_depend_on_whether_it_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do the ridge regression and the matching of own tokens on how much is looked at at once."""
    views, _, knowledge = scene(projected, keep=0.4)

    def learned() -> tuple[Tensor, ...]:
        known = replace(knowledge, views=views, auxiliary=AUXILIARY[:40])
        solver, _, _ = Jigsaw(epochs=1, kicks=2).learn(known, Generator().manual_seed(0), NoSession())
        assert solver.network is not None
        assert solver.members is not None
        weights = [*solver.network.parameters(), *solver.members.parameters()]
        return solver.decoder.decode.weight, *(weight.detach() for weight in weights)

    whole = learned()
    monkeypatch.setattr("privkit.attacks.order.piece_solver.TABLE_NUMBERS", 0)
    monkeypatch.setattr("privkit.attacks.order.token_reading.FITTED_NUMBERS", 1_000)
    for part, all_ in zip(learned(), whole, strict=True):
        torch.testing.assert_close(part, all_, rtol=1e-2, atol=1e-2)


def test_holds_no_more_own_tokens_than_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    views, _, knowledge = scene()
    monkeypatch.setattr("privkit.attacks.order.own_tokens.OWN_NUMBERS", 50 * T * (192 + 192))
    few, all_ = (
        run(Jigsaw(epochs=1, kicks=1), views, replace(knowledge, auxiliary=x)) for x in (AUXILIARY[:50], AUXILIARY)
    )
    assert torch.equal(few.images, all_.images)
    monkeypatch.setattr("privkit.attacks.order.own_tokens.MATCHED_TOKENS", BATCH * T - 1)
    with pytest.raises(NotApplicable, match="may be 79, but a message has 80"):
        run(Jigsaw(epochs=0), views, knowledge)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("keep", [0.4, 1.0])
def test_tokens_that_are_all_alike_do_not_look_mixed(keep: float) -> None:
    """Half of each image's patches are black: only the others can tell whether tokens leave their rows."""
    dark, draws = torch.rand(440, 1, 4, 4, generator=Generator().manual_seed(5)) < 0.5, Generator().manual_seed(0)
    images = crops(440, seed=2) * dark.repeat_interleave(8, 2).repeat_interleave(8, 3)
    released = torch.stack([shuffled(part, draws, pixels, keep)[0] for part in images.split(BATCH)])
    _, share, _ = match_own_tokens(released, pixels(images).unflatten(0, (-1, BATCH)))
    assert own_row_share(share, BATCH) == pytest.approx(int(keep * T) / T, abs=0.05)


@pytest.mark.parametrize(("keep", "lower"), [(1.0, pixels), (0.4, pixels), (0.4, projected)])
def test_own_tokens_are_found_again(keep: float, lower: Any) -> None:
    draws, images = Generator().manual_seed(4), crops(220, seed=2)
    released = torch.stack([shuffled(part, draws, lower, keep)[0] for part in images.split(BATCH)])
    own, share, _ = match_own_tokens(released, pixels(images).unflatten(0, (-1, BATCH)))
    same = (own - lower(images).unflatten(0, (-1, BATCH))).abs().amax(3) < 1e-4
    assert same.double().mean() > 0.97
    assert own_row_share(share, BATCH) == pytest.approx(int(keep * T) / T, abs=0.05)


def test_a_channel_that_is_the_same_in_all_tokens_hides_nothing() -> None:
    """Its spread is rounding alone, and division by it would drown all other channels."""
    images = crops(110, seed=2)
    sent = torch.cat([projected(images), torch.full((110, T, 1), 0.7)], 2)
    _, _, placed = match_own_tokens(*(x.unflatten(0, (-1, BATCH)) for x in (sent, pixels(images))))
    assert placed > 0.97


@pytest.mark.parametrize("lower", [blurred, halved, moved])
def test_tokens_that_match_no_patch_well_stay_in_their_places(lower: Any) -> None:
    """What comes back in the same places each time has one order, which all images tell together."""
    views, _, knowledge = scene(lower)
    known = replace(knowledge, query=answering(lambda images, draws: lower(images)))
    own = own_tokens(views[0], known, geometry_of(lower), Generator().manual_seed(0), 100)
    assert own.in_order == (lower is not moved)
    assert own.keep == 1
    expected = projected(AUXILIARY) if lower is moved else lower(AUXILIARY)
    assert (own.tokens - expected).abs().lt(1e-4).double().mean() > 0.99


@pytest.mark.parametrize("sigma", [0.3, 1.0])
@pytest.mark.parametrize("keep", [0.4, 1.0])
def test_noise_does_not_make_a_shuffle_look_mixed_and_is_learned_with(keep: float, sigma: float) -> None:
    """Noisy tokens are hard to match one by one; all tokens together tell the share and the noise."""
    std = sigma * float(projected(AUXILIARY).std())

    def noisy(images: Tensor, draws: Generator) -> Tensor:
        sent = shuffled(images, draws, projected, keep)[0]
        return sent + std * torch.randn(sent.shape, generator=draws)

    views, _, knowledge = scene(projected, keep)
    known = replace(knowledge, query=answering(noisy), lower=Projected())
    own = own_tokens(views[0], known, geometry_of(projected), Generator().manual_seed(0), 100)
    assert own.keep == pytest.approx(int(keep * T) / T, abs=0.13)
    assert (own.tokens - projected(AUXILIARY)).std() == pytest.approx(std, rel=0.15)


@pytest.mark.parametrize("lower", [None, Projected()])
@pytest.mark.parametrize("sigma", [0.1, 1.0])
def test_noisy_tokens_in_their_places_stay_there(sigma: float, lower: Any) -> None:
    std = sigma * float(projected(AUXILIARY).std())
    query = answering(lambda images, draws: projected(images) + std * torch.randn(len(images), T, 64, generator=draws))
    views, _, knowledge = scene(projected)
    known = replace(knowledge, query=query, lower=lower)
    own = own_tokens(views[0], known, geometry_of(projected), Generator().manual_seed(0), 100)
    assert own.in_order
    assert (own.tokens - projected(AUXILIARY)).std() == pytest.approx(std, rel=0.15)


@pytest.mark.parametrize(("keep", "lower"), [(1.0, projected), (0.4, pixels), (0.4, crowded)])
def test_queries_read_own_tokens_in_order(keep: float, lower: Any) -> None:
    """Behind a shuffle over the message as well, and if a token depends on its image's other tokens."""
    views, _, knowledge = scene(lower, keep)
    own = own_tokens(views[0], knowledge, geometry_of(lower), Generator().manual_seed(0), 100)
    assert ((own.tokens - lower(AUXILIARY[: len(own.tokens)])).abs().amax(2) < 1e-4).double().mean() > 0.95
    assert own.keep == pytest.approx(int(keep * T) / T, abs=0.05)
    assert not own.in_order


def test_copies_may_be_forbidden_where_tokens_hide_their_places() -> None:
    """An image with its patches in other places gives the same tokens, and is not a copy."""
    knowledge = scene(crowded, 0.4)[2]
    ask, seen = knowledge.query, []
    assert ask is not None

    def query(images: Tensor, draws: Generator) -> QueryResult:
        seen.append(len(images.unique(dim=0)))
        return ask(images, draws)

    asker = Asker(query, BATCH, Generator().manual_seed(0), geometry_of(crowded), QueryRules(copies=False))
    rows, alike = asker.unmixed(AUXILIARY[:9], token_scale(crowded(AUXILIARY)))
    assert alike.all()
    assert same_tokens(rows, crowded(AUXILIARY[:9])).all()
    assert seen == 9 * [BATCH]


def test_one_round_at_a_time_reads_what_all_show() -> None:
    """Bit by bit, and the last round is filled up."""
    query, read = several_messages(scene(crowded, 0.4)[2], 2).query, AUXILIARY[:9]
    assert query is not None
    askers = [Asker(query, 2 * BATCH, Generator().manual_seed(0), geometry_of(crowded), QueryRules()) for _ in "ab"]
    once = [asker.round(AUXILIARY[: 2 * BATCH]) for asker in askers]
    rows, alike = askers[0].unmixed(read, token_scale(once[0]))
    assert alike.all()
    sent = torch.cat([read, read[-1:]]).repeat_interleave(BATCH, 0).split(2 * BATCH)
    messages = torch.cat([askers[1].round(part).unflatten(0, (2, -1)).flatten(1, 2) for part in sent])
    for tokens, message in zip(rows, messages, strict=False):
        assert torch.equal(tokens.unique(dim=0), message.unique(dim=0))


def test_copies_pass_the_clients_once_and_read_the_same() -> None:
    """All bits, and the generator goes on where it would; 102 rounds, the first four of copies in full, too."""
    edge = clients(Projected(), BatchShuffle(keep=0.4))
    views, _, knowledge = scene(projected, 0.4)

    def read(query: Any) -> tuple[Any, ...]:
        draws = Generator().manual_seed(0)
        own = own_tokens(views[0], replace(knowledge, query=query), geometry_of(projected), draws, 100, passes=2)
        return own.tokens, own.patches, torch.tensor(own.keep), draws.get_state()

    wanted, passed = read(in_full(edge)), passing(edge)
    assert all(torch.equal(*pair) for pair in zip(read(black_box_query(edge)), wanted, strict=True))
    assert sum(passed) == 100 + (4 + 2) * BATCH


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("attack", [*QUICK, Sara(predictor_epochs=1, epochs=1)])
def test_queries_of_a_killed_attack_count_once(attack: Any) -> None:
    """It reads its own tokens again; where so many rounds are just allowed, it still ends."""
    views, _, knowledge = scene(projected)
    ask = knowledge.query
    assert ask is not None

    def attacked(session: Session, rounds: int | None = None) -> int:
        queries = Queries(ask, QueryRules(rounds=rounds))
        held = replace(knowledge, views=views, query=queries, rules=QueryRules(rounds=rounds))
        attack.run(held, Generator().manual_seed(0), CountingSession(session, queries))
        return queries.rounds

    straight, killed = attacked(Session()), Session(dies_after=1, at="save")
    with pytest.raises(Killed):
        attacked(killed, straight)
    assert attacked(Session(state=killed.state), straight) == straight


@pytest.mark.parametrize("attack", QUICK)
def test_a_round_that_is_filled_up_holds_no_copy_where_they_are_forbidden(attack: Any) -> None:
    """Rounds of more images than labels need, as with many clients."""
    views, _, knowledge = scene(projected)
    ask, rules = knowledge.query, QueryRules(copies=False)
    assert ask is not None
    held = replace(knowledge, views=views, batch_size=55, query=Queries(ask, rules), rules=rules)
    assert run(attack, views, held).images.shape == (10, 3, 32, 32)


def test_the_lower_segment_is_enough_if_few_queries_are_allowed() -> None:
    """One round shows what a shuffle keeps as two do; without any, all is taken to stay."""
    views, _, knowledge = scene(projected, 0.4)
    ask, kept = knowledge.query, []
    assert ask is not None
    for rounds in (0, 1, 2, None):
        rules = QueryRules(rounds=rounds)
        held = replace(knowledge, lower=Projected(), rules=rules, query=Queries(ask, rules))
        kept.append(own_tokens(views[0], held, geometry_of(projected), Generator().manual_seed(0), 100).keep)
    assert kept[0] == 1.0
    assert kept[1:] == pytest.approx(3 * [int(0.4 * T) / T], abs=0.1)


def test_says_that_tokens_cannot_be_read() -> None:
    """If noise beside the shuffle hides them."""
    views, _, knowledge = scene(pixels, 0.4)

    def drowned(images: Tensor, draws: Generator) -> Tensor:
        tokens = shuffled(images, draws, pixels, 0.4)[0]
        return tokens + torch.randn(tokens.shape, generator=draws)

    noisy = answering(drowned)
    with pytest.raises(NotApplicable, match="sent twice gave different tokens"):
        run(Jigsaw(epochs=0), views, replace(knowledge, query=noisy))
