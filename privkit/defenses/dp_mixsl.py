"""DP-MixSL: smashed data of a group superposed with random ratios, with Gaussian noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Generator, Tensor

from privkit.accountants.spec.mixing import DirichletRatio, FixedRatio
from privkit.accountants.spec.parts import Mixup
from privkit.constraints import Count, Positive
from privkit.defenses import mixing
from privkit.defenses.base import Drawn, Level
from privkit.defenses.bounded_noise import Site
from privkit.defenses.mixed_noise import MixedNoise


@dataclass(frozen=True, kw_only=True)
class DpMixSl(MixedNoise):
    """Differentially private Mixup: Σ λ_i·s_i of clamped smashed data, λ ~ Dirichlet, and Gaussian noise.

    Attributes:
        group: k ≥ 1 clients a group.
        concentration: α_M > 0 of the symmetric Dirichlet law; infinite for λ_i = 1/k.
        sigma: standard deviation σ_s > 0 on smashed data, in their units.
        sigma_labels: standard deviation σ_y > 0 on mixed labels; None sends them without noise, which is then said.
        bound: Δ > 0; every coordinate is clamped to [0, Δ] before it is mixed (images lie in
            [0, 1]: give bound=1 at the input layer). None clamps nothing, and then nothing is proven.
        signed: clamp to [−Δ/2, Δ/2] instead: negative coordinates stay, and ε is the same.
        site: "mixer" adds the noise once, to the mix (Eq. 15); with "client", each client adds it before (Eq. 5), and
            the mix carries σ²·Σλ_i², which hides less.
        place: "mixer", whom the clients trust, or "server", which then gets each client's own message.
        level: "smashed", or "input" to mix images.
        published: whether the server learns λ; the proof charges hidden ratios as if it did.
        drawn: "every_round" for fresh ratios in each round; "once" for ratios that every client keeps for the whole
            run. That costs more, and needs groups that stay together: a protocol with grouping=fixed.

    Source: DP-CutMixSL Eq. 15 and §3.C; its Theorem 1 holds for fixed λ and noise at the mixer.

    >>> import torch
    >>> z, y = torch.zeros(1, 2, 1, 5, 2), torch.eye(2).view(1, 2, 1, 2)
    >>> fixed = DpMixSl(concentration=float("inf"))
    >>> release, receipt = fixed.apply(z, y, Generator().manual_seed(0))
    >>> release.weights.flatten().tolist(), round(receipt.certificate().epsilon, 1)
    ([0.5, 0.5], 120.5)
    """

    name: ClassVar[str] = "dp_mixsl"

    group: Count = 2
    concentration: mixing.Concentration = 2.0
    sigma: Positive = 16 / 255
    sigma_labels: Positive | None = 16 / 255
    bound: Positive | None = 0.15
    signed: bool = False
    site: Site = "mixer"
    place: Literal["mixer", "server"] = "mixer"
    level: Level = "smashed"
    published: bool = True
    drawn: Drawn = "every_round"

    def draw(
        self, smashed: Tensor, present: Tensor, coins: Generator, generator: Generator
    ) -> tuple[Tensor, Tensor, None]:
        """The ratios λ as weights, T = 1."""
        ratios = mixing.dirichlet_ratios(present, self.concentration, coins)
        return ratios.unsqueeze(2), ratios, None

    def law(self, positions: int) -> Mixup:
        """Fixed or Dirichlet ratios."""
        if self.concentration == float("inf"):
            return Mixup(ratio=FixedRatio.equal(self.group))
        law = DirichletRatio(
            concentration=self.concentration, clients=self.group, published=self.published, drawn=self.drawn
        )
        return Mixup(ratio=law)
