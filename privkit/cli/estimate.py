"""The preview of a run: its planned results, and an estimate of its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from privkit.attacks.search_space import why_untuned
from privkit.audit.goals.goal import Timed, audit_goal
from privkit.audit.probe import attack_time, training_step
from privkit.audit.run import check_batches, default_folder
from privkit.audit.seed_data import open_data
from privkit.audit.worker import pick_device
from privkit.domains.stand_in import OFFICIAL
from privkit.files.caches import use_own_caches
from privkit.run.ledger import RunLedger
from privkit.run.plan import Cell, plan
from privkit.run.provenance import default_threads, manifest
from privkit.settings.config import AuditConfig
from privkit.torch_utils.compiler import compiler_unloaded
from privkit.torch_utils.freed_memory import keep_freed_memory

_PROBE_SECONDS = 0.8
"""Seconds spent on timing the attacks of a run; opening the data and timing training steps come on top."""
_FORWARD = 1 / 3  # time of a forward pass, as a share of a training step


@dataclass(frozen=True, kw_only=True)
class _Estimate:
    cells: list[tuple[Cell, Timed]]  # each planned cell with its time, in the order of the plan
    # the total time of the cells that surely run, with control experiments, and the total if every attack fails
    sentence: str
    needs: list[str]  # one sentence if the run needs a data folder that no setting names; else empty


def estimate(parts: Sequence[AuditConfig]) -> _Estimate:
    """Estimate the time of each planned cell (defense, attack, seed) from a few timed steps on random records.

    Times are CPU seconds of one thread (`privkit.torch_utils.clock`), because on a busy machine several threads spend
    CPU time on waiting. A long training step is timed on fewer images and scaled. Each attack is timed briefly on the
    first defense of its configuration, and extrapolated. Opening the data, scoring and the report are left out. In
    three measured runs (digits, a table, a text) the estimate was 0.8 to 1.75 times the true CPU seconds. `parts` has
    one configuration for each protocol; random records replace an official dataset without a data root.
    """
    use_own_caches()
    keep_freed_memory()
    device, threads = pick_device(parts[0].device), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with compiler_unloaded():
            found = [_part(part, device, _PROBE_SECONDS / len(parts)) for part in parts]
    finally:
        torch.set_num_threads(threads)
    cells = [cell for part in found for cell in part]
    total = sum(timed.seconds + timed.controls for cell, timed in cells if not cell.twin_of)
    most = sum(timed.most + timed.controls for _, timed in cells)
    twins = sum(bool(cell.twin_of) for cell, _ in cells)
    told = f" with {twins} more cells on the undefended model" if twins else ""
    further = f", up to {most:.0f} s{told} if attacks fail" if most > total else ""
    least = "at least " if any(timed.reason.startswith("at least") for _, timed in cells) else ""
    where = f"{device.type}, {parts[0].threads or default_threads()} threads"
    named = [
        name for part in parts if not part.data_root for name in (part.dataset.name, part.auxiliary.partition(":")[0])
    ]
    unseen = [name for name in dict.fromkeys(named) if name in OFFICIAL]
    return _Estimate(
        cells=cells,
        sentence=f"{least}about {total:.0f} s with controls on {where}{further}",
        needs=[f"the run needs --data-root with the files of {' and '.join(unseen)}"] if unseen else [],
    )


def preview(config: AuditConfig, out: Path | None = None) -> str:
    """Preview a run as text: one line for each planned result, the estimated time, and the run folder. Raises
    `RunFolderError` for the folder of another configuration, as the run itself would."""
    check_batches(config)
    RunLedger(out or default_folder(config), manifest(config, threads=1))  # checks the folder, and writes nothing
    folder = f"run folder {out or default_folder(config)}"
    if config.recording is not None:
        planned = [f"{cell.id}  {cell.in_words}" for cell in plan(config)]
        return "\n".join([*planned, f"{len(planned)} cells on a recording; {folder}"])
    found = estimate(config.parts)
    lines = [f"{cell.id}  {_told(cell, timed)}  {cell.in_words}" for cell, timed in found.cells]
    surely = sum(not cell.twin_of for cell, _ in found.cells)
    return "\n".join([*lines, f"{surely} cells, {found.sentence}; {folder}", *found.needs])


def _told(cell: Cell, timed: Timed) -> str:
    """The time of a planned result as text: seconds, and the maximum if the attack fails and is repeated for longer."""
    reason = f"; {timed.reason}" if timed.reason else ""
    if cell.twin_of:
        return f"up to {timed.most:.0f} s, only if the attack fails on a defense{reason}"
    further = f", up to {timed.most:.0f} s if the attack fails" if timed.most > timed.seconds else ""
    return f"about {timed.seconds:.0f} s{further}{reason}"


def _part(config: AuditConfig, device: torch.device, seconds: float) -> list[tuple[Cell, Timed]]:
    pools, _, sizes = open_data(config, stand_ins=True)
    batch, protocol = config.training.batch_size, config.protocol.spec
    sizes["victims"] = min(config.budget.victims, sizes["private" if config.attacked == "private" else "test"])
    sizes["rounds"] = config.budget.epochs * sizes["private"] // (protocol.clients * batch)
    sizes["a_round"] = protocol.active * batch
    steps = {defense.label: training_step(config, defense, pools, device) for defense in config.defenses}
    baseline, _ = steps[config.defenses[0].label]
    limit = seconds / len(config.every_attack)
    probed = {attack.label: attack_time(baseline, attack, limit) for attack in config.every_attack}
    cells, done = [], set[tuple[str, ...]]()
    for cell in plan(replace(config, also=())):
        _, a_step = steps[cell.defense.label]
        attack, timed, goal = cell.attack.spec, probed[cell.attack.label], audit_goal(cell.attack.spec)
        took, controls, more = goal.cost(attack, timed, config, sizes)
        grows = took * bool(timed.epochs) + more * a_step * bool(attack.mounting.shadow_models)
        if config.tune and not why_untuned(attack):
            took *= 1 + config.tune.trials * (1 - config.tune.share)
        took += more * a_step
        if (model := (cell.model_id,)) not in done:
            took += (sizes["rounds"] + _FORWARD * sizes["test"] / sizes["a_round"]) * a_step
        most = took + ((1 << config.escalate) - 1) * grows * goal.escalates
        if (pair := (cell.defense.label, cell.attack.label)) in done:
            controls = 0.0
        done |= {model, pair}
        cells.append((cell, replace(timed, seconds=took, controls=controls, most=most)))
    return cells
