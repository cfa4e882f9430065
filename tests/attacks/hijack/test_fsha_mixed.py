"""FSHA against clients whose rows are mixed: it reaches each member through the row's gradient."""

from dataclasses import replace

import pytest
import torch
from torch import Generator

from privkit.attacks.base import NotApplicable, TrainingClients, View
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.hijack.fsha import FSHA
from privkit.defenses.cutmix import RandomCutMix
from privkit.domains.partition import Iid
from privkit.models.vit import Vit
from privkit.training import Clients, SplitProtocol, TrainingSpec
from privkit.wire.channel import RecordedRounds, record_rounds
from privkit.wire.hijack import LiveClients
from tests.attacks.sessions import Killed, Session
from tests.small import IMAGES, digits

CLIENTS, BATCH = 5, 10
DIGITS = digits(1_797)
VICTIMS, PRIVATE, OWN = DIGITS[:100], DIGITS[:900], DIGITS[900:]
FLOOR = (OWN.x.mean(0) - VICTIMS.x).square().mean().item()
ONE = FSHA(epochs=1, width=2, blocks=1, passes=8)


def live(passes: int) -> tuple[LiveClients, RecordedRounds]:
    """Clients before their training, and what they release of the victims."""
    model = Vit(patch=2, width=16, depth=2, heads=2, cut="block1").build(IMAGES, 10, positions=True, seed=0)
    protocol = SplitProtocol(clients=CLIENTS)
    edge = Clients.build(model.lower, RandomCutMix(), IMAGES, classes=10, seed=0, protocol=protocol)
    spec, shares = TrainingSpec(batch_size=BATCH), Iid().assign(PRIVATE.y, CLIENTS, 0)
    clients = LiveClients(edge, PRIVATE, shares, spec, VICTIMS, 0, passes=passes)
    return clients, record_rounds(edge, VICTIMS, batch_size=BATCH, seed=0, passes=passes)


def seen(clients: TrainingClients, views: list[View]) -> ImageObservation:
    return ImageObservation(
        image_shape=(1, 8, 8), batch_size=CLIENTS * BATCH, views=views, auxiliary=OWN.x, clients=clients
    )


class Noise:
    """Clients whose mixed rows hold nothing, whatever they are taught."""

    def __init__(self, views: list[View]) -> None:
        self._views, self.done = views, 0

    def round(self, answer: object) -> None:
        assert callable(answer)
        answer(self._noise(self._views[self.done % len(self._views)], 100 + self.done))
        self.done += 1

    def views(self) -> list[View]:
        return [self._noise(view, seed) for seed, view in enumerate(self._views)]

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]

    @staticmethod
    def _noise(view: View, seed: int) -> View:
        return replace(view, smashed=torch.randn(view.smashed.shape, generator=Generator().manual_seed(seed)))


def error(attack: FSHA, clients: TrainingClients, recording: RecordedRounds) -> float:
    guess = attack.run(seen(clients, recording.views), Generator().manual_seed(0)).images
    victims = recording.members[: len(guess)]
    return (guess[victims >= 0] - VICTIMS.x[victims[victims >= 0]]).square().mean().item()


@pytest.mark.slow
def test_members_of_mixed_rows_are_led() -> None:
    attack = FSHA(epochs=3, width=8, blocks=1, learning_rate=3e-3, passes=8)
    assert error(attack, *live(8)) < 0.67 * FLOOR


@pytest.mark.usefixtures("ten")
def test_it_fails_on_noise() -> None:
    recording = live(8)[1]
    assert error(ONE, Noise(recording.views), recording) > 0.97 * FLOOR


@pytest.mark.usefixtures("ten")
@pytest.mark.slow
@pytest.mark.parametrize("passes", [2, 1])
def test_deterministic_and_resumed_bit_for_bit(passes: int) -> None:
    attack = replace(ONE, epochs=2, passes=passes)

    def attacked(session: Session | None = None) -> torch.Tensor:
        clients, recording = live(passes)
        return attack.run(seen(clients, recording.views), Generator().manual_seed(0), session).images

    first, killed = attacked(), Session(dies_after=1)
    with pytest.raises(Killed):
        attacked(killed)
    assert torch.equal(first, attacked())
    assert torch.equal(first, attacked(Session(state=killed.state)))


def test_hidden_coins_are_refused() -> None:
    clients, recording = live(1)
    hidden = [replace(view, weights=None, clients=None) for view in recording.views]
    with pytest.raises(NotApplicable, match="published=true"):
        replace(ONE, passes=1).run(seen(clients, hidden), Generator())
