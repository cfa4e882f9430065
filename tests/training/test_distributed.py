"""Two processes train what one trains, and a receipt states the batch that was really permuted: the local one."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, os, sys
import numpy as np, torch
from torch import Generator
from privkit.domains.images.domain import Images
from privkit.domains.images.embedded import TinyDigits
from privkit.defenses import BatchShuffle, NoDefense
from privkit.defenses.random_cutmix import RandomCutMix
from privkit.models import VIT_MICRO
from privkit.training import Clients, SplitProtocol, TrainingSpec, train
from privkit.training.distributed import processes

torch.set_num_threads(1)
pool = TinyDigits().open(None, download=False, train_images=96).train
data = pool.take(np.random.default_rng(0).permutation(len(pool))[:96])
found = {}
if "WORLD_SIZE" in os.environ:
    torch.distributed.init_process_group("gloo")
rank, world = processes()
for defense in (NoDefense(), BatchShuffle()):
    tiny = Images(shape=(1, 8, 8))
    model = VIT_MICRO.build(tiny, 10, positions=defense.positions, seed=0)
    edge = Clients.build(model.lower, defense, tiny, classes=10, seed=0, protocol=SplitProtocol(clients=2))
    receipts, apply = [], edge.release
    def watched(*arguments):
        sent = apply(*arguments)
        receipts.append(sent.receipt)
        return sent
    edge.release = watched
    curve = train(edge, model.upper, data, TrainingSpec(batch_size=12), epochs=2, seed=0).curve
    weights = torch.cat([p.detach().flatten() for p in (*edge.parameters(), *model.upper.parameters())])
    share = receipts[0].certificate().quantities.get("own_image_share")
    found[defense.name] = {"weights": weights[::997].tolist(), "share": share, "sum": weights.sum().item()}
try:
    train(edge, model.upper, data, TrainingSpec(batch_size=13), epochs=1, seed=0)
except Exception as error:
    found["odd"] = str(error)
if sys.argv[1] != "-":
    open(f"{sys.argv[1]}.{rank}", "w").write(json.dumps(found))
"""


def run(folder: Path, world: int) -> list[dict[str, dict[str, object]]]:
    script = folder / "job.py"
    script.write_text(SCRIPT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    jobs = []
    for rank in range(world):
        env = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        if world > 1:
            env |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        jobs.append(subprocess.Popen([sys.executable, script, str(folder / f"out{world}")], env=env))
    assert [job.wait(timeout=300) for job in jobs] == [0] * world
    return [json.loads((folder / f"out{world}.{rank}").read_text()) for rank in range(world)]


def test_two_processes_train_what_one_trains(tmp_path: Path) -> None:
    (alone,) = run(tmp_path, 1)
    first, second = run(tmp_path, 2)
    assert first["none"] == second["none"]  # both hold the same weights
    assert first["none"]["weights"] == pytest.approx(alone["none"]["weights"], abs=2e-4)
    assert first["batch_shuffle"]["weights"] == second["batch_shuffle"]["weights"]
    # 12 images a client, 6 of them in each process: kept 6 of 16 tokens, the rest pooled over the images of a message
    kept = 6 / 16
    assert alone["batch_shuffle"]["share"] == pytest.approx(kept + (1 - kept) / 12)
    assert first["batch_shuffle"]["share"] == pytest.approx(kept + (1 - kept) / 6)
    assert "multiple of the 2 processes" in str(first["odd"])
