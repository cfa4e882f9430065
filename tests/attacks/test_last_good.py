"""After a divergence the last good state is on disk, though a checkpoint lets most saves pass."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, nn

from privkit.attacks.base import AttackDiverged, Knowledge, View
from privkit.attacks.inversion.sdar import SDAR
from privkit.attacks.inversion.sdar_training import Training
from privkit.attacks.inversion.unsplit import UnSplit
from privkit.attacks.last_good import keep
from privkit.training import Checkpoint

pytest_plugins = ["tests.attacks.hijackable"]

VIEW = View(round=0, smashed=torch.rand(12, 16, generator=Generator().manual_seed(0)), labels=torch.arange(12) % 3)
KNOWN = Knowledge(
    image_shape=(1, 8, 8),
    batch_size=12,
    auxiliary=torch.rand(40, 1, 8, 8, generator=Generator().manual_seed(1)),
    auxiliary_labels=torch.arange(40) % 3,
    lower=nn.Sequential(nn.Flatten(), nn.Linear(64, 16)),
    upper=nn.Linear(16, 3).requires_grad_(False),
)


def slow(path: Path) -> Checkpoint:
    """The first save took so long that no other is due."""
    checkpoint = Checkpoint(path)
    checkpoint.save({"curve": []})
    checkpoint._cost = 1e6
    path.unlink()
    checkpoint.save({"curve": []})
    assert checkpoint.load() is None
    return checkpoint


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else bool(a == b)


def test_keep_falls_back_on_save(memory: Any) -> None:
    session = memory()
    keep(session, {"curve": [1.0]})
    assert session.kept == {"curve": [1.0]}


@pytest.mark.parametrize("attack", [SDAR(epochs=3, width=2, batch=6), UnSplit(epochs=3)], ids=["sdar", "unsplit"])
def test_a_passive_attack(attack: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: Any) -> None:
    """Two good epochs, and one that leaves every weight broken."""
    whole = memory(until=2)
    with pytest.raises(KeyboardInterrupt):
        attack.run([VIEW], KNOWN, Generator().manual_seed(0), whole)
    calls: list[None] = []
    holder: Any = Training if isinstance(attack, SDAR) else UnSplit
    name = "epoch" if isinstance(attack, SDAR) else "_alternate"
    real = getattr(holder, name)

    def breaking(self: Any, *given: Any) -> Any:
        calls.append(None)
        found = real(self, *given)
        if len(calls) == 3:
            weights = [w for part in self.parts.values() for w in part.parameters()] if found else given[2]
            for weight in weights:
                weight.data.fill_(math.nan)
        return found

    monkeypatch.setattr(holder, name, breaking)
    checkpoint = slow(tmp_path / "attack.ckpt")
    with pytest.raises(AttackDiverged, match="nan"):
        attack.run([VIEW], KNOWN, Generator().manual_seed(0), checkpoint)
    assert same(checkpoint.load(), whole.kept)


@pytest.mark.usefixtures("ten")
def test_a_hijack(hijack: Any, tmp_path: Path, memory: Any) -> None:
    whole, checkpoint = memory(), slow(tmp_path / "attack.ckpt")
    hijack.attacked(hijack.one, hijack.client(), session=whole)
    clients = hijack.client(spoil=lambda done, x: x * math.nan if done == 13 else x)
    with pytest.raises(AttackDiverged):
        hijack.attacked(hijack.one.__class__(epochs=3, width=2, blocks=1), clients, session=checkpoint)
    assert same(checkpoint.load(), whole.kept)
