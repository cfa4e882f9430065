"""What a run would do and about how long it would take, without doing it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter

import torch
from torch import Generator, Tensor

from privkit.attacks.base import Knowledge, NotApplicable
from privkit.attacks.floors import MeanImage, MidGrey
from privkit.audit import check_batches, default_folder, pick_device
from privkit.channel import black_box_query, shared_lower
from privkit.config import AuditConfig
from privkit.data.base import Batch, Pools
from privkit.defended import assemble
from privkit.errors import PrivkitError, UsageError
from privkit.grid import Cell, plan
from privkit.out_of_memory import ran_out
from privkit.provenance import default_threads
from privkit.questions.images import passes
from privkit.sanity import CONTROL_STEPS
from privkit.setting import open_data
from privkit.training import train

PROBE_STEPS = 4
UNKNOWN = "the attack's own time is not estimated"


def preview(config: AuditConfig) -> str:
    """The cells of a run and an estimate of its time, from a few timed steps on random images.

    Opening the data, scoring and the report are not in the estimate.

    Raises:
        PrivkitError: for what the run itself would refuse, and for a model, defense or attack that fails on the probe.
    """
    check_batches(config)
    pools, _, sizes = open_data(config)
    cells = plan(config)
    device = pick_device(config.device)
    threads = torch.get_num_threads()
    torch.set_num_threads(config.threads or default_threads())
    try:
        times = _step_times(config, pools, cells, device)
    finally:
        torch.set_num_threads(threads)
    batch = config.protocol.spec.clients * config.training.batch_size
    lines, total, models = [], 0.0, set()
    for cell in cells:
        found = times[cell.defense.label, cell.attack.label]
        seconds = found.attack * (getattr(cell.attack.spec, "epochs", 0) or 0) * (sizes["auxiliary"] * 0.9 // batch)
        if cell.model_id not in models:
            models.add(cell.model_id)
            seconds += found.train * config.budget.epochs * (sizes["private"] // batch)
        total += seconds
        why = f"; {found.reason}" if found.reason else ""
        lines.append(f"{cell.id}  about {seconds:.0f} s{why}")
    for label in {cell.attack.label for cell in cells}:
        total += 2 * CONTROL_STEPS * times[cells[0].defense.label, label].attack
    unknown = any(found.reason == UNKNOWN for found in times.values())
    where = f"{device.type}, {config.threads or default_threads()} threads"
    return "\n".join(
        [
            *lines,
            f"{len(cells)} cells, {'at least ' if unknown else ''}about {total:.0f} s with controls on {where}; "
            f"run folder {default_folder(config)}",
        ]
    )


@dataclass(frozen=True, kw_only=True)
class _Steps:
    """Seconds of a training step and of an attack step; `reason` where the attack has none."""

    train: float
    attack: float = 0.0
    reason: str = ""


def _step_times(
    config: AuditConfig, pools: Pools, cells: list[Cell], device: torch.device
) -> dict[tuple[str, str], _Steps]:
    """Times of every pair of defense and attack."""
    batch = config.protocol.spec.clients * config.training.batch_size
    shape = tuple(pools.train.take(torch.zeros(1, dtype=torch.int64).numpy()).x.shape[1:])
    images = torch.rand(2 * PROBE_STEPS * batch, *shape, device=device)
    times: dict[tuple[str, str], _Steps] = {}
    for cell in cells:
        key = (cell.defense.label, cell.attack.label)
        if key in times:
            continue
        try:
            times[key] = _probe(config, cell, images, pools.classes)
        except PrivkitError:
            raise
        except Exception as error:  # a user's own part may raise anything
            if ran_out(error):
                raise
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise UsageError(
                f"{cell.defense.label} / {cell.attack.label} on {config.model.label} fails on random images "
                f"({reason}); mend that part, or leave it out"
            ) from None
    return times


def _probe(config: AuditConfig, cell: Cell, images: Tensor, classes: int) -> _Steps:
    """Train and attack for a few steps."""
    protocol, batch, device = config.protocol.spec, config.training.batch_size, images.device
    channels, height, width = images.shape[1:]
    shape = (channels, height, width)
    labels = torch.zeros(PROBE_STEPS * protocol.clients * batch, dtype=torch.int64, device=device)
    data = Batch(x=images[: len(labels)], y=labels, ids=labels)
    edge, upper, _ = assemble(config, cell.defense.spec, shape, classes, 0)
    edge, upper = edge.to(device), upper.to(device)
    train(edge, upper, data, config.training, epochs=1, seed=0)  # warm-up
    start = perf_counter()
    train(edge, upper, data, config.training, epochs=1, seed=0)
    train_step = (perf_counter() - start) / PROBE_STEPS
    spec = cell.attack.spec
    if isinstance(spec, (MeanImage, MidGrey)) or getattr(spec, "epochs", None) == 0 or protocol.upper == "own":
        return _Steps(train=train_step)
    if not getattr(spec, "epochs", None) or "clients" in spec.needs:
        return _Steps(train=train_step, reason=UNKNOWN)
    query, a_round = black_box_query(edge), protocol.active * batch
    view = query(images[:a_round], Generator(device).manual_seed(0)).view
    knowledge = Knowledge(
        image_shape=shape,
        batch_size=a_round,
        auxiliary=images,
        auxiliary_labels=torch.arange(len(images), device=device) % classes,
        query=query,
        lower=shared_lower(edge),
        upper=upper,
    )
    start = perf_counter()
    try:
        replace(spec, epochs=1).run([view] * passes(spec), knowledge, Generator().manual_seed(0))
    except NotApplicable as error:
        return _Steps(train=train_step, reason=f"not applicable: {error}")
    return _Steps(train=train_step, attack=(perf_counter() - start) / (len(images) * 0.9 // a_round))
