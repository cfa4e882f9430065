"""Parameter tables: what is read, what is refused with row, column and value, and what goes on after a bad row."""

import csv
import io
import json
import tracemalloc
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privkit.accountants import answer, table
from privkit.accountants.columns import BY_NAME
from privkit.accountants.spec.mixing import DirichletCounts, DirichletRatio, FixedCounts, FixedRatio
from privkit.accountants.spec.parts import CutMix, Mixup, Poisson, WithoutReplacement
from privkit.accountants.spec.sensitivity import Ball, Clamp, Known, OneHot, PatchBall

PLAIN: dict[str, Any] = {"mechanism": "gaussian", "sigma": "1", "sensitivity": "1"}
SPLIT: dict[str, Any] = {"mechanism": "dp_cutmixsl", "sigma": "16/255", "dimensions": 10, "clip_high": "0.15"}


def error(**cells: Any) -> str:
    """Why a row is refused."""
    (entry,) = table.read([cells], 1e-5)
    assert entry.mechanism is None
    return entry.error


def test_a_row_becomes_its_mechanism() -> None:
    cells = SPLIT | {
        "labels": "one_hot",
        "group": "2",
        "clients": "10",
        "sampling": "without_replacement",
        "patches": "64",
        "rounds": "3",
        "ratio": "dirichlet_counts",
        "concentration": "2",
    }
    found = table.mechanism_of(cells)
    assert found.smashed == Clamp(low=0, high=0.15, dimensions=10)
    assert found.labels == OneHot()
    assert (found.noise.smashed, found.noise.labels) == (16 / 255, 16 / 255)
    assert found.mixing == CutMix(ratio=DirichletCounts(concentration=2, clients=2), patches=64)
    assert found.participation == WithoutReplacement(chosen=2, clients=10)
    assert found.rounds == 3


@pytest.mark.parametrize(
    ("cells", "what", "expected"),
    [
        (PLAIN, "smashed", Known(value=1, relation="replace_one", norm="l2")),
        (PLAIN | {"mechanism": "laplace"}, "smashed", Known(value=1, relation="replace_one", norm="l1")),
        (PLAIN | {"sensitivity": "", "clip_norm": "2"}, "smashed", Ball(radius=2)),
        (PLAIN | {"sensitivity": "", "clip_patch": "2", "patches": 4}, "smashed", PatchBall(radius=2, patches=4)),
        (PLAIN | {"sampling": "poisson", "rate": "1/100", "relation": "add_or_remove_one"}, "participation",
         Poisson(rate=0.01)),
        (SPLIT | {"mechanism": "dp_mixsl", "group": 4}, "mixing", Mixup(ratio=FixedRatio.equal(4))),
        (SPLIT | {"mechanism": "dp_mixsl", "ratio": "fixed", "ratios": "0.7;0.3"}, "mixing",
         Mixup(ratio=FixedRatio(ratios=(0.7, 0.3)))),
        (SPLIT | {"ratio": "counts", "counts": [3, 1], "patches": 4}, "mixing",
         CutMix(ratio=FixedCounts(counts=(3, 1)), patches=4)),
        (SPLIT | {"mechanism": "dp_mixsl", "ratio": "dirichlet", "concentration": 0.5, "group": 3}, "mixing",
         Mixup(ratio=DirichletRatio(concentration=0.5, clients=3))),
    ],
)  # fmt: skip
def test_every_way_of_writing_a_row(cells: dict[str, Any], what: str, expected: Any) -> None:
    assert getattr(table.mechanism_of(cells), what) == expected


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"sigma": "1", "sensitivity": "1"}, ["mechanism is empty", "gaussian"]),
        ({"mechanism": "gaussian", "sensitivity": "1"}, ["sigma is empty"]),
        (PLAIN | {"mechanism": "exponential"}, ["mechanism must be one of", "'exponential'"]),
        (PLAIN | {"sigma": "abc"}, ["sigma must be a number such as 0.5 or 16/255", "'abc'"]),
        (PLAIN | {"sigma": "nan"}, ["sigma must be a finite number", "nan"]),
        (PLAIN | {"sigma": "inf"}, ["sigma must be a finite number", "inf"]),
        (PLAIN | {"sigma": "1/0"}, ["sigma", "1/0"]),
        (PLAIN | {"sigma": "-1"}, ["sigma must be a finite number > 0", "-1"]),
        (PLAIN | {"sigma": True}, ["sigma", "True"]),
        (PLAIN | {"sigma": [1]}, ["sigma", "[1]"]),
        (PLAIN | {"sigma": {"a": 1}}, ["sigma"]),
        (PLAIN | {"rounds": "2.5"}, ["rounds must be a whole number >= 1", "2.5"]),
        (PLAIN | {"rounds": "0"}, ["rounds must be a whole number >= 1", "0"]),
        (PLAIN | {"rounds": False}, ["rounds", "False"]),
        (PLAIN | {"rounds": "1_0"}, ["rounds must be a number", "'1_0'"]),
        (PLAIN | {"sigma": "16/2_5"}, ["sigma must be a number", "'16/2_5'"]),
        (PLAIN | {"sensitivity": "", "clip_patch": 0, "patches": 4}, ["clip_patch must be a finite number > 0", "0"]),
        (PLAIN | {"sensitivity": "", "clip_norm": 0}, ["clip_norm must be a finite number > 0", "0"]),
        (SPLIT | {"clip_high": 0, "group": 2, "patches": 5}, ["clip_high must be a finite number > 0"]),
        (
            SPLIT | {"patches": 5, "ratio": "dirichlet", "group": 10**7, "concentration": 1},
            ["group must be", "1000000"],
        ),
        (
            SPLIT | {"patches": 5, "ratio": "fixed", "ratios": ".5;.5", "group": 7},
            ["group must be 2, as many as ratios"],
        ),
        (PLAIN | {"variance": "4"}, ["standard deviation"]),
        (PLAIN | {"sgima": "4"}, ["unknown column 'sgima'", "sigma"]),
        (PLAIN | {"dimensions": 3, "clip_high": 1}, ["sensitivity and clip_high"]),
        (PLAIN | {"sensitivity": None}, ["is empty", "clip_norm"]),
        (PLAIN | {"sensitivity": None, "clip_high": 1}, ["dimensions is empty"]),
        (PLAIN | {"sampling": "poisson"}, ["rate is empty"]),
        (
            PLAIN | {"sampling": "without_replacement", "group": 3, "clients": 2},
            ["group must be at most clients = 2, got 3"],
        ),
        (PLAIN | {"sampling": "poisson", "rate": 0.1}, ["add_or_remove_one"]),
        (PLAIN | {"labels": "box"}, ["classes is empty"]),
        (PLAIN | {"lower_model": "trained"}, ["trained on raw data"]),
        (SPLIT | {"group": 2}, ["patches is empty"]),
        (SPLIT | {"patches": 64}, ["group is empty"]),
        (SPLIT | {"patches": 5, "ratio": "counts", "counts": "2;2"}, ["counts must sum to the 5 patches", "4"]),
        (SPLIT | {"patches": 5, "ratio": "fixed", "ratios": "0.7;0.2"}, ["must sum to 1"]),
        (SPLIT | {"patches": 5, "ratio": "fixed", "ratios": 0.7}, ["ratios must be a list"]),
        (SPLIT | {"patches": 5, "ratio": "dirichlet", "group": 2}, ["concentration is empty"]),
        (SPLIT | {"patches": 5, "group": 10**18}, ["group must be a whole number"]),
        (PLAIN | {"delta": "0"}, ["delta must be a finite number > 0 and < 1"]),
        (PLAIN | {"delta": "1e-5x"}, ["delta must be a number"]),
        (PLAIN | {"delta": True}, ["delta"]),
    ],
)
def test_refusals_name_row_column_and_value(cells: dict[str, Any], words: list[str]) -> None:
    said = error(**cells)
    assert said.startswith("row 1: ")
    assert "\n" not in said
    for word in words:
        assert word in said, said


def test_a_bad_row_is_named_and_the_others_go_on() -> None:
    rows = [PLAIN, PLAIN | {"sigma": "x", "name": "mine"}, PLAIN | {"delta": "1e-6"}]
    first, second, third = table.read(rows, 1e-5)
    assert second.error.startswith("row 2 (mine): sigma")
    assert (first.name, first.delta, first.error) == ("row 1", 1e-5, "")
    assert (third.delta, third.row) == (1e-6, 3)
    (missing,) = table.read([PLAIN])
    assert "delta is empty" in missing.error


WORDS = st.one_of(
    st.none(), st.text(max_size=8), st.floats(), st.integers(-5, 500), st.booleans(),
    st.lists(st.integers(), max_size=3),
    st.sampled_from(["1", "0.5", "16/255", "nan", "-1", "1e400", "dirichlet", "counts", "poisson", "one_hot", "2;2"]),
)  # fmt: skip
NAMES = st.sampled_from([*BY_NAME, "variance", "x"])


@settings(max_examples=150, deadline=None)
@given(
    base=st.sampled_from([{}, PLAIN, SPLIT, SPLIT | {"patches": 4, "group": 2}]), cells=st.dictionaries(NAMES, WORDS)
)
def test_any_row_is_computed_or_refused_in_a_sentence(base: dict[str, Any], cells: dict[str, Any]) -> None:
    if isinstance(size := cells.get("group"), float) and size > 500:
        cells = cells | {"group": 500.0}
    (entry,) = table.read([base | cells], 1e-5)
    assert (entry.mechanism is None) == bool(entry.error)
    if entry.mechanism is not None and entry.mechanism.smashed.kind == "clamp" and entry.mechanism.mixing.group < 100:
        assert entry.delta is not None
        assert 0 < entry.delta < 1


@given(top=st.integers(1, 999), bottom=st.integers(1, 999))
def test_fractions_are_divided(top: int, bottom: int) -> None:
    assert table.mechanism_of(PLAIN | {"sigma": f"{top}/{bottom}"}).noise.smashed == top / bottom
    assert table.mechanism_of(PLAIN | {"sigma": f" {top} / {bottom} "}).noise.smashed == top / bottom


# other libraries' words


def test_the_words_of_opacus_mean_what_opacus_computes() -> None:
    """A noise multiplier is relative to the clipping norm, for adding or removing a record, under Poisson sampling."""
    from dp_accounting import dp_event
    from dp_accounting.pld import pld_privacy_accountant

    found = table.mechanism_of({"noise_multiplier": "1.1", "sample_rate": "0.01", "steps": "1000"})
    library = pld_privacy_accountant.PLDAccountant()
    one = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.1))
    library.compose(dp_event.SelfComposedDpEvent(one, 1000))
    assert answer.epsilon(found, 1e-5).epsilon == pytest.approx(library.get_epsilon(1e-5), rel=2e-3)
    clipped = {"noise_multiplier": 1.1, "max_grad_norm": 3, "sampling_probability": 0.01, "num_steps": 1000}
    other = answer.epsilon(table.mechanism_of(clipped), 1e-5)
    assert other.epsilon == pytest.approx(answer.epsilon(found, 1e-5).epsilon, rel=1e-9)


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"noise_multiplier": 1, "sigma": 1}, ["leave sigma empty"]),
        ({"noise_multiplier": 1, "sensitivity": 1}, ["leave sensitivity empty"]),
        ({"noise_multiplier": 1, "relation": "replace_one"}, ["defined for relation = add_or_remove_one"]),
        ({"noise_multiplier": 1, "mechanism": "laplace"}, ["Gaussian noise without mixing", "laplace"]),
        ({"noise_multiplier": 0}, ["noise_multiplier must be a finite number > 0"]),
        ({"noise_multiplier": "x"}, ["noise_multiplier must be a number"]),
        ({"noise_multiplier": 1, "max_grad_norm": 0}, ["max_grad_norm must be a finite number > 0"]),
        ({"noise_multiplier": 1, "sample_rate": 2}, ["sample_rate must be a finite number > 0 and <= 1"]),
        ({"noise_multiplier": 1, "sample_rate": 0.1, "sampling": "every_round"}, ["sample_rate would be ignored"]),
        ({"noise_multiplier": 1, "target_delta": 1}, ["target_delta must be a finite number > 0 and < 1"]),
        ({"noise_multiplier": 1, "steps": 3, "rounds": 3}, ["rounds is given twice"]),
        ({"noise_multiplier": 1, "sample_rate": 0.1, "sampling": "every_round", "rate": 1}, ["rate is given twice"]),
        (PLAIN | {"sensitivty": 1}, ["did you mean 'sensitivity'?"]),
        (PLAIN | {"sigma": "0,5"}, ["decimal point"]),
        (PLAIN | {"delta": "1,00E-05"}, ["delta must have a decimal point", "'1,00E-05'"]),
        (PLAIN | {"sampling": "poisson", "rate": "0,5 %"}, ["rate must be a share, such as 0.01 for 1 %", "'0,5 %'"]),
        (PLAIN | {"rounds": "60.000"}, ["rounds='60.000' may mean 60 or 60000"]),  # 60 was charged for 60,000
    ],
)
def test_words_that_contradict_each_other(cells: dict[str, Any], words: list[str]) -> None:
    said = error(**cells)
    for word in words:
        assert word in said, said


def test_a_target_delta_and_capitals_are_read() -> None:
    (entry,) = table.read([PLAIN | {"target_delta": "1e-6", "relation": "Replace One"}], None)
    assert (entry.error, entry.delta) == ("", 1e-6)


# files


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_csv_toml_json_and_a_stream_hold_the_same_rows(tmp_path: Path) -> None:
    text = "name,mechanism,sigma,sensitivity,rounds\na,gaussian,16/255,1,\nb,gaussian,2,1,5\n"
    toml = "".join(
        f'[[row]]\nname = "{name}"\nmechanism = "gaussian"\nsigma = {sigma}\nsensitivity = 1\n{more}'
        for name, sigma, more in (("a", '"16/255"', ""), ("b", "2", "rounds = 5\n"))
    )
    rows = [
        {"name": "a", "mechanism": "gaussian", "sigma": "16/255", "sensitivity": 1},
        {"name": "b", "mechanism": "gaussian", "sigma": 2, "sensitivity": 1, "rounds": 5},
    ]
    sources: list[list[Mapping[str, Any]]] = [
        list(table.load_rows(write(tmp_path / "t.csv", text))),
        list(table.load_rows(write(tmp_path / "bom.csv", "\ufeff" + text.replace("\n", "\r\n")))),
        list(table.load_rows(write(tmp_path / "t.toml", toml))),
        list(table.load_rows(write(tmp_path / "bom.toml", "\ufeff" + toml))),
        list(table.load_rows(write(tmp_path / "t.json", json.dumps(rows)))),
        list(table.load_rows(None, io.StringIO(text))),
    ]
    found = [[(e.name, e.mechanism, e.error) for e in table.read(source, 1e-5)] for source in sources]
    assert all(one == found[0] for one in found)
    assert [error for *_, error in found[0]] == ["", ""]


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("t.csv", "name,sigma\né,1\n".encode("latin-1"), "is not UTF-8"),
        ("t.json", b"\xff\xfe", "is not UTF-8"),
        ("t.csv", b"", "is empty"),
        ("t.toml", b"[[row]\n", r"t\.toml"),
        ("t.json", b"{", r"t\.json"),
        ("t.json", b"{}", "a list of objects"),
        ("t.json", b"[1]", "a list of objects"),
        ("t.toml", b"x = 1\n", r"\[\[row\]\] tables"),
        ("t.toml", b"row = 1\n", r"\[\[row\]\] tables"),
    ],
)
def test_files_that_are_no_tables(tmp_path: Path, name: str, content: bytes, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        list(table.load_rows(write(tmp_path / name, content)))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "no.csv", tmp_path / "no.json", tmp_path):
        with pytest.raises(ValueError, match="cannot be read"):
            list(table.load_rows(path))


def test_more_and_fewer_cells_than_the_header() -> None:
    text = "mechanism,sigma,sensitivity\ngaussian,1,1,9\ngaussian,1\ngaussian,1,1\n"
    many, few, good = table.read(table.load_rows(None, io.StringIO(text)), 1e-5)
    assert "more cells than the header" in many.error
    assert "is empty" in few.error
    assert good.error == ""


def test_a_long_table_streams(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(PLAIN)
        writer.writerows(PLAIN.values() for _ in range(4_000))
    tracemalloc.start()
    first = list(islice(table.read(table.load_rows(path), 1e-5), 100))
    rest = sum(not entry.error for entry in table.read(table.load_rows(path), 1e-5))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(first) == 100
    assert rest == 4_000
    assert peak < 2e6


def test_the_shipped_example_is_computed() -> None:
    path = Path(table.__file__).parent / "examples" / "papers.csv"
    entries = list(table.read(table.load_rows(path), 1e-5))
    assert [entry.error for entry in entries if entry.error] == []
    found = list(answer.epsilons([e.mechanism for e in entries if e.mechanism], [e.delta or 0 for e in entries]))
    assert len(found) == len(entries) > 50
