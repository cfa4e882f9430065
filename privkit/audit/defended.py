"""The defended model: it is trained once, kept in the run folder, and trained again if an attack needs its rounds."""

from __future__ import annotations

import os
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from privkit.attacks.base import AttackDiverged, NotApplicable
from privkit.attacks.outputs import BadOutput
from privkit.audit.assembled import assemble
from privkit.audit.seed_data import SeedData
from privkit.audit.standing import remarks_on_network
from privkit.defenses.chain import stages_of
from privkit.defenses.denoising import Denoiser
from privkit.domains.base import Batch
from privkit.domains.partition import ClientPartition, rounds_an_epoch
from privkit.errors import DamagedFile, DataError, StorageError, TrainingDiverged, UsageError, one_line
from privkit.files.sealed import AGAIN
from privkit.files.storage import load_module, read_record, remove, save_module, write_record
from privkit.run.folder import RunFolder
from privkit.run.plan import Cell
from privkit.run.progress import Progress
from privkit.run.records import TRAINED
from privkit.settings.config import AuditConfig
from privkit.shared.costs import Costs
from privkit.shared.interval import Interval
from privkit.torch_utils.clock import clock
from privkit.torch_utils.out_of_memory import ran_out
from privkit.training import Checkpoint, Clients, Round, Stacked, Trained, evaluate, train
from privkit.training.costs import client_costs
from privkit.training.distributed import joined_processes
from privkit.training.loop import EpochWeights, learns
from privkit.training.losses import with_loss
from privkit.training.together import train_together

_CHECKPOINT = "training.ckpt"  # file in a model's folder during its training
_OTHER_FAULTS = (
    *(StorageError, UsageError, DataError, MemoryError, TrainingDiverged),
    *(NotApplicable, AttackDiverged, BadOutput),
)
"""Errors that a saved state does not cause."""
_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class DefendedModel:
    """Trained clients with their server."""

    edge: Clients  # the clients (`Clients`), in evaluation mode
    upper: nn.Module  # the server's segment; for standalone clients, their own upper segments, stacked
    known: dict[str, Any]  # measurements and sentences for the row, as in the run folder's record of the training


def defended_model(
    config: AuditConfig,
    cell: Cell,
    seed_data: SeedData,
    folder: RunFolder,
    progress: Progress,
    log: Callable[[str], None],
    note: Callable[[], object] = lambda: None,
) -> DefendedModel:
    """Train the model for the defense and seed in `cell`, or read it from the run folder if its training was finished.

    `note` is called before the trained model is stored.
    """
    splits, seed = seed_data.splits, cell.seed
    edge, upper, places = untrained(config, cell, seed_data)
    home = folder.model(cell.model_id)
    finished = read_record(home / TRAINED, model=cell.model_id)
    if finished is not None:
        _take(home, edge, upper, finished, config.training.keep)
        log("defended model: taken from the run folder")
        upper = with_loss(upper, config.training.loss)
        return DefendedModel(edge=edge.eval(), upper=upper.eval(), known=finished)
    progress.stage(f"train {cell.defense.label}, seed {seed}")
    now = clock(splits.private.x.device)
    start = now()
    checkpoint = Checkpoint(home / _CHECKPOINT, progress.step, note, lambda: now() - start)

    def trained_model() -> Trained:
        edge, upper, _ = untrained(config, cell, seed_data)
        if (state := checkpoint.load()) is not None:
            log(f"training resumed after epoch {len(state['curve'])}")
        return train_together(
            edge,
            upper,
            splits.private,
            config.training,
            epochs=config.budget.epochs,
            seed=seed,
            shares=seed_data.shares,
            checkpoint=checkpoint,
            validation=splits.test if config.training.keep == "best_test" else splits.validation,
        )

    trained = or_anew(trained_model, home / _CHECKPOINT, progress.note)
    edge, upper, batch = trained.edge, trained.upper, config.training.batch_size
    accuracies, files = _of_epochs(home, trained, splits.test, config.training.keep, batch_size=batch, seed=seed)
    scores = evaluate(edge, upper, splits.test, batch_size=batch, seed=seed)
    each = rounds_an_epoch(len(splits.private), edge.protocol.clients, batch)
    costs = client_costs(edge, splits.private, config.training, rounds_an_epoch=each, seed=seed, upper=upper)
    finished = {
        "accuracy": asdict(scores.accuracy),
        "task": {name: asdict(score) for name, score in scores.defined.items() if name != "accuracy"} | accuracies,
        "costs": asdict(costs),
        "curve": list(trained.curve),
        "validation": list(trained.validation),
        "best_epoch": None if trained.best is None else trained.best.number,
        "seconds": checkpoint.earlier + now() - start,
        "hides_places": places,
        "notes": [
            *_notes(edge, upper, config.training.keep),
            *_undivided(config),
            *remarks_on_network(config, edge, splits.private.x),
        ],
        "files": files,
    }
    note()
    # written last, since this file marks the model as finished
    write_record(home / TRAINED, {"model": cell.model_id, **finished})
    checkpoint.remove()
    log(f"defended model: trained {config.budget.epochs} epochs")
    return DefendedModel(edge=edge, upper=upper, known=finished)


def _named(keep: str, edge: Clients, upper: nn.Module) -> dict[str, nn.Module]:
    start = "" if keep == "last" else "best_"
    return {f"{start}client.safetensors": edge, f"{start}upper.safetensors": upper}


def _of_epochs(
    home: Path, trained: Trained, test: Batch, keep: str, *, batch_size: int, seed: int
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Measure and store the weights of the last epoch and, if known, of the best one. Then load the weights that `keep`
    names.

    Returns test accuracies with intervals by their names, and the digests of the stored files. If the defense adds
    noise to test images, each accuracy is measured with and without it, for example "accuracy_last_noisy".
    """
    edge, upper = trained.edge, trained.upper
    noisy = any(stage.noise_fields and stage.at_inference for stage in stages_of(edge.defense))
    kinds = {"": False} if trained.best else {}
    if noisy:
        kinds = {"_noisy": False, "_noise_free": True}
    last = EpochWeights(number=0, edge=deepcopy(edge.state_dict()), upper=deepcopy(upper.state_dict()))
    epochs = {"last": last, **({} if trained.best is None else {"best": trained.best})}
    accuracies, files = dict[str, dict[str, Any]](), dict[str, str]()
    for name, epoch in epochs.items():
        _put(trained, epoch)
        for kind, free in kinds.items():
            scores = evaluate(edge, upper, test, batch_size=batch_size, seed=seed, noise_free=free)
            accuracies[f"accuracy_{name}{kind}"] = asdict(scores.accuracy)
        files |= {file: save_module(home / file, module) for file, module in _named(name, edge, upper).items()}
    _put(trained, last if keep == "last" else epochs.get("best", last))
    return accuracies, files


def _put(trained: Trained, epoch: EpochWeights) -> None:
    trained.edge.load_state_dict(epoch.edge)
    trained.upper.load_state_dict(epoch.upper)


def _notes(edge: Clients, upper: nn.Module, keep: str) -> list[str]:
    servers = edge.protocol.servers
    pooled = [f"the adversary holds what all {servers} servers see"] if servers > 1 else []
    estimated = [stage.remark for stage in upper.modules() if isinstance(stage, Denoiser)]
    peek = "the epoch was chosen as the best on the test images, so its accuracy is no estimate for new images"
    straight = [
        f"{stage.name} trains with a straight-through gradient, which is not the derivative of its release"
        for stage in stages_of(edge.defense)
        if stage.straight_through
    ]
    return [*pooled, *_clear(edge), *straight, *edge.defense.remarks, *estimated, *[peek] * (keep == "best_test")] + [
        f"the {stack.copies} {side} segments ran one after another, because torch cannot batch this module over clients"
        for side, stack in (("lower", edge.lowers), ("upper", upper))
        if isinstance(stack, Stacked) and not stack.batched
    ]


def _undivided(config: AuditConfig) -> list[str]:
    """A sentence for the result row if a partition has no effect, because one client holds all records."""
    without = config.protocol.spec.clients == 1 and config.partition.name == "dirichlet"
    told = f"partition={config.partition.label} has no effect, since one client holds all records; use more clients"
    return [f"{told}, such as protocol=psl:clients=4"] if without else []


def _clear(edge: Clients) -> list[str]:
    """A sentence for the result row if test images skip stages of the defense, so that accuracy does not show their
    effect."""
    passed = [stage for stage in stages_of(edge.defense) if not stage.at_inference or stage.group > 1]
    acts = [stage.name for stage in passed if stage.effects is None or stage.effects - {"trains", "answers"}]
    told = f"accuracy is measured on test images sent without {' and '.join(acts)}; attacks read releases with it"
    return [told] if acts else []


def _take(home: Path, edge: Clients, upper: nn.Module, finished: dict[str, Any], keep: str) -> None:
    """Load a finished model's weights into the networks; raises `DamagedFile` if weights or their record are
    incomplete."""
    try:
        for name, module in _named(keep, edge, upper).items():
            load_module(home / name, module, finished["files"].get(name))
        Interval(**finished["accuracy"])
        Costs(**finished["costs"])
        if missing := {"seconds", "hides_places", "curve", "task", "validation", "best_epoch", "notes"} - set(finished):
            raise KeyError(min(missing))
        if not all(bool(value.isfinite().all()) for module in (edge, upper) for value in module.parameters()):
            raise ValueError("a weight is not finite")
    except (DamagedFile, MemoryError):
        raise
    except Exception as error:  # the file may hold another architecture or other names, or no safetensors at all
        reason = " ".join(str(error).split())[:200]
        raise DamagedFile(
            f"{home} holds no model of this run ({type(error).__name__}: {reason}); delete it and {AGAIN}"
        ) from None


def train_again(
    config: AuditConfig, cell: Cell, seed_data: SeedData, play: Callable[..., Round], progress: Progress
) -> None:
    """Train the model of a defense and seed again with the same random numbers; `play` computes each round."""
    if (world := joined_processes()[1]) > 1:
        raise NotApplicable(f"it watches rounds, but each of {world} processes sees only its own; run without torchrun")
    edge, upper, _ = untrained(config, cell, seed_data)
    how: dict[str, Any] = {"epochs": config.budget.epochs, "seed": cell.seed, "shares": seed_data.shares}
    watch = Checkpoint(None, progress.step)
    train(edge, upper, seed_data.splits.private, config.training, **how, checkpoint=watch, play=play)


def another(
    config: AuditConfig, cell: Cell, seed_data: SeedData, private: Batch, shares: ClientPartition, seed: int
) -> DefendedModel:
    """Train a shadow model: the same architecture and defense, with other private images and other random numbers.

    Weights that are not trained (of a frozen lower segment or block) are public, so the shadow model shares them.
    """
    edge, upper, _ = untrained(config, replace(cell, seed=seed), seed_data)
    real, server, _ = untrained(config, cell, seed_data)
    if config.training.freeze_lower:
        edge.lowers.requires_grad_(False)
    with torch.no_grad():
        for own, public in ((edge, real), (upper, server)):
            for weight, given in zip(own.parameters(), public.parameters(), strict=True):
                if not weight.requires_grad:
                    weight.copy_(given)
    if not learns(edge):
        edge.lowers.load_state_dict(real.lowers.state_dict())  # buffers, too
    train_together(edge, upper, private, config.training, epochs=config.budget.epochs, seed=seed, shares=shares)
    return DefendedModel(edge=edge.eval(), upper=upper.eval(), known={})


def untrained(config: AuditConfig, cell: Cell, seed_data: SeedData) -> tuple[Clients, nn.Module, bool | None]:
    """Build untrained clients and server on the private images' device; say whether tokens hide their positions."""
    splits = seed_data.splits
    edge, upper, places = assemble(config, cell.defense.spec, splits.domain, splits.classes, cell.seed)
    device = splits.private.x.device
    return edge.to(device), upper.to(device), places


def or_anew(stage: Callable[[], _Result], saved: Path, tell: Callable[[str], None]) -> _Result:
    """Return the result of `stage` (a training or an attack). If the stage fails after it began from a state in
    `saved`, remove this state and run the stage once more: an intact state may not fit the networks, for example
    because of missing keys or wrong shapes."""
    resumed = os.path.lexists(saved)
    try:
        return stage()
    except _OTHER_FAULTS:
        raise
    except Exception as error:
        if not resumed or ran_out(error):
            raise
        tell(f"could not go on from {saved}, so that this stage starts over ({one_line(error)})")
        remove(saved)
    return stage()
