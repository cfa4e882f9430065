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
from torch import Generator, nn

from privkit.attacks.base import AttackDiverged, Knowledge, NotApplicable, Reconstruction, View
from privkit.attacks.floors import MeanImage, MidGrey
from privkit.channel import Recording, black_box_query, record, shared_lower
from privkit.config import AuditConfig
from privkit.data.base import Batch, Pool, Pools
from privkit.data.partition import Shares, rounds_an_epoch, stratified
from privkit.data.splits import Splits, fit_shape, part_sizes, split, without
from privkit.defenses.base import Defense
from privkit.errors import DataError, PrivkitError, StorageError, UsageError
from privkit.grid import Cell
from privkit.progress import Progress
from privkit.registry import parse
from privkit.reports.schema import Costs, Gate, Interval, Metrics, Proof, Row
from privkit.run_folder import RunFolder
from privkit.sanity import controls, judge
from privkit.scoring import Scores, match, per_example, summarise
from privkit.seeds import derive
from privkit.storage import append_line, load_module, load_state, save_module, save_state, write_bytes, write_text
from privkit.training import Checkpoint, Edge, Stacked, evaluate, exposure, train
from privkit.training.costs import edge_costs

SHOWN = 8
"""Images of each cell that the report shows."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all cells of one seed share.

    Attributes:
        splits: private, auxiliary and test images, on the device.
        shares: which private images belong to which client.
        victims: the attacked images.
        auxiliary: the adversary's images.
        dropped: auxiliary images left out, because they are private or attacked ones.
        floors: metrics of the constant guesses.
        hashes: size and sha256 of every part, for the manifest.
    """

    splits: Splits
    shares: Shares
    victims: Batch
    auxiliary: Batch
    dropped: int
    floors: dict[str, dict[str, Metrics]]
    hashes: dict[str, dict[str, int | str]]


def prepare(config: AuditConfig, seed: int, device: torch.device) -> Setting:
    """Open the data, split them and choose the attacked and the auxiliary images.

    Raises:
        UsageError: if the parts are too small for the batch size.
        DataError: if files are missing, damaged or too few.
    """
    budget = config.budget
    pools, other, _ = open_data(config)
    cpu = split(pools, private=budget.private, auxiliary=budget.auxiliary, test=budget.test, seed=seed)
    if config.training.fraction < 1:
        kept = stratified(cpu.private.y, config.training.fraction, derive(seed, "fraction"))
        cpu = replace(cpu, private=cpu.private[kept])
        check_sizes(config, private=len(cpu.private), auxiliary=len(cpu.auxiliary), test=len(cpu.test))
    splits = Splits(
        private=cpu.private.to(device),
        auxiliary=cpu.auxiliary.to(device),
        test=cpu.test.to(device),
        classes=cpu.classes,
    )
    protocol = config.protocol.spec
    shares = config.partition.spec.assign(cpu.private.y, protocol.clients, derive(seed, "partition"))
    batch = protocol.active * config.training.batch_size
    victims = _victims(config, splits, shares)
    auxiliary, dropped = _auxiliary(config, splits, victims, other, seed)
    if dropped:
        check_sizes(config, private=len(splits.private), auxiliary=len(auxiliary), test=len(splits.test))
    knowledge = Knowledge(image_shape=splits.image_shape, batch_size=batch, auxiliary=auxiliary.x)
    nothing = [View(round=0, smashed=torch.empty(len(victims), 0, device=device))]
    floors = {
        floor.name: summarise(_scores(victims, floor.run(nothing, knowledge, Generator()), batch), seed)
        for floor in (MidGrey(), MeanImage())
    }
    hashes = splits.hashes()
    if config.auxiliary not in ("disjoint", "training"):
        hashes[config.auxiliary] = {"images": len(auxiliary), "sha256": auxiliary.sha256()}
    return Setting(
        splits=splits,
        shares=shares,
        victims=victims,
        auxiliary=auxiliary,
        dropped=dropped,
        floors=floors,
        hashes=hashes,
    )


def _victims(config: AuditConfig, splits: Splits, shares: Shares) -> Batch:
    """The attacked images, round by round and in each round client by client; a client's own where they are private."""
    senders, batch = config.protocol.spec.active, config.training.batch_size
    source = splits.private if config.attacked == "private" else splits.test
    rounds = min(config.budget.victims, len(source)) // (senders * batch)
    if config.attacked == "test" or senders == 1:
        return source[: rounds * senders * batch]
    rounds = max(1, min(rounds, int(shares.sizes.min()) // batch))
    rows = shares.rows[:, torch.arange(rounds * batch) % shares.rows.shape[1]]
    return source[rows.view(senders, rounds, batch).transpose(0, 1).flatten().to(source.x.device)]


def open_data(config: AuditConfig) -> tuple[Pools, Pool | None, dict[str, int]]:
    """The private dataset, the one of the auxiliary images if it is another, and the sizes of the three parts.

    Pictures are not decoded yet.

    Raises:
        UsageError: if the parts are too small for the batch size.
        DataError: if files are missing or damaged, or there is but one class.
    """
    budget, other = config.budget, None
    pools = config.dataset.spec.open(
        config.data_root, download=config.download, train_images=budget.private + budget.auxiliary
    )
    if pools.classes < 2:
        raise DataError(
            f"{config.dataset.label} has one class only, and telling classes apart is the task; add another"
        )
    sizes = part_sizes(pools, private=budget.private, auxiliary=budget.auxiliary, test=budget.test)
    if config.auxiliary == "training":
        sizes["auxiliary"] = sizes["private"]
    elif config.auxiliary != "disjoint":
        spec = parse("datasets", config.auxiliary).spec
        other = spec.open(config.data_root, download=config.download, train_images=budget.auxiliary).train
        sizes["auxiliary"] = min(budget.auxiliary, len(other))
    check_sizes(config, **sizes)
    return pools, other, sizes


def check_sizes(config: AuditConfig, *, private: int, auxiliary: int, test: int) -> None:
    """Refuse a batch size that a part of the data does not fill once, before anything is trained.

    Raises:
        UsageError: with the part that is the smallest, and a batch size that works.
    """
    source, name = (private, "private") if config.attacked == "private" else (test, "test")
    attacked = f"attacked images (the smaller of victims={config.budget.victims} and {source} {name} ones)"
    most = {"private images": private, "test images": test, attacked: min(config.budget.victims, source)}
    if any(hasattr(attack.spec, "epochs") for attack in config.attacks):
        most[f"a quarter of the {auxiliary} auxiliary images, which the control experiments take"] = auxiliary // 4
    what = min(most, key=lambda part: most[part])
    senders = config.protocol.spec.clients
    batch, works = config.training.batch_size, most[what] // senders
    if batch <= works:
        return
    if works < max(defense.spec.smallest_batch for defense in config.defenses):
        raise UsageError(f"{most[what]} {what} are too few for any batch; bring more images, or raise the budget")
    whose = "" if senders == 1 else f" of each of {senders} clients"
    raise UsageError(
        f"batch_size={batch}{whose} is more than {most[what]}, {what}; use --training batch_size={works} or less"
    )


def _auxiliary(config: AuditConfig, splits: Splits, victims: Batch, other: Pool | None, seed: int) -> tuple[Batch, int]:
    """The adversary's images, and how many were left out because they are private or attacked ones."""
    if config.auxiliary == "training":
        return splits.private, 0
    found = splits.auxiliary
    if other is not None:
        order = np.random.default_rng(derive(seed, "auxiliary")).permutation(len(other))
        found = fit_shape(other.take(order[: config.budget.auxiliary]), splits.image_shape).to(victims.x.device)
    kept = without(without(found, splits.private), victims)
    if not len(kept):
        raise DataError(f"every image of auxiliary={config.auxiliary} is a private or an attacked one; name another")
    return kept, len(found) - len(kept)


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
    scores = _scores(victims, result, batch)
    recovers, floors = summarise(scores, seed), dict(setting.floors)
    if getattr(cell.attack.spec, "epochs", None):
        untrained = replace(cell.attack.spec, epochs=0).run(views, knowledge, Generator().manual_seed(stream))
        untrained = replace(untrained, images=untrained.images[seats])
        floors["zero_steps"] = summarise(_scores(victims, untrained, batch), seed)
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
