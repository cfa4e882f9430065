"""The accountants on the command line: tables, single mechanisms, errors that name row and column, exit codes."""

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import privkit.accountants
from privkit.accountants.bounds import gaussian
from privkit.accountants.columns import COLUMNS
from privkit.cli.app import app
from privkit.errors import UsageError

CLI = Callable[..., subprocess.CompletedProcess[str]]
EXAMPLE = Path(privkit.accountants.__file__).parent / "examples" / "papers.csv"
HEADER = "name,mechanism,sigma,sensitivity\n"


def one_line(text: str) -> str:
    """The only line of an error."""
    (line,) = text.splitlines()
    return line


def test_one_mechanism_by_flags_says_the_exact_value_and_what_it_rests_on(privkit_cli: CLI) -> None:
    done = privkit_cli("epsilon", "--mechanism", "gaussian", "--sensitivity", "1", "--sigma", "1", "--delta", "1e-5")
    assert done.returncode == 0, done.stderr
    assert "4.3772" in done.stdout
    assert "replace-one" in done.stdout
    assert "the lower model is frozen" in done.stdout


@pytest.mark.parametrize(("sigma", "told"), [("0.2", True), ("5", False)])
def test_a_huge_epsilon_is_remarked(privkit_cli: CLI, sigma: str, told: bool) -> None:
    command = f"epsilon --mechanism gaussian --sensitivity 1 --rounds 10 --delta 1e-5 --sigma {sigma}"
    assert ("proves nothing of use" in privkit_cli(*command.split()).stdout) == told


def test_a_row_in_words_of_dp_sgd_is_told_as_dp_sgd(privkit_cli: CLI, tmp_path: Path) -> None:
    table = tmp_path / "opacus.csv"
    table.write_text("noise_multiplier,sample_rate,steps,max_grad_norm,target_delta\n1.1,.01,100,1,1e-5\n")
    said = privkit_cli("epsilon", str(table), "--terms").stdout
    assert "trust model: central: whoever trains holds the records" in said
    assert "local:" not in said
    assert "smashed data are clipped" not in said.partition("unit of privacy")[2]


def test_a_guarantee_in_the_terms_of_nist(privkit_cli: CLI, tmp_path: Path) -> None:
    command = ("epsilon", "--mechanism", "gaussian", "--sensitivity", "1", "--sigma", "2", "--rounds", "4", "--terms")
    printed = privkit_cli(*command, "--delta", "1e-5").stdout
    for line in ("unit of privacy: one record", "zero-concentrated DP: ρ = 0.5", "Gaussian DP: μ = 1 at every δ"):
        assert line in printed
    (row,) = json.loads(privkit_cli(*command, "--delta", "1e-5", "--json").stdout)
    assert row["terms"]["trust model"].startswith("local")
    told = " ".join(privkit_cli("epsilon", "--help").stdout.replace("│", "").split())
    assert "--out then takes .json" in told
    assert "on a coarse grid instead of the fine one" in told  # --fast was said not to compose
    table = tmp_path / "table.csv"
    table.write_text(HEADER + "a,gaussian,2,1\nb,gaussian,-1,1\n")
    out = tmp_path / "out.json"
    assert privkit_cli("epsilon", str(table), "--delta", "1e-5", "--terms", "--out", str(out)).returncode == 3
    assert ["terms" in stored for stored in json.loads(out.read_text())] == [True, False]
    refused = privkit_cli(*command, "--delta", "1e-5", "--out", str(tmp_path / "out.csv"))
    assert refused.returncode == 2
    assert ".json" in one_line(refused.stderr)


def test_a_table_is_computed_row_by_row_and_stored(privkit_cli: CLI, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text(HEADER + "a,gaussian,2,1\nb,gaussian,-1,1\nc,gaussian,,1\nd,gausian,1,1\ne,gaussian,nan,1\n")
    done = privkit_cli("epsilon", str(table), "--delta", "1e-5", "--out", str(tmp_path / "out.csv"))
    assert done.returncode == 3
    errors = done.stderr.splitlines()
    assert [error.split(":")[1].strip() for error in errors] == ["line 3 (b)", "line 4 (c)", "line 5 (d)", "line 6 (e)"]
    assert all(word in error for error, word in zip(errors, ("-1", "sigma", "'gausian'", "nan"), strict=True))
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert [row["status"] for row in rows] == ["ok", "error", "error", "error", "error"]
    assert float(rows[0]["epsilon"]) == pytest.approx(gaussian.epsilon(1e-5, 0.5), rel=1e-12)


def test_nothing_computed_exits_with_2(privkit_cli: CLI, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text(HEADER + "a,gaussian,-2,1\n")
    assert privkit_cli("epsilon", str(table), "--delta", "1e-5").returncode == 2
    table.write_text(HEADER)
    done = privkit_cli("epsilon", str(table), "--delta", "1e-5")
    assert (done.returncode, "holds no rows" in one_line(done.stderr)) == (2, True)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("t.csv", b"", "empty"),
        ("t.csv", b"name,mechanism\n\xff\xfe,gaussian\n", "UTF-8"),
        ("t.toml", b"[[row]\n", "t.toml"),
        ("t.json", b"{", "t.json"),
        ("t.json", b'{"a": 1}', "list of objects"),
        ("t.json", b"[" * 100_000, "t.json"),
        ("t.csv", b"mechanism,sigma,sigma\ngaussian,1,2\n", "twice"),
        ("t.csv", b"name,mechanism\n" + b"x" * 200_000 + b",gaussian\n", "t.csv"),
    ],
)
def test_an_unreadable_table_is_one_sentence(
    privkit_cli: CLI, tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    done = privkit_cli("epsilon", str(tmp_path / name), "--delta", "1e-5")
    assert done.returncode == 2
    assert said in one_line(done.stderr)


def test_rows_without_a_name_are_called_by_their_line_in_results_and_errors(privkit_cli: CLI, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("mechanism,sigma,sensitivity\ngaussian,2,1\ngaussian,x,1\n")
    done = privkit_cli("epsilon", str(table), "--delta", "1e-5")
    assert " line 2 " in done.stdout
    assert one_line(done.stderr).startswith("privkit: line 3: sigma")


def test_one_impossible_row_leaves_the_others(privkit_cli: CLI, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text(HEADER + "a,gaussian,2,1\nb,gaussian,1e-200,1\n")
    done = privkit_cli("epsilon", str(table), "--delta", "1e-5")
    assert (done.returncode, "line 3 (b): sigma is too small" in one_line(done.stderr)) == (3, True)
    assert "1.9931" in done.stdout


def test_standard_input_that_is_no_utf8_is_one_sentence(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "privkit", "epsilon", "-", "--delta", "1e-5"], input=b"\xff\xfe", capture_output=True
    )
    assert (done.returncode, "UTF-8" in one_line(done.stderr.decode())) == (2, True)


def test_unknown_columns_and_flags_are_refused_with_what_is_allowed(privkit_cli: CLI, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("mechanism,sigma,sensitivity,epochs\ngaussian,1,1,3\n")
    done = privkit_cli("epsilon", str(table), "--delta", "1e-5")
    assert (done.returncode, "'epochs'" in one_line(done.stderr)) == (2, True)
    done = privkit_cli("epsilon", "--sigmma", "1")
    assert (done.returncode, "--sigma" in one_line(done.stderr)) == (2, True)
    done = privkit_cli("epsilon")
    assert (done.returncode, "parameter table" in one_line(done.stderr)) == (2, True)
    done = privkit_cli("epsilon", "missing.csv", "--delta", "1e-5")
    assert (done.returncode, "missing.csv" in one_line(done.stderr)) == (2, True)
    done = privkit_cli("epsilon", str(table), "--mechanism", "gaussian")
    assert (done.returncode, "table.csv and --mechanism were given; leave one out" in one_line(done.stderr)) == (
        2,
        True,
    )
    done = privkit_cli("epsilon", str(table), "--out", "x.xlsx")
    assert (done.returncode, ".csv" in one_line(done.stderr)) == (2, True)


def test_standard_input_toml_and_json_give_the_same_numbers(privkit_cli: CLI, tmp_path: Path) -> None:
    text = HEADER + "a,gaussian,2,1\n"
    (tmp_path / "t.toml").write_text('[[row]]\nname = "a"\nmechanism = "gaussian"\nsigma = 2\nsensitivity = 1\n')
    (tmp_path / "t.json").write_text('[{"name": "a", "mechanism": "gaussian", "sigma": 2, "sensitivity": 1}]')
    outputs = [
        privkit_cli("epsilon", "-", "--delta", "1e-5", input=text),
        privkit_cli("epsilon", str(tmp_path / "t.toml"), "--delta", "1e-5"),
        privkit_cli("epsilon", str(tmp_path / "t.json"), "--delta", "1e-5"),
    ]
    assert [done.returncode for done in outputs] == [0, 0, 0]
    assert len({done.stdout for done in outputs}) == 1


def test_the_papers_table_compares_with_the_published_formulas(privkit_cli: CLI, tmp_path: Path) -> None:
    out = tmp_path / "papers.json"
    done = privkit_cli("epsilon", str(EXAMPLE), "--compare", "--fast", "--out", str(out))
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(out.read_text())}
    published = rows["DP-MixSL k=5 sigma=16/255"]
    assert published["published_at_order_2"] == pytest.approx(22.606347656326065, rel=1e-10)  # Fig. 7
    assert published["published"] < published["published_at_order_2"]
    assert published["epsilon"] == 0  # publishing half of the clients satisfies δ = .5
    laplace = rows["CNN on MNIST laplace 0.3"]
    assert 1550 < laplace["epsilon"] < 1600  # coordinates composed; the sum of their shifts is 1706.67
    assert laplace["published"] == pytest.approx(106.66666666666667, rel=1e-12)
    assert "L1" in laplace["objection"]


@pytest.mark.parametrize("suffix", ["md", "tex", "csv", "json"])
def test_every_format_is_written(privkit_cli: CLI, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"out.{suffix}"
    done = privkit_cli("epsilon", "-", "--delta", "1e-5", "--out", str(out), input=HEADER + "a|b,gaussian,2,1\n")
    assert done.returncode == 0, done.stderr
    assert "1.99309" in out.read_text() or "1.9931" in out.read_text()


def test_an_output_that_cannot_be_written_exits_with_3(privkit_cli: CLI, tmp_path: Path) -> None:
    out = tmp_path / "no" / "out.csv"
    done = privkit_cli("epsilon", "-", "--delta", "1e-5", "--out", str(out), input=HEADER + "a,gaussian,2,1\n")
    assert (done.returncode, str(out) in one_line(done.stderr)) == (3, True)


def test_who_adds_the_noise_is_said_where_it_is_assumed(privkit_cli: CLI) -> None:
    flags = ["--sigma", "1", "--dimensions", "64", "--clip-high", "1", "--group", "2", "--delta", "1e-5", "--fast"]
    for kind, site, told in (
        ("dp_cutmixsl", ("--patches", "64"), True),
        ("dp_cutmixsl", ("--patches", "64", "--noise-site", "mixer"), False),
        ("dp_mixsl", (), False),
    ):
        said = privkit_cli("epsilon", "--mechanism", kind, *flags, *site).stdout
        assert ("give noise_site = client for the defense's ε" in " ".join(said.split())) is told, said
    schema = dict(line.split(maxsplit=1) for line in privkit_cli("epsilon", "--schema").stdout.splitlines())
    for column, words in {
        "noise_site": "mixer, client",
        "relation": "replace_one, add_or_remove_one",
        "lower_model": "frozen, trained, averaged",
        "ratio": "equal, fixed, counts, dirichlet, dirichlet_counts",
    }.items():
        assert schema[column].startswith(f"{words}: ")


def test_the_schema_lists_every_flag(privkit_cli: CLI) -> None:
    schema = privkit_cli("epsilon", "--schema").stdout
    flags = privkit_cli("epsilon", "--help").stdout
    for line in schema.splitlines():
        column = line.split()[0]
        if column != "source":
            assert "--" + column.replace("_", "-") in flags


def test_permutation_counts(privkit_cli: CLI) -> None:
    done = privkit_cli("permutations", "--tokens", "196", "--batch", "50", "--keep", "0.4", "--json")
    found = json.loads(done.stdout)
    assert found["quantities"]["log10_permutations"] == pytest.approx(28239.734373121762, rel=1e-9)
    assert found["epsilon"] is None
    done = privkit_cli("permutations", "--tokens", "0", "--batch", "50")
    assert (done.returncode, "tokens" in one_line(done.stderr)) == (2, True)


def table_of(tmp_path: Path, text: str, name: str = "table.csv") -> str:
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


def epsilons(done: subprocess.CompletedProcess[str]) -> list[float]:
    return [row["epsilon"] for row in json.loads(done.stdout)]


@pytest.mark.parametrize(
    "text",
    [
        "mechanism;sigma;sensitivity\ngaussian;2;1\n",
        "mechanism\tsigma\tsensitivity\ngaussian\t2\t1\n",
        "# from the paper's table 3\n\n Mechanism , SIGMA,Sensitivity\n# the first row\nGaussian, 2, 1\n,,\n",
        '"mechanism","sigma","name","sensitivity"\n"gaussian","2","a, ""b""\n# no comment","1"\n',
    ],
    ids=["semicolons", "tabs", "comments and capitals", "quotes"],
)
def test_tables_as_people_write_them(privkit_cli: CLI, tmp_path: Path, text: str) -> None:
    done = privkit_cli("epsilon", table_of(tmp_path, text), "--delta", "1e-5", "--json")
    assert done.returncode == 0, done.stderr
    assert epsilons(done) == [pytest.approx(gaussian.epsilon(1e-5, 0.5), rel=1e-12)]


def test_a_refused_row_names_its_line_and_every_wrong_cell(privkit_cli: CLI, tmp_path: Path) -> None:
    text = "# a note\n" + HEADER + "\na,gaussian,1,1\n,,,\n# another\n,gaussian,-1,x\n"
    done = privkit_cli("epsilon", table_of(tmp_path, text), "--delta", "1e-5", "--json")
    said = one_line(done.stderr)
    assert said.startswith("privkit: line 7: sigma must be a finite number > 0, got -1.0; sensitivity must be a number")
    assert [(row["row"], row["line"]) for row in json.loads(done.stdout)] == [(1, 4), (2, 7)]


def test_one_message_a_table_for_a_fault_of_all_rows(privkit_cli: CLI, tmp_path: Path) -> None:
    many = "".join(f"r{n},gaussian,1,1\n" for n in range(50))
    done = privkit_cli("epsilon", table_of(tmp_path, HEADER + many), "--json")
    assert (done.returncode, one_line(done.stderr)) == (
        2,
        "privkit: all 50 rows: delta is empty; fill the column or give --delta",
    )
    rows = json.loads(done.stdout)
    assert [row["status"] for row in rows] == ["error"] * 50
    assert not any(row["sound"] for row in rows)
    done = privkit_cli("epsilon", table_of(tmp_path, HEADER.replace("sigma", "sgima") + many), "--delta", "1e-5")
    assert (done.returncode, "unknown column 'sgima'; did you mean 'sigma'?" in one_line(done.stderr)) == (2, True)
    done = privkit_cli("epsilon", table_of(tmp_path, "mechansim,sgima,x\na,1,1\n"))
    assert "unknown columns 'mechansim', 'sgima', 'x'; did you mean 'mechanism', 'sigma'?" in one_line(done.stderr)
    some = many.replace("gaussian,1,", "gaussian,0,", 5)
    done = privkit_cli("epsilon", table_of(tmp_path, HEADER + some), "--delta", "1e-5", "--fast")
    assert "lines 2 (r0), 3 (r1), 4 (r2) and 2 more: sigma must be" in one_line(done.stderr)


def test_randomized_response_has_its_own_noise(privkit_cli: CLI) -> None:
    flags = ("--mechanism", "randomized_response", "--classes", "4", "--epsilon", "2", "--delta", "1e-5")
    done = privkit_cli("calibrate", "sigma", *flags, "--noise-parameter", ".5")
    assert (done.returncode, "calibrate noise_parameter" in one_line(done.stderr)) == (2, True)
    done = privkit_cli("calibrate", "noise_parameter", *flags)
    assert done.stdout.startswith("noise_parameter = 0.38501")


def test_a_share_of_patches_that_is_none(privkit_cli: CLI) -> None:
    done = privkit_cli("permutations", "--tokens", "16", "--keep", "2")
    assert (done.returncode, "2 of 16 patches are --keep 0.125" in one_line(done.stderr)) == (2, True)
    done = privkit_cli("permutations", "--tokens", "16", "--keep", "0.5")
    assert (done.returncode, "give --batch" in one_line(done.stderr)) == (2, True)


COLUMN = st.sampled_from([column.name for column in COLUMNS])
VALUE = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        ["nan", "inf", "-inf", "1e999", "-0", "0", "1", "2", "1e-300", "1e300", "16/255", "1/0", "true", "64;64"]
    ),
    st.sampled_from(["dp_sl", "dp_mixsl", "dp_cutmixsl", "gaussian", "laplace", "one_hot", "box", "poisson"]),
    st.sampled_from(["without_replacement", "client", "record", "dirichlet", "counts", "fixed", "add_or_remove_one"]),
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cells=st.dictionaries(COLUMN, VALUE, max_size=12), kind=st.sampled_from(["gaussian", "laplace", "dp_cutmixsl"]))
def test_whatever_a_table_holds_no_traceback_reaches_a_user(
    cells: dict[str, str], kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"mechanism": kind, "sigma": "1", "dimensions": "4", "clip_high": "1", "patches": "16", "group": "2", **cells}
    table = tmp_path / "fuzz.json"
    table.write_text(json.dumps([row]))
    with suppress(UsageError):  # one sentence and exit code 2
        app(["epsilon", str(table), "--delta", "1e-5", "--fast"], standalone_mode=False)
    said = capsys.readouterr()
    shown = said.out.lower().replace(cells.get("name", "").strip().lower(), "")  # a row may be called "NaN"
    assert "nan" not in shown.replace("name", "")
    for line in said.err.splitlines():
        assert line.startswith("privkit: row 1")


@pytest.mark.slow
def test_the_doctor_reproduces_every_reference_value(privkit_cli: CLI) -> None:
    done = privkit_cli("doctor")
    assert done.returncode == 0, done.stdout
    total = int(done.stdout.split()[2])
    assert total >= 62
    assert done.stdout.startswith(f"{total} of {total} reference values reproduced")
