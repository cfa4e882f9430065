"""DP-SL, DP-MixSL and DP-CutMixSL: Gaussian noise on bounded smashed data and labels, without or with mixing."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor

from privkit.accountants.spec.mixing import DirichletCounts, DirichletRatio, FixedCounts, FixedRatio
from privkit.accountants.spec.parts import UNMIXED, CutMix, Mixup, Noise
from privkit.accountants.spec.sensitivity import Clamp, OneHot
from privkit.constraints import Count, Magnitude
from privkit.defenses import masks, mixing, noise
from privkit.defenses.base import Defense, Drawn, Effect, Level, Place, Release
from privkit.defenses.charge import Mixing, Noised, equal_counts

_Pair = tuple[Tensor, Tensor]

_Site = Literal["client", "mixer"]  # who adds the noise: each client before the mixing, or the mixer after it


class _BoundedNoise(Defense):
    """Clamps smashed data to `interval` and adds Gaussian noise to them, with or without mixing.

    Attributes:
        sigma: standard deviation σ_s > 0 of the noise on smashed data, in their units.
        sigma_labels: standard deviation σ_y > 0 of the noise on labels; None sends labels without noise, and the
            certificate says so.
        bound: Δ > 0; every coordinate is clamped to [0, Δ], after the position embedding and before mixing. Negative
            coordinates and their gradients are lost. Use bound=1 for images, which lie in [0, 1]. None clamps nothing,
            and then nothing is proven.
        signed: whether to clamp to [−Δ/2, Δ/2] instead, which keeps negative coordinates and gives the same ε.

    Source: DP-CutMixSL: Eq. 14 without mixing, Eq. 5 for noise before mixing, Eq. 15 and 16 for noise after mixing; §4
    assumes [0, Δ] and gives no rule for Δ. `signed` and bound=none are privkit's: embeddings have both signs.
    """

    effects: ClassVar[frozenset[Effect]] = frozenset({"noises"})
    noise_fields: ClassVar[tuple[str, ...]] = ("sigma",)
    soft_labels: ClassVar[bool] = True

    sigma: float
    sigma_labels: float | None
    bound: float | None
    signed: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.signed and self.bound is None:
            raise ValueError("signed=true says where the clamp lies, and bound=none clamps nothing; drop one of them")
        if self.signed and self.level == "input":
            raise ValueError("signed=true would cut off the bright half of images in [0, 1]; drop it with level=input")

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval to which every coordinate is clamped, or None."""
        if self.bound is None:
            return None
        return (-self.bound / 2, self.bound / 2) if self.signed else (0.0, self.bound)

    def public_transform(self, smashed: Tensor) -> Tensor:
        return noise.clamp(smashed, *self.interval).to(smashed.dtype) if self.interval else smashed

    def bounded(self, smashed: Tensor, labels: Tensor) -> _Pair:
        """Clamp smashed data [..., B, ...] to `interval`, and project labels [..., B, L] to the simplex."""
        smashed = noise.clamp(smashed, *self.interval) if self.interval else noise.widened(smashed)
        return smashed, noise.simplex(labels)

    def noisy(self, smashed: Tensor, labels: Tensor, generator: Generator) -> _Pair:
        smashed = noise.gaussian(smashed, self.sigma, generator)
        return smashed, labels if self.sigma_labels is None else noise.gaussian(labels, self.sigma_labels, generator)

    def receipt(self, coordinates: int, site: _Site = "client") -> Noised:
        low_high = self.interval
        return Noised(
            clip=None if low_high is None else Clamp(low=low_high[0], high=low_high[1], dimensions=coordinates),
            noise=Noise(smashed=self.sigma, labels=self.sigma_labels, site=site),
            mixing=UNMIXED,
            labels=None if self.sigma_labels is None else OneHot(),
            added_by=self.place,
            mixed_by=self.place,
            at_inference=self.at_inference,
        )


@dataclass(frozen=True, kw_only=True)
class DpSl(_BoundedNoise):
    """Differentially private split learning: clamps smashed data, then adds Gaussian noise to them and the labels.

    Attributes:
        place: the party that adds the noise: "client", "mixer" (trusted) or "server", whose noise does not protect
            against the server itself.
        at_inference: whether test images get noise, too.

    Source: DP-CutMixSL Eq. 14, Table 1 (whose "variance" 16/255 is a standard deviation).

    >>> z, y = torch.zeros(1, 1, 5, 2), torch.eye(2)[:1].view(1, 1, 2)
    >>> round(DpSl().apply(z, y, Generator().manual_seed(0))[1].certificate().epsilon, 1)
    383.0
    """

    name: ClassVar[str] = "dp_sl"

    sigma: Magnitude = 16 / 255
    sigma_labels: Magnitude | None = 16 / 255
    bound: Magnitude | None = 0.15
    signed: bool = False
    place: Place = "client"
    at_inference: bool = True

    def apply(
        self, smashed: Tensor, labels: Tensor, generator: Generator, present: Tensor | None = None
    ) -> tuple[Release, Noised]:
        coordinates = noise.require_images(self.name, smashed)
        noise.require_one_hot(self.name, labels, tuple(smashed.shape[:2]))
        noisy, label = self.noisy(*self.bounded(smashed, labels), generator)
        return Release(smashed=noisy.to(smashed.dtype), labels=label), self.receipt(coordinates)


class _MixedNoise(_BoundedNoise):
    """Clamps a group's smashed data, mixes them by random weights, and adds noise before or after the mixing.

    Positions of a feature map or image are patches with `side` pixels a side; `side` is None if positions are tokens.

    Attributes:
        group: number k ≥ 1 of clients in a mixing group.
        place: the party that mixes: "mixer", whom the clients trust, or "server", which then gets each client's own
            data.
        level: what is mixed: "smashed" data, or images at the "input".
    """

    effects: ClassVar[frozenset[Effect]] = frozenset({"noises", "mixes"})
    at_inference = False

    concentration: float
    site: _Site
    side: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.level == "input" and self.place == "server":
            raise ValueError("level=input with place=server would send the server the images; use place=mixer")

    @abstractmethod
    def draw(self, smashed: Tensor, present: Tensor, coins: Generator, generator: Generator) -> Tensor:
        """Draw the weights of a round: ratios λ, float64 [G, k, 1], or exclusive masks, bool [G, k, T]."""

    @abstractmethod
    def law(self, positions: int) -> Mixing:
        """The distribution of the mixing weights, as the accountant describes it, for groups of two or more."""

    def apply(
        self,
        smashed: Tensor,
        labels: Tensor,
        generator: Generator,
        present: Tensor | None = None,
        kept: Generator | None = None,
    ) -> tuple[Release, Noised]:
        smashed, labels, present = mixing.check_group(self.name, smashed, labels, self.group, present)
        noise.require_one_hot(self.name, labels, tuple(smashed.shape[:3]))
        by_clients = self.site == "client"
        sent, label = self.bounded(smashed, labels)
        if by_clients:
            sent, label = self.noisy(sent, label, generator)
        coins = mixing.ratio_coins(self.drawn, generator, kept)
        weights = self.draw(sent, present, coins, generator)
        ratios = weights.double().mean(2)
        mixed = mixing.mix(sent, masks.spread(weights, sent, self.side, leading=3))
        mixed_label = mixing.mix_labels(label, ratios)
        if not by_clients:
            mixed, mixed_label = self.noisy(mixed, mixed_label, generator)
        receipt = replace(
            self.receipt(mixed[0, 0].numel(), self.site),
            added_by="client" if by_clients else self.place,
            mixing=self.law(weights.shape[2]) if self.group > 1 else UNMIXED,
            ratios=ratios,
            counts=weights.sum(2) if weights.dtype == torch.bool else None,
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


@dataclass(frozen=True, kw_only=True)
class DpMixSl(_MixedNoise):
    """Differentially private Mixup: releases Σ λ_i·s_i of clamped smashed data s_i, λ ~ Dirichlet, with Gaussian noise.

    Attributes:
        concentration: parameter α_M ≥ 1e-6 of the Dirichlet law of the weights λ_i; inf for λ_i = 1/k.
        site: the party that adds the noise. "mixer" adds it once, to the mixture (Eq. 15). With "client", each client
            adds noise before mixing (Eq. 5); then the noise in the mixture has the smaller variance σ²·Σλ_i².
        published: whether the server learns the weights λ_i. ε is the same in both cases.
        drawn: "every_round" draws new weights in each round; "once" lets every client keep its weight for the whole
            run, has a larger ε, and needs a protocol with grouping=fixed.

    Source: DP-CutMixSL Eq. 15 and §3.C; its Theorem 1 holds for fixed λ and noise at the mixer.

    >>> z, y = torch.zeros(1, 2, 1, 5, 2), torch.eye(2).view(1, 2, 1, 2)
    >>> fixed = DpMixSl(concentration=float("inf"))
    >>> release, receipt = fixed.apply(z, y, Generator().manual_seed(0))
    >>> release.weights.flatten().tolist(), round(receipt.certificate().epsilon, 1)
    ([0.5, 0.5], 120.5)
    """

    name: ClassVar[str] = "dp_mixsl"

    group: Count = 2
    concentration: mixing.Concentration = 2.0
    sigma: Magnitude = 16 / 255
    sigma_labels: Magnitude | None = 16 / 255
    bound: Magnitude | None = 0.15
    signed: bool = False
    site: _Site = "mixer"
    place: Literal["mixer", "server"] = "mixer"
    level: Level = "smashed"
    published: bool = True
    drawn: Drawn = "every_round"

    def draw(self, smashed: Tensor, present: Tensor, coins: Generator, generator: Generator) -> Tensor:
        return mixing.dirichlet_ratios(present, self.concentration, coins).unsqueeze(2)

    def law(self, positions: int) -> Mixup:
        if self.concentration == float("inf"):
            return Mixup(ratio=FixedRatio.equal(self.group))
        law = DirichletRatio(
            concentration=self.concentration, clients=self.group, published=self.published, drawn=self.drawn
        )
        return Mixup(ratio=law)


@dataclass(frozen=True, kw_only=True)
class DpCutMixSl(_MixedNoise):
    """Differentially private random CutMix: client i fills N_i of the N positions; Gaussian noise is added.

    Attributes:
        concentration: parameter α_M ≥ 1e-6 of the Dirichlet-multinomial law of the counts N_i; inf for counts as
            equal as possible.
        site: the party that adds the noise: "client" before masking (Eq. 5-7, Algorithm 1), "mixer" after it (Eq. 16).
            On smashed data both give the same distribution; on labels, which are mixed with weights λ_i = N_i/N, noise
            of the clients has only variance σ_y²·Σλ_i². In a table of `privkit epsilon`, an empty noise_site means
            "mixer".
        patch: side in pixels of one position of a feature map or an image; unused for tokens, each of which is a
            position. None means 2 at the input layer.
        published: whether the server learns the masks and the weights λ_i. ε is the same in both cases.
        drawn: "every_round" draws new counts in each round; "once" lets every client keep its count for the whole run,
            with new masks in each round. "once" has a larger ε, and needs a protocol with grouping=fixed.

    Source: DP-CutMixSL Eq. 5-7 and 16; counts as in CutMixSL §3.2, since masks of ⌈λ_i·N⌉ positions would overlap.

    >>> z, y = torch.zeros(1, 2, 1, 10, 1), torch.eye(2).view(1, 2, 1, 2)
    >>> fixed = DpCutMixSl(concentration=float("inf"), site="mixer")
    >>> release, receipt = fixed.apply(z, y, Generator().manual_seed(0))
    >>> release.weights.sum(2).tolist(), round(receipt.certificate().epsilon, 1)
    ([[5.0, 5.0]], 130.1)
    """

    name: ClassVar[str] = "dp_cutmixsl"

    group: Count = 2
    concentration: mixing.Concentration = 2.0
    sigma: Magnitude = 16 / 255
    sigma_labels: Magnitude | None = 16 / 255
    bound: Magnitude | None = 0.15
    signed: bool = False
    site: _Site = "client"
    place: Literal["mixer", "server"] = "mixer"
    patch: Count | None = None
    level: Level = "smashed"
    published: bool = True
    drawn: Drawn = "every_round"

    @property
    def side(self) -> int | None:  # type: ignore[override]
        return masks.INPUT_PATCH if self.patch is None and self.level == "input" else self.patch

    def draw(self, smashed: Tensor, present: Tensor, coins: Generator, generator: Generator) -> Tensor:
        positions = masks.positions(self.name, smashed, self.side, leading=3)
        counts = mixing.dirichlet_counts(present, positions, self.concentration, coins)
        return mixing.exclusive_masks(counts, generator, positions=positions)

    def law(self, positions: int) -> CutMix:
        if self.concentration == float("inf"):
            return CutMix(ratio=FixedCounts(counts=equal_counts(positions, self.group)), patches=positions)
        law = DirichletCounts(
            concentration=self.concentration, clients=self.group, published=self.published, drawn=self.drawn
        )
        return CutMix(ratio=law, patches=positions)
