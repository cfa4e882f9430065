"""A U-shape computes what the split with sent labels computes, sends what it says, and sends no label."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.defenses.base import Defense
from privkit.defenses.cutmix import RandomCutMix
from privkit.defenses.denoising import Scaling
from privkit.defenses.dp_cutmixsl import DpSl
from privkit.defenses.grad_perturb import GradPerturb
from privkit.defenses.max_norm import MaxNorm
from privkit.defenses.none import NoDefense
from privkit.domains.partition import Iid
from privkit.errors import UsageError
from privkit.training import Clients, SplitProtocol, TrainingSpec, split_round, train
from privkit.training.costs import client_costs
from privkit.training.losses import with_loss
from privkit.training.u_shape import UShaped, u_shaped
from privkit.wire.channel import black_box_query, record_rounds
from privkit.wire.hijack import LiveClients
from privkit.wire.transcript import Transcript
from tests.small import IMAGES, built, digits, generator

KEPT = SplitProtocol(labels="kept")


def u_built(defense: Defense | None = None, protocol: SplitProtocol = KEPT) -> tuple[Clients, UShaped]:
    """`built`, and its server cut a second time."""
    edge, upper = built(defense or NoDefense(), protocol)
    sent = edge.lowers(torch.rand(edge.lowers.copies, 2, 1, 8, 8, generator=generator()))
    return edge, u_shaped(upper, sent.flatten(0, 1), edge.lowers.copies)


def weights(edge: Clients, upper: nn.Module) -> list[Tensor]:
    if isinstance(upper, UShaped):
        ends = [weight.squeeze(0) for weight in upper.tails.parameters()]
        return [*edge.lowers.parameters(), *upper.middle.parameters(), *ends]
    return [*edge.lowers.parameters(), *upper.parameters()]


@pytest.mark.parametrize("lower", ["own", "handed_on"])
def test_one_client_trains_as_if_it_sent_its_labels(lower: Any) -> None:
    data, spec = digits(100), TrainingSpec(batch_size=20)
    sent = built(NoDefense(), SplitProtocol(lower=lower))
    kept = u_built(protocol=SplitProtocol(lower=lower, labels="kept"))
    curves = [train(*both, data, spec, epochs=2, seed=0).curve for both in (sent, kept)]
    assert curves[0] == pytest.approx(curves[1], rel=1e-6)
    for one, other in zip(weights(*sent), weights(*kept), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_each_client_has_the_gradient_of_its_own_uncut_network() -> None:
    """With unequal shares: autograd on the whole of lower segment, middle and tail gives every gradient."""
    protocol = SplitProtocol(clients=3, labels="kept")
    edge, upper = u_built(protocol=protocol)
    x, y = torch.rand(3, 5, 1, 8, 8, generator=generator(1)), torch.arange(15).view(3, 5) % 10
    shares = torch.tensor([0.5, 0.3, 0.2])
    for tail in upper.tails.parameters():  # so that a client's tail is told from another's
        tail.data += torch.randn(tail.shape, generator=generator(2)) / 10
    alone, middle = deepcopy(edge.lowers), deepcopy(upper.middle)
    tails = [upper.tails.copy(client) for client in range(3)]
    outcome = split_round(edge, upper, x, y, generator(), shares=shares)
    features = [middle(alone.copy(client)(x[client])) for client in range(3)]
    losses = [nn.functional.cross_entropy(t(f), own) for t, f, own in zip(tails, features, y, strict=True)]
    torch.testing.assert_close(outcome.losses, torch.stack(losses).detach())
    torch.stack(losses).mul(shares).sum().backward(retain_graph=True)  # the server weights clients by their shares
    for one, other in zip(upper.middle.parameters(), middle.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-6)
    for client, alone_tail in enumerate(tails):
        own_gradient = torch.autograd.grad(losses[client], [*alone_tail.parameters()], retain_graph=True)
        for stack, gradient in zip(upper.tails.parameters(), own_gradient, strict=True):
            torch.testing.assert_close(stack.grad[client], gradient, rtol=0, atol=1e-6)  # type: ignore[index]
    lower = alone.copy(1)
    nn.functional.cross_entropy(tails[1](middle(lower(x[1]))), y[1]).backward()
    for stack, weight in zip(edge.lowers.parameters(), lower.parameters(), strict=True):
        torch.testing.assert_close(stack.grad[1], weight.grad, rtol=0, atol=1e-6)  # type: ignore[index]


def test_what_crosses_the_second_cut_is_recorded_for_the_server() -> None:
    edge, upper = u_built(protocol=SplitProtocol(clients=2, labels="kept"))
    transcript = Transcript()
    x, y = torch.rand(2, 4, 1, 8, 8, generator=generator(1)), torch.arange(8).view(2, 4)
    transcript(edge, upper, x, y, generator())
    features = upper.middle(edge.lowers(x).flatten(0, 1)).detach().requires_grad_()
    logits = upper.logits(features).unflatten(0, (2, 4))
    loss = sum(nn.functional.cross_entropy(logits[client], y[client]) for client in range(2))
    (gradient,) = torch.autograd.grad(loss, features)  # type: ignore[arg-type]
    for client in range(2):
        (second,), (first,) = (transcript.of_server(client, cut) for cut in ("second", "first"))  # type: ignore[arg-type]
        rows = slice(4 * client, 4 * client + 4)
        torch.testing.assert_close(second.smashed, features[rows].detach())
        torch.testing.assert_close(second.cut_gradient, gradient[rows])
        assert second.labels is first.labels is None
        assert first.smashed.equal(edge.lowers(x)[client].detach())
        assert first.cut_gradient is not None


def test_tails_are_averaged_with_lower_segments() -> None:
    edge, upper = u_built(protocol=SplitProtocol(clients=3, average="round", labels="kept"))
    train(edge, upper, digits(), TrainingSpec(batch_size=10), epochs=1, seed=0)
    for stack in upper.tails.parameters():
        assert torch.equal(stack[0], stack[1])
        assert torch.equal(stack[0], stack[2])
    edge, upper = u_built(protocol=SplitProtocol(clients=3, labels="kept"))
    train(edge, upper, digits(), TrainingSpec(batch_size=10), epochs=1, seed=0)
    assert not torch.equal(*next(upper.tails.parameters())[:2])


def test_no_label_crosses_in_rounds_queries_or_a_hijack() -> None:
    data = digits(40)
    for protocol, sends in ((SplitProtocol(), True), (KEPT, False)):
        edge, _ = built(DpSl(), protocol)
        views = record_rounds(edge, data, batch_size=20, seed=0).views
        hijacked: list[Any] = []
        live = LiveClients(edge, data, Iid().assign(data.y, 1, 0), TrainingSpec(batch_size=20), data, 0)
        live.round(lambda view: hijacked.append(view) or torch.zeros_like(view.smashed))  # type: ignore[func-returns-value]  # noqa: B023
        assert all((view.labels is not None) is sends for view in (*views, *hijacked))
        assert black_box_query(edge)(data.x[:20], Generator().manual_seed(0)).view.labels is None


def test_a_defense_of_returned_gradients_acts_where_the_label_holder_sends_them() -> None:
    """Max-norm stretches each row at the second cut, and what the server makes of it reaches the client."""
    rounds = []
    for defense in (NoDefense(), MaxNorm()):
        edge, upper = u_built(defense)
        rounds.append(split_round(edge, upper, digits(20).x.unsqueeze(0), digits(20).y.unsqueeze(0), generator()))
    plain, stretched = (played.second for played in rounds)
    assert plain is not None
    assert stretched is not None
    factor = stretched.gradient / plain.gradient
    torch.testing.assert_close(factor, factor[..., :1].expand_as(factor), rtol=1e-3, atol=1e-3)
    assert factor.std() > 0.1
    assert not torch.allclose(rounds[0].cut_gradient, rounds[1].cut_gradient)


def test_every_byte_of_both_cuts_is_counted() -> None:
    data, spec = digits(), TrainingSpec(batch_size=10)
    costs = {}
    for name, both in (("sent", built(DpSl())), ("kept", u_built(DpSl()))):
        costs[name] = client_costs(both[0], data, spec, rounds_an_epoch=1, seed=0, upper=both[1])
    upper = u_built()[1]
    tail = upper.tails.copy(0)
    width, classes = tail.weight.shape[1], 10  # type: ignore[union-attr, index]
    sent, kept = costs["sent"], costs["kept"]
    assert kept.bytes_up == sent.bytes_up - 4 * classes + 4 * width  # type: ignore[operator]
    assert kept.bytes_down == sent.bytes_down + 4 * width  # type: ignore[operator]
    assert kept.client_macs == sent.client_macs + width * classes  # type: ignore[operator]
    # of the tail: forward pass, gradient of the weights, and gradient of the features, which goes up
    assert kept.client_training_macs == sent.client_training_macs + 3 * width * classes  # type: ignore[operator]
    assert kept.client_parameters == sent.client_parameters + width * classes + classes  # type: ignore[operator]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"servers": 2, "clients": 2}, "labels=kept is a U-shape with one server"),
        ({"upper": "own"}, "labels=kept is a U-shape with one server"),
        ({"gradient": "average"}, "labels=kept is a U-shape with one server"),
        ({"updates": "message"}, "labels=kept is a U-shape with one server"),
    ],
)
def test_protocols_that_are_no_u_shape_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        SplitProtocol(labels="kept", **settings)


@pytest.mark.parametrize(
    ("defense", "clients", "says"),
    [
        (RandomCutMix(), 4, "the loss of a mixture needs all their labels, which labels=kept leaves to each client"),
        (GradPerturb(), 1, "no bound was derived for gradients that clients send up with labels=kept"),
        (
            Scaling(variant="straight_through_logits"),
            1,
            "acts on the server's logits or loss, and with labels=kept it has neither",
        ),
    ],
)
def test_defenses_that_need_the_labels_elsewhere_are_refused(defense: Defense, clients: int, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        built(defense, SplitProtocol(clients=clients, labels="kept"))


class Softmax(nn.Module):
    """A server's segment that does more behind its last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.first(rows)).softmax(1)


@pytest.mark.parametrize(
    ("upper", "says"),
    [
        (nn.Linear(4, 2), "nothing would be left to the server"),
        (nn.Flatten(), "nothing would be left to the server"),
        (Softmax(), r"takes the last layer \(head\) to the clients, and this upper segment does more behind it"),
        (with_loss(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), "multi_label"), "has a loss of its own"),
    ],
)
def test_servers_that_cannot_be_cut_again_are_refused(upper: nn.Module, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        u_shaped(upper, torch.rand(6, 4), 2)


def test_classes_that_several_labels_have_are_learned_at_the_tail() -> None:
    edge, upper = u_built()
    data = digits()
    data = type(data)(x=data.x, y=nn.functional.one_hot(data.y, 10), ids=data.ids, domain=IMAGES)
    curve = train(edge, upper, data, TrainingSpec(batch_size=20, loss="multi_label"), epochs=2, seed=0).curve
    assert curve[1] < curve[0]
