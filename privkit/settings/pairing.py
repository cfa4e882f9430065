"""Chooses the protocol of each defense: the defense's own, the run's, or the protocol that its mixing needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from privkit.errors import UsageError, shortened
from privkit.parts.registry import Component, name_and_options, parse, stages_given

Part = tuple[Component, tuple[Component, ...]]
"""A protocol, and the defenses under it, including the undefended baseline."""


def split_protocol(given: Any) -> tuple[Any, Any]:
    """Split a user's defense, or chain of defenses, into the defense itself and the protocol that it names, or None.

    >>> split_protocol("dp_cutmixsl:sigma=2,protocol=cutmixsl:clients=20")
    ({'name': 'dp_cutmixsl', 'sigma': 2}, 'cutmixsl:clients=20')
    """
    stages, own = [], []
    for stage in (chain := stages_given(given)) or [given]:
        name, options = name_and_options("defenses", stage)
        own += [options.pop("protocol")] if "protocol" in options else []
        stages.append({"name": name, **options})
    if len(own) > 1:
        raise UsageError(f"a chain runs under one protocol, got {shortened(own)}; name it in one of its stages")
    return stages if chain else stages[0], next(iter(own), None)


def _with_protocol(label: str, protocol: str) -> str:
    """Add a protocol to a defense's label or, in a chain of defenses, to the label of the first defense.

    >>> _with_protocol("gaussian_noise:sigma=2.0@mixer+masking", "sl")
    'gaussian_noise:sigma=2.0,protocol=sl@mixer+masking'
    """
    first, *others = stages_given(label) or [label]
    body, at, place = first.rpartition("@") if "@" in first else (first, "", "")
    return "+".join([f"{body}{',' if ':' in body else ':'}protocol={protocol}{at}{place}", *others])


def defense_pairs(defenses: Iterable[Any], run: Any) -> list[Part]:
    """Group defenses by the protocol that they name, or else by `run`, the run's protocol; in order of occurrence.

    If neither names one, the protocol is `cutmixsl` for a defense that mixes several clients, and otherwise `sl`. Every
    protocol gets an undefended baseline, since results under different protocols cannot be compared.

    >>> [(p.label, [d.label for d in part]) for p, part in defense_pairs(["patch_shuffle", "mixup"], None)]
    [('sl', ['none', 'patch_shuffle']), ('cutmixsl', ['none:protocol=cutmixsl', 'mixup'])]
    """
    baseline = parse("defenses", "none")
    pairs: list[tuple[Component, Component | None]] = []
    for given in defenses:
        rest, own = split_protocol(given)
        defense = parse("defenses", rest)
        if own is not None:
            under = parse("protocols", own)
            defense = replace(defense, label=_with_protocol(defense.label, under.label))
        elif run is not None:
            under = parse("protocols", run)
        elif defense.name == "none":
            under = None
        else:
            # one client, unless the defense mixes clients
            under = parse("protocols", "cutmixsl" if defense.spec.group > 1 else "sl")
        pairs.append((defense, under))
    if not pairs:
        raise UsageError("name at least one defense and one attack")
    first = next((under for _, under in pairs if under is not None), None) or parse("protocols", run or "sl")
    groups: dict[str, tuple[Component, list[Component]]] = {}
    for defense, under in pairs:
        part = groups.setdefault((under or first).label, (under or first, []))[1]
        if defense.to_json() not in [other.to_json() for other in part]:
            part.append(defense)
    for protocol, part in groups.values():
        for defense in part:
            protocol.spec.check_group(defense.name, defense.spec.group, defense.spec.drawn)
        if baseline.to_json() not in [defense.to_json() for defense in part]:
            beside = "" if protocol.label == first.label else f":protocol={protocol.label}"
            part.insert(0, replace(baseline, label=f"{baseline.label}{beside}"))
    return [(protocol, tuple(part)) for protocol, part in groups.values()]
