"""Configurations, options and plug-ins that are too much, or broken: one sentence, at once."""

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from privkit.accountants import table as parameter_tables
from privkit.accountants.table import load_rows
from privkit.errors import PrivkitError, UsageError
from privkit.files.toml_text import _MOST_BYTES
from privkit.parts import registry
from privkit.parts.entries import misnamed, part_entries
from privkit.parts.registry import parse, part_table
from privkit.settings.resolve import read_toml, resolve

NESTED, DIGITS, DOTTED = "[" * 5000, "9" * 5000, "a." * 20_000 + "a"
TEXTS = {
    "nested": f"defense = {NESTED}",
    "closed": f"defense = {NESTED}{']' * 5000}",
    "tables": f"defense = {'{a=' * 5000}",
    "digits": f"seed = {DIGITS}",
    "hex": f"seed = 0x{DIGITS}",
    "dotted": f"{DOTTED} = 1",
    "dotted table": f"[{DOTTED}]",
    "quoted": '"' + '"."'.join("a" * 5000) + '" = 1',
    "epochs": "budget = {epochs = 1" + "0" * 400 + "}",
    "threads": "threads = 1000000000",
    "many": "a" * (_MOST_BYTES + 1),
    "not text": "\udcff",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_configuration_that_is_too_much_is_one_sentence(tmp_path: Path, text: str) -> None:
    file = tmp_path / "audit.toml"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError) as caught:
        resolve(read_toml(file))
    assert len(str(caught.value)) < 1000
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/urandom", ".", "missing"])
def test_a_configuration_that_is_no_file(tmp_path: Path, path: str) -> None:
    with pytest.raises(UsageError, match="cannot read the configuration"):
        read_toml(tmp_path / path)


OPTIONS: list[dict[str, Any]] = [
    {"defense": f"batch_shuffle:keep={NESTED}"},
    {"defense": f"batch_shuffle:keep={DIGITS}"},
    {"defense": f"batch_shuffle:keep=0x{DIGITS}"},
    {"defense": f"batch_shuffle:{DOTTED}=1"},
    {"defense": f"batch_shuffle:keep={DOTTED}"},
    {"defense": f"batch_shuffle:{'a' * 100_000}=1"},
    {"defense": "x" * 100_000},
    {"defense": "batch_shuffle:keep=1\nw=2"},
    {"defense": {"name": "batch_shuffle", "keep": 10**400}},
    {"budget": "small:epochs=1" + "0" * 400},
    {"budget": "small:attack_epochs=1" + "0" * 18},
    {"budget": {"epochs": 10**400}},
    {"budget": {"attack_epochs": 10**5000}},
    {"threads": 10**9},
    {"threads": 10**5000},
    {"seed": 10**5000},
    {"delta": 10**400},
    {"training": {"batch_size": 10**400}},
    {"training": f"learning_rate={DIGITS}"},
    {"attack": f"black_box:epochs={DIGITS}"},
    {"protocol": f"psl:clients={DIGITS}"},
    {"model": f"{'a.' * 5000}b"},
    {"gate": f"ssim<={DIGITS}"},
]


@pytest.mark.parametrize("settings", OPTIONS, ids=[next(iter(settings)) for settings in OPTIONS])
def test_an_option_that_is_too_much_is_one_sentence(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(settings)
    assert len(str(caught.value)) < 1500
    assert "\n" not in str(caught.value)


WORDS = """batch_shuffle gaussian_noise keep sigma : = , . [ ] { } " ' 1 - e nan inf true 1979-05-27 # \\ 0x _ é none"""
PIECES = st.sampled_from([*WORDS.split(), "\n", "\x00", " ", "9" * 30])


@settings(max_examples=40)
@given(pieces=st.lists(PIECES, max_size=12), text=st.text(max_size=20))
@example(pieces=["gaussian_noise", ":", "sigma", "=", "1979-05-27"], text="")
def test_any_specification_is_read_or_refused_in_a_sentence(pieces: list[str], text: str) -> None:
    for given_text in ("".join(pieces), f"gaussian_noise:sigma={''.join(pieces)}", text):
        for kind in ("defenses", "attacks", "protocols", "partitions"):
            try:
                parse(kind, given_text)
            except UsageError:
                continue


@pytest.mark.parametrize("suffix", [".toml", ".json"])
@pytest.mark.parametrize("text", [NESTED, "[" * 200_000, f"{DOTTED} = 1", f"a = {DIGITS}", DIGITS])
def test_a_parameter_table_that_is_too_much_is_one_sentence(tmp_path: Path, suffix: str, text: str) -> None:
    path = tmp_path / f"table{suffix}"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"table\.|digits"):
        list(load_rows(path))


@pytest.mark.parametrize("name", ["table.csv", "table.toml", "table.json"])
def test_a_parameter_table_that_is_a_device(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="cannot be read: it is not a file"):
        list(load_rows(tmp_path / name))


def test_a_number_beyond_all_bounds_in_a_parameter_table() -> None:
    (entry,) = parameter_tables.read([{"mechanism": "gaussian", "sensitivity": 1, "sigma": 1, "rounds": 10**400}], 1e-5)
    assert "rounds" in entry.error


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Plug-ins of every kind of trouble."""
    broken = {
        "raises": "tests.broken_plugin_that_is_not_there:Thing",
        "missing": "privkit.defenses:Missing",
        "odd": "math:pi",
        "module": "math",
        "../../evil": "privkit.defenses:NoDefense",
        "[/bold]": "privkit.defenses:NoDefense",
        "=1+1": "privkit.defenses:NoDefense",
        "": "privkit.defenses:NoDefense",
    }
    found = [EntryPoint(name, value, "privkit.defenses") for name, value in broken.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: found if group == "privkit.defenses" else [])
    part_table.cache_clear()
    yield
    part_table.cache_clear()


@pytest.mark.usefixtures("plugged")
def test_a_broken_plugin_is_listed_with_its_reason() -> None:
    told = {entry["name"]: entry["summary"] for entry in part_entries("defenses")}
    assert told["raises"].startswith("broken: cannot import tests.broken_plugin")
    assert "ModuleNotFoundError" in told["raises"]
    assert told["missing"].startswith("broken: ")
    assert told["odd"].startswith("broken: ")
    assert "Permute" in told["batch_shuffle"] or told["batch_shuffle"]
    for name in ("../../evil", "[/bold]", "=1+1", ""):
        assert told[repr(name)].startswith("left out: a name has letters")
    with pytest.raises(UsageError, match=r"cannot import .*repair or uninstall"):
        parse("defenses", "raises")


@pytest.mark.usefixtures("plugged")
def test_a_plugins_name_is_checked() -> None:
    assert misnamed("defenses") == ["", "../../evil", "=1+1", "[/bold]"]
    with pytest.raises(PrivkitError, match="unknown defense"):
        parse("defenses", "[/bold]")
    with pytest.raises(UsageError):
        parse("defenses", "odd")
    with pytest.raises(UsageError):
        parse("defenses", "module")
