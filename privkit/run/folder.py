"""Paths of a run folder's models, control experiments and results, with their provenance."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privkit.errors import DamagedFile, RunFolderError
from privkit.files.paths import file_name, inside, read_bytes, root
from privkit.files.storage import TEMPORARY, read_record, write_record
from privkit.reports.origins import differences
from privkit.reports.schema import Check, Provenance
from privkit.run.plan import Cell, short_hash
from privkit.run.records import MADE_OF, STRIP, holds
from privkit.run.sources import as_it_is_now

if TYPE_CHECKING:
    from privkit.run.provenance import Ingredients

_OF_THE_RUN = ("result.json", STRIP)  # files of a cell that its computation neither reads nor writes


class RunFolder:
    """Paths of a run's models, control experiments and cells (one defense, attack and seed each). A worker writes into
    its own folder `path`, and also reads the run's folder `origin`."""

    def __init__(self, path: Path | str, origin: Path | None = None) -> None:
        self.path = root(path)
        self.origin = origin or self.path

    def cell(self, cell_id: str) -> Path:
        """The folder of a cell (defense, attack, seed)."""
        return inside(self.path, "cells", cell_id)

    def model(self, model_id: str) -> Path:
        """The folder of a defended model."""
        return inside(self.path, "models", model_id)

    def control(self, attack: dict[str, Any]) -> Path:
        """The file of an attack's control experiments."""
        return inside(self.path, "controls", f"{file_name(attack['name'])}-{short_hash(attack)}.json")

    def names(self, cell: Cell | None = None) -> tuple[str, ...]:
        """The files that a cell (defense, attack, seed) wrote or continues from, except its result; without a cell, the
        files of all cells."""
        homes = ["models/*", "cells/*"] if cell is None else [f"models/{cell.model_id}", f"cells/{cell.id}"]
        control = "*" if cell is None else f"{glob.escape(file_name(cell.attack.name))}-*"
        found = [path for home in homes for path in self.path.glob(f"{home}/*")]
        found += self.path.glob(f"controls/{control}.json")
        kept = [path for path in found if path.name not in _OF_THE_RUN and not TEMPORARY.fullmatch(path.name)]
        return tuple(sorted(path.relative_to(self.path).as_posix() for path in kept))

    def content(self, name: str) -> bytes | None:
        """Read a file by its path in the folder; None if it cannot be read."""
        try:
            return read_bytes(inside(self.path, *name.split("/")))
        except OSError:
            return None

    def contents(self, names: Iterable[str]) -> dict[str, bytes]:
        """Read files: path in the folder -> content; files that cannot be read are left out."""
        return {name: data for name in names if (data := self.content(name)) is not None}

    def read_checks(self, path: Path, seed: int, made_of: Provenance) -> tuple[tuple[Check, ...], float] | None:
        """Read the stored outcomes of an attack's control experiments, and the time that they took in seconds. None if
        nothing is stored, or if the stored provenance differs from `made_of`. The experiments use the first seed's data
        only, so for another `seed`, a difference in the data is ignored."""
        record = read_record(path, control=path.stem)
        if record is None:
            return None
        past = Provenance.model_validate(record["made_of"])
        if record["seed"] != seed:
            past = past.model_copy(update={"data": made_of.data})
        if differences(past, as_it_is_now(past, made_of)):
            return None
        return tuple(Check.model_validate(check) for check in record["checks"]), record["seconds"]

    def write_checks(
        self, path: Path, seed: int, made_of: Provenance, checks: tuple[Check, ...], seconds: float
    ) -> None:
        """Store the outcomes of control experiments, with their provenance and seconds."""
        fields = {"made_of": made_of.model_dump(), "checks": [check.model_dump(mode="json") for check in checks]}
        write_record(path, {"control": path.stem, "seed": seed, "seconds": seconds, **fields})

    def made_of(self, home: Path) -> Provenance | None:
        """The stored provenance of a model or of a cell (defense, attack, seed); None if nothing is stored."""
        try:
            record = read_record(home / MADE_OF, of=home.name)
        except DamagedFile:
            return None
        return None if record is None else Provenance.model_validate(record["made_of"])

    def begin(self, cell: Cell, made_of: Ingredients) -> None:
        """Store the provenance of a cell (defense, attack, seed) and its model before the computation; a later call
        adds new dependencies. Raises `RunFolderError` if images or files changed since this command read them."""
        for home, provenance in ((self.model(cell.model_id), made_of.model), (self.cell(cell.id), made_of.cell)):
            known, changes = self.made_of(home), list[str]()
            if known is not None:
                provenance = as_it_is_now(known, provenance)
                seen = known.model_copy(update={"files": provenance.files | known.files})
                changes = differences(seen, provenance, seed=cell.seed)
                if not changes and seen.files == known.files:
                    continue
            if changes and holds(home):
                raise RunFolderError(f"{', '.join(changes)} changed while this command ran; run it again")
            write_record(home / MADE_OF, {"of": home.name, "made_of": provenance.model_dump()})

    def note(self, cell: Cell, made_of: Ingredients) -> Provenance:
        """Store which files the code of a cell (defense, attack, seed) has read so far; return the provenance of its
        result. Raises `UsageError` if a file was edited after it was read, and `RunFolderError` if an earlier process
        read other content from the file."""
        if not made_of.cell.code:
            return made_of.cell
        seen = made_of.seen()
        self.begin(cell, seen)
        model = self.made_of(self.model(cell.model_id))  # another process may have trained the model
        files = {} if model is None else model.files
        return seen.cell.model_copy(update={"files": files | seen.cell.files})
