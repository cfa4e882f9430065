"""Time privkit's accounting: ε for a table of mechanisms (beside opacus' RDP accountant), one exact ε, and imports.

    python benchmarks/run.py accounting

Times are medians of CPU seconds. The table has 1,000 mechanisms of T = 1,000 rounds each; half of them use Poisson
sampling, half draw k of n records without replacement, which opacus cannot account for. So opacus is timed on Poisson
rows only. To save time, opacus and numerical composition run on some rows (`--opacus-rows`, `--tight-rows`), and their
times are scaled to 1,000 rows.
"""

import csv
import io
import subprocess
import sys
import warnings
from dataclasses import dataclass
from statistics import median

import numpy as np
from timing import seconds

from privkit.accountants import answer, compile, table
from privkit.accountants.bounds import gaussian
from privkit.accountants.bounds import numerical_composition as pld
from privkit.accountants.bounds.numerical_composition import composed_bound
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletRatio
from privkit.accountants.spec.parts import Mixup, Noise, WithoutReplacement
from privkit.accountants.spec.sensitivity import Clamp

ROWS, ROUNDS, DELTA = 1000, 1000, 1e-5
TARGETS = {"table": 0.15, "ratio": 100.0, "one": 1e-3, "tight": 20.0, "import": 0.4, "loose": 1.3}
FRESH = "import time; a = time.perf_counter(); import {0}; b = time.perf_counter(); import sys; " + (
    "print(b - a, 'torch' in sys.modules)"
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `accounting`.

    Attributes:
        opacus_rows: number of Poisson rows on which opacus is timed, <= 500.
        tight_rows: number of rows that are composed numerically, <= 1000.
        repeats: number of timed repetitions.
    """

    repeats: int = 7
    opacus_rows: int = 10
    tight_rows: int = 50


def parameters(seed: int = 0) -> list[dict[str, object]]:
    """Rows of a table of mechanisms, in turn with Poisson sampling and with sampling without replacement."""
    generator = np.random.default_rng(seed)
    rows: list[dict[str, object]] = []
    for number in range(ROWS):
        sigma = round(float(generator.uniform(0.7, 4)), 4)
        cells: dict[str, object] = {"name": f"r{number}", "mechanism": "gaussian", "sigma": sigma, "sensitivity": 1}
        if number % 2:
            clients = int(generator.integers(100, 50_000))
            chosen = int(generator.integers(1, clients // 10))
            cells |= {"sampling": "without_replacement", "group": chosen, "clients": clients}
        else:
            rate = round(float(10 ** generator.uniform(-3, -1)), 6)
            cells |= {"sampling": "poisson", "rate": rate, "relation": "add_or_remove_one"}
        rows.append(cells | {"rounds": ROUNDS, "delta": DELTA})
    return rows


def mixed(count: int, seed: int = 0) -> list[SplitMechanism]:
    """`count` random mechanisms of DP-MixSL with Dirichlet ratios, in which k of n clients take part per round."""
    generator = np.random.default_rng(seed)

    def one() -> SplitMechanism:
        group = int(generator.integers(2, 6))
        return SplitMechanism(
            smashed=Clamp(low=0, high=1, dimensions=64),
            noise=Noise(smashed=float(generator.uniform(2, 20))),
            lower_model="frozen",
            mixing=Mixup(ratio=DirichletRatio(concentration=float(generator.uniform(1, 5)), clients=group)),
            participation=WithoutReplacement(chosen=group, clients=int(generator.integers(10, 1000))),
            rounds=int(generator.integers(50, 3000)),
        )

    return [one() for _ in range(count)]


def looseness(what: str, mechanisms: list[SplitMechanism]) -> None:
    """Print median and maximum of the fast ε divided by the numerically composed ε, over these mechanisms."""
    ratios = sorted(
        answer.epsilon(one, DELTA, tight=False).epsilon / answer.epsilon(one, DELTA).epsilon for one in mechanisms
    )
    value = f"{ratios[len(ratios) // 2]:.3f}, {ratios[-1]:.3f}"
    note = f"median, largest of {len(ratios)}; target {TARGETS['loose']}"
    said(f"fast ε over composed ε, {what}", value, ratios[-1] <= TARGETS["loose"], note)


def said(what: str, value: str, good: bool | None = None, note: str = "") -> None:
    """Print one line: the quantity `what`, its value, whether its target is met, and a note."""
    verdict = {None: "", True: "  met", False: "  MISSED"}[good]
    print(f"{what:<62}{value:>14}{verdict}{'  ' + note if note else ''}")


def opacus_loop(entries: list[table.TableEntry]) -> list[float]:
    """ε of each row by opacus' RDP accountant, with opacus' default orders."""
    from opacus.accountants import RDPAccountant

    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for entry in entries:
            assert entry.mechanism is not None
            accountant = RDPAccountant()
            accountant.history = [(entry.mechanism.noise.smashed, entry.mechanism.participation.rate, ROUNDS)]
            found.append(accountant.get_epsilon(DELTA))
    return found


def tight_loop(entries: list[table.TableEntry], interval: float | None) -> None:
    """Compose each row numerically, on a grid with this interval; None chooses it for each row."""
    for entry in entries:
        assert entry.mechanism is not None
        composed = composed_bound(compile.steps(entry.mechanism))
        assert composed is not None
        pld.composed_bounds(composed.pairs, DELTA, interval)


def fresh_import(module: str, repeats: int) -> tuple[float, bool]:
    """Median wall seconds of an import in a new process, and whether the import also loaded torch."""
    runs = [
        subprocess.run([sys.executable, "-c", FRESH.format(module)], capture_output=True, text=True, check=True).stdout
        for _ in range(repeats + 1)
    ][1:]
    return median(float(run.split()[0]) for run in runs), any(run.split()[1] == "True" for run in runs)


def main(options: Options) -> None:
    """Print medians, ratios and whether the targets are met."""
    if options.repeats < 1 or not 1 <= options.opacus_rows <= ROWS // 2 or not 2 <= options.tight_rows <= ROWS:
        raise ValueError("--repeats must be >= 1, --opacus-rows in 1..500 and --tight-rows in 2..1000")

    rows = parameters()
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), restval="")
    writer.writeheader()
    writer.writerows(rows)

    def read() -> list[table.TableEntry]:
        text.seek(0)
        return list(table.read(table.load_rows(None, text)))

    entries = read()
    assert not [entry.error for entry in entries if entry.error]
    mechanisms = [entry.mechanism for entry in entries if entry.mechanism is not None]
    deltas = [DELTA] * ROWS
    print(f"numpy {np.__version__}, {ROWS:,} rows, T = {ROUNDS:,}\n")

    compute = seconds(lambda: list(answer.epsilons(mechanisms, deltas)), options.repeats)
    variant = seconds(read, options.repeats)
    together = seconds(
        lambda: list(answer.epsilons([e.mechanism for e in read()], deltas)),  # type: ignore[misc]
        options.repeats,
    )
    said("table: computing", f"{compute:.4f} s")
    said("table: variant and checking", f"{variant:.4f} s")
    said("table: both", f"{together:.4f} s", together <= TARGETS["table"], f"target {TARGETS['table']} s")

    poisson = entries[::2]
    some = poisson[:: max(1, len(poisson) // options.opacus_rows)][: options.opacus_rows]
    own = [entry.mechanism for entry in some if entry.mechanism is not None]
    opacus = seconds(lambda: opacus_loop(some), max(1, options.repeats // 3)) / len(some) * ROWS
    single = seconds(lambda: [answer.epsilon(one, DELTA, tight=False) for one in own], options.repeats) / len(own)
    said("opacus' RDP accountant, in a loop", f"{opacus:.2f} s", None, f"{len(some)} Poisson rows, scaled to {ROWS:,}")
    ratio = opacus / together
    said("opacus over this table", f"{ratio:.0f} times", ratio >= TARGETS["ratio"], f"target {TARGETS['ratio']:.0f}")
    said("one Poisson row alone", f"{1e3 * single:.3f} ms")
    fast = [answer.epsilon(one, DELTA, tight=False).epsilon for one in own]
    above = max(ours / theirs for ours, theirs in zip(fast, opacus_loop(some), strict=True))
    said("fast ε over opacus', largest of these rows", f"{above:.3f}", above <= 1, "target 1")

    batch, plain = 200, table.mechanism_of({"mechanism": "gaussian", "sigma": 1.0, "sensitivity": 1})
    for what, work in (
        ("one exact ε: gaussian.epsilon", lambda: gaussian.epsilon(DELTA, 1.0)),
        ("one exact ε with its certificate: answer.epsilon", lambda: answer.epsilon(plain, DELTA)),
    ):
        one = seconds(lambda: [work() for _ in range(batch)], options.repeats) / batch  # noqa: B023
        said(what, f"{1e3 * one:.3f} ms", one <= TARGETS["one"], "target 1 ms")

    spread = entries[:: max(1, ROWS // options.tight_rows)][: options.tight_rows]
    if options.tight_rows < ROWS:  # an even step would select Poisson rows only
        spread = [entries[(i * ROWS // options.tight_rows) // 2 * 2 + i % 2] for i in range(options.tight_rows)]
    scale = ROWS / len(spread)
    for interval in (1e-3, None):
        tight = seconds(lambda: tight_loop(spread, interval), 1) * scale  # noqa: B023
        grid = "grid 1e-3" if interval else "grid chosen row by row, as answer.epsilon does"
        note = f"{len(spread)} rows, scaled to {ROWS:,}" if scale > 1 else "all rows"
        good = tight <= TARGETS["tight"] if interval else None
        said(f"tight table, {grid}", f"{tight:.2f} s", good, note + (", target 20 s" if interval else ""))

    looseness("Gaussian rows", [entry.mechanism for entry in spread if entry.mechanism is not None])
    looseness("Dirichlet ratios, k of n", mixed(options.tight_rows))

    for module in ("privkit.accountants", "privkit.accountants.answer"):
        wall, torch = fresh_import(module, options.repeats)
        good = wall <= TARGETS["import"] and not torch
        said(f"import {module}", f"{wall:.3f} s", good, f"target 0.4 s; torch {'loaded' if torch else 'not loaded'}")
