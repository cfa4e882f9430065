"""Answers about mechanisms against quadrature, enumeration and the mechanism itself; laws that every answer obeys."""

import json
from collections.abc import Callable
from dataclasses import replace
from math import exp, inf, log, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import roots_jacobi
from scipy.stats import beta, betabinom, norm

from privkit.accountants import answer
from privkit.accountants.compile import curve
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
from privkit.papers.dp_cutmixsl.mechanisms import specification as table_1

Array = NDArray[np.float64]


def one_release(mu: float = 1.0, **changes: Any) -> SplitMechanism:
    """A Gaussian release whose unmixed shift is μ under replace-one, of one coordinate a patch."""
    coordinates = getattr(changes.get("mixing"), "patches", 1)
    given: dict[str, Any] = {
        "smashed": Clamp(low=0, high=mu / sqrt(coordinates), dimensions=coordinates),
        "noise": Noise(smashed=1.0),
        "lower_model": "frozen",
    }
    return SplitMechanism(**(given | changes))


NODE, WEIGHT = np.polynomial.legendre.leggauss(300)


def hockey_stick(means: Array, epsilon: float) -> Array:
    """∫ max(0, N(x; m, 1) − e^ε N(x; 0, 1)) dx for each m > 0, by quadrature from where the integrand starts."""
    means = np.maximum(np.atleast_1d(means), 1e-9)
    start = means / 2 + epsilon / means
    half = (np.maximum(start, means) + 13 - start) / 2
    x = start[:, None] + half[:, None] * (NODE + 1)
    log_ratio = means[:, None] * x - means[:, None] ** 2 / 2
    gap = norm.pdf(x) * (np.exp(log_ratio) - exp(epsilon))
    return np.asarray(half * (gap @ WEIGHT))


# reference values


# independent definitions


@settings(max_examples=60, deadline=None)
@given(mu=st.floats(0.3, 4), a=st.floats(0.3, 6), clients=st.integers(2, 5), epsilon=st.floats(0, 5))
def test_published_ratios_are_the_mean_of_hockey_sticks(mu: float, a: float, clients: int, epsilon: float) -> None:
    node, weight = roots_jacobi(120, (clients - 1) * a - 1, a - 1)
    ratios, weights = (node + 1) / 2, weight / weight.sum()
    expected = float(weights @ hockey_stick(mu * ratios, epsilon))
    mechanism = one_release(mu, mixing=Mixup(ratio=DirichletRatio(concentration=a, clients=clients)))
    found = answer.delta(mechanism, epsilon)
    assert found.delta == pytest.approx(expected, rel=1e-4, abs=1e-9)
    assert found.lower == epsilon


@settings(max_examples=40, deadline=None)
@given(
    mu=st.floats(0.3, 4),
    a=st.floats(0.2, 6),
    clients=st.integers(2, 5),
    patches=st.integers(1, 40),
    epsilon=st.floats(0, 4),
    counts=st.booleans(),
)
def test_whole_patches_are_counted(
    mu: float, a: float, clients: int, patches: int, epsilon: float, counts: bool
) -> None:
    j, b = np.arange(patches + 1), (clients - 1) * a
    rounded = np.diff(beta.cdf(j / patches, a, b), prepend=0.0)  # ⌈Nλ⌉ = j
    odds = betabinom.pmf(j, patches, a, b) if counts else rounded
    expected = float(odds[1:] @ hockey_stick(mu * np.sqrt(j[1:] / patches), epsilon))
    ratio: Any = (DirichletCounts if counts else DirichletRatio)(concentration=a, clients=clients)
    found = answer.delta(one_release(mu, mixing=CutMix(ratio=ratio, patches=patches)), epsilon).delta
    assert found == pytest.approx(expected, rel=1e-8, abs=1e-13)


@settings(max_examples=60, deadline=None)
@given(mu=st.floats(0.2, 5), clients=st.integers(2, 30), epsilon=st.floats(0, 4), data=st.data())
def test_sampling_k_of_n_is_the_hockey_stick_of_the_mixture(
    mu: float, clients: int, epsilon: float, data: st.DataObject
) -> None:
    chosen = data.draw(st.integers(1, clients))
    rate = chosen / clients
    x = np.linspace(-12, mu + 12, 40_001)
    one, other = norm.pdf(x), (1 - rate) * norm.pdf(x) + rate * norm.pdf(x - mu)
    both = [np.trapezoid(np.maximum(p - exp(epsilon) * q, 0), x) for p, q in ((other, one), (one, other))]
    mechanism = one_release(mu, participation=WithoutReplacement(chosen=chosen, clients=clients))
    found = answer.delta(mechanism, epsilon).delta
    assert found == pytest.approx(max(both), rel=1e-5, abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(
    mu=st.floats(0.2, 3), order=st.floats(1.05, 12), a=st.floats(0.3, 5), clients=st.integers(2, 6), cut=st.booleans()
)
def test_renyi_divergence_of_random_ratios_is_its_integral(
    mu: float, order: float, a: float, clients: int, cut: bool
) -> None:
    node, weight = roots_jacobi(200, (clients - 1) * a - 1, a - 1)
    ratio, weights = (node + 1) / 2, weight / weight.sum()
    if cut:
        j = np.arange(1, 17)
        # the largest ratios count most, and their odds are tiny: differences of the cdf near 1 would lose them
        ratio, weights = np.sqrt(j / 16), -np.diff(beta.sf(np.arange(17) / 16, a, (clients - 1) * a))
    expected = log(float(weights @ np.exp((order - 1) * order * (mu * ratio) ** 2 / 2))) / (order - 1)
    law = DirichletRatio(concentration=a, clients=clients)
    mechanism = one_release(mu, mixing=CutMix(ratio=law, patches=16) if cut else Mixup(ratio=law))
    assert answer.rdp(mechanism, [order]).values[0] == pytest.approx(expected, rel=1e-7, abs=1e-11)


@pytest.mark.parametrize("rounds", [2, 5])
@pytest.mark.parametrize("kind", ["sampled", "dirichlet"])
def test_composition_brackets_the_truth(rounds: int, kind: str) -> None:
    """ε of T rounds against a direct convolution of the loss of a discretized output."""
    x = np.linspace(-9, 11, 2001)
    if kind == "sampled":
        mechanism = one_release(1.0, participation=WithoutReplacement(chosen=3, clients=10), rounds=rounds)
        p = [0.7 * norm.pdf(x) + 0.3 * norm.pdf(x - 1)]
        q, weights = [norm.pdf(x)], [1.0]
    else:
        law = DirichletCounts(concentration=2, clients=2)
        mechanism = one_release(1.0, mixing=CutMix(ratio=law, patches=4), rounds=rounds)
        p = [norm.pdf(x - sqrt(j / 4)) for j in range(5)]
        q, weights = [norm.pdf(x)] * 5, betabinom.pmf(np.arange(5), 4, 2, 2).tolist()
    step = 1e-3
    bins = np.zeros(40_001)
    for one, other, weight in zip(p, q, weights, strict=True):
        one = one / one.sum()
        other = other / other.sum()
        at = np.round(np.log(one / other) / step).astype(int) + 20_000
        np.add.at(bins, at.clip(0, 40_000), weight * one)
    total = bins
    for _ in range(rounds - 1):
        total = np.convolve(total, bins) if total.size * bins.size < 1e6 else _fft_convolve(total, bins)
    loss = (np.arange(total.size) - 20_000 * rounds) * step
    delta = 1e-3
    low, high = 0.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        value = float((np.maximum(1 - np.exp(np.minimum(middle - loss, 0)), 0) * total)[loss > middle].sum())
        low, high = (middle, high) if value > delta else (low, middle)
    found = answer.epsilon(mechanism, delta)
    # One pair of neighbors attains the profile of told ratios in both directions, that of sampling in one only.
    assert high * (1 - 2e-3) <= found.epsilon <= high * (1.03 if kind == "sampled" else 1.003)
    assert found.lower is None or found.lower <= high * (1 + 2e-3)


def _fft_convolve(one: Array, other: Array) -> Array:
    size = one.size + other.size - 1
    return np.asarray(np.fft.irfft(np.fft.rfft(one, size) * np.fft.rfft(other, size), size).clip(0))


# the mechanism itself


def simulated(mechanism: SplitMechanism, draws: int, present: bool, generator: np.random.Generator) -> Array:
    """Log-likelihood ratios of releases of a mechanism in plain numpy; the record is (high, e₀) or (low = 0, e₁).

    Smashed data have one coordinate a patch; all other clients release zeros and e₁. Everything public (ratios, masks,
    who is mixed with whom) goes into the likelihoods; the secret subset is summed over.
    """
    clip, noise, mixing = mechanism.smashed, mechanism.noise, mechanism.mixing
    assert isinstance(clip, Clamp)
    assert isinstance(mixing, Mixup | CutMix)
    clients, patches, ratio = mixing.group, clip.dimensions, mixing.ratio
    if isinstance(ratio, FixedRatio):
        ratios = np.broadcast_to(np.array(ratio.ratios), (draws, clients))
    else:
        assert isinstance(ratio, DirichletRatio | DirichletCounts)
        gammas = generator.gamma(ratio.concentration, size=(draws, clients))
        ratios = gammas / gammas.sum(1, keepdims=True)
    kept = np.ones((draws, patches))
    if isinstance(mixing, CutMix):
        owner = (generator.random((draws, patches, 1)) > np.cumsum(ratios, 1)[:, None]).sum(2).clip(0, clients - 1)
        counts = (owner[:, :, None] == np.arange(clients)).sum(1)
        kept, ratios = (owner == 0).astype(float), counts / patches
    rate = mechanism.participation.rate
    sampled = generator.random(draws) < rate
    own = ratios[:, 0]
    scale = kept if isinstance(mixing, CutMix) else own[:, None] * kept
    shift = scale * clip.high
    label = np.stack([own, -own], 1) if mechanism.labels is not None else np.zeros((draws, 0))
    norms = np.sqrt((ratios**2).sum(1, keepdims=True))
    client = noise.site == "client"
    smashed_std = noise.smashed * (norms if client and isinstance(mixing, Mixup) else np.ones((draws, 1)))
    label_std = (noise.labels or 1.0) * (norms if client else np.ones((draws, 1)))
    unit = np.concatenate([shift / smashed_std, label / label_std], 1)  # mean under the record, in noise units
    mean = unit * (sampled & present)[:, None]
    release = mean + generator.standard_normal(unit.shape)
    ratio_of = (release * unit).sum(1) - (unit**2).sum(1) / 2
    return np.asarray(np.logaddexp(np.log1p(-rate) if rate < 1 else -np.inf, log(rate) + ratio_of))


def empirical(losses: Callable[[bool, int], Array], delta: float, draws: int) -> float:
    """Lower bound on ε at 99.99 % confidence, from the best threshold of a pilot sample."""
    pilot = [losses(present, draws) for present in (True, False)]
    thresholds = np.quantile(np.concatenate(pilot), np.linspace(0.01, 0.9999, 400))
    best, threshold = -inf, 0.0
    for candidate in thresholds:
        p, q = ((sample > candidate).mean() for sample in pilot)
        if p > delta and q > 20 / draws and log((p - delta) / q) > best:
            best, threshold = log((p - delta) / q), candidate
    hits = [int((losses(present, draws) > threshold).sum()) for present in (True, False)]
    low = float(beta.ppf(5e-5, hits[0], draws - hits[0] + 1))
    high = float(beta.ppf(1 - 5e-5, hits[1] + 1, draws - hits[1]))
    return log((low - delta) / high) if low > delta else 0.0


MIXED: dict[str, dict[str, Any]] = {
    "mixup, Dirichlet": {"mixing": Mixup(ratio=DirichletRatio(concentration=2, clients=2))},
    "mixup, Dirichlet, few": {"mixing": Mixup(ratio=DirichletRatio(concentration=0.4, clients=3))},
    "mixup, fixed": {"mixing": Mixup(ratio=FixedRatio(ratios=(0.7, 0.3)))},
    "cutmix, counts": {"mixing": CutMix(ratio=DirichletCounts(concentration=2, clients=3), patches=4)},
}


@pytest.mark.parametrize("site", ["mixer", "client"])
@pytest.mark.parametrize("sampling", [None, 4])
@pytest.mark.parametrize("name", MIXED)
def test_no_attack_on_the_mechanism_beats_the_certificate(name: str, sampling: int | None, site: str) -> None:
    mixing = MIXED[name]["mixing"]
    clients = mixing.group
    mechanism = SplitMechanism(
        smashed=Clamp(low=0, high=1, dimensions=4),
        labels=OneHot(),
        noise=Noise(smashed=1.0, labels=1.0, site=site),  # type: ignore[arg-type]
        lower_model="frozen",
        mixing=mixing,
        participation=WithoutReplacement(chosen=clients, clients=sampling) if sampling else EveryRound(),
    )
    generator = np.random.default_rng(0)
    delta = 0.01
    found = empirical(lambda present, draws: simulated(mechanism, draws, present, generator), delta, 200_000)
    certificate = answer.epsilon(mechanism, delta)
    assert found <= certificate.epsilon
    tight = 0.55 if site == "client" and clients > 2 else 0.75  # ‖λ‖² is bounded below there
    assert found >= tight * certificate.epsilon, (found, certificate.epsilon)  # the attack has power


def test_what_a_fixed_ratio_claims_is_refuted_by_the_mechanism() -> None:
    random = one_release(2.0, mixing=Mixup(ratio=DirichletRatio(concentration=2, clients=2)))
    fixed = replace(random, mixing=Mixup(ratio=FixedRatio.equal(2)))
    generator = np.random.default_rng(1)
    found = empirical(lambda present, draws: simulated(random, draws, present, generator), 1e-3, 400_000)
    assert answer.epsilon(fixed, 1e-3).epsilon < found <= answer.epsilon(random, 1e-3).epsilon


# laws

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


@settings(max_examples=150, deadline=None)
@given(mechanism=mechanisms(), delta=DELTAS, factor=st.floats(1, 5), more=st.integers(1, 200))
def test_less_noise_more_rounds_and_a_smaller_delta_cost_more(
    mechanism: SplitMechanism, delta: float, factor: float, more: int
) -> None:
    value = answer.epsilon(mechanism, delta, tight=False).epsilon
    slack = 1 + 1e-9
    noise = mechanism.noise
    louder = replace(noise, smashed=noise.smashed * factor, labels=noise.labels and noise.labels * factor)
    assert answer.epsilon(replace(mechanism, noise=louder), delta, tight=False).epsilon <= value * slack + 1e-12
    longer = replace(mechanism, rounds=mechanism.rounds + more)
    assert answer.epsilon(longer, delta, tight=False).epsilon >= value / slack - 1e-12
    assert answer.epsilon(mechanism, delta / factor, tight=False).epsilon >= value / slack - 1e-12


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


# unusual parameters


@pytest.mark.parametrize("sigma", [1e-3, 1e-2, 16 / 255])
def test_epsilon_in_the_thousands_and_beyond_stays_a_number(sigma: float) -> None:
    mu = 10 / sigma
    value = answer.epsilon(one_release(10.0, noise=Noise(smashed=sigma)), 1e-5).epsilon
    # δ = 1e-5 lies between the two one-sided quantiles of the loss N(μ²/2, μ²)
    assert mu**2 / 2 + mu * norm.isf(2e-5) < value < mu**2 / 2 + mu * norm.isf(1e-5)
    back = answer.delta(one_release(10.0, noise=Noise(smashed=sigma)), value).delta
    assert back == pytest.approx(1e-5, rel=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"participation": WithoutReplacement(chosen=1, clients=1000)},
        {"relation": "add_or_remove_one", "participation": Poisson(rate=0.001)},
        {"mixing": Mixup(ratio=DirichletRatio(concentration=0.5, clients=3))},
        {"mixing": CutMix(ratio=DirichletCounts(concentration=2, clients=2), patches=16)},
    ],
)
@pytest.mark.parametrize("tight", [False, True])
def test_a_million_rounds(changes: dict[str, Any], tight: bool) -> None:
    mechanism = one_release(0.05, rounds=10**6, **changes)
    value = answer.epsilon(mechanism, 1e-6, tight=tight).epsilon
    whole = answer.epsilon(one_release(0.05, rounds=10**6), 1e-6).epsilon
    assert 0 < value <= whole * (1 + 1e-9)


def test_delta_above_the_total_variation_costs_nothing() -> None:
    variation = 2 * norm.cdf(0.5) - 1
    assert answer.epsilon(one_release(1.0), variation * 1.001).epsilon == 0
    assert 0 < answer.epsilon(one_release(1.0), variation * 0.999).epsilon < 0.01
    sampled = one_release(30.0, participation=WithoutReplacement(chosen=1, clients=4))
    assert answer.epsilon(sampled, 0.25).epsilon == 0
    assert answer.epsilon(sampled, 0.249).epsilon > 0
    mixed = one_release(1.0, mixing=Mixup(ratio=DirichletRatio(concentration=0.5, clients=2)))
    assert answer.epsilon(mixed, 0.39).epsilon == 0


@pytest.mark.parametrize("concentration", [0.01, 0.05, 0.3, 1.0, 50.0, 1e4])
def test_any_concentration_lies_between_no_mixing_and_equal_ratios(concentration: float) -> None:
    law = DirichletRatio(concentration=concentration, clients=2)
    found = answer.epsilon(one_release(2.0, mixing=Mixup(ratio=law)), 1e-5)
    assert found.lower == found.epsilon
    assert (
        answer.epsilon(one_release(1.0), 1e-5).epsilon < found.epsilon < answer.epsilon(one_release(2.0), 1e-5).epsilon
    )


def test_updates_of_the_lower_model_are_added() -> None:
    updates = PrivateUpdates(noise_multiplier=2.0, chosen=10, records=100, steps=50)
    alone, charged = one_release(0.5), one_release(0.5, lower_model=updates)
    steps = one_release(0.5, participation=WithoutReplacement(chosen=10, clients=100), rounds=50)
    both = curve(alone, [4]) + curve(steps, [4])
    assert curve(charged, [4]) == pytest.approx(both, rel=1e-12)
    assert answer.epsilon(charged, 1e-5).epsilon > answer.epsilon(alone, 1e-5).epsilon


def test_a_client_with_a_batch_pays_for_each_release() -> None:
    client = one_release(0.5, unit="client", lower_model="trained", releases=16, rounds=4)
    assert answer.epsilon(client, 1e-5).epsilon == answer.epsilon(one_release(4.0), 1e-5).epsilon


def test_certificates_say_what_they_rest_on() -> None:
    found = answer.epsilon(table_1(CutMix(ratio=FixedRatio.equal(2), patches=64), chosen=2), 0.5)
    assert any("0.5 is large" in sentence for sentence in found.assumptions)
    assert any("drawn uniformly and secretly" in sentence for sentence in found.assumptions)
    assert (found.relation, found.unit, found.sound, found.objection) == ("replace_one", "record", True, "")
    assert {"numpy", "scipy"} <= set(found.versions)
    assert found.source
    edge = answer.epsilon(
        one_release(1e-4, participation=WithoutReplacement(chosen=1, clients=2), rounds=5), 1e-5, tight=False
    )
    assert edge.at_grid_edge or edge.order is None


@pytest.mark.parametrize("bad", [0, 1, -1e-5, float("nan"), inf, True, "1e-5", None])
def test_refuses_what_is_no_delta(bad: Any) -> None:
    for call in (lambda: answer.epsilon(one_release(), bad), lambda: list(answer.epsilons([one_release()], [bad]))):
        with pytest.raises(ValueError, match="delta must be a finite number > 0 and < 1"):
            call()


@pytest.mark.parametrize("bad", [-1, float("nan"), inf, True, "1", None])
def test_refuses_what_is_no_epsilon(bad: Any) -> None:
    with pytest.raises(ValueError, match="epsilon must be a finite number >= 0"):
        answer.delta(one_release(), bad)


@pytest.mark.parametrize("bad", [[], [1], [0.5], [float("nan")], [inf], [True]])
def test_refuses_what_is_no_order(bad: Any) -> None:
    with pytest.raises(ValueError, match="order"):
        answer.rdp(one_release(), bad)


def test_a_known_sensitivity_answers_for_its_relation_only() -> None:
    known = Known(value=1.0, relation="add_or_remove_one", norm="l2")
    with pytest.raises(ValueError, match="a replacement can move a release twice as far"):
        answer.epsilon(one_release(smashed=known), 1e-5)
