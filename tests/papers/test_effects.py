"""The effects of accurate_sl: their runs exist, and their verdicts follow from differences of the same seeds."""

import pytest

from privkit.papers import paper
from privkit.papers.accurate_sl.effects import (
    Effect,
    accuracies,
    bounds_of,
    comparisons,
    effects,
    judge,
    judged,
    measured,
    needed,
    with_fault,
)
from privkit.papers.accurate_sl.table_11 import TABLE_11
from privkit.papers.presets import settings_of
from privkit.papers.values import printed
from privkit.settings.resolve import resolve

NOISE, MASKED = "gaussian_noise:at_inference=false", "gaussian_noise:at_inference=false+masking:at_inference=false"
EFFECT = Effect(claim="masking helps", better=("mnist", MASKED), worse=("mnist", NOISE))


def runs(released: list[float], sound: list[float]) -> dict[tuple[str, str], dict[int, float]]:
    """Runs of three seeds whose accuracies differ by these gaps, with and without the fault."""
    worse = {seed: 0.5 for seed in range(len(released))}
    return {
        ("mnist", NOISE): worse,
        ("mnist", with_fault(NOISE)): worse,
        ("mnist", MASKED): {seed: 0.5 + gap for seed, gap in enumerate(sound)},
        ("mnist", with_fault(MASKED)): {seed: 0.5 + gap for seed, gap in enumerate(released)},
    }


@pytest.mark.parametrize(
    ("released", "sound", "verdict"),
    [
        ([0.30, 0.31, 0.29], [0.10, 0.11, 0.09], "survives"),
        ([0.30, 0.31, 0.29], [0.00, 0.01, -0.01], "vanishes"),
        ([0.30, 0.31, 0.29], [-0.10, -0.11, -0.09], "reversed"),
        ([0.01, -0.01, 0.00], [0.00, 0.01, -0.01], "undecided"),  # it never showed
        ([0.30, 0.31, 0.29], [0.30, -0.30, 0.10], "undecided"),  # too few seeds for what they differ
        ([0.30], [0.10], "not run"),
    ],
)
def test_verdicts(released: list[float], sound: list[float], verdict: str) -> None:
    one = judge(EFFECT, runs(released, sound))
    assert one.verdict == verdict
    assert (one.sound is None) == (verdict == "not run")
    if one.sound is not None:
        assert one.sound.value == pytest.approx(sum(sound) / 3)


def test_the_derivative_stands_beside_the_released_gradient() -> None:
    straight = MASKED.replace("masking:", "masking:variant=straight_through,")
    found = runs([0.30, 0.31, 0.29], [0.10, 0.11, 0.09])
    released = {
        ("mnist", straight): found["mnist", MASKED],
        ("mnist", with_fault(straight)): found["mnist", with_fault(MASKED)],
        ("mnist", MASKED): {0: 0.3, 1: 0.31, 2: 0.32},
    }
    one = judge(Effect(claim="", better=("mnist", straight), worse=("mnist", NOISE)), {**found, **released})
    assert one.verdict == "survives"
    assert one.exact is not None
    assert one.exact.value == pytest.approx(-0.19)
    assert judge(EFFECT, found).exact is None  # nothing to put beside


def test_a_fault_that_does_not_act_is_said() -> None:
    same = {one.effect.claim for one in judged() if one.sound is not None and one.released == one.sound}
    assert {one.claim for one in comparisons() if one.why.endswith("with it the same")} == same
    assert any(claim.startswith("Fig. 4(a)") for claim in same)


def test_every_run_of_an_effect_is_a_cell_of_a_small_experiment() -> None:
    cells = {
        (path.stem, defense.label)
        for path in paper("accurate_sl").experiments
        if path.stem.endswith("_small")
        for defense in resolve(settings_of(path)).defenses
    }
    assert needed() <= cells
    assert {experiment for experiment, _ in needed()} == {experiment for experiment, _ in cells}


def test_printed_differences_have_the_direction_of_their_claims() -> None:
    gaps = [effect.published for effect in effects() if effect.published is not None]
    assert len(gaps) >= 10
    assert min(gaps) > 0
    assert effects()[0].published == pytest.approx(0.9896 - 0.8185)


def test_the_rows_that_ship_are_cells_and_stand_once() -> None:
    rows = measured()
    assert len(rows) == len({(row["experiment"], row["defense"], row["seed"]) for row in rows})
    assert set(accuracies(rows)) <= needed()
    for row in rows:
        assert {"machine", "date", "seconds"} <= set(row)
        assert bounds_of(row["experiment"], row["defense"]).items() <= row.items()


def test_what_was_run_stands_among_the_claims_of_the_paper() -> None:
    claims = {one.claim for one in comparisons()}
    assert claims == {one.effect.claim for one in judged() if one.verdict != "not run"}
    assert claims <= {one.claim for one in paper("accurate_sl").comparisons()}


def test_bounds_are_those_of_table_11() -> None:
    known = {(bound.name, bound.noise, bound.scale): bound.epsilon for bound in TABLE_11}
    found = bounds_of("table_3_small", "laplace_noise:scale=0.5,at_inference=false,noise_in_place=true")
    assert found["published_epsilon"] == known["CNN on MNIST", "laplace", 0.5]
    cut = int(printed("accurate_sl", "Table 1", "CNN on MNIST: 2×Conv2d - FC FC - Loss", "split layer size"))
    assert found["sound_epsilon"] == pytest.approx(2 * cut / 0.5)  # the L1 diameter over the scale
    assert bounds_of("table_10_mnist_small", "none") == {}
    assert bounds_of("table_8_imdb_small", f"bounded+{NOISE}") == {}
