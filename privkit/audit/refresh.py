"""Compares the provenance in a run folder with the data, code, versions and device of the current command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from privkit.audit.seed_data import read_records
from privkit.errors import RunFolderError
from privkit.reports.origins import differences
from privkit.reports.schema import Provenance, Row
from privkit.run.ingredients import Ingredients
from privkit.run.ledger import RunLedger
from privkit.run.plan import Cell
from privkit.run.records import holds
from privkit.run.sources import as_it_is_now
from privkit.settings.config import AuditConfig


def refresh(
    config: AuditConfig,
    folder: RunLedger,
    cells: Sequence[Cell],
    rows: Mapping[str, Row],
    made_of: Mapping[str, Ingredients],
    *,
    again: bool,
) -> str:
    """Compare the stored provenance (data, code, versions, device) of a run's models and results with the current one.

    If `again`, what changed is moved to RUN/superseded, so that it is computed anew; otherwise a change raises a
    `RunFolderError`. Returns a sentence on what was moved; empty if nothing changed.
    """
    begun = [(cell, origin) for cell in cells if (origin := _stored(folder, cell, rows))]
    seeds = {cell.seed for cell, _ in begun}
    images = {seed: read_records(config, seed, torch.device("cpu")).hashes for seed in seeds}
    changed, flags, touched = dict[str, None](), dict[str, None](), dict[Path, None]()
    for cell, stored in begun:
        now = made_of[cell.id].on(images[cell.seed])
        for home, there in stored.items():
            here = now.model if home == folder.model(cell.model_id) else now.cell
            unknown = ["unknown provenance, since its record is missing"]
            here = here if there is None else as_it_is_now(there, here)
            differs = unknown if there is None or not there.packages else differences(there, here, seed=cell.seed)
            if differs:
                touched[home] = None
                changed |= dict.fromkeys(differs)
                flags |= dict.fromkeys(_flags(there, here))
    if not touched:
        return ""
    models = len([home for home in touched if home.parent.name == "models"])
    size = f"{models} of {len({cell.model_id for cell in cells})} models, {len(touched) - models} of {len(cells)} cells"
    if again:
        folder.set_aside(list(reversed(touched)))  # cells before their models
        return f"recomputed because of {', '.join(changed)}: {size}; the old ones are in {folder.path / 'superseded'}"
    raise RunFolderError(
        f"{folder.path} does not match this command: {', '.join(changed)}; restore what changed"
        f"{f' ({chr(32).join(flags)})' if flags else ''}, name another folder with --out, or give --again to recompute "
        f"what it touches ({size})"
    )


def _stored(folder: RunLedger, cell: Cell, rows: Mapping[str, Row]) -> dict[Path, Provenance | None]:
    """Folder -> provenance of a cell (defense, attack, seed) and its model, for folders with results."""
    model, home = folder.model(cell.model_id), folder.cell(cell.id)
    recorded = {model: folder.made_of(model)} if holds(model) else {}
    if cell.id in rows:
        recorded[home] = rows[cell.id].provenance
    elif holds(home):
        recorded[home] = folder.made_of(home)
    return recorded


def _flags(there: Provenance | None, here: Provenance) -> list[str]:
    """Flags that restore the earlier device, threads and processes."""
    machines = ({} if there is None else there.machine), here.machine
    # no flag chooses between two kinds of GPU
    before, now = ({key: value.partition(",")[0] for key, value in machine.items()} for machine in machines)
    named = {"processes": "torchrun --nproc-per-node"}  # set by no flag of `privkit audit`
    return [f"{named.get(key, f'--{key}')} {value}" for key, value in before.items() if value != now.get(key)]
