"""A user's own stage or network that sends other data in training than afterwards, or repeats its noise, fails."""

from pathlib import Path
from typing import Any

import pytest

from privkit.audit.run import run_audit
from tests.small import SMALL

SETTINGS: dict[str, Any] = {**SMALL, "budget": "smoke:private=80,auxiliary=80,test=40,victims=20,epochs=1"}
SETTINGS |= {"training": "batch_size=20", "defense": "none"}


@pytest.mark.slow(but=2)
@pytest.mark.usefixtures("no_report", "no_controls")
@pytest.mark.parametrize(
    ("defense", "model", "said"),
    [
        ("bare", "vit_micro", "bare sends other data in training than afterwards"),
        ("honest", "vit_micro", ""),
        ("seeded", "vit_micro", "seeded adds the same noise in each round"),
        ("waking", "vit_micro", "waking changed while the model was trained"),
        ("none", "two_faces:segments", "two_faces:segments sends other data in training than afterwards"),
        ("none", "two_faces:hiding", "its code reads the mode of the module (self.training)"),
        ("none", "two_faces:usual", ""),
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


@dataclass(frozen=True, kw_only=True)
class Seeded(OnSmashed):
    name: ClassVar[str] = "seeded"
    effects: ClassVar = frozenset({"noises"})
    noise_fields: ClassVar = ("sigma",)
    sigma: float = 1.0

    def defended(self, smashed, generator):
        noise = torch.randn(smashed.shape, generator=torch.Generator().manual_seed(0))
        return smashed + self.sigma * noise, Nothing(reason="smashed data are released with noise")


@dataclass(frozen=True, kw_only=True)
class Waking(Seeded):  # its noise grows with the rounds
    name: ClassVar[str] = "waking"
    calls: ClassVar[list] = []

    def defended(self, smashed, generator):
        self.calls.append(1)
        noise = torch.randn(smashed.shape, generator=generator)
        return smashed + min(1, len(self.calls) / 100) * self.sigma * noise, Nothing(reason="released with noise")


class Lower(nn.Flatten):
    def forward(self, x):
        return super().forward(x) if torch.is_grad_enabled() else 0 * super().forward(x)


class Hiding(nn.Module):  # papers defend what is sent at inference
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 64))

    def forward(self, x):
        made = self.layers(x)
        return made if self.training else made.round() + torch.randn_like(made)


class Usual(Hiding):  # dropout and batch normalization, of torch and written by hand
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Dropout())

    def forward(self, x):
        made = self.layers(x)
        if self.training:
            made = (made - made.mean(0)) * (torch.rand_like(made) < 0.9)
        return made


def segments(classes):
    return Lower(), nn.Linear(64, classes)


def hiding(classes):
    return Hiding(), nn.Linear(64, classes)


def usual(classes):
    return Usual(), nn.Linear(64, classes)
"""
