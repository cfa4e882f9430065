"""The same audit on a CUDA device; skipped where there is none."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, nn

from privkit.audit import run_audit
from privkit.defenses import BatchShuffle, PatchShuffle
from privkit.models import VIT_MICRO
from privkit.training import Client, split_step

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]
SMALL: dict[str, Any] = {"dataset": "tiny_digits", "budget": "smoke", "threads": 1}


def test_an_audit_on_the_device(tmp_path: Path) -> None:
    run = run_audit(defense=["batch_shuffle", "patch_shuffle"], device="cuda", out=tmp_path / "run", **SMALL)
    assert [row.status for row in run.rows] == ["done"] * 3


def test_compiled_training_and_attack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privkit.training.loop.COMPILE_FROM_STEPS", 1)
    monkeypatch.setattr("privkit.attacks.black_box.COMPILE_FROM_STEPS", 1)
    run = run_audit(defense="batch_shuffle:frozen_block=true", device="cuda", out=tmp_path / "run", **SMALL)
    assert [row.status for row in run.rows] == ["done"] * 2


@pytest.mark.parametrize("defense", [PatchShuffle(), BatchShuffle()], ids=str)
def test_shuffles_draw_on_the_device(defense: Any) -> None:
    z = torch.arange(4 * 9.0, device="cuda").view(4, 9, 1)
    release, _ = defense.apply(z, torch.zeros(4, device="cuda"), Generator("cuda").manual_seed(0))
    assert release.smashed.is_cuda
    assert torch.equal(release.smashed.flatten().sort().values, z.flatten())


def test_a_split_step_leaves_gradients_on_both_sides() -> None:
    model = VIT_MICRO.build((1, 8, 8), 10, positions=False, seed=0)
    client, upper = Client(model.lower, BatchShuffle()).cuda(), model.upper.cuda()
    images, labels = torch.rand(20, 1, 8, 8, device="cuda"), torch.arange(20, device="cuda") % 10
    loss, _ = split_step(client, upper, images, labels, Generator("cuda").manual_seed(0))
    assert loss.isfinite()
    modules: list[nn.Module] = [client.lower, upper]
    assert all(p.grad is not None for module in modules for p in module.parameters())
