"""The runner of the benchmarks: it lists them, reads their flags and refuses what does not exist."""

import json
from importlib import import_module
from pathlib import Path

import pytest
import torch

from privkit.domains.base import Batch
from tests.forked import Done, script

ROOT = Path(__file__).resolve().parents[1]


def run(*arguments: str) -> Done:
    return script(ROOT / "benchmarks" / "run.py", *arguments)


def test_the_list_and_an_unknown_name() -> None:
    listed = run()
    assert listed.returncode == 0
    names = listed.stdout.rsplit("Benchmarks: ", 1)[1].strip().split(", ")
    assert {"shuffle", "training", "fsha"} <= set(names)
    unknown = run("shufle")
    assert unknown.returncode == 2
    assert "Benchmarks:" in unknown.stdout


def test_flags_are_the_fields_of_the_options() -> None:
    help_ = run("jigsaw", "--help").stdout
    assert "--part {pictures,tokens}" in help_
    assert "--seeds" in help_
    refused = run("jigsaw", "--part", "tokens")
    assert refused.returncode == 2
    assert "tokens needs --data-root ROOT" in refused.stderr


def test_every_documented_benchmark_exists() -> None:
    pages = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.py")]
    words = [line.split("benchmarks/run.py ")[1].split()[0] for page in pages for line in page.read_text().splitlines()
             if "benchmarks/run.py " in line]  # fmt: skip
    named = {word.strip("`'\"|;:,.)") for word in words} - {"NAME", "[--option", "{name}"}
    there = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    assert len(named) >= 8
    assert named <= there, named - there


def test_label_leakage_mounts_every_attack_that_it_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    """`less_own` asked for labels that the benchmark did not give, and the printed command ended in a trace."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    label_leak = import_module("label_leak")

    def drawn(root: Path, count: int, seed: int, train: bool) -> Batch:
        draws = torch.Generator().manual_seed(seed)
        return Batch(
            x=torch.rand(count, 1, 28, 28, generator=draws), y=torch.arange(count) % 2, ids=torch.arange(count)
        )

    monkeypatch.setattr(label_leak, "zeros_and_fours", drawn)
    given = label_leak.Options(data_root=ROOT, epochs=1, batch=500)
    leaks, _, _ = label_leak.run("PSL: own gradient", given, 0)
    assert {(name, target) for name, target, _ in leaks} == {
        (name, target)
        for name in label_leak.ATTACKS
        for target in ("own", "peer")
        if target == "peer" or "own labels" not in name
    }


def test_single_cells_of_the_mixing_tables_are_of_seed_0() -> None:
    lines = [json.loads(line) for line in (ROOT / "benchmarks/results/mixing/runs.jsonl").read_text().splitlines()]
    cells: dict[tuple[str, ...], list[int]] = {}
    for line in lines:
        cells.setdefault((line["defense"], line["attack"], str(line["epochs"])), []).append(line["seed"])
    assert {tuple(seeds) for seeds in cells.values() if len(seeds) == 1} == {(0,)}  # as the page says


def test_recorded_runs_are_whole() -> None:
    runs = ROOT / "benchmarks" / "results" / "runs.jsonl"
    for line in runs.read_text(encoding="utf-8").splitlines() if runs.exists() else []:
        assert {"benchmark", "arguments", "commit", "date", "processor", "threads", "torch", "output"} <= set(
            json.loads(line)
        )
