"""Union of passes: every token that recurs finds its record, strangers do not, and noise is refused."""

from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Generator

from privkit.attacks.assign import take
from privkit.attacks.base import NotApplicable, View
from privkit.attacks.goals.reconstruct import Reconstruction
from privkit.attacks.inversion.black_box import BlackBox
from privkit.attacks.inversion.union import Union, collect
from privkit.attacks.order.dropped_places import _sets
from privkit.defenses.base import Defense
from privkit.defenses.cutmix import ShuffledCutMix
from privkit.defenses.fewer_tokens import TokenDropping
from privkit.defenses.noise import GaussianNoise
from privkit.wire.channel import record_rounds
from tests.attacks.inversion.mixing import BATCH, CLIENTS, FLOOR, VICTIMS, clients, passes, seen, smashed
from tests.attacks.sessions import Killed, Session
from tests.attacks.victims import answering


def run(defense: Defense, attack: Union | BlackBox, session: Any = None) -> Reconstruction:
    edge = clients(defense)
    return attack.run(seen(edge, passes(edge, attack.mounting.passes)), Generator().manual_seed(0), session)


def error(defense: Defense, result: Reconstruction) -> float:
    members = record_rounds(clients(defense), VICTIMS, batch_size=BATCH, seed=1).members
    return (result.images - VICTIMS.x[members])[members >= 0].square().mean().item()


@pytest.mark.parametrize("defense", [TokenDropping(), ShuffledCutMix(), ShuffledCutMix(group=3)], ids=repr)
def test_all_that_is_collected_is_the_records_own_and_little_is_missing(defense: Defense) -> None:
    edge = clients(defense)
    truth = smashed(edge)  # [R, T, D]
    rows = collect(passes(edge, 24)[::2]).rows(truth.shape[1])
    tokens, there = rows[..., :-1], rows[..., -1] > 0
    assert len(rows) == CLIENTS * BATCH
    assert there.double().mean() > 0.97
    apart = torch.cdist(tokens, truth).amin(2)
    assert apart[there].max() < 1e-4
    assert not tokens[~there].any()


def test_equal_tokens_of_one_row_are_as_many_tokens() -> None:
    once, again = (torch.tensor(row).view(1, -1, 1) for row in ([0.0, 1.0, 0.0], [0.0, 0.0, 0.0]))
    sets = collect([View(round=0, smashed=once), View(round=0, smashed=again)])
    assert sets.sizes.tolist() == [4]
    assert sets.rows(4)[0].tolist() == [[0.0, 1.0], [1.0, 1.0], [0.0, 1.0], [0.0, 1.0]]


def test_a_companions_token_is_left_out_however_often_it_comes() -> None:
    """Two records share both rows, and a third sits with the first alone in the last pass."""
    first, second, third = torch.tensor([[1.0]]), torch.tensor([[2.0]]), torch.tensor([[3.0]])
    seats = [torch.tensor([[0, 1]]), torch.tensor([[0, 1]]), torch.tensor([[0, 2]])]
    crossed = [torch.cat([first, second]), torch.cat([second, first]), torch.cat([third, first])]
    same = [
        View(round=0, smashed=tokens.unsqueeze(0), mixed=2, clients=who)
        for tokens, who in zip(crossed, seats, strict=True)
    ]
    rows = collect(same).rows(2)
    assert rows[0].tolist() == [[1.0, 1.0], [0.0, 0.0]]  # its own; the second's could be the first's as well
    assert not rows[1:].any()  # the others never sat without the first


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("defense", [ShuffledCutMix(), TokenDropping()], ids=repr)
def test_several_passes_show_what_one_does_not(defense: Defense) -> None:
    attack = Union(epochs=16)
    assert error(defense, run(defense, attack)) < 0.8 * FLOOR


@pytest.mark.parametrize("shared", [0.0, 1_000.0])
def test_what_all_tokens_share_does_not_make_them_equal(shared: float) -> None:
    """Squared distances in float32 are differences of large numbers."""
    draws = Generator().manual_seed(0)
    tokens, views = shared + torch.randn(6, 16, 64, generator=draws), []
    for _ in range(8):
        kept = torch.rand(6, 16, generator=draws).argsort(1)[:, :12].sort(1).values
        views.append(View(round=0, smashed=take(tokens, kept)))
    assert collect(views).sizes.tolist() == [16] * 6
    answers = cycle(views)
    found, sizes = _sets(answering(lambda images, draws: next(answers).smashed), tokens, draws)
    assert sizes.tolist() == [16] * 6
    assert torch.equal(found, tokens)


def test_noise_is_refused_since_no_token_comes_back() -> None:
    with pytest.raises(NotApplicable, match="100 % of own tokens changed: noise was added"):
        run(GaussianNoise(sigma=0.1, clip=None), Union(epochs=1))


def test_goes_on_after_a_kill_bit_for_bit() -> None:
    attack = Union(epochs=2, passes=4)
    whole = run(TokenDropping(), attack)
    session = Session(dies_after=1)
    with pytest.raises(Killed):
        run(TokenDropping(), attack, session)
    resumed = run(TokenDropping(), attack, Session(state=session.state))
    assert torch.equal(resumed.images, whole.images)
    assert "% of the attacked records' tokens were collected" in whole.note
