"""Two processes train what one trains on twice the batch, and a receipt states the batch that was really permuted."""

import multiprocessing
import socket
from collections.abc import Callable
from typing import Any

import pytest
import torch

from privkit.defenses import BatchShuffle, NoDefense
from privkit.defenses.base import Receipt
from privkit.errors import UsageError
from privkit.training import SplitProtocol, TrainingSpec, train
from tests.small import built, digits


def job(batch: int) -> dict[str, Any]:
    """What this process, alone or one of several, ends with: some weights, a receipt's share, a refusal."""
    found: dict[str, Any] = {}
    for defense in (NoDefense(), BatchShuffle()):
        edge, upper = built(defense, SplitProtocol(clients=2))
        receipts, apply = list[Receipt](), edge.release

        def watched(
            *given: Any, apply: Callable[..., Any] = apply, receipts: list[Receipt] = receipts, **named: Any
        ) -> Any:
            sent = apply(*given, **named)
            receipts.append(sent.receipt)
            return sent

        edge.release = watched  # type: ignore[method-assign,assignment]
        train(edge, upper, digits(96), TrainingSpec(batch_size=batch), epochs=2, seed=0)
        weights = torch.cat([p.detach().flatten() for p in (*edge.parameters(), *upper.parameters())])
        share = receipts[0].certificate().quantities.get("own_image_share")
        found[defense.name] = {"weights": weights[::997].tolist(), "share": share, "sum": weights.sum().item()}
    try:
        train(edge, upper, digits(96), TrainingSpec(batch_size=30), epochs=1, seed=0)
    except UsageError as error:
        found["large"] = str(error)
    return found


def member(rank: int, world: int, port: int, answers: "multiprocessing.Queue[tuple[int, dict[str, Any]]]") -> None:
    """One of several processes."""
    address = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
    answers.put((rank, job(6)))
    torch.distributed.destroy_process_group()


def together(world: int) -> list[dict[str, Any]]:
    """The answers of forks of this process, by rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    forks = multiprocessing.get_context("fork")
    answers = forks.Queue()
    jobs = [forks.Process(target=member, args=(rank, world, port, answers), daemon=True) for rank in range(world)]
    for one in jobs:
        one.start()
    found = dict(answers.get(timeout=300) for _ in jobs)
    for one in jobs:
        one.join(timeout=60)
    assert [one.exitcode for one in jobs] == [0] * world
    return [found[rank] for rank in range(world)]


def test_two_processes_train_what_one_trains() -> None:
    alone = job(12)  # before the others, which are forks and find what training imports
    first, second = together(2)
    assert first["none"] == second["none"]  # both hold the same weights
    assert first["none"]["weights"] == pytest.approx(alone["none"]["weights"], abs=2e-4)
    assert first["batch_shuffle"]["weights"] == second["batch_shuffle"]["weights"]
    # in each process 6 images per client: kept 6 of 16 tokens, the rest pooled over the images of a message
    kept = 6 / 16
    assert alone["batch_shuffle"]["share"] == pytest.approx(kept + (1 - kept) / 12)
    assert first["batch_shuffle"]["share"] == pytest.approx(kept + (1 - kept) / 6)
    assert "batch_size=30 of 2 clients in 2 processes is more than the 96 private images" in first["large"]
    assert "large" not in alone
