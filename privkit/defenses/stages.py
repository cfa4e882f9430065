"""Stages, applied one after the other: their places and their receipts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Generator, Tensor

from privkit.defenses.base import Defense, Receipt, Release
from privkit.defenses.compile import ChainReceipt, Step


@dataclass(frozen=True, kw_only=True)
class Sites:
    """The stages of a defense, sorted by place."""

    images: tuple[Defense, ...]
    smashed: tuple[Defense, ...]
    server: tuple[Defense, ...]


def sites_of(stages: Sequence[Defense]) -> Sites:
    """Stages on images, stages on smashed data before the server holds them, and the server's own."""
    sent = [stage for stage in stages if stage.place != "server"]
    return Sites(
        images=tuple(stage for stage in sent if stage.level == "input"),
        smashed=tuple(stage for stage in sent if stage.level != "input"),
        server=tuple(stage for stage in stages if stage.place == "server"),
    )


def run(
    stages: Sequence[Defense],
    release: Release,
    generator: Generator,
    groups: Tensor | None = None,
    kept: Generator | None = None,
) -> tuple[Release, tuple[Step, ...]]:
    """Apply stages one after the other.

    Args:
        stages: in order.
        release: M messages of B images, the first stage's input.
        generator: the only source of randomness, on the device of the messages.
        groups: int64 [M', k], the messages on the seats of each group of the stage that mixes; −1 on an empty seat.
        kept: generator of ratios that are drawn once; see `Defense.apply`.

    Returns:
        The last release, with the product of all public weights, and the receipt of each stage.
    """
    steps = []
    for stage in stages:
        smashed, labels, weights, present = release.smashed, release.labels, release.weights, None
        if stage.group > 1:
            assert groups is not None
            smashed, labels, present = _seated(smashed, groups), _seated(labels, groups), groups >= 0
            weights = None if weights is None else _seated(weights, groups).squeeze(2)
        once = {"kept": kept} if stage.drawn == "once" else {}
        made, receipt = stage.apply(smashed, labels, generator, present, **once)
        if weights is not None and stage.keeps_positions:
            made = replace(made, weights=weights if made.weights is None else weights * made.weights)
        if made.apart is None:
            made = replace(made, apart=release.apart, apart_labels=release.apart_labels)
        release = made
        steps.append(Step(stage=stage, receipt=receipt))
    return release, tuple(steps)


def receipt_of(steps: Sequence[Step]) -> Receipt:
    """The receipt of one stage, or of a chain."""
    return steps[0].receipt if len(steps) == 1 else ChainReceipt(steps=tuple(steps))


def _seated(values: Tensor, groups: Tensor) -> Tensor:
    """[n, ...] by groups [M, k] -> [M, k, ...]; unchanged if nobody is mixed. Empty seats hold somebody's values."""
    return values if groups.shape[1] == 1 else values[groups.clamp(min=0)]
