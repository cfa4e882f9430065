"""Configuration from a recording: replacements for dataset, model and defense, and the attacks of `auto`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from privkit.errors import UsageError
from privkit.files.import_path import only
from privkit.parts.registry import Component, parse
from privkit.recording.read import Recording, read_recording
from privkit.settings.budgets import Budget
from privkit.settings.config import Source
from privkit.settings.quick_attacks import Chosen, choose
from privkit.settings.values import as_trust
from privkit.shared.measures import IMAGES
from privkit.training.protocol import SplitProtocol

_NAME = "recorded"  # name of each part that a recording replaces, in ids and configurations


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """One part of a run (dataset, model, protocol or defense) that a recording replaces."""

    name: ClassVar[str] = _NAME
    domain: ClassVar[str] = IMAGES.name
    storages: ClassVar[tuple[str, ...]] = ()
    smallest_batch: ClassVar[int] = 1
    position_embedding: ClassVar[bool] = True

    part: str  # the kind of the part, such as "dataset"
    sha256: Mapping[str, str]  # SHA-256 of the recording's files
    builders: tuple[str, ...] = ()  # modules that build its segments

    def imports(self) -> Iterable[str]:
        """The user's modules whose source code takes part in a run of this recording."""
        return self.builders


def sufficient_attacks(recording: Recording) -> Chosen:
    """The attacks of `--attack auto` that need only the recorded data; raises `UsageError` if there is none."""
    described, own, kind = recording.description, len(recording.own) > 0, recording.domain.kind
    with only(recording.trust):
        known = choose(parse("defenses", described.defense), kind.name).attacks if described.defense else ()
    asked = described.lower is not None  # without the lower segment, no query can be answered
    has = {"auxiliary": own, "query": asked, "lower": asked}
    specs = {attack: parse("attacks", attack).spec for attack in (*known, *kind.general)}
    fits = [
        attack
        for attack, spec in specs.items()
        if all(has.get(need) for need in spec.needs)
        and (asked or "query" not in spec.uses)
        and spec.mounting.passes <= described.passes
    ]
    passive = [*kind.passive] if own and described.lower is None else []
    returned = recording.views[0].cut_gradient is not None or recording.second
    asks_labels = ["release_clustering"] if recording.second else ["label_leak"]
    attacks = (*fits, *passive, *(asks_labels if recording.labels is not None and returned else []))
    if not attacks:
        raise UsageError(
            "auto finds no attack for this recording, which lacks own records or a lower segment; record them "
            "(privkit.Recorder.save), or name an attack"
        )
    seen = "its lower segment" if described.lower is not None else "the release alone, without the lower segment"
    return Chosen(attacks=attacks, remark=f"auto chose attacks by what was recorded: {seen}")


def recorded_parts(settings: Mapping[str, Any], budget: Budget) -> Source:
    """Read the recording that the user named, which replaces dataset, model, protocol, defense and training."""
    recording = read_recording(Path(settings["recorded"]).expanduser(), as_trust(settings.get("trust")))
    features = settings.get("features") or []
    named = [features] if isinstance(features, str) else list(features)
    if named and not (recording.own_labels and recording.labels is not None and len(recording.truth)):
        raise UsageError(
            f"features={named[0]} compares labeled images, and this recording lacks own.labels, truth.images or "
            "truth.labels; record them, or leave features out"
        )
    recording = recording.within(victims=budget.victims, own=budget.auxiliary)
    described = recording.description
    builders = [segment.builder for segment in (described.lower, described.upper) if segment is not None]
    modules = tuple(filter(None, (builder.partition(":")[0] for builder in builders)))

    # the domain is an attribute of the class, as in a dataset; a field would change the ids of cells
    stand_in: Any = type(Recorded.__name__, (Recorded,), {"domain": recording.domain.name})

    def part(name: str, label: str) -> Component:
        return Component(name=_NAME, spec=stand_in(part=name, sha256=recording.files, builders=modules), label=label)

    protocol = Component(name=_NAME, spec=SplitProtocol(clients=described.clients), label=described.protocol)
    return Source(
        dataset=part("dataset", described.dataset),
        model=part("model", described.model),
        pairs=[(protocol, (part("defense", described.name),))],
        training={"batch_size": described.batch_size},
        recording=recording,
        chosen=partial(sufficient_attacks, recording),
    )
