"""Tables of several parties about the same records, joined by an id column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from privkit.domains.base import Pools
from privkit.domains.files import need_root
from privkit.domains.tables.csv_files import csv_columns, dense_and_categorical, nearly_dense, need_classes
from privkit.domains.tables.sets import table_pools
from privkit.errors import DataError, shortened

_Columns = dict[str, tuple[str, ...]]
"""Name of a column -> its cells."""


@dataclass(frozen=True, kw_only=True)
class PartyFiles:
    """A table whose columns belong to several parties: one CSV file per party, joined by an id column.

    Records that are missing in a file are left out; an audit's results report their number. The order of rows in a file
    does not matter, and ids are not part of a record. The model `vertical` gives each party the columns of its file; a
    file with only ids and labels is not a party. The joined records determine which columns are dense (numeric), their
    ranges, and the categories; all this counts as public.

    Attributes:
        files: names of two or more files inside the data root, each as `table_file` reads it.
        id: column of the id in every file; ids are compared as text.
        label: column of the label, in one of the files.
        skip_bad_rows: whether rows with missing or extra cells, or without id or label, are left out. An audit's
            results report their number.

    Source: privkit's own. Published vertical splits, such as Vepakomma et al. 2018, "Split learning for health", §2,
    assume joined records.
    """

    name: ClassVar[str] = "party_files"
    domain: ClassVar[str] = "tables"

    files: Sequence[str] = ("party_1.csv", "party_2.csv")
    id: str = "id"
    label: str = "label"
    skip_bad_rows: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.files, str):
            object.__setattr__(self, "files", tuple(self.files))

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        given = [self.files] if isinstance(self.files, str) else self.files
        if len(given) < 2 or len(set(given)) < len(given):
            raise DataError(
                f"{self.name}: a vertical split has two different files or more, got {', '.join(given) or 'none'}; "
                'name them as files=["a.csv","b.csv"]'
            )
        if self.id == self.label:
            raise DataError(f"{self.name}: {self.id!r} is both the id and the label; name two columns")
        root = need_root(self.name, root, " and ".join(self.files))
        needed, filled = [("id", self.id)], (self.id, self.label)
        read = {f: csv_columns(self.name, root, f, needed, filled, skip_bad=self.skip_bad_rows) for f in self.files}
        tables = {file: columns for file, (columns, _) in read.items()}
        self._check(tables)
        joined, sentence = self._joined(tables)
        labels = joined.pop(self.label)
        need_classes(self.name, self.label, labels)
        holders = [file for file, columns in tables.items() if columns.keys() - {self.id, self.label}]
        parties = {column: party for party, file in enumerate(holders) for column in tables[file]}
        dense, categorical = dense_and_categorical(joined)
        notes = (sentence, *(note for _, said in read.values() for note in said), *nearly_dense(categorical))
        return table_pools(dense, categorical, labels, notes, parties)

    def _check(self, tables: Mapping[str, _Columns]) -> None:
        for file, columns in tables.items():
            if columns.keys() == {self.id}:
                raise DataError(f"{self.name}: {file} has no column beside {self.id!r}; add some or leave it out")
            repeated, times = Counter(columns[self.id]).most_common(1)[0]
            if times > 1:
                raise DataError(
                    f"{self.name}: {file} has {times} rows of {self.id} {shortened(repeated)}; keep one row of each"
                )
        holders: dict[str, str] = {}
        for file, columns in tables.items():
            for column in (name for name in columns if name != self.id):
                if first := holders.get(column):
                    raise DataError(
                        f"{self.name}: {first} and {file} both have a column {column!r}; rename it in one of them"
                    )
                holders[column] = file
        if self.label not in holders:
            known = ", ".join(sorted(holders))
            raise DataError(f"{self.name}: no file has a column {self.label!r}; name one of {known} with label=…")

    def _joined(self, tables: Mapping[str, _Columns]) -> tuple[dict[str, list[str]], str]:
        """Join the columns of all parties for the ids that all have, and say in a sentence how many they are."""
        places = [{number: row for row, number in enumerate(table[self.id])} for table in tables.values()]
        common = sorted(set.intersection(*map(set, places)))
        if not common:
            examples = " and ".join(f"{shortened(table[self.id][0])} in {file}" for file, table in tables.items())
            raise DataError(
                f"{self.name}: no record is held by all parties ({self.id} {examples}); write ids alike in every file"
            )
        total = len(set.union(*map(set, places)))
        joined = {
            column: [cells[of[number]] for number in common]
            for table, of in zip(tables.values(), places, strict=True)
            for column, cells in table.items()
            if column != self.id
        }
        left = "" if len(common) == total else "; the others are left out"
        return joined, f"{len(common)} of {total} records are held by all parties{left}"
