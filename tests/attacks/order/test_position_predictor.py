"""Published attacks that predict each token's place from that token alone: DRAG's reorder step, and SARA."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Generator, Tensor, nn

from privkit.attacks.base import NotApplicable, View
from privkit.attacks.goals.reconstruct import ImageObservation, Reconstruction
from privkit.attacks.inversion import sara
from privkit.attacks.inversion.sara import _COMPLETION_WEIGHT, Sara, completion_loss
from privkit.attacks.order.drag_reorder import DragReorder, Predicted, reordered
from privkit.attacks.order.own_tokens import OwnTokens
from privkit.attacks.order.piece_solver import PieceDecoder, put
from privkit.attacks.patches import Geometry, patchify, unpatchify
from privkit.attacks.scores.order import direct_accuracy
from tests.attacks.sessions import Killed, Session

SHAPE, T, BATCH = (1, 16, 16), 16, 5


class Pixels(torch.nn.Module):
    """The identity as a lower segment."""

    def forward(self, images: Tensor) -> Tensor:
        return patchify(images, 4)


def lit(count: int, seed: int) -> Tensor:
    """Images of one scene, under a texture that differs from image to image: each patch tells its place."""
    place = torch.rand(1, *SHAPE, generator=Generator().manual_seed(9))
    return 0.8 * place + 0.2 * torch.rand(count, *SHAPE, generator=Generator().manual_seed(seed))


VICTIMS, OWN = lit(10, 0), lit(120, 1)


def seen(tokens: Tensor) -> tuple[ImageObservation, Tensor]:
    """Victims' tokens [N, T, D] under a shuffle, and the places that they came from."""
    source = torch.rand(len(tokens), T, generator=Generator().manual_seed(2)).argsort(1)
    smashed = tokens.gather(1, source.unsqueeze(2).expand_as(tokens))
    view = View(round=0, smashed=smashed, messages=2)
    observation = ImageObservation(image_shape=SHAPE, batch_size=BATCH, auxiliary=OWN, lower=Pixels(), views=[view])
    return observation, source + T * (torch.arange(len(tokens)) % BATCH).unsqueeze(1)


def guess(found: Reconstruction) -> Tensor:
    assert found.permutation is not None
    return found.permutation.source


def test_wins_where_a_token_tells_its_place_and_not_on_noise() -> None:
    observation, truth = seen(patchify(VICTIMS, 4))
    attack = DragReorder(epochs=40)
    found = attack.run(observation, Generator().manual_seed(0))
    assert direct_accuracy(guess(found), truth, batch=BATCH).mean() > 0.95
    assert (found.images - VICTIMS).abs().mean() < 0.02
    noise, truth = seen(torch.rand(10, T, 16, generator=Generator().manual_seed(3)))
    assert direct_accuracy(guess(attack.run(noise, Generator().manual_seed(0))), truth, batch=BATCH).mean() < 0.2


@pytest.mark.slow
def test_sara_completes_missing_tokens_in_the_places_that_are_left() -> None:
    tokens = patchify(VICTIMS, 4)
    tokens[:, 3:6] = 0
    observation, truth = seen(tokens)
    found = Sara(predictor_epochs=60, epochs=20).run(observation, Generator().manual_seed(0))
    assert torch.equal(guess(found).view(2, -1).sort(1).values, torch.arange(BATCH * T).expand(2, -1))
    present = (observation.views[0].smashed != 0).any(2)
    assert (guess(found) == truth)[present].double().mean() > 0.95
    flat = (VICTIMS.mean() - VICTIMS).square().mean()
    assert (found.images - VICTIMS).square().mean() < 0.4 * flat
    assert patchify(found.images - VICTIMS, 4)[:, 3:6].abs().mean() < 0.25  # black would be 0.5 away


class Shown(nn.Module):
    """In place of Sara's networks: cells that are absent are white, the others black."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__()

    def forward(self, tokens: Tensor, absent: Tensor) -> tuple[Tensor, Tensor]:
        cells = absent.float().unsqueeze(2).expand(-1, -1, 16)
        return tokens + 1, unpatchify(cells, 4, SHAPE)


def test_sara_is_told_which_tokens_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sara, "Completion", Shown)
    tokens = patchify(VICTIMS, 4)
    tokens[:, 3:6] = 0
    observation, _ = seen(tokens)
    found = Sara(predictor_epochs=0, epochs=0).run(observation, Generator())
    placed = put(observation.views[0].smashed, guess(found), BATCH)
    assert torch.equal(patchify(found.images, 4)[:, :, 0] == 1, (placed == 0).all(2))


def test_completion_is_judged_by_images_and_by_what_was_masked() -> None:
    """`Shown` completes each token with an error of 1 in all numbers of one row, and of 3 in those of the other."""
    own = OwnTokens(tokens=patchify(OWN[:2], 4), patches=patchify(OWN[:2], 4), keep=1.0, in_order=False)
    decoder = PieceDecoder.fitted(own.tokens, own.patches, Geometry.of(own.tokens, SHAPE))
    learned = Predicted(own=own, decoder=decoder, predictor=nn.Identity())
    absent = torch.zeros(2, T, dtype=torch.bool)
    absent[0, :4] = absent[1, 0] = True
    predicted = own.tokens.clone()
    predicted[1] += 2 * decoder.scale
    shown: Any = Shown(decoder.geometry)
    loss = completion_loss(shown, learned, predicted, torch.arange(2), absent)
    drawn = (OWN[:2] - shown(own.tokens, absent)[1]).square().mean()
    torch.testing.assert_close(loss, drawn + _COMPLETION_WEIGHT * (4 * 1 + 1 * 9) / 5)


def test_the_order_is_scipys_assignment_of_log_probabilities() -> None:
    """DRAG's released step, image by image, where present tokens choose among all places."""
    logits = 3 * torch.randn(6, 9, 9, generator=Generator().manual_seed(0))
    absent = torch.rand(6, 9, generator=Generator().manual_seed(1)) < 0.3
    found = reordered(logits, absent)
    for scores, gone, places in zip(logits, absent, found, strict=True):
        table = scores.log_softmax(1)[~gone].numpy()
        rows, columns = linear_sum_assignment(table, maximize=True)
        assert np.array_equal(places[~gone][rows].numpy(), columns)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("dies_after", [3, 1])
def test_goes_on_after_a_kill_bit_for_bit(dies_after: int) -> None:
    observation, _ = seen(patchify(VICTIMS, 4))
    attack, killed = Sara(predictor_epochs=2, epochs=2), Session(dies_after, at="save")
    with pytest.raises(Killed):
        attack.run(observation, Generator().manual_seed(0), killed)
    straight = attack.run(observation, Generator().manual_seed(0))
    went_on = Session(state=killed.state)
    resumed = attack.run(observation, Generator().manual_seed(0), went_on)
    assert torch.equal(resumed.images, straight.images)
    assert [report[:2] for report in went_on.reports] == [(done, 4) for done in range(1 + dies_after, 5)]


@pytest.mark.parametrize("attack", [DragReorder(), Sara(epochs=1)], ids=lambda attack: attack.name)
def test_says_what_it_lacks(attack: Any) -> None:
    observation, _ = seen(patchify(VICTIMS, 4))
    with pytest.raises(NotApplicable, match=f"{attack.name} needs auxiliary images, and the lower segment or a query"):
        attack.run(replace(observation, lower=None), Generator().manual_seed(0))
    mixed = replace(observation, views=[replace(observation.views[0], mixed=2)])
    with pytest.raises(NotApplicable, match=f"{attack.name} puts whole tokens into their places"):
        attack.run(mixed, Generator().manual_seed(0))
