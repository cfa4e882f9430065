"""The interface of a paper in this package, and of one claim with our result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ONE_RELEASE = "one release: rounds add up only while the lower model does not learn from the same records"
"""The assumption of every published single-release bound."""
ClaimVerdict = Literal["holds", "fails", "unproven", "reproduced", "differs"]
"""A statement holds, fails on a counter-example, or lacks a proof; a number is reproduced by its source, or differs."""

Basis = Literal["reduced", "formula", "print"]
"""Source of our side: our runs at reduced size, a formula, or other numbers that the paper prints."""


@dataclass(frozen=True, kw_only=True)
class ComparedClaim:
    """One claim of a paper, compared with our result."""

    claim: str  # the paper's statement and its place
    published: float | None = None  # the published number, or None without one
    ours: float | None = None  # the number that decides, or None if `why` suffices
    quantity: str = ""  # meaning of both numbers
    verdict: ClaimVerdict  # computed from them; see `ClaimVerdict`
    why: str  # the reason, in one sentence
    basis: Basis = "formula"  # what `ours` comes from


@dataclass(frozen=True, kw_only=True)
class Paper:
    """One paper: a folder of this package with its formulas, printed numbers and experiments."""

    name: str
    title: str
    citation: str  # authors and short title, as a certificate cites it
    from_runs: bool = False  # whether its module `figures` can also draw a run folder's models, by `of_run`

    @property
    def folder(self) -> Path:
        """The folder of the paper's files."""
        return Path(str(files(f"privkit.papers.{self.name}")))

    @property
    def experiments(self) -> list[Path]:
        """Audit configurations of the paper's experiments, for `privkit audit --config`."""
        return sorted((self.folder / "experiments").glob("*.toml"))

    @property
    def presets(self) -> list[Path]:
        """Files with the paper's own settings, for `privkit audit --preset`; a preset's name is its file's name."""
        return sorted((self.folder / "presets").glob("*.toml"))

    @property
    def pictures(self) -> bool:
        """Whether the paper has figures (a module `figures` in its folder)."""
        return (self.folder / "figures.py").is_file()

    @cache  # noqa: B019 - one object a paper, which lives as long as the program
    def comparisons(self) -> tuple[ComparedClaim, ...]:
        """The paper's claims compared with our results; the first call takes up to a second."""
        return tuple(self._module("comparisons").comparisons())

    @property
    def effects(self) -> ModuleType | None:
        """The module that judges effects on pairs of runs, such as `accurate_sl.effects`; None if there is none."""
        return self._module("effects") if (self.folder / "effects.py").is_file() else None

    def figures(self, run: Path | None = None) -> Mapping[str, Callable[[], Figure]]:
        """File name -> function that draws the figure; with `run`, also of the run's models. Empty without figures."""
        if not self.pictures:
            return {}
        module = self._module("figures")
        drawings: Mapping[str, Callable[[], Figure]] = module.FIGURES
        return drawings if run is None or not self.from_runs else {**drawings, **module.of_run(run)}

    def _module(self, name: str) -> ModuleType:
        return import_module(f"privkit.papers.{self.name}.{name}")
