"""The defended model of a cell: trained once, kept in the run folder, and trained again if its rounds are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Generator, nn

from privkit.attacks.base import NotApplicable
from privkit.audit.contained import is_own
from privkit.audit.seed_data import SeedData
from privkit.defenses.base import Defense
from privkit.defenses.chain import stages_of
from privkit.defenses.denoising import Denoiser
from privkit.domains.base import Batch
from privkit.domains.domain import Domain
from privkit.domains.partition import ClientPartition, rounds_an_epoch
from privkit.errors import DamagedFile, UsageError, one_line
from privkit.files.sealed import AGAIN
from privkit.files.storage import load_module, read_record, save_module, write_record
from privkit.models import MODELS
from privkit.models.base import check_class_token
from privkit.models.imported import told_places
from privkit.models.tokens import first_block, has_block
from privkit.models.vertical import parties_of
from privkit.reports.schema import Costs
from privkit.run.folder import RunFolder
from privkit.run.plan import Cell
from privkit.run.progress import Progress
from privkit.run.records import TRAINED
from privkit.run.restart import or_anew
from privkit.settings.config import AuditConfig
from privkit.shared.interval import Interval
from privkit.shared.seeds import derive
from privkit.torch_utils.clock import clock
from privkit.torch_utils.out_of_memory import ran_out
from privkit.torch_utils.seeded import seeded
from privkit.training import Checkpoint, Clients, Round, Stacked, Trained, evaluate, train
from privkit.training.costs import client_costs
from privkit.training.distributed import joined_processes
from privkit.training.loop import Epoch, learns
from privkit.training.together import train_together
from privkit.training.u_shape import u_shaped

CHECKPOINT = "training.ckpt"
"""In a model's folder, while it is trained."""


@dataclass(frozen=True, kw_only=True)
class DefendedModel:
    """Trained clients with their server.

    Attributes:
        edge: the clients (`Clients`), in evaluation mode.
        upper: the server's segment; for standalone clients, their own upper segments, stacked.
        known: measurements: the task's scores, costs, the training's curve, validation scores of each epoch, the
            seconds of all this, whether tokens hide their places, and sentences for the row.
    """

    edge: Clients
    upper: nn.Module
    known: dict[str, Any]


def defended_model(
    config: AuditConfig,
    cell: Cell,
    seed_data: SeedData,
    folder: RunFolder,
    progress: Progress,
    log: Callable[[str], None],
    note: Callable[[], object] = lambda: None,
) -> DefendedModel:
    """The trained model of this cell, from the run folder if finished there; `note` is called before it is stored."""
    splits, seed = seed_data.splits, cell.seed
    edge, upper, places = untrained(config, cell, seed_data)
    home = folder.model(cell.model_id)
    finished = read_record(home / TRAINED, model=cell.model_id)
    if finished is not None:
        _take(home, edge, upper, finished, config.training.keep)
        log("defended model: taken from the run folder")
        return DefendedModel(edge=edge.eval(), upper=upper.eval(), known=finished)
    progress.stage(f"train {cell.defense.label}, seed {seed}")
    now = clock(splits.private.x.device)
    start = now()
    checkpoint = Checkpoint(home / CHECKPOINT, progress.step, note, lambda: now() - start)

    def trained_model() -> tuple[Clients, nn.Module, Trained]:
        edge, upper, _ = untrained(config, cell, seed_data)
        if (state := checkpoint.load()) is not None:
            log(f"training resumed after epoch {len(state['curve'])}")
        trained = train_together(
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
        return edge, upper, trained

    edge, upper, trained = or_anew(trained_model, home / CHECKPOINT, progress.note)
    batch = config.training.batch_size
    accuracies = _accuracies(edge, upper, trained, splits.test, batch_size=batch, seed=seed)
    files = _stored(home, edge, upper, trained, config.training.keep)
    scores = evaluate(edge, upper, splits.test, batch_size=batch, seed=seed)
    finished = {
        "accuracy": asdict(scores.accuracy),
        "task": {name: asdict(score) for name, score in scores.defined.items() if name != "accuracy"} | accuracies,
        "costs": asdict(
            client_costs(
                edge,
                splits.private,
                config.training,
                rounds_an_epoch=rounds_an_epoch(len(splits.private), edge.protocol.clients, batch),
                seed=seed,
                upper=upper,
            )
        ),
        "curve": list(trained.curve),
        "validation": list(trained.validation),
        "best_epoch": None if trained.best is None else trained.best.number,
        "seconds": checkpoint.earlier + now() - start,
        "hides_places": places,
        "notes": _notes(edge, upper, config.training.keep),
        "files": files,
    }
    note()
    write_record(home / TRAINED, {"model": cell.model_id, **finished})  # last: it marks the model as finished
    checkpoint.remove()
    log(f"defended model: trained {config.budget.epochs} epochs")
    return DefendedModel(edge=edge, upper=upper, known=finished)


def _accuracies(
    edge: Clients, upper: nn.Module, trained: Trained, test: Batch, *, batch_size: int, seed: int
) -> dict[str, dict[str, Any]]:
    """Accuracy of the last epoch and of the best one on validation images, with the defense's noise and without.

    Returns:
        `accuracy_last_noisy` and so on -> interval; nothing if there is neither noise nor a best epoch. The networks
        hold the last epoch's weights before and after.
    """
    noisy = any(stage.noise_fields and stage.at_inference for stage in stages_of(edge.defense))
    kinds = {"_noisy": False, "_noise_free": True} if noisy else {"": False}
    if not noisy and trained.best is None:
        return {}

    def measured(epoch: str) -> dict[str, dict[str, Any]]:
        return {
            f"accuracy_{epoch}{kind}": asdict(
                evaluate(edge, upper, test, batch_size=batch_size, seed=seed, noise_free=free).accuracy
            )
            for kind, free in kinds.items()
        }

    found = measured("last")
    if trained.best is not None:
        with _weights_of(trained.best, edge, upper):
            found |= measured("best")
    return found


@contextmanager
def _weights_of(best: Epoch, edge: Clients, upper: nn.Module) -> Iterator[None]:
    """Inside, the networks hold the best epoch's weights."""
    last = [deepcopy(module.state_dict()) for module in (edge, upper)]
    edge.load_state_dict(best.edge)
    upper.load_state_dict(best.upper)
    yield
    for module, state in zip((edge, upper), last, strict=True):
        module.load_state_dict(state)


def _named(keep: str, edge: Clients, upper: nn.Module) -> dict[str, nn.Module]:
    """The files of the last or the best epoch, and the networks whose weights they hold."""
    start = "" if keep == "last" else "best_"
    return {f"{start}client.safetensors": edge, f"{start}upper.safetensors": upper}


def _stored(home: Path, edge: Clients, upper: nn.Module, trained: Trained, keep: str) -> dict[str, str]:
    """Write the last epoch's weights and the best one's, if it is known; the networks hold those to keep afterwards.

    Returns:
        File -> SHA-256.
    """
    files = {name: save_module(home / name, module) for name, module in _named("last", edge, upper).items()}
    if trained.best is None:
        return files
    with _weights_of(trained.best, edge, upper):
        files |= {name: save_module(home / name, module) for name, module in _named("best", edge, upper).items()}
    if keep != "last":
        edge.load_state_dict(trained.best.edge)
        upper.load_state_dict(trained.best.upper)
    return files


def _notes(edge: Clients, upper: nn.Module, keep: str) -> list[str]:
    """Sentences for the row: several servers, a gradient that is not the derivative, settings that were estimated, an
    epoch that was chosen on test images, and sides whose copies cannot be evaluated together."""
    servers = edge.protocol.servers
    pooled = [f"the adversary holds what all {servers} servers see"] if servers > 1 else []
    estimated = [stage.remark for stage in upper.modules() if isinstance(stage, Denoiser)]
    peek = "the epoch is the best on the test images, so its accuracy is a peek, and no estimate for new images"
    return [*pooled, *edge.defense.remarks, *estimated, *[peek] * (keep == "best_test")] + [
        f"the {stack.copies} {side} segments ran one after another, because torch cannot batch this module over clients"
        for side, stack in (("lower", edge.lowers), ("upper", upper))
        if isinstance(stack, Stacked) and not stack.batched
    ]


def _take(home: Path, edge: Clients, upper: nn.Module, finished: dict[str, Any], keep: str) -> None:
    """Put a finished model's weights into the networks, and check that its record is complete.

    Raises:
        DamagedFile: if a file is no longer what was written, or of another model.
    """
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
    except Exception as error:  # another architecture, other names, no safetensors at all
        reason = " ".join(str(error).split())[:200]
        raise DamagedFile(
            f"{home} holds no model of this run ({type(error).__name__}: {reason}); delete it and {AGAIN}"
        ) from None


def replay(
    config: AuditConfig, cell: Cell, seed_data: SeedData, play: Callable[..., Round], progress: Progress
) -> None:
    """Train this cell's model again from the same seed, with the same rounds, so that `play` can watch them.

    Raises:
        NotApplicable: in several processes, because each sees only its part of the rounds.
    """
    if (world := joined_processes()[1]) > 1:
        raise NotApplicable(
            f"it watches rounds of training, but each of {world} processes sees only its own; run it without torchrun"
        )
    edge, upper, _ = untrained(config, cell, seed_data)
    watch = Checkpoint(None, progress.step)
    epochs, shares = config.budget.epochs, seed_data.shares
    train(
        edge,
        upper,
        seed_data.splits.private,
        config.training,
        epochs=epochs,
        seed=cell.seed,
        shares=shares,
        checkpoint=watch,
        play=play,
    )


def another(
    config: AuditConfig, cell: Cell, seed_data: SeedData, private: Batch, shares: ClientPartition, seed: int
) -> DefendedModel:
    """A model of the same kind, with other private images and other random numbers, as an adversary would train it.

    Weights that are not trained (a frozen lower segment, the frozen block) are public, and therefore the same.
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
    """`assemble` for a cell, on the device of the private images."""
    splits = seed_data.splits
    edge, upper, places = assemble(config, cell.defense.spec, splits.domain, splits.classes, cell.seed)
    device = splits.private.x.device
    return edge.to(device), upper.to(device), places


def assemble(
    config: AuditConfig, defense: Defense, domain: Domain, classes: int, seed: int
) -> tuple[Clients, nn.Module, bool | None]:
    """Clients and server of one defended model, untrained, and whether its tokens hide their places."""
    protocol = config.protocol.spec
    model = config.model.spec.build(domain, classes, positions=defense.position_embedding, seed=derive(seed, "init"))
    if is_own(config.model.spec):  # it may build the same modules again, which this cell trains
        model = deepcopy(model)
    shuffled = any("permutes" in (stage.effects or ()) for stage in stages_of(defense))
    if model.class_token == "client" and shuffled:
        check_class_token(False, "leave the class token to the server")
    short = next((stage.name for stage in stages_of(defense) if "shortens" in (stage.effects or ())), "")
    if short and model.class_token == "client":
        raise UsageError(f"{short} may drop or merge the class token that the client sends; leave it to the server")
    wanted = defense.frozen_block
    if wanted == "auto" and domain.name == "images" and has_block(model.upper):
        wanted = "first"
    block = first_block(model.upper) if wanted == "first" else None
    edge = Clients.build(
        model.lower, defense, domain, classes=classes, seed=derive(seed, "frozen block"), protocol=protocol, block=block
    )
    if (parties := parties_of(model.lower)) is not None and defense.storages:
        _check_parts(defense, len(parties.ranges))
    edge.held = config.held if defense.storages else ()
    places, edge.other_tokens = model.hides_places, model.other_tokens
    if shuffled and not defense.position_embedding:
        if config.model.name not in MODELS:  # what it says of itself is nobody's but its author's
            places, edge.other_tokens = told_places(model.lower, domain)
            places = places or None
        edge.counts_orders = places is not None
    upper = edge.fitted(model.upper, domain, derive(seed, "adapter"))
    if short:
        _check_fewer_tokens(edge, upper, domain, short)
    if protocol.labels == "kept":
        upper = u_shaped(upper, _messages(edge, domain, edge.lowers.copies).flatten(0, 1), edge.lowers.copies)
    if protocol.stacked:
        upper = Stacked(upper, protocol.uppers)
        messages = _messages(edge, domain, protocol.clients)
        with seeded(torch.device("cpu"), 0):
            upper.eval().settle(messages.unflatten(0, (protocol.uppers, -1)).flatten(1, 2))
    return edge, upper, places


@torch.no_grad()
def _messages(edge: Clients, domain: Domain, clients: int) -> torch.Tensor:
    """What the clients send of the smallest batches of empty records, [n, B, ...]."""
    records = domain.zeros(clients * (each := edge.defense.smallest_batch)).unflatten(0, (-1, each))
    labels = torch.zeros(records.shape[:2], dtype=torch.int64)
    with seeded(torch.device("cpu"), 0):
        return edge.eval().infer(records, labels, Generator())


def _check_parts(defense: Defense, parties: int) -> None:
    """Refuse parts of a release that are not the outputs of the parties of a vertical split."""
    if len(defense.storages) != parties:
        raise UsageError(
            f"{defense.name} cuts the outputs of {parties} parties into {len(defense.storages)} parts; use "
            f"split_parts:parts={parties}, which gives each party's output a name"
        )
    if mixing := [stage.name for stage in stages_of(defense) if "maps" in (stage.effects or ())]:
        raise UsageError(
            f"{mixing[0]} acts on the outputs of all parties together, so that no part is one party's; leave out "
            "split_parts, or that stage"
        )


@torch.no_grad()
def _check_fewer_tokens(edge: Clients, upper: nn.Module, domain: Domain, defense: str) -> None:
    """Refuse a server's segment that reads all tokens of a record or none."""
    each = max(2, edge.defense.smallest_batch)
    records = domain.zeros(edge.lowers.copies * each).unflatten(0, (-1, each))
    labels = torch.zeros(records.shape[:2], dtype=torch.int64)
    training = edge.training, upper.training
    with seeded(torch.device("cpu"), 0):
        try:
            sent = edge.eval().release(records, labels, Generator().manual_seed(0)).release.smashed
        except ValueError as error:
            raise UsageError(str(error)) from None
        try:
            upper.eval()(sent.flatten(0, 1))
        except Exception as error:
            if ran_out(error):
                raise
            raise UsageError(
                f"{defense} sends fewer tokens, and this model's server needs all of them ({one_line(error)}); take a "
                "model whose upper segment is blocks of attention, such as vit_micro, t2t_vit or transformer_micro"
            ) from None
    edge.train(training[0])
    upper.train(training[1])
