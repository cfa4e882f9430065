"""Who counts as a member, in which company candidates are asked about, and what shadow models may not redraw."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from privkit.attacks.base import Scores
from privkit.attacks.goals.membership import MembershipObservation
from privkit.attacks.membership.member_inference import MemberInference
from privkit.audit.defended import DefendedModel, another, untrained
from privkit.audit.goals import membership
from privkit.audit.goals.membership import released
from privkit.audit.goals.trained import TrainedContext
from privkit.audit.run import run_audit
from privkit.audit.seed_data import SeedData, prepare
from privkit.defenses.none import NoDefense
from privkit.domains.base import Batch
from privkit.domains.partition import ClientPartition, Dirichlet, Iid
from privkit.models.vit import Vit
from privkit.run.plan import plan
from privkit.settings.resolve import resolve
from privkit.training import Clients, Round, SplitProtocol, TrainingSpec, split_round, train
from tests.small import IMAGES, SHAPE

SMALL: dict[str, Any] = {"dataset": "tiny_digits", "threads": 1}


def numbered(count: int) -> Batch:
    """Images that tell their number."""
    x = (torch.arange(count) / count).view(-1, 1, 1, 1).expand(-1, *SHAPE).contiguous()
    return Batch(x=x, y=torch.arange(count) % 3, ids=torch.arange(count))


@pytest.mark.parametrize(
    ("protocol", "partition"),
    [
        (SplitProtocol(), Iid()),  # 47 images, batches of 10: every epoch leaves seven out
        (SplitProtocol(clients=2), Iid(sizes=(12, 20))),
        (SplitProtocol(clients=3), Dirichlet(alpha=0.1)),
        (SplitProtocol(clients=2, lower="handed_on"), Iid(sizes=(30, 11))),
    ],
    ids=str,
)
def test_members_are_what_training_released(protocol: SplitProtocol, partition: Any) -> None:
    data, spec, epochs = numbered(47), TrainingSpec(batch_size=10 if protocol.clients == 1 else 5), 2
    shares: ClientPartition = partition.assign(data.y, protocol.clients, 0)
    model = Vit(patch=4, width=16, depth=2, heads=2, cut="block1").build(IMAGES, 3, positions=True, seed=0)
    edge = Clients.build(model.lower, NoDefense(), IMAGES, classes=3, seed=0, protocol=protocol)
    seen: list[Tensor] = []

    def play(edge: Clients, upper: torch.nn.Module, images: Tensor, *given: Any, **named: Any) -> Round:
        seen.append((images[..., 0, 0, 0] * 47).round().long().flatten())
        return split_round(edge, upper, images, *given, **named)

    train(edge, model.upper, data, spec, epochs=epochs, seed=0, shares=shares, play=play)
    context: Any = SimpleNamespace(
        seed_data=SimpleNamespace(splits=SimpleNamespace(private=data), shares=shares),
        config=SimpleNamespace(training=spec, budget=SimpleNamespace(epochs=epochs)),
        model=SimpleNamespace(edge=edge, known={"best_epoch": 1}),
        cell=SimpleNamespace(seed=0),
    )
    context.order = partial(TrainedContext.order, context)
    assert torch.equal(released(context), torch.cat(seen).unique())
    context.config.training = replace(spec, keep="best")  # the model of the first epoch has seen no more than this
    assert torch.equal(released(context), torch.cat(seen[: len(seen) // epochs]).unique())


@pytest.mark.slow
@pytest.mark.usefixtures("no_report", "no_controls")
def test_candidates_are_mixed_and_only_dealt_images_are_members(tmp_path: Path, monkeypatch: Any) -> None:
    """An oracle that knows which images the two clients were dealt is always right, whatever the order."""
    settings = {
        **SMALL,
        "budget": "smoke:private=300,auxiliary=200,test=200,victims=100,epochs=3",
        "protocol": "psl:clients=2",
        "partition": {"name": "iid", "sizes": [70, 80]},
        "training": "batch_size=10",
        "defense": "none",
        "attack": "member_inference",
    }
    seed_data = prepare(resolve(settings), 0, torch.device("cpu"))
    dealt = seed_data.splits.private.x[torch.cat([seed_data.shares.of(0), seed_data.shares.of(1)])].flatten(1)
    asked = []

    def oracle(self: Any, known: MembershipObservation, generator: Generator, session: Any = None) -> Scores:
        values = (torch.cdist(known.candidates.flatten(1), dealt).amin(1) < 1e-6).float()
        asked.append(values)
        return Scores(values=values, examples=torch.arange(len(values)))

    monkeypatch.setattr(MemberInference, "run", oracle)
    run = run_audit(out=tmp_path / "run", **settings)
    assert run.rows[0].answers["auc"].value == 1.0
    (values,) = asked
    assert values.mean() == 0.5
    assert all(0 < part.mean() < 1 for part in values.view(-1, 20))


@pytest.mark.parametrize("frozen", [True, False])
def test_shadow_models_keep_what_is_public_and_frozen(frozen: bool) -> None:
    config = resolve(
        {
            **SMALL,
            "defense": "batch_shuffle:frozen_block=true",
            "budget": "smoke:private=60,auxiliary=80,test=60,victims=20,epochs=1",
            "training": f"batch_size=20,freeze_lower={str(frozen).lower()}",
        }
    )
    seed_data, cell = prepare(config, 0, torch.device("cpu")), plan(config)[1]
    real, upper, _ = untrained(config, cell, seed_data)
    shadow = another(config, cell, seed_data, seed_data.splits.private, seed_data.shares, seed=99)
    assert real.block is not None
    assert shadow.edge.block is not None
    for own, public in zip(shadow.edge.block.parameters(), real.block.parameters(), strict=True):
        assert torch.equal(own, public)
    alike = [torch.equal(a, b) for a, b in zip(shadow.edge.lowers.parameters(), real.lowers.parameters(), strict=True)]
    assert all(alike) if frozen else not any(alike[:2])
    assert not all(torch.equal(a, b) for a, b in zip(shadow.upper.parameters(), upper.parameters(), strict=True))


def test_shadow_models_are_trained_beside_no_attacked_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are filled up to the real number of records with the adversary's own."""
    budget = "smoke:private=60,auxiliary=80,test=60,victims=20"
    config = resolve({**SMALL, "defense": "none", "budget": budget, "training": "batch_size=20"})
    seed_data, given = prepare(config, 0, torch.device("cpu")), []

    def another(config: Any, cell: Any, own: SeedData, private: Batch, *rest: Any) -> Any:
        given.append((own, private))
        return SimpleNamespace(edge=None)

    monkeypatch.setattr(membership, "another", another)
    context: Any = SimpleNamespace(config=config, cell=plan(config)[0], seed_data=seed_data, round_size=20)
    some = seed_data.splits.private[torch.arange(20)]
    membership._fit(context)(some.x, some.y, Generator().manual_seed(0))
    ((own, private),) = given
    assert own.splits.validation is None
    assert [len(part) for part in (own.victims, own.splits.private, own.splits.auxiliary, own.splits.test)] == [0] * 4
    assert torch.equal(private.x[:20], some.x)
    assert len(private) == 60
    known = {image.numpy().tobytes() for image in seed_data.auxiliary.x}
    assert all(image.numpy().tobytes() in known for image in private.x[20:])


@pytest.mark.usefixtures("no_report")
def test_standalone_clients_are_asked_for_no_labels(tmp_path: Path) -> None:
    run = run_audit(
        **SMALL,
        defense="none",
        attack=["label_leak", "member_inference", "canaries"],
        protocol="standalone:clients=2",
        budget="smoke:private=60,auxiliary=60,test=60,victims=20,epochs=1",
        training="batch_size=5",
        out=tmp_path / "run",
    )
    assert [row.reason for row in run.rows] == ["standalone clients send nothing, so there is nothing to attack"] * 3


def test_shadow_models_answer_with_noise_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise of the attacked model's answers is secret: with the same one, a shadow model would cancel it."""
    settings = {**SMALL, "budget": "smoke:private=60,auxiliary=80,test=60,victims=20,epochs=1"}
    config = resolve({**settings, "defense": "gaussian_noise", "training": "batch_size=20"})
    seed_data, cell = prepare(config, 0, torch.device("cpu")), plan(config)[1]
    edge, upper, _ = untrained(config, cell, seed_data)
    real = DefendedModel(edge=edge.eval(), upper=upper.eval(), known={})
    monkeypatch.setattr(membership, "another", lambda *given: real)
    context: Any = SimpleNamespace(config=config, cell=cell, seed_data=seed_data, round_size=20)
    images, labels = seed_data.victims.x, seed_data.victims.y
    asked = membership._predict(real, 20, cell.seed)
    shadow = membership._fit(context)(images, labels, Generator().manual_seed(1))
    assert torch.equal(asked(images), asked(images))
    assert not torch.equal(asked(images), shadow(images))
