"""Sensitivities by search over the clip set."""

import json
from math import sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privkit.accountants.spec import records
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import FixedCounts
from privkit.accountants.spec.parts import CutMix, EveryRound, Noise, NoMixing
from privkit.accountants.spec.sensitivity import Ball, BoxLabels, Clamp, OneHot, PatchBall

SETS: list[tuple[Any, Any]] = [
    (Clamp(low=-0.3, high=1, dimensions=3), lambda x: x.clip(-0.3, 1)),
    (Clamp(low=0.2, high=0.7, dimensions=3), lambda x: x.clip(0.2, 0.7)),
    (Ball(radius=1.5), lambda x: x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True) / 1.5, 1)),
    (
        Ball(radius=1.5, nonnegative=True),
        lambda x: x.clip(0) / np.maximum(np.linalg.norm(x.clip(0), axis=1, keepdims=True) / 1.5, 1),
    ),
    (OneHot(), lambda x: np.eye(3)[x.argmax(1)]),
    (BoxLabels(classes=3), lambda x: x.clip(0, 1)),
]


@pytest.mark.parametrize(("clip", "clipped"), SETS)
@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove_one"])
def test_sensitivities_are_reached_and_never_exceeded(clip: Any, clipped: Any, relation: Any) -> None:
    corners = np.stack(np.meshgrid(*[[-9.0, 0.0, 9.0]] * 3), -1).reshape(-1, 3)
    points = clipped(np.concatenate([corners, np.random.default_rng(0).normal(0, 3, (300, 3))]))
    moved = points[:, None] - points[None] if relation == "replace_one" else points
    for norm, order in (("l2", 2), ("l1", 1)):
        if isinstance(clip, Ball) and norm == "l1":
            continue
        found = clip.sensitivity(relation, norm)
        largest = float(np.linalg.norm(moved, order, axis=-1).max())
        assert largest <= found * (1 + 1e-12)
        assert largest == pytest.approx(found, rel=1e-9)


def test_a_patch_ball_is_the_root_of_its_patches() -> None:
    assert PatchBall(radius=1.5, patches=9).sensitivity("replace_one", "l2") == pytest.approx(9.0)
    assert PatchBall(radius=1, patches=4, nonnegative=True).sensitivity("replace_one", "l2") == pytest.approx(sqrt(8))


@given(spec_of=st.sampled_from([NoMixing(), EveryRound(), OneHot(), *(clip for clip, _ in SETS)]))
def test_parts_survive_json(spec_of: Any) -> None:
    assert records.from_json(json.loads(json.dumps(records.to_json(spec_of)))) == spec_of


def test_patches_of_the_clip_set_are_those_of_the_masks() -> None:
    with pytest.raises(ValueError, match="patches of the clip set"):
        SplitMechanism(
            smashed=PatchBall(radius=1, patches=1),
            noise=Noise(smashed=1.0),
            lower_model="frozen",
            mixing=CutMix(ratio=FixedCounts(counts=(2, 2)), patches=4),
        )
