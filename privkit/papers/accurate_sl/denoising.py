"""Mean squared errors of the first layer after the cut, in closed form, if noisy smashed data are masked or scaled.

Smashed data X in R^n arrive as X + Z with noise Z; the next layer is linear, M in R^(m×n). Masking keeps each
coordinate with probability p in [0, 1], and scaling multiplies all coordinates by λ = 1/α in [0, 1]; p = 1 and λ = 1
have no effect. Both are post-processing and leave ε unchanged. A, B and F are the fields of `LinearLayer`, and σ² is
the variance of the noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class CutNoise:
    """The law and scale of independent noise on every coordinate of the smashed data."""

    law: Literal["gaussian", "laplace"]  # law of the noise
    scale: float  # standard deviation σ of Gaussian noise, scale b of Laplace noise (whose variance is 2b²), > 0

    @property
    def variance(self) -> float:
        """The variance of the noise on a coordinate: σ² (Gaussian) or 2b² (Laplace)."""
        return self.scale * self.scale * (1.0 if self.law == "gaussian" else 2.0)


@dataclass(frozen=True, kw_only=True)
class LinearLayer:
    """Three numbers of a linear layer M and smashed data X that determine the errors if noisy X is masked or scaled.

    Source: Xu et al., accurate split learning, Theorem 3.1.
    """

    signal: float  # A = ‖MX‖² ≥ 0
    diagonal: float  # B = ‖M ⊙ X̄‖² = Σ m_ij² x_j² ≥ 0
    weight: float  # F = ‖M‖² > 0, squared Frobenius norm

    @classmethod
    def average(cls, *, rows: int, columns: int) -> LinearLayer:
        """The mean `LinearLayer` if all entries of M (m `rows`, n `columns`) and X are uniform on [−1, 1]: `signal` and
        `diagonal` have the mean mn/9, and `weight` mn/3. The errors of masking and scaling are linear in these three
        numbers, so the numbers' means give the exact mean errors."""
        return cls(signal=rows * columns / 9, diagonal=rows * columns / 9, weight=rows * columns / 3)


def mask_mse(layer: LinearLayer, p: float, noise: CutNoise) -> float:
    """Squared error of masking: E‖MX − M R_p(X + Z)‖² = (1−p)²A + p(1−p)B + pσ²F.

    A, B and F are the fields of `layer`, σ² is the variance of the noise Z, and the mask R_p keeps each coordinate with
    probability p. The formula holds for one mask for all rows of M, and for a mask per row.

    Source: Xu et al., Eq. 9, regrouped.
    """
    return (1 - p) ** 2 * layer.signal + p * (1 - p) * layer.diagonal + p * noise.variance * layer.weight


def scale_mse(layer: LinearLayer, lam: float, noise: CutNoise) -> float:
    """Squared error of scaling by λ in [0, 1]: E‖MX − λM(X + Z)‖² = (1−λ)²A + λ²σ²F; letters as in `mask_mse`.

    Source: Xu et al., Eq. 13.
    """
    return (1 - lam) ** 2 * layer.signal + lam**2 * noise.variance * layer.weight


def mask_scale_gap(layer: LinearLayer, p: float, noise: CutNoise) -> float:
    """The error of masking at p minus the error of scaling by p: p(1−p)(B + σ²F) ≥ 0; letters as in `mask_mse`.

    Source: derived; it proves what Xu et al. (section 4.1) observe in Fig. 2.
    """
    return p * (1 - p) * (layer.diagonal + noise.variance * layer.weight)


def masking_no_worse(layer: LinearLayer, p: float, noise: CutNoise) -> bool:
    """Whether masking at p has at most the error of noise without masking: pB + (1−p)A ≤ σ²F, or p = 1.

    Letters are as in `mask_mse`.

    Source: Xu et al., Theorem 3.1 (i). Its "if and only if" overlooks p = 1, where both errors are always equal.
    """
    return p == 1 or least_variance_for_masking(layer, p) <= noise.variance


def least_variance_for_masking(layer: LinearLayer, p: float) -> float:
    """Smallest noise variance σ² at which masking at p does not increase the error: (pB + (1−p)A)/F.

    A, B and F are the fields of `layer`. For `LinearLayer.average` the result is 1/3 for every p.

    Source: Xu et al., Theorem 3.1 (i), solved for σ².
    """
    return (p * layer.diagonal + (1 - p) * layer.signal) / layer.weight


def scaling_no_worse(layer: LinearLayer, alpha: float, noise: CutNoise) -> bool:
    """Whether scaling by 1/α, α > 1, has at most the error of noise without scaling: A/F ≤ σ²(α+1)/(α−1).

    A and F are fields of `layer`, and σ² is the variance of the noise.

    Source: Xu et al., Theorem 3.1 (ii).
    """
    return (alpha - 1) / (alpha + 1) * layer.signal <= noise.variance * layer.weight


def least_mse_scale(layer: LinearLayer, noise: CutNoise) -> float:
    """The scale λ* in [0, 1] that minimizes `scale_mse`: A/(A + σ²F); 0 if A = 0. Letters are as in `mask_mse`.

    Source: derived from Xu et al., Eq. 13.
    """
    return layer.signal / (layer.signal + noise.variance * layer.weight)


def least_mse_keep(layer: LinearLayer, noise: CutNoise) -> float:
    """The keep probability p* in [0, 1] that minimizes the error `mask_mse`; letters are explained there.

    If A > B, p* is (2A − B − σ²F)/(2(A − B)), clipped to [0, 1]. Otherwise the error is concave in p, so p* is an
    endpoint: 0 if A < σ²F, otherwise 1 (no masking).

    Source: derived from Xu et al., Eq. 9.
    """
    spread, curvature = noise.variance * layer.weight, layer.signal - layer.diagonal
    if curvature <= 0:
        return 0.0 if layer.signal < spread else 1.0
    # 2A − B − σ²F as curvature + (A − σ²F): no sum that could overflow.
    return min(1.0, max(0.0, 0.5 + (layer.signal - spread) / curvature / 2))
