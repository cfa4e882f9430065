"""What a run would do and about how long it would take, without doing it."""

from __future__ import annotations

from dataclasses import replace

import torch

from privkit.attacks.base import AnyAttack, known_to
from privkit.attacks.goals.control import CONTROL_STEPS
from privkit.attacks.goals.labels import LabelAttack
from privkit.attacks.search_space import why_untuned
from privkit.audit.probe import ROUNDS, Timed, attack_on_images, attack_on_labels, training_step, untrained
from privkit.audit.run import check_batches, default_folder
from privkit.audit.seed_data import open_data
from privkit.audit.worker import pick_device
from privkit.caches import use_own_caches
from privkit.config import AuditConfig
from privkit.domains.stand_in import OFFICIAL, without_files
from privkit.run.plan import Cell, plan
from privkit.run.provenance import default_threads
from privkit.torch_utils.freed_memory import keep_freed_memory

_PROBE_SECONDS = 2.0
"""For timing attacks, all together; opening the data and a step of training for every defense come on top."""


def preview(config: AuditConfig) -> str:
    """The cells of a run and an estimate of its time, from a few timed steps on random images.

    Without a data root, an official dataset is stood in for by random records of its published shape and number.
    Opening the data, scoring and the report are not in the estimate. A step of training that takes long is timed on
    fewer images and scaled by their number. Attacks are timed on the first defense of each protocol, for a moment each,
    and extrapolated: expect a factor of two or three.

    Raises:
        PrivkitError: for what the run itself would refuse, and for a model, defense or attack that fails on the probe.
    """
    use_own_caches()
    keep_freed_memory()
    check_batches(config)
    if config.recording is not None:
        cells = plan(config)
        return "\n".join(
            [*(cell.id for cell in cells), f"{len(cells)} cells on a recording; run folder {default_folder(config)}"]
        )
    device, threads = pick_device(config.device), torch.get_num_threads()
    torch.set_num_threads(config.threads or default_threads())
    lines, total, least = [], 0.0, False
    try:
        for part in config.parts:
            measured, controls, open_end = _part(part, device, _PROBE_SECONDS / len(config.parts))
            lines += [f"{cell.id}  about {timed.seconds:.0f} s{_said(timed)}" for cell, timed in measured]
            total += controls + sum(timed.seconds for _, timed in measured)
            least = least or open_end
    finally:
        torch.set_num_threads(threads)
    unseen = [] if config.data_root else [name for name in _datasets(config) if name in OFFICIAL]
    needs = f"\nthe run needs --data-root with the files of {' and '.join(unseen)}" if unseen else ""
    where = f"{device.type}, {config.threads or default_threads()} threads"
    return "\n".join(
        [
            *lines,
            f"{len(lines)} cells, {'at least ' if least else ''}about {total:.0f} s with controls on {where}; "
            f"run folder {default_folder(config)}{needs}",
        ]
    )


def _datasets(config: AuditConfig) -> list[str]:
    """Names of the private and of the auxiliary dataset."""
    return list(dict.fromkeys([config.dataset.name, config.auxiliary.partition(":")[0]]))


def _part(config: AuditConfig, device: torch.device, seconds: float) -> tuple[list[tuple[Cell, Timed]], float, bool]:
    """Cells of one protocol with their times, the seconds of its controls, and whether a time is a lower limit."""
    pools, _, sizes = open_data(config, instead=without_files) if config.data_root is None else open_data(config)
    protocol, batch = config.protocol.spec, config.training.batch_size
    rounds = config.budget.epochs * sizes["private"] // (protocol.clients * batch)
    baseline, steps, probed = config.defenses[0], {}, {}
    for defense in config.defenses:
        model = untrained(config, defense, pools, device)
        steps[defense.label] = step = training_step(config, defense, model, pools, device)
        if defense is baseline:
            a_round = protocol.active * step.batch_size
            small = replace(config, training=replace(config.training, batch_size=step.batch_size))
            for attack in filter(lambda attack: _trains(attack.spec), config.every_attack):
                who, limit = f"{defense.label} / {attack.label}", seconds / len(config.every_attack)
                probe = attack_on_labels if attack.spec.goal == "labels" else attack_on_images
                probed[attack.label] = probe(small, attack, who, model, pools, device, limit)
    victims = min(config.budget.victims, sizes["private" if config.attacked == "private" else "test"])
    larger = max(sizes["auxiliary"] / (ROUNDS * a_round), victims / a_round)
    cells, trained = [], set()
    for cell in plan(replace(config, also=())):
        a_step, timed = steps[cell.defense.label].seconds, probed.get(cell.attack.label, Timed())
        hijack = "clients" in cell.attack.spec.needs  # its probe has one round of images
        times = max(sizes["private"], sizes["auxiliary"]) / a_round if hijack else larger
        if cell.attack.spec.goal == "labels":
            times = _clients_asked(cell.attack.spec, config, sizes["private"] / (ROUNDS * a_round))
        took = timed.seconds * times
        if config.tune and not why_untuned(cell.attack.spec):
            took *= 1 + config.tune.trials * (1 - config.tune.share)
        took += _replays(cell.attack.spec, config.budget.epochs, victims / (protocol.active * batch), rounds) * a_step
        if cell.model_id not in trained:
            trained.add(cell.model_id)
            took += rounds * a_step
        cells.append((cell, replace(timed, seconds=took)))
    controls = sum(2 * CONTROL_STEPS * timed.seconds / timed.steps for timed in probed.values() if timed.steps)
    return cells, controls, any(timed.reason.startswith("at least") for timed in probed.values())


def _trains(attack: AnyAttack) -> bool:
    """Whether an attack on images has steps to take beyond its start, or one on labels trains."""
    if attack.goal == "labels":
        return hasattr(attack, "epochs")
    return attack.goal == "reconstruct" and attack.mounting.start is not None


def _clients_asked(attack: LabelAttack, config: AuditConfig, larger: float) -> float:
    """How much longer than its probe an attack on labels takes: it is made for each client, in one epoch or in all.

    Args:
        attack: one that reads gradients learns from all rows; another one from the few whose labels it knows.
        config: of one protocol.
        larger: all clients' rows of an epoch over those of a round's clients in the probe.
    """
    epochs = config.budget.epochs if attack.epoch in ("pooled", "every") else 1
    clients: int = config.protocol.spec.active
    return epochs * clients * (larger if attack.mounting.gradients else 1.0)


def _replays(attack: AnyAttack, epochs: int, victim_rounds: float, rounds: int) -> float:
    """Training steps that an attack costs beside its own.

    Labels are asked of the training, which is repeated, and so is the history of a server's segment; members of shadow
    models; canaries are sent as often as the run sends a record, without a step.
    """
    if attack.goal == "labels" or "upper_history" in known_to(attack):
        return rounds
    if attack.goal == "membership":
        return rounds * attack.mounting.shadow_models or 2 * victim_rounds
    return epochs * victim_rounds / 3 if attack.goal == "distinguish" else 0.0


def _said(timed: Timed) -> str:
    """A reason behind a time."""
    return f"; {timed.reason}" if timed.reason else ""
