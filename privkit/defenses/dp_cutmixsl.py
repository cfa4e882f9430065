"""DP-CutMixSL: patches of a group's smashed data under exclusive random masks, with Gaussian noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Generator, Tensor

from privkit.accountants.spec.mixing import DirichletCounts, FixedCounts
from privkit.accountants.spec.parts import UNMIXED, CutMix
from privkit.constraints import Count, Positive
from privkit.defenses import masks, mixing
from privkit.defenses.base import Defense, Drawn, Effect, Level, Release
from privkit.defenses.bounded_noise import BoundedNoise, Site, seated
from privkit.defenses.charge import Mixing, Noised, equal_counts


@dataclass(frozen=True, kw_only=True)
class DpCutMixSl(Defense):
    """Differentially private random CutMix: each position from one client, counts N_i that sum to N, Gaussian noise.

    Attributes:
        group: k ≥ 1 clients a group.
        concentration: α_M > 0 of the Dirichlet-multinomial law of the counts; infinite for counts as equal as can be.
        sigma: standard deviation σ_s > 0 on smashed data, in their units.
        sigma_labels: standard deviation σ_y > 0 on labels mixed with λ_i = N_i/N; None sends them without noise, which
            is then said.
        bound: Δ > 0; every coordinate is clamped to [0, Δ] before it is masked (images lie in
            [0, 1]: give bound=1 at the input layer).
        site: "client" adds the noise before masks (Eq. 5-7, Algorithm 1), "mixer" after them (Eq. 16). On smashed data
            both give one law; on labels the clients' noise shrinks to σ_y²·Σλ_i².
        place: "mixer", whom the clients trust, or "server", which then gets each client's own message.
        patch: side of a position of a feature map or an image; tokens are positions. None is 2 at the input layer.
        level: "smashed", or "input" to mix images.
        published: whether the server learns masks and λ; the proof charges hidden ones as if it did.
        drawn: "every_round" for fresh counts in each round; "once" for counts that every client keeps for the whole
            run, in fresh masks. That costs more, and needs groups that stay together: a protocol with grouping=fixed.

    Source: DP-CutMixSL Eq. 5-7 and 16; counts of CutMixSL §3.2, since ⌈λ_i·N⌉ positions for each would overlap.
    """

    name: ClassVar[str] = "dp_cutmixsl"
    effects: ClassVar[frozenset[Effect]] = frozenset({"noises", "mixes"})
    noise_fields: ClassVar[tuple[str, ...]] = ("sigma",)
    soft_labels: ClassVar[bool] = True
    at_inference = False

    group: Count = 2
    concentration: mixing.Concentration = 2.0
    sigma: Positive = 16 / 255
    sigma_labels: Positive | None = 16 / 255
    bound: Positive = 0.15
    site: Site = "client"
    place: Literal["mixer", "server"] = "mixer"
    patch: Count | None = None
    level: Level = "smashed"
    published: bool = True
    drawn: Drawn = "every_round"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.level == "input" and self.place == "server":
            raise ValueError("level=input with place=server would send the server the images; use place=mixer")

    def apply(
        self,
        smashed: Tensor,
        labels: Tensor,
        generator: Generator,
        present: Tensor | None = None,
        kept: Generator | None = None,
    ) -> tuple[Release, Noised]:
        """Clamp, mask, mix and add noise; `weights` are the masks, [G, k, T].

        >>> import torch
        >>> z, y = torch.zeros(1, 2, 1, 10, 1), torch.eye(2).view(1, 2, 1, 2)
        >>> fixed = DpCutMixSl(concentration=float("inf"), site="mixer")
        >>> release, receipt = fixed.apply(z, y, Generator().manual_seed(0))
        >>> release.weights.sum(2).tolist(), round(receipt.certificate().epsilon, 1)
        ([[5.0, 5.0]], 130.1)
        """
        smashed, labels, present = seated(self.name, smashed, labels, self.group, present)
        channel = self._channel()
        patch = masks.INPUT_PATCH if self.patch is None and self.level == "input" else self.patch
        positions = masks.positions(self.name, smashed, patch, leading=3)
        clipped, label = channel.before(smashed, labels, generator)
        coins = mixing.ratio_coins(self.drawn, generator, kept)
        counts = mixing.dirichlet_counts(present, positions, self.concentration, coins)
        owned = mixing.exclusive_masks(counts, generator, positions=positions)
        ratios = counts.double() / positions
        mixed = mixing.mix(clipped, masks.spread(owned, clipped, patch, leading=3))
        mixed, mixed_label = channel.after(mixed, mixing.mix_labels(label, ratios), generator)
        receipt = channel.receipt(
            mixed[0, 0].numel(),
            at_inference=self.at_inference,
            mix=self._law(positions),
            ratios=ratios,
            counts=counts,
            present=present,
        )
        release = Release(
            smashed=mixed.to(smashed.dtype),
            labels=mixed_label,
            weights=owned.to(clipped.dtype),
            apart=channel.apart(clipped),
            apart_labels=channel.apart_labels(label),
        )
        return release, receipt

    def public_transform(self, smashed: Tensor) -> Tensor:
        """Clamped, without noise."""
        return self._channel().public_transform(smashed)

    def _channel(self) -> BoundedNoise:
        return BoundedNoise(
            sigma=self.sigma,
            sigma_labels=self.sigma_labels,
            bound=self.bound,
            site=self.site,
            place=self.place,
        )

    def _law(self, positions: int) -> Mixing:
        """As the accountant knows it."""
        if self.group == 1:
            return UNMIXED
        if self.concentration == float("inf"):
            return CutMix(ratio=FixedCounts(counts=equal_counts(positions, self.group)), patches=positions)
        law = DirichletCounts(
            concentration=self.concentration, clients=self.group, published=self.published, drawn=self.drawn
        )
        return CutMix(ratio=law, patches=positions)
