"""DP-CutMixSL: patches of a group's smashed data under exclusive random masks, with Gaussian noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Generator, Tensor

from privkit.accountants.spec.mixing import DirichletCounts, FixedCounts
from privkit.accountants.spec.parts import CutMix
from privkit.constraints import Count, Positive
from privkit.defenses import masks, mixing
from privkit.defenses.base import Drawn, Level
from privkit.defenses.bounded_noise import Site
from privkit.defenses.charge import equal_counts
from privkit.defenses.mixed_noise import MixedNoise


@dataclass(frozen=True, kw_only=True)
class DpCutMixSl(MixedNoise):
    """Differentially private random CutMix: each position from one client, counts N_i that sum to N, Gaussian noise.

    Attributes:
        group: k ≥ 1 clients a group.
        concentration: α_M > 0 of the Dirichlet-multinomial law of the counts; infinite for counts as equal as can be.
        sigma: standard deviation σ_s > 0 on smashed data, in their units.
        sigma_labels: standard deviation σ_y > 0 on labels mixed with λ_i = N_i/N; None sends them without noise, which
            is then said.
        bound: Δ > 0; every coordinate is clamped to [0, Δ] before it is masked (images lie in
            [0, 1]: give bound=1 at the input layer). None clamps nothing, and then nothing is proven.
        signed: clamp to [−Δ/2, Δ/2] instead: negative coordinates stay, and ε is the same.
        site: "client" adds the noise before masks (Eq. 5-7, Algorithm 1), "mixer" after them (Eq. 16). On smashed data
            both give one law; on labels the clients' noise shrinks to σ_y²·Σλ_i².
        place: "mixer", whom the clients trust, or "server", which then gets each client's own message.
        patch: side of a position of a feature map or an image; tokens are positions. None is 2 at the input layer.
        level: "smashed", or "input" to mix images.
        published: whether the server learns masks and λ; the proof charges hidden ones as if it did.
        drawn: "every_round" for fresh counts in each round; "once" for counts that every client keeps for the whole
            run, in fresh masks. That costs more, and needs groups that stay together: a protocol with grouping=fixed.

    Source: DP-CutMixSL Eq. 5-7 and 16; counts of CutMixSL §3.2, since ⌈λ_i·N⌉ positions for each would overlap.

    >>> import torch
    >>> z, y = torch.zeros(1, 2, 1, 10, 1), torch.eye(2).view(1, 2, 1, 2)
    >>> fixed = DpCutMixSl(concentration=float("inf"), site="mixer")
    >>> release, receipt = fixed.apply(z, y, Generator().manual_seed(0))
    >>> release.weights.sum(2).tolist(), round(receipt.certificate().epsilon, 1)
    ([[5.0, 5.0]], 130.1)
    """

    name: ClassVar[str] = "dp_cutmixsl"

    group: Count = 2
    concentration: mixing.Concentration = 2.0
    sigma: Positive = 16 / 255
    sigma_labels: Positive | None = 16 / 255
    bound: Positive | None = 0.15
    signed: bool = False
    site: Site = "client"
    place: Literal["mixer", "server"] = "mixer"
    patch: Count | None = None
    level: Level = "smashed"
    published: bool = True
    drawn: Drawn = "every_round"

    @property
    def side(self) -> int | None:  # type: ignore[override]
        """Side of a position, with the default of the input layer."""
        return masks.INPUT_PATCH if self.patch is None and self.level == "input" else self.patch

    def draw(
        self, smashed: Tensor, present: Tensor, coins: Generator, generator: Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Exclusive masks, of as many positions as were drawn for each client."""
        positions = masks.positions(self.name, smashed, self.side, leading=3)
        counts = mixing.dirichlet_counts(present, positions, self.concentration, coins)
        return mixing.exclusive_masks(counts, generator, positions=positions), counts.double() / positions, counts

    def law(self, positions: int) -> CutMix:
        """Fixed or Dirichlet-multinomial counts."""
        if self.concentration == float("inf"):
            return CutMix(ratio=FixedCounts(counts=equal_counts(positions, self.group)), patches=positions)
        law = DirichletCounts(
            concentration=self.concentration, clients=self.group, published=self.published, drawn=self.drawn
        )
        return CutMix(ratio=law, patches=positions)
