"""The limits that a certificate sets to any attack, as true and false positive rates on a ROC curve."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from math import exp

from privkit.shared.rounding import rounded_up

PRIORS = (0.001, 0.01, 0.1)
"""False positive rates at which limits are given; for reconstruction, success probabilities without the release."""

NO_USE = "proves nothing of use"
"""The remark on a claim that allows an attack a true positive rate of 99 % at a false positive rate of 1 %."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Proven limits on every test that decides from a release between two neighboring data sets.

    They are points of a trade-off curve, which also bounds reconstruction. Let κ be the success probability of the best
    guess without the release. With the release, no attack succeeds more often than the largest true positive rate at
    the false positive rate κ. The guess behind κ may use everything that the certificate does not cover, such as
    unprotected labels and all other records.

    Source: Dong, Roth and Su 2022 (trade-off curves); Kaissis et al. 2023, "Bounding data reconstruction attacks with
    the hypothesis testing interpretation of differential privacy" (reconstruction).

    >>> Limits(advantage=0.2, false_positives=(0.0, 0.01, 1.0), true_positives=(0.0, 0.05, 1.0)).at(0.01)
    0.05
    """

    advantage: float  # the largest difference of true and false positive rate, in [0, 1]
    false_positives: tuple[float, ...]  # tabulated false positive rates, increasing from 0 to 1
    true_positives: tuple[float, ...]  # the largest true positive rate at each tabulated false positive rate

    def at(self, false_positive_rate: float) -> float:
        """The largest possible true positive rate at a false positive rate in [0, 1]. Between two tabulated rates, the
        value at the larger rate is returned, which is a limit, too."""
        return self.true_positives[bisect_left(self.false_positives, false_positive_rate)]

    @property
    def sentence(self) -> str:
        """A sentence on the limits that no attack can exceed."""
        found = ", ".join(f"{rounded_up(self.at(rate), 3)} at {rate:g}" for rate in PRIORS)
        return (
            f"no attack has an advantage above {rounded_up(self.advantage, 3)}, or a true positive rate above {found}. "
            "The same limits hold for reconstruction: the second number is then the chance of a right guess by an "
            "adversary who does not see the release, but knows unprotected labels and all other records"
        )


def of_use(epsilon: float, delta: float, limits: Limits | None) -> bool:
    """Whether a proven bound keeps every attack's true positive rate below 0.99 at a false positive rate of 0.01.

    `limits` come from the whole trade-off curve; None if only ε at δ is known.

    Source: Kairouz, Oh and Viswanath 2015, Theorem 2.1 (the region of one ε and δ).

    >>> of_use(1.0, 1e-5, None), of_use(50.0, 1e-5, None), of_use(float("inf"), 0.0, None)
    (True, False, False)
    """
    false = 0.01
    if limits is not None:
        return limits.at(false) < 0.99
    return min(exp(min(epsilon, 700.0)) * false + delta, 1 - exp(-epsilon) * (1 - delta - false)) < 0.99
