"""Releases are counted, and each is charged."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from privkit.defenses.none import NoDefense
from privkit.domains.partition import ClientPartition, Iid
from privkit.training import SplitProtocol, TrainingSpec, train
from privkit.training.loop import release_count
from privkit.training.round import Round, split_round
from privkit.wire.channel import record_rounds
from tests.small import built, digits


def test_exposure_counts_releases() -> None:
    edge, _ = built(NoDefense(), SplitProtocol(clients=3))
    shares = ClientPartition(rows=torch.arange(120).view(3, 40), sizes=torch.full((3,), 40))
    spec = TrainingSpec(batch_size=10)
    found = release_count(edge, spec, shares, epochs=5)
    assert (found.rounds, found.epochs, found.batch_size, found.lower_model) == (20, 5, 10, "trained")
    averaged, _ = built(NoDefense(), SplitProtocol(clients=3, average="round"))
    assert release_count(averaged, spec, shares, epochs=5).lower_model == "averaged"
    turns, _ = built(NoDefense(), SplitProtocol(clients=3, lower="handed_on"))
    assert release_count(turns, spec, shares, epochs=5).lower_model == "averaged"


def test_passes_after_training_are_charged_for_all_that_they_send() -> None:
    """A pass is as many rounds as its images fill, of one client as of three."""
    spec, data = TrainingSpec(batch_size=10), digits(120)
    shares = ClientPartition(rows=torch.arange(120).view(3, 40), sizes=torch.full((3,), 40))
    edge, _ = built(NoDefense(), SplitProtocol(clients=3))
    after = release_count(edge, spec, shares, epochs=5, recorded=data[:60], passes=3)
    assert (after.rounds, after.epochs) == (5 * 4 + 3 * 2, 5 + 3)  # and not 5·4 + 3
    frozen = release_count(edge, replace(spec, freeze_lower=True), shares, epochs=5, recorded=data[:60])
    assert (frozen.lower_model, frozen.epochs) == ("frozen", 6)
    # Other images than the private ones are records of their own, but a trained segment tells of its client.
    others = release_count(edge, spec, shares, epochs=5, recorded=data[:60], passes=3, others=True)
    assert (others.rounds, others.epochs) == (26, 5)
    assert release_count(edge, spec, shares, epochs=1, recorded=data[:60], passes=3, others=True).epochs == 3


def test_images_that_a_small_client_repeats_are_charged_every_time() -> None:
    """A client of four images fills a batch of ten with three copies of some: what is charged is what was counted."""
    sizes, data = torch.tensor([4, 40, 40]), digits(84)
    starts = torch.tensor([0, 4, 44])
    shares = ClientPartition(rows=starts.unsqueeze(1) + torch.arange(40) % sizes.unsqueeze(1), sizes=sizes)
    edge, _ = built(NoDefense(), SplitProtocol(clients=3))
    victims = data[shares.rows[:, :10].flatten()]
    spec = TrainingSpec(batch_size=10, freeze_lower=True)
    charged = release_count(edge, spec, shares, epochs=2, recorded=victims, passes=2).epochs
    sent = record_rounds(edge, victims, batch_size=10, seed=0, passes=2)
    again = int(victims.ids[sent.members].bincount().max())
    assert again == 2 * 3  # and not 2
    assert charged == 2 * 5 + again  # two rounds per epoch: 20 places for 4 images


@pytest.mark.parametrize("sizes", [(10,), (10, 10), (10, 15)])
def test_images_that_no_client_holds_are_not_sent_and_lengthen_no_epoch(sizes: tuple[int, ...]) -> None:
    """Of 100 images the clients hold a few: what training sent of any image, and its rounds, are what is charged."""
    data, sent = digits(100), list[Tensor]()
    edge, upper = built(NoDefense(), SplitProtocol(clients=len(sizes)))
    shares = Iid(sizes=sizes).assign(data.y, len(sizes), 0)
    numbered = replace(data, y=torch.arange(100) % 10)

    def play(clients: Any, upper: Any, images: Tensor, labels: Tensor, draws: Any, **how: Any) -> Round:
        sent.append((images.flatten(0, 1)[:, None] == data.x[None]).flatten(2).all(2).int().argmax(1))
        return split_round(clients, upper, images, labels, draws, **how)

    spec = TrainingSpec(batch_size=5, freeze_lower=True)
    found = train(edge, upper, numbered, spec, epochs=2, seed=0, shares=shares, play=play).release_count
    often = torch.cat(sent).bincount(minlength=100)
    held = torch.cat([shares.of(client) for client in range(len(sizes))])
    assert set(often.nonzero().flatten().tolist()) <= set(held.tolist())
    assert (int(often.max()), len(sent)) == (found.epochs, found.rounds)
