"""ε of DP-SL, DP-MixSL and DP-CutMixSL against k, σ and rounds: what is proven, and what Corollary 1 says. PNG and SVG.

    python benchmarks/budgets.py OUT

The setting is that of Table 1 of DP-CutMixSL (Δ = .15, D_s = 10, one-hot labels, noise after mixing) at δ = 1e-5. Three
pictures grant the corollary its assumptions (λ = 1/k, a secret k of 10 clients); the fourth has what the paper runs:
ratios from Dir(2) and round-robin groups. Corollary 1 says nothing about rounds: its curve is T times it at δ/T.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from privkit.accountants import answer
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletRatio, FixedRatio
from privkit.accountants.spec.parts import CutMix, EveryRound, Mixup, Noise, NoMixing, WithoutReplacement
from privkit.accountants.spec.sensitivity import Clamp, OneHot
from privkit.papers.dp_cutmixsl.claims import corollary_1, table_1
from privkit.reports.budget_curves import BudgetCurve, curves
from privkit.reports.budgets import BudgetRow, csv_text, remarks, rich_table
from privkit.reports.figures import save

NAMES = {"dp_sl": "DP-SL", "dp_mixsl": "DP-MixSL", "dp_cutmixsl": "DP-CutMixSL"}
ORDER = 2
"""Corollary 1 is evaluated at one order."""
CONCENTRATION = 2.0
"""α_M of the ratios in the fourth picture."""


def mechanism(name: str, *, group: int, sigma: float, rounds: int, drawn: bool) -> SplitMechanism:
    """The setting of Table 1; `drawn`: ratios from Dir(2) and round-robin groups."""
    ratio = DirichletRatio(concentration=CONCENTRATION, clients=group) if drawn else FixedRatio.equal(group)
    mixing = {"dp_sl": NoMixing(), "dp_mixsl": Mixup(ratio=ratio), "dp_cutmixsl": CutMix(ratio=ratio, patches=64)}
    return SplitMechanism(
        smashed=Clamp(low=0, high=0.15, dimensions=10),
        labels=OneHot(),
        noise=Noise(smashed=sigma, labels=sigma),
        lower_model="frozen",
        mixing=mixing[name],
        participation=EveryRound() if drawn else WithoutReplacement(chosen=group, clients=10),
        rounds=rounds,
    )


def row(number: int, name: str, delta: float, *, group: int, sigma: float, rounds: int, drawn: bool) -> BudgetRow:
    """What is proven, and what is published, about one setting."""
    proven = answer.epsilon(mechanism(name, group=group, sigma=sigma, rounds=rounds, drawn=drawn), delta)
    setting = table_1(name, group=group, sigma=sigma)  # type: ignore[arg-type]
    if drawn:
        concentration = None if name == "dp_sl" else CONCENTRATION
        setting = replace(setting, sampling="partition", concentration=concentration)
    printed = corollary_1(setting, order=ORDER, delta=delta / rounds)
    return BudgetRow(
        row=number,
        name=f"{NAMES[name]} k={group} σ={sigma:.4g} T={rounds:,}{' Dir(2), round-robin' * drawn}",
        mechanism=name,
        epsilon=proven.epsilon,
        delta=proven.delta,
        lower=proven.lower,
        method=proven.method,
        order=proven.order,
        at_grid_edge=proven.at_grid_edge,
        sound=proven.sound,
        statement=proven.statement,
        published=rounds * printed.epsilon,
        objection=printed.objection,
    )


def picture(found: dict[str, list[BudgetRow]], values: list[float], **text: Any) -> Figure:
    """Curves of the three mechanisms; a published value is a bound where it is not below the proven one."""
    return curves(
        [
            BudgetCurve(
                label=NAMES[name],
                values=np.array(values),
                epsilon=np.array([one.epsilon for one in rows], float),
                published=np.array([one.published for one in rows], float),
                sound=np.array([one.published >= one.epsilon for one in rows]),  # type: ignore[operator]
            )
            for name, rows in found.items()
        ],
        **text,
    )


def main() -> None:
    """Write four pictures and the table behind them."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("out", type=Path, help="folder; made if it does not exist")
    arguments.add_argument("--delta", type=float, default=1e-5)
    arguments.add_argument("--points", type=int, default=17, help="values of σ")
    arguments.add_argument("--rounds", type=int, nargs="+", default=[1, 3, 10, 30, 100, 300, 1000, 3000, 10_000])
    options = arguments.parse_args()
    if not 0 < options.delta < 1 or options.points < 2 or min(options.rounds) < 1:
        arguments.error("--delta must lie in (0, 1), --points be >= 2 and --rounds >= 1")
    options.out.mkdir(parents=True, exist_ok=True)

    usual: dict[str, Any] = {"group": 2, "sigma": 16 / 255, "rounds": 1, "drawn": False}
    words = {"group": "k = 2", "sigma": "σ_s = σ_y = 16/255", "rounds": "one release"}
    sigmas = np.geomspace(8 / 255, 8, options.points).tolist()
    rounds = sorted(options.rounds)
    sampled, corollary = "λ = 1/k, k of n = 10 clients", "dashed: Corollary 1, α = 2"
    pictures: tuple[tuple[str, str, list[Any], dict[str, Any], str, str], ...] = (
        ("group", "group size k", list(range(1, 11)), {"whole": True}, sampled, corollary),
        ("sigma", "noise standard deviation σ_s = σ_y", sigmas, {"log_x": True}, sampled, corollary),
        ("rounds", "rounds T", rounds, {"log_x": True, "whole": True}, sampled, "dashed: T times Corollary 1 at δ/T"),
        ("group", "group size k", list(range(1, 11)), {"whole": True}, "λ ~ Dir(2), round-robin", corollary),
    )
    rows: list[BudgetRow] = []
    for parameter, xlabel, values, scale, assumed, published in pictures:
        drawn = assumed != sampled
        found: dict[str, list[BudgetRow]] = {}
        for name in NAMES:
            given = [usual | {parameter: value, "drawn": drawn} for value in values]
            found[name] = [row(len(rows) + i, name, options.delta, **one) for i, one in enumerate(given, 1)]
            rows += found[name]
        others = ", ".join(text for key, text in words.items() if key != parameter)
        figure = picture(
            found,
            values,
            title=f"ε against {xlabel}" + (", as the paper draws ratios and groups" if drawn else ""),
            subtitle=f"δ = {options.delta:g}, {others}, {assumed}; Δ = .15, D_s = 10, N = 64; {published}",
            xlabel=xlabel,
            **scale,
        )
        for kind in ("png", "svg"):
            path = options.out / f"epsilon_against_{parameter}{'_dirichlet' * drawn}.{kind}"
            path.write_bytes(save(figure, kind))
    (options.out / "budgets.csv").write_text("".join(csv_text(rows)), encoding="utf-8")

    from rich.console import Console

    console = Console()
    console.print(rich_table(rows, compare=True))
    for number, sentence in enumerate(remarks(rows, compare=True), 1):
        print(f"[{number}] {sentence}")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
