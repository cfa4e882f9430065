"""Alignment and intervals against definitions that share no code with them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm
from scipy.stats import t as student_t
from torch import Generator

from privkit.attacks.goals.reconstruct import score
from privkit.audit.scoring import (
    FEW_RECORDS,
    ahead,
    directions,
    few,
    learned,
    matched_own,
    mean_over,
    own_match,
    scored,
    summarise,
)
from privkit.domains.tables.domain import Tables
from privkit.domains.tokens.domain import Tokens
from privkit.reports.schema import Row
from privkit.reports.seed_intervals import over_seeds
from privkit.shared.interval import Interval, clopper_pearson


def images(count: int, seed: int = 0, side: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).random((count, 1, side, side), dtype=np.float32)


ROUND = 5
ROWS = Tables(dense=("age", "dose"), ranges=((0, 1), (0, 1)), categorical=("sex",), values=(("f", "m"),))
TEXTS = Tokens(length=6, vocabulary=("", "?", *"abcdefghijklmnopqrstuvwxyz"))


@pytest.mark.parametrize(("domain", "first"), [(ROWS, "cells"), (TEXTS, "rouge_1")], ids=["table rows", "texts"])
def test_records_in_another_order_are_recovered_once_matched(domain: Tables | Tokens, first: str) -> None:
    """Within a round: a guess at a record of another round is not a guess at one of this."""
    truth = domain.random(20, Generator().manual_seed(0))
    moved = torch.cat([part.flip(0) for part in truth.split(ROUND)])
    found = scored(domain, truth, moved, ROUND)
    assert found["unaligned"][first].mean() < 0.6
    assert (found["matched"][first] == 1).all()
    assert (scored(domain, truth, moved, 20)["matched"][first] == 1).all()
    elsewhere = scored(domain, truth, truth.flip(0), ROUND)
    assert elsewhere["matched"][first].mean() < 0.8


def test_matching_makes_nothing_of_a_constant_guess() -> None:
    truth = ROWS.random(20, Generator().manual_seed(0))
    found = scored(ROWS, truth, ROWS.guesses(truth)["column_mean"].expand_as(truth), ROUND)
    assert found["matched"]["cells"].mean() == found["unaligned"]["cells"].mean()


def test_interval_covers_as_the_normal_law_says() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, 400)
    found = mean_over(values, higher_is_closer=True)
    half = norm.ppf(0.975) * values.std() / 20
    assert found.value == pytest.approx(values.mean())
    assert found.low == pytest.approx(values.mean() - half, abs=0.03)
    assert found.high == pytest.approx(values.mean() + half, abs=0.03)
    assert found.n == 400


@pytest.mark.parametrize("records", [2, 3, 5, 10, 50])
def test_intervals_over_few_records_cover_as_said(records: int) -> None:
    """Errors and SSIM as of images; 95 % are promised. A percentile bootstrap covers half of all cases with 2."""
    draws = np.random.default_rng(0)
    laws = {0.3: draws.beta(3, 7, (1_000, records)), 0.1: draws.beta(4, 36, (1_000, records))}
    for mean, each in laws.items():
        found = [mean_over(values, higher_is_closer=True, within=(0.0, 1.0)) for values in each]
        assert np.mean([one.low <= mean <= one.high for one in found]) > 0.92
    assert bool(few(records)) == (records < FEW_RECORDS)


@pytest.mark.parametrize("records", [1, 2, 3, 5, 20])
def test_an_attack_that_is_as_good_as_a_constant_guess_is_hardly_ever_called_closer(records: int) -> None:
    """Once in two hundred; the 95 % bootstrap said so of 49 % with one record, 23 % with 2 and 4 % with 20."""
    guess, ours = np.random.default_rng(0).normal(0.5, 0.1, (2, 1_000, records))
    pairs = zip(ours, guess, strict=True)
    closer = [ahead({"mse": one}, {"mean_image": {"mse": other}}, directions()) for one, other in pairs]
    assert np.mean([found["mean_image"]["mse"].low > 0 for found in closer]) < 0.015


def test_equal_values_do_not_exclude_others() -> None:
    """Of 20 records that are all recovered when 98 % are, the mean is inside the limits in all but few cases."""
    draws = (np.random.default_rng(0).random((1_000, 20)) < 0.98).astype(float)
    found = [mean_over(values, higher_is_closer=True, within=(0.0, 1.0)) for values in draws if values.all()]
    assert len(found) > 500
    assert all(one.low < 0.98 <= one.high == 1 for one in found)
    alone = mean_over(np.array([0.4]), higher_is_closer=True, within=(0.0, 1.0))
    assert (alone.low, alone.high) == (0, 1)


def test_what_makes_a_record_hard_for_both_does_not_hide_who_is_closer() -> None:
    """A tenth closer on every record shows, though records differ much more; equal attacks hardly ever win."""
    draws, won, wide = np.random.default_rng(0), [], []
    for gain in (0.1, 0.0):
        of_gain = []
        for _ in range(200):
            hard = draws.exponential(1.0, 100)
            ours = hard * (1 - gain) + 0.2 * draws.normal(size=100)
            found = ahead({"mse": ours}, {"mean_image": {"mse": hard}}, directions())["mean_image"]["mse"]
            of_gain.append(found.low > 0)
            wide.append(mean_over(ours, higher_is_closer=False).high < hard.mean())
        won.append(np.mean(of_gain))
    assert won[0] > 0.9
    assert won[1] < 0.03
    assert np.mean(wide) < 0.2


def test_worst_is_the_image_that_came_closest() -> None:
    values = np.array([0.1, 0.9, 0.4])
    assert mean_over(values, higher_is_closer=True).worst == 0.9
    assert mean_over(values, higher_is_closer=False).worst == 0.1


def test_an_exact_copy_has_infinite_psnr_and_never_nan() -> None:
    truth = images(4)
    found = summarise(score(torch.from_numpy(truth), torch.from_numpy(truth), 2))["unaligned"]
    assert found["psnr"].value == found["psnr"].high == np.inf
    assert found["psnr"].low == np.inf
    half = np.where(np.arange(4)[:, None, None, None] < 2, truth, 1 - truth)
    mixed = summarise(score(torch.from_numpy(truth), torch.from_numpy(half), 2))["unaligned"]["psnr"]
    assert mixed.value == np.inf
    assert np.isfinite(mixed.low)


def row(seed: int, guess_seed: int, **changes: object) -> Row:
    fields: dict[str, object] = {"cell": f"c{seed}", "status": "done", "defense": "none", "attack": "a", "dataset": "d"}
    fields |= {
        "model": "m",
        "protocol": "sl",
        "partition": "iid",
        "seed": seed,
        "auxiliary": "disjoint",
        "attacked": "private",
        "batch_size": 4,
    }
    recovers = summarise(score(torch.from_numpy(images(4)), torch.from_numpy(images(4, seed=guess_seed)), 4))
    return Row.model_validate({**fields, "recovered": recovers, **changes})


def test_summary_over_seeds_stays_in_the_range_of_its_quantity() -> None:
    rows = [row(0, 1), row(1, 2), row(2, 3), row(0, 4, defense="other"), row(1, 5, status="error")]
    (summary,) = over_seeds(rows)  # the other defense has one seed only, the failed row does not count
    values = [r.recovered["unaligned"]["ssim"].value for r in rows[:3]]
    mean, half = np.mean(values), student_t.ppf(0.975, 2) * np.std(values, ddof=1) / 3**0.5
    found = summary.values["ssim"]
    center, spread = np.arctanh(mean), half / (1 - mean**2)  # Fisher's scale: half of the logit of (1 + ssim) / 2
    expected = (np.tanh(center - spread), mean, np.tanh(center + spread))
    assert (found.low, found.value, found.high) == pytest.approx(expected)
    assert summary.seeds == (0, 1, 2)
    assert "accuracy" not in summary.values


def test_own_records_that_match_by_chance_are_no_recovery() -> None:
    """Of three cells of two values, own rows drawn without the release have 92 % right once matched in rounds of 50."""
    domain = Tables(dense=(), ranges=(), categorical=("a", "b", "c"), values=(("0", "1"),) * 3)
    draws = Generator().manual_seed(0)
    truth, own, others = (domain.random(100, draws) for _ in range(3))
    by_chance = matched_own(domain, truth, own, 50, seed=0)
    constant = domain.scores(truth, domain.guesses(own)["column_mean"].expand_as(truth))["cells"]
    assert 1 - by_chance.mean() < 0.25 * (1 - constant.mean())
    blind = scored(domain, truth, others, 50)["matched"]["cells"]
    assert own_match(blind, by_chance, True)
    assert not own_match(scored(domain, truth, truth.flip(0), 100)["matched"]["cells"], by_chance, True)


def test_a_model_that_ranks_records_of_a_rare_label_has_learned() -> None:
    """One patient in seven is ill: the model named none of them, with an AUC of .78, and no defense could hold."""
    rare, even = torch.arange(300) % 7 // 6, torch.arange(300) % 7
    accuracy, ranked = clopper_pearson(257, 300), Interval(value=0.78, low=0.71, high=0.84, n=300, method="m")
    found = learned(accuracy, rare, ranked)
    assert found.passed is True
    assert found.detail == "AUC 0.780 [0.710, 0.840] of the model's scores is better than chance"
    assert learned(accuracy, rare, replace(ranked, low=0.49)).passed is False
    assert learned(accuracy, rare).passed is False
    assert learned(clopper_pearson(43, 300), even, ranked).passed is False  # accuracy shows it where labels are even
