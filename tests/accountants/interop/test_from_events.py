"""Events of dp_accounting as mechanisms: there and back, and against dp_accounting's own accountants."""

from dataclasses import replace
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.pld import PLDAccountant

from privkit.accountants import answer
from privkit.accountants.interop import from_dp_event, to_dp_event
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import FixedCounts, FixedRatio
from privkit.accountants.spec.parts import CutMix, Mixup, Noise, Poisson, PrivateUpdates, WithoutReplacement
from privkit.accountants.spec.secrets import ShuffledEpochs
from privkit.accountants.spec.sensitivity import Ball, Clamp, OneHot
from tests.accountants.one_release import noised

REPLACE, ADD = dp_accounting.NeighboringRelation.REPLACE_ONE, dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
SPECIAL = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
G = GaussianDpEvent
MECHANISMS = {
    "rounds": noised(0.7, rounds=10),
    "mixup": noised(0.5, mixing=Mixup(ratio=FixedRatio(ratios=(0.7, 0.3))), rounds=5),
    "cutmix": noised(0.5, mixing=CutMix(ratio=FixedCounts(counts=(20, 44)), patches=64)),
    "added": noised(3.0, relation="add_or_remove_one", rounds=4),
    "client": noised(4.0, unit="client", releases=9, rounds=2),
    "labels": SplitMechanism(
        smashed=Ball(radius=1), labels=OneHot(), noise=Noise(smashed=4, labels=3), lower_model="frozen", rounds=7
    ),
    "drawn": noised(1.3, participation=WithoutReplacement(chosen=2, clients=10), rounds=30),
    "poisson": noised(1.1, relation="add_or_remove_one", participation=Poisson(rate=0.02), rounds=200),
    "updates": noised(2.0, rounds=3, lower_model=PrivateUpdates(noise_multiplier=16.0, steps=200)),
    "secret updates": noised(
        2.0, rounds=3, lower_model=PrivateUpdates(noise_multiplier=3.0, steps=20, chosen=50, records=500)
    ),
    "laplace": SplitMechanism(
        smashed=Clamp(low=-1, high=2, dimensions=1),
        noise=Noise(law="laplace", smashed=1.7),
        lower_model="frozen",
        rounds=6,
    ),
}


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("tight", [False, True])
def test_there_and_back_costs_the_same(name: str, tight: bool) -> None:
    mechanism = MECHANISMS[name]
    found = to_dp_event(mechanism)
    back = from_dp_event(found.event, found.relation, unit=mechanism.unit)
    assert back.relation == ("replace_one" if found.relation is REPLACE else "add_or_remove_one")
    assert back.unit == mechanism.unit
    for delta in (1e-3, 1e-6):
        ours, theirs = (answer.epsilon(one, delta, tight=tight).epsilon for one in (mechanism, back))
        assert theirs == pytest.approx(ours, rel=1e-9)


COSTLIER = {
    "seats": noised(
        1.0,
        mixing=Mixup(ratio=FixedRatio(ratios=(0.9, 0.1))),
        participation=WithoutReplacement(chosen=2, clients=10),
        rounds=5,
    ),
    "order": noised(2.0, participation=ShuffledEpochs(epoch_rounds=1000, records=1000), rounds=5000),
}


@pytest.mark.parametrize("name", COSTLIER)
def test_secret_seats_and_orders_come_back_dearer(name: str) -> None:
    event = to_dp_event(COSTLIER[name])
    back = from_dp_event(event.event, event.relation)
    assert answer.epsilon(back, 1e-5).epsilon > 1.05 * answer.epsilon(COSTLIER[name], 1e-5).epsilon


def test_many_drawn_specifications_there_and_back() -> None:
    random = np.random.default_rng(0)
    for _ in range(60):
        sigma, rounds = float(10 ** random.uniform(-0.5, 1.5)), int(10 ** random.uniform(0, 3))
        clients = int(random.integers(2, 500))
        chosen = int(random.integers(1, clients))
        kind = int(random.integers(3))
        mechanism = [
            noised(sigma, rounds=rounds),
            noised(sigma, rounds=rounds, participation=WithoutReplacement(chosen=chosen, clients=clients)),
            noised(sigma, rounds=rounds, participation=Poisson(rate=chosen / clients), relation="add_or_remove_one"),
        ][kind]
        found = to_dp_event(mechanism)
        back = from_dp_event(found.event, found.relation)
        again = to_dp_event(back)
        assert again.relation is (REPLACE if found.relation is REPLACE else ADD)
        ours, theirs = (answer.epsilon(one, 1e-5, tight=False).epsilon for one in (mechanism, back))
        assert theirs == pytest.approx(ours, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("event", "relation"),
    [
        (ComposedDpEvent([G(3.0), SelfComposedDpEvent(G(5.0), 7), NoOpDpEvent()]), ADD),
        (SelfComposedDpEvent(ComposedDpEvent([G(8.0), SelfComposedDpEvent(G(8.0), 2)]), 5), SPECIAL),
        (SelfComposedDpEvent(SelfComposedDpEvent(PoissonSampledDpEvent(0.05, G(1.2)), 20), 5), ADD),
        (SelfComposedDpEvent(LaplaceDpEvent(4.0), 9), ADD),
    ],
    ids=["different noise", "nested", "poisson", "laplace"],
)
def test_epsilon_of_an_event_is_that_of_its_own_accountant(event: Any, relation: Any) -> None:
    theirs = PLDAccountant(relation, 1e-4).compose(event).get_epsilon(1e-5)
    assert answer.epsilon(from_dp_event(event, relation), 1e-5).epsilon == pytest.approx(theirs, rel=3e-3)


DRAWN = SampledWithoutReplacementDpEvent(100, 5, G(2.0))


@pytest.mark.parametrize(
    ("event", "relation", "because"),
    [
        (G(1.0), REPLACE, "disagree"),
        (DRAWN, SPECIAL, "meant for REPLACE_ONE"),
        (PoissonSampledDpEvent(0.1, G(1.0)), SPECIAL, "meant for ADD_OR_REMOVE_ONE"),
        (PoissonSampledDpEvent(0.1, SelfComposedDpEvent(G(1.0), 3)), ADD, "no mechanism is derived"),
        (PoissonSampledDpEvent(0.1, LaplaceDpEvent(1.0)), ADD, "no mechanism is derived"),
        (dp_accounting.NonPrivateDpEvent(), ADD, "no mechanism is derived"),
        (dp_accounting.ZCDpEvent(0.5), ADD, "no mechanism is derived"),
        (NoOpDpEvent(), ADD, "no release"),
        (ComposedDpEvent([DRAWN, SampledWithoutReplacementDpEvent(100, 6, G(2.0))]), REPLACE, "2 kinds"),
        (ComposedDpEvent([LaplaceDpEvent(1.0), G(1.0)]), ADD, "ledger"),
        (ComposedDpEvent([PoissonSampledDpEvent(0.1, G(1.0)), G(1.0)]), ADD, "ledger"),
        (G(0.0), ADD, "noise_multiplier"),
    ],
)
def test_refuses_what_is_not_one_mechanism(event: Any, relation: Any, because: str) -> None:
    with pytest.raises(ValueError, match=because):
        from_dp_event(event, relation)


def test_a_special_record_is_an_absent_one() -> None:
    """A record replaced by zero moves a release by one norm; replaced by any other it may move twice as far."""
    found = answer.epsilon(from_dp_event(SelfComposedDpEvent(G(1.0), 10), SPECIAL), 1e-5)
    assert "under add-or-remove-one" in found.statement
    any_other = PLDAccountant(REPLACE, 1e-4).compose(SelfComposedDpEvent(G(1.0), 10)).get_epsilon(1e-5)
    assert any_other > 2 * found.epsilon


def test_a_unit_is_what_the_caller_says() -> None:
    assert from_dp_event(G(1.0), ADD, unit="client").unit == "client"
    assert replace(from_dp_event(G(1.0), ADD), rounds=2).rounds == 2
