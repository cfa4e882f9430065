"""Compare the proven floor (lower bound) on the reconstruction error with attacks: `python benchmarks/run.py floor`.

Records are drawn from the prior that the floor assumes, a Gaussian fitted to the tiny digits (8×8). An untrained
client's segment with Gaussian noise releases them. There are four segments: a linear map; a linear map with a clip that
most numbers exceed; two convolutions with tanh and a clip of each coordinate; and one transformer block with a clip of
the L2 norm. Every attack knows the prior. A cell (one measurement) is a segment, a strength of noise and a seed, and
one line of results/floor/rows.jsonl; the command continues with the missing cells, and writes floor.csv.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from time import process_time
from typing import Any

import numpy as np
import torch
from cells import append, read_lines, write_table
from run import machine
from torch import Generator, Tensor, nn

from privkit.accountants import ErrorFloor, GaussianPrior, error_floor
from privkit.accountants.spec import Noise
from privkit.defenses.noise import clipped
from privkit.domains.images.domain import Images
from privkit.domains.images.embedded import TinyDigits
from privkit.parts.registry import parse
from privkit.torch_utils.directional import along
from privkit.torch_utils.seeded import seeded

ROWS = Path(__file__).parent / "results" / "floor" / "rows.jsonl"
SHAPE = (1, 8, 8)
SIGMAS = {"linear": (0.02, 0.1, 0.5), "clipped": (0.005, 0.02, 0.1), "conv": (0.02, 0.1, 0.5), "vit": (0.02, 0.1, 0.5)}
Release = Callable[[Tensor], Tensor]
"""Function from records [B, 64] to the client's output [B, m], before noise."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `floor`.

    Attributes:
        segment: the client's segments to measure: linear, clipped, conv, vit.
        seeds: seeds to measure.
        records: number of attacked records for each segment, strength of noise and seed.
        steps: number of optimization steps of the attacks that know the client's weights (one seeks the most probable
            record, one the posterior mean); the trained decoder takes ten times as many.
        record_to: the file of results.
    """

    segment: tuple[str, ...] = ("linear", "clipped", "conv", "vit")
    seeds: tuple[int, ...] = (0, 1, 2)
    records: int = 100
    steps: int = 300
    record_to: str = str(ROWS)


def release_of(segment: str, seed: int) -> Release:
    """The client's segment with its clip, frozen."""
    if segment == "vit":
        split = parse("models", "vit_micro").spec.build(Images(shape=SHAPE), 10, positions=True, seed=seed)
        network: nn.Module = split.lower
    else:
        with seeded(torch.device("cpu"), seed):
            network = (
                nn.Sequential(nn.Flatten(), nn.Linear(64, 48))
                if segment in ("linear", "clipped")
                else nn.Sequential(
                    nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 8, 3, 2, padding=1), nn.Tanh()
                )
            )
    network.eval().requires_grad_(False)
    bound, by = {
        "linear": (None, "coordinate"),
        "clipped": (0.05, "coordinate"),
        "conv": (0.5, "coordinate"),
        "vit": (10.0, "image"),
    }[segment]
    return lambda x: clipped(network(x.view(-1, *SHAPE))[None], bound, by)[0].flatten(1)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What an attacker knows: the map, σ, the prior (mean [64], directions [64, 64]) and the releases [B, m]."""

    release: Release
    sigma: float
    mean: Tensor
    directions: Tensor
    seen: Tensor

    def record(self, u: Tensor) -> Tensor:
        return self.mean + u @ self.directions.T

    def energy(self, u: Tensor) -> Tensor:
        """[B] Negative log density of the records' coordinates u and the releases, up to a constant."""
        misfit = (self.release(self.record(u)) - self.seen).square().sum(1)
        return misfit / (2 * self.sigma**2) + u.square().sum(1) / 2


def pairs(problem: Problem, count: int, draws: Generator) -> tuple[Tensor, Tensor]:
    """Draw `count` records from the prior: their releases, and the records."""
    x = problem.record(torch.randn(count, problem.directions.shape[1], generator=draws))
    clean = problem.release(x)
    return clean + problem.sigma * torch.randn(clean.shape, generator=draws), x


def ridge(problem: Problem, draws: Generator) -> Tensor:
    """Guesses of the best affine map from releases to records, learned from 20,000 pairs."""
    z, x = pairs(problem, 20_000, draws)
    z, x = z.double(), x.double()
    centered = z - z.mean(0)
    gram = centered.T @ centered
    gram += 1e-3 * gram.diagonal().mean() * torch.eye(len(gram))
    weights = torch.linalg.solve(gram, centered.T @ (x - x.mean(0)))
    return (x.mean(0) + (problem.seen.double() - z.mean(0)) @ weights).float()


def decoder(problem: Problem, steps: int, seed: int, draws: Generator) -> Tensor:
    """Guesses of a network that learns records from newly drawn pairs, so it approaches the posterior mean."""
    size = problem.seen.shape[1]
    with seeded(torch.device("cpu"), seed):
        net = nn.Sequential(
            nn.BatchNorm1d(size), nn.Linear(size, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 64)
        )
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for _ in range(steps):
        with torch.no_grad():
            z, x = pairs(problem, 128, draws)
        optimizer.zero_grad()
        (net(z) - x).square().mean().backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return net.eval()(problem.seen)


def mode_and_mean(problem: Problem, spread: Tensor, steps: int, draws: Generator) -> tuple[Tensor, Tensor]:
    """Attack with the client's weights: find the most probable record, and from there the posterior mean by Langevin
    steps.

    Steps are scaled by `spread`, the posterior covariance under the average Fisher information, and accepted or
    rejected (Roberts and Tweedie 1996). Each record has its own step size; the second half of the steps is averaged.
    Returns both guesses for each record.
    """
    root = torch.linalg.cholesky(spread)
    v = torch.zeros(len(problem.seen), root.shape[0], requires_grad=True)  # u = root·v
    optimizer = torch.optim.Adam([v], 0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        problem.energy(v @ root.T).sum().backward()
        optimizer.step()
        schedule.step()
    mode = problem.record(v.detach() @ root.T)

    def of(v: Tensor) -> tuple[Tensor, Tensor]:
        v = v.detach().requires_grad_()
        energy = problem.energy(v @ root.T)
        return energy.detach(), torch.autograd.grad(energy.sum(), v)[0]

    at, step, total = v.detach(), torch.full((len(v), 1), 0.1), torch.zeros_like(v)
    energy, slope = of(at)
    for count in range(2 * steps):
        noise = torch.randn(at.shape, generator=draws)
        new = at - step * slope + (2 * step).sqrt() * noise
        new_energy, new_slope = of(new)
        back = (at - new + step * new_slope).square().sum(1) / (4 * step[:, 0])
        chance = (energy - new_energy + noise.square().sum(1) / 2 - back).clamp(max=0).exp()
        taken = torch.rand(len(at), generator=draws) < chance
        at, slope = torch.where(taken[:, None], new, at), torch.where(taken[:, None], new_slope, slope)
        energy = torch.where(taken, new_energy, energy)
        if count < steps:
            step *= (0.1 * (chance[:, None] - 0.57)).exp()
        else:
            total += at / steps
    return mode, problem.record(total.detach() @ root.T)


def line(segment: str, sigma: float, seed: int, options: Options) -> dict[str, Any]:
    """One cell: the floor, and each attack's mean squared error with its standard error over records."""
    started, draws = process_time(), Generator().manual_seed(seed)
    images = TinyDigits().open(None, download=False, train_images=1).train.images
    prior = GaussianPrior.of_records(images.reshape(-1, 64))
    release = release_of(segment, seed)
    derivatives = along(release, (64,))
    linear = segment == "linear"
    floor: ErrorFloor = error_floor(prior, derivatives, Noise(smashed=sigma), affine=linear, seed=seed)
    spent = process_time() - started
    mu, directions = (torch.as_tensor(one, dtype=torch.float32) for one in (prior.mean, prior.directions))
    problem = Problem(release=release, sigma=sigma, mean=mu, directions=directions, seen=torch.empty(0))
    seen, truth = pairs(problem, options.records, draws)
    problem = Problem(release=release, sigma=sigma, mean=mu, directions=directions, seen=seen)
    slopes = [derivatives(one, prior.directions) for one in prior.draw(20, np.random.default_rng(seed))]
    information = sum(one.T @ one for one in slopes) / len(slopes) / sigma**2
    spread = torch.as_tensor(np.linalg.inv(np.eye(64) + information), dtype=torch.float32)
    guesses = {"ridge": ridge(problem, draws), "decoder": decoder(problem, 10 * options.steps, seed, draws)}
    guesses["mode"], guesses["posterior_mean"] = mode_and_mean(problem, spread, options.steps, draws)
    if linear:
        left = seen - release(mu[None])
        guesses["exact_posterior_mean"] = problem.record(
            left @ torch.as_tensor(slopes[0], dtype=torch.float32) / sigma**2 @ spread
        )
    errors = {name: (guess - truth).square().mean(1) for name, guess in guesses.items()}
    best = min(errors, key=lambda name: float(errors[name].mean()))
    return {
        "segment": segment, "sigma": sigma, "seed": seed, "records": options.records, "steps": options.steps,
        "floor": floor.low, "estimate": floor.value, "exact": linear, "prior": floor.prior, "best": best,
        "errors": {name: [float(one.mean()), float(one.std()) / len(one) ** 0.5] for name, one in errors.items()},
        "floor_seconds": round(spent, 2), "seconds": round(process_time() - started, 1),
        **machine(torch.get_num_threads()),
    }  # fmt: skip


def summarize(rows: list[dict[str, Any]], path: Path) -> None:
    """Write floor.csv: means over seeds, and how far the best attack lies above the floor, in standard errors (z)."""
    table = []
    for key in [(segment, sigma) for segment, sigmas in SIGMAS.items() for sigma in sigmas]:
        if not (lines := [row for row in rows if (row["segment"], row["sigma"]) == key]):
            continue
        floor, prior = (mean(row[name] for row in lines) for name in ("floor", "prior"))
        best = mean(row["errors"][row["best"]][0] for row in lines)
        spread = sum(row["errors"][row["best"]][1] ** 2 for row in lines) ** 0.5 / len(lines)
        names = ", ".join(sorted({f"`{row['best']}`" for row in lines}))
        seeds = " ".join(sorted(str(row["seed"]) for row in lines))
        shown = (f"{best:.5f}", f"{best / floor:.2f}", f"{(best - floor) / spread:.1f}")
        table.append([*key, seeds, f"{prior:.4f}", f"{floor:.5f}", names, *shown])
    heading = ["segment", "σ", "seeds", "prior's mean", "floor", "best attack", "its MSE", "over the floor", "z"]
    write_table(path, heading, table)


def main(options: Options) -> None:
    """Measure the missing cells, and write the table."""
    path = Path(options.record_to)
    rows = read_lines(path)
    for segment in options.segment:
        for sigma in SIGMAS[segment]:
            for seed in options.seeds:
                key: dict[str, Any] = {"segment": segment, "sigma": sigma, "seed": seed}
                key |= {"records": options.records, "steps": options.steps}
                if any(key.items() <= row.items() for row in rows):
                    continue
                rows.append(line(segment, sigma, seed, options))
                append(path, rows[-1])
                shown = {name: f"{error:.4f}±{spread:.4f}" for name, (error, spread) in rows[-1]["errors"].items()}
                print(segment, sigma, seed, f"{rows[-1]['floor']:.4f}", f"{rows[-1]['prior']:.4f}", shown, flush=True)
    summarize(rows, path.with_name("floor.csv"))
