"""The effects of accurate_sl: their runs exist, and their verdicts follow from differences of the same seeds."""

from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from privkit.audit.assembled import assemble
from privkit.domains.images.domain import Images
from privkit.domains.tokens.domain import Tokens
from privkit.papers import paper
from privkit.papers.accurate_sl.effects import (
    PublishedEffect,
    accuracies,
    bounds_of,
    comparisons,
    effect_verdict,
    effects,
    judged,
    needed_runs,
    shipped_rows,
    with_fault,
    with_it,
)
from privkit.papers.accurate_sl.table_11 import TABLE_11
from privkit.papers.presets import preset_settings
from privkit.papers.values import printed
from privkit.settings.resolve import resolve
from privkit.torch_utils.seeded import seeded
from privkit.training.round import split_round

NOISE, MASKED = "gaussian_noise:at_inference=false", "gaussian_noise:at_inference=false+masking:at_inference=false"
DOMAINS = {"mnist": Images(shape=(1, 28, 28)), "cifar10": Images(shape=(3, 32, 32))}
EFFECT = PublishedEffect(claim="masking helps", better=("mnist", MASKED), worse=("mnist", NOISE))


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
        ([0.20, 0.22, 0.18], [0.10, 0.11, 0.09], "survives"),
        ([0.80, 0.81, 0.82], [0.003, 0.004, 0.003], "mostly vanishes"),  # though above 0
        ([0.30, 0.31, 0.29], [0.00, 0.01, -0.01], "vanishes"),
        ([0.30, 0.31, 0.29], [-0.10, -0.11, -0.09], "reversed"),
        ([0.01, -0.01, 0.00], [0.00, 0.01, -0.01], "undecided"),  # it never showed
        ([0.30, 0.31, 0.29], [0.30, -0.30, 0.10], "undecided"),  # too few seeds for what they differ
        ([0.30], [0.10], "not run"),
    ],
)
def test_verdicts(released: list[float], sound: list[float], verdict: str) -> None:
    one = effect_verdict(EFFECT, runs(released, sound))
    assert one.verdict == verdict
    assert (one.sound is None) == (verdict == "not run")
    if one.sound is not None:
        assert one.sound.value == pytest.approx(sum(sound) / 3)


@pytest.mark.parametrize(("gap", "verdict"), [(0.5, "sign agrees"), (0.606, "reproduced")])
def test_a_difference_is_reproduced_only_if_its_interval_contains_the_printed_one(gap: float, verdict: str) -> None:
    effect = next(one for one in effects() if one.claim.startswith("Table 3, Laplace b = 0.5: noise"))
    rows = [
        {"experiment": name, "defense": with_fault(own) if fault else own, "seed": seed, "accuracy": accuracy}
        for (name, own), base in ((effect.better, 0.9), (effect.worse, 0.9 - gap))
        for fault in (False, True)
        for seed in range(3)
        for accuracy in [base + 0.001 * seed * (base == 0.9)]
    ]
    assert {one.claim: one.verdict for one in comparisons(rows)}[effect.claim] == verdict
    assert {one.claim: one.verdict for one in comparisons()}[effect.claim] == "differs"  # .0035, printed .6066


def test_the_derivative_stands_beside_the_released_gradient() -> None:
    straight = MASKED.replace("masking:", "masking:variant=straight_through,")
    found = runs([0.15, 0.16, 0.14], [0.10, 0.11, 0.09])
    released = {
        ("mnist", straight): found["mnist", MASKED],
        ("mnist", with_fault(straight)): found["mnist", with_fault(MASKED)],
        ("mnist", MASKED): {0: 0.3, 1: 0.31, 2: 0.32},
    }
    one = effect_verdict(
        PublishedEffect(claim="", better=("mnist", straight), worse=("mnist", NOISE)), {**found, **released}
    )
    assert one.verdict == "survives"
    assert one.exact is not None
    assert one.exact.value == pytest.approx(-0.19)
    assert effect_verdict(EFFECT, found).exact is None  # nothing to put beside


FAULTLESS = {run[0] for effect in effects() if effect.no_fault for run in (effect.better, effect.worse)}
"""Experiments on whose network the fault cannot act."""


def lower_gradient(experiment: str, defense: Any) -> list[Tensor]:
    """Gradients of an experiment's lower segment in one round, with these draws of the defense."""
    path = next(path for path in paper("accurate_sl").experiments if path.stem == experiment)
    config = resolve(preset_settings(path))
    options = config.dataset.spec
    words = tuple(map(str, range(50)))
    domain: Any = DOMAINS.get(config.dataset.name) or Tokens(length=getattr(options, "length", 0), vocabulary=words)
    edge, upper, _ = assemble(config, defense.spec, domain, 10, 0)
    records = domain.random(8, Generator().manual_seed(1)).unsqueeze(0)
    with seeded(torch.device("cpu"), 0):
        split_round(edge, upper, records, torch.arange(8).unsqueeze(0), Generator().manual_seed(0))
    return [weight.grad for weight in edge.lowers.parameters() if weight.grad is not None]


@pytest.mark.slow(but=3)
@pytest.mark.parametrize("experiment", sorted({experiment for experiment, _ in needed_runs()}))
def test_the_fault_changes_the_gradient_exactly_where_effects_are_judged_with_it(experiment: str) -> None:
    path = next(path for path in paper("accurate_sl").experiments if path.stem == experiment)
    settings = preset_settings(path)
    noisy = next(text for text in settings["defense"] if "_noise:" in text)
    both = [resolve({**settings, "defense": [text]}).defenses[-1] for text in (noisy, with_fault(noisy))]
    sound, released = (lower_gradient(experiment, one) for one in both)
    same = all(torch.equal(one, other) for one, other in zip(sound, released, strict=True))
    assert same == (experiment in FAULTLESS)


def test_a_fault_that_cannot_act_is_said_and_has_no_runs() -> None:
    assert not any("noise_in_place" in defense for experiment, defense in needed_runs() if experiment in FAULTLESS)
    effect = PublishedEffect(claim="", better=("mnist", MASKED), worse=("mnist", NOISE), no_fault="there is no tanh")
    one = effect_verdict(effect, runs([], [0.10, 0.11, 0.09]) | {("mnist", NOISE): dict.fromkeys(range(3), 0.5)})
    assert (one.verdict, one.released) == ("survives", None)
    assert with_it(one) == "the fault cannot act: there is no tanh"


def test_every_run_of_an_effect_is_a_cell_of_a_small_experiment() -> None:
    cells = {
        (path.stem, defense.label)
        for path in paper("accurate_sl").experiments
        if path.stem.endswith("_small")
        for defense in resolve(preset_settings(path)).defenses
    }
    assert needed_runs() <= cells
    assert {experiment for experiment, _ in needed_runs()} == {experiment for experiment, _ in cells}


def test_of_two_lengths_the_longer_decides_and_none_is_compared_with_the_other() -> None:
    def rows(steps: int, gap: float) -> list[dict[str, Any]]:
        made = runs([gap, gap, gap + 0.01], [gap, gap, gap + 0.01])
        return [
            {"experiment": name, "defense": defense, "seed": seed, "accuracy": value, "steps": steps, "kept": "last"}
            for (name, defense), of_seed in made.items()
            for seed, value in of_seed.items()
        ]

    effect = effects()[1]  # masking, on the CNN
    names = {EFFECT.better: effect.better, EFFECT.worse: effect.worse}
    names |= {(name, with_fault(defense)): (to, with_fault(own)) for (name, defense), (to, own) in names.items()}

    def named(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
        places = [names[row["experiment"], row["defense"]] for row in given]
        return [{**row, "experiment": name, "defense": own} for row, (name, own) in zip(given, places, strict=True)]

    long = rows(300, -0.1)
    both = judged(named(rows(60, 0.1) + long))[1]
    assert (both.verdict, both.length) == ("reversed", "300 steps, last epoch")
    assert (
        judged(named(rows(60, 0.1) + [row for row in long if row["seed"]]))[1].verdict == "survives"
    )  # one is missing
    only_short = named(rows(60, 0.1)) + [row for row in named(rows(300, -0.1)) if row["defense"] == effect.worse[1]]
    assert (judged(only_short)[1].verdict, judged(only_short)[1].length) == ("survives", "60 steps, last epoch")


def test_printed_differences_have_the_direction_of_their_claims() -> None:
    gaps = [effect.published for effect in effects() if effect.published is not None]
    assert len(gaps) >= 10
    assert min(gaps) > 0
    assert effects()[0].published == pytest.approx(0.9896 - 0.8185)


def test_the_rows_that_ship_are_cells_and_stand_once() -> None:
    rows = shipped_rows()
    assert len(rows) == len(
        {(row["experiment"], row["defense"], row["seed"], row["steps"], row["kept"]) for row in rows}
    )
    assert set(accuracies(rows)) <= needed_runs()
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
