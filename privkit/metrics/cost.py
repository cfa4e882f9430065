"""Costs of split learning for one client: transmitted bytes, multiply-accumulates and peak memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from privkit.shared.costs import Costs

FLOAT = 4  # bytes of a number on the wire: float32


def sent_share(weights: Tensor | None, present: Tensor | None = None) -> float:
    """Share of its smashed data that a client sends, in [0, 1], on average over messages (mixed batches) and clients.
    `weights` [M, k, T] are the mixing weights of k clients for T tokens in M messages; a weight of 0 is not sent, and
    None means that all is sent. Only clients with `present` [M, k] count."""
    if weights is None:
        return 1.0
    kept = (weights > 0).double().mean(-1)
    return (kept if present is None else kept[present]).mean().item()


def peak_memory(work: Callable[[], object], resident: Iterable[Tensor], device: torch.device) -> int:
    """The largest number of bytes in use while `work` runs, including the tensors in `resident`.

    On CUDA it is `max_memory_allocated`, whose running maximum is reset. A first, uncounted run lets cuBLAS allocate
    its workspace. A CPU has no such counter: every tensor that an operation returns is counted until its storage is
    freed. This equals the peak in torch's profiler, except for temporary memory inside one kernel (as in convolutions),
    which depends on the processor. `work` must free what it allocates.

    Source: torch.cuda.max_memory_allocated; the CPU's meter is torch.distributed._tools.MemTracker without its module
    hooks.

    >>> x = torch.zeros(1000)
    >>> peak_memory(lambda: (x + 1).sum(), [x], torch.device("cpu"))
    8004
    """
    tensors = list(resident)
    if device.type == "cuda":
        work()
        others = torch.cuda.memory_allocated(device) - sum(t.untyped_storage().nbytes() for t in tensors)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        return torch.cuda.max_memory_allocated(device) - others
    meter = _LiveTensors()
    for tensor in tensors:
        meter.see(tensor)
    with meter:
        work()
    return meter.peak


class _LiveTensors(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's has no annotation
        self.alive: set[int] = set()
        self.bytes = self.peak = 0

    def see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if (key := storage._cdata) not in self.alive:  # views share a storage
            self.alive.add(key)
            self.bytes += (size := storage.nbytes())
            self.peak = max(self.peak, self.bytes)
            weakref.finalize(storage, self._gone, key, size).atexit = False

    def _gone(self, key: int, size: int) -> None:
        self.alive.discard(key)
        self.bytes -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, Tensor):
                self.see(value)
        return result


def costs_of(
    lower: nn.Module,
    record: Tensor,
    *,
    trained: bool,
    batch_size: int = 1,
    kept: float = 1.0,
    kept_down: float | None = None,
    gradient: Literal["unicast", "broadcast", "average"] = "unicast",
    label_bytes: float = 0.0,
    seed_bytes: int = 0,
    averaged_every: int | None = None,
    companion: nn.Module | None = None,
) -> Costs:
    """Count the bytes, multiply-accumulates and peak memory of one client, with torch's counters on copies of the
    modules.

    Args:
        lower: all modules with weights that run at one client, from a record to smashed data.
        record: one record [1, ...] on the device of `lower`; if it requires a gradient, its gradient is counted, too.
        trained: whether the client's segment is trained.
        batch_size: images per batch, for the peak memory.
        kept: share of the smashed data that is sent, in [0, 1]; see `sent_share`. If records are sent in several
            messages, the sum over these messages.
        kept_down: share of the gradient that "unicast" returns; None if it equals `kept`.
        gradient: "unicast" returns the kept share of the gradient; "broadcast" and "average" return all of it.
        label_bytes: bytes of one label; 0 if the server holds the labels.
        seed_bytes: bytes of the masks' seed, for each client and round.
        averaged_every: rounds between two averages of the lower segments, or two times that a client hands its segment
            on; None for never.
        companion: a network on smashed data that the client trains beside the task, such as a simulated attacker.

    Source: DP-CutMixSL §3 (positions with mask 1 are sent) and appendix B (unicast and broadcast); CutMixSL §3.1 (masks
    as a seed); torch.utils.flop_counter (two operations a multiply-accumulate).

    >>> cost = costs_of(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), torch.zeros(1, 1, 2, 2), trained=True, kept=0.5)
    >>> cost.bytes_up, cost.client_macs, cost.client_training_macs
    (6.0, 12, 24)
    """
    lower, companion = deepcopy((lower, companion))
    if not trained:
        lower.requires_grad_(False)
    sent, forward, both = _macs(lower, companion, record)
    down = kept if kept_down is None else kept_down
    averages = averaged_every is not None and any(p.requires_grad for p in lower.parameters())
    model = _travelling(lower) * FLOAT / averaged_every if averaged_every is not None and averages else 0.0
    weights = [*lower.parameters(), *(companion.parameters() if companion is not None else ())]
    return Costs(
        bytes_up=sent * FLOAT * kept + label_bytes,
        bytes_down=sent * FLOAT * (down if gradient == "unicast" else 1.0) if trained else 0.0,
        bytes_up_model=model,
        bytes_down_model=model,
        bytes_seed=seed_bytes,
        client_macs=forward,
        client_training_macs=both,
        client_parameters=sum(p.numel() for p in weights),
        peak_memory=_peak(lower, companion, record, batch_size, trained),
    )


def _travelling(lower: nn.Module) -> int:
    """The count of numbers that FedAvg sends: trained weights and running statistics."""
    trained = sum(p.numel() for p in lower.parameters() if p.requires_grad)
    weights = dict(lower.named_parameters())
    return trained + sum(
        int(t.numel()) for name, t in lower.state_dict().items() if name not in weights and t.is_floating_point()
    )


def _macs(lower: nn.Module, companion: nn.Module | None, record: Tensor) -> tuple[int, int, int]:
    from torch.utils.flop_counter import FlopCounterMode  # this import loads triton

    lower.eval()  # no dropout, and no batch statistics of a single image
    with _countable(), FlopCounterMode(display=False) as counter:
        smashed = lower(record)
        forward = counter.get_total_flops() // 2
        _backward(smashed, companion)
    return smashed.numel(), forward, counter.get_total_flops() // 2


def _backward(smashed: Tensor, companion: nn.Module | None) -> None:
    roots = [smashed] if companion is None else [smashed, companion(smashed)]
    roots = [root for root in roots if root.requires_grad]
    if roots:
        torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])


def _peak(lower: nn.Module, companion: nn.Module | None, record: Tensor, batch_size: int, trained: bool) -> int:
    """Peak memory in bytes of two training steps on one batch; AdamW's moments exist from the second step on."""
    modules = nn.ModuleList([lower] if companion is None else [lower, companion])
    modules.train(trained or companion is not None)
    modules.zero_grad(set_to_none=True)
    records = record.detach().expand(batch_size, *record.shape[1:]).clone().requires_grad_(record.requires_grad)
    weights = [p for p in modules.parameters() if p.requires_grad]

    def work() -> None:
        optimizer = torch.optim.AdamW(weights, fused=True) if weights else None
        for _ in range(2):
            _backward(lower(records), companion)
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

    with torch.random.fork_rng(devices=[record.device] if record.device.type == "cuda" else []):  # dropout draws
        return peak_memory(work, [*modules.parameters(), *modules.buffers(), records], record.device)


@contextmanager
def _countable() -> Iterator[None]:
    """A context in which attention runs as plain matrix products, because torch's counter misses some fused kernels."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
