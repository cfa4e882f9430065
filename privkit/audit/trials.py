"""Trials of a study: lines of a file, and the next one from the seed and the lines before it.

They depend on nothing else, so a killed study goes on with the same trials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any

from privkit.attacks.search_space import Choice, Range
from privkit.files.paths import read_bytes
from privkit.files.sealed import Broken, opened, sealed
from privkit.files.storage import append_line, write_bytes
from privkit.shared.seeds import derive

_DIGITS = 3
"""Significant digits of a tuned number, so that it can be written down."""
_RANDOM = 5
"""Trials drawn at random before the sampler learns from their outcomes."""
_SEEDS = 2**32
Space = Mapping[str, Range | Choice]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One set of tried values.

    Attributes:
        values: field -> value; other fields are as given.
        objective: smaller for a stronger attack; infinite if the trial failed.
        reason: why the trial failed.
        queries: rounds of own records that the trial sent.
    """

    values: dict[str, Any]
    objective: float
    reason: str = ""
    queries: int = 0


def read(path: Path, cell: str) -> list[Trial]:
    """The trials of an earlier start; a damaged line and what follows it are dropped from the file."""
    data = read_bytes(path) if path.exists() else b""
    trials, whole = [], b""
    for number, line in enumerate(data.splitlines()):
        try:
            fields = opened(line, cell=cell, trial=number)
            objective = inf if fields["objective"] is None else fields["objective"]
            told = {name: fields[name] for name in ("values", "reason", "queries")}
            trials.append(Trial(**told, objective=objective))
        except (Broken, KeyError):
            break
        whole += line + b"\n"
    if whole != data:
        write_bytes(path, whole)
    return trials


def append(path: Path, cell: str, number: int, trial: Trial) -> None:
    """Store one more trial."""
    objective = None if trial.objective == inf else trial.objective  # JSON has no infinity
    append_line(path, sealed({"cell": cell, "trial": number, **asdict(trial), "objective": objective}))


def suggested(space: Space, past: Sequence[Trial], seed: int) -> dict[str, Any]:
    """The values to try next.

    Args:
        space: field -> where to look.
        past: every trial so far; values outside `space` are left out.

    Source: the tree-structured Parzen estimator of Bergstra et al. 2011, by optuna.
    """
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    laws: dict[str, BaseDistribution] = {
        name: FloatDistribution(found.low, found.high, log=found.log)
        if isinstance(found, Range)
        else CategoricalDistribution(range(len(found.values)))
        for name, found in space.items()
    }
    sampler = optuna.samplers.TPESampler(seed=derive(seed, "trial", len(past)) % _SEEDS, n_startup_trials=_RANDOM)
    study = optuna.create_study(sampler=sampler)
    for trial in past:
        coded = {name: _coded(space[name], value) for name, value in trial.values.items() if value in space[name]}
        held = {name: laws[name] for name in coded}
        study.add_trial(optuna.trial.create_trial(params=coded, distributions=held, value=trial.objective))
    drawn = study.ask(laws).params
    return {name: _decoded(found, drawn[name]) for name, found in space.items()}


def _coded(found: Range | Choice, value: Any) -> Any:
    """A value as the sampler has it: of a list, its place."""
    return found.values.index(value) if isinstance(found, Choice) else value


def _decoded(found: Range | Choice, drawn: Any) -> Any:
    if isinstance(found, Choice):
        return found.values[drawn]
    return min(max(float(f"{drawn:.{_DIGITS}g}"), found.low), found.high)
