"""Parts of a split-learning mechanism: noise, mixing, participation, and noisy updates of the lower model."""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Le

from privkit.accountants import validate
from privkit.accountants.spec.mixing import (
    ArrayCount,
    DirichletRatio,
    FixedCounts,
    FixedRatio,
    Ratio,
    RealizedRatios,
    rounded_up_to_patches,
)
from privkit.accountants.spec.noise_laws import NOISE_LAWS, GaussianLaw, LawName
from privkit.constraints import Checked, Count, Named, Positive, check_fields


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Independent noise on every released coordinate.

    Attributes:
        law: "gaussian", "laplace", or "randomized_response" (for `Categories`).
        smashed: size of the noise on smashed data (activations at the cut layer), > 0: standard deviation σ_s, or scale
            b_s for Laplace. For randomized response, the probability, at most 1, with which an answer is replaced by a
            uniform draw.
        labels: size of the noise on labels, > 0; None if labels are not released.
        site: where noise is added: "mixer" (once, after mixing) or "client" (by each client, before masks and mixing).
        variance: not a parameter. Table 1 of DP-CutMixSL calls σ the variance, so a value given here raises an error
            that explains this.
    """

    kind: ClassVar[str] = "noise"
    law: LawName = "gaussian"
    smashed: Annotated[Positive, Named("sigma")]
    labels: Annotated[Positive | None, Named("sigma_labels")] = None
    site: Literal["mixer", "client"] = "mixer"
    variance: InitVar[float | None] = None

    def __post_init__(self, variance: float | None) -> None:
        if variance is not None:
            raise ValueError(
                f"noise is given as a standard deviation, not as variance={variance!r}: give its square root, smashed="
            )
        if str(self.law) in NOISE_LAWS and self.distribution.answers:
            validate.real("noise_parameter", self.smashed, least=1e-300, most=1)
        check_fields(self)

    @property
    def distribution(self) -> GaussianLaw:
        return NOISE_LAWS[self.law]


@dataclass(frozen=True, kw_only=True)
class NoMixing(Checked):
    """Each client's release reaches the server unmixed (DP-SL). If `colluding`, the bound assumes that other clients
    reveal who took part."""

    kind: ClassVar[str] = "none"
    group: ClassVar[int] = 1
    colluding: bool = False


@dataclass(frozen=True, kw_only=True)
class Mixup(Checked):
    """Mixing by a weighted sum: the release is Σ λ_i·s_i over the clients i of a group, with their smashed data s_i and
    mixing ratios λ_i (DP-MixSL).

    Attributes:
        ratio: the distribution of the mixing ratios λ_i.
        colluding: whether the bound assumes that the group's other clients give their data and their noise to the
            server. If clients add the noise (`site="client"`), only the attacked client's own noise then protects it,
            and mixing does not lower the bound. Noise that the mixer adds stays secret. The other clients also reveal
            who took part, so sampling is not secret.
    """

    kind: ClassVar[str] = "mixup"
    ratio: FixedRatio | RealizedRatios | DirichletRatio
    colluding: bool = False

    @property
    def group(self) -> int:
        return self.ratio.group


@dataclass(frozen=True, kw_only=True)
class CutMix(Checked):
    """Mixing by exclusive masks over N patches: client i fills N_i of the patches, and its label has the weight λ_i
    (DP-CutMixSL).

    Attributes:
        ratio: the distribution of the ratios λ_i, or of the counts N_i.
        patches: number N ≥ 1 of patches.
        colluding: whether the group's other clients give their data and their noise to the server, as in `Mixup`. Then
            mixing protects smashed data only because a client sends no more than the share N_i/N of its patches.
    """

    kind: ClassVar[str] = "cutmix"
    ratio: Ratio
    patches: ArrayCount
    colluding: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.ratio, FixedCounts):
            self.ratio.law(self.patches)  # refuses counts that do not sum to the patches

    @property
    def group(self) -> int:
        return self.ratio.group

    @property
    def overfull(self) -> bool:
        """Whether the counts ⌈λN⌉ of all clients may sum to more than N, so that masks may overlap."""
        if self.ratio.group == 1:
            return False
        if isinstance(self.ratio, DirichletRatio):
            return True
        if not isinstance(self.ratio, FixedRatio | RealizedRatios):
            return False
        filled = rounded_up_to_patches(np.array(self.ratio.ratios), self.patches)
        return bool(np.any(filled.sum(-1) > 1 + 1e-9))


@dataclass(frozen=True, kw_only=True)
class EveryRound:
    """Every client takes part in every round, in fixed groups (round-robin), so no sampling amplifies privacy."""

    kind: ClassVar[str] = "every_round"
    rate: ClassVar[float] = 1.0


@dataclass(frozen=True, kw_only=True)
class WithoutReplacement(Checked):
    """A secret uniform subset of k = `chosen` of n = `clients` clients takes part in each round, 1 ≤ k ≤ n. Neighbors
    replace one client or record.

    With mixing, the sampled clients take the places in the group uniformly at random in every round, also for k = n. A
    fixed mixing ratio then belongs to a place; with `EveryRound` it belongs to a client.
    """

    kind: ClassVar[str] = "without_replacement"
    chosen: Count
    clients: Count

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.whole("chosen", self.chosen, most=self.clients)

    @property
    def rate(self) -> float:
        return self.chosen / self.clients


@dataclass(frozen=True, kw_only=True)
class Poisson(Checked):
    """Every record or client takes part by an independent secret coin, with probability `rate`, from 1e-300 to 1.
    The neighboring relation must be add-or-remove-one."""

    kind: ClassVar[str] = "poisson"
    rate: Annotated[float, Ge(1e-300), Le(1)]  # 1/rate must not overflow


@dataclass(frozen=True, kw_only=True)
class PrivateUpdates(Checked):
    """Noisy updates of the lower model (DP-SGD). Their privacy loss is added to that of the releases.

    Attributes:
        noise_multiplier: number ≥ 1e-100: the noise's standard deviation divided by the *replace-one* sensitivity of a
            step's gradient sum, which is twice the clipping norm.
        steps: number ≥ 1 of updates that use one record (one per epoch). If `chosen` and `records` are given, the
            number of all updates.
        chosen: number ≥ 1 of records in an update, drawn without replacement. Give it only if these batches are secret
            and drawn independently of the releases. By default an update uses the released batch, whose members the
            server sees, so sampling does not amplify privacy.
        records: number ≥ 1 of the client's records; needed with `chosen`.
    """

    kind: ClassVar[str] = "private"
    noise_multiplier: Annotated[float, Ge(1e-100)]
    steps: Count
    chosen: Count | None = None
    records: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.chosen is None) != (self.records is None):
            raise ValueError("chosen and records go together: give both for secret batches, or neither")
        if self.chosen is not None and self.records is not None:
            validate.whole("chosen", self.chosen, most=self.records)

    @property
    def rate(self) -> float:
        return 1.0 if self.chosen is None or self.records is None else self.chosen / self.records


UNMIXED, ALWAYS = NoMixing(), EveryRound()
"""Defaults: no mixing, and participation without sampling."""
