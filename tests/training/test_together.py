"""torchrun from the command line: the first of two processes audits, the other one helps it train."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from privkit.attacks.base import NotApplicable
from privkit.audit import defended
from privkit.defenses import NoDefense
from privkit.errors import UsageError
from privkit.training import TrainingSpec, together, train
from tests.small import built, digits

ROOT = Path(__file__).resolve().parents[2]
AUDIT = ("audit", "--defense", "batch_shuffle", "--attack", "mean_image", "--attack", "label_leak", "--threads", "1")
TINY = ("--dataset", "tiny_digits", "--budget", "smoke", "--training", "batch_size=6")


def started(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in new processes, of this checkout's code."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_two_processes_audit_from_the_command_line(tmp_path: Path) -> None:
    several = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "privkit")
    done = started(tmp_path, *several, *AUDIT, *TINY, "--out", "run")
    assert done.returncode == 0, done.stderr[-2_000:]
    assert done.stdout.count("decisive checks met") == 1  # one process speaks
    rows = [json.loads(line) for line in (tmp_path / "run" / "results.jsonl").read_text("utf-8").splitlines()]
    assert {(row["attack"], row["status"]) for row in rows} == {
        ("mean_image", "done"),
        ("label_leak", "not_applicable"),
    }
    watching = next(row for row in rows if row["attack"] == "label_leak")
    assert "each of 2 processes sees only its own" in watching["reason"]
    shuffled = next(row for row in rows if row["defense"] == "batch_shuffle")
    assert shuffled["provenance"]["machine"]["processes"] == "2"
    assert shuffled["batch_size"] == 6
    # of 16 tokens 6 stay, and the others are permuted over the six images that one process really mixed
    kept = 6 / 16
    assert shuffled["certificate"]["quantities"]["own_image_share"] == pytest.approx(kept + (1 - kept) / 6)
    alone = started(tmp_path, "privkit", *AUDIT, *TINY, "--out", "run")
    assert alone.returncode == 2
    assert "processes (2 there, none here); restore what changed (torchrun --nproc-per-node 2)" in alone.stderr


def test_a_model_that_cannot_be_sent_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    edge, upper = built(NoDefense())
    upper.secret = lambda x: x  # type: ignore[assignment]
    monkeypatch.setattr(together, "leads", lambda: True)
    with pytest.raises(UsageError, match="cannot be sent to the other processes"):
        together.train_together(edge, upper, digits(24), TrainingSpec(batch_size=4), epochs=1, seed=0)


def test_what_is_sent_trains_like_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process has the same modules, batch and saved state."""
    sent: list[Any] = []
    monkeypatch.setattr(together, "leads", lambda: True)
    monkeypatch.setattr(torch.distributed, "broadcast_object_list", lambda box, **_: sent.extend(box))
    edge, upper = built(NoDefense())
    spec = TrainingSpec(batch_size=4)
    together.train_together(edge, upper, digits(24), spec, epochs=1, seed=0)
    monkeypatch.setattr(torch.distributed, "broadcast_object_list", lambda box, **_: box.__setitem__(0, sent[0]))
    work = together._received(torch.device("cpu"))
    assert work is not None
    train(checkpoint=together._Saved(work.pop("saved")), **work)
    here, there = (
        [*m["clients"].parameters(), *m["upper"].parameters()] for m in ({"clients": edge, "upper": upper}, work)
    )
    assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(
        UsageError, match="started process 2 on this machine, but it has 1 GPUs; lower --nproc-per-node"
    ):
        together._own_gpu(1)


def test_rounds_are_not_watched_in_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defended, "joined_processes", lambda: (0, 2))
    with pytest.raises(NotApplicable, match="each of 2 processes sees only its own"):
        defended.train_again(*[None] * 5)  # type: ignore[arg-type]
