"""FORA, PCAT and SDAR on rows that hold several records: what the coins say of each, they solve for."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Generator

from privkit.attacks.base import NotApplicable
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.inversion.fora import FORA
from privkit.attacks.inversion.linear_mixtures import Unmixed
from privkit.attacks.inversion.pcat import PCAT
from privkit.attacks.inversion.sdar import SDAR
from privkit.defenses.base import Defense
from privkit.defenses.cutmix import Mixup, RandomCutMix
from privkit.training import Clients, SplitProtocol
from privkit.wire.channel import RecordedRounds, record_rounds
from tests.attacks.inversion.passive import split, trained
from tests.attacks.sessions import Killed, Session
from tests.small import IMAGES, digits

CLIENTS, BATCH = 5, 10
VICTIMS = digits(1_797)[:100]
FLOOR = (split()[2].mean(0) - VICTIMS.x).square().mean().item()
ATTACKS: list[Any] = [FORA(epochs=2, width=4), PCAT(epochs=2, width=4), SDAR(epochs=2, width=4)]


@cache
def seen(defense: Defense, passes: int) -> tuple[RecordedRounds, ImageObservation]:
    """Two rounds of victims, and a server with labeled images of its own."""
    lower, upper = trained("tokens")
    edge = Clients.build(lower, defense, IMAGES, classes=10, seed=0, protocol=SplitProtocol(clients=CLIENTS))
    recording = record_rounds(edge, VICTIMS, batch_size=BATCH, seed=0, passes=passes)
    return recording, ImageObservation(
        image_shape=(1, 8, 8),
        batch_size=CLIENTS * BATCH,
        views=recording.views,
        auxiliary=split()[2][:600],
        auxiliary_labels=split()[3][:600],
        upper=upper,
    )


def error(attack: Any, recording: RecordedRounds, observation: ImageObservation) -> float:
    guess = attack.run(observation, Generator().manual_seed(0)).images
    victims = recording.members[: len(guess)]
    return (guess[victims >= 0] - VICTIMS.x[victims[victims >= 0]]).square().mean().item()


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack", [FORA(epochs=8, passes=8), PCAT(epochs=8, passes=8), SDAR(epochs=20, passes=8)], ids=str
)
def test_wins_where_passes_determine_the_records_and_fails_on_noise(attack: Any) -> None:
    recording, observation = seen(RandomCutMix(), 8)
    assert error(attack, recording, observation) < 0.67 * FLOOR
    draws = Generator().manual_seed(0)
    noise = [
        replace(view, smashed=torch.rand(view.smashed.shape, generator=draws), labels=None)
        for view in observation.views
    ]
    assert error(replace(attack, epochs=2), recording, replace(observation, views=noise)) > 0.97 * FLOOR


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_deterministic_and_resumed_bit_for_bit(attack: Any) -> None:
    _, observation = seen(RandomCutMix(), 1)
    first = attack.run(observation, Generator().manual_seed(0))
    killed = Session(dies_after=1)
    with pytest.raises(Killed):
        attack.run(observation, Generator().manual_seed(0), killed)
    resumed = attack.run(observation, Generator().manual_seed(0), Session(state=killed.state))
    assert torch.equal(first.images, resumed.images)
    assert first.curve == resumed.curve


@pytest.mark.parametrize("passes", [1, 2, 8])
@pytest.mark.parametrize("defense", [RandomCutMix(), Mixup(group=3)], ids=lambda defense: defense.name)
def test_own_rows_are_treated_as_the_recorded_ones_were(defense: Defense, passes: int) -> None:
    """The victims' own smashed data, imitated, are what was solved: with cells open, and with all determined."""
    views = seen(defense, passes)[1].views
    unmixed = Unmixed.of([view for view in views if view.round % 2 == 0], passes)
    with torch.no_grad():
        truth = trained("tokens")[0](VICTIMS.x[: CLIENTS * BATCH])
    again = unmixed.imitate(truth, Generator().manual_seed(0))
    torch.testing.assert_close(again, unmixed.rows, rtol=0, atol=0.02)
    assert torch.allclose(unmixed.rows, truth, atol=0.02) == (passes == 8)


@pytest.mark.parametrize("sigma", [0.0, 0.3])
def test_noise_is_what_the_passes_contradict_each_other_by(sigma: float) -> None:
    draws = Generator().manual_seed(0)
    views = [
        replace(view, smashed=view.smashed + sigma * torch.randn(view.smashed.shape, generator=draws))
        for view in seen(RandomCutMix(), 8)[1].views
    ]
    assert Unmixed.of(views, 8).noise == pytest.approx(sigma, rel=0.03, abs=1e-4)
    assert Unmixed.of(views[:2], 1).noise == 0


def test_mixed_labels_are_solved_where_passes_determine_them() -> None:
    views = seen(RandomCutMix(), 8)[1].views
    labels = Unmixed.of(views, 8).labels
    assert labels is not None
    assert torch.equal(labels, VICTIMS.y)
    assert Unmixed.of(views[:2], 1).labels is None


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_hidden_coins_are_refused(attack: Any) -> None:
    _, observation = seen(RandomCutMix(), 1)
    hidden = [replace(view, weights=None, clients=None) for view in observation.views]
    with pytest.raises(NotApplicable, match="published=true"):
        attack.run(replace(observation, views=hidden), Generator())
