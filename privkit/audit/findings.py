"""Findings about a cell: did the attack converge, and is it better than guesses that need no release?"""

from __future__ import annotations

from privkit.reports.schema import Check, Metrics

CONVERGENCE: dict[bool | None, str] = {
    True: "attack converged: the last quarter of its epochs improved the held-out error by less than 5 %, and it ends "
    "within 5 % of its best epoch",
    False: "attack not converged: it was still improving, or ended worse than its best epoch",
    None: "convergence not judged: fewer than four epochs",
}


def judge(converged: bool | None, recovered: Metrics, floors: dict[str, Metrics]) -> tuple[Check, ...]:
    """Gates of one cell: did the attack converge, and does it beat the mean image and its own untrained start?

    A gate that fails here is a finding about the cell, not a fault of the run: numbers at the floor say that this
    attack got nothing, never that nothing is to be got.
    """
    found = [
        Check(
            name="converged",
            passed=converged,
            detail=CONVERGENCE[converged],
            decisive=False,
        )
    ]
    for name, what in (("mean_image", "the mean image"), ("zero_steps", "the attack's own untrained start")):
        if name in floors:
            ours, floor = recovered["mse"], floors[name]["mse"].mean
            passed = ours.high < floor
            found.append(
                Check(
                    name=f"beats_{name}",
                    passed=passed,
                    detail=f"{'better' if passed else 'no better'} than {what}: "
                    f"MSE {ours.mean:.4f} against {floor:.4f}",
                    decisive=False,
                )
            )
    return tuple(found)
