"""Table 11 of accurate split learning: its printed bounds, the values of its formulas, and the exact values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Literal, get_args

from privkit.accountants.bounds import gaussian
from privkit.papers import paper
from privkit.papers.accurate_sl.claims import laplace_epsilon, theorem_3_5_epsilon, theorem_3_5_limit
from privkit.papers.contract import ONE_RELEASE_ASSUMPTION, claimed
from privkit.papers.values import printed
from privkit.shared.certificate import Certificate

_Noise = Literal["gaussian", "laplace"]


@dataclass(frozen=True, kw_only=True)
class PrintedBound:
    """One printed bound of Table 11 of the accurate split learning paper; layer sizes are from its Table 1."""

    name: str  # model and data set
    noise: _Noise  # law of the noise
    dimensions: int  # size n of the cut layer
    scale: float  # σ of the Gaussian noise, b of the Laplace noise
    half: float  # half of the printed ε: the table prints "(half)*2"
    delta: float  # 1e-5 for Gaussian noise, 0 for Laplace noise

    @property
    def epsilon(self) -> float:
        """The printed ε, which is twice `half`."""
        return 2.0 * self.half

    @cached_property
    def certificate(self) -> Certificate:
        """The printed ε, as the claim of a certificate for one release of n numbers in [−1, 1]. The certificate has the
        exact ε as `lower`, and is sound if the printed ε is at least as large. Its quantity `formula` is the value of
        the paper's formula at the L2 diameter 2√n: 2c√n/σ with c = √(2·ln(1.25/δ)), or 2√n/b for Laplace noise."""
        n, scale, claim = self.dimensions, self.scale, self.epsilon
        if self.noise == "laplace":
            formula, exact = laplace_epsilon(n, scale, norm="l2") / 2, laplace_epsilon(n, scale, norm="l1")
            why = f"Laplace noise needs the L1 diameter 2n = {2 * n}, not the L2 diameter 2√n = {2 * sqrt(n):g}"
        else:
            formula = theorem_3_5_epsilon(sqrt(n), scale, self.delta)
            exact = gaussian.epsilon(self.delta, 2 * sqrt(n) / scale)
            limit = theorem_3_5_limit(self.delta)[0]
            why = f"Theorem 3.5 is proven for ε < 1; at this δ, its formula is no bound above ε = {limit:.4g}"
            if "Names" in self.name:
                why += f", and nothing proves that a batch of {_NAMES_BATCH} divides the bound by √{_NAMES_BATCH}"
            elif abs(self.half / formula - 1) > 0.1:
                why += ", and no variant of its formula gives the printed number"
        objection = "" if claim >= exact else f"the exact ε is {exact:.6g}: {why}"
        return claimed(
            f"Table 11, {self.name}, {self.noise} noise {scale:g}: ε = {claim:g} at δ = {self.delta:g}",
            claim,
            self.delta,
            objection=objection,
            lower=exact,
            method="number as printed",
            quantities={"exact_epsilon": exact, "formula": 2 * formula},
            assumptions=(f"{n} released numbers, each in [−1, 1] (tanh)", ONE_RELEASE_ASSUMPTION),
            source=f"{paper('accurate_sl').citation}, Table 11",
        )


_SPLIT_LAYERS = {
    "CNN on MNIST": "CNN on MNIST: 2×Conv2d - FC FC - Loss",
    "ResNet on CIFAR-10": "ResNet-20 on CIFAR10: Conv2d - 3×ResBlock FC - Loss",
    "MLP on IMDB": "MLP on IMDB: Embedding - FC FC - Loss",
    "LSTM on Names": "RNN on Names: Embedding - RNN FC - Loss",
}
"""Model of Table 11 -> its row in Table 1, which gives the size of the cut layer."""
_NAMES_BATCH = int(printed("accurate_sl", "Table 2", "LSTM on Names", "batch size"))
"""Batch size of the Names model: its printed ε is the MNIST row's, divided by the square root of the batch size."""

TABLE_11: tuple[PrintedBound, ...] = tuple(
    PrintedBound(
        name=name,
        noise=noise,
        dimensions=int(printed("accurate_sl", "Table 1", layer, "split layer size")),
        scale=scale,
        half=printed("accurate_sl", "Table 11", f"{name}, {noise}", f"scale={scale}"),
        delta=1e-5 if noise == "gaussian" else 0.0,
    )
    for noise in get_args(_Noise)
    for name, layer in _SPLIT_LAYERS.items()
    for scale in (0.3, 0.5, 0.7)
)
"""The paper's own 24 rows of Table 11. The other two rows, of earlier work, print no bound for split learning."""


def row_of(name: str, noise: str, scale: float) -> PrintedBound | None:
    """Find the row of Table 11 by the model's name, the law of the noise and its σ or b; None if there is none."""
    wanted = (name, noise, scale)
    return next((bound for bound in TABLE_11 if (bound.name, bound.noise, bound.scale) == wanted), None)
