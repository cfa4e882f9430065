"""A slice of the random campaign (`benchmarks/campaign.py`), its power, and the truth of its oracle."""

import importlib
import json
import sys
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest

from privkit.accountants.spec import mechanism, mixing, sensitivity

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


sys.path.insert(0, str(BENCHMARKS))
truth, composed, worlds, draw, campaign = (
    importlib.import_module(f"campaign{part}") for part in ("_truth", "_composed", "_worlds", "_draw", "")
)


def violations(indices: Iterable[int], seed: int = 2) -> list[str]:
    rows = [campaign.row(seed, index) for index in indices]
    return [f"{row['index']} [{row['kind']}] {violation}" for row in rows for violation in row["violations"]]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("block", range(2))
def test_no_claim_of_a_random_slice_is_below_the_truth(block: int) -> None:
    assert violations(range(25 * block, 25 * block + 25)) == []


def halved_sensitivity(patch: pytest.MonkeyPatch) -> None:
    honest = sensitivity.Clamp.sensitivity
    halved = lambda *given: honest(*given) / 2  # noqa: E731
    patch.setattr(sensitivity.Clamp, "sensitivity", halved)


def mean_ratio(patch: pytest.MonkeyPatch) -> None:
    equal = lambda self, *_: mixing._one_ratio(1 / self.group, 1 / self.group, 1 / self.group)  # noqa: E731
    patch.setattr(mixing.FixedRatio, "law", equal)


def forgotten_rounds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mechanism.SplitMechanism, "composed_rounds", property(lambda self: max(1, self.rounds - 1)))


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("plant", [halved_sensitivity, mean_ratio, forgotten_rounds])
def test_a_planted_fault_is_found(plant, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    plant(monkeypatch)
    assert any(violations([index]) for index in range(25))


def test_a_specification_follows_from_seed_and_index() -> None:
    assert draw.Draw(3, 7).question() == draw.Draw(3, 7).question()
    assert draw.Draw(3, 7).question() != draw.Draw(3, 8).question() != draw.Draw(4, 8).question()


def test_a_stopped_campaign_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tmp_path / "rows.jsonl"
    assert campaign.main(["--seed", "2", "--count", "4", "--rows", str(rows)]) == 0
    kept = rows.read_text()
    rows.write_text(kept[:-20])  # as a kill leaves it
    asked: list[int] = []
    honest = campaign.row

    def watched(seed: int, index: int) -> Any:
        asked.append(index)
        return honest(seed, index)

    monkeypatch.setattr(campaign, "row", watched)
    assert campaign.main(["--seed", "2", "--count", "5", "--rows", str(rows)]) == 0
    assert asked == [3, 4]


def test_a_violation_is_told_by_the_exit_code(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    bad = campaign.row(2, 0) | {"violations": [{"check": "epsilon"}]}
    rows.write_text(json.dumps(bad) + "\n")
    assert campaign.main(["--seed", "2", "--count", "1", "--rows", str(rows)]) == 1


@pytest.mark.parametrize(("dimensions", "patches"), [(1, 5), (3, 5), (5, 5), (7, 5), (23, 6)])
def test_the_worst_mask_is_that_of_an_enumeration(dimensions: int, patches: int) -> None:
    sizes = np.bincount(np.arange(dimensions) % patches, minlength=patches)
    clip = {"kind": "clamp", "low": 0.0, "high": 1.0, "dimensions": dimensions}
    for count in range(patches + 1):
        worst = max(sum(sizes[list(mask)]) for mask in combinations(range(patches), count))
        assert worlds.kept(clip, "replace_one", patches, np.array([count]))[0] == pytest.approx(worst)


@pytest.mark.parametrize(
    ("epsilon", "mu"), [(0.0, 1e-8), (3e-7, 1e-8), (1.0, 1.0), (40.0, 1.0), (0.5, 30.0), (800.0, 40.0), (2000.0, 10.0)]
)
def test_the_gaussian_profile_is_that_of_many_digits(epsilon: float, mu: float) -> None:
    with mpmath.workdps(900):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        exact = float(mpmath.log(mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)))
    assert float(truth.log_profile(epsilon, np.array(mu))) == pytest.approx(exact, rel=1e-12, abs=1e-13)


def test_composition_brackets_what_has_a_closed_form() -> None:
    part = truth.part
    sixteen = composed.composed([part(0.25, 16)], 1e-5)
    assert sixteen.low < 4.377178 < sixteen.high < sixteen.low * 1.05
    for delta in (1e-3, 1e-12, 1e-100):
        once = truth.invert(lambda e: truth.log_delta_once(part(1.5, rate=0.1), e), delta)
        found = composed.composed([part(1.5, rate=0.1)], delta)
        assert found.low <= once <= found.high <= found.low * 1.05 + 0.02
    laplace = composed.composed([part(0.1, 1000, law="laplace")], 1e-5)
    assert 17.3 < laplace.low < 17.5  # ten thousandths of its pure ε of 100 are not needed
    flat = composed.composed([part(0.7, law="laplace")], 1e-3)
    assert flat.low <= 0.7 + 2 * np.log1p(-1e-3) <= flat.high
