"""What is kept secret from the server: rounds in which a record takes part, the order of records, masked patches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from privkit.accountants import validate
from privkit.accountants.spec.mixing import ArrayCount
from privkit.accountants.spec.sensitivity import Categories, Clamp, Known, PatchBall
from privkit.constraints import Checked, Count

if TYPE_CHECKING:
    from privkit.accountants.spec.mechanism import SplitMechanism


@dataclass(frozen=True, kw_only=True)
class RandomAllocation(Checked):
    """Each unit (record or client) takes part in k = `participations` of every t = `epoch_rounds` rounds, drawn
    uniformly, secretly and independently of other units.

    This is also known as balls and bins: the number of units in a round is random. A shuffled epoch has another
    distribution, since all its rounds have the same size (`ShuffledEpochs`). The number of rounds of a run is a
    multiple of t, and every t rounds are drawn afresh.

    Source: Chua et al. 2024 and Feldman and Shenfeld 2025.
    """

    kind: ClassVar[str] = "random_allocation"
    participations: Count
    epoch_rounds: Count

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.whole("participations", self.participations, most=self.epoch_rounds)

    @property
    def rate(self) -> float:
        return self.participations / self.epoch_rounds


@dataclass(frozen=True, kw_only=True)
class ShuffledEpochs(Checked):
    """Batches of a fixed size from a fresh permutation in every epoch; each unit (record or client) takes part once in
    an epoch.

    A unit that moves to another batch displaces another unit, which can reveal the move. So the proofs for Poisson
    sampling and random allocation do not cover shuffling: some neighbors lose more privacy than either proof allows (a
    test constructs them). Without `records`, the bound assumes that the server knows each unit's batch (joint
    convexity). The order must not depend on the data, but it may be public and need not be uniform. The last batch and
    the last epoch may be shorter.

    With `records`, the bound is lowered by the secrecy of the order (`shuffled_rows`). The order must then be uniform,
    secret, and drawn anew in every epoch. The unit must be a record, the noise Gaussian, the lower model frozen, and
    nothing mixed. Under add-or-remove-one, a dummy of zeros takes the row of an absent record.

    Attributes:
        epoch_rounds: number B ≥ 1 of batches in an epoch.
        records: number n ≥ max(2, B) of one client's records, if each is alone in one row of a batch. None gives no
            credit for the secret order.

    Source: Chua et al. 2024 (shuffled batches are not a Poisson sample); both bounds are derived.
    """

    kind: ClassVar[str] = "shuffled_epochs"
    rate: ClassVar[float] = 1.0
    epoch_rounds: Count
    records: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.records is not None:
            validate.whole("records", self.records, least=max(2, self.epoch_rounds))


@dataclass(frozen=True, kw_only=True)
class HiddenMask(Checked):
    """A client keeps K = `kept` of its N = `patches` patches, 1 ≤ K ≤ N, drawn uniformly in every round, and sends
    noise in place of the others. The server sees N patches and does not learn which of them were kept."""

    kind: ClassVar[str] = "hidden_mask"
    group: ClassVar[int] = 1
    kept: Count
    patches: ArrayCount

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.whole("kept", self.kept, most=self.patches)


NEED_RESPONSE = (
    "randomized response is for categories, and categories are for randomized response: give both "
    "Categories(classes=…) and Noise(law='randomized_response')"
)
ONE_SECRET = "hidden masks, random allocation and randomized response are derived one at a time: use one"


def has_secrets(mechanism: SplitMechanism) -> bool:
    """Whether the mechanism uses random allocation, hidden masks or randomized response. For each of these, a bound is
    derived only without the other two."""
    secret = isinstance(mechanism.participation, RandomAllocation) or isinstance(mechanism.mixing, HiddenMask)
    return secret or mechanism.noise.distribution.answers


def check_secrets(mechanism: SplitMechanism) -> None:
    """Raise ValueError if no bound is derived for the hidden masks, random allocation or secret order of records, or if
    categories come without randomized response."""
    noise, part, mask = mechanism.noise, mechanism.participation, mechanism.mixing
    if isinstance(mechanism.smashed, Categories) and not noise.distribution.answers:
        raise ValueError(NEED_RESPONSE)
    if isinstance(part, RandomAllocation) and isinstance(mask, HiddenMask):
        raise ValueError(ONE_SECRET)
    if isinstance(part, RandomAllocation):
        _check_alone(mechanism, "random allocation")
        _check_allocation(mechanism, part)
    if isinstance(part, ShuffledEpochs) and part.records is not None:
        _check_order(mechanism)
    if isinstance(mask, HiddenMask):
        _check_alone(mechanism, "hidden masks")
        _check_mask(mechanism, mask)


def _check_alone(mechanism: SplitMechanism, name: str) -> None:
    law = mechanism.noise.law
    if mechanism.labels is not None:
        raise ValueError(f"no bound is derived for {name} together with labels: leave out the labels")
    if law != "gaussian":
        raise ValueError(f"no bound is derived for {name} with {law} noise: use Gaussian noise")
    if mechanism.releases != 1:
        raise ValueError(f"no bound is derived for {name} with releases={mechanism.releases} a round: use releases=1")
    if mechanism.lower_model != "frozen":
        raise ValueError(
            f"no bound is derived for {name} with a lower model that learns and later reveals the secret: use "
            "lower_model='frozen'"
        )


def _check_allocation(mechanism: SplitMechanism, part: RandomAllocation) -> None:
    if mechanism.relation != "add_or_remove_one":
        raise ValueError("random allocation is derived for relation='add_or_remove_one'")
    if mechanism.mixing.kind != "none":
        raise ValueError("random allocation has no fixed group to mix: leave out the mixing")
    if mechanism.rounds % part.epoch_rounds:
        raise ValueError(
            f"rounds must be a multiple of epoch_rounds={part.epoch_rounds}, the rounds in which each unit takes "
            f"part {part.participations} times, got rounds={mechanism.rounds}"
        )


def _check_order(mechanism: SplitMechanism) -> None:
    needed = {
        "unit": (mechanism.unit, "record"),
        "mixing": (mechanism.mixing.kind, "none"),
        "noise": (mechanism.noise.law, "gaussian"),
        "lower_model": (getattr(mechanism.lower_model, "kind", mechanism.lower_model), "frozen"),
    }
    for name, (given, allowed) in needed.items():
        if given != allowed:
            raise ValueError(
                f"no bound is derived for a secret order of records with {name}={given!r}: use {name}={allowed!r}, or "
                f"leave records out, which gives no credit for the order"
            )
    if mechanism.relation == "add_or_remove_one" and Known in (type(mechanism.smashed), type(mechanism.labels)):
        raise ValueError(
            "a secret order hides a record among others, so the largest distance of two records counts, and a "
            "sensitivity for add_or_remove_one does not limit it: give the clip set instead, or leave records out"
        )


def _check_mask(mechanism: SplitMechanism, mask: HiddenMask) -> None:
    if mechanism.participation.kind != "every_round":
        raise ValueError("hidden masks are derived for clients that take part in every round: use every_round")
    clip = mechanism.smashed
    if not isinstance(clip, Clamp | PatchBall):
        raise ValueError("hidden masks need a bound on every patch: use a clamp of coordinates, or clip every patch")
    if isinstance(clip, PatchBall) and clip.patches != mask.patches:
        raise ValueError(
            f"the clip bounds {clip.patches} patches and the mask has {mask.patches}: give both the same number"
        )
