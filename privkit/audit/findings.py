"""Findings about a cell: did the attack converge, and is it better than guesses that need no release?"""

from __future__ import annotations

from torch import Tensor

from privkit.reports.columns import CONVERGED, LEARNED, START
from privkit.reports.schema import Check, Metrics
from privkit.reports.strongest import better
from privkit.shared.interval import Interval
from privkit.shared.measures import FLOORS, measure

CONVERGENCE: dict[bool | None, str] = {
    True: "attack converged: the last doubling of its training lowered the held-out error by at most 5 %",
    False: "attack not converged: the last doubling of its training lowered the held-out error by more than 5 %",
    None: "convergence not judged: the attack did not double its training",
}


_BEATEN = {name: floor.beaten for name, floor in FLOORS.items() if floor.beaten}
_BEATEN[START] = "the attack's own untrained start"
"""Floor -> what an attack must be better than."""


def learned(accuracy: Interval, labels: Tensor) -> Check:
    """Whether the model is shown to be better at its task than one constant answer.

    Args:
        accuracy: of the test records, with its interval.
        labels: of the test records, int64 [N].

    >>> import torch
    >>> chance = Interval(value=0.12, low=0.09, high=0.15, n=500, method="Clopper–Pearson")
    >>> learned(chance, torch.arange(500) % 10).detail[:60]
    'accuracy 0.120 is not shown to be better than the most frequ'
    """
    most = labels.bincount().max().item() / len(labels)
    passed = accuracy.low > most
    than = f"better than the most frequent label's share {most:.3f}"
    detail = (
        f"accuracy {accuracy.value:.3f} is {than}"
        if passed
        else (
            f"accuracy {accuracy.value:.3f} is not shown to be {than}: the model learned nothing, so that what attacks "
            "recover is compared at chance accuracy; train longer, or weaken the defense"
        )
    )
    return Check(name=LEARNED, passed=passed, detail=detail, decisive=False)


def judge(
    converged: bool | None, recovered: Metrics, floors: dict[str, Metrics], ahead: dict[str, Metrics]
) -> tuple[Check, ...]:
    """Findings about a cell: did the attack converge, and does it beat constant guesses and its own untrained start?

    Images are compared by their MSE with the mean image; other records by the first metric of their domain.

    A failed check here is a finding about the cell, not a fault of the run: numbers at the floor say that this attack
    recovered nothing, not that nothing can be recovered.

    Args:
        converged: as in `Reconstruction`.
        recovered: by the attack.
        floors: guess -> the same scores of it.
        ahead: guess -> how much closer the attack came, record by record.
    """
    checks = [
        Check(
            name=CONVERGED,
            passed=converged,
            detail=CONVERGENCE[converged],
            decisive=False,
        )
    ]
    metric = next(iter(recovered))
    for name, what in _BEATEN.items():
        if name in floors:
            ours, floor = recovered[metric], floors[name][metric]
            passed = better(ours, floor, ahead[name].get(metric))
            checks.append(
                Check(
                    name=f"beats_{name}",
                    passed=passed,
                    detail=f"{'better' if passed else 'no better'} than {what}: "
                    f"{measure(metric).spoken} {ours.value:.4f} against {floor.value:.4f}",
                    decisive=False,
                )
            )
    return tuple(checks)
