"""What did the images look like? Reconstructions, held against the truth, the floors and their own untrained start."""

from __future__ import annotations

import io
from dataclasses import replace
from math import log2

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator

from privkit.attacks.base import Arrangement, Knowledge, NotApplicable, Reconstruction, known_to
from privkit.attacks.hijack_detection import SplitGuard
from privkit.channel import black_box_query, shared_lower
from privkit.data.base import Batch
from privkit.defended import untrained
from privkit.hijack import HONEST_ROUNDS, LiveClients, imitated, serve
from privkit.metrics.arrangement import arrangement_scores, true_arrangement
from privkit.metrics.puzzle import kinds_of
from privkit.questions.scene import Scene
from privkit.reports.schema import Gate, Interval, Row
from privkit.run_folder import PICTURES
from privkit.sanity import controls, judge
from privkit.scoring import Scores, match, scored, summarise
from privkit.seeds import derive
from privkit.storage import write_bytes

SHOWN = 8
"""Images of each cell that the report shows."""


def ask(scene: Scene) -> Row:
    """Attack the recorded wire and score the guesses.

    Raises:
        NotApplicable: if nothing is sent, or the attack cannot be mounted.
    """
    setting, attack, seed, size = scene.setting, scene.attack, scene.cell.seed, scene.round_size
    if scene.model.edge.protocol.upper == "own":
        raise NotApplicable("standalone clients send nothing, so there is nothing to attack")
    views = scene.recording.views
    if not all(bool(view.smashed.isfinite().all()) for view in views):
        raise NotApplicable("the release holds NaN or infinity: the model did not survive its training")
    members = scene.recording.members[: len(scene.recording.members) // passes(attack)]
    seats = members >= 0
    victims = setting.victims[members[seats]]
    floors = dict(setting.floors)
    if getattr(attack, "epochs", 0) != 0:  # first, since it is quick to say whether the attack can be mounted at all
        start = getattr(attack, "start", None) or replace(attack, epochs=0)
        untaught = start.run(views, knowledge(scene), scene.generator()).images[seats]
        floors["zero_steps"] = summarise(scored(victims.x, untaught, size, setting.perception), seed)
    gates = _controls(scene)

    scene.begin()
    checkpoint = scene.checkpoint()
    known = knowledge(scene)
    result = attack.run(views, known, scene.generator(), checkpoint)
    result = replace(result, images=result.images[seats])
    scores = scored(victims.x, result.images, size, setting.perception)
    recovers = summarise(scores, seed)
    gates += judge(
        result.converged, recovers["unaligned"], {name: floor["unaligned"] for name, floor in floors.items()}
    )
    _keep(scene, victims, result, scores)
    told, notes = ({}, "") if result.arrangement is None else order(scene, result.arrangement)
    caught = noticed(scene, known.clients) if isinstance(known.clients, LiveClients) else ""
    looks = setting.perception.floors(victims.x, victims.y)
    checkpoint.remove()
    return scene.row.model_copy(
        update={
            "recovers": recovers,
            "floors": floors,
            "gates": gates,
            "attack_curve": result.curve,
            "answers": told,
            "notes": tuple(filter(None, (notes, getattr(attack, "short_of_published", ""), caught, looks))),
        }
    )


def order(scene: Scene, guess: Arrangement) -> tuple[dict[str, Interval], str]:
    """How much of the shuffle the attack undid, and a sentence on its floors; nothing where nothing is shuffled."""
    receipts = scene.recording.receipts[: len(scene.recording.receipts) // passes(scene.attack)]
    orders = [true_arrangement(receipt) for receipt in receipts]
    truth = torch.cat([found for found in orders if found is not None]) if None not in orders else None
    if truth is None or truth.shape != guess.source.shape:
        return {}, ""
    batch, quantities = scene.config.training.batch_size, scene.certificate.quantities
    outcomes = quantities.get("log10_outcomes")
    found = arrangement_scores(
        guess.source.to(truth.device),
        truth,
        batch=batch,
        kinds=kinds_of(torch.cat([view.smashed for view in scene.recording.views[: len(receipts)]]), batch),
        most_bits=None if outcomes is None else outcomes * log2(10),
        seed=scene.cell.seed,
    )
    measured = {"direct": found.direct, "neighbor": found.neighbor, "membership": found.membership}
    shares = {name: accuracy for name, accuracy in measured.items() if accuracy is not None}
    told = {
        name: Interval(value=share.value, low=share.low, high=share.high, n=share.trials)
        for name, share in shares.items()
    }
    for name, bits in (("bits_before", found.bits_before), ("bits_left", found.bits_left)):
        told[name] = Interval(value=bits, low=bits, high=bits, n=found.units)
    alone = ", ".join(f"{share.left_alone:.3f} ({name})" for name, share in shares.items())
    return told, f"order: where nothing is moved back the shares are {alone}"


def noticed(scene: Scene, clients: LiveClients) -> str:
    """When a suspicious client would have known of the hijack, and whether honest training would alarm it as well."""
    guard = clients.guard
    if guard is None or not guard.scores:
        return "no client was suspicious"
    who = f"a client with SplitGuard ({guard.policy}, threshold {guard.threshold:g}, {guard.patience} wrong batches)"
    if guard.noticed is None:
        return f"{who} would not have noticed the hijack in {guard.rounds} rounds"
    honest = _clients(scene)
    _, upper, _ = untrained(scene.config, scene.cell, scene.setting)
    rounds = min(guard.rounds, max(HONEST_ROUNDS, guard.noticed + 1))
    serve(honest, upper, rounds, scene.config.training, derive(scene.cell.seed, "honest server"))
    assert honest.guard is not None
    at = f"{who} would have noticed the hijack at round {guard.noticed + 1} of {guard.rounds}"
    if honest.guard.noticed is None:
        return f"{at}; {honest.guard.rounds} rounds of honest training do not alarm it"
    return f"{at}, but honest training alarms it as well, at round {honest.guard.noticed + 1}: that tells nothing"


def passes(attack: object) -> int:
    """How often the attacked images cross the wire for this attack."""
    return int(getattr(attack, "passes", 1))


def knowledge(scene: Scene) -> Knowledge:
    """What this adversary has beside its views: what its attack declares, and nothing else."""
    setting, edge, declared = scene.setting, scene.model.edge, known_to(scene.attack)
    same_classes = scene.config.auxiliary in ("disjoint", "training")
    return Knowledge(
        image_shape=setting.splits.image_shape,
        batch_size=scene.round_size,
        auxiliary=setting.auxiliary.x if "auxiliary" in declared else None,
        auxiliary_labels=setting.auxiliary.y if same_classes and "auxiliary_labels" in declared else None,
        query=black_box_query(edge) if "query" in declared else None,
        lower=shared_lower(edge) if "lower" in declared else None,
        upper=scene.model.upper if "upper" in declared else None,
        clients=_clients(scene) if "clients" in declared else None,
        imitate=imitated(edge, setting.splits.image_shape) if "imitate" in declared else None,
    )


def _clients(scene: Scene) -> LiveClients:
    """The clients before any training, for an attack that takes it over."""
    edge, _, _ = untrained(scene.config, scene.cell, scene.setting)
    setting, seed = scene.setting, scene.cell.seed
    return LiveClients(
        edge,
        setting.splits.private,
        setting.shares,
        scene.config.training,
        setting.victims,
        seed,
        guard=SplitGuard(generator=Generator().manual_seed(derive(seed, "guard")), policy="average", patience=20),
    )


def _controls(scene: Scene) -> tuple[Gate, ...]:
    """The attack's two control experiments; attacks that ignore the release have none."""
    if not hasattr(scene.attack, "epochs"):  # a floor
        return ()
    release, auxiliary = scene.recording.views[0].smashed, scene.setting.auxiliary
    return scene.controls(
        lambda: controls(scene.attack, auxiliary.x, auxiliary.y, release, scene.round_size, scene.cell.seed)
    )


def _keep(scene: Scene, victims: Batch, result: Reconstruction, scores: dict[str, Scores]) -> None:
    """Store what the row summarises: every image's metrics, and the first images with their guesses."""
    truth, guess = victims.x.cpu().numpy(), result.images.cpu().numpy()
    matched = guess[match(truth, guess, scene.round_size)]
    values = {f"{alignment}_{name}": found for alignment, metrics in scores.items() for name, found in metrics.items()}
    pictures = {"truth": truth, "guess": guess, "matched": matched}
    shown = {name: _to_uint8(images[:SHOWN]) for name, images in pictures.items()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, ids=victims.ids.cpu().numpy(), **values, **shown)
    write_bytes(scene.folder.cell(scene.cell.id) / PICTURES, buffer.getvalue())


def _to_uint8(images: NDArray[np.float32]) -> NDArray[np.uint8]:
    """[N, C, H, W] in [0, 1] to pictures [N, H, W, C] in 0..255."""
    return np.rint(images.transpose(0, 2, 3, 1).clip(0, 1) * 255).astype(np.uint8)
