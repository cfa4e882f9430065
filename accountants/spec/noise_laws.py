"""Noise distributions, and the properties of each that a specification needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from privkit.accountants.spec.mixing import Fixed
from privkit.accountants.spec.secrets import NEED_RESPONSE, ONE_SECRET, HiddenMask, RandomAllocation
from privkit.accountants.spec.sensitivity import Categories, Norm

if TYPE_CHECKING:
    from privkit.accountants.spec.mechanism import SplitMechanism

LawName = Literal["gaussian", "laplace", "randomized_response"]


class GaussianLaw:
    """The properties of normal noise. Other noise distributions inherit from this class and override what differs.

    `check` raises ValueError if no bound is derived for a mechanism with this noise; the message names what is
    supported. `attained` says whether some pair of neighbors has exactly the privacy loss that is accounted for, so
    that the bound is tight with this noise.
    """

    norm: ClassVar[Norm] = "l2"  # the norm of the sensitivity, L1 or L2
    unit: ClassVar[str] = "standard deviation"  # the meaning of `Noise.smashed`, in words
    pure: ClassVar[bool] = False  # whether the mechanism is (ε, 0)-DP for some finite ε
    # whether the noise replaces categories instead of being added to numbers; then there is no distance and no scale
    answers: ClassVar[bool] = False
    variance_factor: ClassVar[float] = 1.0  # variance of the noise, divided by the square of `Noise.smashed`

    def check(self, mechanism: SplitMechanism) -> None: ...

    def attained(self, mechanism: SplitMechanism) -> bool:
        return True


class _LaplaceLaw(GaussianLaw):
    norm = "l1"
    unit = "scale"
    pure = True
    variance_factor = 2.0

    def check(self, mechanism: SplitMechanism) -> None:
        if not isinstance(getattr(mechanism.mixing, "ratio", None), Fixed | None):
            raise ValueError("Laplace noise is accounted for with fixed ratios; use Gaussian noise with random ones")
        if mechanism.participation.kind == "poisson":
            raise ValueError("Laplace noise is accounted for in every round or k of n; use Gaussian noise with Poisson")
        if mechanism.noise.site == "client" and mechanism.mixing.group > 1:
            raise ValueError("a sum of Laplace variables is not Laplace; add the noise at the mixer")

    def attained(self, mechanism: SplitMechanism) -> bool:
        # In these cases the bound assumes that everyone takes part, or that each neighbor has the largest ratio.
        return not (mechanism.participation_shows or mechanism.seated)


class _ResponseLaw(GaussianLaw):
    unit = "probability"
    pure = True
    answers = True
    variance_factor = 0.0

    def check(self, mechanism: SplitMechanism) -> None:
        if not isinstance(mechanism.smashed, Categories):
            raise ValueError(NEED_RESPONSE)
        if isinstance(mechanism.participation, RandomAllocation) or isinstance(mechanism.mixing, HiddenMask):
            raise ValueError(ONE_SECRET)
        if mechanism.labels is not None:
            raise ValueError("no bound is derived for randomized response together with labels: leave out the labels")
        if mechanism.mixing.kind != "none" or mechanism.participation.kind != "every_round":
            raise ValueError("randomized response is derived without mixing and without sampling: leave out both")
        if mechanism.relation != "replace_one":
            raise ValueError("randomized response shows that somebody answered, so use relation='replace_one'")
        if mechanism.lower_model not in ("frozen", "trained"):
            raise ValueError("randomized response covers its answers only: use lower_model='frozen'")


NOISE_LAWS: Mapping[str, GaussianLaw] = {
    "gaussian": GaussianLaw(),
    "laplace": _LaplaceLaw(),
    "randomized_response": _ResponseLaw(),
}
"""Name -> properties of the noise. `compile.RELEASES` has a function for each name that builds the releases' `Step`."""
