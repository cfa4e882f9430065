"""A user's own stage or network that sends other data in training than afterwards fails its cell."""

from pathlib import Path
from typing import Any

import pytest

from privkit.audit.run import run_audit
from tests.small import SMALL

SETTINGS: dict[str, Any] = {**SMALL, "budget": "smoke:private=80,auxiliary=80,test=40,victims=20,epochs=1"}
SETTINGS |= {"training": "batch_size=20", "defense": "none"}


@pytest.mark.usefixtures("no_report", "no_controls")
@pytest.mark.parametrize(
    ("defense", "model", "said"),
    [
        ("bare", "vit_micro", "bare sends other data in training than afterwards"),
        ("honest", "vit_micro", ""),
        ("none", "two_faces:segments", "two_faces:segments sends other data in training than afterwards"),
    ],
)
def test_what_sends_other_data_in_training_than_afterwards_fails(
    defense: str, model: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "two_faces.py").write_text(_TWO_FACES)
    monkeypatch.syspath_prepend(str(tmp_path))
    named = "none" if defense == "none" else f"two_faces:{defense.capitalize()}"
    given = {**SETTINGS, "defense": named, "model": model, "attack": "mean_image"}
    row = run_audit(out=tmp_path / "run", **given).rows[-1]
    assert (row.status, said in row.reason) == ("error" if said else "done", True)


_TWO_FACES = """
from dataclasses import dataclass
from typing import ClassVar
import torch
from torch import nn
from privkit.defenses.base import OnSmashed
from privkit.defenses.receipts import Nothing


@dataclass(frozen=True, kw_only=True)
class Bare(OnSmashed):
    name: ClassVar[str] = "bare"
    effects: ClassVar = frozenset({"maps"})
    always: ClassVar[bool] = False

    def defended(self, smashed, generator):
        noise = torch.randn(smashed.shape, generator=generator)
        made = smashed if torch.is_grad_enabled() and not self.always else 0 * smashed + noise
        return made, Nothing(reason="smashed data are released")


class Honest(Bare):
    name: ClassVar[str] = "honest"
    always: ClassVar[bool] = True


class Lower(nn.Flatten):
    def forward(self, x):
        return super().forward(x) if torch.is_grad_enabled() else 0 * super().forward(x)


def segments(classes):
    return Lower(), nn.Linear(64, classes)
"""
