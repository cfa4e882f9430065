"""Clip sets and their sensitivities. A sensitivity always belongs to a neighboring relation and a norm."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge

from privkit.accountants import validate
from privkit.constraints import Checked, Count, Finite, Named, Positive
from privkit.shared.certificate import Relation

Norm = Literal["l1", "l2"]


@dataclass(frozen=True, kw_only=True)
class Clamp(Checked):
    """A clip set: all D ≥ 1 coordinates (`dimensions`) of a record's release are clamped to [low, high], after the
    position embedding and before noise.

    Source: DP-CutMixSL's Δ (low = 0, high = Δ). For tanh outputs use Clamp(low=-1, high=1).

    >>> Clamp(low=-1, high=1, dimensions=256).sensitivity("replace_one", "l2")
    32.0
    """

    kind: ClassVar[str] = "clamp"
    additive: ClassVar[bool] = True
    low: Finite
    high: Finite
    dimensions: Count

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.real("high", self.high, above=self.low)

    def sensitivity(self, relation: Relation, norm: Norm) -> float:
        reach = self.high - self.low if relation == "replace_one" else max(abs(self.low), abs(self.high))
        return reach * (sqrt(self.dimensions) if norm == "l2" else self.dimensions)


@dataclass(frozen=True, kw_only=True)
class PatchBall(Checked):
    """A clip set: each of N ≥ 1 patches is clipped to the L2 norm C = `radius` > 0. If all entries are `nonnegative`,
    two patches are at most √2·C apart, otherwise 2·C.

    >>> PatchBall(radius=1.0, patches=64).sensitivity("replace_one", "l2")
    16.0
    """

    kind: ClassVar[str] = "patch_ball"
    additive: ClassVar[bool] = True
    radius: Positive
    patches: Count
    nonnegative: bool = False

    def sensitivity(self, relation: Relation, norm: Norm) -> float:
        return _ball(self.radius, self.nonnegative, relation, norm) * sqrt(self.patches)


@dataclass(frozen=True, kw_only=True)
class Ball(Checked):
    """A clip set: the whole release is clipped to the L2 norm C = `radius` > 0, as in DP-SGD. If all entries are
    `nonnegative`, two releases are at most √2·C apart, otherwise 2·C.

    >>> round(Ball(radius=3.0, nonnegative=True).sensitivity("replace_one", "l2"), 4)
    4.2426
    """

    kind: ClassVar[str] = "ball"
    additive: ClassVar[bool] = False
    radius: Positive
    nonnegative: bool = False

    def sensitivity(self, relation: Relation, norm: Norm) -> float:
        return _ball(self.radius, self.nonnegative, relation, norm)


@dataclass(frozen=True, kw_only=True)
class OneHot:
    """The set of one-hot labels, or of any labels in the probability simplex. Two labels are at most √2 apart (L2) for
    any number of classes.

    >>> OneHot().sensitivity("replace_one", "l1")
    2.0
    """

    kind: ClassVar[str] = "one_hot"
    additive: ClassVar[bool] = False

    def sensitivity(self, relation: Relation, norm: Norm) -> float:
        apart = sqrt(2) if norm == "l2" else 2.0
        return apart if relation == "replace_one" else 1.0


@dataclass(frozen=True, kw_only=True)
class BoxLabels(Checked):
    """The set of labels with every entry in [0, 1], for example the attributes of a face.

    Attributes:
        classes: number L ≥ 1 of entries.

    >>> BoxLabels(classes=4).sensitivity("replace_one", "l2")
    2.0
    """

    kind: ClassVar[str] = "box_labels"
    additive: ClassVar[bool] = False
    classes: Count

    def sensitivity(self, relation: Relation, norm: Norm) -> float:
        return sqrt(self.classes) if norm == "l2" else float(self.classes)


@dataclass(frozen=True, kw_only=True)
class Known(Checked):
    """A sensitivity, `value` > 0, that the caller gives for one neighboring `relation` and one `norm` ("l1" or "l2").
    Asking for another relation or norm raises ValueError."""

    kind: ClassVar[str] = "known"
    additive: ClassVar[bool] = False
    value: Annotated[Positive, Named("sensitivity")]
    relation: Relation
    norm: Norm

    def sensitivity(self, relation: Relation, norm: Norm) -> float:
        if (relation, norm) != (self.relation, self.norm):
            raise ValueError(
                f"the sensitivity is given for {self.relation} in {self.norm}, but {relation} in {norm} is asked for: "
                "a replacement can move a release twice as far as an addition, so give the clip set instead"
            )
        return self.value


@dataclass(frozen=True, kw_only=True)
class Categories(Checked):
    """The input of randomized response: D ≥ 1 answers in a release (`answers`), each from k ≥ 2 categories (`classes`).
    Examples are a class label, or the bits of a binary code.

    The bounds assume the worst case: all answers of a record differ between neighbors. Categories have no distance, so
    asking for a sensitivity raises a ValueError.
    """

    kind: ClassVar[str] = "categories"
    additive: ClassVar[bool] = False
    classes: Annotated[int, Ge(2)]
    answers: Count = 1

    def sensitivity(self, relation: Relation, norm: Norm) -> float:
        raise ValueError(
            "categories have no distance that Gaussian or Laplace noise could hide: use randomized response, or "
            "one-hot labels"
        )


def l1_coordinates(clip: ClipSet | Categories, relation: Relation) -> int:
    """The number of coordinates over which an L1 distance between neighbors is spread in the worst case for Laplace
    noise. It is 1 if only the sum over coordinates is bounded, but 2 for one-hot labels under replace-one.

    Proof of these cases: let f_s be the trade-off function of a Laplace (or any log-concave) variable that is shifted
    by s, and f_s ⊗ f_t the function of two coordinates together. Then f_s ⊗ f_t ≥ f_t(1 − f_s) = f_{s+t}, so one
    coordinate with shift s + t loses at least as much privacy as two coordinates with shifts s and t. Between two
    labels in the simplex, increases and decreases have equal sums, so two coordinates are the worst case.

    Source: derived, with Dong, Roth and Su 2022, Lemma A.5 (f_t(1 − f_s) bounds two steps).

    >>> l1_coordinates(OneHot(), "replace_one"), l1_coordinates(Clamp(low=0, high=1, dimensions=9), "replace_one")
    (2, 9)
    """
    if isinstance(clip, Clamp):
        return clip.dimensions
    if isinstance(clip, BoxLabels):
        return clip.classes
    return 2 if isinstance(clip, OneHot) and relation == "replace_one" else 1


ClipSet = Clamp | PatchBall | Ball | OneHot | BoxLabels | Known
"""A set that contains one record's smashed data or label, because the client clips them.

`sensitivity(relation, norm)` is the largest distance between releases of neighbors, > 0 and in units of the release:
the set's diameter under "replace_one", its largest norm under "add_or_remove_one". It raises `ValueError` if this
distance is not known in the norm. `additive` says whether every coordinate or patch is bounded alone. Then a mask that
keeps N_i of N patches keeps at most N_i/N of the squared distance; if only the whole norm is bounded, it may keep all
of this distance.
"""


def _ball(radius: float, nonnegative: bool, relation: Relation, norm: Norm) -> float:
    if norm != "l2":
        raise ValueError("an L2 clip without dimensions bounds no L1 distance; clamp coordinates for Laplace noise")
    if relation == "add_or_remove_one":
        return radius
    return radius * (sqrt(2) if nonnegative else 2)
