"""A guarantee in the terms of NIST SP 800-226: nothing but the specification and its certificate speaks."""

from dataclasses import replace
from typing import Any

import pytest

from privkit.accountants import answer
from privkit.accountants.answer import no_protection
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletRatio, FixedCounts
from privkit.accountants.spec.parts import (
    CutMix,
    Mixup,
    Noise,
    NoMixing,
    Poisson,
    PrivateUpdates,
    WithoutReplacement,
)
from privkit.accountants.spec.secrets import HiddenMask, RandomAllocation
from privkit.accountants.spec.sensitivity import Categories, Clamp, OneHot
from privkit.accountants.terms import NOT_DERIVED, terms
from privkit.accountants.wording import assumptions


def one(**changes: Any) -> SplitMechanism:
    given: dict[str, Any] = {
        "smashed": Clamp(low=0, high=1, dimensions=4),
        "noise": Noise(smashed=4),
        "lower_model": "frozen",
    }
    return SplitMechanism(**(given | changes))


MECHANISMS = {
    "plain": one(rounds=3),
    "drawn": one(participation=WithoutReplacement(chosen=5, clients=100), rounds=20),
    "coins": one(participation=Poisson(rate=0.1), relation="add_or_remove_one", rounds=20),
    "mixed": one(
        mixing=CutMix(ratio=FixedCounts(counts=(1, 3)), patches=4), labels=OneHot(), noise=Noise(smashed=1, labels=2)
    ),
    "random": one(
        mixing=Mixup(ratio=DirichletRatio(concentration=2, clients=2)), noise=Noise(smashed=4, site="client")
    ),
    "client": one(unit="client", lower_model="trained", releases=8, rounds=2),
    "updates": one(lower_model=PrivateUpdates(noise_multiplier=4, steps=5)),
    "laplace": one(noise=Noise(law="laplace", smashed=9.0), rounds=4),
    "answers": one(smashed=Categories(classes=3), noise=Noise(law="randomized_response", smashed=0.5)),
    "allocated": one(
        relation="add_or_remove_one", participation=RandomAllocation(participations=1, epoch_rounds=9), rounds=9
    ),
    "masked": one(mixing=HiddenMask(kept=1, patches=4), relation="add_or_remove_one"),
}


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_assumption_stands_in_one_term(name: str) -> None:
    mechanism = MECHANISMS[name]
    certificate = answer.epsilon(mechanism, 1e-5)
    said = terms(mechanism, certificate)
    assert all(said.values())
    for sentence in assumptions(mechanism):
        assert sum(sentence in text for text in said.values()) == 1, sentence
    assert said["unit of privacy"].startswith(f"one {mechanism.unit}")
    assert said["neighbors"].startswith(mechanism.relation.replace("_one", "-one").replace("_", "-"))
    assert certificate.method in said["composition"]
    assert f"{mechanism.rounds:,} round" in said["composition"]
    assert NOT_DERIVED not in said.values()


def test_numbers_are_rounded_to_the_safe_side() -> None:
    mechanism = one(noise=Noise(smashed=3.1), rounds=7)
    certificate = answer.epsilon(mechanism, 1.2345678e-5)
    said = terms(mechanism, certificate)
    parts = said["privacy parameters"].replace(";", ",").split(", ")
    assert certificate.epsilon <= float(parts[0].removeprefix("ε = ")) < certificate.epsilon * (1 + 1e-5)
    assert float(parts[1].removeprefix("δ = ")) >= certificate.delta  # type: ignore[operator]
    assert float(parts[2].rpartition("ε = ")[2]) <= certificate.lower  # type: ignore[operator]
    rho, mu = certificate.quantities["zcdp_rho"], certificate.quantities["gdp_mu"]
    assert rho <= float(said["zero-concentrated DP"].removeprefix("ρ = ")) < rho * (1 + 1e-5)
    assert mu <= float(said["Gaussian DP"].removeprefix("μ = ").removesuffix(" at every δ")) < mu * (1 + 1e-5)


@pytest.mark.parametrize("name", ["drawn", "coins", "allocated"])
def test_a_secret_sample_has_a_smaller_mu_above_some_delta(name: str) -> None:
    mechanism = MECHANISMS[name]
    certificate = answer.epsilon(mechanism, 1e-5)
    fitted, plain = terms(mechanism, certificate)["Gaussian DP"].split("; ")
    mu, delta = (float(part) for part in fitted.removeprefix("μ = ").split(" at δ ≥ "))
    assert mu < 0.9 * certificate.quantities["gdp_mu"]
    assert 0 < delta < 1e-6
    assert terms(mechanism, certificate, tight=False)["Gaussian DP"] == plain


def test_the_trust_model_follows_who_adds_the_noise() -> None:
    def trusted(name: str) -> str:
        return terms(MECHANISMS[name], answer.epsilon(MECHANISMS[name], 1e-5, tight=False), tight=False)["trust model"]

    assert isinstance(MECHANISMS["plain"].mixing, NoMixing)
    assert trusted("plain").startswith("local")
    assert trusted("mixed").startswith("a trusted mixer")
    assert trusted("random").startswith("distributed")
    assert trusted("masked").startswith("local")


def test_nothing_proven_is_said() -> None:
    said = terms(MECHANISMS["plain"], no_protection())
    assert said["privacy parameters"].startswith("nothing is proven")
    assert said["Gaussian DP"] == said["zero-concentrated DP"] == NOT_DERIVED
    loud = replace(MECHANISMS["plain"], noise=Noise(smashed=1e-99))
    assert terms(loud, answer.epsilon(loud, 1e-5, tight=False))["privacy parameters"]
