"""The parts of `benchmarks/gpu.py`: what each measures, at full size and at toy size."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Literal
from unittest.mock import patch
from xml.etree import ElementTree

import shuffle
import torch
import training
from gpu_attacks import hijack, long_attacks, white_box
from gpu_units import Enough, Setting, Stopwatch, Unit, Values, goal
from limits import training_round
from torch import Generator

from privkit.attacks.goals import reconstruct
from privkit.audit.run import run_audit
from privkit.defenses import BatchShuffle
from privkit.papers.reproduce import Work, measure_cell, needed_cells
from privkit.training import loop

ROOT = Path(__file__).resolve().parents[1]
TINY = ("--dataset", "tiny_digits", "--budget", "smoke")
Part = Literal[
    "tests", "capture", "speed", "training", "white_box", "fsha", "attacks", "shuffle", "scoring", "audit", "paper"
]


def tests(setting: Setting) -> Iterator[Unit]:
    """(a) Run the tests marked `gpu`."""

    def run() -> Values:
        files = sorted(str(path) for path in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text())
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "tests.xml"
            command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", f"--junitxml={report}", *files]
            subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
            suite = next(ElementTree.parse(report).getroot().iter("testsuite"))
        counts = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
        bad = counts["failures"] + counts["errors"] + counts["skipped"]
        return {**counts, "goals": [goal("tests marked gpu that fail or are skipped", bad, most=0)]}

    yield "tests marked gpu", run


PAPERS_VIT = "vit_tiny6:grid=4,cut=embedding,pool=token,class_token=client"
"""CutMixSL's network: 16 tokens and a class token."""


def capture(setting: Setting) -> Iterator[Unit]:
    """(b) Time a round of 1,280 images: kernels started one by one or as one CUDA graph, compiled or not."""
    rounds, epochs, batch = (1, 4, 8) if setting.tiny else (10, 8, 1_280)

    def run(name: str, n: int, group: int, compiled: bool) -> Values:
        images = training.data(batch * rounds, setting.device)
        took: dict[str, float] = {}
        curves = []
        for label, least in (("eager", inf), ("captured", 1)):
            watch = Stopwatch(epochs + 1)
            learn = training.learner(name, images, batch // n, n, group, {"dynamic": False} if compiled else None)
            with patch.object(loop, "CAPTURE_FROM_STEPS", least):
                curves.append(learn(epochs, watch.report))
            took[label] = 1e3 * watch.epoch_seconds() / rounds
        return {
            "ms_a_round": took,
            "times_faster": took["eager"] / took["captured"],
            "same_losses": curves[0] == curves[1],
        }

    whole = "vit_micro" if setting.tiny else "vit_tiny6"
    for name in ("vit_micro",) if setting.tiny else (PAPERS_VIT, whole):
        for n, group in ((1, 1), (4, 2)) if setting.tiny else ((1, 1), (10, 1), (10, 2)):
            yield f"{name}, {'CutMixSL' if group > 1 else 'PSL'}, n={n}", partial(run, name, n, group, False)
    if not setting.tiny:
        yield f"{PAPERS_VIT}, compiled, CutMixSL, n=10", partial(run, PAPERS_VIT, 10, 2, True)


RATIOS = {1: 1.05, 10: 1.10, 100: 1.3}
"""Number of clients -> the goal: the largest allowed ratio of PSL's time to that of centralized training."""


MODES: dict[str, tuple[Mapping[str, Any] | None, bool]] = {
    "eager": (None, False),
    "CUDA graphs": (None, True),
    "torch.compile and CUDA graphs": ({"dynamic": False}, True),  # one shape, as in a run
}
"""Way to run a step -> arguments of `nn.Module.compile`, and whether the step is captured as a CUDA graph."""


def speed(setting: Setting) -> Iterator[Unit]:
    """(c) Time PSL and CutMixSL, and a hand-written loop over the uncut model, which runs its steps in the same way."""
    models = ("vit_micro",) if setting.tiny else (PAPERS_VIT, "vit_tiny6", "vgg16")
    batch, steps, turns = (8, 1, 1) if setting.tiny else (2_000, 10, 3)
    numbers = (1, 4) if setting.tiny else (1, 10, 100)

    def run(name: str, mode: Mapping[str, Any] | None, captured: bool) -> Values:
        torch._dynamo.reset()
        torch._dynamo.config.recompile_limit = 64  # five shapes share their code
        images = training.data(batch * steps, setting.device)
        how: dict[str, Any] = {"compiled": mode, "captured": captured}
        works = {"centralized": training.centralized(name, images, batch, **how)}
        for n in numbers:
            works[f"PSL, n={n}"] = training.privkit(name, images, batch, n, **how)
            if n > 1:
                works[f"CutMixSL, n={n}"] = training.privkit(name, images, batch, n, group=2, **how)
                if not captured and n <= 10:  # a hundred clients one after another take seconds a round
                    works[f"loop over clients, n={n}"] = training.looped(name, images, batch, n)
        with patch.object(loop, "CAPTURE_FROM_STEPS", 1 if captured else inf):
            turned = training.in_turns(works, setting.device, turns)
        wall = {label: seconds / steps for label, (seconds, _) in turned.items()}
        base, peak = wall["centralized"], setting.peak()
        values: Values = {
            "batch": batch,
            "ms_a_round": {label: 1e3 * seconds for label, seconds in wall.items()},
            "images_a_second": {label: batch / seconds for label, seconds in wall.items()},
            "ratio": {label: seconds / base for label, seconds in wall.items()},
            "faster_than_the_loop": {
                f"n={n}": wall[label] / wall[f"PSL, n={n}"]
                for n in numbers
                if (label := f"loop over clients, n={n}") in wall
            },
        }
        if peak is not None:
            flops = training_round(name, 1, 1, batch).flops
            values["share_of_bf16_peak"] = {
                label: flops / wall[label] / peak[0] for label in ("centralized", "PSL, n=1")
            }
        psl = {n: values["ratio"][f"PSL, n={n}"] for n in numbers}
        goals = [
            goal(f"{name}, {mode_of(mode, captured)}: PSL / centralized, n={n}", psl[n], most=RATIOS.get(n, 0))
            for n in numbers
        ]
        return {**values, "goals": goals}

    def mode_of(mode: Mapping[str, Any] | None, captured: bool) -> str:
        return next(label for label, given in MODES.items() if given == (mode, captured))

    for name in models:
        for label, (mode, captured) in MODES.items():
            if setting.device.type == "cuda" or not captured:
                yield f"{name}, {label}", partial(run, name, mode, captured)


def whole_training(setting: Setting) -> Iterator[Unit]:
    """(d) Time ten epochs of CutMixSL with 10 clients; run all 600 if the time suffices."""
    images, clients, batch, epochs, timed = (40, 2, 5, 4, 2) if setting.tiny else (50_000, 10, 128, 600, 10)

    def run() -> Values:
        data = training.data(images, setting.device)
        learn = training.learner("vit_micro" if setting.tiny else PAPERS_VIT, data, batch, clients, group=2)
        watch = Stopwatch(epochs)

        def noted(done: int, total: int, value: float) -> None:
            watch.report(done, total, value)
            if done == timed and watch.epoch_seconds() * (epochs - timed) > setting.left:
                raise Enough

        with suppress(Enough):
            learn(epochs, noted)
        ran = len(watch.ended) - 1
        minutes = watch.epoch_seconds() * epochs / 60
        whole = (watch.ended[-1] - watch.ended[0]) / 60 if ran == epochs else None
        taken = minutes if whole is None else whole
        return {
            "epochs_run": ran,
            "epoch_seconds": watch.epoch_seconds(),
            "minutes_extrapolated": minutes,
            "minutes_run": whole,
            "goals": [goal(f"minutes of {epochs} epochs of CutMixSL", taken, most=3)],
        }

    yield f"{epochs} epochs, {clients} clients, {images:,} images", run


def gather(setting: Setting) -> Iterator[Unit]:
    """(h) Compare batch shuffling, which must read and write each number once, with the memory's bandwidth."""
    size = (2, 9, 4) if setting.tiny else (shuffle.BATCH, shuffle.TOKENS, shuffle.WIDTH)
    repeats = 2 if setting.tiny else 200

    def run(dtype: torch.dtype) -> Values:
        draws = Generator(setting.device).manual_seed(0)
        tokens = torch.randn(1, *size, generator=draws, device=setting.device).to(dtype)
        labels, defense = torch.zeros(1, size[0], device=setting.device), BatchShuffle(keep=shuffle.KEEP)

        def seconds(work: Callable[[], object]) -> float:
            spans = []
            for _ in range(5):
                setting.synchronize()
                start = perf_counter()
                for _ in range(repeats):  # one after another, as in training: launches overlap with work
                    work()
                setting.synchronize()
                spans.append((perf_counter() - start) / repeats)
            return median(spans)

        shuffled = seconds(lambda: defense.apply(tokens, labels, draws))
        copied = seconds(tokens.clone)
        values: Values = {"us_shuffle": 1e6 * shuffled, "us_copy": 1e6 * copied, "ratio": shuffled / copied}
        if (peak := setting.peak()) is not None:
            values["share_of_bandwidth"] = 2 * tokens.nbytes / shuffled / peak[1]
            values["share_of_bandwidth_copy"] = 2 * tokens.nbytes / copied / peak[1]
        return values

    for dtype in (torch.float32, torch.bfloat16):
        yield f"B={size[0]} N={size[1]} D={size[2]}, {str(dtype).removeprefix('torch.')}", partial(run, dtype)


def scoring(setting: Setting) -> Iterator[Unit]:
    """(i) Time of computing SSIM and PSNR, as a share of the time of the whole audit."""

    def run() -> Values:
        spent, score = [0.0], reconstruct.score

        def timed(*given: Any, **named: Any) -> Any:
            setting.synchronize()
            start = perf_counter()
            try:
                return score(*given, **named)
            finally:
                spent[0] += perf_counter() - start

        size: dict[str, Any] = {"dataset": "tiny_digits", "budget": "smoke"} if setting.tiny else {"budget": "small"}
        began = perf_counter()
        with tempfile.TemporaryDirectory() as folder, patch.object(reconstruct, "score", timed):
            run_audit(
                defense="batch_shuffle",
                attack="mean_image" if setting.tiny else "black_box",
                device=setting.device.type,
                out=f"{folder}/run",
                **size,
            )
        whole = perf_counter() - began
        return {"seconds": whole, "seconds_scoring": spent[0], "share": spent[0] / whole}

    yield "audit of batch_shuffle", run


def audit(setting: Setting) -> Iterator[Unit]:
    """(j) Time an audit on the command line, from the start of the process to its report."""

    def run() -> Values:
        command = [sys.executable, "-m", "privkit", "audit", "--defense", "batch_shuffle"]
        command += ["--attack", "mean_image", *TINY] if setting.tiny else ["--attack", "auto"]
        began = perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [*command, "--device", setting.device.type, "--out", f"{folder}/run"],
                cwd=ROOT, capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
            cells = len((Path(folder) / "run" / "results.jsonl").read_text("utf-8").splitlines())
        return {"command": " ".join(command[2:]), "seconds": perf_counter() - began, "cells": cells}

    yield "privkit audit --defense batch_shuffle --attack auto", run


def published(setting: Setting) -> Iterator[Unit]:
    """(k) Repeat CutMixSL's Table 1 with three seeds, at the paper's size (which needs `--data-root`) or toy size."""
    if setting.data_root is None and not setting.tiny:
        return

    def run(one: Work) -> Values:
        with tempfile.TemporaryDirectory() as folder:
            return {"accuracy": measure_cell(one, Path(folder))["accuracy"]}

    for one in needed_cells("cutmixsl", "Table 1", "tiny" if setting.tiny else "paper", setting.data_root):
        yield (
            f"{one.row['defense']}, {one.row['protocol']}, {one.row['model']}, seed {one.row['seed']}",
            partial(run, one),
        )


PARTS: dict[Part, Callable[[Setting], Iterator[Unit]]] = {
    "tests": tests,
    "capture": capture,
    "speed": speed,
    "training": whole_training,
    "white_box": white_box,
    "fsha": hijack,
    "attacks": long_attacks,
    "shuffle": gather,
    "scoring": scoring,
    "audit": audit,
    "paper": published,
}
