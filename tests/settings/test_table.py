"""A setting stands once: its flag, its key, its line of the docs, its check and its place in a command follow."""

import inspect
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from privkit.audit.report import cell_command
from privkit.cli.app import app
from privkit.cli.flags import flag_of, with_flags
from privkit.errors import UsageError
from privkit.reports.schema import Row
from privkit.settings.resolve import read_toml, resolve
from privkit.settings.table import FLAGS, KEYS, SETTINGS, AuditSettings, Setting, checked, settings_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "settings.md"
ROW = Row.model_validate(
    {
        **{"cell": "c", "defense": "mixup", "attack": "sdar", "seed": 1, "attacked": "private", "batch_size": 5},
        **{"status": "done", "dataset": "d", "model": "m", "protocol": "sl", "partition": "iid", "auxiliary": "own"},
        "parts": ["part_1"],
    }
)
OTHER: dict[str, Any] = {
    **{"defense": "patch_shuffle", "attack": "white_box", "dataset": "text_file:file=b.tsv", "model": "lstm"},
    **{"protocol": "psl:clients=2", "partition": "dirichlet:alpha=1.0", "budget": "smoke", "training": "batch_size=3"},
    **{"auxiliary": "training", "victims": "test", "queries": "rounds=3", "tune": "trials=3", "parts": "part_1"},
    **{"features": "embedded", "metric": "tests.settings.test_table:Darkest", "gate": "epsilon<=4", "device": "cpu"},
    **{"cell_memory": "4GiB", "delta": 0.1},
}
"""For a setting that is not a switch, number or folder: a value that differs from the default."""
BESIDE: dict[str, dict[str, Any]] = {
    "parts": {"defense": "split_parts"},
    "features": {"dataset": "tiny_digits"},
    "metric": {"dataset": "tiny_digits"},
    "tune": {"dataset": "tiny_digits", "attack": "black_box"},
}
"""Settings without which another one means nothing."""


@dataclass(frozen=True)
class Darkest:
    """A metric of images."""

    name: ClassVar[str] = "darkest"
    higher_is_closer: ClassVar[bool] = True

    def __call__(self, truth: Any, guess: Any, *, data_range: float) -> Any:
        return (guess.min((1, 2, 3)) - truth.min((1, 2, 3))) / data_range


def other(setting: Setting) -> Any:
    """A value that differs from the default."""
    return OTHER.get(setting.name, {bool: True, int: 3, float: 2.5, Path: "folder", str: "other"}[setting.kind])


@pytest.mark.parametrize("setting", FLAGS, ids=lambda setting: setting.name)
def test_each_setting_has_a_flag_and_a_line_of_the_page(setting: Setting) -> None:
    commands = {command.name: command.callback for command in app.registered_commands}
    for name in ("audit", "frontier"):
        flag = inspect.signature(commands[name]).parameters[setting.name]  # type: ignore[arg-type]
        assert flag.annotation.__metadata__[0].help == setting.text
    key = f"`{setting.name}`" if setting.file else ""
    (line,) = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{setting.flag}` | {key} |")]
    assert line.endswith(f" | {setting.help} |")


@pytest.mark.parametrize("setting", FLAGS, ids=lambda setting: setting.name)
def test_the_command_of_a_cell_takes_each_setting_over_or_leaves_it_out(setting: Setting) -> None:
    given = [setting.flag] if setting.kind is bool else [setting.flag, "value"]
    words = shlex.split(cell_command(["privkit", "audit", *given, "--model", "lstm"], ROW))
    own = ["--defense", "mixup", "--attack", "sdar", "--seed", "1"]
    if setting.name == "grid":
        given = ["--dataset", "d", "--model", "m", "--config", "value"]
    if setting.name == "recorded":
        own = own[2:]
    assert words == ["privkit", "audit", *(given if setting.of_cell else []), "--model", "lstm", *own]


@pytest.mark.parametrize("name", [name for name in KEYS if name != "recorded"])
def test_a_file_may_hold_each_setting_and_the_fingerprint_knows_those_that_change_an_answer(
    name: str, tmp_path: Path
) -> None:
    setting = SETTINGS[name]
    beside = {"dataset": "text_file:file=a.tsv", "attack": "label_leak", **BESIDE.get(name, {})}
    value = other(setting)
    written = str(value).lower() if isinstance(value, bool) else repr(value)
    (tmp_path / "audit.toml").write_text(f"{name} = {written}\n")
    changed = resolve({**beside, **read_toml(tmp_path / "audit.toml")})
    assert (changed.fingerprint != resolve(beside).fingerprint) == setting.answer
    kept = changed.settings[name]
    assert kept == (str(Path("folder").absolute()) if setting.kind is Path else value)
    assert resolve(changed.settings).fingerprint == changed.fingerprint


def test_one_field_is_a_whole_setting() -> None:
    def even(given: Any) -> int:
        if given % 2:
            raise UsageError(f"pairs must be even, got {given}")
        return int(given)

    @dataclass(frozen=True, kw_only=True)
    class More(AuditSettings):
        pairs: int = field(metadata={"help": "How many pairs.", "kind": int, "default": 4, "check": even})

    (setting,) = [each for each in settings_of(More) if each.name == "pairs"]
    assert (setting.flag, setting.text, setting.answer) == ("--pairs", "How many pairs. [4]", True)
    assert checked(More, {"pairs": 6}).pairs == 6
    with pytest.raises(UsageError, match="pairs must be even, got 5"):
        checked(More, {"pairs": 5})
    command = with_flags(lambda **flags: flags, [flag_of(setting)])
    assert list(inspect.signature(command).parameters) == ["pairs"]
