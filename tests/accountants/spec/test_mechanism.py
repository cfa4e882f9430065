"""What can be specified, and what is refused with its reason."""

from math import nan
from typing import Any

import numpy as np
import pytest

from privkit.accountants import answer
from privkit.accountants.spec import records
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletCounts, DirichletRatio, FixedCounts, FixedRatio, RealizedRatios
from privkit.accountants.spec.parts import CutMix, Mixup, Noise, Poisson, PrivateUpdates, WithoutReplacement
from privkit.accountants.spec.sensitivity import Ball, BoxLabels, Clamp, Known, OneHot, PatchBall
from tests.accountants.one_release import one_release

EQUAL = FixedRatio.equal(2)


def test_record_level_composition_over_raw_training_is_refused_with_three_ways_out() -> None:
    for lower in ("trained", "averaged"):
        with pytest.raises(ValueError, match="its weights carry a record into later releases") as caught:
            one_release(lower_model=lower, rounds=10)
        said = str(caught.value)
        assert "lower_model='frozen'" in said
        assert "unit='client'" in said
        assert "PrivateUpdates" in said
    updates = PrivateUpdates(noise_multiplier=1.0, chosen=1, records=10, steps=5)
    for sound in ({}, {"unit": "client", "lower_model": "trained"}, {"lower_model": updates}):
        assert one_release(**sound, rounds=10).rounds == 10


LABELS = {"labels": OneHot(), "noise": Noise(smashed=1.0, labels=1.0)}
LAPLACE = Noise(law="laplace", smashed=1.0)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"unit": "client", "lower_model": "averaged"}, "averaging sends out lower models"),
    ({"lower_model": "raw"}, "lower_model must be one of frozen, trained, averaged"),
    ({"lower_model": None}, "lower_model must be one of"),
    ({"labels": OneHot()}, "labels and their noise go together"),
    ({"noise": Noise(smashed=1.0, labels=1.0)}, "labels and their noise go together"),
    ({"releases": 2}, "releases must be 1 with a record"),
    ({"releases": True, "unit": "client"}, "releases must be a whole number"),
    ({"rounds": 0}, "rounds must be a whole number >= 1"),
    ({"rounds": True}, "rounds must be a whole number"),
    ({"rounds": 2.0}, "rounds must be a whole number"),
    ({"rounds": nan}, "rounds must be a whole number"),
    ({"relation": "add_remove"}, "relation must be one of"),
    ({"unit": "user"}, "unit must be one of"),
    ({"participation": Poisson(rate=0.1)}, "poisson sampling needs relation='add_or_remove_one'"),
    (
        {"participation": Poisson(rate=0.1), "relation": "add_or_remove_one", "mixing": Mixup(ratio=EQUAL)},
        "no fixed group to mix",
    ),
    ({"relation": "add_or_remove_one", "mixing": Mixup(ratio=EQUAL)}, "removing a client changes the others' shares"),
    (
        {"relation": "add_or_remove_one", "participation": WithoutReplacement(chosen=1, clients=2)},
        "fixes the number of clients",
    ),
    (
        {"mixing": Mixup(ratio=EQUAL), "participation": WithoutReplacement(chosen=3, clients=9)},
        "the 3 sampled clients form one mixing group, but the ratios are for 2",
    ),
    (
        {
            "mixing": Mixup(ratio=RealizedRatios(ratios=((0.5, 0.5),))),
            "participation": WithoutReplacement(chosen=2, clients=9),
        },
        "realized ratios show who took part",
    ),
    ({"mixing": Mixup(ratio=RealizedRatios(ratios=((0.5, 0.5),))), "rounds": 2}, "hold 1 rounds, but rounds=2"),
    ({"noise": LAPLACE, "mixing": Mixup(ratio=DirichletRatio(concentration=1, clients=2))}, "with fixed ratios"),
    (
        {"noise": LAPLACE, "relation": "add_or_remove_one", "participation": Poisson(rate=0.1)},
        "Gaussian noise with Poisson",
    ),
    (
        {"noise": Noise(law="laplace", smashed=1.0, site="client"), "mixing": Mixup(ratio=EQUAL)},
        "a sum of Laplace variables is not Laplace",
    ),
]


@pytest.mark.parametrize(("changes", "match"), REFUSED)
def test_refuses_what_cannot_be_accounted_for(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        one_release(**changes)


@pytest.mark.parametrize("bad", [0, -1, nan, float("inf"), True, "1", None])
def test_refuses_what_is_no_noise(bad: Any) -> None:
    with pytest.raises(ValueError, match="sigma must be a finite number > 0"):
        Noise(smashed=bad)
    if bad is not None:
        with pytest.raises(ValueError, match="sigma_labels must be a finite number > 0"):
            Noise(smashed=1.0, labels=bad)


def test_a_variance_is_refused_with_advice() -> None:
    with pytest.raises(ValueError, match=r"standard deviation, not as variance=0\.25"):
        Noise(smashed=0.5, variance=0.25)
    assert "variance" not in records.to_json(Noise(smashed=0.5))


BAD_PARTS: list[tuple[Any, str]] = [
    (lambda: WithoutReplacement(chosen=3, clients=2), "chosen must be a whole number >= 1 and <= 2"),
    (lambda: WithoutReplacement(chosen=0, clients=2), "chosen must be"),
    (lambda: WithoutReplacement(chosen=True, clients=2), "chosen must be"),
    (lambda: WithoutReplacement(chosen=1, clients=2.5), "clients must be"),  # type: ignore[arg-type]
    (lambda: Poisson(rate=0), "rate must be a finite number >= 1e-300 and <= 1"),
    (lambda: Poisson(rate=1e-308), "rate must be a finite number >= 1e-300 and <= 1"),
    (lambda: Poisson(rate=1.1), "rate must be"),
    (lambda: Poisson(rate=nan), "rate must be"),
    (lambda: Poisson(rate=True), "rate must be"),
    (lambda: CutMix(ratio=EQUAL, patches=0), "patches must be"),
    (lambda: FixedRatio(ratios=()), "at least one"),
    (lambda: FixedRatio(ratios=(0.5, 0.6)), "must sum to 1, got 1.1"),
    (lambda: FixedRatio(ratios=(1.5, -0.5)), "each of ratios must be"),
    (lambda: FixedRatio(ratios=(nan, 1.0)), "each of ratios must be"),
    (lambda: FixedRatio(ratios=(True, 0.0)), "each of ratios must be"),
    (lambda: FixedCounts(counts=(0, 0)), "must sum to the number of patches"),
    (lambda: FixedCounts(counts=(3, -1)), "each of counts must be"),
    (lambda: FixedCounts(counts=(True, 1)), "each of counts must be"),
    (
        lambda: one_release(mixing=CutMix(ratio=FixedCounts(counts=(3, 2)), patches=6)).shift(),
        "sum to the 6 patches, got 5",
    ),
    (lambda: Mixup(ratio=DirichletCounts(concentration=1, clients=2)), "ratio must be one of"),  # type: ignore[arg-type]
    (lambda: Mixup(ratio=FixedCounts(counts=(1, 1))), "ratio must be one of"),  # type: ignore[arg-type]
    (lambda: RealizedRatios(ratios=()), "non-empty table"),
    (lambda: RealizedRatios(ratios=((0.5, 0.5), (1.0,))), "non-empty table"),
    (lambda: RealizedRatios(ratios=((0.5, 0.4),)), "must sum to 1"),
    (lambda: DirichletRatio(concentration=0, clients=2), "concentration must be"),
    (lambda: DirichletRatio(concentration=1, clients=0), "clients must be"),
    (lambda: DirichletCounts(concentration=nan, clients=2), "concentration must be"),
    (lambda: PrivateUpdates(noise_multiplier=0, chosen=1, records=2, steps=1), "noise_multiplier must be"),
    (lambda: PrivateUpdates(noise_multiplier=1, chosen=3, records=2, steps=1), "chosen must be"),
    (lambda: Clamp(low=1, high=1, dimensions=2), "high must be a finite number > 1"),
    (lambda: Clamp(low=nan, high=1, dimensions=2), "low must be"),
    (lambda: Clamp(low=0, high=1, dimensions=0), "dimensions must be"),
    (lambda: Ball(radius=-1), "radius must be"),
    (lambda: Ball(radius=1, nonnegative="no"), "nonnegative must be true or false, got 'no'"),  # type: ignore[arg-type]
    (lambda: PatchBall(radius=1, patches=0), "patches must be"),
    (lambda: BoxLabels(classes=0), "classes must be"),
    (lambda: Known(value=0, relation="replace_one", norm="l2"), "sensitivity must be"),
    (lambda: Known(value=1, relation="replace", norm="l2"), "relation must be"),  # type: ignore[arg-type]
    (lambda: Known(value=1, relation="replace_one", norm="linf"), "norm must be"),  # type: ignore[arg-type]
    (lambda: Ball(radius=1).sensitivity("replace_one", "l1"), "bounds no L1 distance"),
]


@pytest.mark.parametrize(("call", "match"), BAD_PARTS)
def test_refuses_bad_parts(call: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        call()


@pytest.mark.parametrize("bad", [{}, {"kind": "clmap"}, {"kind": "clamp", "low": 0}, {"kind": "clamp", "hi": 1}, 3])
def test_json_of_something_else_is_refused_or_left_alone(bad: Any) -> None:
    if isinstance(bad, dict):
        with pytest.raises(ValueError, match=r"kind|field|missing"):
            records.from_json(bad)
    else:
        assert records.from_json(bad) == bad


@pytest.mark.parametrize("changes", [{"unit": "client"}, {"relation": "add_or_remove_one"}])
def test_noisy_updates_protect_the_replacement_of_a_record_only(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="replacement of one record"):
        SplitMechanism(
            **{
                "smashed": Clamp(low=0, high=1, dimensions=4),
                "noise": Noise(smashed=2),
                "lower_model": PrivateUpdates(noise_multiplier=1, steps=5),
                **changes,
            }
        )


def test_float32_is_made_a_float_at_the_door() -> None:
    low, high = np.zeros(1, np.float32)[0].item(), np.ones(1, np.float32)[0]
    assert type(Noise(smashed=high).smashed) is float
    assert type(Clamp(low=low, high=high, dimensions=4).high) is float


def test_updates_are_charged_beside_laplace_noise() -> None:
    mechanism = SplitMechanism(
        smashed=Known(value=1, relation="replace_one", norm="l1"),
        noise=Noise(law="laplace", smashed=1.0),
        lower_model=PrivateUpdates(noise_multiplier=0.1, steps=100),
    )
    assert answer.delta(mechanism, 1.0).kind == "nothing"
    assert answer.epsilon(mechanism, 1e-5).epsilon > 1000


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"noise": {"smashed": 1e-200}}, "sigma is too small"),
        ({"noise": {"smashed": 10**400}}, "finite"),
        ({"rounds": 10**30}, "rounds"),
        ({"lower_model": {"noise_multiplier": 1e-200, "steps": 1}}, "noise_multiplier"),
    ],
)
def test_numbers_beyond_any_use_are_refused_with_a_sentence(changes: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"smashed": Clamp(low=0, high=1, dimensions=4), "noise": {"smashed": 1.0}, **changes}

    def build() -> SplitMechanism:
        updates = given.get("lower_model")
        lower = PrivateUpdates(**updates) if updates else "frozen"
        return SplitMechanism(**{**given, "noise": Noise(**given["noise"]), "lower_model": lower})

    with pytest.raises(ValueError, match=said):
        build()


@pytest.mark.parametrize(("sigma", "concentration"), [(1e-9, 2.0), (1.0, 1e-9)])
def test_ratios_too_uneven_to_integrate_are_refused(sigma: float, concentration: float) -> None:
    mechanism = SplitMechanism(
        smashed=Clamp(low=0, high=1, dimensions=4),
        noise=Noise(smashed=sigma),
        lower_model="frozen",
        mixing=Mixup(ratio=DirichletRatio(concentration=concentration, clients=2)),
    )
    with pytest.raises(ValueError, match="too uneven to integrate"):
        answer.epsilon(mechanism, 1e-5)


def test_a_delta_too_small_for_a_float_is_not_zero() -> None:
    mechanism = SplitMechanism(
        smashed=Clamp(low=0, high=1, dimensions=1),
        noise=Noise(smashed=1.0),
        lower_model="frozen",
        participation=WithoutReplacement(chosen=2, clients=10),
    )
    certificate = answer.delta(mechanism, 60.0)
    assert certificate.delta is not None
    assert certificate.delta > 0


def test_updates_are_charged_where_all_of_n_clients_are_drawn() -> None:
    given: dict[str, Any] = {
        "smashed": Clamp(low=0, high=1, dimensions=1),
        "noise": Noise(smashed=1.0),
        "lower_model": PrivateUpdates(noise_multiplier=0.5, steps=10),
    }
    every = answer.epsilon(SplitMechanism(**given), 1e-5)
    drawn = answer.epsilon(SplitMechanism(**given, participation=WithoutReplacement(chosen=10, clients=10)), 1e-5)
    assert drawn.epsilon == every.epsilon
