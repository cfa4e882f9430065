"""What a run would do and about how long it would take, without doing it."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

import torch
from torch import Generator

from privkit.attacks.base import Knowledge, View
from privkit.audit import default_folder, pick_device
from privkit.channel import black_box_query
from privkit.config import AuditConfig
from privkit.grid import Cell, plan
from privkit.provenance import default_threads
from privkit.sanity import CONTROL_STEPS
from privkit.training import Client, TrainingSpec, train

PROBE_STEPS = 4


def preview(config: AuditConfig) -> str:
    """The cells of a run and an estimate of its time, from a few timed steps on random images.

    Opening the data, scoring and the report are not in the estimate.
    """
    cells = plan(config)
    device = pick_device(config.device)
    threads = torch.get_num_threads()
    torch.set_num_threads(config.threads or default_threads())
    try:
        times = _step_times(config, cells, device)
    finally:
        torch.set_num_threads(threads)
    batch, budget = config.training.batch_size, config.budget
    auxiliary = budget.private if config.auxiliary == "training" else budget.auxiliary
    lines, total, models = [], 0.0, set()
    for cell in cells:
        train_step, attack_step = times[cell.defense.label, cell.attack.label]
        seconds = attack_step * (getattr(cell.attack.spec, "epochs", 0) or 0) * (auxiliary * 0.9 // batch)
        if cell.model_id not in models:
            models.add(cell.model_id)
            seconds += train_step * budget.epochs * (budget.private // batch)
        total += seconds
        lines.append(f"{cell.id}  about {seconds:.0f} s")
    for _, step in {label: times[cells[0].defense.label, label] for label in {c.attack.label for c in cells}}.values():
        total += 2 * CONTROL_STEPS * step
    where = f"{device.type}, {config.threads or default_threads()} threads"
    return "\n".join(
        [
            *lines,
            f"{len(cells)} cells, about {total:.0f} s with controls on {where}; run folder {default_folder(config)}",
        ]
    )


def _step_times(
    config: AuditConfig, cells: list[Cell], device: torch.device
) -> dict[tuple[str, str], tuple[float, float]]:
    """Seconds of a training step and of an attack step for every pair of defense and attack."""
    from privkit.data.base import Batch

    batch = config.training.batch_size
    pools = config.dataset.spec.open(config.data_root, download=config.download, train_images=batch)
    shape = tuple(pools.train.take(torch.zeros(1, dtype=torch.int64).numpy()).x.shape[1:])
    images = torch.rand(2 * PROBE_STEPS * batch, *shape, device=device)
    labels = torch.zeros(len(images), dtype=torch.int64, device=device)
    data = Batch(x=images[: PROBE_STEPS * batch], y=labels[: PROBE_STEPS * batch], ids=labels[: PROBE_STEPS * batch])
    spec: TrainingSpec = config.training
    times = {}
    for cell in cells:
        key = (cell.defense.label, cell.attack.label)
        if key in times:
            continue
        defense = cell.defense.spec
        model = config.model.spec.build(shape, pools.classes, positions=defense.positions, seed=0)
        client = Client.build(model.lower, defense, shape, 0).to(device)
        upper = model.upper.to(device)
        train(client, upper, data, spec, epochs=1, seed=0)  # warm-up
        start = perf_counter()
        train(client, upper, data, spec, epochs=1, seed=0)
        train_step = (perf_counter() - start) / PROBE_STEPS
        attack_step = 0.0
        if getattr(cell.attack.spec, "epochs", None):
            query = black_box_query(client)
            view = View(round=0, smashed=query(images[:batch], Generator(device).manual_seed(0)))
            knowledge = Knowledge(image_shape=shape, batch_size=batch, auxiliary=images, query=query)
            start = perf_counter()
            replace(cell.attack.spec, epochs=1).run([view], knowledge, Generator().manual_seed(0))
            attack_step = (perf_counter() - start) / (len(images) * 0.9 // batch)
        times[key] = train_step, attack_step
    return times
