"""One cell: train the defended model, record the wire, attack it, score the guesses, account for the receipt."""

from __future__ import annotations

import io
import json
import traceback
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator

from privkit.attacks.base import AttackDiverged, Knowledge, NotApplicable, Reconstruction, View
from privkit.attacks.floors import MeanImage, MidGrey
from privkit.channel import black_box_query, record
from privkit.config import AuditConfig
from privkit.data.base import Batch
from privkit.data.splits import Splits, fit_shape, split
from privkit.errors import DataError, PrivkitError, StorageError, UsageError
from privkit.grid import Cell
from privkit.metrics.cost import measure
from privkit.progress import Progress
from privkit.registry import parse
from privkit.reports.schema import Costs, Gate, Interval, Metrics, Proof, Row
from privkit.run_folder import RunFolder
from privkit.sanity import controls, judge
from privkit.scoring import Scores, match, per_example, summarise
from privkit.seeds import derive
from privkit.storage import append_line, load_module, load_state, save_module, save_state, write_bytes, write_text
from privkit.training import Checkpoint, Client, evaluate, train

SHOWN = 8
"""Images of each cell that the report shows."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all cells of one seed share.

    Attributes:
        splits: private, auxiliary and test images, on the device.
        victims: the attacked images.
        auxiliary: the adversary's images.
        floors: metrics of the constant guesses.
        hashes: size and sha256 of every part, for the manifest.
    """

    splits: Splits
    victims: Batch
    auxiliary: Batch
    floors: dict[str, dict[str, Metrics]]
    hashes: dict[str, dict[str, int | str]]


def prepare(config: AuditConfig, seed: int, device: torch.device) -> Setting:
    """Open the data, split them and choose the attacked and the auxiliary images."""
    budget = config.budget
    pools = config.dataset.spec.open(
        config.data_root, download=config.download, train_images=budget.private + budget.auxiliary
    )
    cpu = split(pools, private=budget.private, auxiliary=budget.auxiliary, test=budget.test, seed=seed)
    splits = Splits(
        private=cpu.private.to(device),
        auxiliary=cpu.auxiliary.to(device),
        test=cpu.test.to(device),
        classes=cpu.classes,
    )
    batch = config.training.batch_size
    source = splits.private if config.attacked == "private" else splits.test
    count = min(budget.victims, len(source)) // batch * batch
    if count == 0:
        raise UsageError(f"batch_size={batch} is more than the {len(source)} images to attack; lower it")
    victims = source[:count]
    auxiliary = _auxiliary(config, splits, seed).to(device)
    knowledge = Knowledge(image_shape=splits.image_shape, batch_size=batch, auxiliary=auxiliary.x)
    nothing = [View(round=0, smashed=torch.empty(len(victims), 0, device=device))]
    floors = {
        floor.name: summarise(_scores(victims, floor.run(nothing, knowledge, Generator()), batch), seed)
        for floor in (MidGrey(), MeanImage())
    }
    hashes = splits.hashes()
    if config.auxiliary not in ("disjoint", "training"):
        hashes[config.auxiliary] = {"images": len(auxiliary), "sha256": auxiliary.sha256()}
    return Setting(splits=splits, victims=victims, auxiliary=auxiliary, floors=floors, hashes=hashes)


def _auxiliary(config: AuditConfig, splits: Splits, seed: int) -> Batch:
    """The adversary's images."""
    if config.auxiliary == "disjoint":
        return splits.auxiliary
    if config.auxiliary == "training":
        return splits.private
    count = config.budget.auxiliary
    other = (
        parse("datasets", config.auxiliary)
        .spec.open(config.data_root, download=config.download, train_images=count)
        .train
    )
    order = np.random.default_rng(derive(seed, "auxiliary")).permutation(len(other))
    return fit_shape(other.take(order[:count]), splits.image_shape)


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
        seed=cell.seed,
        auxiliary=config.auxiliary,
        victims=config.attacked,
        batch_size=config.training.batch_size,
        images={
            "private": len(splits.private),
            "auxiliary": len(setting.auxiliary),
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
        row = _compute(config, cell, setting, folder, progress, base, log)
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


def _compute(
    config: AuditConfig,
    cell: Cell,
    setting: Setting,
    folder: RunFolder,
    progress: Progress,
    base: Row,
    log: _Log,
) -> Row:
    """Train (or load) the defended model, record the wire, attack it, score the guesses."""
    batch, seed = config.training.batch_size, cell.seed
    client, trained = _defended_model(config, cell, setting, folder, progress, log)
    views, receipts = record(client, setting.victims, batch_size=batch, seed=seed)
    certificate = receipts[0].certificate()
    knowledge = Knowledge(
        image_shape=setting.splits.image_shape,
        batch_size=batch,
        auxiliary=setting.auxiliary.x,
        query=black_box_query(client),
    )
    gates = _controls(cell, setting, folder, views[0], batch, progress)

    progress.stage(f"attack {cell.attack.label} on {cell.defense.label}, seed {seed}")
    checkpoint = Checkpoint(folder.cell(cell.id) / "attack.ckpt", progress.step)
    if (state := checkpoint.load()) is not None:
        log(f"attack resumed after epoch {len(state['curve'])}")
    stream = derive(seed, "attack", cell.attack.name)
    result = cell.attack.spec.run(views, knowledge, Generator().manual_seed(stream), checkpoint)
    scores = _scores(setting.victims, result, batch)
    recovers, floors = summarise(scores, seed), dict(setting.floors)
    if getattr(cell.attack.spec, "epochs", None):
        untrained = replace(cell.attack.spec, epochs=0).run(views, knowledge, Generator().manual_seed(stream))
        floors["zero_steps"] = summarise(_scores(setting.victims, untrained, batch), seed)
    gates += judge(
        result.converged, recovers["unaligned"], {name: floor["unaligned"] for name, floor in floors.items()}
    )
    _keep(folder.cell(cell.id), setting.victims, result, scores, batch)
    checkpoint.remove()
    return base.model_copy(
        update={
            "accuracy": Interval(**trained["accuracy"]),
            "proves": Proof(**asdict(certificate)),
            "recovers": recovers,
            "floors": floors,
            "gates": gates,
            "costs": Costs(**trained["costs"]),
            "training_curve": tuple(trained["curve"]),
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
) -> tuple[Client, dict[str, Any]]:
    """The trained client of this cell and what is known of its task, from the run folder where they are finished."""
    splits, seed, defense = setting.splits, cell.seed, cell.defense.spec
    device = splits.private.x.device
    shape = splits.image_shape
    model = config.model.spec.build(shape, splits.classes, positions=defense.positions, seed=derive(seed, "init"))
    client = Client.build(model.lower, defense, shape, derive(seed, "frozen block")).to(device)
    upper = model.upper.to(device)
    home = folder.model(cell.model_id)
    finished = load_state(home / "trained.state")
    if finished is not None:
        load_module(home / "client.safetensors", client)
        log("defended model: taken from the run folder")
        return client.eval(), finished
    progress.stage(f"train {cell.defense.label}, seed {seed}")
    checkpoint = Checkpoint(home / "training.ckpt", progress.step)
    if (state := checkpoint.load()) is not None:
        log(f"training resumed after epoch {len(state['curve'])}")
    trained = train(
        client, upper, splits.private, config.training, epochs=config.budget.epochs, seed=seed, checkpoint=checkpoint
    )
    batch = config.training.batch_size
    finished = {
        "accuracy": asdict(evaluate(client, upper, splits.test, batch_size=batch, seed=seed)),
        "costs": asdict(measure(client, splits.private.x[:1], trained=not config.training.freeze_lower)),
        "curve": list(trained.curve),
    }
    save_module(home / "client.safetensors", client)
    save_module(home / "upper.safetensors", upper)
    save_state(home / "trained.state", finished)  # last: it marks the model as finished
    checkpoint.remove()
    log(f"defended model: trained {config.budget.epochs} epochs")
    return client, finished


def _controls(
    cell: Cell, setting: Setting, folder: RunFolder, view: View, batch: int, progress: Progress
) -> tuple[Gate, ...]:
    """The attack's two control experiments, done once a run; attacks that ignore the release have none."""
    if "query" not in cell.attack.spec.needs:
        return ()
    path = folder.control(cell.attack.to_json())
    if (known := folder.read_gates(path)) is not None:
        return known
    progress.stage(f"controls of {cell.attack.label}")
    found = controls(cell.attack.spec, setting.auxiliary.x, view.smashed, batch, cell.seed)
    for number, gate in enumerate(found, start=1):
        progress.step(number, len(found), float(bool(gate.passed)))
    folder.write_gates(path, found)
    return found


def _scores(victims: Batch, result: Reconstruction, batch: int) -> dict[str, Scores]:
    """Truth meets output."""
    return per_example(victims.x.cpu().numpy(), result.images.cpu().numpy(), batch)


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
