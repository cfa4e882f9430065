"""δ(ε) is the inverse of ε(δ): both take the smallest of the same bounds, by the same numerical composition."""

from itertools import product
from typing import Any

import pytest

from privkit.accountants import answer, calibration
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletCounts, DirichletRatio, FixedRatio
from privkit.accountants.spec.parts import CutMix, Mixup, Noise, PrivateUpdates, WithoutReplacement
from privkit.accountants.spec.sensitivity import Clamp, OneHot

LOWER: dict[str, Any] = {
    "frozen": "frozen",
    "updates": PrivateUpdates(noise_multiplier=2.0, steps=20),
    "sampled updates": PrivateUpdates(noise_multiplier=1.0, steps=50, chosen=10, records=100),
}
WAYS: dict[str, dict[str, Any]] = {
    "alone": {},
    "labels": {"labels": OneHot()},
    "sampled": {"participation": WithoutReplacement(chosen=2, clients=10)},
    "fixed": {"mixing": Mixup(ratio=FixedRatio.equal(2))},
    "dirichlet": {"mixing": Mixup(ratio=DirichletRatio(concentration=2, clients=2))},
    "counts": {"mixing": CutMix(ratio=DirichletCounts(concentration=2, clients=2), patches=4)},
}
NOISE = ["gaussian", "laplace"]


@pytest.mark.slow(but=8)
@pytest.mark.parametrize(
    ("lower", "way", "law"),
    [
        pytest.param(*case, marks=pytest.mark.slow) if case[0] != "frozen" and case[1] == "dirichlet" else case
        for case in product(LOWER, WAYS, NOISE)
    ],
)
def test_both_ways_agree(lower: str, way: str, law: Any) -> None:
    changes, slow = WAYS[way], way == "dirichlet"
    noise = Noise(law=law, smashed=2.0, labels=2.0 if "labels" in changes else None)
    for rounds, deltas in [(10, (1e-5,))] if slow else [(1, (1e-5,)), (10, (1e-2, 1e-9))]:
        try:
            mechanism = SplitMechanism(
                smashed=Clamp(low=0, high=1, dimensions=4),
                noise=noise,
                lower_model=LOWER[lower],
                rounds=rounds,
                **changes,
            )
        except ValueError:
            assert law == "laplace" or "sampled" in (way, lower)  # refused: nothing to compare
            return
        for delta in deltas:
            there = answer.epsilon(mechanism, delta)
            assert there.epsilon is not None
            if there.epsilon == 0:
                continue
            back = answer.delta(mechanism, there.epsilon).delta
            assert back is not None
            if there.method == "pure ε, δ not used":
                assert back == 0
                continue
            assert back <= delta * 1.001  # what ε(δ) proves, δ(ε) proves, too
            again = answer.epsilon(mechanism, back).epsilon if 0 < back < 1 else there.epsilon
            assert again == pytest.approx(there.epsilon, rel=1e-4)
            assert back >= delta * 0.98


def test_updates_at_a_tiny_delta() -> None:
    """Where a first grid ends above δ, a second reaches further."""
    mechanism = SplitMechanism(
        smashed=Clamp(low=0, high=1, dimensions=1),
        noise=Noise(smashed=1.0),
        lower_model=LOWER["sampled updates"],
        rounds=5,
    )
    there = answer.epsilon(mechanism, 1e-60).epsilon
    assert there is not None
    back = answer.delta(mechanism, there).delta
    assert back == pytest.approx(1e-60, rel=0.01)


def test_calibrated_rounds_stay_inside_the_target() -> None:
    start = SplitMechanism(
        smashed=Clamp(low=0, high=0.1, dimensions=50),
        noise=Noise(law="laplace", smashed=1.0),
        lower_model=LOWER["updates"],
    )
    found = calibration.calibrate(start, "rounds", epsilon=20.0, delta=1e-5)
    proven = answer.delta(found.mechanism, 20.0).delta
    assert proven is not None
    assert proven <= 1e-5 * 1.001
