"""A user's own parts by import path: parsed, refused in one sentence, audited, resumed and noticed when edited."""

import importlib
import json
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from privkit.audit.run import AuditRun, run_audit
from privkit.errors import DataError, PrivkitError, RunFolderError, UsageError
from privkit.parts import registry
from privkit.parts.registry import parse, part_table
from privkit.reports.tables import table as table_of
from privkit.run.verify import examine
from privkit.settings.resolve import resolve

MINE = """
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from sklearn.datasets import load_digits
from torch import nn

from privkit.attacks.inversion.floors import MidGrey
from privkit.constraints import Positive
from privkit.defenses.base import Defense, Release
from privkit.defenses.receipts import Nothing
from privkit.domains.images.embedded import TinyDigits
from privkit.models.convolutional import LeNet5

number = 3


@dataclass(frozen=True, kw_only=True)
class Squash(Defense):
    name: ClassVar[str] = "squash"
    effects = frozenset({"maps"})

    bound: Positive = 1.0

    def apply(self, smashed, labels, generator, present=None):
        return Release(smashed=self.bound * (smashed / self.bound).tanh(), labels=labels), Nothing(reason="no noise")


@dataclass(frozen=True, kw_only=True)
class Grey(MidGrey):
    name: ClassVar[str] = "grey"


@dataclass(frozen=True, kw_only=True)
class Largest:
    name: ClassVar[str] = "largest"
    higher_is_closer: ClassVar[bool] = False

    def __call__(self, truth, guess, *, data_range):
        return np.abs(truth - guess).max(axis=(1, 2, 3))


def digits():
    pixels, labels = load_digits(return_X_y=True)
    return (pixels.reshape(-1, 8, 8) / 16).astype(np.float32), labels


class Segment(nn.Flatten):
    pass


def segments(image_shape, classes):
    return nn.Flatten(), nn.Linear(64, classes)
"""
SETTINGS: dict[str, Any] = {
    "defense": ["mine_:Squash:bound=2", "mine_:Squash+gaussian_noise:sigma=1,clip=1"],
    "attack": "mine_:Grey",
    "dataset": "mine_:digits",
    "model": "mine_:segments",
    "metric": "mine_:Largest",
    "gate": "accuracy>=0.0",
    "budget": "smoke:private=40,auxiliary=40,test=20,victims=20,epochs=1",
    "training": "batch_size=20",
    "threads": 1,
}


def anew() -> None:
    """What a new process knows: nothing of the user's module."""
    sys.modules.pop("mine_", None)
    importlib.invalidate_caches()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a user's module, and an audit of its parts."""
    home = tmp_path_factory.mktemp("own")
    (home / "mine_.py").write_text(MINE, "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr("privkit.audit.run.build", lambda folder, *rest: folder)
        assert run_audit(out=home / "run", **SETTINGS).exit_code == 0
    anew()
    return home


@pytest.fixture
def home(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of it, as the current folder."""
    copy = Path(shutil.copytree(finished, tmp_path / "home"))
    monkeypatch.chdir(copy)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield copy
    anew()


def again(**changes: Any) -> AuditRun:
    """The same command in a new process, as far as the module is concerned."""
    anew()
    return run_audit(**{"out": "run", **SETTINGS, **changes})


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("defenses", "mine_:Squash"),
        ("defenses", "mine_:Squash:bound=2.0"),
        ("defenses", "mine_:Squash:bound=2.0+masking:keep=0.5@server"),
        ("attacks", "mine_:Grey"),
        ("datasets", "mine_:TinyDigits"),
        ("datasets", "mine_:digits"),
        ("models", "mine_:LeNet5:cut=conv1"),
        ("models", "mine_:segments"),
    ],
)
def test_an_import_path_stands_where_a_name_does(kind: str, given: str) -> None:
    component = parse(kind, given)
    assert component.label == given.removesuffix("@server")
    assert parse(kind, component.label) == component
    assert parse(kind, json.loads(json.dumps(component.to_json()))).spec == component.spec


BAD = [
    ({"defense": "nowhere_.py:Squash"}, r"write nowhere_ instead of nowhere_\.py, and run the command in the folder"),
    ({"defense": "nowhere_:Squash"}, r"No module named 'nowhere_'; run the command in the folder that holds nowhere_"),
    (
        {"defense": "broken_:Squash"},
        "the defense broken_:Squash: RuntimeError: two lines; repair broken_",
    ),
    ({"defense": "needs_:Squash"}, "No module named 'absent_'; install absent_"),
    ({"defense": "mine_:Squish"}, "mine_ has no Squish; did you mean 'Squash'?"),
    ({"defense": "mine_:Grey"}, "mine_:Grey is not a defense: it has no apply, .*; privkit new defense NAME "),
    ({"attack": "mine_:Squash"}, "mine_:Squash is not an attack: it has no run, "),
    ({"attack": "mine_:number"}, "mine_:number is not an attack"),
    ({"dataset": "mine_:Squash"}, "mine_:Squash is not a dataset: it has no open"),
    ({"model": "mine_:TinyDigits"}, "mine_:TinyDigits is not a model: it has no build"),
    ({"model": "mine_:Segment"}, "mine_:Segment is one torch module, .*; name both as mine_.Segment:mine_.Upper, or"),
    ({"defense": "mine_:digits"}, "it has no apply, .*, since it is a function and no class; privkit new defense"),
    ({"dataset": "table_file:file=a.csv,label=b,ignore=id"}, r'ignore must be a list, such as ignore=\["id"\], got'),
    ({"protocol": "mine_:Squash"}, "a protocol has no import path, got mine_:Squash; privkit list protocols names"),
    ({"defense": "mine_:Squash:bond=2"}, "unknown option of defense mine_:Squash 'bond'; did you mean 'bound'?"),
    ({"defense": "mine_:Squash:bound=-1"}, "defense mine_:Squash: bound must be a finite number > 0, got -1"),
    ({"defense": "mine_:Squash@server"}, "mine_:Squash runs at the client only, got place='server'"),
    ({"metric": "mine_:digits"}, "mine_:digits is not a metric: it has no name, higher_is_closer"),
    ({"metric": "ssim"}, "ssim is measured where it applies; metric takes a metric of your own"),
    ({"metric": "mine_:Largest", "gate": "own_larges<=1"}, "unknown column of the gate .*did you mean 'own_largest'?"),
    ({"metric": "mine_:Largest", "dataset": "names"}, "looks at images, and names holds none; leave it out"),
    ({"gate": "own_largest<=1"}, "own_largest, the column of a metric of your own, and none is given; add --metric"),
    ({"metric": ["mine_:Largest", {"name": "mine_:Largest"}]}, "are both called largest; rename one"),
    ({"defense": "batch_shuffle:keep"}, "write options as name:key=value"),
]


OPTIONS = """
from dataclasses import dataclass
from pathlib import Path
from privkit.templates.defense import Template

@dataclass(frozen=True, kw_only=True)
class Sized(Template):
    sizes: tuple[int, ...] = (1, 2)
    pair: tuple[tuple[int, int], str] | None = None

@dataclass(frozen=True, kw_only=True)
class Wanting(Template):
    factor: float
    file: Path | None = None

@dataclass(frozen=True, kw_only=True)
class Held(Template):
    file: Path = Path("a")
"""


def test_options_of_an_own_part_are_what_a_command_can_write_and_a_run_can_save(home: Path) -> None:
    (home / "options_.py").write_text(OPTIONS)
    given = "options_:Sized:sizes=[3,4]"
    component = parse("defenses", given)
    assert (component.spec.sizes, component.label) == ((3, 4), given)
    assert parse("defenses", json.loads(json.dumps(component.to_json()))).spec == component.spec
    assert parse("defenses", {"name": "options_:Sized", "pair": [[3, 4], "a"]}).spec.pair == ((3, 4), "a")
    for bad, message in (
        ('options_:Sized:sizes=["a"]', "sizes should be a valid integer"),
        ("options_:Sized:sizes=3", "sizes should be a valid tuple"),
        ("options_:Held", "option file of options_:Held is a .*Path; use text, numbers"),
        ("options_:Wanting", "defense options_:Wanting needs factor=…; write options_:Wanting:factor=VALUE"),
        ("options_:Wanting:factor=2,file=a", "file should be an instance of Path, .*annotate the field as str"),
    ):
        with pytest.raises(UsageError, match=message):
            parse("defenses", bad)


@pytest.mark.parametrize(("settings", "message"), BAD, ids=[message for _, message in BAD])
def test_what_is_no_part_is_refused_in_one_sentence(home: Path, settings: dict[str, Any], message: str) -> None:
    (home / "broken_.py").write_text("raise RuntimeError('two\\nlines')\n")
    (home / "needs_.py").write_text("import absent_\n")
    with pytest.raises(PrivkitError, match=message) as caught:
        resolve(settings)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("no_report")
def test_own_parts_are_rows_of_a_run_that_resumes_and_verifies(home: Path) -> None:
    rows = again().rows
    assert {(row.status, row.attack, row.dataset, row.model) for row in rows} == {
        ("done", "mine_:Grey", "mine_:digits", "mine_:segments")
    }
    assert [row.certificate.kind for row in rows if row.certificate] == ["nothing", "nothing", "differential_privacy"]
    assert all(set(row.provenance.code) == {"mine_"} for row in rows)
    for row in rows:
        grey, floor = (found["unaligned"]["own_largest"] for found in (row.recovered, row.floors["mid_grey"]))
        assert grey.value == floor.value == 0.5
        assert not grey.higher_is_closer
    assert "own_largest ↑" in table_of(rows).headers
    assert examine(home / "run").exit_code == 0
    trained = {path: path.stat().st_mtime_ns for path in (home / "run" / "models").glob("*/trained.json")}
    assert again().rows == rows
    judged = again(gate="own_largest>=0.0")  # a grey guess wins on no model, so that its errors show nothing
    assert judged.exit_code == 1
    assert all("own_largest is 0.5000" in said and "it is not shown" in said for said in judged.failures)
    assert {path: path.stat().st_mtime_ns for path in trained} == trained


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "np.abs(truth - guess)",
            "missing",
            r"metric largest failed: NameError: .* \(.*mine_.py, line \d+\); repair it",
        ),
        ("max(axis=(1, 2, 3))", "max()", r"metric largest must give 20 numbers, one per image, got \[\]"),
        ("np.abs(truth - guess)", "(truth * np.nan)", "metric largest gave NaN or infinity"),
        ("digits():", "digits():\n    missing", r"mine_:digits\(\) failed: NameError"),
    ],
)
def test_a_part_that_fails_is_named_with_its_line(home: Path, old: str, new: str, message: str) -> None:
    (home / "mine_.py").write_text(MINE.replace(old, new), "utf-8")
    with pytest.raises(UsageError if "metric" in message else DataError, match=message):
        again(out="other")


def test_a_dataset_of_a_users_own_class_that_fails_is_named(home: Path) -> None:
    text = (
        MINE + "\n\nclass Failing(TinyDigits):\n    def open(self, *given, **named):\n        raise OSError('gone')\n"
    )
    (home / "mine_.py").write_text(text, "utf-8")
    with pytest.raises(UsageError, match=r"dataset mine_:Failing failed: OSError: gone \(.*mine_.py, line"):
        again(out="other", dataset="mine_:Failing")


@pytest.mark.usefixtures("no_report")
def test_an_edited_file_of_a_part_is_noticed(home: Path) -> None:
    (home / "mine_.py").write_text(MINE.replace("tanh()", "sin()"), "utf-8")
    with pytest.raises(RunFolderError, match=r"the source of mine_.*--again"):
        again()


def test_entry_points_bring_parts_of_each_kind(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brought = {"defenses": "Squash", "attacks": "Grey", "datasets": "TinyDigits", "models": "LeNet5"}
    brought["metrics"] = "Largest"
    found = [EntryPoint("brought", f"mine_:{part}", f"privkit.{kind}") for kind, part in brought.items()]
    monkeypatch.syspath_prepend(str(home))

    def entry_points(group: str) -> list[EntryPoint]:
        return [entry for entry in found if entry.group == group]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    part_table.cache_clear()
    try:
        for kind, part in brought.items():
            assert type(parse(kind, "brought").spec) is type(parse(kind, f"mine_:{part}").spec)
    finally:
        part_table.cache_clear()


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("images", r"mine_:digits\(\) must return \(images, labels\) or .*, got ndarray"),
        ("images, labels[1:]", r"1797 images need labels \[1797\], got \[1796\]; give one per row"),
        ("images * 255, labels", "images must lie in .0, 1., got 0 to 255; divide them by 255"),
        ("images, labels - 0.5", "labels must be whole numbers from 0"),
        ("images, images[:0], labels", "got tuple of 3"),
        ("images / missing, labels", r"mine_:digits\(\) failed: NameError: .*missing.*; repair it"),
    ],
)
def test_what_a_function_returns_must_be_images_and_labels(home: Path, result: str, message: str) -> None:
    text = MINE.replace(
        "    return (pixels.reshape(-1, 8, 8) / 16).astype(np.float32), labels",
        f"    images = pixels.reshape(-1, 8, 8) / 16\n    return {result}",
    )
    (home / "mine_.py").write_text(text, "utf-8")
    anew()
    with pytest.raises(PrivkitError, match=message):
        parse("datasets", "mine_:digits").spec.open(None, download=False, train_images=1)
