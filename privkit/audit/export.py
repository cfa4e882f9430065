"""Exports a recording of a trained model from a run folder; an audit of the recording gives the numbers of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from privkit.accountants.spec.records import to_json
from privkit.audit.assembled import assemble
from privkit.audit.defended import defended_model
from privkit.audit.seed_data import SeedData, prepare
from privkit.audit.standing import certified, fewest_orders
from privkit.domains.domain import Domain
from privkit.domains.images.domain import Images
from privkit.errors import RunFolderError, UsageError, unknown
from privkit.files import observed
from privkit.files.paths import root
from privkit.files.storage import packed
from privkit.parts.registry import parse
from privkit.recording.read import Recording
from privkit.recording.write import write_recording
from privkit.reports.origins import differences
from privkit.run.folder import RunFolder
from privkit.run.plan import Cell, plan
from privkit.run.progress import Progress
from privkit.run.provenance import ingredients
from privkit.run.records import TRAINED, read_manifest
from privkit.run.sources import as_it_is_now
from privkit.settings.config import AuditConfig
from privkit.settings.resolve import resolve
from privkit.shared.own_records import hold_attacked
from privkit.training import Clients
from privkit.wire.channel import holds_all, record_rounds

_BUILDER = "privkit.audit.export"


def export(
    run: Path, folder: Path, *, defense: str | None = None, seed: int | None = None, data_root: Path | None = None
) -> Recording:
    """Make a recording of a finished run: send the run's attacked images through the trained model again, and store all
    data.

    By default, `defense` (written as in the run's table) is the last one of the run, and `seed` the first.
    """
    run, folder = root(run), root(folder)
    manifest = read_manifest(run)
    if manifest is None:
        raise RunFolderError(f"{run} holds no run; name the folder that privkit audit wrote")
    planned = [cell for cell in manifest.cells if seed in (None, cell.seed)]
    if not planned:
        raise UsageError(f"this run has no seed {seed}; it has {', '.join(map(str, manifest.seeds))}")
    names = [cell.defense for cell in planned]
    wanted = list(dict.fromkeys(names))[-1] if defense is None else defense
    if wanted not in names:
        raise unknown("defense of this run", wanted, dict.fromkeys(names))
    own = [cell for cell in planned if cell.defense == wanted]
    own = [cell for cell in own if cell.model == own[0].model]
    home = RunFolder(run)
    if not (home.model(own[0].model) / TRAINED).exists():
        raise RunFolderError(f"{run} has not trained {wanted} with seed {own[0].seed}; repeat the run's command first")
    models = {cell.model_id: (part, cell) for part in _parts(manifest.config, data_root) for cell in plan(part)}
    if own[0].model not in models:
        raise RunFolderError(f"{run} was written by another version of privkit, which planned its cells differently")
    config, cell = models[own[0].model]
    if hold_attacked(config.auxiliary, config.attacked):
        raise UsageError(
            f"the adversary of this run holds attacked records (auxiliary={config.auxiliary}), and an audit of a "
            "recording leaves such records out, so its numbers would differ; record a run with another --auxiliary"
        )
    passes = max(parse("attacks", one.attack).spec.mounting.passes for one in own)
    return _exported(config, cell, home, folder, passes)


def _exported(config: AuditConfig, cell: Cell, home: RunFolder, folder: Path, passes: int) -> Recording:
    observed.begin()
    seed_data = prepare(config, cell.seed, torch.device("cpu"))
    _must_be_unchanged(config, cell, home, seed_data)
    domain, classes = seed_data.splits.domain, seed_data.splits.classes
    model = defended_model(config, cell, seed_data, home, Progress(), lambda text: None)
    edge, batch, victims = model.edge, config.training.batch_size, seed_data.victims
    if not holds_all(edge) or edge.protocol.upper == "own" or edge.protocol.labels == "kept":
        raise UsageError(
            "a recording needs clients that send their release and labels, and an adversary that sees all parts; this "
            "run differs"
        )
    wire = record_rounds(edge, victims, batch_size=batch, seed=cell.seed, passes=passes)
    each = len(wire.views) // passes
    receipt, own = fewest_orders(wire.receipts), seed_data.auxiliary
    often, certificate = certified(config, edge, seed_data, receipt, 1)
    # A claim about labels that the server holds says nothing about this release.
    proven = certificate.kind == "differential_privacy" and certificate.covers == "release"
    mechanism = receipt.mechanism(often) if proven else None
    again = {
        "model": _named(config.model.to_json()),
        "defense": cell.defense.to_json(),
        "protocol": config.protocol.to_json(),
        "classes": classes,
        "seed": cell.seed,
    }
    built = {"options": again, "domain": True}
    accuracy = model.known["accuracy"]
    return write_recording(
        folder,
        [view for end in range(len(wire.views), 0, -each) for view in wire.views[end - each : end]],  # last pass first
        domain=domain,
        files={"lower.safetensors": packed(edge.state_dict()), "upper.safetensors": packed(model.upper.state_dict())},
        own=(own.x, own.y),
        truth=(victims.x, victims.y),
        members=wire.members.view(passes, -1, wire.views[0].mixed)[0],
        name=cell.defense.label,
        batch_size=batch,
        clients=edge.protocol.active,
        passes=passes,
        classes=classes,
        lower={"builder": f"{_BUILDER}:clients", **built, "weights": "lower.safetensors"},
        upper={"builder": f"{_BUILDER}:server", **built, "weights": "upper.safetensors"},
        mechanism=None if mechanism is None else to_json(mechanism),
        measured={"accuracy": accuracy["value"], "test_images": accuracy["n"]},
        dataset=config.dataset.label,
        model=config.model.label,
        protocol=config.protocol.label,
    )


def _must_be_unchanged(config: AuditConfig, cell: Cell, home: RunFolder, seed_data: SeedData) -> None:
    """Raise `RunFolderError` if the records, or a user's code or files, differ from those of the trained model. Other
    versions of libraries, another device and other threads are allowed."""
    if (stored := home.made_of(home.model(cell.model_id))) is None:
        return
    machine = stored.model_copy(update={"data": {}, "code": {}, "files": {}})
    now = ingredients(config, [cell], seed_data.perception, machine)[cell.id].on(seed_data.hashes).model
    if changed := differences(stored, as_it_is_now(stored, now), seed=cell.seed):
        raise RunFolderError(
            f"{home.path} was made of something else: {', '.join(changed)}; restore what changed (--data-root names the"
            " folder of the data), or repeat the run's command with --again"
        )


def clients(**given: Any) -> Clients:
    """The untrained clients of an exported recording: lower segments with their defense."""
    return _assembled(**given)[0]


def server(**given: Any) -> nn.Module:
    """The untrained server's segment of an exported recording."""
    return _assembled(**given)[1]


def _assembled(
    *,
    model: str | Mapping[str, Any],
    defense: Mapping[str, Any],
    protocol: Mapping[str, Any],
    classes: int,
    seed: int,
    domain: Domain | None = None,
    image_shape: Sequence[int] = (),
) -> tuple[Clients, nn.Module]:
    network = parse("models", model)
    if getattr(network.spec, "checkpoint", None) is not None:  # only the recorded weights are loaded, later
        network = network.replace(checkpoint=None)
    # The model is added after the settings are checked, since it need not fit their default dataset.
    config = replace(resolve({"defense": [defense], "protocol": protocol, "attack": "mid_grey"}), model=network)
    if domain is None:  # an older recording, of images
        domain = Images(shape=(image_shape[0], image_shape[1], image_shape[2]))
    edge, upper, _ = assemble(config, config.defenses[-1].spec, domain, classes, seed)
    return edge, upper


def _named(model: dict[str, Any]) -> str | dict[str, Any]:
    """The model as the settings take it: its options, or the import paths of a user's two segments."""
    return f"{model['lower']}:{model['upper']}" if model["name"] == "imported" else model


def _parts(stored: Mapping[str, Any], data_root: Path | None) -> list[AuditConfig]:
    """Read one configuration for each protocol of a run from its manifest. A constant guess replaces the attacks."""
    kept = ("dataset", "partition", "delta", "auxiliary", "victims", "training", "parts")
    return [
        resolve(
            {
                **{key: part[key] for key in kept if key in part},
                "model": _named(part["model"]),
                "protocol": part["protocol"],
                "defense": part["defenses"],
                "attack": "mid_grey",
                "seed": part["seeds"],
                "budget": {"name": "small", **part["budget"]},
                "data_root": data_root,
            }
        )
        for part in (stored, *stored.get("also", ()))
    ]
