"""The failure of an attack shows nothing for a stage of one's own that leaves out what an attack has to undo."""

from pathlib import Path
from typing import Any

import pytest

from privkit.audit.run import run_audit
from tests.small import SMALL

BUDGET = "smoke:private=60,auxiliary=60,test=40,victims=20,epochs=0"


@pytest.mark.usefixtures("no_report", "no_controls")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Silent", "silent does not declare its effects, so no control can tell whether an attack undoes it"),
        ("Noisy", "noisy adds noise and has no noise_fields to switch it off by, so no control can tell"),
        ("Declared", ""),
    ],
)
def test_what_is_left_out_is_a_doubt_on_every_failure(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "left_out.py").write_text(_STAGES)
    monkeypatch.syspath_prepend(str(tmp_path))
    given: dict[str, Any] = {**SMALL, "budget": BUDGET, "training": "batch_size=20", "attack": "mean_image"}
    given |= {"defense": f"left_out:{name}", "gate": ["mse>=0.001"]}
    run = run_audit(out=tmp_path / "run", **given)
    row = run.rows[-1]
    assert (row.status, row.doubt[: len(said)], bool(row.doubt)) == ("done", said, bool(said))
    (gate,) = (check for check in run.verdict.checks if check.kind == "gate")
    why = gate.sentence.partition("; but it is not shown: ")[2]
    assert why.startswith(said or "only a guess that needs no release gave this number")


_STAGES = """
from dataclasses import dataclass
from typing import ClassVar
import torch
from privkit.defenses.base import OnSmashed
from privkit.defenses.receipts import Nothing


@dataclass(frozen=True, kw_only=True)
class Silent(OnSmashed):
    name: ClassVar[str] = "silent"

    def defended(self, smashed, generator):
        return -smashed, Nothing(reason="mirrored data are released")


class Noisy(Silent):
    name = "noisy"
    effects = frozenset({"noises"})

    def defended(self, smashed, generator):
        return smashed + torch.randn(smashed.shape, generator=generator), Nothing(reason="released with noise")


class Declared(Silent):
    name = "declared"
    effects = frozenset({"maps"})
"""
