"""Constraints in annotations: what is refused, with which sentence, and what is stored."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from annotated_types import Ge, Le, Lt, MultipleOf

from privkit.constraints import (
    Checked,
    Count,
    Finite,
    Fraction,
    Named,
    NonNegative,
    Positive,
    Probability,
    Whole,
    allowed,
)

inf, nan = float("inf"), float("nan")


@dataclass(frozen=True, kw_only=True)
class Range(Checked):
    """A rule between fields."""

    low: Probability
    high: Probability

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low > self.high:
            raise ValueError("low must not exceed high")


@dataclass(frozen=True, kw_only=True)
class Point:
    """A part that another class may hold."""


@dataclass(frozen=True, kw_only=True)
class Layer(Checked):
    """One field of each kind."""

    rate: Positive = 1.0
    keep: Probability = 0.5
    share: Fraction = 1.0
    weight: NonNegative | None = None
    width: Count = 1
    channels: Annotated[int, Ge(1), MultipleOf(4)] = 4
    seed: Whole = 0
    passes: Annotated[int, Ge(2), "black_box attacks a single one"] = 2
    digit: Annotated[int, Ge(0), Lt(10)] = 0
    place: Literal["client", "server"] = "client"
    depth: Literal[18, 20] = 18
    start: Literal["mean"] | None = None
    sizes: tuple[Count, ...] = ()
    epochs: Sequence[Count] | None = None
    power: Annotated[float, Ge(1), Le(inf), "inf for the maximum"] = 1.0
    shift: Finite = 0.0
    spread: Annotated[Positive | None, Named("sigma")] = None
    biased: bool = False
    inner: Range = Range(low=0, high=1)
    clip: Range | Point | None = None
    model: Literal["frozen", "trained"] | Point = "frozen"
    free: float = 0.0


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("rate", 0, "rate must be a finite number > 0, got 0"),
        ("rate", inf, "rate must be a finite number > 0, got inf"),
        ("rate", True, "rate must be a finite number > 0, got True"),
        ("rate", "1", "rate must be a finite number > 0, got '1'"),
        ("keep", nan, "keep must be a finite number >= 0 and <= 1, got nan"),
        ("keep", 1.1, "keep must be a finite number >= 0 and <= 1, got 1.1"),
        ("share", 0.0, "share must be a finite number > 0 and <= 1, got 0.0"),
        ("weight", -1, "weight must be a finite number >= 0, or left out, got -1"),
        ("width", 0, "width must be a whole number >= 1, got 0"),
        ("width", 1.0, "width must be a whole number >= 1, got 1.0"),
        ("width", True, "width must be a whole number >= 1, got True"),
        ("width", 2**60, f"width must be a whole number >= 1 and <= {2**53}, got {2**60}"),
        ("channels", 6, "channels must be a multiple of 4 >= 1, got 6"),
        ("channels", 0, "channels must be a multiple of 4 >= 1, got 0"),
        ("seed", None, "seed must be a whole number >= 0, got None"),
        ("passes", 1, "passes must be a whole number >= 2, got 1; black_box attacks a single one"),
        ("digit", 10, "digit must be a whole number >= 0 and <= 9, got 10"),
        ("place", "mixer", "place must be one of client, server, got 'mixer'"),
        ("place", ["client"], r"place must be one of client, server, got ['client']"),
        ("depth", 19, "depth must be one of 18, 20, got 19"),
        ("start", "zero", "start must be one of mean, or left out, got 'zero'"),
        ("sizes", (3, 0), "each of sizes must be a whole number >= 1, got 0"),
        ("epochs", 3, "epochs must be a list, or left out, got 3"),
        ("epochs", [1, 0.5], "each of epochs must be a whole number >= 1, or left out, got 0.5"),
        ("power", 0.5, "power must be a number >= 1, or inf, got 0.5; inf for the maximum"),
        ("power", 10**400, f"power must be a number >= 1, or inf, got {10**400}; inf for the maximum"),
        ("power", nan, "power must be a number >= 1, or inf, got nan; inf for the maximum"),
        ("shift", -inf, "shift must be a finite number, got -inf"),
        ("spread", 0.0, "sigma must be a finite number > 0, or left out, got 0.0"),
        ("biased", "no", "biased must be true or false, got 'no'"),
        ("inner", 1.0, "inner must be of class Range, got 1.0"),
        ("clip", 1.0, "clip must be one of Range, Point, or left out, got 1.0"),
        ("model", "averaged", "model must be one of frozen, trained, or of class Point, got 'averaged'"),
    ],
)
def test_what_an_annotation_forbids_is_refused_with_a_sentence(field: str, value: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        Layer(**{field: value})


def test_the_ends_of_a_range_belong_to_it_as_annotated() -> None:
    # What is not annotated is not checked.
    Layer(rate=1e-300, keep=0.0, share=1.0, weight=0.0, width=2**53, digit=9, depth=20, start="mean")
    assert Layer(power=np.float32(inf)).power == inf  # type: ignore[arg-type]
    Layer(keep=1.0, weight=None, free=nan, shift=-1, clip=Point(), model=Point())


def test_numbers_are_stored_as_plain_python_numbers() -> None:
    layer = Layer(rate=np.float32(0.1), width=np.int64(3), sizes=[1, np.int32(2)])  # type: ignore[arg-type]
    assert (type(layer.rate), layer.rate) == (float, float(np.float32(0.1)))
    assert (type(layer.width), layer.width) == (int, 3)
    assert layer.sizes == (1, 2)
    assert Layer(epochs=[1, 2]).epochs == (1, 2)
    assert hash(layer) == hash(Layer(rate=layer.rate, width=3, sizes=(1, 2)))


def test_a_class_says_in_words_what_its_fields_may_be() -> None:
    words = allowed(Layer)
    assert words["keep"] == "a finite number >= 0 and <= 1"
    assert words["start"] == "one of mean, or left out"
    assert words["sizes"] == "values that are each a whole number >= 1"
    assert words["model"] == "one of frozen, trained, or of class Point"
    assert words["clip"] == "one of Range, Point, or left out"
    assert "free" not in words


def test_rules_between_fields_come_after_those_of_each_field() -> None:
    with pytest.raises(ValueError, match="low must be a finite number"):
        Range(low=2, high=0)
    with pytest.raises(ValueError, match="must not exceed"):
        Range(low=1, high=0)
