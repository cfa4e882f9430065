"""Privacy profiles of one round, ready to be composed: a Gaussian, a sampled one, or a Laplace variable.

A profile is a function from ε ≥ 0 to δ. The shift (μ of a Gaussian, t of a Laplace variable) is ≥ 0: the sensitivity
divided by the noise's standard deviation, or by its scale. A rate lies in [0, 1].
"""

from __future__ import annotations

import numpy as np

from privkit.accountants import validate
from privkit.accountants.bounds import gaussian, subsampling
from privkit.accountants.bounds.loss_distribution import Pair, Profile


def without_replacement_gaussian(rate: float, mu: float) -> Profile:
    """The tight privacy profile of one Gaussian release from k of n clients, under replace-one. `rate` is k/n.

    Source: Balle, Barthe and Gaboardi 2018, Theorem 9; Balle and Wang 2018, Theorem 8.
    """
    g, base = validate.real("rate", rate, least=0, most=1), gaussian_profile(mu)
    return lambda epsilon: subsampling.without_replacement_delta(epsilon, g, base)


def poisson_gaussian(rate: float, mu: float) -> Pair:
    """The privacy profiles of one Poisson-sampled Gaussian release under add-or-remove-one, for both directions: with
    the record against without it, and the reverse.

    Source: Balle, Barthe and Gaboardi 2018, Theorem 8.
    """
    q, base = validate.real("rate", rate, least=0, most=1), gaussian_profile(mu)
    return (
        lambda epsilon: subsampling.without_replacement_delta(epsilon, q, base),
        lambda epsilon: subsampling.poisson_added_delta(epsilon, q, base),
    )


def laplace_profile(shift: float) -> Profile:
    """The privacy profile (a function from ε ≥ 0 to δ) of one Laplace variable of shift t: 1 − e^{(ε−t)/2} for ε ≤ t,
    and 0 above.

    Source: derived from the hockey-stick integral.
    """
    t = validate.real("shift", shift, least=0)
    return lambda epsilon: -np.expm1(np.minimum(epsilon - t, 0) / 2)


def gaussian_profile(mu: float) -> Profile:
    """The privacy profile (a function from ε ≥ 0 to δ) of one Gaussian release of shift `mu`.

    Source: Balle and Wang 2018, Theorem 8.
    """
    m = validate.real("mu", mu, least=0)
    return lambda epsilon: np.exp(gaussian.log_delta(epsilon, m))
