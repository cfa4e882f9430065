"""What a claim does not cover is said on the row of an adversary that holds it."""

from dataclasses import replace
from functools import cache
from math import inf, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm
from torch import Generator, Tensor

from privkit.accountants.auditing.families import GAUSSIAN, ScaledNoise
from privkit.accountants.auditing.independent import epsilon_independent
from privkit.audit.claims import audit_one_run, claimed_family, uncovered
from privkit.audit.run import run_audit
from privkit.laws.canaries import against_canaries
from privkit.shared.certificate import Certificate
from privkit.shared.empirical_bound import EmpiricalBound
from privkit.shared.rounding import rounded_down
from tests.accountants.auditing.mechanisms import MECHANISMS, known

CLAIM = Certificate(kind="differential_privacy", statement="", epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize(
    ("claim", "lower_model", "known", "said"),
    [
        (CLAIM, "trained", {"lower"}, ("the lower segment itself",)),
        (CLAIM, "trained", {"query", "lower"}, ("the lower segment itself", "answers of the lower segment")),
        (CLAIM, "trained", {"auxiliary", "upper"}, ()),
        (CLAIM, "frozen", {"lower", "query"}, ()),
        (Certificate(kind="nothing", statement=""), "trained", {"lower"}, ()),
    ],
)
def test_what_a_claim_does_not_cover(
    claim: Certificate, lower_model: str, known: set[str], said: tuple[str, ...]
) -> None:
    found = " ".join(uncovered(claim, lower_model, frozenset(known)))
    assert bool(found) == bool(said)
    assert all(part in found for part in said)


@pytest.mark.usefixtures("no_report")
def test_rows_of_one_client_name_what_the_claim_leaves_out(tmp_path: Path) -> None:
    """The lower segment of one client was trained on raw records, which its claim expects to stay with the client."""
    run = run_audit(
        defense="gaussian_noise:sigma=1",
        attack=["white_box:epochs=1", "mean_image"],
        dataset="tiny_digits",
        budget="smoke:private=50,auxiliary=50,test=50,victims=25,epochs=1,attack_epochs=1",
        training="batch_size=25",
        threads=1,
        out=tmp_path / "run",
    )
    noisy = {
        row.attack: " ".join(row.notes) for row in run.rows if row.certificate and row.certificate.epsilon is not None
    }
    assert "the lower segment itself" in noisy["white_box:epochs=1"]
    assert "the lower segment itself" not in noisy["mean_image"]


def test_independent_canaries_of_a_run_without_a_claim_need_no_delta() -> None:
    """Without a δ the bound is one on ε at δ = 0, as that of dependent canaries is."""
    coins = np.arange(200) % 2 == 0
    scores = np.where(coins, 1.0, -1.0)
    free = Certificate(kind="nothing", statement="")
    found = audit_one_run(scores, coins, free, independent=True)
    assert found.delta == 0
    assert audit_one_run(scores, coins, free).epsilon < found.epsilon < inf
    with pytest.raises(ValueError, match="delta"):
        epsilon_independent([1.0] * 9, [-1.0] * 9, threshold=0, confidence=0.95, delta=0, family=GAUSSIAN)


SLOW = ("sampled", "mixed by public ratios", "mixed by secret ratios")
"""Mechanisms of which one curve takes up to a tenth of a second."""


def audits(name: str, seeds: int, canaries: int = 400, **how: Any) -> list[EmpiricalBound]:
    """Audits of a true claim, by the family that an audit takes for it."""
    one = known(name)
    certificate = one.certificate
    family, found = claimed_family(certificate, one.mechanism), []
    for seed in range(seeds):
        rng = np.random.default_rng([seed, canaries])
        coins = rng.random(canaries) < 0.5
        scores = one.draw(rng, coins) + 1e-9 * rng.random(canaries)  # the order of ties is drawn
        found.append(audit_one_run(scores, coins, certificate, family=family, **how))
    return found


def stands(bounds: list[EmpiricalBound], truth: float) -> None:
    """Neither bounds above the truth nor refutations are more frequent than one in twenty, by tests of size 1 %."""
    above = sum(bound.epsilon > truth * (1 + 1e-9) for bound in bounds)
    refuted = sum(bound.refuted for bound in bounds)
    assert binom.sf(max(above, refuted) - 1, len(bounds), 0.05) > 0.01


@pytest.fixture
def remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The accountant's curves, each computed once: the searches of all audits ask for the same strengths first."""
    for question in ("at", "epsilon", "lower"):
        monkeypatch.setattr(ScaledNoise, question, cache(getattr(ScaledNoise, question)))


@pytest.mark.slow(but=6)
@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize("independent", [True, False])
@pytest.mark.parametrize("name", MECHANISMS)
def test_true_claims_stand_and_no_more_is_shown_than_is_true(
    name: str, independent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScaledNoise, "precision", 0.1)
    how: dict[str, Any] = {"independent": True} if independent else {"guesses": (10, 10)}
    stands(audits(name, 2 if name in SLOW else 20, **how), known(name).epsilon)


@pytest.mark.slow
@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize("name", MECHANISMS)
def test_many_audits_of_true_claims_stand(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScaledNoise, "precision", 0.03)
    stands(audits(name, 20 if name in SLOW else 400, independent=True), known(name).epsilon)
    stands(audits(name, 2 if name in SLOW else 20, canaries=200), known(name).epsilon)  # with planned guesses


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_family_is_that_of_the_claim(name: str) -> None:
    """A Gaussian where one is claimed; the claimed law's own curve, or none, elsewhere."""
    family = claimed_family(known(name).certificate, known(name).mechanism)
    if name == "gaussian":
        assert family == GAUSSIAN
    elif name in ("randomized response", "tells all now and then"):
        assert family is None
    else:
        assert isinstance(family, ScaledNoise)
        assert family.mechanism == known(name).mechanism


def as_function(name: str) -> Any:
    """A mechanism as `against_canaries` takes it: a record is in where it is positive."""

    def release(records: Tensor, generator: Generator) -> Tensor:
        rng = np.random.default_rng(int(torch.randint(2**31, (1,), generator=generator)))
        return torch.from_numpy(known(name).draw(rng, (records[:, 0] > 0).numpy())).unsqueeze(1)

    return release


@pytest.mark.parametrize("name", MECHANISMS)
def test_canaries_of_a_function_show_no_more_than_is_true(name: str) -> None:
    pair = (torch.ones(1), -torch.ones(1))
    bounds = [
        against_canaries(as_function(name), known(name).certificate, neighbors=pair, canaries=500, seed=seed)
        for seed in range(20)
    ]
    stands(bounds, known(name).epsilon)
    assert {bound.assumed for bound in bounds} == {"a Gaussian curve" if name == "gaussian" else ""}


def test_what_a_claim_charges_too_much_for_is_no_bound_on_what_is_lost() -> None:
    """Only the sign of a noisy number is sent, and the claim is that of the number: it has no lower bound.

    The claimed curve is refuted if the noise is less. What the sign loses is not a Gaussian's ε.
    """
    number = known("gaussian").certificate
    sign = replace(number, lower=None)
    for sigma, refuted in ((1.0, False), (0.5, True)):
        rng = np.random.default_rng(1)
        coins = rng.random(2_000) < 0.5
        scores = np.sign(coins - 0.5 + sigma * rng.normal(size=coins.size))
        told = norm.cdf(0.5 / sigma)
        found = audit_one_run(scores, coins, sign, family=claimed_family(sign, None), independent=True)
        assert found.refuted == refuted
        assert found.epsilon < log(told / (1 - told))
        assert (found.assumed, found.mu) == ("", None)
        assert f"ε >= {rounded_down(found.epsilon, 4)} holds for any mechanism" in found.statement
        same = audit_one_run(scores, coins, number, family=GAUSSIAN, independent=True)
        assert (same.refuted, same.held, same.ceiling) == (refuted, found.held, found.ceiling)
        assert "(assumed: a Gaussian curve)" in same.statement


def test_a_claimed_curve_says_so_where_another_mechanism_was_audited() -> None:
    """Laplace noise of ε 2 under a Gaussian's claim of ε 2: the claimed curve is wrong, and the ε found assumes it."""
    claim = replace(known("gaussian").certificate, epsilon=2.0, lower=2.0)
    rng = np.random.default_rng(0)
    coins = rng.random(1_000) < 0.5
    found = audit_one_run(known("laplace").draw(rng, coins), coins, claim, family=GAUSSIAN, independent=True)
    assert found.refuted
    assert found.assumed
    assert "(assumed: a Gaussian curve) refutes the claimed ε = 2 at δ = 1e-05 with its whole curve" in found.statement
