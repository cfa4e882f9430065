"""Training with torchrun: the first process runs the whole command, and the other processes only help in training.

The first process sends each training job to all others, since only it knows which models are still to be trained: some
may be finished already, and attacks may train more.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
from torch import nn

from privkit.domains.base import Batch
from privkit.domains.partition import ClientPartition
from privkit.errors import PrivkitError, TrainingDiverged, UsageError, one_line
from privkit.training.checkpoint import Checkpoint
from privkit.training.clients import Clients
from privkit.training.distributed import alone, joined_processes, leads
from privkit.training.loop import Trained, train
from privkit.training.spec import TrainingSpec

_PATIENCE = timedelta(days=30)  # time limit of the other processes, which wait during attacks
_OF_THE_NETWORK = ("gloo", "NCCL", "Connection")  # words of an error that means that another process is gone


def train_together(
    clients: Clients,
    upper: nn.Module,
    private: Batch,
    spec: TrainingSpec,
    *,
    epochs: int,
    seed: int,
    shares: ClientPartition | None = None,
    checkpoint: Checkpoint | None = None,
    validation: Batch | None = None,
) -> Trained:
    """Run `train` in all joined processes; raises `UsageError` if a module cannot be sent to the other processes."""
    checkpoint = checkpoint or Checkpoint()
    work: dict[str, Any] = {"clients": clients, "upper": upper, "private": private, "spec": spec}
    work |= {"epochs": epochs, "seed": seed, "shares": shares}
    if not leads():
        return train(**work, checkpoint=checkpoint, validation=validation)
    _send({**work, "saved": checkpoint.load()})
    with alone(False):
        return train(**work, checkpoint=checkpoint, validation=validation)


@contextmanager
def joined(device: str, workers: int = 1, engine: str | None = None) -> Iterator[bool]:
    """Join the processes that torchrun started; without torchrun, this does nothing.

    The first process runs the body of the `with` statement, and gets True. The others skip the body and help with the
    first process's training until the body ends. They raise `PrivkitError` if the first process fails. With "cuda",
    each process gets its own GPU. Raises `UsageError` for several workers, another engine or too few GPUs.

    >>> with joined("cpu") as leads:
    ...     print(leads)
    True
    """
    if not torch.distributed.is_available() or not torch.distributed.is_torchelastic_launched():
        yield True
        return
    if workers != 1 or engine:
        given = f"--engine {engine}" if engine else f"--workers {workers}"
        raise UsageError(f"{given} and torchrun both start processes; use one of them")
    if device == "cuda":
        _own_gpu(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo", timeout=_PATIENCE)
    if joined_processes()[0]:
        _help(torch.device(device))
        yield False
    else:
        with alone():
            yield True
        _send(None)
    torch.distributed.destroy_process_group()


def _own_gpu(local: int) -> None:
    if local >= torch.cuda.device_count():
        raise UsageError(
            f"torchrun started process {local + 1} on this machine, but it has {torch.cuda.device_count()} GPUs; lower "
            "--nproc-per-node"
        )
    torch.cuda.set_device(local)


def _help(device: torch.device) -> None:
    try:
        while (work := _received(device)) is not None:
            with suppress(TrainingDiverged, UsageError):  # the first process meets and reports the same error
                train(checkpoint=_Saved(work.pop("saved")), **work)
    except RuntimeError as error:
        if not any(word in str(error) for word in _OF_THE_NETWORK):
            raise
        raise PrivkitError(f"another process ended and says why ({one_line(error, 80)})") from None


class _Saved(Checkpoint):
    def __init__(self, state: dict[str, Any] | None) -> None:
        super().__init__()
        self._state = state

    def load(self) -> dict[str, Any] | None:
        return self._state


def _send(work: dict[str, Any] | None) -> None:
    """Send work to all other processes, with tensors of any device."""
    buffer = io.BytesIO()
    try:
        torch.save(work, buffer)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(
            f"this model cannot be sent to the other processes ({one_line(error, 80)}); run it without torchrun"
        ) from None
    torch.distributed.broadcast_object_list([buffer.getvalue()], src=0, device=torch.device("cpu"))


def _received(device: torch.device) -> dict[str, Any] | None:
    box: list[bytes] = [b""]
    torch.distributed.broadcast_object_list(box, src=0, device=torch.device("cpu"))
    place = f"cuda:{torch.cuda.current_device()}" if device.type == "cuda" else "cpu"
    work: dict[str, Any] | None = torch.load(io.BytesIO(box[0]), map_location=place, weights_only=False)
    return work
