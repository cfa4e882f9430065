"""Computes a cell (one defense, attack and seed): trains, records messages, computes the certificate, and attacks."""

from __future__ import annotations

import traceback
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import torch
from torch import Tensor

from privkit.attacks.base import AttackDiverged, NotApplicable, known_to, threat_model
from privkit.attacks.outputs import BadOutput
from privkit.audit.claims import limits_of
from privkit.audit.contained import OverLimit, contained, has_own_part, is_own_part, limited
from privkit.audit.defended import defended_model, or_anew
from privkit.audit.goals.context import ATTACK_CHECKPOINT, AttackContext, Spent
from privkit.audit.goals.goal import audit_goal
from privkit.audit.goals.trained import TrainedContext
from privkit.audit.recorded import recorded_context
from privkit.audit.seed_data import SeedData
from privkit.audit.standing import certified, fewest_orders, made_by, must_keep_no_state
from privkit.audit.tuning import tuned
from privkit.defenses.base import stages_with
from privkit.defenses.chain import stages_of
from privkit.errors import DataError, Misbehaved, OutOfMemory, PrivkitError, StorageError, UsageError, one_line
from privkit.files.storage import append_line, write_record
from privkit.models.tokens import FirstBlock
from privkit.reports.escape import terminal
from privkit.reports.schema import Row
from privkit.run.folder import RunFolder
from privkit.run.plan import Cell
from privkit.run.progress import Progress
from privkit.run.provenance import Ingredients
from privkit.run.records import BEGUN, LOG
from privkit.settings.config import AuditConfig
from privkit.shared.costs import Costs
from privkit.shared.interval import Interval
from privkit.shared.seeds import derive
from privkit.torch_utils.clock import clock
from privkit.torch_utils.out_of_memory import advice, ran_out, shortage
from privkit.torch_utils.same import same
from privkit.torch_utils.seeded import seeded
from privkit.training import Clients
from privkit.training.losses import own_loss
from privkit.wire.channel import RecordedRounds, record_rounds


def run_cell(
    config: AuditConfig, cell: Cell, seed_data: SeedData, folder: RunFolder, progress: Progress, made_of: Ingredients
) -> Row:
    """Compute the result row of one cell (defense, attack, seed). An error that concerns only this cell becomes a row
    with the reason."""
    folder.begin(cell, made_of)
    splits, device = seed_data.splits, seed_data.auxiliary.x.device
    base = Row(
        **planned_row(config, cell),
        status="done",
        records=splits.domain.records,
        counts=seed_data.counts,
        floors=seed_data.floors,
        feature_networks=seed_data.perception.labels,
        provenance=made_of.cell,
    )
    home = folder.cell(cell.id)
    spec = {"cell": cell.id, "defense": cell.defense.to_json(), "attack": cell.attack.to_json(), "seed": cell.seed}

    def log(text: str) -> None:
        append_line(home / LOG, f"{datetime.now(UTC).isoformat(timespec='milliseconds')} {text}")

    log(BEGUN)
    write_record(home / "spec.json", spec)
    context: AttackContext | None = None
    now, memory = clock(device), seed_data.memory
    memory.begin()
    spent = Spent(clock=lambda: now() + memory.spared)
    tuning, shared = "", seed_data
    try:
        if own := has_own_part(config, cell):
            seed_data = shared.copied()
        with contained() if own else nullcontext(), limited(config.cell_seconds, config.cell_memory):
            start = AttackContext(
                config=config,
                cell=cell,
                seed_data=seed_data,
                folder=folder,
                progress=progress,
                log=log,
                made_of=made_of,
                spent=spent,
                recording=RecordedRounds(views=[], receipts=[], members=torch.empty(0)),
                certificate=None,
                row=base,
            )
            context = _trained(start) if config.recording is None else recorded_context(start)
            base = context.row
            if isinstance(context, TrainedContext):
                _can_read_the_server(context)
                context, tuning = tuned(context)
                base = context.row
            else:
                context.refuse()
            lent = _lent(context) if own else {}
            ask = audit_goal(context.attack).ask
            # A recorded module may draw from torch's global generators.
            with nullcontext() if config.recording is None else seeded(device, derive(cell.seed, "recorded")):
                try:
                    row: Row = or_anew(lambda: ask(context), home / ATTACK_CHECKPOINT, progress.note)
                except Exception:
                    if own:  # a change that the part made to shared data may have caused the error
                        _must_be_unchanged(shared, seed_data, lent)
                    raise
        if own:
            _must_be_unchanged(shared, seed_data, lent)
    except OverLimit as error:
        row = _ended(base, "error", str(error))
    except NotApplicable as error:
        row = _ended(base, "not_applicable", f"{error}{context.lacking() if context else ''}")
    except (StorageError, UsageError, DataError):
        raise  # the next cell would fail in the same way
    except (PrivkitError, AttackDiverged, BadOutput) as error:
        row = _ended(base, "error", str(error))
    except Exception as error:
        if ran_out(error):
            raise OutOfMemory(
                f"memory ran out in {base.defense} / {base.attack}, seed {base.seed} ({shortage(error)}); "
                f"{advice(error)}, and run the command again: finished cells are kept"
            ) from None
        log(traceback.format_exc())
        row = _ended(base, "error", f"{one_line(error, None)} (trace in {home / LOG})")
    seconds, storages = spent.seconds, cell.defense.spec.storages
    remark = config.remarks.get(cell.defense.label, "")
    told, checks = ((), ()) if context is None else (context.notes(), context.checks())
    held = f"the adversary holds {', '.join(row.parts)} of {', '.join(storages)}" if row.parts != storages else ""
    notes = (*seed_data.warnings, remark, tuning, *told, held, *row.notes)
    row = row.model_copy(
        update={
            "provenance": folder.note(cell, made_of),
            "seconds": seconds,
            "notes": tuple(filter(None, notes)),
            "checks": (*row.checks, *checks),
        }
    )
    log(terminal(f"{row.status} {row.reason}".strip()))
    return row


def planned_row(config: AuditConfig, cell: Cell) -> dict[str, Any]:
    """The fields of a result row that are known before its cell (one defense, attack and seed) is computed."""
    return {
        "cell": cell.id,
        "defense": cell.defense.label,
        "attack": cell.attack.label,
        "dataset": config.dataset.label,
        "model": config.model.label,
        "protocol": config.protocol.label,
        "partition": config.partition.label,
        "seed": cell.seed,
        "knowledge": tuple(sorted(known_to(cell.attack.spec))),
        "threat_model": threat_model(cell.attack.spec),
        "arrangement": arrangement(config, cell),
        "auxiliary": config.auxiliary,
        "attacked": config.attacked,
        "parts": config.held if cell.defense.spec.storages and config.held else cell.defense.spec.storages,
        "batch_size": config.training.batch_size,
    }


def arrangement(config: AuditConfig, cell: Cell, edge: Clients | None = None) -> tuple[str, ...]:
    """Describe how the model is split and attacked, in phrases such as ("cut after block_1", "one pass")."""
    model, passes = config.model.spec, cell.attack.spec.mounting.passes
    cut, overlap = getattr(model, "cut", ""), getattr(model, "overlapping", False)
    block = "" if edge is None else _block(edge, getattr(model, "cuts", ()), cut)
    often = "one pass" if passes == 1 else f"{passes} passes"
    place, patches = f"cut after {cut}" if cut else "", "overlapping patches" if overlap else ""
    return tuple(filter(None, (place, patches, block, often)))


def _block(edge: Clients, cuts: tuple[str, ...], cut: str) -> str:
    if isinstance(edge.block, FirstBlock):
        return f"{cuts[cuts.index(cut) + 1] if cut in cuts else 'its first block'} frozen behind the defense"
    if edge.block is not None:
        return "a drawn frozen block behind the defense"
    return "no block behind the shuffle" if stages_with(stages_of(edge.defense), "permutes") else ""


def _lent(context: AttackContext) -> dict[str, list[tuple[Tensor, Tensor]]]:
    tensors = {"the release": [view.smashed for view in context.recording.views]}
    if isinstance(context, TrainedContext) and is_own_part(context.attack):
        weights = [*context.model.edge.parameters(), *context.model.upper.parameters()]
        tensors["weights of the defended model"] = [weight.data for weight in weights]
    return {name: [(one, one.detach().clone()) for one in given] for name, given in tensors.items()}


def _must_be_unchanged(shared: SeedData, copy: SeedData, lent: dict[str, list[tuple[Tensor, Tensor]]]) -> None:
    edited = [name for name, pairs in lent.items() if not all(same(*pair) for pair in pairs)]
    if changed := [*shared.changed(copy), *edited]:
        raise Misbehaved(
            f"a part of this cell changed {', '.join(changed)} in place; its numbers then measure nothing; let "
            "it compute on a copy (x.clone(), deepcopy(module)); other cells have copies of their own"
        )


def _can_read_the_server(context: TrainedContext) -> None:
    if "upper" not in known_to(context.attack):
        return
    if own_loss(context.model.upper) is not None:
        raise NotApplicable("it computes cross-entropy with a server that has a loss of its own or loss=multi_label")
    if (servers := context.model.edge.protocol.servers) > 1:
        raise NotApplicable(f"it computes with the server's segment, but each of {servers} servers has its own")


def _trained(start: AttackContext) -> TrainedContext:
    """Train (or load) the model, record its messages, and fill the row's fields that do not depend on the attack."""
    config, cell, seed_data, folder = start.config, start.cell, start.seed_data, start.folder
    noted = partial(folder.note, cell, start.made_of)
    stages, form = stages_of(cell.defense.spec), tuple(seed_data.auxiliary.x.shape[1:])
    before = made_by(stages, form)
    model = defended_model(config, cell, seed_data, folder, start.progress, start.log, noted)
    must_keep_no_state(stages, form, before)
    start.spent.trained(model.known["seconds"])
    times, batch = start.attack.mounting.passes, config.training.batch_size
    recording = record_rounds(model.edge, seed_data.victims, batch_size=batch, seed=cell.seed, passes=times)
    receipt = fewest_orders(recording.receipts)
    often, certificate = certified(config, model.edge, seed_data, receipt, times)
    if not cell.defense.spec.position_embedding and model.known["hides_places"] is False:
        told = (
            "this model's tokens reveal something of their places (patches overlap, or each field of a table has its "
            "own vectors): the count covers the order of tokens, not what one token reveals of its place"
        )
        certificate = replace(certificate, assumptions=(*certificate.assumptions, told))
    known = {
        "accuracy": Interval(**model.known["accuracy"]),
        "certificate": certificate,
        "limits": limits_of(certificate, receipt.mechanism(often)),
        "costs": Costs(**model.known["costs"]),
        "training_curve": tuple(model.known["curve"]),
        "task": {name: Interval(**score) for name, score in model.known["task"].items()},
        "validation_curve": tuple(model.known["validation"]),
        "best_epoch": model.known["best_epoch"],
        "kept": config.training.keep,
        "arrangement": arrangement(config, cell, model.edge),
    }
    row = start.row.model_copy(update=known)
    made = {"model": model, "recording": recording, "release_count": often, "certificate": certificate, "row": row}
    return TrainedContext(**{**vars(start), **made})


def _ended(row: Row, status: str, reason: str) -> Row:
    return row.model_copy(update={"status": status, "reason": reason})
