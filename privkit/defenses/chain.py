"""Chains: several defenses applied in order, each at the client, the mixer or the server."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn

from privkit.defenses.base import Defense, FrozenBlock, PartsBy, Place, Release
from privkit.defenses.compile import ChainReceipt, run, sites_of
from privkit.defenses.rules import check_chain


def _every(name: str) -> Any:
    return property(lambda chain: all(getattr(stage, name) for stage in chain.stages))


def _some(name: str) -> Any:
    return property(lambda chain: any(getattr(stage, name) for stage in chain.stages))


def _most(name: str) -> Any:
    return property(lambda chain: max(getattr(stage, name) for stage in chain.stages))


@dataclass(frozen=True, kw_only=True)
class Chain(Defense):
    """Defenses applied as stages in order; each stage takes the release of the stage before.

    Attributes:
        stages: at least two defenses, in order: stages on images first, then stages on smashed data, then stages of the
            server.

    Raises:
        ValueError: if the stages cannot run in this order, or if no certificate was derived for this order
            (`rules.check_chain`).

    >>> from privkit.defenses.noise import GaussianNoise
    >>> from privkit.defenses.denoising import Scaling
    >>> Chain(stages=(GaussianNoise(), Scaling())).name
    'gaussian_noise+scaling'
    """

    stages: tuple[Defense, ...]

    def __post_init__(self) -> None:
        check_chain(self.stages)

    @property
    def name(self) -> str:  # type: ignore[override]
        return "+".join(stage.name for stage in self.stages)

    @property
    def place(self) -> Place:  # type: ignore[override]
        return self.stages[-1].place

    position_embedding = _every("position_embedding")
    smallest_batch = _most("smallest_batch")
    group = _most("group")
    soft_labels = _some("soft_labels")
    straight_through = _some("straight_through")
    at_inference = _every("at_inference")
    published = _every("published")
    keeps_positions = _every("keeps_positions")

    @property
    def noise_fields(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(name for stage in self.stages for name in stage.noise_fields)

    @property
    def frozen_block(self) -> FrozenBlock:  # type: ignore[override]
        blocks = [stage.frozen_block for stage in self.stages if stage.frozen_block]
        chosen = next((block for block in blocks if block != "auto"), False)
        # behind a split, a block would carry each channel into all parts
        return chosen or ("auto" if blocks and not self.storages else False)

    @property
    def level(self) -> str:  # type: ignore[override]
        """What the stages take: "input" (images), "smashed", or "both"."""
        levels = {stage.level for stage in self.stages}
        return levels.pop() if len(levels) == 1 else "both"

    @property
    def images_only(self) -> bool:  # type: ignore[override]
        return any(stage.images_only or stage.level == "input" for stage in self.stages)

    @property
    def drawn(self) -> str:  # type: ignore[override]
        return "once" if any(stage.drawn == "once" for stage in self.stages) else "every_round"

    @property
    def storages(self) -> tuple[str, ...]:  # type: ignore[override]
        return next((stage.storages for stage in self.stages if stage.storages), ())

    @property
    def parts_by(self) -> PartsBy:  # type: ignore[override]
        return next((stage.parts_by for stage in self.stages if stage.storages), "channels")

    def noiseless(self) -> Chain:
        return Chain(stages=tuple(stage.noiseless() for stage in self.stages))

    def public_transform(self, smashed: Tensor) -> Tensor:
        sites = sites_of(self.stages)
        for stage in sites.smashed if self.level == "both" else (*sites.images, *sites.smashed):
            smashed = stage.public_transform(smashed)
        return smashed

    def apply(
        self,
        smashed: Tensor,
        labels: Tensor,
        generator: Generator,
        present: Tensor | None = None,
        kept: Generator | None = None,
    ) -> tuple[Release, ChainReceipt]:
        """Apply all stages in one call; raises ValueError if some stages take images and others take smashed data."""
        if self.level == "both":
            raise ValueError(f"{self.name} takes images and smashed data: run it through Clients, with a lower segment")
        groups = None
        if self.group > 1:
            seats, k = smashed.shape[:2]
            groups = torch.arange(seats * k, device=smashed.device).view(seats, k)
            groups = groups if present is None else groups.masked_fill(~present, -1)
            smashed, labels = smashed.flatten(0, 1), labels.flatten(0, 1)
        made, steps = run(self.stages, Release(smashed=smashed, labels=labels), generator, groups, kept)
        return made, ChainReceipt(steps=steps)

    def companion(
        self, smashed_shape: tuple[int, ...], image_shape: tuple[int, int, int], seed: int
    ) -> nn.Module | None:
        return self._only(stage.companion(smashed_shape, image_shape, seed) for stage in self.stages)

    def lower_filter(self, smashed_shape: tuple[int, ...], seed: int) -> nn.Module | None:
        return self._only(stage.lower_filter(smashed_shape, seed) for stage in self.stages)

    def penalty(self, images: Tensor, smashed: Tensor, companion: Callable[[Tensor], Tensor] | None) -> Tensor | None:
        return self._sum(stage.penalty(images, smashed, companion) for stage in self.stages)

    def label_term(self, arrived: Tensor, labels: Tensor) -> Tensor | None:
        return self._sum(stage.label_term(arrived, labels) for stage in self.stages)

    def adapter(self, smashed_shape: tuple[int, ...], seed: int) -> nn.Module | None:
        return self._only(stage.adapter(smashed_shape, seed) for stage in self.stages)

    @staticmethod
    def _sum(terms: Iterable[Tensor | None]) -> Tensor | None:
        known = [term for term in terms if term is not None]
        return torch.stack(known).sum(0) if known else None

    @staticmethod
    def _only(made: Iterable[nn.Module | None]) -> nn.Module | None:
        return next((network for network in made if network is not None), None)

    @property
    def remarks(self) -> tuple[str, ...]:
        return tuple(remark for stage in self.stages for remark in stage.remarks)

    def head(self) -> nn.Module | None:
        heads = [head for stage in self.stages if (head := stage.head()) is not None]
        return nn.Sequential(*heads) if heads else None

    def before_backward(self, arrived: Tensor) -> None:
        for stage in reversed(self.stages):
            stage.before_backward(arrived)

    def on_gradient(self, gradient: Tensor, generator: Generator) -> Tensor:
        for stage in reversed(self.stages):
            gradient = stage.on_gradient(gradient, generator)
        return gradient


def stages_of(defense: Defense) -> tuple[Defense, ...]:
    """The stages of a chain; a single defense is one stage."""
    return defense.stages if isinstance(defense, Chain) else (defense,)
