"""Clients that a server drives: what it may imitate of their defense, what breaks them, and what honest service is."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import AttackDiverged
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.hijack.fsha import FSHA
from privkit.attacks.hijack.hijack_detection import SplitGuard
from privkit.audit.goals import reconstruct
from privkit.audit.goals.trained import TrainedContext
from privkit.defenses.base import Defense
from privkit.defenses.batch_shuffle import BatchShuffle
from privkit.defenses.cutout import RandomCutout
from privkit.defenses.dp_cutmixsl import DpMixSl
from privkit.defenses.fedpass import FedPass
from privkit.defenses.noise import GaussianNoise
from privkit.defenses.none import NoDefense
from privkit.defenses.orthogonal import OrthogonalMap
from privkit.defenses.patch_shuffle import PatchShuffle
from privkit.domains.base import Batch
from privkit.domains.partition import Iid
from privkit.training import SplitProtocol, TrainingSpec
from privkit.wire.hijack import HONEST_ROUNDS, LiveClients, imitated, serve
from tests.small import IMAGES, SHAPE, fitted

SPEC = TrainingSpec(batch_size=8, learning_rate=3e-3)


def live(defense: Defense, clients: int = 1, guard: SplitGuard | None = None) -> tuple[LiveClients, nn.Module]:
    draws = Generator().manual_seed(0)
    data = Batch(x=torch.rand(64, *SHAPE, generator=draws), y=torch.arange(64) % 10, ids=torch.arange(64))
    edge, upper = fitted(defense, SplitProtocol(clients=clients))
    return LiveClients(edge, data, Iid().assign(data.y, clients, 0), SPEC, data[:16], 0, guard), upper


def imitation(defense: Defense, smashed: Tensor, clients: int = 1) -> Tensor:
    imitate = imitated(fitted(defense, SplitProtocol(clients=clients))[0], IMAGES)
    assert imitate is not None
    found = imitate(smashed, Generator().manual_seed(1))
    assert torch.equal(found, imitate(smashed, Generator().manual_seed(1)))
    assert not torch.equal(found, imitate(smashed, Generator().manual_seed(2)))
    return found


def test_noise_is_imitated_by_its_law_and_lets_gradients_through() -> None:
    smashed = torch.zeros(8, 4, 16, requires_grad=True)
    found = imitation(GaussianNoise(sigma=0.7, clip=None), smashed)
    assert found.std().item() == pytest.approx(0.7, rel=0.1)
    found.sum().backward()
    assert smashed.grad is not None
    assert torch.equal(smashed.grad, torch.ones_like(smashed))


def test_clipping_is_imitated_and_a_fault_that_writes_into_its_input_does_not_reach_the_pilot() -> None:
    smashed = torch.full((8, 4, 16), 3.0)
    found = imitation(GaussianNoise(sigma=1e-3, clip=0.5, noise_in_place=True), smashed)
    assert found.max() < 0.6
    assert torch.equal(smashed, torch.full_like(smashed, 3.0))


@pytest.mark.parametrize(("defense", "within"), [(PatchShuffle(), 1), (BatchShuffle(), 4)])
def test_shuffles_move_the_pilots_tokens_as_far_as_the_clients(defense: Defense, within: int) -> None:
    """Tokens stay in their image (or, shuffled by batch, in their client's message of four), in another order."""
    smashed = torch.arange(8 * 4.0).view(8, 4, 1).expand(8, 4, 16)
    found = imitation(defense, smashed, clients=2)
    before, after = (x[..., 0].reshape(-1, within * 4) for x in (smashed, found))
    assert torch.equal(after.sort(1).values, before)
    assert not torch.equal(after, before)


def test_the_public_frozen_block_is_a_part_of_what_clients_do() -> None:
    edge, _ = fitted(NoDefense(frozen_block=True))
    imitate, smashed = imitated(edge, IMAGES), torch.rand(8, 4, 16)
    assert imitate is not None
    assert edge.block is not None
    assert torch.equal(imitate(smashed, Generator()), edge.block(smashed))


@pytest.mark.parametrize(
    ("defense", "clients"),
    [
        (NoDefense(), 1),
        (DpMixSl(group=2), 2),
        (RandomCutout(level="input"), 1),
        (GaussianNoise(place="server"), 1),
        (OrthogonalMap(), 1),  # a server that sends no query does not know the clients' key
        (FedPass(), 1),
    ],
)
def test_nothing_to_imitate(defense: Defense, clients: int) -> None:
    assert imitated(fitted(defense, SplitProtocol(clients=clients))[0], IMAGES) is None


def test_fsha_hands_the_pilot_over_shuffled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the whole attack, on clients that shuffle: discriminator and decoder see no token at its place."""
    monkeypatch.setattr("privkit.attacks.hijack.fsha.ROUNDS_AN_EPOCH", 2)
    clients, _ = live(PatchShuffle(), clients=2)
    imitate, moved = imitated(fitted(PatchShuffle(), SplitProtocol(clients=2))[0], IMAGES), []
    assert imitate is not None

    def watched(smashed: Tensor, draws: Generator) -> Tensor:
        found = imitate(smashed, draws)
        assert len(smashed) == 16
        torch.testing.assert_close(found.sort(1).values, smashed.sort(1).values)
        moved.append(not torch.equal(found, smashed))
        return found

    own = torch.rand(40, *SHAPE, generator=Generator().manual_seed(3))
    knowledge = ImageObservation(image_shape=SHAPE, batch_size=16, auxiliary=own, clients=clients, imitate=watched)
    FSHA(epochs=1, width=2, blocks=1).run(replace(knowledge, views=clients.views()), Generator().manual_seed(0))
    assert moved == [True] * 3  # two rounds, and the held-out images


def test_a_gradient_that_overflows_in_the_clients_stops_the_attack_and_changes_nothing() -> None:
    clients, _ = live(NoDefense(), guard=SplitGuard(generator=Generator().manual_seed(0)))
    before = [view.smashed for view in clients.views()]
    largest = torch.finfo(torch.float32).max
    with pytest.raises(AttackDiverged, match="not finite in the lower segments in round 1"):
        clients.round(lambda view: torch.full_like(view.smashed, largest))
    assert all(torch.equal(a, view.smashed) for a, view in zip(before, clients.views(), strict=True))
    assert clients.guard is not None
    assert clients.guard.rounds == 0


def test_fsha_on_clients_in_which_its_gradient_overflows_goes_back_to_its_last_good_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("privkit.attacks.hijack.fsha.ROUNDS_AN_EPOCH", 2)
    clients, _ = live(NoDefense(), guard=SplitGuard(generator=Generator().manual_seed(0)))
    honest, rounds = clients.round, list[None]()

    def round(answer: Any) -> None:
        rounds.append(None)
        large = torch.finfo(torch.float32).max if len(rounds) == 4 else 1.0
        honest(lambda view: answer(view).sign() * large if large > 1 else answer(view))

    monkeypatch.setattr(clients, "round", round)
    own = torch.rand(40, *SHAPE, generator=Generator().manual_seed(3))
    knowledge = ImageObservation(image_shape=SHAPE, batch_size=8, auxiliary=own, clients=clients)
    with pytest.raises(AttackDiverged, match="in round 4"):
        FSHA(epochs=3, width=2, blocks=1).run(replace(knowledge, views=clients.views()), Generator().manual_seed(0))
    assert clients.state_dict()["number"] == 2
    assert all(bool(view.smashed.isfinite().all()) for view in clients.views())


def test_a_server_that_applies_the_mixing_itself_gets_and_answers_every_clients_own_message() -> None:
    clients, upper = live(DpMixSl(group=2, place="server"), clients=2)
    seen = []
    clients.round(lambda view: seen.append(view) or view.smashed.sign())  # type: ignore[func-returns-value]
    assert (seen[0].messages, seen[0].mixed, len(seen[0].smashed)) == (2, 1, 16)
    assert len(serve(clients, upper, 2, SPEC)) == 2


def test_an_honest_server_with_dropout_gives_the_same_losses_again_and_leaves_the_generator_alone() -> None:
    def losses(seed: int) -> list[float]:
        clients, upper = live(NoDefense())
        return serve(clients, nn.Sequential(nn.Dropout(0.5), upper), 3, SPEC, seed)

    state = torch.random.get_rng_state()
    first = losses(0)
    torch.rand(3)
    torch.random.set_rng_state(state)
    torch.rand(5)
    assert losses(0) == first
    assert losses(1) != first


def test_an_honest_server_may_have_no_weights_and_stops_where_training_diverges() -> None:
    class Head(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean(1)[:, :10]

    clients, _ = live(NoDefense())
    assert len(serve(clients, Head(), 3, SPEC)) == 3
    head = Head()
    head.register_forward_hook(lambda module, given, out: out * math.inf)
    assert len(serve(clients, head, 3, replace(SPEC, learning_rate=1e-3))) == 1


@pytest.mark.parametrize(
    ("noticed", "rounds", "honest", "says"),
    [
        (3, 6, 6, "at round 4 of 6; 6 rounds of honest training do not alarm it"),
        (1, HONEST_ROUNDS + 9, HONEST_ROUNDS, f"; {HONEST_ROUNDS} rounds of honest training do not alarm it"),
        (
            HONEST_ROUNDS + 4,
            HONEST_ROUNDS + 9,
            HONEST_ROUNDS + 5,
            f"{HONEST_ROUNDS + 5} rounds of honest training do not alarm it",
        ),
    ],
)
def test_a_notice_is_held_against_as_much_honest_training(
    noticed: int, rounds: int, honest: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many rounds as the hijack had, up to a number that is said; with dropout at the server, the same again."""
    served = []

    class Suspicious(TrainedContext):
        def clients(self) -> LiveClients:
            return live(NoDefense(), guard=SplitGuard(generator=Generator().manual_seed(0), patience=10_000))[0]

    def counted(given: LiveClients, upper: nn.Module, count: int, spec: Any, seed: int) -> list[float]:
        losses = serve(given, upper, min(count, 8), spec, seed)
        served.append((count, losses))
        assert given.guard is not None
        given.guard.rounds = count
        return losses

    upper = lambda *given: (None, nn.Sequential(nn.Dropout(0.5), fitted(NoDefense())[1]), None)  # noqa: E731
    monkeypatch.setattr(reconstruct, "untrained", upper)
    monkeypatch.setattr(reconstruct, "serve", counted)
    context: Any = object.__new__(Suspicious)
    vars(context).update(config=SimpleNamespace(training=SPEC), cell=SimpleNamespace(seed=0), seed_data=None)
    hijacked = context.clients()
    assert hijacked.guard is not None
    hijacked.guard.scores, hijacked.guard.noticed, hijacked.guard.rounds = [0.1], noticed, rounds
    assert reconstruct.noticed(context, hijacked).endswith(says)
    reconstruct.noticed(context, hijacked)
    assert [count for count, _ in served] == [honest] * 2
    assert served[0][1] == served[1][1]
