"""The white box on mixed and masked releases."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Generator, nn

from privkit.attacks.base import NotApplicable, View
from privkit.attacks.goals.reconstruct import Reconstruction
from privkit.attacks.inversion.known_lower import mixed_release
from privkit.attacks.inversion.rounds import averaged
from privkit.attacks.inversion.white_box import WhiteBox
from privkit.defenses.base import Defense
from privkit.defenses.cutmix import Mixup, RandomCutMix
from privkit.defenses.dp_cutmixsl import DpMixSl
from privkit.wire.channel import record_rounds, shared_lower
from tests.attacks.inversion import mixing
from tests.attacks.inversion.cells import FLOOR, VICTIMS, Cells, drawn, error, known
from tests.attacks.sessions import Killed, Session


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("cells", [1, 36])
def test_members_of_a_mixed_release_are_told_apart(cells: int) -> None:
    lower = drawn(lambda: nn.Conv2d(1, 6, 3))
    draws = Generator().manual_seed(3)
    share = torch.rand(10, 1, cells, generator=draws)
    share = (share > 0.5).float() if cells > 1 else share
    share = torch.cat([share, 1 - share], 1)
    with torch.no_grad():
        smashed = mixed_release(lower(VICTIMS), 2, share)
        apart = lower(VICTIMS).unflatten(0, (10, 2))
    weights = share.view(10, 2, 1, 6, 6) if cells > 1 else share.view(10, 2, 1, 1, 1)
    torch.testing.assert_close(smashed, (apart * weights).sum(1))  # by hand
    view = View(round=0, smashed=smashed, mixed=2, weights=share)
    guess = WhiteBox().run(replace(known(lower, None), views=[view]), Generator().manual_seed(0))
    assert error(guess) < (0.9 if cells == 1 else 0.5) * FLOOR
    with pytest.raises(NotApplicable, match="hidden weights"):
        WhiteBox().run(replace(known(lower, None), views=[replace(view, weights=None)]), Generator())


def test_masked_releases_are_matched_where_they_are_seen() -> None:
    lower = Cells()
    share = (torch.rand(20, 1, 16, generator=Generator().manual_seed(4)) > 0.5).float()
    with torch.no_grad():
        view = View(round=0, smashed=lower(VICTIMS) * share.transpose(1, 2), weights=share)
    guess = WhiteBox(order="known").run(replace(known(lower, None), views=[view]), Generator().manual_seed(0))
    seen = share.view(20, 1, 4, 4).repeat_interleave(2, 2).repeat_interleave(2, 3).bool().expand_as(VICTIMS)
    assert (guess.images - VICTIMS)[seen].square().mean() < 0.05 * FLOOR


def test_masked_rounds_of_the_same_victims_show_every_cell() -> None:
    lower, draws = Cells(), Generator().manual_seed(4)
    rounds = []
    for number in range(4):
        share = (torch.rand(20, 1, 16, generator=draws) > 0.5).float()
        with torch.no_grad():
            rounds.append(View(round=number, smashed=lower(VICTIMS) * share.transpose(1, 2), weights=share))
    found = averaged(rounds)
    assert found.weights is not None
    assert torch.equal(found.weights, torch.stack([x.weights for x in rounds if x.weights is not None]).amax(0))
    attack = WhiteBox(order="known", passes=4)
    guess = attack.run(replace(known(lower, None), views=rounds), Generator().manual_seed(0)).images[:20]
    once = replace(known(lower, None), views=rounds[:1])
    plainly = replace(attack, passes=1).run(once, Generator().manual_seed(0)).images
    assert (guess - VICTIMS).square().mean() < 0.4 * (plainly - VICTIMS).square().mean()
    with pytest.raises(NotApplicable, match="not after reordering tokens"):
        averaged(rounds, align=True)


def linked(defense: Defense, attack: WhiteBox, session: Any = None) -> tuple[Reconstruction, float]:
    """The attack on one round that crossed several times, and its error over the mean image's."""
    edge, victims = mixing.clients(defense), mixing.VICTIMS[: mixing.CLIENTS * mixing.BATCH]
    recorded = record_rounds(edge, victims, batch_size=mixing.BATCH, seed=1, passes=attack.passes)
    held = replace(mixing.seen(edge, recorded.views), lower=shared_lower(edge))
    found = attack.run(held, Generator().manual_seed(0), session)
    members = recorded.members[: len(found.images)]
    wrong = (found.images - victims.x[members])[members >= 0].square().mean().item()
    return found, wrong / (mixing.OWN.x.mean(0) - victims.x).square().mean().item()


@pytest.mark.slow
@pytest.mark.parametrize("defense", [RandomCutMix(), Mixup(group=3)], ids=repr)
def test_one_guess_at_each_image_explains_all_passes(defense: Defense) -> None:
    attack = WhiteBox(passes=6, total_variation=0.003, l2=0.0)
    assert linked(defense, attack)[1] < 0.1
    assert linked(defense, replace(attack, passes=1))[1] > 0.3


@pytest.mark.slow
def test_linked_passes_choose_priors_and_go_on_after_a_kill() -> None:
    attack = WhiteBox(passes=4, epochs=1, parallel=10, restarts=2, total_variation=0.003, l2=0.0)
    defense = DpMixSl(sigma=0.5, sigma_labels=None, bound=None)
    whole, error = linked(defense, attack)
    assert linked(defense, WhiteBox(passes=4, epochs=1))[1] < error
    session = Session(dies_after=2)
    with pytest.raises(Killed):
        linked(defense, attack, session)
    assert torch.equal(linked(defense, attack, Session(state=session.state))[0].images, whole.images)


def test_linked_passes_under_much_noise_are_at_the_floor() -> None:
    assert linked(DpMixSl(sigma=300, sigma_labels=None, bound=None), WhiteBox(passes=4, epochs=1))[1] > 0.97


def test_hidden_coins_link_nothing() -> None:
    with pytest.raises(NotApplicable, match="hidden weights"):
        linked(Mixup(published=False), WhiteBox(passes=2))
