"""The script of all measurements on a GPU: its parts at toy size on a CPU, its goals, and the least time of a step."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import nn

from tests.forked import Done, script

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the folder, under its bare name, for the length of a test."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if (BENCHMARKS / f"{name}.py").exists():
            del sys.modules[name]


def gpu(*arguments: str) -> Done:
    return script(BENCHMARKS / "run.py", "gpu", *arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_script_says_what_can_be_tried() -> None:
    refused = gpu()
    assert refused.returncode == 2
    assert "torch sees no CUDA device; --device cpu --tiny tries the script without one" in refused.stderr
    assert "--device cpu goes with --tiny" in gpu("--device", "cpu").stderr


@pytest.mark.slow
def test_every_part_runs_at_toy_size_and_none_twice(benchmark: Any, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    toy = ("--device", "cpu", "--tiny", "--out", str(out))
    done = gpu(*toy)
    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stdout
    rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert {row["part"] for row in rows} == set(get_args(benchmark("gpu_parts").Part))
    assert all(row["tiny"] and not row["goals"] and row["device"] == "cpu" for row in rows)
    assert all({"driver", "torch", "commit", "date", "seed"} <= set(row) for row in rows)
    assert "none was judged" in done.stdout
    again = gpu(*toy, "--part", "shuffle")
    assert again.stdout.count("is there already") == 2
    assert len(out.read_text("utf-8").splitlines()) == len(rows)
    assert (
        "0.001 seconds are over" in gpu(*toy[:-1], str(tmp_path / "none"), "--part", "fsha", "--seconds", ".001").stdout
    )
    assert not (tmp_path / "none").exists()


def test_the_page_shows_goals_and_leaves_out_toys(benchmark: Any, tmp_path: Path) -> None:
    pages, goal = benchmark("pages"), benchmark("gpu_units").goal
    assert pages.gpu(tmp_path / "none.jsonl") == "No rows yet: no GPU was available."
    row = {"part": "speed", "unit": "vit", "device": "H200", "driver": "570", "torch": "2.15", "date": "2026-11-22T00"}
    met, unmet = goal("ratio", 1.04, most=1.05), goal("times faster", 12.0, least=20)
    rows = [
        {**row, "tiny": False, "ratio": {"n=1": 1.04}, "goals": [met, unmet]},
        {**row, "tiny": True, "toy": 1, "goals": []},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    page = pages.gpu(path)
    assert "| ratio ≤ 1.05 | 1.04 | yes |" in page
    assert "| times faster ≥ 20 | 12 | **no** |" in page
    assert "| speed | vit | ratio n=1 | 1.04 | H200, driver 570, torch 2.15 | 2026-11-22 |" in page
    assert "toy" not in page


def test_operations_and_bytes_of_a_linear_layer(benchmark: Any) -> None:
    limits = benchmark("limits")
    layer = nn.Linear(30, 20, bias=False)
    with limits.numberless(layer):
        x = torch.rand(8, 30)
        cost = limits.counted(lambda: layer(x).square().sum().backward(), layer.parameters())
    assert cost.flops == 2 * (2 * 8 * 30 * 20)  # the output, and the gradient of the weights
    assert cost.trained == 600
    assert cost.activations == 4 * (8 * 30 + 8 * 20)  # what enters the layer, and what is squared
    assert cost.moved == 2 * cost.activations + 36 * cost.trained
    assert cost.least("H200") == (cost.flops / 989e12, cost.moved / 4.8e12)


@pytest.mark.slow
def test_a_round_costs_the_same_for_any_number_of_clients_and_less_if_they_are_mixed(benchmark: Any) -> None:
    limits = benchmark("limits")
    alone, several, pairs, fours = (
        limits.training_round("vit_micro", n, k, 16) for n, k in ((1, 1), (4, 1), (4, 2), (4, 4))
    )
    assert alone.flops == several.flops
    assert several.flops - pairs.flops == 2 * (pairs.flops - fours.flops) > 0  # the server sees 1/k of the images
    assert several.trained > alone.trained
