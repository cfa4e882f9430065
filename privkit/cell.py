"""One cell: train the defended model, record the wire, attack it, score the guesses, account for the receipt."""

from __future__ import annotations

import io
import json
import traceback
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Generator, nn

from privkit.attacks.base import AttackDiverged, Knowledge, NotApplicable, Reconstruction, View
from privkit.channel import Recording, black_box_query, record, shared_lower
from privkit.config import AuditConfig
from privkit.data.base import Batch
from privkit.data.partition import rounds_an_epoch
from privkit.defenses.base import Defense
from privkit.errors import DataError, PrivkitError, StorageError, UsageError
from privkit.grid import Cell
from privkit.progress import Progress
from privkit.reports.schema import Costs, Gate, Interval, Proof, Row
from privkit.run_folder import RunFolder
from privkit.sanity import controls, judge
from privkit.scoring import Scores, match, scored, summarise
from privkit.seeds import derive
from privkit.setting import Setting
from privkit.storage import append_line, load_module, load_state, save_module, save_state, write_bytes, write_text
from privkit.training import Checkpoint, Edge, Stacked, evaluate, exposure, train
from privkit.training.costs import edge_costs

SHOWN = 8
"""Images of each cell that the report shows."""


def run_cell(config: AuditConfig, cell: Cell, setting: Setting, folder: RunFolder, progress: Progress) -> Row:
    """One cell; whatever goes wrong in its computation becomes a row with a reason, and the other cells go on."""
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
    )
    home = folder.cell(cell.id)
    spec = {"defense": cell.defense.to_json(), "attack": cell.attack.to_json(), "seed": cell.seed}
    log = _Log(home / "log.txt")
    log("start")
    write_text(home / "spec.json", json.dumps(spec, indent=2) + "\n")
    try:
        edge, recording, base = _released(config, cell, setting, folder, progress, base, log)
        row = _attacked(config, cell, setting, folder, progress, edge, recording, base, log)
    except NotApplicable as error:
        row = base.model_copy(update={"status": "not_applicable", "reason": str(error)})
    except (StorageError, UsageError, DataError):
        raise  # the next cell would meet it too
    except (PrivkitError, AttackDiverged) as error:
        row = base.model_copy(update={"status": "error", "reason": str(error)})
    except Exception as error:
        log(traceback.format_exc())
        reason = f"{type(error).__name__}: {' '.join(str(error).split())} (trace in {log.path})"
        row = base.model_copy(update={"status": "error", "reason": reason})
    log(f"{row.status} {row.reason}".strip())
    return row


def _released(
    config: AuditConfig,
    cell: Cell,
    setting: Setting,
    folder: RunFolder,
    progress: Progress,
    base: Row,
    log: _Log,
) -> tuple[Edge, Recording, Row]:
    """Train (or load) the defended model and record the wire; the row has what holds whatever an attack finds."""
    edge, trained = _defended_model(config, cell, setting, folder, progress, log)
    recording = record(edge, setting.victims, batch_size=config.training.batch_size, seed=cell.seed)
    often = exposure(
        edge,
        config.training,
        setting.shares,
        epochs=config.budget.epochs,
        recorded=config.attacked == "private",
    )
    certificate = recording.receipts[0].certificate(replace(often, delta=config.delta))
    if not cell.defense.spec.positions and trained["hides_places"] is not True:
        told = {
            None: "that tokens carry no position is assumed: it could not be checked for this model",
            False: "this model's tokens tell of their neighbors (its patches overlap): the count covers the order of "
            "tokens, not what one token gives away of its place",
        }[trained["hides_places"]]
        certificate = replace(certificate, assumptions=(*certificate.assumptions, told))
    known = {
        "accuracy": Interval(**trained["accuracy"]),
        "proves": Proof(**asdict(certificate)),
        "costs": Costs(**trained["costs"]),
        "training_curve": tuple(trained["curve"]),
    }
    return edge, recording, base.model_copy(update=known)


def _attacked(
    config: AuditConfig,
    cell: Cell,
    setting: Setting,
    folder: RunFolder,
    progress: Progress,
    edge: Edge,
    recording: Recording,
    base: Row,
    log: _Log,
) -> Row:
    """Attack the recorded wire and score the guesses."""
    if edge.protocol.upper == "own":
        raise NotApplicable("standalone clients send nothing, so there is nothing to attack")
    views, seats = recording.views, recording.members >= 0
    victims = setting.victims[recording.members[seats]]
    batch, seed = edge.lowers.copies * config.training.batch_size, cell.seed
    knowledge = Knowledge(
        image_shape=setting.splits.image_shape,
        batch_size=batch,
        auxiliary=setting.auxiliary.x,
        query=black_box_query(edge),
        lower=shared_lower(edge) if "lower" in cell.attack.spec.needs else None,
    )
    gates = _controls(cell, setting, folder, views[0], batch, progress)

    progress.stage(f"attack {cell.attack.label} on {cell.defense.label}, seed {seed}")
    checkpoint = Checkpoint(folder.cell(cell.id) / "attack.ckpt", progress.step)
    if (state := checkpoint.load()) is not None:
        log(f"attack resumed after epoch {len(state['curve'])}")
    stream = derive(seed, "attack", cell.attack.name)
    result = cell.attack.spec.run(views, knowledge, Generator().manual_seed(stream), checkpoint)
    result = replace(result, images=result.images[seats])
    scores = scored(victims.x, result.images, batch)
    recovers, floors = summarise(scores, seed), dict(setting.floors)
    if getattr(cell.attack.spec, "epochs", None):
        untrained = replace(cell.attack.spec, epochs=0).run(views, knowledge, Generator().manual_seed(stream))
        untrained = replace(untrained, images=untrained.images[seats])
        floors["zero_steps"] = summarise(scored(victims.x, untrained.images, batch), seed)
    gates += judge(
        result.converged, recovers["unaligned"], {name: floor["unaligned"] for name, floor in floors.items()}
    )
    _keep(folder.cell(cell.id), victims, result, scores, batch)
    checkpoint.remove()
    return base.model_copy(
        update={
            "recovers": recovers,
            "floors": floors,
            "gates": gates,
            "attack_curve": result.curve,
        }
    )


def _defended_model(
    config: AuditConfig,
    cell: Cell,
    setting: Setting,
    folder: RunFolder,
    progress: Progress,
    log: _Log,
) -> tuple[Edge, dict[str, Any]]:
    """The trained clients of this cell and what is known of their task, from the run folder where they are finished."""
    splits, seed, defense = setting.splits, cell.seed, cell.defense.spec
    edge, upper, places = assemble(config, defense, splits.image_shape, splits.classes, seed)
    edge, upper = edge.to(splits.private.x.device), upper.to(splits.private.x.device)
    home = folder.model(cell.model_id)
    finished = load_state(home / "trained.state")
    if finished is not None:
        load_module(home / "client.safetensors", edge)
        log("defended model: taken from the run folder")
        return edge.eval(), finished
    progress.stage(f"train {cell.defense.label}, seed {seed}")
    checkpoint = Checkpoint(home / "training.ckpt", progress.step)
    if (state := checkpoint.load()) is not None:
        log(f"training resumed after epoch {len(state['curve'])}")
    trained = train(
        edge,
        upper,
        splits.private,
        config.training,
        epochs=config.budget.epochs,
        seed=seed,
        shares=setting.shares,
        checkpoint=checkpoint,
    )
    batch = config.training.batch_size
    finished = {
        "accuracy": asdict(evaluate(edge, upper, splits.test, batch_size=batch, seed=seed)),
        "costs": asdict(
            edge_costs(
                edge,
                splits.private,
                config.training,
                rounds_an_epoch=rounds_an_epoch(len(splits.private), edge.protocol.clients, batch),
                seed=seed,
            )
        ),
        "curve": list(trained.curve),
        "hides_places": places,
    }
    save_module(home / "client.safetensors", edge)
    save_module(home / "upper.safetensors", upper)
    save_state(home / "trained.state", finished)  # last: it marks the model as finished
    checkpoint.remove()
    log(f"defended model: trained {config.budget.epochs} epochs")
    return edge, finished


def assemble(
    config: AuditConfig, defense: Defense, image_shape: tuple[int, int, int], classes: int, seed: int
) -> tuple[Edge, nn.Module, bool | None]:
    """Edge and server of one defended model, untrained, and whether its tokens hide their places."""
    protocol = config.protocol.spec
    model = config.model.spec.build(image_shape, classes, positions=defense.positions, seed=derive(seed, "init"))
    edge = Edge.build(
        model.lower, defense, image_shape, classes=classes, seed=derive(seed, "frozen block"), protocol=protocol
    )
    upper = edge.fitted(model.upper, image_shape, derive(seed, "adapter"))
    return edge, Stacked(upper, protocol.clients) if protocol.upper == "own" else upper, model.hides_places


def _controls(
    cell: Cell, setting: Setting, folder: RunFolder, view: View, batch: int, progress: Progress
) -> tuple[Gate, ...]:
    """The attack's two control experiments, done once a run; attacks that ignore the release have none."""
    if not hasattr(cell.attack.spec, "epochs"):  # a floor
        return ()
    path = folder.control(cell.attack.to_json())
    if (known := folder.read_gates(path)) is not None:
        return known
    progress.stage(f"controls of {cell.attack.label}", unit="experiments")
    found = controls(cell.attack.spec, setting.auxiliary.x, view.smashed, batch, cell.seed)
    for number in range(1, len(found) + 1):
        progress.step(number, len(found))
    folder.write_gates(path, found)
    return found


def _keep(home: Path, victims: Batch, result: Reconstruction, scores: dict[str, Scores], batch: int) -> None:
    """Store what the row summarises: every image's metrics, and the first images with their guesses."""
    truth, guess = victims.x.cpu().numpy(), result.images.cpu().numpy()
    matched = guess[match(truth, guess, batch)]
    values = {f"{alignment}_{name}": found for alignment, metrics in scores.items() for name, found in metrics.items()}
    pictures = {"truth": truth, "guess": guess, "matched": matched}
    shown = {name: _to_uint8(images[:SHOWN]) for name, images in pictures.items()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, ids=victims.ids.cpu().numpy(), **values, **shown)
    write_bytes(home / "per_example.npz", buffer.getvalue())


def _to_uint8(images: NDArray[np.float32]) -> NDArray[np.uint8]:
    """[N, C, H, W] in [0, 1] to pictures [N, H, W, C] in 0..255."""
    return np.rint(images.transpose(0, 2, 3, 1).clip(0, 1) * 255).astype(np.uint8)


class _Log:
    """Appends lines with a time to a cell's log."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, text: str) -> None:
        append_line(self.path, f"{datetime.now(UTC).isoformat(timespec='seconds')} {text}")
