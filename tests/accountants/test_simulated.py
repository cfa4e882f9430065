"""Certificates against samples of the mechanism itself."""

from collections.abc import Callable
from dataclasses import replace
from math import inf, log
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import beta

from privkit.accountants import answer
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletCounts, DirichletRatio, FixedRatio
from privkit.accountants.spec.parts import CutMix, EveryRound, Mixup, Noise, WithoutReplacement
from privkit.accountants.spec.sensitivity import Clamp, OneHot
from tests.accountants.one_release import one_release

Array = NDArray[np.float64]


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


@pytest.mark.slow(but=1)
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
