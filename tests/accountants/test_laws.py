"""Laws that every answer about a mechanism obeys."""

import json
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privkit.accountants import answer
from privkit.accountants.spec import records
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletCounts, DirichletRatio, FixedCounts, FixedRatio, RealizedRatios
from privkit.accountants.spec.parts import CutMix, EveryRound, Mixup, Noise, NoMixing, Poisson, WithoutReplacement
from privkit.accountants.spec.sensitivity import Ball, BoxLabels, Clamp, OneHot, PatchBall
from tests.accountants.one_release import one_release

DELTAS = st.floats(1e-9, 0.3)


@st.composite
def mechanisms(draw: st.DrawFn) -> SplitMechanism:
    """Any mechanism that can be written down."""
    law = draw(st.sampled_from(["gaussian", "gaussian", "laplace"]))
    relation = draw(st.sampled_from(["replace_one", "add_or_remove_one"]))
    site = draw(st.sampled_from(["mixer", "client"]))
    mixing: Any = NoMixing()
    participation: Any = EveryRound()
    rounds, patches = draw(st.integers(1, 300)), draw(st.integers(1, 32))
    concentration = draw(st.floats(0.1, 10))
    if relation == "replace_one":
        group = draw(st.integers(1, 6))
        ratios: list[Any] = [FixedRatio.equal(group)]
        if law == "gaussian":
            dirichlet: dict[str, Any] = {"concentration": concentration, "clients": group}
            ratios += [DirichletRatio(**dirichlet), DirichletCounts(**dirichlet)]
            ratios += [FixedCounts(counts=(patches, *[0] * (group - 1)))]
        cut = draw(st.booleans())
        ratio = draw(
            st.sampled_from(ratios if cut else [r for r in ratios if r.kind not in ("counts", "dirichlet_counts")])
        )
        mixed = CutMix(ratio=ratio, patches=patches) if cut else Mixup(ratio=ratio)
        mixing = draw(st.sampled_from([NoMixing(), mixed]))
        if draw(st.booleans()):
            participation = WithoutReplacement(chosen=group, clients=draw(st.integers(group, 200)))
    elif law == "gaussian" and draw(st.booleans()):
        participation = Poisson(rate=draw(st.floats(1e-4, 1)))
    if law == "laplace":
        site = "mixer"
    smashed: Any = draw(
        st.sampled_from(
            [
                Clamp(low=-0.5, high=1, dimensions=3),
                *([Ball(radius=0.8), PatchBall(radius=0.2, patches=patches)] if law == "gaussian" else []),
            ]
        )
    )
    labels = draw(st.sampled_from([None, OneHot(), BoxLabels(classes=3)]))
    unit = draw(st.sampled_from(["record", "client"]))
    lower: Any = "frozen" if unit == "record" else draw(st.sampled_from(["frozen", "trained"]))
    return SplitMechanism(
        smashed=smashed,
        labels=labels,
        noise=Noise(
            law=law,  # type: ignore[arg-type]
            smashed=draw(st.floats(0.3, 20)),
            labels=draw(st.floats(0.3, 20)) if labels else None,
            site=site,  # type: ignore[arg-type]
        ),
        lower_model=lower,
        relation=relation,  # type: ignore[arg-type]
        unit=unit,  # type: ignore[arg-type]
        mixing=mixing,
        participation=participation,
        rounds=rounds,
        releases=1 if unit == "record" else draw(st.integers(1, 4)),
        random_masks=draw(st.booleans()),
    )


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(mechanism=mechanisms(), delta=DELTAS, factor=st.floats(1, 5), more=st.integers(1, 200))
def test_less_noise_more_rounds_and_a_smaller_delta_cost_more(
    mechanism: SplitMechanism, delta: float, factor: float, more: int
) -> None:
    noise = mechanism.noise
    louder = replace(noise, smashed=noise.smashed * factor, labels=noise.labels and noise.labels * factor)
    assert_cheaper((replace(mechanism, noise=louder), delta), (mechanism, delta))
    assert_cheaper((mechanism, delta), (replace(mechanism, rounds=mechanism.rounds + more), delta))
    assert_cheaper((mechanism, delta), (mechanism, delta / factor))


def assert_cheaper(one: tuple[SplitMechanism, float], other: tuple[SplitMechanism, float]) -> None:
    """The first has the smaller ε. A fast bound may be looser for the first; then its tight one counts.

    One of 1,500 drawn mechanisms is so: a Gaussian of 6 of 75 clients, 238 rounds, fast ε 957 at δ = .245 (tight 774),
    and 882 at δ = .118.
    """
    least, most = (answer.epsilon(mechanism, delta, tight=False).epsilon for mechanism, delta in (one, other))
    if least > most * (1 + 1e-9) + 1e-12:
        least = answer.epsilon(*one).epsilon
    assert least <= most * (1 + 1e-9) + 1e-12


@settings(max_examples=100, deadline=None)
@given(mechanism=mechanisms(), orders=st.lists(st.floats(1.01, 64), min_size=1, max_size=4), n=st.integers(1, 50))
def test_renyi_curves_add_up_and_grow(mechanism: SplitMechanism, orders: list[float], n: int) -> None:
    once = np.array(answer.rdp(replace(mechanism, rounds=1), orders).values)
    many = np.array(answer.rdp(replace(mechanism, rounds=n), orders).values)
    assert many == pytest.approx(n * once, rel=1e-12)
    order = np.argsort(orders, kind="stable")
    assert np.all(np.diff(once[order]) >= -1e-9 * once[order][1:])
    assert np.all(once >= 0)


@settings(max_examples=60, deadline=None)
@given(mechanism=mechanisms(), delta=DELTAS)
def test_one_by_one_and_all_at_once_are_the_same(mechanism: SplitMechanism, delta: float) -> None:
    alone = answer.epsilon(mechanism, delta, tight=False)
    other = one_release(0.3, participation=WithoutReplacement(chosen=2, clients=9), rounds=7)
    _, second, _ = answer.epsilons([other, mechanism, other], [1e-3, delta, 0.1])
    assert second.epsilon == pytest.approx(alone.epsilon, rel=1e-12, abs=1e-15)
    assert (second.method, second.order, second.kind) == (alone.method, alone.order, alone.kind)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(mechanism=mechanisms(), delta=st.floats(1e-8, 0.1))
def test_numerical_composition_only_helps_and_brackets(mechanism: SplitMechanism, delta: float) -> None:
    quick, tight = (answer.epsilon(mechanism, delta, tight=value) for value in (False, True))
    assert tight.epsilon <= quick.epsilon
    assert tight.kind == "differential_privacy"
    if tight.lower is not None:
        assert 0 <= tight.lower <= tight.epsilon * (1 + 1e-9) + 1e-12


@settings(max_examples=100, deadline=None)
@given(mechanism=mechanisms())
def test_specs_survive_json(mechanism: SplitMechanism) -> None:
    text = json.dumps(records.to_json(mechanism), allow_nan=False)
    assert records.from_json(json.loads(text)) == mechanism


@settings(max_examples=60, deadline=None)
@given(delta=DELTAS, rounds=st.integers(1, 200), mu=st.floats(0.05, 5), sampled=st.booleans())
def test_everyone_sampled_is_no_sampling(delta: float, rounds: int, mu: float, sampled: bool) -> None:
    for relation, all_in in (
        ("replace_one", WithoutReplacement(chosen=7, clients=7)),
        ("add_or_remove_one", Poisson(rate=1.0)),
    ):
        every = one_release(mu, relation=relation, rounds=rounds)
        found = answer.epsilon(replace(every, participation=all_in), delta, tight=sampled)
        expected = answer.epsilon(every, delta)
        assert found.epsilon == expected.epsilon
        assert found.lower == expected.lower == expected.epsilon
        curves = [answer.rdp(m, [1.5, 8]).values for m in (every, replace(every, participation=all_in))]
        assert curves[0] == pytest.approx(curves[1], rel=1e-12)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    parts=st.lists(st.integers(0, 9), min_size=2, max_size=5).filter(lambda p: sum(p) > 0),
    data=st.data(),
    delta=DELTAS,
    cut=st.booleans(),
    site=st.sampled_from(["mixer", "client"]),
)
def test_names_of_clients_and_order_of_rounds_do_not_matter(
    parts: list[int], data: st.DataObject, delta: float, cut: bool, site: str
) -> None:
    total = sum(parts)

    def of(ratio: Any, rounds: int = 1) -> float:
        mixing = CutMix(ratio=ratio, patches=total) if cut else Mixup(ratio=ratio)
        noise = Noise(smashed=1.0, site=site)  # type: ignore[arg-type]
        return answer.epsilon(one_release(mixing=mixing, noise=noise, rounds=rounds), delta).epsilon

    shuffled = data.draw(st.permutations(parts))
    ratios, again = (tuple(part / total for part in order) for order in (parts, shuffled))
    assert of(FixedRatio(ratios=ratios)) == pytest.approx(of(FixedRatio(ratios=again)), rel=1e-12)
    table = (ratios, again, again)
    columns = data.draw(st.permutations(range(len(parts))))
    other = tuple(tuple(row[i] for i in columns) for row in data.draw(st.permutations(table)))
    assert of(RealizedRatios(ratios=table), 3) == pytest.approx(of(RealizedRatios(ratios=other), 3), rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(mu=st.floats(0.3, 6), epsilon=st.floats(0.01, 8), kind=st.sampled_from(["plain", "sampled", "mixup", "cutmix"]))
def test_epsilon_inverts_delta(mu: float, epsilon: float, kind: str) -> None:
    law = DirichletRatio(concentration=2, clients=2)
    kinds: dict[str, dict[str, Any]] = {
        "plain": {"rounds": 3},
        "sampled": {"participation": WithoutReplacement(chosen=2, clients=9)},
        "mixup": {"mixing": Mixup(ratio=law)},
        "cutmix": {"mixing": CutMix(ratio=law, patches=8)},
    }
    mechanism = one_release(mu, **kinds[kind])
    delta = answer.delta(mechanism, epsilon).delta
    assert delta is not None
    if delta > 1e-200:
        assert answer.epsilon(mechanism, delta).epsilon == pytest.approx(epsilon, rel=1e-6, abs=1e-9)


def test_realized_ratios_are_no_lower_bound_where_masks_may_miss_the_patch_that_differs() -> None:
    half = RealizedRatios(ratios=((0.5, 0.5),) * 9)
    for clip, random, proven in (
        (Ball(radius=1), True, False),
        (Ball(radius=1), False, False),  # masks that are not uniform may still change
        (PatchBall(radius=1, patches=16), False, True),
    ):
        found = answer.epsilon(
            SplitMechanism(
                smashed=clip,
                noise=Noise(smashed=2),
                mixing=CutMix(ratio=half, patches=16),
                lower_model="frozen",
                rounds=9,
                random_masks=random,
            ),
            1e-5,
        )
        assert (found.lower == found.epsilon) is proven


def test_realized_rounds_are_summed_for_each_client_and_then_the_largest_taken() -> None:
    ratios = ((0.9, 0.1), (0.1, 0.9), (0.5, 0.5))
    mechanism = one_release(2.0, mixing=Mixup(ratio=RealizedRatios(ratios=ratios)), rounds=3)
    squared = 4 * (0.9**2 + 0.1**2 + 0.5**2)
    assert answer.epsilon(mechanism, 1e-5).epsilon == answer.epsilon(one_release(sqrt(squared)), 1e-5).epsilon
    assert answer.rdp(mechanism, [3]).values[0] == pytest.approx(3 * squared / 2)
