"""privkit as an accountant of opacus: `register()`, then `PrivacyEngine(accountant="privkit")`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

import numpy as np
from opacus.accountants import IAccountant, RDPAccountant, register_accountant

from privkit.accountants import validate
from privkit.accountants.bounds import renyi
from privkit.accountants.bounds.sampled import GaussianRelease
from privkit.accountants.compile import bounds

_NAME = "privkit"
MOST_KINDS = 32
"""With more kinds of steps, numerical composition is left out, since it needs a transform for each kind."""
_ORDERS = np.union1d(renyi.RENYI_ORDERS, RDPAccountant.DEFAULT_ALPHAS)
"""Rényi orders to try with at most `MOST_KINDS` kinds of steps. They contain opacus' own orders, so that ε is then
never above the ε of opacus' Rényi accountant."""
_ELSEWHERE = ("alphas", "eps_error", "delta_error")  # options of opacus' own accountants, which have no meaning here
_Step = tuple[float, float, int]


class PrivkitAccountant(IAccountant):  # type: ignore[misc]  # opacus has no types
    """An accountant of opacus for DP-SGD: its ε is the smallest result of numerical composition (PLD), Rényi
    composition, and exact composition that ignores sampling.

    Steps of the optimizer may differ in noise and sampling rate. Neighbors add or remove one record.

    Attributes:
        history: entries (noise multiplier, sample rate, number of steps), as in opacus' own accountants; equal steps in
            a row form one entry.

    Source: Doroshenko et al. 2022 (numerical composition); Mironov, Talwar and Zhang 2019 (Rényi, Poisson-sampled);
    Balle and Wang 2018, Theorem 8 (without sampling).

    >>> accountant = PrivkitAccountant()
    >>> accountant.history = [(1.0, 0.01, 1000)]
    >>> round(accountant.get_epsilon(1e-5), 3)
    1.828
    """

    def __init__(self) -> None:
        super().__init__()
        self.history: list[_Step] = []

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Count one step of the optimizer. `noise_multiplier` ≥ 0 is the noise's standard deviation divided by the
        clipping norm; `sample_rate` lies in (0, 1]."""
        sigma, rate, _ = _checked_entry((noise_multiplier, sample_rate, 1))
        if self.history and tuple(self.history[-1][:2]) == (sigma, rate):
            self.history[-1] = (sigma, rate, self.history[-1][2] + 1)
        else:
            self.history.append((sigma, rate, 1))

    def get_epsilon(self, delta: float, poisson: bool = True, **options: Any) -> float:
        """The smallest proven ε at δ for the steps so far: 0 before the first step, `inf` if a step had no noise.

        Args:
            delta: δ in (0, 1).
            poisson: whether batches are Poisson-sampled, the default of `make_private`. If not, ε is computed as if
                every record took part in every step, and neighbors replace one record by a record without a gradient.
            options: options of opacus' own accountants (alphas, eps_error, delta_error); they have no effect.
        """
        target = validate.delta(delta)
        if not isinstance(poisson, bool):
            raise ValueError(f"poisson must be True or False, got {poisson!r}")
        if unknown := sorted(set(options) - set(_ELSEWHERE)):
            raise ValueError(f"unknown option {unknown[0]!r} (allowed: poisson, {', '.join(_ELSEWHERE)})")
        counts: dict[tuple[float, float], int] = {}
        for sigma, rate, steps in map(_checked_entry, self.history):
            counts[sigma, rate] = counts.get((sigma, rate), 0) + steps
        if not counts:
            return 0.0
        if any(sigma == 0 for sigma, _ in counts):
            return inf
        return _smallest_epsilon(counts, target, poisson)

    def __len__(self) -> int:
        return sum(steps for _, _, steps in self.history)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint. Raises ValueError if it is empty, damaged, or another accountant's."""
        before = self.history
        super().load_state_dict(state_dict)
        try:
            self.history = [_checked_entry(entry) for entry in self.history]
        except (TypeError, ValueError) as error:
            self.history = before
            raise ValueError(f"the accountant's state cannot be loaded: {error}") from None

    @classmethod
    def mechanism(cls) -> str:
        """The name of this accountant in opacus."""
        return _NAME


def register() -> None:
    """Add this accountant to opacus for `PrivacyEngine(accountant="privkit")`. Repeated calls are harmless."""
    register_accountant(_NAME, PrivkitAccountant, force=True)


def _checked_entry(entry: Iterable[Any]) -> _Step:
    sigma, rate, steps = entry
    if isinstance(rate, float) and 1 < rate <= 1 + 1e-9:  # rounding may raise a sum of shares above 1
        rate = 1.0
    return (
        validate.real("noise_multiplier", sigma, least=0),
        validate.real("sample_rate", rate, above=0, most=1),
        validate.whole("steps", steps),
    )


def _smallest_epsilon(counts: Mapping[tuple[float, float], int], delta: float, poisson: bool) -> float:
    if sum(steps / sigma / sigma for (sigma, _), steps in counts.items()) == inf:
        return inf
    run = [
        (GaussianRelease(mu=1 / sigma, sampling="poisson", rate=rate if poisson else 1.0), steps)
        for (sigma, rate), steps in counts.items()
    ]
    few = len(run) <= MOST_KINDS
    epsilons = [bound.epsilon(delta).value for bound in bounds(run, tight=few)]
    if few and len(epsilons) > 1:  # the last ε is of numerical composition; if it is inf, take the finest curve
        curve = sum(
            step.fine_rdp(_ORDERS, count) if epsilons[-1] == inf else step.rdp(_ORDERS, count) for step, count in run
        )
        epsilons.append(renyi.best_epsilon(_ORDERS, curve, delta).value)
    return min(epsilons)
