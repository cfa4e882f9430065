"""One cell: train the defended model, record the wire, account for the receipt, and ask the attack's question."""

from __future__ import annotations

import traceback
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from privkit.attacks.base import AttackDiverged, NotApplicable, known_to
from privkit.channel import record, shared_lower
from privkit.config import AuditConfig
from privkit.defended import defended_model
from privkit.errors import DataError, OutOfMemory, PrivkitError, StorageError, UsageError
from privkit.grid import Cell
from privkit.ingredients import Ingredients
from privkit.out_of_memory import ran_out, shortage
from privkit.progress import Progress
from privkit.questions import QUESTIONS
from privkit.questions.images import passes
from privkit.questions.scene import ATTACK_CHECKPOINT, Scene
from privkit.registry import load
from privkit.reports.schema import Costs, Interval, Proof, Row
from privkit.restart import or_anew
from privkit.run_folder import RunFolder
from privkit.setting import Setting
from privkit.storage import append_line, write_record
from privkit.training import exposure


def run_cell(
    config: AuditConfig, cell: Cell, setting: Setting, folder: RunFolder, progress: Progress, made_of: Ingredients
) -> Row:
    """One cell; whatever goes wrong in its computation becomes a row with a reason, and the other cells go on."""
    folder.begin(cell, made_of)
    splits = setting.splits
    base = Row(
        cell=cell.id,
        status="done",
        defense=cell.defense.label,
        attack=cell.attack.label,
        dataset=config.dataset.label,
        model=config.model.label,
        protocol=config.protocol.label,
        partition=config.partition.label,
        seed=cell.seed,
        knows=tuple(sorted(known_to(cell.attack.spec))),
        auxiliary=config.auxiliary,
        victims=config.attacked,
        batch_size=config.training.batch_size,
        images={
            "private": len(splits.private),
            "auxiliary": len(setting.auxiliary),
            "auxiliary_dropped": setting.dropped,
            "test": len(splits.test),
            "victims": len(setting.victims),
        },
        floors=setting.floors,
        features=setting.perception.labels,
        provenance=made_of.cell,
    )
    home = folder.cell(cell.id)
    spec = {"cell": cell.id, "defense": cell.defense.to_json(), "attack": cell.attack.to_json(), "seed": cell.seed}
    log = _Log(home / "log.txt")
    log("start")
    write_record(home / "spec.json", spec)
    scene: Scene | None = None
    try:
        scene = _scene(config, cell, setting, folder, progress, made_of, base, log)
        base = scene.row
        ask = load(QUESTIONS[getattr(cell.attack.spec, "asks", "images")])
        row = or_anew(lambda: ask(scene), home / ATTACK_CHECKPOINT, progress.note)
    except NotApplicable as error:
        row = base.model_copy(update={"status": "not_applicable", "reason": f"{error}{_why(scene)}"})
    except (StorageError, UsageError, DataError):
        raise  # the next cell would meet it too
    except (PrivkitError, AttackDiverged) as error:
        row = base.model_copy(update={"status": "error", "reason": str(error)})
    except Exception as error:
        if ran_out(error):
            raise OutOfMemory(
                f"memory ran out in {base.defense} / {base.attack}, seed {base.seed} ({shortage(error)}); free some, "
                "or raise the limit (ulimit -v), and run the same command again: finished cells are kept"
            ) from None
        log(traceback.format_exc())
        reason = f"{type(error).__name__}: {' '.join(str(error).split())} (trace in {log.path})"
        row = base.model_copy(update={"status": "error", "reason": reason})
    row = row.model_copy(update={"notes": (*setting.warnings, *row.notes)})
    log(f"{row.status} {row.reason}".strip())
    return row


def _why(scene: Scene | None) -> str:
    """Why the adversary does not know the clients' lower segment, where the attack needs it, and what to do."""
    if scene is None or "lower" not in scene.attack.needs or shared_lower(scene.model.edge) is not None:
        return ""
    clients, protocol = scene.config.protocol.spec.clients, scene.config.protocol.label
    return (
        f": under {protocol} each of {clients} clients keeps a lower segment of its own, so that nobody knows the "
        "others'; use --protocol sl or splitfed, or --training freeze_lower=true"
    )


def _scene(
    config: AuditConfig,
    cell: Cell,
    setting: Setting,
    folder: RunFolder,
    progress: Progress,
    made_of: Ingredients,
    base: Row,
    log: _Log,
) -> Scene:
    """Train (or load) the defended model and record the wire; the row has what holds whatever an attack finds."""
    model, times = defended_model(config, cell, setting, folder, progress, log), passes(cell.attack.spec)
    recording = record(model.edge, setting.victims, batch_size=config.training.batch_size, seed=cell.seed, passes=times)
    often = exposure(
        model.edge,
        config.training,
        setting.shares,
        epochs=config.budget.epochs,
        recorded=setting.victims,
        passes=times,
        others=config.attacked != "private",
    )
    certificate = recording.receipts[0].certificate(replace(often, delta=config.delta))
    if not cell.defense.spec.positions and model.known["hides_places"] is not True:
        told = {
            None: "that tokens carry no position is assumed: it could not be checked for this model",
            False: "this model's tokens tell of their neighbors (its patches overlap): the count covers the order of "
            "tokens, not what one token gives away of its place",
        }[model.known["hides_places"]]
        certificate = replace(certificate, assumptions=(*certificate.assumptions, told))
    known = {
        "accuracy": Interval(**model.known["accuracy"]),
        "proves": Proof(**asdict(certificate)),
        "costs": Costs(**model.known["costs"]),
        "training_curve": tuple(model.known["curve"]),
    }
    return Scene(
        config=config,
        cell=cell,
        setting=setting,
        folder=folder,
        progress=progress,
        log=log,
        made_of=made_of,
        model=model,
        recording=recording,
        exposure=often,
        certificate=certificate,
        row=base.model_copy(update=known),
    )


class _Log:
    """Appends lines with a time to a cell's log."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, text: str) -> None:
        append_line(self.path, f"{datetime.now(UTC).isoformat(timespec='seconds')} {text}")
