"""The proven region against quadrature, the Neyman-Pearson test, riskcal's values, and its own laws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import laplace, norm

from privkit.accountants import answer
from privkit.accountants.auditing.families import GAUSSIAN
from privkit.accountants.calibration import calibrate_advantage, calibrate_rates
from privkit.accountants.region import Region, region
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import Noise, Poisson
from privkit.accountants.spec.sensitivity import Known
from privkit.shared.limits import PRIORS, Limits
from privkit.shared.rounding import rounded_up

GAUSS = SplitMechanism(
    smashed=Known(value=1, relation="replace_one", norm="l2"), noise=Noise(smashed=2.0), lower_model="frozen", rounds=3
)
LAPLACE = replace(
    GAUSS, smashed=Known(value=1, relation="replace_one", norm="l1"), noise=Noise(law="laplace", smashed=0.5), rounds=1
)
SAMPLED = replace(
    GAUSS,
    smashed=Known(value=1, relation="add_or_remove_one", norm="l2"),
    participation=Poisson(rate=0.1),
    relation="add_or_remove_one",
    noise=Noise(smashed=1.0),
    rounds=50,
)
RATES = [1e-3, 0.01, 0.1, 0.5, 0.9]


def test_a_gaussian_region_is_the_neyman_pearson_tests() -> None:
    found, mu = region(GAUSS), 3**0.5 / 2
    assert found.true_positives(RATES) == pytest.approx(norm.cdf(norm.ppf(RATES) + mu), rel=1e-4)
    assert found.false_positives(RATES) == pytest.approx(norm.cdf(norm.ppf(RATES) - mu), rel=1e-4)
    assert found.advantage == pytest.approx(2 * norm.cdf(mu / 2) - 1, rel=1e-9)
    exact = GAUSSIAN.at(mu)
    assert found.true_positives(RATES) == pytest.approx(exact.true_positives(RATES), rel=1e-4)


def test_a_laplace_region_by_quadrature() -> None:
    """Thresholds on one coordinate are the best tests; their rates by integrating the densities."""
    found = region(LAPLACE)
    for threshold in (-0.5, 0.0, 0.4, 0.9, 1.5):
        false, true = (
            quad(laplace.pdf, threshold, np.inf, args=(center, 0.5), points=None)[0] for center in (0.0, 1.0)
        )
        assert found.true_positives(false) == pytest.approx(true, rel=1e-4)
    assert found.advantage == pytest.approx(1 - np.exp(-1.0), rel=1e-9)


@pytest.mark.parametrize("mechanism", [GAUSS, LAPLACE, SAMPLED], ids=["gaussian", "laplace", "sampled"])
def test_both_readings_are_inverse_and_no_better_than_delta(mechanism: SplitMechanism) -> None:
    found = region(mechanism)
    rates = np.linspace(0.01, 0.99, 25)
    assert found.true_positives(found.false_positives(rates)) == pytest.approx(rates, abs=1e-9)
    assert np.all(found.true_positives(rates) - rates <= found.advantage + 1e-12)
    assert found.advantage == pytest.approx(answer.delta(mechanism, 0.0).delta, rel=1e-6)
    assert np.all(np.diff(found.true_positives(rates)) >= 0)
    assert np.all(answer.trade_off(mechanism, rates) == 1 - found.true_positives(rates))


def test_limits_hold_the_headline_rates_exactly() -> None:
    found = region(GAUSS)
    limits = found.limits()
    assert [limits.at(rate) for rate in PRIORS] == found.true_positives(list(PRIORS)).tolist()
    assert limits.at(0.0123) >= float(found.true_positives(0.0123))
    assert f"advantage above {rounded_up(found.advantage, 3)}" in limits.sentence
    narrow = Limits(advantage=0.12301, false_positives=(0.0, 1.0), true_positives=(0.05011, 0.05011))
    assert "above 0.124, or a true positive rate above 0.0502" in narrow.sentence


def test_nothing_proven_rules_nothing_out_and_epsilon_0_all() -> None:
    everything = Region(epsilons=np.zeros(1), deltas=np.ones(1))
    nothing = Region(epsilons=np.zeros(1), deltas=np.zeros(1))
    assert everything.true_positives([0.0, 0.5]).tolist() == [1.0, 1.0]
    assert nothing.true_positives([0.0, 0.5]).tolist() == [0.0, 0.5]
    assert (everything.advantage, nothing.advantage) == (1.0, 0.0)


@pytest.mark.parametrize(("advantage", "sigma"), [(0.1, 3.97895), (0.5, 0.741301)])
def test_noise_for_an_advantage(advantage: float, sigma: float) -> None:
    """σ = 1/(2Φ⁻¹((1 + advantage)/2)) for one Gaussian release."""
    found = calibrate_advantage(replace(GAUSS, rounds=1), "sigma", advantage=advantage)
    assert found.value == pytest.approx(sigma, rel=1e-5)
    assert found.value == pytest.approx(1 / (2 * norm.ppf((1 + advantage) / 2)), rel=1e-6)
    reached = found.certificate.delta
    assert reached is not None
    assert reached == pytest.approx(advantage, rel=1e-6)
    assert reached <= advantage


def test_noise_for_a_true_positive_rate() -> None:
    found = calibrate_rates(replace(GAUSS, rounds=1), "sigma", true_positives=0.05, false_positives=0.01)
    assert found.value == pytest.approx(1 / (norm.ppf(0.05) - norm.ppf(0.01)), rel=1e-4)
    assert float(region(found.mechanism).true_positives(0.01)) <= 0.05


def test_rounds_for_an_advantage() -> None:
    found = calibrate_advantage(replace(GAUSS, noise=Noise(smashed=20.0)), "rounds", advantage=0.3)
    assert found.value == 237
    beyond = answer.delta(replace(found.mechanism, rounds=238), 0.0).delta
    assert beyond is not None
    assert beyond > 0.3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"true_positives": 0.01}, "less than guessing gives"),
        ({"true_positives": 1.0}, "true positive rate must"),
        ({"false_positives": 0.0}, "false positive rate must"),
    ],
)
def test_targets_that_nothing_can_reach_are_refused(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"true_positives": 0.05, "false_positives": 0.01} | change
    with pytest.raises(ValueError, match=message):
        calibrate_rates(GAUSS, "sigma", **given)
    with pytest.raises(ValueError, match="advantage must"):
        calibrate_advantage(GAUSS, "sigma", advantage=1.0)


@pytest.mark.slow
@pytest.mark.needs("oracles")
def test_sampled_rounds_agree_with_riskcal() -> None:
    """Its profile is dp_accounting's, composed on a grid of its own."""
    from riskcal.calibration import dpsgd

    sigma, rate, rounds = 2.0, 0.02, 200
    mechanism = replace(SAMPLED, participation=Poisson(rate=rate), noise=Noise(smashed=sigma), rounds=rounds)
    found, given = region(mechanism), {"noise_multiplier": sigma, "sample_rate": rate, "num_steps": rounds}
    assert found.advantage == pytest.approx(dpsgd.get_advantage_for_dpsgd(**given), rel=2e-3)
    misses = dpsgd.get_beta_for_dpsgd(alpha=np.array(RATES), **given)
    assert found.true_positives(RATES) == pytest.approx(1 - misses, rel=2e-3)
    wanted = found.advantage * 0.9
    noise = dpsgd.find_noise_multiplier_for_advantage(wanted, sample_rate=rate, num_steps=rounds)
    ours = calibrate_advantage(mechanism, "sigma", advantage=wanted).value
    assert ours == pytest.approx(noise, rel=2e-2)


@pytest.mark.parametrize(
    ("sigma", "rate", "rounds", "advantage", "rates"),
    [
        (1.0, 0.1, 50, 0.317869, [0.0181714, 0.0832205, 0.341013, 0.800587, 0.986671]),
        (2.0, 0.02, 200, 0.0597776, [0.00168882, 0.0150223, 0.129669, 0.559686, 0.924445]),
    ],
)
def test_sampled_rounds_agree_with_values_of_riskcal(
    sigma: float, rate: float, rounds: int, advantage: float, rates: list[float]
) -> None:
    """Advantage, and true positive rates at false ones of .001, .01, .1, .5, .9, by riskcal 1.5.1."""
    found = region(replace(SAMPLED, participation=Poisson(rate=rate), noise=Noise(smashed=sigma), rounds=rounds))
    assert found.advantage == pytest.approx(advantage, rel=1e-3)
    assert found.true_positives(RATES) == pytest.approx(rates, rel=1e-3)
