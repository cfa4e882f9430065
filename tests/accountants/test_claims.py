"""Claims against the truth: layouts, masks, participation and ratios tried one by one, δ integrated by scipy."""

from dataclasses import replace
from itertools import combinations
from math import exp, inf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

from privkit.accountants import answer, table
from privkit.accountants.interop.events import to_dp_event
from privkit.accountants.ledger import Ledger
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletCounts, DirichletRatio, FixedCounts, FixedRatio, RealizedRatios
from privkit.accountants.spec.parts import CutMix, Mixup, Noise, NoMixing, Poisson, PrivateUpdates, WithoutReplacement
from privkit.accountants.spec.sensitivity import Ball, Clamp, Known, OneHot
from privkit.papers.as_published import as_published
from tests.accountants.one_release import exact, inverse, one_release, profile

ONE = Known(value=1, relation="replace_one", norm="l2")
PAIR = FixedRatio.equal(2)


def spec(**changes: Any) -> SplitMechanism:
    return one_release(**{"smashed": ONE, **changes})


def rare(epsilon: float, mu: float, rate: float, rounds: int) -> float:
    """δ where it is public in which rounds a unit takes part."""
    times = np.arange(rounds + 1)
    weights = stats.binom.pmf(times, rounds, rate)
    return sum(w * profile(epsilon, mu * sqrt(t)) for t, w in zip(times.tolist(), weights.tolist(), strict=True) if w)


# coordinates and patches ---------------------------------------------------------------------------------------------


def layouts(dimensions: int, patches: int) -> list[list[int]]:
    """Coordinates of each patch: dealt as evenly as can be, and filled one patch after the other."""
    most = -(-dimensions // patches)
    dealt = [dimensions // patches + (p < dimensions % patches) for p in range(patches)]
    filled = [max(0, min(most, dimensions - most * p)) for p in range(patches)]
    return [dealt, filled]


@pytest.mark.parametrize("dimensions", range(1, 14))
@pytest.mark.parametrize(("kept", "patches"), [(2, 4), (3, 4), (4, 4), (3, 5), (3, 6), (5, 6)])
def test_no_mask_of_any_layout_beats_the_claim(dimensions: int, kept: int, patches: int) -> None:
    counts = FixedCounts(counts=(kept, patches - kept))
    found = answer.epsilon(
        spec(
            smashed=Clamp(low=0, high=1, dimensions=dimensions),
            mixing=CutMix(ratio=counts, patches=patches),
        ),
        1e-5,
    )
    truths = [
        [exact(sqrt(held)) for held in {sum(places) for places in combinations(layout, kept)}]
        for layout in layouts(dimensions, patches)
    ]
    worst = max(map(max, truths))
    assert found.epsilon == pytest.approx(worst, rel=1e-9)  # no more than some layout needs
    if found.lower is not None:
        assert found.lower <= min(map(min, truths)) * (1 + 1e-9)
    assert (found.lower is None) == (dimensions % patches != 0)
    assert any("every patch holds" in sentence for sentence in found.assumptions)


@pytest.mark.parametrize(
    ("dimensions", "high", "sigma", "group", "truth"),
    [(1, 1.0, 0.25, 64, 24.3816), (10, 0.15, 16 / 255, 2, 60.0260), (65, 1.0, 2.0, 2, 15.76)],
)
def test_fewer_coordinates_than_patches(dimensions: int, high: float, sigma: float, group: int, truth: float) -> None:
    mechanism = spec(
        smashed=Clamp(low=0, high=high, dimensions=dimensions),
        noise=Noise(smashed=sigma),
        mixing=CutMix(ratio=FixedRatio.equal(group), patches=64),
    )
    found = answer.epsilon(mechanism, 1e-5)
    assert found.epsilon >= truth - 1e-3
    assert found.lower is None
    claimed = as_published(
        replace(mechanism, labels=OneHot(), noise=Noise(smashed=sigma, labels=sigma)),
        1e-5,
    )
    assert not claimed.sound
    assert "kept share of the 64 patches" in claimed.objection


def test_a_uniform_mask_may_drop_the_one_patch_that_holds_all_the_distance() -> None:
    kept_half = CutMix(ratio=FixedCounts(counts=(2, 2)), patches=4)
    found = answer.epsilon(spec(smashed=Ball(radius=0.5), mixing=kept_half), 1e-5)
    uniform = inverse(lambda epsilon: profile(epsilon, 1.0) / 2, 1e-5)
    assert uniform < found.epsilon == pytest.approx(exact(1.0), rel=1e-9)
    assert found.lower is None


def test_what_a_mask_keeps_is_open_where_masks_overlap() -> None:
    # 3 + 3 of 5 patches: a cell that both fill carries the noise of both
    mixing = CutMix(ratio=PAIR, patches=5)
    assert mixing.overfull
    smashed = Clamp(low=0, high=1, dimensions=5)
    at_clients = spec(smashed=smashed, mixing=mixing, noise=Noise(smashed=1.0, site="client"))
    assert answer.epsilon(at_clients, 1e-5).lower is None
    exclusive = replace(at_clients, mixing=CutMix(ratio=FixedCounts(counts=(3, 2)), patches=5))
    assert answer.epsilon(exclusive, 1e-5).lower is not None
    assert not CutMix(ratio=FixedRatio(ratios=(0.07, 0.93)), patches=100).overfull


# who took part -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "clients", "rounds", "delta", "truth"), [(5, 1000, 1, 1e-6, 3.616), (2, 100, 1000, 1e-5, 34.5)]
)
def test_colluding_clients_know_who_took_part(
    chosen: int, clients: int, rounds: int, delta: float, truth: float
) -> None:
    mechanism = spec(
        noise=Noise(smashed=1.0, site="client"),
        mixing=Mixup(ratio=FixedRatio.equal(chosen), colluding=True),
        participation=WithoutReplacement(chosen=chosen, clients=clients),
        rounds=rounds,
    )
    true = inverse(lambda epsilon: rare(epsilon, 1.0, chosen / clients, rounds), delta)
    assert true == pytest.approx(truth, rel=1e-3)
    found = answer.epsilon(mechanism, delta)
    assert true <= found.epsilon * (1 + 1e-9)
    assert found.epsilon <= true * 1.01
    assert found.lower is not None
    assert found.lower <= true * (1 + 1e-9)
    assert answer.epsilon(mechanism, delta, tight=False).epsilon >= true * (1 - 1e-9)
    certified = answer.delta(mechanism, true).delta
    assert certified is not None
    assert delta * (1 - 1e-6) <= certified <= 1.2 * delta
    assert any("colluding clients know who takes part" in sentence for sentence in found.assumptions)
    assert not any("secretly" in sentence for sentence in found.assumptions)
    with pytest.raises(ValueError, match="a random participation that the release reveals"):
        to_dp_event(mechanism)


def test_clients_that_mix_nothing_may_collude_too() -> None:
    drawn: dict[str, Any] = {"participation": WithoutReplacement(chosen=5, clients=1000)}
    found = answer.epsilon(spec(mixing=NoMixing(colluding=True), **drawn), 1e-6)
    assert found.epsilon == pytest.approx(inverse(lambda e: rare(e, 1.0, 0.005, 1), 1e-6), rel=1e-7)
    assert found.lower == found.epsilon
    row = {"mechanism": "dp_sl", "sigma": 1, "sensitivity": 1, "group": 5, "clients": 1000}
    row |= {"sampling": "without_replacement", "colluding": "yes"}
    assert answer.epsilon(table.mechanism_of(row), 1e-6).epsilon == found.epsilon
    added: dict[str, Any] = {"smashed": Clamp(low=0, high=1, dimensions=1), "relation": "add_or_remove_one"}
    coins = [spec(**added, participation=Poisson(rate=0.01), mixing=NoMixing(colluding=told)) for told in (False, True)]
    assert answer.epsilon(coins[0], 1e-6).epsilon == answer.epsilon(coins[1], 1e-6).epsilon  # a coin of one's own


def test_laplace_noise_is_charged_as_if_everyone_took_part() -> None:
    told = spec(
        smashed=Clamp(low=0, high=1, dimensions=1),
        noise=Noise(law="laplace", smashed=1.0),
        mixing=NoMixing(colluding=True),
        participation=WithoutReplacement(chosen=5, clients=1000),
    )
    found = answer.epsilon(told, 1e-3)
    rarely = inverse(lambda epsilon: 0.005 * max(0.0, 1 - exp((epsilon - 1) / 2)), 1e-3)
    assert rarely < found.epsilon <= 1
    assert found.lower is None or found.lower <= rarely
    assert answer.delta(told, rarely).lower is None


@pytest.mark.parametrize("order", [1.5, 2, 8, 32])
def test_the_renyi_curve_of_a_participation_that_shows(order: float) -> None:
    colluding = spec(
        mixing=Mixup(ratio=PAIR, colluding=True), participation=WithoutReplacement(chosen=2, clients=20), rounds=7
    )
    # E over the coin of exp((α−1)·α·μ²/2) with μ = λ = 1/2
    moment = 0.9 + 0.1 * exp((order - 1) * order / 8)
    assert answer.rdp(colluding, [order]).values[0] == pytest.approx(7 * np.log(moment) / (order - 1), rel=1e-12)


@pytest.mark.parametrize("rounds", [1, 40])
@pytest.mark.parametrize("sampled", ["k of n", "poisson"])
def test_lower_models_that_learn_show_who_took_part(sampled: str, rounds: int) -> None:
    given: dict[str, Any] = {
        "smashed": Clamp(low=0, high=1, dimensions=1),
        "unit": "client",
        "rounds": rounds,
        "participation": WithoutReplacement(chosen=5, clients=100) if sampled == "k of n" else Poisson(rate=0.05),
        "relation": "replace_one" if sampled == "k of n" else "add_or_remove_one",
    }
    secret, shown = (answer.epsilon(spec(**given, lower_model=lower), 1e-5) for lower in ("frozen", "trained"))
    truth = inverse(lambda epsilon: rare(epsilon, 1.0, 0.05, rounds), 1e-5)
    assert truth <= shown.epsilon * (1 + 1e-9) <= truth * 1.01
    assert shown.lower is None
    assert secret.epsilon < 0.6 * shown.epsilon
    assert any("lower models that learn" in sentence for sentence in shown.assumptions)


def test_noisy_updates_show_who_took_part_too(tmp_path: Path) -> None:
    updates = PrivateUpdates(noise_multiplier=50.0, steps=10)
    sampled = WithoutReplacement(chosen=5, clients=100)
    one = spec(lower_model=updates, participation=sampled)
    assert one.participation_shows
    alone = inverse(lambda epsilon: rare(epsilon, 1.0, 0.05, 1), 1e-5)
    assert answer.epsilon(one, 1e-5).epsilon > alone
    with Ledger(tmp_path / "ledger.jsonl") as book:  # the second round brings no updates, and no credit either
        book.charge(one, rounds=2)
        twice = book.epsilon(1e-5).epsilon
    assert twice >= inverse(lambda epsilon: rare(epsilon, 1.0, 0.05, 2), 1e-5)


def test_drawn_clients_of_unequal_shares_have_no_lower_bound() -> None:
    drawn: dict[str, Any] = {"participation": WithoutReplacement(chosen=2, clients=10)}
    assert answer.epsilon(spec(mixing=Mixup(ratio=FixedRatio(ratios=(0.7, 0.3))), **drawn), 1e-5).lower is None
    assert answer.epsilon(spec(mixing=Mixup(ratio=PAIR), **drawn), 1e-5).lower is not None


def test_drawn_clients_of_random_shares_have_no_lower_bound() -> None:
    """Ratios are told, but not who sits where: among zeros, (λ, 1 − λ) and (1 − λ, λ) look alike."""
    mixing, part = Mixup(ratio=DirichletRatio(concentration=2, clients=2)), WithoutReplacement(chosen=2, clients=4)
    found = answer.epsilon(spec(noise=Noise(smashed=0.25), mixing=mixing, participation=part), 1e-3)
    x = np.linspace(-12, 16, 2801)
    weight, without = np.diff(stats.beta(2, 2).cdf(np.linspace(0, 1, 401))), stats.norm.pdf(x)
    truth = 0.0
    for ratio, probability in zip((np.arange(400) + 0.5) / 400, weight, strict=True):
        seated = (stats.norm.pdf(x, 4 * ratio) + stats.norm.pdf(x, 4 - 4 * ratio)) / 2
        gap = np.maximum((seated + without) / 2 - exp(found.epsilon) * without, 0)
        truth += probability * float(gap.sum()) * 0.01
    assert truth < 0.9e-3
    assert found.lower is None
    shown = answer.epsilon(spec(mixing=Mixup(ratio=mixing.ratio, colluding=True), participation=part), 1e-3)
    assert shown.lower is not None  # colluding clients know who sat where


def test_rare_releases_never_cost_more_than_frequent_ones() -> None:
    given: dict[str, Any] = {"lower_model": "trained", "unit": "client", "rounds": 30}
    every = answer.epsilon(spec(**given), 1e-5)
    for tight in (False, True):
        often = answer.epsilon(
            spec(**given, participation=WithoutReplacement(chosen=99, clients=100)), 1e-5, tight=tight
        )
        assert often.epsilon <= every.epsilon
    quick = answer.delta(spec(**given, participation=WithoutReplacement(chosen=99, clients=100)), 8.0, tight=False)
    assert quick.delta is not None
    assert quick.delta <= answer.delta(spec(**given), 8.0).delta * (1 + 1e-9)  # type: ignore[operator]


# ratios that are drawn once ------------------------------------------------------------------------------------------


def once(mu: float, rounds: int, concentration: float, clients: int, delta: float) -> float:
    """ε of Mixup with one λ for all rounds, by quadrature."""
    density = stats.beta(concentration, (clients - 1) * concentration).pdf

    def mean(epsilon: float) -> float:
        value, _ = integrate.quad(
            lambda ratio: density(ratio) * profile(epsilon, sqrt(rounds) * mu * ratio), 0, 1, limit=400, epsabs=1e-12
        )
        return float(value)

    return inverse(mean, delta)


@pytest.mark.parametrize(
    ("mu", "rounds", "concentration", "clients"), [(0.5, 50, 2.0, 2), (1.0, 1, 2.0, 3), (0.2, 400, 1.0, 4)]
)
def test_a_ratio_drawn_once_is_kept_for_all_rounds(mu: float, rounds: int, concentration: float, clients: int) -> None:
    def mixed(drawn: str) -> SplitMechanism:
        ratio = DirichletRatio(concentration=concentration, clients=clients, drawn=drawn)  # type: ignore[arg-type]
        return spec(noise=Noise(smashed=1 / mu), mixing=Mixup(ratio=ratio), rounds=rounds)

    found = answer.epsilon(mixed("once"), 1e-5)
    truth = once(mu, rounds, concentration, clients, 1e-5)
    assert found.epsilon == pytest.approx(truth, rel=1e-6)
    assert found.lower == found.epsilon
    fresh = answer.epsilon(mixed("every_round"), 1e-5)
    assert fresh.epsilon < found.epsilon or rounds == 1
    assert answer.delta(mixed("once"), truth).delta == pytest.approx(1e-5, rel=1e-4)
    if (mu, rounds) == (0.5, 50):
        assert (round(found.epsilon, 2), round(fresh.epsilon, 2)) == (16.29, 9.97)
        assert "drawn once for all of them" in found.statement
        assert "drawn afresh in each" in fresh.statement
    for drawn, said in (("once", "keeps its own for all rounds"), ("every_round", "drawn afresh in every round")):
        assert any(said in sentence for sentence in answer.epsilon(mixed(drawn), 1e-5, tight=False).assumptions)
    ratio = stats.beta(concentration, (clients - 1) * concentration)
    for order in (2.0, 6.5):
        t = (order - 1) * order * rounds * mu**2 / 2
        moment, _ = integrate.quad(lambda x, t=t: ratio.pdf(x) * exp(t * x * x - t), 0, 1, limit=400)
        expected = (np.log(moment) + t) / (order - 1)
        assert answer.rdp(mixed("once"), [order]).values[0] == pytest.approx(expected, rel=1e-8)


def test_counts_drawn_once() -> None:
    ratio = DirichletCounts(concentration=2, clients=3, drawn="once")
    mechanism = spec(smashed=Clamp(low=0, high=0.3, dimensions=8), mixing=CutMix(ratio=ratio, patches=4), rounds=30)
    counts = np.arange(5)
    weights = stats.betabinom(4, 2, 4).pmf(counts)

    def mean(epsilon: float) -> float:
        shifts = np.sqrt(30 * 2 * counts) * 0.3  # two coordinates a patch
        return sum(w * profile(epsilon, mu) for w, mu in zip(weights.tolist(), shifts.tolist(), strict=True))

    assert answer.epsilon(mechanism, 1e-5).epsilon == pytest.approx(inverse(mean, 1e-5), rel=1e-7)


def test_what_has_no_derivation_for_ratios_drawn_once_is_refused() -> None:
    ratio = DirichletRatio(concentration=2, clients=2, drawn="once")
    with pytest.raises(ValueError, match="need a fixed group"):
        spec(mixing=Mixup(ratio=ratio), participation=WithoutReplacement(chosen=2, clients=10))
    counts = DirichletCounts(concentration=2, clients=2, drawn="once")
    with pytest.raises(ValueError, match="fresh in every round under a clip of the whole"):
        spec(smashed=Ball(radius=1), mixing=CutMix(ratio=counts, patches=4), random_masks=True)
    with pytest.raises(ValueError, match="drawn must be one of every_round, once"):
        DirichletRatio(concentration=2, clients=2, drawn="always")  # type: ignore[arg-type]


def test_a_ledger_takes_one_draw(tmp_path: Path) -> None:
    kept = spec(mixing=Mixup(ratio=DirichletRatio(concentration=2, clients=2, drawn="once")), rounds=20)
    with Ledger(tmp_path / "ledger.jsonl") as book:
        book.charge(kept)
        assert book.rounds == 20
        assert book.epsilon(1e-5).epsilon == pytest.approx(answer.epsilon(kept, 1e-5, tight=False).epsilon, rel=1e-9)
        with pytest.raises(ValueError, match="the charges cannot be added"):
            book.charge(kept)
        with pytest.raises(ValueError, match="the ratios are for 20 rounds"):
            book.charge(kept, rounds=3)
        book.charge(spec(mixing=Mixup(ratio=RealizedRatios(ratios=((0.4, 0.6),)))))
    with Ledger(tmp_path / "ledger.jsonl") as book:
        assert book.rounds == 21


def test_tables_say_when_ratios_are_drawn() -> None:
    row = {
        "mechanism": "dp_mixsl",
        "sigma": 1,
        "sensitivity": 0.5,
        "ratio": "dirichlet",
        "concentration": 2,
        "group": 2,
    }
    kept, fresh = (table.mechanism_of(row | {"rounds": 50, "drawn": drawn}) for drawn in ("once", "every_round"))
    assert kept.drawn_once
    assert not fresh.drawn_once
    assert table.mechanism_of(row) == replace(fresh, rounds=1)


# as published --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lower_model": PrivateUpdates(noise_multiplier=0.1, steps=50)}, "leave out noisy updates"),
        ({"mixing": Mixup(ratio=PAIR, colluding=True)}, "collude"),
        ({"rounds": 2}, r"for one release: compare at rounds = 1; .* \(privkit.papers.accurate_sl.composition\)"),
        ({"unit": "client"}, "replacing one record"),
    ],
)
def test_published_formulas_refuse_what_they_do_not_know(changes: dict[str, Any], said: str) -> None:
    mechanism = spec(smashed=Clamp(low=0, high=1, dimensions=4), **changes)
    with pytest.raises(ValueError, match=said):
        as_published(mechanism, 1e-5)
    assert answer.epsilon(mechanism, 1e-5).epsilon < inf
