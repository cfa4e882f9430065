"""The laws of the protocols: each reduces to what it must where it must."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.defenses.adversarial import Adversarial
from privkit.defenses.base import Defense
from privkit.defenses.chain import Chain
from privkit.defenses.clip import Clip
from privkit.defenses.cutmix import RandomCutMix
from privkit.defenses.dp_cutmixsl import DpCutMixSl
from privkit.defenses.grad_perturb import GradPerturb
from privkit.defenses.none import NoDefense
from privkit.defenses.nopeek import NoPeek
from privkit.domains.base import Batch
from privkit.domains.partition import ClientPartition
from privkit.errors import UsageError
from privkit.models.vit import VIT_MICRO
from privkit.shared.seeds import derive
from privkit.training import Clients, SplitProtocol, Stacked, TrainingSpec, evaluate, split_round, train
from privkit.training.loop import release_count
from privkit.training.private import check_private
from privkit.wire.transcript import Transcript
from tests.small import IMAGES, SHAPE, built, digits


def stacks(edge: Clients) -> list[Tensor]:
    return [p.detach().clone() for p in edge.lowers.parameters()]


def one_share(count: int, clients: int) -> ClientPartition:
    """Every client holds all images, in the same order."""
    return ClientPartition(
        rows=torch.arange(count).expand(clients, -1).contiguous(), sizes=torch.full((clients,), count)
    )


def test_one_client_is_centralized_training_bit_for_bit() -> None:
    """Against a loop that knows nothing of privkit's: same weights after every one of ten steps."""
    data, spec = digits(100), TrainingSpec(batch_size=20)
    edge, upper = built(NoDefense(), SplitProtocol())
    model = VIT_MICRO.build(IMAGES, 10, positions=True, seed=0)
    whole = nn.Sequential(model.lower, model.upper)
    optimizer = torch.optim.AdamW(whole.parameters(), lr=spec.learning_rate, weight_decay=0.05, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=spec.learning_rate, total_steps=11, pct_start=0.1, cycle_momentum=False
    )
    losses = []
    for epoch in range(2):
        draws = Generator().manual_seed(derive(0, "train", epoch))
        for rows in torch.randperm(100, generator=draws).view(5, 20):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(whole(data.x[rows]), data.y[rows])
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
    curve = train(edge, upper, data, spec, epochs=2, seed=0).curve
    ours = [p.squeeze(0) for p in stacks(edge)] + list(upper.parameters())
    assert all(torch.equal(a, b) for a, b in zip(ours, whole.parameters(), strict=True))
    assert curve == pytest.approx([np.mean(losses[:5]), np.mean(losses[5:])], rel=1e-6)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    "protocol",
    [
        SplitProtocol(average="round"),
        SplitProtocol(average="epoch"),
        SplitProtocol(gradient="broadcast"),
        SplitProtocol(gradient="average"),
        SplitProtocol(lower="handed_on"),
        SplitProtocol(updates="message"),
    ],
    ids=str,
)
def test_with_one_client_every_protocol_is_sl(protocol: SplitProtocol) -> None:
    data, spec = digits(), TrainingSpec(batch_size=20)
    runs = []
    for each in (SplitProtocol(), protocol):
        edge, upper = built(NoDefense(), each)
        train(edge, upper, data, spec, epochs=2, seed=0)
        runs.append([*edge.parameters(), *upper.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_a_defense_changes_the_gradient_before_it_goes_back() -> None:
    data, norms = digits(20), []
    for defense in (NoDefense(), GradPerturb(noise=1e-12, clip=1e-6)):
        edge, upper = built(defense, SplitProtocol())
        played = split_round(edge, upper, data.x.unsqueeze(0), data.y.unsqueeze(0), Generator().manual_seed(0))
        norms.append(played.cut_gradient.flatten(2).norm(dim=2))
    assert norms[0].min() > 1e-5
    torch.testing.assert_close(norms[1], torch.full((1, 20), 1e-6), atol=0, rtol=1e-3)


def naive_psl(data: Batch, order: Tensor, weights: list[float]) -> tuple[list[nn.Module], nn.Module]:
    """Parallel split learning as a loop over clients, straight from DP-CutMixSL Eq. 3."""
    model = VIT_MICRO.build(IMAGES, 10, positions=True, seed=0)
    clients = [VIT_MICRO.build(IMAGES, 10, positions=True, seed=0).lower for _ in weights]
    modules = [*clients, model.upper]
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in modules]
    for rows in order:
        for optimizer in optimizers:
            optimizer.zero_grad()
        for client, own, weight in zip(clients, rows, weights, strict=True):
            smashed = client(data.x[own])
            arrived = smashed.detach().requires_grad_()
            loss = nn.functional.cross_entropy(model.upper(arrived), data.y[own])
            (weight * loss).backward()
            assert arrived.grad is not None
            smashed.backward(arrived.grad / weight)
        for optimizer in optimizers:
            optimizer.step()
    return clients, model.upper


def test_stacked_clients_train_as_a_loop_over_clients_does() -> None:
    data, d = digits(120), [0.5, 0.25, 0.25]
    order = torch.randperm(120, generator=Generator().manual_seed(0)).view(4, 3, 10)
    clients, server = naive_psl(data, order, d)
    edge, upper = built(NoDefense(), SplitProtocol(clients=3))
    optimizer = torch.optim.SGD([*edge.parameters(), *upper.parameters()], lr=0.1)
    for rows in order:
        optimizer.zero_grad()
        split_round(edge, upper, data.x[rows], data.y[rows], Generator(), shares=torch.tensor(d))
        optimizer.step()
    for i, client in enumerate(clients):
        for ours, theirs in zip(edge.lowers.copy(i).parameters(), client.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    for ours, theirs in zip(upper.parameters(), server.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("protocol", [SplitProtocol(clients=3), SplitProtocol(clients=3, average="round")], ids=str)
def test_equal_data_on_all_clients_gives_equal_lower_segments(protocol: SplitProtocol) -> None:
    edge, upper = built(NoDefense(), protocol)
    data = digits(40)
    optimizer = torch.optim.AdamW([*edge.parameters(), *upper.parameters()], lr=1e-3)
    for step in range(3):
        rows = torch.arange(step * 10, step * 10 + 10).expand(3, -1)
        optimizer.zero_grad()
        split_round(edge, upper, data.x[rows], data.y[rows], Generator())
        optimizer.step()
    assert all(torch.allclose(stack, stack[:1].expand_as(stack), atol=1e-7) for stack in stacks(edge))
    other = digits(60).x[40:60]  # and different data, different ones
    split_round(edge, upper, torch.stack([other[:10], other[:10], other[10:]]), data.y[:30].view(3, 10), Generator())
    grads = [p.grad for p in edge.lowers.parameters() if p.grad is not None]
    assert any(not torch.allclose(g[0], g[2], atol=1e-6) for g in grads)


def test_cutmix_of_one_is_parallel_split_learning() -> None:
    data, spec = digits(), TrainingSpec(batch_size=10)
    runs = []
    for defense in (NoDefense(), RandomCutMix(group=1)):
        edge, upper = built(defense, SplitProtocol(clients=3))
        train(edge, upper, data, spec, epochs=1, seed=0)
        runs.append([*edge.parameters(), *upper.parameters()])
    for ours, theirs in zip(*runs, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)  # soft labels round the loss otherwise


def test_an_unmatched_client_sends_all_of_its_smashed_data() -> None:
    edge, _ = built(RandomCutMix(), SplitProtocol(clients=3))
    data = digits(30)
    sent = edge.release(data.x.view(3, 10, *SHAPE), data.y.view(3, 10), Generator().manual_seed(0))
    alone = int(sent.groups[-1, 0])
    assert sent.groups[-1].tolist() == [alone, -1]
    assert torch.equal(sent.release.smashed[-1], sent.smashed[alone])


def test_server_steps_after_every_message() -> None:
    for protocol, steps in ((SplitProtocol(clients=4), 0), (SplitProtocol(clients=4, updates="message"), 4)):
        edge, upper = built(NoDefense(), protocol)
        data = digits(40)
        calls: list[int] = []
        split_round(
            edge,
            upper,
            data.x.view(4, 10, *SHAPE),
            data.y.view(4, 10),
            Generator(),
            update=lambda calls=calls: calls.append(1),  # type: ignore[misc]
        )
        assert len(calls) == steps


@pytest.mark.parametrize("clients", [4, 5])
def test_each_step_of_the_server_has_a_message_whose_gradient_flows_to_one_client(clients: int) -> None:
    edge, upper = built(RandomCutMix(group=2), SplitProtocol(clients=clients, updates="message"))
    data, steps = digits(10 * clients), []
    given = (data.x.view(clients, 10, *SHAPE), data.y.view(clients, 10))
    played = split_round(edge, upper, *given, Generator().manual_seed(0), update=lambda: steps.append(1))
    assert len(steps) == clients == len(played.losses)
    assert sorted(played.sent.groups[:, 0].tolist()) == list(range(clients))  # everybody receives once
    pairs = [frozenset(group) - {-1} for group in played.sent.groups.tolist()]
    assert all(pairs.count(pair) == len(pair) for pair in pairs)  # a group mixes anew for each of its members

    (edge, upper), (other, twin) = (
        built(RandomCutMix(group=2), SplitProtocol(clients=clients, updates=updates))  # type: ignore[arg-type]
        for updates in ("message", "round")
    )
    split_round(edge, upper, *given, Generator().manual_seed(0))
    draws = Generator().manual_seed(0)
    groups = other.groups(0, draws)
    for seat in range(2):  # autograd of the receivers' own messages, everybody else held fast
        turn = groups.roll(-seat, 1)
        turn = turn[turn[:, 0] >= 0]
        sent = other.release(*given, draws, groups=turn)
        loss = sum(
            nn.functional.cross_entropy(twin(smashed), soft)
            for smashed, soft in zip(sent.release.smashed, sent.release.labels, strict=True)
        )
        assert isinstance(loss, Tensor)
        for stack, grad in zip(
            other.lowers.parameters(), torch.autograd.grad(loss, [*other.lowers.parameters()]), strict=True
        ):
            stack.grad = torch.zeros_like(stack) if stack.grad is None else stack.grad
            stack.grad[turn[:, 0]] += grad[turn[:, 0]]
    for ours, theirs in zip(edge.lowers.parameters(), other.lowers.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("learner", [NoPeek(weight=2.0), Adversarial()])
def test_every_client_of_a_group_gets_its_penalty_once(learner: Defense) -> None:
    """Five clients in pairs: the penalty adds its own derivative to each gradient, also at simulated attackers."""
    protocol, data = SplitProtocol(clients=5, updates="message"), digits(50)
    given = (data.x.view(5, 10, *SHAPE), data.y.view(5, 10))
    edge, upper = built(Chain(stages=(learner, RandomCutMix(group=2))), protocol)
    plain, same = built(RandomCutMix(group=2), protocol)
    alone = deepcopy(edge)
    for clients, server in ((edge, upper), (plain, same)):
        split_round(clients, server, *given, Generator().manual_seed(0))
    penalty = alone.release(*given, Generator().manual_seed(0)).penalty
    assert penalty is not None
    penalty.sum().backward()
    tasks = dict(plain.named_parameters())
    for (name, ours), added in zip(edge.named_parameters(), alone.parameters(), strict=True):
        task = tasks[name].grad if name in tasks else torch.zeros_like(ours)
        torch.testing.assert_close(ours.grad, task + added.grad, atol=1e-5, rtol=1e-3)  # type: ignore[operator]


def test_a_round_of_several_messages_a_record_is_charged_and_claims_nothing_of_noise() -> None:
    shares = ClientPartition(rows=torch.arange(80).view(4, 20), sizes=torch.full((4,), 20))
    counts = [
        release_count(
            built(RandomCutMix(group=2), SplitProtocol(clients=4, updates=updates))[0],  # type: ignore[arg-type]
            TrainingSpec(batch_size=10),
            shares,
            epochs=3,
        )
        for updates in ("round", "message")
    ]
    assert [(count.rounds, count.epochs) for count in counts] == [(6, 3), (12, 6)]
    with pytest.raises(UsageError, match="updates=message sends 2 messages of every record in a round, and no bound"):
        built(DpCutMixSl(sigma=1.0), SplitProtocol(clients=4, updates="message"))
    with pytest.raises(UsageError, match="no bound was derived for the noise of"):  # nor for noise within a chain
        built(Chain(stages=(Clip(), DpCutMixSl(sigma=1.0))), SplitProtocol(clients=4, updates="message"))
    with pytest.raises(UsageError, match="got grouping=fixed,updates=message"):
        built(RandomCutMix(group=2, drawn="once"), SplitProtocol(clients=4, updates="message", grouping="fixed"))
    mixed = built(RandomCutMix(group=2), SplitProtocol(clients=4, updates="message"))[0]
    with pytest.raises(UsageError, match="private training needs one message of each record"):
        check_private(mixed, TrainingSpec(private=True, clip=1.0, noise=1.0))


def test_averaging_makes_lower_segments_equal() -> None:
    data, spec = digits(), TrainingSpec(batch_size=10)
    for average in ("never", "round", "epoch"):
        edge, upper = built(NoDefense(), SplitProtocol(clients=3, average=average))  # type: ignore[arg-type]
        train(edge, upper, data, spec, epochs=1, seed=0)
        equal = all(torch.equal(stack, stack[:1].expand_as(stack)) for stack in stacks(edge))
        assert equal == (average != "never")


def test_standalone_clients_learn_alone() -> None:
    """Client 0 ends where it would have ended without the others."""
    data, spec = digits(), TrainingSpec(batch_size=10)
    protocol = SplitProtocol(clients=3, upper="own")
    edge, upper = built(NoDefense(), protocol)
    shares = ClientPartition(rows=torch.arange(120).view(3, 40), sizes=torch.full((3,), 40))
    train(edge, upper, data, spec, epochs=1, seed=0, shares=shares)
    poisoned = replace_images(data, torch.arange(40, 120))
    edge2, upper2 = built(NoDefense(), protocol)
    train(edge2, upper2, poisoned, spec, epochs=1, seed=0, shares=shares)
    for ours, theirs in zip(upper.parameters(), upper2.parameters(), strict=True):
        torch.testing.assert_close(ours[0], theirs[0])
    assert any(not torch.allclose(a[1], b[1]) for a, b in zip(upper.parameters(), upper2.parameters(), strict=True))


def replace_images(data: Batch, rows: Tensor) -> Batch:
    x = data.x.clone()
    x[rows] = torch.rand(x[rows].shape, generator=Generator().manual_seed(9))
    return Batch(x=x, y=data.y, ids=data.ids)


class Normed(nn.Module):
    """Tokens behind a batch normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Conv2d(1, 8, 2, 2), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.embed(x)).flatten(2).transpose(1, 2)  # type: ignore[no-any-return]


@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_segment_carries_no_record_into_another(frozen: bool) -> None:
    """What is accounted record by record must be released record by record, batch normalization or not."""
    data, spec = digits(40), TrainingSpec(batch_size=20, freeze_lower=frozen)
    released = []
    for pixels in (0.0, 1.0):
        other = Batch(x=data.x.clone(), y=data.y, ids=data.ids)
        other.x[7] = pixels
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            lower, upper = Normed(), nn.Sequential(nn.Flatten(), nn.Linear(128, 10))
        edge = Clients.build(lower, NoDefense(), IMAGES, classes=10, seed=0)
        transcript = Transcript()
        train(edge, upper, other, spec, epochs=1, seed=0, play=transcript)
        released.append(torch.cat([view.smashed for view in transcript.views]))
    rows = (released[0] != released[1]).flatten(1).any(1).sum()
    assert rows == 1 if frozen else rows > 1


def test_several_servers_are_several_trainings() -> None:
    """Two servers of two clients each train what each pair trains with a server of its own."""
    data, spec = digits(120), TrainingSpec(batch_size=10)
    order = torch.arange(120).view(4, 30)
    both = ClientPartition(rows=order, sizes=torch.tensor([30, 20, 30, 30]))
    lower, server = nn.Sequential(nn.Flatten(), nn.Linear(64, 8)), nn.Linear(8, 10)
    edge = Clients.build(lower, NoDefense(), IMAGES, classes=10, seed=0, protocol=SplitProtocol(clients=4, servers=2))
    upper = Stacked(server, 2)
    x, y = data.x[order[:, :10]], data.y[order[:, :10]]
    weights = both.weights.float()
    found = split_round(edge, upper, x, y, Generator(), shares=weights)
    for number in range(2):
        pair = slice(2 * number, 2 * number + 2)
        alone = Clients.build(lower, NoDefense(), IMAGES, classes=10, seed=0, protocol=SplitProtocol(clients=2))
        own = deepcopy(server)
        shares = weights[pair] / weights[pair].sum()
        expected = split_round(alone, own, x[pair], y[pair], Generator(), shares=shares)
        torch.testing.assert_close(found.losses[pair], expected.losses)
        torch.testing.assert_close(found.cut_gradient[pair], expected.cut_gradient)
        for stack, weight in zip(upper.parameters(), own.parameters(), strict=True):
            assert stack.grad is not None
            torch.testing.assert_close(stack.grad[number], weight.grad)
    train(edge, upper, data, spec, epochs=1, seed=0)
    assert all(not torch.equal(stack[0], stack[1]) for stack in upper.parameters())
    assert evaluate(edge, upper, data, batch_size=10, seed=0).accuracy.n == 120


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"clients": 4, "servers": 3}, "servers must divide clients=4, got 3"),
        ({"clients": 4, "servers": 0}, "servers must be a whole number >= 1, got 0"),
        ({"clients": 4, "servers": 2, "updates": "message"}, "needs lower=own, upper=shared and updates=round"),
        ({"clients": 4, "servers": 2, "gradient": "average"}, "over the messages of one server"),
    ],
)
def test_servers_that_cannot_be_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        SplitProtocol(**options)
    with pytest.raises(UsageError, match="which one server must see; use servers=1"):
        SplitProtocol(clients=4, servers=2).check_group("mixup", 2)
