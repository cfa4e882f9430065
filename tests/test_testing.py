"""The assertions for a user's own tests: true claims stand, false ones fail, and what can never fail is refused."""

import re
import tomllib
from functools import partial
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from privkit.accountants import answer
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import Noise
from privkit.accountants.spec.sensitivity import Ball
from privkit.shared.certificate import Certificate
from privkit.testing import assert_audit, assert_claim_stands

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "how-to" / "gates.md"
CLIP, SIGMA = 1.0, 1.0


def noisy(records: Tensor, generator: Generator, sigma: float = SIGMA) -> Tensor:
    """Clipped to the unit ball, and noised."""
    clipped = records * (CLIP / records.norm(dim=1, keepdim=True)).clamp(max=1)
    return clipped + sigma * torch.randn(records.shape, generator=generator)


def claim(**options: Any) -> Certificate:
    """ε of one release with that noise, by the exact profile."""
    ball = Ball(radius=CLIP)
    mechanism = SplitMechanism(smashed=ball, noise=Noise(smashed=SIGMA), lower_model="frozen", **options)
    return answer.epsilon(mechanism, 1e-5)


def test_a_true_claim_stands_and_the_bound_comes_close() -> None:
    certificate = claim()
    bound = assert_claim_stands(noisy, certificate)
    assert 0.6 * certificate.epsilon < bound.epsilon < certificate.epsilon


def test_a_claim_of_adding_a_record_is_not_held_against_replacing_one() -> None:
    """Replaced records lie twice as far apart, and would refute a true claim."""
    added = claim(relation="add_or_remove_one")
    with pytest.raises(ValueError, match="adding or removing a record, and the default neighbors replace one"):
        assert_claim_stands(noisy, added)
    far = torch.full((16,), 1e3)
    assert not assert_claim_stands(noisy, added, neighbors=(far, torch.full((16,), 1e-9))).refuted
    with pytest.raises(AssertionError, match="refutes"):
        assert_claim_stands(partial(noisy, sigma=0.7), added, neighbors=(far, torch.full((16,), 1e-9)))


def test_a_false_claim_fails_with_a_sentence() -> None:
    with pytest.raises(AssertionError, match=r"ε >= .* refutes the claimed ε"):
        assert_claim_stands(partial(noisy, sigma=0.7 * SIGMA), claim())
    with pytest.raises(AssertionError, match="refutes"):
        assert_claim_stands(lambda records, generator: records, claim())  # no noise at all


def test_what_can_never_fail_or_cannot_be_tested_is_refused() -> None:
    with pytest.raises(AssertionError, match="take more canaries"):
        assert_claim_stands(noisy, claim(), canaries=4)
    with pytest.raises(ValueError, match="claims no ε"):
        assert_claim_stands(noisy, Certificate(kind="nothing", statement="", epsilon=inf))
    with pytest.raises(ValueError, match="canaries must be at least 2, got 1"):
        assert_claim_stands(noisy, claim(), canaries=1)
    with pytest.raises(ValueError, match="neighbors must be finite"):
        assert_claim_stands(noisy, claim(), neighbors=(torch.full((16,), nan), torch.ones(16)))
    with pytest.raises(ValueError, match="must return a torch tensor of releases, got ndarray"):
        assert_claim_stands(lambda x, g: noisy(x, g).numpy(), claim())  # type: ignore[arg-type,return-value]
    for broken in (lambda x, g: x.sum(0), lambda x, g: x / 0):
        with pytest.raises(ValueError, match="one finite row for each of"):
            assert_claim_stands(broken, claim())


def test_an_audit_that_fails_a_gate_fails_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    def audited(out: object, gate: str) -> Any:
        failures = ("ssim is .5",) if gate == "ssim<=0.4" else ()
        verdict = SimpleNamespace(sentence="failed: …")
        return SimpleNamespace(exit_code=len(failures), failures=failures, verdict=verdict, report="index.html")

    monkeypatch.setattr("privkit.audit.run.run_audit", audited)
    assert assert_audit(gate="ssim<=1").exit_code == 0
    with pytest.raises(AssertionError, match=r"failed: …\nssim is \.5\nreport: index\.html"):
        assert_audit(gate="ssim<=0.4")


def test_the_plug_in_gives_both_as_fixtures_and_the_test_of_the_page_runs(pytester: pytest.Pytester) -> None:
    (page,) = re.findall(r"```python\n# test_privacy.py\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    pytester.makepyfile(
        f"""{page}
from privkit import testing

def test_fixtures(assert_claim_stands, assert_audit, tmp_path):
    assert assert_claim_stands is testing.assert_claim_stands
    assert assert_audit.keywords == {{"out": tmp_path / "run"}}
"""
    )
    options = ("-p", "privkit.pytest_plugin", "-p", "no:cacheprovider", "-k", "test_fixtures or test_claim")
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=2, deselected=1)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert list(project["entry-points"]["pytest11"].values()) == ["privkit.pytest_plugin"]
