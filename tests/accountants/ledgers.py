"""Charges of every kind for a ledger's tests."""

from pathlib import Path
from typing import Any

from privkit.accountants.ledger import BudgetSpent, Ledger
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletRatio, RealizedRatios
from privkit.accountants.spec.parts import Mixup, Noise, Poisson, PrivateUpdates, WithoutReplacement
from privkit.accountants.spec.sensitivity import OneHot
from tests.accountants.one_release import noised

DELTA = 1e-5


def spec(sigma: Any = 8.0, **options: Any) -> SplitMechanism:
    """A mechanism with sensitivity 1 under replace-one, so μ = 1/σ."""
    return noised(sigma, **options)


def drawn(*ratios: tuple[float, ...]) -> SplitMechanism:
    """A mechanism with a realized sequence of Mixup ratios."""
    ratio: Any = RealizedRatios(ratios=ratios)
    return spec(2.0, mixing=Mixup(ratio=ratio), rounds=len(ratios))


SAMPLED = spec(2.0, participation=WithoutReplacement(chosen=2, clients=20))
POISSON = spec(1.5, relation="add_or_remove_one", participation=Poisson(rate=0.02))
RANDOM = spec(3.0, mixing=Mixup(ratio=DirichletRatio(concentration=2, clients=3)))
LAPLACE = spec(noise=Noise(law="laplace", smashed=5.0))
LABELED = spec(noise=Noise(smashed=8.0, labels=9.0), labels=OneHot())
UPDATED = spec(lower_model=PrivateUpdates(noise_multiplier=4.0, chosen=10, records=1000, steps=50))
KINDS = {
    "gaussian": spec(),
    "labeled": LABELED,
    "sampled": SAMPLED,
    "poisson": POISSON,
    "random": RANDOM,
    "laplace": LAPLACE,
}


def refused(book: Ledger, one: SplitMechanism, rounds: int) -> BudgetSpent | None:
    """Charge a ledger; return the refusal, or None if the charge was accepted."""
    try:
        book.charge(one, rounds=rounds)
    except BudgetSpent as refusal:
        return refusal
    return None


def filled(path: Path, count: int = 4) -> list[bytes]:
    """Write a ledger with `count` charges; return the lines of its file."""
    with Ledger(path) as book:
        for number in range(count):
            book.charge(spec(8.0 + number % 2), rounds=number + 1, note=f'epoch {number} "ü", "mechanism": {{')
    return path.read_bytes().splitlines(keepends=True)
