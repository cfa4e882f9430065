"""One release of DP-SL, DP-MixSL or DP-CutMixSL, as the input of the paper's formulas."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Literal

import numpy as np

from privkit.accountants import validate
from privkit.accountants.spec.mixing import kept_share
from privkit.constraints import Checked, Count, Positive
from privkit.papers.values import printed

Mechanism = Literal["dp_sl", "dp_mixsl", "dp_cutmixsl"]
NAMES: dict[Mechanism, str] = {"dp_sl": "DP-SL", "dp_mixsl": "DP-MixSL", "dp_cutmixsl": "DP-CutMixSL"}
_Labels = Literal["one_hot", "unit_box", "none"]
_NoiseSite = Literal["mixer", "client"]
_Sampling = Literal["without_replacement", "partition"]


@dataclass(frozen=True, kw_only=True)
class GroupRelease(Checked):
    """One release of a group of mixed clients, with the parameters of the DP-CutMixSL paper.

    Source: the DP-CutMixSL paper, §3C, §4A and Table 1.
    """

    mechanism: Mechanism
    sigma: Positive  # standard deviation σ_s of the noise on each coordinate of the smashed data
    sigma_labels: Positive | None = None  # standard deviation σ_y of the noise on labels; None takes `sigma`
    dimensions: Count  # count D_s of numbers in the smashed data of one record
    clip: Positive  # width Δ of the interval to which every coordinate is clamped before the noise
    label_dimensions: Count  # squared distance D_y of two labels in the paper's formula
    labels: _Labels  # "one_hot", "unit_box" (labels in [0, 1]^L) or "none" (not released: the label term is zero)
    classes: Count | None = None  # real length L of the labels; None takes D_y
    group: Count  # number k of clients in a mixing group
    clients: Count  # number n ≥ k of all clients
    mixing_ratio: float | None = None  # largest mixing ratio λ_max in [1/k, 1]; None takes 1/k for every client
    # parameter α_M of the law Dir(α_M) from which the ratios are drawn each time; None if they are fixed
    concentration: Positive | None = None
    patches: Count | None = None  # number N of patches, of which CutMix keeps ⌈λN⌉; None: λN is whole
    noise_site: _NoiseSite  # place of the noise: "mixer" (after mixing, Eqs. 15-16) or "client" (before, Eqs. 5-7)
    # "without_replacement" (k of n clients, drawn secretly and uniformly) or "partition" (round-robin: all clients)
    sampling: _Sampling

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.whole("group", self.group, most=self.clients)
        if self.mixing_ratio is not None:
            if self.mechanism == "dp_sl":
                raise ValueError(
                    f"mixing_ratio must be left out for dp_sl, which mixes nothing, got {self.mixing_ratio!r}"
                )
            # Ratios add up to 1, so the largest is at least 1/k, up to a rounding error.
            validate.real("mixing_ratio", self.mixing_ratio, least=(1 - 1e-12) / self.group, most=1)

    @property
    def ratio(self) -> float:
        """The largest mixing ratio λ_max in the formula; 1 without mixing."""
        if self.mechanism == "dp_sl":
            return 1.0
        return 1 / self.group if self.mixing_ratio is None else float(self.mixing_ratio)

    @property
    def label_diameter(self) -> int:
        """Largest squared L2 distance between two labels: 2 for one-hot labels, L for [0, 1]^L, 0 without labels."""
        classes = self.label_dimensions if self.classes is None else self.classes
        return {"none": 0, "unit_box": classes, "one_hot": 2 if classes > 1 else 0}[self.labels]

    @property
    def kept(self) -> float:
        """Share of patches that the client with the largest ratio keeps: ⌈λN⌉/N under CutMix with N given, else λ."""
        if self.patches is None or self.mechanism != "dp_cutmixsl":
            return self.ratio
        if self.mixing_ratio is None:
            exact = Fraction(1, self.group)
        else:
            exact = Fraction(self.mixing_ratio)
            written = exact.limit_denominator(10**6)  # 0.07 was written for 7/100: ⌈0.07·100⌉ is 7, not 8
            exact = written if float(written) == self.mixing_ratio else exact
        return ceil(exact * self.patches) / self.patches

    @property
    def held(self) -> float:
        """Largest share of the D_s coordinates that the kept patches can hold, if each patch holds at most ⌈D_s/N⌉."""
        if self.patches is None or self.mechanism != "dp_cutmixsl":
            return self.kept
        return float(kept_share(np.array(self.kept), self.patches, self.dimensions))


def table_1_value(parameter: str) -> float:
    """A number of the paper's Table 1 by its symbol, such as "D_s". Values that the table calls σ² are read as standard
    deviations σ, since only this reading gives the printed best group size k₂* = 28.55."""
    return printed("dp_cutmixsl", "Table 1", "DP measurement", parameter)


def table_1(mechanism: Mechanism, *, group: int, sigma: float) -> GroupRelease:
    """Set up a release with the parameters of the paper's Table 1, for a group of k = `group` in 1..10 clients.

    The group is drawn without replacement from 10 clients. Each client has the mixing ratio λ = 1/k; in CutMix it fills
    ⌈64λ⌉ of 64 patches. Noise with standard deviation `sigma` (8/255, 16/255 or 32/255 in the paper) is added after
    mixing.

    Source: the DP-CutMixSL paper, Table 1 and Fig. 7.
    """
    return GroupRelease(
        mechanism=mechanism,
        sigma=sigma,
        dimensions=int(table_1_value("D_s")),
        clip=table_1_value("Δ"),
        label_dimensions=int(table_1_value("D_y")),
        labels="one_hot",
        classes=10,  # CIFAR-10: D_y = 2 is not the length of its labels, but the squared diameter of one-hot labels
        group=group,
        clients=int(table_1_value("n")),
        patches=int(table_1_value("N")),
        noise_site="mixer",
        sampling="without_replacement",
    )
