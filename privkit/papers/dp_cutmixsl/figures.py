"""Draws ε (proven, and by Corollary 1) against group size, noise and rounds, and pictures of messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from privkit.papers.dp_cutmixsl.mechanisms import Experiment
from privkit.papers.dp_cutmixsl.setting import NAMES, Mechanism
from privkit.papers.mixed_pictures import mixed_pictures
from privkit.reports.figures import BudgetCurve, curves

_DELTA = 1e-5
_GROUPS = tuple(range(1, 11))
_SIGMAS = tuple(np.geomspace(8 / 255, 8, 17).tolist())
_ROUNDS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)

_ASSUMED = "λ = 1/k, k of n = 10 clients"
_METHODS = {
    "Vanilla Cutout": "vanilla_cutout",
    "Random Cutout": "random_cutout",
    "Mixup": "mixup:concentration=inf",
    "Vanilla CutMix": "vanilla_cutmix:concentration=inf",
    "Random CutMix": "random_cutmix:concentration=inf",
    "DP-Mixup": "dp_mixsl:concentration=inf,bound=1,signed=true",
    "DP-CutMix": "dp_cutmixsl:concentration=inf,bound=1,signed=true",
}
"""Title of a picture -> the method. The clamp to width 1 is signed, so that it keeps both signs of tokens."""


def against_group(groups: Sequence[int] = _GROUPS, *, drawn: bool = False) -> Figure:
    """Draw ε against the group size k, by default 1 to 10; `drawn` takes Dir(2) ratios and round-robin groups."""
    return _picture(
        lambda name, group: Experiment(name=name, group=int(group), drawn=drawn),
        groups,
        title="ε against group size k" + (", as the paper draws ratios and groups" if drawn else ""),
        subtitle=f"σ_s = σ_y = 16/255, one release, {'λ ~ Dir(2), round-robin' if drawn else _ASSUMED}",
        xlabel="group size k",
        whole=True,
    )


def _against_sigma(sigmas: Sequence[float] = _SIGMAS) -> Figure:
    return _picture(
        lambda name, sigma: Experiment(name=name, sigma=sigma),
        sigmas,
        title="ε against noise standard deviation σ_s = σ_y",
        subtitle=f"k = 2, one release, {_ASSUMED}",
        xlabel="noise standard deviation σ_s = σ_y",
        log_x=True,
    )


def _against_rounds(rounds: Sequence[int] = _ROUNDS) -> Figure:
    """ε against the number of rounds T. Corollary 1 covers one round, so its curve shows T times the ε that it claims
    at δ/T."""
    return _picture(
        lambda name, count: Experiment(name=name, rounds=int(count)),
        rounds,
        title="ε against rounds T",
        subtitle=f"k = 2, σ_s = σ_y = 16/255, {_ASSUMED}",
        published="dashed: T times Corollary 1 at δ/T",
        xlabel="rounds T",
        log_x=True,
        whole=True,
    )


FIGURES: Mapping[str, Callable[[], Figure]] = {
    "epsilon_against_group": against_group,
    "epsilon_against_group_dirichlet": partial(against_group, drawn=True),
    "epsilon_against_sigma": _against_sigma,
    "epsilon_against_rounds": _against_rounds,
    "mixed_pictures": partial(mixed_pictures, _METHODS),
}
"""File name -> the function that draws the figure."""


def _picture(
    experiment: Callable[[Mechanism, float], Experiment],
    values: Sequence[float],
    *,
    title: str,
    subtitle: str,
    published: str = "dashed: Corollary 1, α = 2",
    **axes: Any,
) -> Figure:
    drawn = []
    for name, label in NAMES.items():
        row = [experiment(name, value) for value in values]
        proven = np.array([one.proven(_DELTA).epsilon for one in row], float)
        claimed = np.array([one.published(_DELTA)[0] for one in row], float)
        drawn.append(
            BudgetCurve(
                label=label,
                values=np.array(values, float),
                epsilon=proven,
                published=claimed,
                sound=claimed >= proven,
            )
        )
    subtitle = f"δ = {_DELTA:g}, {subtitle}; Δ = .15, D_s = 10, N = 64; {published}"
    return curves(drawn, title=title, subtitle=subtitle, **axes)
