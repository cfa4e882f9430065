"""Mixing with noise: one round of DP-MixSL and DP-CutMixSL, which differ in how they draw the weights."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar

from torch import Generator, Tensor

from privkit.accountants.spec.parts import UNMIXED
from privkit.defenses import masks, mixing, noise
from privkit.defenses.base import Effect, Release
from privkit.defenses.bounded_noise import BoundedNoise, Site
from privkit.defenses.charge import Mixing, Noised


class MixedNoise(BoundedNoise):
    """Bounded smashed data of a group, mixed by random weights, with the clients' noise or the mixer's.

    Attributes:
        concentration: α_M > 0 of the law of the weights.
        site: who adds the noise.
        side: pixels a side of a position of a feature map or an image; None where tokens are positions.
    """

    effects: ClassVar[frozenset[Effect]] = frozenset({"noises", "mixes"})
    at_inference = False

    concentration: float
    site: Site
    side: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.level == "input" and self.place == "server":
            raise ValueError("level=input with place=server would send the server the images; use place=mixer")

    @abstractmethod
    def draw(
        self, smashed: Tensor, present: Tensor, coins: Generator, generator: Generator
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Weights [G, k, T] of a round, bool or float; ratios λ, float64 [G, k]; counts N_i, int64 [G, k], or None.

        Args:
            smashed: [G, k, B, ...].
            present: bool [G, k].
            coins: of ratios or counts.
            generator: of all else.
        """

    @abstractmethod
    def law(self, positions: int) -> Mixing:
        """The law of the weights as the accountant knows it, for groups of two and more."""

    def apply(
        self,
        smashed: Tensor,
        labels: Tensor,
        generator: Generator,
        present: Tensor | None = None,
        kept: Generator | None = None,
    ) -> tuple[Release, Noised]:
        """Clamp, mix and add noise; `weights` are the ones drawn, [G, k, T]."""
        smashed, labels, present = mixing.check_group(self.name, smashed, labels, self.group, present)
        noise.require_one_hot(self.name, labels, tuple(smashed.shape[:3]))
        by_clients = self.site == "client"
        sent, label = self.bounded(smashed, labels)
        if by_clients:
            sent, label = self.noisy(sent, label, generator)
        coins = mixing.ratio_coins(self.drawn, generator, kept)
        weights, ratios, counts = self.draw(sent, present, coins, generator)
        mixed = mixing.mix(sent, masks.spread(weights, sent, self.side, leading=3))
        mixed_label = mixing.mix_labels(label, ratios)
        if not by_clients:
            mixed, mixed_label = self.noisy(mixed, mixed_label, generator)
        receipt = replace(
            self.receipt(mixed[0, 0].numel(), self.site),
            added_by="client" if by_clients else self.place,
            mixing=self.law(weights.shape[2]) if self.group > 1 else UNMIXED,
            ratios=ratios,
            counts=counts,
            present=present,
            published=self.published,
        )
        release = Release(
            smashed=mixed.to(smashed.dtype),
            labels=mixed_label,
            weights=weights.to(sent.dtype),
            apart=sent if by_clients else None,
            apart_labels=label if by_clients and self.sigma_labels is not None else None,
        )
        return release, receipt
