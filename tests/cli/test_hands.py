"""What a user's hand may type: each slip is told as what it is, with what is allowed and what to do."""

import csv
import io
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from privkit.audit import worker
from privkit.audit.run import AuditRun, check_workers
from privkit.audit.seed_data import prepare
from privkit.cli.estimate import preview
from privkit.domains.splits import spare
from privkit.errors import RunFolderError, UsageError
from privkit.reports.budgets import BudgetRow, csv_text
from privkit.settings.resolve import resolve
from tests.small import SMALL

Cli = Callable[..., subprocess.CompletedProcess[str]]
TINY = ("--defense", "none", "--attack", "mean_image", "--dataset", "tiny_digits", "--budget", "smoke")
GAUSSIAN = ("epsilon", "--sigma", "1", "--sensitivity", "1")
SLIPS = [
    (
        ("audit", *TINY, "--out", "/proc/nope/deep"),
        "cannot make the folder /proc/nope/deep (No such file",
    ),
    (("audit", "--grid", "grid.toml", "--out", "/proc/nope"), "cannot make the folder /proc/nope ("),
    (("audit", "--grid", "grid.toml", "--out", "/dev/null/x"), "cannot make the folder /dev/null/x ("),
    (("audit", "--seed", "0-4"), "one whole number, got '0-4'; repeat the flag for several: --seed 0 --seed 1"),
    (("audit", "--seed", "0,1"), "one whole number, got '0,1'; repeat the flag for several: --seed 0 --seed 1"),
    (("audit", "--threads", "0-4"), "'--threads': one whole number such as 4, got '0-4'"),
    (("audit", "--workers", "0-4"), "'--workers': one whole number such as 4, got '0-4'"),
    (("record", "run", "--out", "r", "--seed", "0-4"), "'--seed': one whole number such as 4, got '0-4'"),
    (("permutations", "--tokens", "0-4"), "'--tokens': one whole number such as 4, got '0-4'"),
    (("audit", *TINY, "--device", "cuda:x"), "device must be auto, cpu, cuda, or cuda:0, cuda:1, …, got 'cuda:x'"),
    (("audit", *TINY, "--device", "cpu:1"), "device must be auto, cpu, cuda, or cuda:0, cuda:1, …, got 'cpu:1'"),
    ((*GAUSSIAN, "--mechanism", "gausian"), "got 'gausian'; did you mean 'gaussian'?"),
    ((*GAUSSIAN, "--mechanism", "gaussian"), "row 1: delta is empty; fill the column or give --delta"),
    (("epsilon", "table.xlsx"), "table.xlsx is a spreadsheet (.xlsx); save its table as CSV in UTF-8"),
    (("epsilon", "renamed.csv"), "renamed.csv is not text: it holds zero bytes; save the table as CSV in UTF-8"),
    (("epsilon", "sixteen.csv"), "sixteen.csv is not UTF-8 text (byte 0); save it as CSV in UTF-8"),
]


@pytest.mark.slow(but=3)
@pytest.mark.parametrize(("arguments", "said"), SLIPS, ids=[" ".join(a) for a, _ in SLIPS])
def test_a_slip_is_told_as_what_it_is(privkit_cli: Cli, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    settings = "".join(f"{flag[2:]} = {value!r}\n" for flag, value in zip(TINY[::2], TINY[1::2], strict=True))
    (tmp_path / "grid.toml").write_text(settings)
    for name in ("table.xlsx", "renamed.csv"):
        (tmp_path / name).write_bytes(b"PK\x03\x04" + bytes(200))
    (tmp_path / "sixteen.csv").write_text("mechanism,sigma\n", "utf-16")
    done = privkit_cli(*arguments)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert len(done.stderr) < 400
    assert "\\x00" not in done.stderr


def test_a_column_without_end_is_cut(privkit_cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("a" * 10_000 + "\n1\n")
    assert len(privkit_cli("epsilon", "table.csv").stderr) < 200


def test_an_audit_takes_the_devices_that_a_worker_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolve({"device": "cuda:1", **SMALL})
    assert config.device == "cuda:1"
    with pytest.raises(UsageError, match="share all GPUs, got --device cuda:1; use --device cuda"):
        check_workers(config, 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    assert worker.pick_device(config.device) == torch.device("cuda")
    assert taken == [1]
    with pytest.raises(UsageError, match="--device cuda:7, but torch sees 2 CUDA devices; use cuda:0 to cuda:1"):
        worker.pick_device("cuda:7")
    monkeypatch.setattr(torch.distributed, "is_torchelastic_launched", lambda: True)
    with pytest.raises(UsageError, match="torchrun gives each process a GPU of its own"):
        worker.pick_device("cuda:1")


@pytest.mark.parametrize("out", [None, Path("mine/run")])
def test_a_dry_run_names_the_folder_of_the_run(out: Path | None) -> None:
    config = resolve({"defense": "none", "attack": "mean_image", **SMALL})
    assert preview(config, out).endswith(f"run folder {out or f'privkit-runs/tiny_digits-{config.fingerprint}'}")


def test_a_dry_run_refuses_the_folder_of_another_configuration(small_run: AuditRun) -> None:
    config = resolve({"defense": "none", "attack": "mean_image", **SMALL})
    with pytest.raises(RunFolderError, match="belongs to another configuration"):
        preview(config, small_run.folder)


def test_the_flag_of_a_dry_run_reaches_its_estimate(privkit_cli: Cli) -> None:
    assert privkit_cli("audit", *TINY, "--dry-run", "--out", "mine").stdout.strip().endswith("run folder mine")


def test_texts_of_the_smallest_budget_have_enough_for_the_control_experiments() -> None:
    """Two definitions may be the same words: the one that is left out is replaced, and never by a known one."""
    settings = {"defense": "none", "dataset": "definitions", "budget": "smoke"}
    config = resolve({**settings, "attack": "jigsaw"})
    found = prepare(config, 0, torch.device("cpu"))
    assert found.dropped == 1
    assert len(found.auxiliary) == 200 == 4 * config.training.batch_size
    assert found.hashes["auxiliary"] == found.auxiliary.sha256()
    known = {tuple(row) for part in (found.splits.private, found.victims) for row in part.x.tolist()}
    assert not known & {tuple(row) for row in found.auxiliary.x.tolist()}
    assert len(set(found.auxiliary.ids.tolist())) == 200
    parts = torch.cat([part.ids for part in found.splits.parts.values()])
    assert torch.isin(found.auxiliary.ids, parts).sum() == 199
    alone = prepare(resolve({**settings, "attack": "mean_image"}), 0, torch.device("cpu"))
    assert len(alone.auxiliary) == 199


def test_spare_records_are_of_no_part() -> None:
    from privkit.domains.images.embedded import TinyDigits
    from privkit.domains.splits import split

    pools = TinyDigits().open(None, download=False, train_images=1)
    sizes = {"private": 100, "auxiliary": 80, "test": 20, "validation": 10, "seed": 3}
    parts = split(pools, **sizes)
    others = pools.train.take(spare(pools, **sizes).copy()).ids
    taken = torch.cat([part.ids for part in parts.parts.values()])
    assert not torch.isin(others, taken).any()
    assert len(others) == len(pools.train) - 100 - 80 - 10 - (20 if pools.test is None else 0)


def test_a_part_that_is_too_small_is_told_in_the_words_of_its_records() -> None:
    config = resolve({"dataset": "definitions", "budget": "smoke:auxiliary=60", "attack": "jigsaw"})
    with pytest.raises(UsageError, match="a quarter of the 60 auxiliary token sequences"):
        prepare(config, 0, torch.device("cpu"))


def test_a_table_of_budgets_keeps_the_columns_of_its_parameters(privkit_cli: Cli, tmp_path: Path) -> None:
    """As they were given, also of refused and short rows; what the answer has under the same name stands once."""
    (tmp_path / "in.csv").write_text(
        "name,mechanism,sigma,sensitivity,Steps,clip_low,source\n"
        "a,gaussian,2,1,10,,Tab 1\nb,gausian,1,1\nc,gaussian,3,1,5,-1,=x\n"
    )
    assert privkit_cli("epsilon", "in.csv", "--delta", "1e-5", "--out", "out.csv").returncode == 3
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text(), newline="")))
    columns = ("name", "mechanism", "sigma", "sensitivity", "steps", "clip_low", "source")
    assert [tuple(row[name] for name in columns) for row in rows] == [
        ("a", "gaussian", "2", "1", "10", "", "Tab 1"),
        ("b", "gausian", "1", "1", "", "", ""),
        ("c", "gaussian", "3", "1", "5", "-1", "'=x"),
    ]
    assert [row["status"] for row in rows] == ["ok", "error", "error"]  # clip_low means nothing beside sensitivity
    (tmp_path / "in.json").write_text(
        json.dumps([{"mechanism": "gaussian", "sigma": 1, "sensitivity": 1}, {"mechanism": "dp_sl", "counts": [3, 4]}])
    )
    first, second = json.loads(privkit_cli("epsilon", "in.json", "--delta", "1e-5", "--json").stdout)
    assert (first["sigma"], first["counts"], second["sigma"], second["counts"]) == ("1", "", "", "3;4")


def test_columns_of_a_table_are_those_of_its_first_row() -> None:
    given = (("sigma", "1"), ("name", "a"))
    rows = [BudgetRow(row=1, name="a", epsilon=1.0, given=given), BudgetRow(row=2, name="b", epsilon=1.0)]
    read = list(csv.DictReader(io.StringIO("".join(csv_text(rows)), newline="")))
    assert [row["sigma"] for row in read] == ["1", ""]
    assert next(iter(csv_text([]))).startswith("row,name,")
