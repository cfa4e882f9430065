"""Words that must be earned: no undefended model is said to hold, and no label to be its record."""

from pathlib import Path
from typing import Any

import pytest

from privkit.audit.run import run_audit
from privkit.parts.threats import threats_of
from privkit.reports.schema import Row

pytestmark = pytest.mark.usefixtures("no_report", "no_controls")

SMALL: dict[str, Any] = {
    "budget": "smoke:private=60,auxiliary=150,test=40,victims=50,epochs=1,attack_epochs=1",
    "training": "batch_size=10",
    "threads": 1,
    "defense": "none",
}
OWN = {
    "Pooled": "nn.Sequential(nn.AvgPool2d(2))",
    "Blind": "nn.Sequential(nn.AvgPool2d(8))",
    "Conv": "nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU())",
    "Narrow": "nn.Sequential(nn.Flatten(), nn.Linear(64, 2), nn.Tanh())",
    "Flat": "nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())",
    "Constant": "nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Threshold(1e9, 0.5))",
}
"""Lower segments of a user's: some release nearly everything, and some nothing."""
IMAGES = ("ridge:repeats=1,epochs=1", "nearest_record")
TEXTS = ("vocabulary:epochs=1", "nearest_record")
ROWS = ("black_box", "nearest_record")
UNDEFENDED = [
    *(("tiny_digits", f"own_nets.{name}:own_nets.Upper", seed, IMAGES) for name in OWN for seed in (0, 1)),
    *(("tiny_digits", model, 0, IMAGES) for model in ("vit_micro", "vit_micro:depth=2", "cnn")),
    *(("definitions:length=6,vocabulary=50", model, 0, TEXTS) for model in ("transformer_micro", "text_mlp", "rnn")),
    *((dataset, "table_mlp", 0, ROWS) for dataset in ("auto_mpg", "breast_cancer")),
]


def audited(folder: Path, dataset: str, model: str, seed: int, attacks: tuple[str, ...]) -> tuple[Row, ...]:
    run = run_audit(dataset=dataset, model=model, seed=seed, attack=list(attacks), out=folder / "run", **SMALL)
    return tuple(run.rows)


def own_nets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    lowers = "".join(f"def {name}():\n    return {net}\n" for name, net in OWN.items())
    upper = "def Upper(classes):\n    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))\n"
    (folder / "own_nets.py").write_text(f"from torch import nn\n{lowers}{upper}")


@pytest.mark.parametrize(
    ("dataset", "model", "seed", "attacks"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (number > 0)) for number, case in enumerate(UNDEFENDED)],
)
def test_no_undefended_model_is_said_to_hold(
    dataset: str, model: str, seed: int, attacks: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_nets(tmp_path, monkeypatch)
    rows = audited(tmp_path, dataset, model, seed, attacks)
    assert any(row.recovered for row in rows), [row.reason for row in rows]
    said = {one.outcome for one in threats_of(rows)}
    assert said & {"falls", "not_shown"}
    assert not said & {"holds", "class"}


LABELS = [(name, seed) for name in ("tiny_digits:Digits", "breast_cancer:Tumors") for seed in range(5)]


@pytest.mark.parametrize(
    ("name", "seed"), [pytest.param(*case, marks=[pytest.mark.slow] * (case[1] > 0)) for case in LABELS]
)
def test_no_release_of_the_label_alone_is_said_to_fall_to_its_record(name: str, seed: int, tmp_path: Path) -> None:
    dataset, lower = name.split(":")
    here = "tests.audit.label_only"
    attacks = IMAGES if dataset == "tiny_digits" else ROWS
    rows = audited(tmp_path, dataset, f"{here}.{lower}:{here}.Upper", seed, attacks)
    assert any(row.recovered for row in rows), [row.reason for row in rows]
    assert not [one.sentence for one in threats_of(rows) if one.outcome == "falls"]
