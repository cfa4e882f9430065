"""Grids of made-up cells: everything that a page may show, for as many defenses, attacks and seeds as a test wants."""

from itertools import product
from pathlib import Path

import numpy as np

from privkit.parts.threats import threats_of
from privkit.reports.charts import Told
from privkit.reports.gallery import Pictures
from privkit.reports.page import Report, render
from privkit.reports.schema import Check, Manifest, PlannedCell, Row
from privkit.reports.seed_intervals import over_seeds
from privkit.reports.verdict import judge
from privkit.shared.certificate import Certificate
from privkit.shared.costs import Costs
from privkit.shared.interval import Interval
from privkit.shared.limits import Limits
from tests.reports.made import made, metric

SHIFTY = "<script>document.title='owned'</script>"
MODELS = ("query", "weights", "passive", "malicious")
LIMITS = Limits(advantage=0.5, false_positives=(0.0, 0.01, 0.1, 0.5, 1.0), true_positives=(0.0, 0.05, 0.4, 0.9, 1.0))
COSTS = Costs(
    bytes_up=6144,
    bytes_down=6144,
    bytes_up_model=0,
    bytes_down_model=0,
    bytes_seed=0,
    client_macs=1_893_888,
    client_training_macs=5_606_400,
    client_parameters=118_176,
    peak_memory=8_855_612,
)


def grid(
    defenses: tuple[str, ...], attacks: tuple[str, ...], seeds: int, *, side: int = 16, channels: int = 1
) -> Report:
    """A report on made-up results of every defense, attack and seed; attacks named `canaries` get scores."""
    draws = np.random.default_rng(0)
    rows = [
        _row(defense, attack, seed, number, draws)
        for seed in range(seeds)
        for number, defense in enumerate(defenses)
        for attack in attacks
    ]
    truths = [draws.integers(0, 255, (8, side, side, channels), dtype=np.uint8) for _ in range(seeds)]
    pictures = {
        row.cell: Pictures(
            truth=truths[row.seed],
            guess=draws.integers(0, 255, (8, side, side, channels), dtype=np.uint8),
            floors={"mean_image": np.broadcast_to(truths[row.seed].mean(0).astype(np.uint8), truths[row.seed].shape)},
        )
        for row in rows
        if row.recovered
    }
    planned = tuple(
        PlannedCell(
            cell=row.cell, model=f"{row.defense}-{row.seed}", defense=row.defense, attack=row.attack, seed=row.seed
        )
        for row in rows
    )
    manifest = Manifest(
        privkit="0.1.0",
        created="2026-01-01T00:00:00+00:00",
        argv=("privkit", "audit"),
        config={"defenses": list(defenses)},
        fingerprint="f",
        threads=1,
        seeds=tuple(range(seeds)),
        cells=planned,
    )
    return Report(
        rows=rows,
        summaries=over_seeds(rows),
        threats=threats_of(rows),
        manifest=manifest,
        verdict=judge(planned, rows, [], run="f"),
        pictures=pictures,
        texts={},
        told={row.cell: _told(draws) for row in rows if "auc" in row.answers},
        commands={row.cell: f"privkit audit --defense '{row.defense}' --attack {row.attack}" for row in rows},
    )


def _row(defense: str, attack: str, seed: int, number: int, draws: np.random.Generator) -> Row:
    """One cell; an attack named `canaries` tells examples apart, others guess images."""
    accuracy, ssim, mse = 0.95 - 0.03 * number, 0.1 + 0.4 * draws.random(), 0.03 + 0.05 * draws.random()
    of = {
        "ssim": metric(ssim, ssim - 0.05, ssim + 0.05, worst=ssim + 0.2, closer=True),
        "mse": metric(mse, 0.9 * mse, 1.1 * mse, worst=mse / 2, closer=False),
        "psnr": metric(15, 14, 16, worst=20, closer=True),
    }
    floor = {
        "ssim": metric(0.18, 0.17, 0.19, worst=0.4, closer=True),
        "mse": metric(0.067, 0.06, 0.07, worst=0.02, closer=False),
        "psnr": metric(11, 10, 12, worst=15, closer=True),
    }
    tells = attack == "canaries"
    auc = Interval(value=0.7, low=0.6, high=0.8, n=100, method="DeLong")
    checks = ("wins_on_identity", "fails_on_noise", "converged", "beats_mean_image")
    proof = Certificate(
        kind="differential_privacy",
        statement=f"({10 ** (number % 4)}, 1e-05)-differential privacy of each record",
        epsilon=10.0 ** (number % 4),
        delta=1e-5,
        assumptions=("noise is drawn from a sound generator", "each client clips before it sends"),
        source="Theorem 1",
    )
    return made(
        cell=f"{number}-{attack}-s{seed}",
        defense=defense,
        attack=attack,
        seed=seed,
        threat_model=MODELS[len(attack) % 4],
        accuracy=Interval(value=accuracy, low=accuracy - 0.02, high=accuracy + 0.02, n=500, method="m"),
        recovered={} if tells else {"unaligned": of, "matched": of},
        floors={} if tells else {name: {"unaligned": floor} for name in ("mean_image", "mid_grey", "zero_steps")},
        answers={"auc": auc, "advantage": auc, "tpr_at_1_percent": auc} if tells else {},
        certificate=None if defense == "none" else proof,
        limits=None if defense == "none" else LIMITS,
        checks=tuple(Check(name=name, passed=True, detail=f"{name} as it should", decisive=False) for name in checks),
        costs=COSTS,
        notes=("a note on this attack",),
        knowledge=("auxiliary", "query"),
        counts={"private": 2500, "auxiliary": 2000, "test": 500, "victims": 100},
        training_curve=tuple(2.3 * 0.8**epoch for epoch in range(20)),
        attack_curve=tuple(0.1 * 0.9**epoch for epoch in range(20)),
    )


def _told(draws: np.random.Generator) -> Told:
    """Scores of two overlapping kinds, and the curve between them."""
    positive, negative = draws.normal(1, 1, 100), draws.normal(0, 1, 100)
    cuts = np.sort(np.concatenate([positive, negative, [99]]))[::-1]
    false, true = ((kind >= cuts[:, None]).mean(1) for kind in (negative, positive))
    return Told(positive=positive, negative=negative, false=false, true=true, auc=0.7, limits=LIMITS)


def named(count: int) -> tuple[str, ...]:
    """The undefended model and this number of settings of two defenses."""
    settings = product(("gaussian_noise:sigma=", "masking:keep="), range(1, count))
    return ("none", *(f"{name}{value / 10:g}" for name, value in sorted(settings, key=lambda one: one[1])))[:count]


def rendered(report: Report, folder: Path) -> Path:
    """The page of a report and its files."""

    def write(path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    return render(report, folder, write)
