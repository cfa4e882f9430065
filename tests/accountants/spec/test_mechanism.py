"""What can be specified, and what is refused with its reason; shifts of a round against their definitions."""

import json
from math import nan, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privkit.accountants import answer
from privkit.accountants.spec import records
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import (
    DirichletCounts,
    DirichletRatio,
    FixedCounts,
    FixedRatio,
    RealizedRatios,
)
from privkit.accountants.spec.parts import (
    CutMix,
    EveryRound,
    Mixup,
    Noise,
    NoMixing,
    Poisson,
    PrivateUpdates,
    WithoutReplacement,
)
from privkit.accountants.spec.sensitivity import Ball, BoxLabels, Clamp, Known, OneHot, PatchBall

EQUAL = FixedRatio.equal(2)
UNIT = Clamp(low=0, high=1, dimensions=1)


def spec(**changes: Any) -> SplitMechanism:
    given: dict[str, Any] = {"smashed": UNIT, "noise": Noise(smashed=1.0), "lower_model": "frozen"}
    return SplitMechanism(**(given | changes))


def test_record_level_composition_over_raw_training_is_refused_with_three_ways_out() -> None:
    for lower in ("trained", "averaged"):
        with pytest.raises(ValueError, match="carry this record through the weights") as caught:
            spec(lower_model=lower, rounds=10)
        said = str(caught.value)
        assert "lower_model='frozen'" in said
        assert "unit='client'" in said
        assert "PrivateUpdates" in said
    updates = PrivateUpdates(noise_multiplier=1.0, chosen=1, records=10, steps=5)
    for sound in ({}, {"unit": "client", "lower_model": "trained"}, {"lower_model": updates}):
        assert spec(**sound, rounds=10).rounds == 10


LABELS = {"labels": OneHot(), "noise": Noise(smashed=1.0, labels=1.0)}
LAPLACE = Noise(law="laplace", smashed=1.0)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"unit": "client", "lower_model": "averaged"}, "averaging lower models"),
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
    ({"participation": Poisson(rate=0.1)}, "accounted for under add_or_remove_one"),
    (
        {"participation": Poisson(rate=0.1), "relation": "add_or_remove_one", "mixing": Mixup(ratio=EQUAL)},
        "no fixed group to mix",
    ),
    ({"relation": "add_or_remove_one", "mixing": Mixup(ratio=EQUAL)}, "one client's share is another's gap"),
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
        spec(**changes)


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
    (lambda: Poisson(rate=0), "rate must be a finite number > 0 and <= 1"),
    (lambda: Poisson(rate=1.1), "rate must be"),
    (lambda: Poisson(rate=nan), "rate must be"),
    (lambda: Poisson(rate=True), "rate must be"),
    (lambda: CutMix(ratio=EQUAL, patches=0), "patches must be"),
    (lambda: FixedRatio(ratios=()), "at least one"),
    (lambda: FixedRatio(ratios=(0.5, 0.6)), "must sum to 1, got 1.1"),
    (lambda: FixedRatio(ratios=(1.5, -0.5)), "mixing ratio must be"),
    (lambda: FixedRatio(ratios=(nan, 1.0)), "mixing ratio must be"),
    (lambda: FixedRatio(ratios=(True, 0.0)), "mixing ratio must be"),
    (lambda: FixedCounts(counts=(0, 0)), "must sum to the number of patches"),
    (lambda: FixedCounts(counts=(3, -1)), "count must be"),
    (lambda: FixedCounts(counts=(True, 1)), "count must be"),
    (lambda: spec(mixing=CutMix(ratio=FixedCounts(counts=(3, 2)), patches=6)).shift(), "sum to the 6 patches, got 5"),
    (lambda: Mixup(ratio=DirichletCounts(concentration=1, clients=2)), "ratio must be one of"),
    (lambda: Mixup(ratio=FixedCounts(counts=(1, 1))), "ratio must be one of"),
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


# sensitivities by search over the clip set

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
        found = clip.sensitivity(relation, norm).value
        largest = float(np.linalg.norm(moved, order, axis=-1).max())
        assert largest <= found * (1 + 1e-12)
        assert largest == pytest.approx(found, rel=1e-9)


def test_a_patch_ball_is_the_root_of_its_patches() -> None:
    assert PatchBall(radius=1.5, patches=9).sensitivity("replace_one", "l2").value == pytest.approx(9.0)
    assert PatchBall(radius=1, patches=4, nonnegative=True).sensitivity("replace_one", "l2").value == pytest.approx(
        sqrt(8)
    )


# shifts


@given(
    data=st.data(),
    group=st.integers(2, 5),
    sigma=st.floats(0.2, 5),
    sigma_labels=st.floats(0.2, 5),
    site=st.sampled_from(["mixer", "client"]),
    colluding=st.booleans(),
    cut=st.booleans(),
    releases=st.integers(1, 5),
)
def test_shift_of_fixed_ratios_is_distance_over_noise(
    data: st.DataObject,
    group: int,
    sigma: float,
    sigma_labels: float,
    site: str,
    colluding: bool,
    cut: bool,
    releases: int,
) -> None:
    """Mean difference of the mixed releases over the noise that is left, for the worst client, in plain numpy."""
    counts = data.draw(st.lists(st.integers(0, 8), min_size=group, max_size=group).filter(lambda c: sum(c) > 0))
    patches = sum(counts)
    ratios = np.array(counts) / patches
    worst = 0.0
    for i, ratio in enumerate(ratios):
        if ratio == 0:
            continue
        mixed = sqrt(ratio**2 if colluding else float(ratios @ ratios)) if site == "client" else 1.0
        smashed = sqrt(counts[i]) / sigma if cut else ratio * sqrt(patches) / (sigma * mixed)
        label = ratio * sqrt(2) / (sigma_labels * mixed)
        worst = max(worst, sqrt(releases * (smashed**2 + label**2)))
    whole, shares = FixedCounts(counts=tuple(counts)), FixedRatio(ratios=tuple(ratios.tolist()))
    mixing = (
        CutMix(ratio=whole, patches=patches, colluding=colluding) if cut else Mixup(ratio=shares, colluding=colluding)
    )
    found = spec(
        smashed=Clamp(low=0, high=1, dimensions=patches),
        labels=OneHot(),
        noise=Noise(smashed=sigma, labels=sigma_labels, site=site),  # type: ignore[arg-type]
        mixing=mixing,
        unit="client",
        releases=releases,
    ).shift()
    assert found.constant == pytest.approx(worst, rel=1e-12)


def test_a_global_clip_gains_nothing_from_fixed_masks_but_something_from_random_ones() -> None:
    quarter = CutMix(ratio=FixedCounts(counts=(1, 1, 1, 1)), patches=4)
    fixed = spec(smashed=Ball(radius=1.0), mixing=quarter)
    assert fixed.shift().constant == 2.0
    law = spec(smashed=Ball(radius=1.0), mixing=quarter, random_masks=True).shift()
    assert dict(zip(law.mu.tolist(), np.exp(law.log_weight).round(12).tolist(), strict=True)) == {2.0: 0.25, 0.0: 0.75}
    assert spec(smashed=PatchBall(radius=0.5, patches=4), mixing=quarter).shift().constant == 1.0


@pytest.mark.parametrize(
    "mixing",
    [
        Mixup(ratio=DirichletRatio(concentration=0.3, clients=4)),
        CutMix(ratio=DirichletRatio(concentration=2, clients=3), patches=7),
        CutMix(ratio=DirichletCounts(concentration=0.01, clients=3), patches=196),
    ],
)
def test_laws_of_random_ratios_are_probabilities_with_the_right_mean(mixing: Any) -> None:
    law = spec(mixing=mixing).law
    assert law is not None
    weight = np.exp(law.log_weight)
    assert weight.sum() == pytest.approx(1, abs=1e-10)
    assert float(weight @ law.ratio) == pytest.approx(1 / mixing.group, rel=1e-9)
    assert np.all(law.share >= law.ratio - 1e-12)
    assert np.all((law.norm >= law.ratio**2 - 1e-15) & (law.norm <= 1 + 1e-12))


def test_single_clients_and_single_patches() -> None:
    alone = spec(mixing=Mixup(ratio=DirichletRatio(concentration=2, clients=1)))
    assert alone.shift().constant == spec().shift().constant == 1.0
    assert spec(mixing=CutMix(ratio=FixedRatio.equal(3), patches=1)).shift().constant == 1.0


@pytest.mark.parametrize("bad", [{}, {"kind": "clmap"}, {"kind": "clamp", "low": 0}, {"kind": "clamp", "hi": 1}, 3])
def test_json_of_something_else_is_refused_or_left_alone(bad: Any) -> None:
    if isinstance(bad, dict):
        with pytest.raises(ValueError, match=r"kind|field|missing"):
            records.from_json(bad)
    else:
        assert records.from_json(bad) == bad


@given(spec_of=st.sampled_from([NoMixing(), EveryRound(), OneHot(), *(clip for clip, _ in SETS)]))
def test_parts_survive_json(spec_of: Any) -> None:
    assert records.from_json(json.loads(json.dumps(records.to_json(spec_of)))) == spec_of


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


def test_random_ratios_of_several_releases_rest_on_the_renyi_bound_that_holds_for_shared_and_for_fresh_draws() -> None:
    given: dict[str, Any] = {
        "smashed": Known(value=8, relation="replace_one", norm="l2"),
        "noise": Noise(smashed=1.0),
        "lower_model": "trained",
        "unit": "client",
        "mixing": Mixup(ratio=DirichletRatio(concentration=2, clients=1000)),
    }
    shared = answer.epsilon(SplitMechanism(**given, releases=8), 1e-5)
    fresh = answer.epsilon(SplitMechanism(**given, rounds=8), 1e-5)
    assert shared.lower is None
    assert shared.order is not None
    assert shared.epsilon >= fresh.epsilon
    assert any("once a round or once a release" in sentence for sentence in shared.assumptions)


def test_patches_of_the_clip_set_are_those_of_the_masks() -> None:
    with pytest.raises(ValueError, match="patches of the clip set"):
        SplitMechanism(
            smashed=PatchBall(radius=1, patches=1),
            noise=Noise(smashed=1.0),
            lower_model="frozen",
            mixing=CutMix(ratio=FixedCounts(counts=(2, 2)), patches=4),
        )


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
