"""What can be shown of a GPU without one: a step never waits for the host, and compiles in one graph."""

from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.nn.functional import cross_entropy

from privkit.defenses import BatchShuffle, Defense, NoDefense
from privkit.defenses.cutmix import RandomCutMix
from privkit.defenses.noise import GaussianNoise
from privkit.defenses.split_parts import SplitParts
from privkit.domains.images.domain import Images
from privkit.domains.partition import ClientPartition, Iid
from privkit.parts.registry import load, parse, part_table
from privkit.training import Clients, SplitProtocol, split_round
from privkit.training.loop import round_order
from privkit.wire.channel import HeldParts
from tests.gpu.pretended import DefaultGenerator, emptied, pretended_gpu, why_not, without_numbers
from tests.small import IMAGES, built, generator

CLASSES, TOKENS, SIDE = 5, 16, 28
pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
QUICK = ("batch_shuffle", "gaussian_noise", "random_cutmix")
"""Defenses of three kinds whose graphs are quickly traced."""


def every(quick: tuple[str, ...]) -> list[Any]:
    """All registered defenses; those that are not quick are slow tests."""
    return [
        name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in sorted(part_table("defenses"))
    ]


def defended(name: str) -> tuple[Defense, Tensor, Tensor]:
    """A defense, and what it is given.

    Mixing by equal ratios: torch's Gamma variates take no other than an explicit generator into a graph.
    """
    defense: Defense = load(part_table("defenses")[name])()
    if hasattr(defense, "concentration"):
        defense = replace(defense, concentration=inf)  # type: ignore[type-var]
    lead = (2, defense.group, 3) if defense.group > 1 else (2, 3)
    given = torch.rand(*lead, *((3, SIDE, SIDE) if defense.level == "input" else (TOKENS, 4)), generator=generator())
    labels = torch.zeros(lead, dtype=torch.int64)
    if defense.soft_labels:
        labels = nn.functional.one_hot(labels, CLASSES).float()
    return defense, given, labels


@pytest.mark.parametrize("name", sorted(part_table("defenses")))
def test_a_defense_never_waits_for_the_host(name: str) -> None:
    defense, given, labels = defended(name)
    with pretended_gpu() as gpu:
        release, _ = defense.apply(gpu.from_tensor(given).cuda(), gpu.from_tensor(labels).cuda(), generator())
        assert release.smashed.device.type == "cuda"
        assert release.labels.device.type == "cuda"


def test_the_pretended_gpu_notices_a_look_at_a_number() -> None:
    with pretended_gpu() as gpu, pytest.raises(DataDependentOutputException):
        bool(gpu.from_tensor(torch.ones(3)).cuda().sum() > 0)
    with pretended_gpu() as gpu, pytest.raises(RuntimeError, match="device"):
        torch.add(gpu.from_tensor(torch.ones(3)).cuda(), gpu.from_tensor(torch.ones(3)))


@pytest.mark.parametrize("name", every(QUICK))
def test_a_defense_compiles_in_one_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of kept tokens is a constant of the setting, whose decimal arithmetic is traced by no compiler; the
    matrix of an orthogonal map is one, too, whose generator is not."""
    monkeypatch.setattr("privkit.defenses.batch_shuffle.kept_tokens", lambda tokens, keep: int(tokens * keep))
    defense, given, labels = defended(name)
    monkeypatch.setattr("privkit.defenses.orthogonal._columns", lambda w, left, *_: torch.eye(w, left))
    draws = generator()
    defense.apply(given, labels, draws)  # reads the annotations of receipts, as the first look at a shape does
    torch._dynamo.reset()
    step = torch.compile(lambda z, y: defense.apply(z, y, draws)[0].smashed, backend="eager", fullgraph=True)
    with DefaultGenerator():
        torch.manual_seed(0)
        compiled = step(given, labels)
        torch.manual_seed(0)
        assert torch.equal(compiled, defense.apply(given, labels, draws)[0].smashed)


@pytest.mark.parametrize("by", ["channels", "places"])
def test_what_the_holder_of_a_part_sees_compiles_in_one_graph(by: Any) -> None:
    edge, _ = built(SplitParts(parts=3, by=by))
    edge.held = ("part_1", "part_3")
    seen, rows = HeldParts(edge), torch.rand(2, TOKENS, 7, generator=generator())
    assert torch.equal(torch.compile(seen, backend="eager", fullgraph=True)(rows), seen(rows))


@pytest.mark.parametrize(
    ("defense", "protocol"),
    [
        (NoDefense(), SplitProtocol()),
        (BatchShuffle(), SplitProtocol(clients=3)),
        (GaussianNoise(sigma=0.5), SplitProtocol(clients=3, gradient="average")),
        (RandomCutMix(), SplitProtocol(clients=4)),
        (RandomCutMix(), SplitProtocol(clients=4, gradient="broadcast", grouping="round_robin")),
    ],
    ids=lambda part: getattr(part, "name", None),
)
def test_a_round_of_training_never_waits_for_the_host(defense: Defense, protocol: SplitProtocol) -> None:
    edge, upper = built(defense, protocol)
    with without_numbers() as mode:
        shape = (protocol.clients, 6)
        images, labels = torch.rand(*shape, *IMAGES.shape), torch.zeros(shape, dtype=torch.int64)
        emptied(mode, edge)
        emptied(mode, upper)
        found = split_round(edge, upper, images, labels, generator())
        assert found.losses.shape == (len(found.sent.groups),)
        assert all(p.grad is not None for side in (edge.lowers, upper) for p in side.parameters())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "clients"), [("vit_tiny6", 1), ("vit_tiny6", 3), ("pit_tiny", 3), ("vgg16", 3), ("resnet18", 3)]
)
def test_both_segments_compile_in_one_graph(model: str, clients: int) -> None:
    domain = Images(shape=(3, 32, 32))
    split = parse("models", model).spec.build(domain, 10, positions=True, seed=0)
    protocol = SplitProtocol(clients=clients)
    edge = Clients.build(split.lower, NoDefense(), domain, classes=10, seed=0, protocol=protocol)
    images = torch.rand(clients, 2, 3, 32, 32, generator=generator())
    torch._dynamo.reset()
    lowers = torch.compile(edge.lowers, backend="eager", fullgraph=True)
    upper = torch.compile(split.upper, backend="eager", fullgraph=True)
    logits = upper(lowers(images).flatten(0, 1))
    cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64)).backward()
    assert all(p.grad is not None for side in (edge.lowers, split.upper) for p in side.parameters())


def test_the_order_of_rounds_is_drawn_on_the_device_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition is dealt out on the CPU, and a generator of another device draws nothing there."""

    def drawn(shares: ClientPartition, batch: int, draws: Any, rounds: int) -> Tensor:
        assert shares.rows.device == draws.device
        return shares.rows.new_zeros(rounds, len(shares.rows), batch)

    monkeypatch.setattr("privkit.training.loop.epoch_order", drawn)
    shares, there = Iid().assign(torch.zeros(12), 2, 0), SimpleNamespace(device=torch.device("meta"))
    order = round_order(shares, SplitProtocol(clients=2), 3, 2, there)  # type: ignore[arg-type]
    assert order.device == there.device


def test_bfloat16_stays_near_float32() -> None:
    """Losses within 1 %, gradients within 5 % of their length."""
    losses, gradients = {}, {}
    for precision in ("float32", "bfloat16"):
        edge, upper = built(NoDefense(), SplitProtocol(clients=2))
        edge.precision = precision
        images = torch.rand(2, 8, *IMAGES.shape, generator=generator())
        labels = torch.arange(16).view(2, 8) % 10
        losses[precision] = split_round(edge, upper, images, labels, generator()).losses
        grads = [p.grad for side in (edge, upper) for p in side.parameters()]
        gradients[precision] = torch.cat([grad.flatten() for grad in grads if grad is not None])
    assert torch.allclose(losses["bfloat16"], losses["float32"], rtol=0.01)
    assert not torch.equal(losses["bfloat16"], losses["float32"])
    away = (gradients["bfloat16"] - gradients["float32"]).norm() / gradients["float32"].norm()
    assert away < 0.05
