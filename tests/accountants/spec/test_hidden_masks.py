"""Hidden masks: the exact pair under addition, what is told under replacement, and a row of a table."""

from __future__ import annotations

from itertools import combinations
from math import exp, log, sqrt
from typing import Any

import numpy as np
import pytest
from scipy.stats import hypergeom

from privkit.accountants import answer
from privkit.accountants.bounds import gaussian
from privkit.accountants.spec import records
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import Noise, Poisson
from privkit.accountants.spec.secrets import HiddenMask
from privkit.accountants.spec.sensitivity import Ball, Clamp, OneHot, PatchBall
from privkit.accountants.table import mechanism_of


def masked(kept: int, patches: int, mu: float, **more: Any) -> SplitMechanism:
    return SplitMechanism(
        **{
            "smashed": PatchBall(radius=mu, patches=patches),
            "noise": Noise(smashed=1.0),
            "lower_model": "frozen",
            "relation": "add_or_remove_one",
            "mixing": HiddenMask(kept=kept, patches=patches),
            **more,
        }
    )


@pytest.mark.parametrize(("kept", "patches", "c"), [(32, 64, 0.5), (3, 16, 2.0), (48, 64, 0.1), (1, 9, 0.3)])
def test_order_two_is_the_overlap_of_two_masks(kept: int, patches: int, c: float) -> None:
    overlap = np.arange(kept + 1)
    true = log(float(hypergeom.pmf(overlap, patches, kept, kept) @ np.exp(c * overlap)))
    found = answer.rdp(masked(kept, patches, sqrt(c)), [2.0]).values[0]
    assert true * (1 - 1e-9) <= found < 1.03 * true


@pytest.mark.parametrize(("kept", "patches"), [(1, 3), (2, 3)])
@pytest.mark.parametrize("mu", [0.3, 1.2])
def test_claims_are_above_enumerated_masks(kept: int, patches: int, mu: float) -> None:
    """Three patches with one coordinate each: all masks, on a lattice of outputs, smaller norms included."""
    x = np.arange(-8, 8 + 4 * mu, 0.2)
    weight = np.exp(-x * x / 2) / sqrt(2 * np.pi) * 0.2
    points = np.array(np.meshgrid(x, x, x)).reshape(3, -1)
    weights = np.prod(np.meshgrid(weight, weight, weight), axis=0).ravel()
    for scales in ((1.0, 1.0, 1.0), (1.0, 0.5, 0.0)):
        shifts = [np.isin(np.arange(3), mask) * mu * np.array(scales) for mask in combinations(range(patches), kept)]
        ratio = np.mean([np.exp(shift @ points - shift @ shift / 2) for shift in shifts], axis=0)
        mechanism = masked(kept, patches, mu)
        for epsilon in (0.1, 0.6):
            claimed = answer.delta(mechanism, epsilon).delta
            assert claimed is not None
            for losses in (np.maximum(ratio - exp(epsilon), 0), np.maximum(1 - exp(epsilon) * ratio, 0)):
                assert float(weights @ losses) <= claimed * (1 + 2e-3)


def test_secrecy_helps_and_never_hurts() -> None:
    for relation, distance in (("add_or_remove_one", 0.5), ("replace_one", 1.0)):
        found = answer.epsilon(masked(32, 64, 0.5, relation=relation), 1e-5)
        told = gaussian.epsilon(1e-5, distance * sqrt(32))
        assert found.lower is None
        if relation == "replace_one":  # what both neighbors share can reveal the mask
            assert found.epsilon == pytest.approx(told)
        else:
            assert found.epsilon < 0.8 * told
    everything = answer.epsilon(masked(64, 64, 0.5, rounds=3), 1e-5)
    assert everything.epsilon == pytest.approx(gaussian.epsilon(1e-5, 0.5 * sqrt(64 * 3)))


def test_replacement_can_reveal_the_mask() -> None:
    """Why masks are taken as told there: patches that both neighbors share raise δ above that of addition."""
    mu, far, x = 1.0, 6.0, np.arange(-9, 12, 0.05)
    density = lambda mean: np.exp(-((x - mean) ** 2) / 2) / sqrt(2 * np.pi)  # noqa: E731
    near = [np.outer(density(far + mu), density(0)), np.outer(density(0), density(far + mu))]
    other = [np.outer(density(far), density(0)), np.outer(density(0), density(far))]
    true = float(np.maximum(sum(near) / 2 - exp(0.5) * sum(other) / 2, 0).sum()) * 0.05**2
    added = answer.delta(masked(1, 2, mu), 0.5).delta
    assert added is not None
    assert added < 0.7 * true
    replaced = answer.delta(masked(1, 2, mu / 2, relation="replace_one"), 0.5).delta
    assert replaced is not None
    assert true <= replaced * (1 + 1e-3)


def test_a_clamp_bounds_a_patch_by_its_fullest() -> None:
    clamp = masked(2, 4, 1.0, smashed=Clamp(low=0, high=1, dimensions=10))
    ball = masked(2, 4, sqrt(3))  # ⌈10/4⌉ coordinates
    assert answer.epsilon(clamp, 1e-5).epsilon == answer.epsilon(ball, 1e-5).epsilon
    row = {
        "mechanism": "hidden_mask", "sigma": 1, "dimensions": 10, "clip_high": 1, "relation": "add_or_remove_one",
        "patches": 4, "kept": 2,
    }  # fmt: skip
    assert mechanism_of(row) == clamp
    assert records.from_json(records.to_json(clamp)) == clamp
    with pytest.raises(ValueError, match="kept is empty"):
        mechanism_of(row | {"kept": ""})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"smashed": Ball(radius=1.0)}, "bound on every patch"),
        ({"smashed": PatchBall(radius=1.0, patches=5)}, "same number"),
        ({"participation": Poisson(rate=0.5)}, "every round"),
        ({"labels": OneHot(), "noise": Noise(smashed=1.0, labels=1.0)}, "labels"),
        ({"lower_model": "trained", "unit": "client"}, "learns"),
    ],
)
def test_what_is_not_derived_is_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        masked(2, 4, 1.0, **change)
