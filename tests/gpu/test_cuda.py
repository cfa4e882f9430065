"""The same audit on a CUDA device; skipped where there is none."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, nn

from privkit.audit.run import run_audit
from privkit.defenses import BatchShuffle, NoDefense, PatchShuffle
from privkit.domains.base import Batch
from privkit.domains.images.domain import Images
from privkit.models.vit import VIT_MICRO
from privkit.training import Checkpoint, Clients, TrainingSpec, split_round, train
from tests.small import SMALL

pytestmark = pytest.mark.gpu


def test_an_audit_on_the_device(tmp_path: Path) -> None:
    run = run_audit(defense=["batch_shuffle", "patch_shuffle"], device="cuda", out=tmp_path / "run", **SMALL)
    assert [row.status for row in run.rows] == ["done"] * 3


def test_several_clients_on_the_device(tmp_path: Path) -> None:
    """Their images are dealt out on the CPU, and everything else is drawn on the device."""
    partition = "dirichlet:alpha=1"
    run = run_audit(defense="random_cutmix", partition=partition, device="cuda", out=tmp_path / "run", **SMALL)
    assert [row.status for row in run.rows] == ["done"] * 2


def test_compiled_training_and_attack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privkit.training.loop.COMPILE_FROM_STEPS", 1)
    monkeypatch.setattr("privkit.attacks.inversion.black_box.COMPILE_DECODER_FROM_STEPS", 1)
    run = run_audit(defense="batch_shuffle:frozen_block=true", device="cuda", out=tmp_path / "run", **SMALL)
    assert [row.status for row in run.rows] == ["done"] * 2


@pytest.mark.parametrize("defense", [PatchShuffle(), BatchShuffle()], ids=str)
def test_shuffles_draw_on_the_device(defense: Any) -> None:
    z = torch.arange(4 * 9.0, device="cuda").view(1, 4, 9, 1)
    release, _ = defense.apply(z, torch.zeros(1, 4, device="cuda"), Generator("cuda").manual_seed(0))
    assert release.smashed.is_cuda
    assert torch.equal(release.smashed.flatten().sort().values, z.flatten())


def test_a_split_round_leaves_gradients_on_both_sides() -> None:
    model = VIT_MICRO.build(Images(shape=(1, 8, 8)), 10, positions=False, seed=0)
    edge = Clients.build(model.lower, BatchShuffle(), Images(shape=(1, 8, 8)), classes=10, seed=0).cuda()
    upper = model.upper.cuda()
    images, labels = torch.rand(1, 20, 1, 8, 8, device="cuda"), torch.arange(20, device="cuda").view(1, 20) % 10
    found = split_round(edge, upper, images, labels, Generator("cuda").manual_seed(0))
    assert found.losses.isfinite().all()
    modules: list[nn.Module] = [edge.lowers, upper]
    assert all(p.grad is not None for module in modules for p in module.parameters())


class Killed(Exception):
    pass


class DyingCheckpoint(Checkpoint):
    """Saves the first epoch and dies."""

    def report(self, done: int, total: int, value: float) -> None:
        raise Killed


@pytest.mark.parametrize("compiled", [False, True])
def test_dropout_on_the_device_follows_the_seed_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    """The mask is drawn on the device; a checkpoint of a compiled model has the names of a plain one."""
    monkeypatch.setattr("privkit.training.loop.COMPILE_FROM_STEPS", 1 if compiled else 2_000)
    numbers = torch.arange(80, device="cuda")
    data = Batch(x=torch.rand(80, 1, 8, 8, device="cuda"), y=numbers % 10, ids=numbers)

    def run(checkpoint: Checkpoint | None = None) -> tuple[float, ...]:
        torch.manual_seed(0)
        lower = nn.Sequential(nn.Conv2d(1, 16, 2, 2), nn.Dropout(), nn.Flatten(2))
        upper = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(256, 10))
        edge = Clients.build(lower, NoDefense(), Images(shape=(1, 8, 8)), classes=10, seed=0).cuda()
        torch.seed()  # another state of the global generators in every run
        state = torch.cuda.get_rng_state()
        curve = train(
            edge, upper.cuda(), data, TrainingSpec(batch_size=20), epochs=2, seed=0, checkpoint=checkpoint
        ).curve
        assert torch.equal(torch.cuda.get_rng_state(), state)
        assert all("_orig_mod" not in name for name in (*edge.state_dict(), *upper.state_dict()))
        return curve

    path = tmp_path / "training.ckpt"
    first = pytest.approx(run(), rel=1e-3)  # CUDA's sums may round otherwise; another mask would change more
    assert run() == first
    with pytest.raises(Killed):
        run(DyingCheckpoint(path))
    assert path.exists()
    assert run(Checkpoint(path)) == first


def test_a_black_box_is_seeded_on_the_device() -> None:
    from privkit.attacks.base import QueryResult, View
    from privkit.attacks.goals.reconstruct import ImageObservation
    from privkit.attacks.inversion.black_box import BlackBox
    from privkit.attacks.patches import patchify

    images = torch.rand(120, 1, 8, 8, device="cuda")

    def query(asked: torch.Tensor, draws: Generator) -> QueryResult:
        smashed = nn.functional.dropout(patchify(asked, 2), 0.5)  # draws from the device's global generator
        members = torch.arange(len(asked), device="cuda").unsqueeze(1)
        return QueryResult(view=View(round=0, smashed=smashed), members=members)

    knowledge = ImageObservation(image_shape=(1, 8, 8), batch_size=20, auxiliary=images[20:], query=query)
    views = [View(round=0, smashed=patchify(images[:20], 2))]
    state = torch.cuda.get_rng_state()
    first, again = (
        BlackBox(epochs=2).run(replace(knowledge, views=views), Generator().manual_seed(0)).curve for _ in range(2)
    )
    assert again == pytest.approx(first, rel=1e-3)
    assert torch.equal(torch.cuda.get_rng_state(), state)
