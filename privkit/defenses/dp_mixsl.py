"""DP-MixSL: smashed data of a group superposed with random ratios, with Gaussian noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Generator, Tensor

from privkit.accountants.spec.mixing import DirichletRatio, FixedRatio
from privkit.accountants.spec.parts import UNMIXED, Mixup
from privkit.constraints import Count, Positive
from privkit.defenses import masks, mixing
from privkit.defenses.base import Defense, Drawn, Effect, Level, Release
from privkit.defenses.bounded_noise import BoundedNoise, Site, seated
from privkit.defenses.charge import Mixing, Noised


@dataclass(frozen=True, kw_only=True)
class DpMixSl(Defense):
    """Differentially private Mixup: Σ λ_i·s_i of clamped smashed data, λ ~ Dirichlet, and Gaussian noise.

    Attributes:
        group: k ≥ 1 clients a group.
        concentration: α_M > 0 of the symmetric Dirichlet law; infinite for λ_i = 1/k.
        sigma: standard deviation σ_s > 0 on smashed data, in their units.
        sigma_labels: standard deviation σ_y > 0 on mixed labels; None sends them without noise, which is then said.
        bound: Δ > 0; every coordinate is clamped to [0, Δ] before it is mixed (images lie in
            [0, 1]: give bound=1 at the input layer).
        site: "mixer" adds the noise once, to the mix (Eq. 15); with "client", each client adds it before (Eq. 5), and
            the mix carries σ²·Σλ_i², which hides less.
        place: "mixer", whom the clients trust, or "server", which then gets each client's own message.
        level: "smashed", or "input" to mix images.
        published: whether the server learns λ; the proof charges hidden ratios as if it did.
        drawn: "every_round" for fresh ratios in each round; "once" for ratios that every client keeps for the whole
            run. That costs more, and needs groups that stay together: a protocol with grouping=fixed.

    Source: DP-CutMixSL Eq. 15 and §3.C; its Theorem 1 holds for fixed λ and noise at the mixer.
    """

    name: ClassVar[str] = "dp_mixsl"
    effects: ClassVar[frozenset[Effect]] = frozenset({"noises", "mixes"})
    noise_fields: ClassVar[tuple[str, ...]] = ("sigma",)
    soft_labels: ClassVar[bool] = True
    at_inference = False

    group: Count = 2
    concentration: mixing.Concentration = 2.0
    sigma: Positive = 16 / 255
    sigma_labels: Positive | None = 16 / 255
    bound: Positive = 0.15
    site: Site = "mixer"
    place: Literal["mixer", "server"] = "mixer"
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
        """Clamp, mix and add noise; `weights` are the ratios λ, [G, k, 1].

        >>> import torch
        >>> z, y = torch.zeros(1, 2, 1, 5, 2), torch.eye(2).view(1, 2, 1, 2)
        >>> fixed = DpMixSl(concentration=float("inf"))
        >>> release, receipt = fixed.apply(z, y, Generator().manual_seed(0))
        >>> release.weights.flatten().tolist(), round(receipt.certificate().epsilon, 1)
        ([0.5, 0.5], 120.5)
        """
        smashed, labels, present = seated(self.name, smashed, labels, self.group, present)
        channel = self._channel()
        clipped, label = channel.before(smashed, labels, generator)
        coins = mixing.ratio_coins(self.drawn, generator, kept)
        ratios = mixing.dirichlet_ratios(present, self.concentration, coins)
        weights = ratios.unsqueeze(2).to(clipped.dtype)
        mixed = mixing.mix(clipped, masks.spread(weights, clipped, None, leading=3))
        mixed, mixed_label = channel.after(mixed, mixing.mix_labels(label, ratios), generator)
        receipt = channel.receipt(
            mixed[0, 0].numel(), at_inference=self.at_inference, mix=self._law(), ratios=ratios, present=present
        )
        release = Release(
            smashed=mixed.to(smashed.dtype),
            labels=mixed_label,
            weights=weights,
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

    def _law(self) -> Mixing:
        """As the accountant knows it."""
        if self.group == 1:
            return UNMIXED
        if self.concentration == float("inf"):
            return Mixup(ratio=FixedRatio.equal(self.group))
        law = DirichletRatio(
            concentration=self.concentration, clients=self.group, published=self.published, drawn=self.drawn
        )
        return Mixup(ratio=law)
