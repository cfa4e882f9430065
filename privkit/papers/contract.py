"""The interfaces of this package: a paper, and one of the paper's claims compared with our result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from privkit.shared.certificate import Certificate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ONE_RELEASE_ASSUMPTION = "one release: rounds add up only while the lower model does not learn from the same records"
"""The assumption of every published single-release bound."""
ClaimVerdict = Literal["holds", "fails", "unproven", "reproduced", "sign agrees", "differs"]
"""A statement "holds", "fails" on a counter-example, or is "unproven"; a number is "reproduced" or "differs". The "sign
agrees" if a measured difference has the sign of the published one, but another size or no printed size."""

Basis = Literal["reduced", "formula", "print"]
"""Source of our number: our runs at reduced size, a formula, or other numbers that the paper prints."""


@dataclass(frozen=True, kw_only=True)
class ComparedClaim:
    """One claim of a paper, compared with our result."""

    claim: str  # the paper's statement, with its place in the paper
    # the printed number, or the paper's formula at inputs that we chose (as `quantity` says); None if there is neither
    published: float | None = None
    ours: float | None = None  # our number, which decides the verdict; None if `why` suffices
    quantity: str = ""  # the quantity and unit of both numbers
    verdict: ClaimVerdict  # our verdict on the claim
    why: str  # the reason, in one sentence
    basis: Basis = "formula"  # source of `ours`


def claimed(statement: str, epsilon: float, delta: float, *, objection: str = "", **more: Any) -> Certificate:
    """A claim of differential privacy for replacing one record, as a certificate; sound if there is no objection."""
    return Certificate(
        kind="differential_privacy",
        statement=statement,
        epsilon=float(epsilon),
        delta=float(delta),
        relation="replace_one",
        unit="record",
        sound=not objection,
        objection=objection,
        **more,
    )


@dataclass(frozen=True, kw_only=True)
class Paper:
    """One paper: a folder of this package with its formulas, printed numbers and experiments."""

    name: str
    title: str
    citation: str  # authors and short title, as in a certificate's source
    from_runs: bool = False  # whether its module `figures` has `of_run`, which draws the models of a run folder

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

    @cache  # noqa: B019 - there is one object per paper, which lives as long as the program
    def comparisons(self) -> tuple[ComparedClaim, ...]:
        """The paper's claims compared with our results; the first call takes up to a second."""
        return tuple(self._module("comparisons").comparisons())

    @property
    def effects(self) -> ModuleType | None:
        """The paper's module `effects`, which judges published differences between two runs; None if there is none."""
        return self._module("effects") if (self.folder / "effects.py").is_file() else None

    def figures(self, run: Path | None = None) -> Mapping[str, Callable[[], Figure]]:
        """File name -> function that draws the figure; empty if the paper has no figures. If the paper also has figures
        of trained models (`from_runs`), the figures of the models in the run folder `run` are added."""
        if not self.pictures:
            return {}
        module = self._module("figures")
        drawings: Mapping[str, Callable[[], Figure]] = module.FIGURES
        return drawings if run is None or not self.from_runs else {**drawings, **module.of_run(run)}

    def _module(self, name: str) -> ModuleType:
        return import_module(f"privkit.papers.{self.name}.{name}")
