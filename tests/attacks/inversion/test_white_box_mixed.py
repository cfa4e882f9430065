"""The white box on mixed and masked releases."""

from dataclasses import replace

import pytest
import torch
from torch import Generator, nn

from privkit.attacks.base import NotApplicable, View
from privkit.attacks.inversion.known_lower import mix
from privkit.attacks.inversion.rounds import averaged
from privkit.attacks.inversion.white_box import WhiteBox
from tests.attacks.inversion.cells import FLOOR, VICTIMS, Cells, drawn, error, known


@pytest.mark.parametrize("cells", [1, 36])
def test_members_of_a_mixed_release_are_told_apart(cells: int) -> None:
    lower = drawn(lambda: nn.Conv2d(1, 6, 3))
    draws = Generator().manual_seed(3)
    share = torch.rand(10, 1, cells, generator=draws)
    share = (share > 0.5).float() if cells > 1 else share
    share = torch.cat([share, 1 - share], 1)
    with torch.no_grad():
        smashed = mix(lower(VICTIMS), 2, share)
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
    attack = WhiteBox(order="known", same_victims=True)
    guess = attack.run(replace(known(lower, None), views=rounds), Generator().manual_seed(0)).images[:20]
    plainly = attack.run(replace(known(lower, None), views=rounds[:1]), Generator().manual_seed(0)).images
    assert (guess - VICTIMS).square().mean() < 0.4 * (plainly - VICTIMS).square().mean()
    with pytest.raises(NotApplicable, match="in another order"):
        averaged(rounds, align=True)
    with pytest.raises(NotApplicable, match="unmixed"):
        averaged([replace(view, mixed=2) for view in rounds])
