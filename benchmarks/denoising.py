"""The denoising simulations of accurate split learning (Figs. 2, 6 and 7) as PNG and SVG, and the numbers behind them.

    python benchmarks/denoising.py OUT --draws 1000 --seed 0

The paper leaves m, n and the nonlinear functions open; what was chosen is printed and written below each figure.
"""

import argparse
from pathlib import Path
from typing import Literal

import numpy as np

from privkit.papers.accurate_sl.denoising import (
    LinearLayer,
    Noise,
    best_scale,
    least_variance_for_masking,
    mask_mse,
    scale_mse,
)
from privkit.papers.accurate_sl.denoising_simulation import Curves, Settings, best_scales, figure_2, figure_6, figure_7
from privkit.papers.accurate_sl.panels import Panel, panels
from privkit.reports.figures import save

FORMULAS = {
    "linear": "$f_1$ (linear layer)",
    "loss": "$f_2$ (cross-entropy)",
    "gradient": "$f_2'$ (gradient at the cut)",
}
UNITS = {
    "linear": "MSE of the logits, summed over classes",
    "loss": "MSE of the loss (nats²)",
    "gradient": "MSE of the gradient,\nsummed over features (nats²)",
}
FACTORS = {
    "scaling": "scaling factor λ = 1/α  (1 = no scaling)",
    "masking": "masking ratio p, share kept  (1 = no masking)",
}


def panel(curves: Curves, settings: Settings, letter: str) -> Panel:
    """One panel; the closed form of the mean error is drawn where there is one."""
    exact, average = None, LinearLayer.average(rows=settings.rows, columns=settings.columns)
    if curves.quantity == "linear":
        error = scale_mse if curves.operator == "scaling" else mask_mse
        noises = [Noise(law=settings.law, scale=scale) for scale in settings.scales]
        exact = np.array([[error(average, value, noise) for value in curves.factor] for noise in noises])
    symbol = "σ" if settings.law == "gaussian" else "b"
    return Panel(
        title=f"({letter}) {FORMULAS[curves.quantity]}, {curves.operator}",
        xlabel=FACTORS[curves.operator],
        ylabel=UNITS[curves.quantity],
        factor=curves.factor,
        levels=[f"{symbol} = {scale:g}" for scale in settings.scales],
        mse=curves.mse,
        error=curves.error,
        exact=exact,
    )


def write(name: str, found: list[Curves], settings: Settings, out: Path) -> None:
    """One figure as PNG and SVG, and where its curves are lowest."""
    drawn = [panel(curves, settings, "abcdef"[number]) for number, curves in enumerate(found)]
    figure = panels([drawn[row : row + 2] for row in range(0, len(drawn), 2)], note=settings.describe())
    for kind in ("png", "svg"):
        (out / f"{name}.{kind}").write_bytes(save(figure, kind))
    print(f"\n{name}: {settings.describe()}")
    for curves in found:
        letter = "λ" if curves.operator == "scaling" else "p"
        for scale, line in zip(curves.scale, curves.mse, strict=True):
            lowest = int(line.argmin())
            print(
                f"  {curves.quantity:8} {curves.operator}  scale {scale:.2f}:  lowest {line[lowest]:8.4f} "
                f"at {letter} = {curves.factor[lowest]:.2f},  no denoising {line[-1]:8.4f}"
            )


def numbers(settings: Settings) -> None:
    """The closed forms over U[−1, 1], and how far single draws lie from them."""
    average = LinearLayer.average(rows=settings.rows, columns=settings.columns)
    least = least_variance_for_masking(average, 1) ** 0.5
    print(f"\nOver M, X from U[−1, 1] (any m, n): masking helps iff σ > {least:.4f}")
    for scale in settings.scales:
        single = np.quantile(best_scales(settings, scale), [0.05, 0.5, 0.95])
        best = best_scale(average, Noise(law="gaussian", scale=scale))
        print(
            f"  σ = {scale:g}: best λ of the mean error 1/(1+3σ²) = {best:.4f}; "
            f"λ* of {settings.draws} single draws at m = {settings.rows}, n = {settings.columns}: "
            f"5 % {single[0]:.4f}, median {single[1]:.4f}, 95 % {single[2]:.4f}"
        )


def main() -> None:
    """Write three figures and print their numbers."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("out", type=Path, help="folder; made if it does not exist")
    arguments.add_argument("--draws", type=int, default=1000, help="k, Monte Carlo draws a curve")
    arguments.add_argument("--single-draws", type=int, default=20_000, help="draws behind the range of λ*")
    arguments.add_argument("--rows", type=int, default=10, help="m, classes")
    arguments.add_argument("--columns", type=int, default=16, help="n, smashed features")
    arguments.add_argument("--points", type=int, default=21, help="values of λ and p")
    arguments.add_argument("--scales", type=float, nargs="+", default=[0.3, 0.5, 0.7], help="σ, and b of Laplace noise")
    arguments.add_argument("--seed", type=int, default=0)
    options = arguments.parse_args()

    def settings(law: Literal["gaussian", "laplace"], draws: int) -> Settings:
        return Settings(
            law=law,
            scales=tuple(options.scales),
            rows=options.rows,
            columns=options.columns,
            draws=draws,
            points=options.points,
            seed=options.seed,
        )

    try:
        gaussian, laplace = settings("gaussian", options.draws), settings("laplace", options.draws)
        single = settings("gaussian", options.single_draws)
    except ValueError as error:
        arguments.error(str(error))
    print(
        "Chosen, because the paper does not say and its simulations were not released: m and n as given below; M, X and"
    )
    print(
        "the class drawn anew in each of k draws; f_1(u) = Mu, f_2(u) = softmax cross-entropy of Mu, f_2' its gradient;"
    )
    print("one mask for all rows of M; the same draws for every noise level, λ and p.")
    options.out.mkdir(parents=True, exist_ok=True)
    write("figure_2", figure_2(gaussian), gaussian, options.out)
    write("figure_6", figure_6(gaussian), gaussian, options.out)
    write("figure_7", figure_7(laplace), laplace, options.out)
    numbers(single)
    print(f"\nwritten to {options.out}")


if __name__ == "__main__":
    main()
