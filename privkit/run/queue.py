"""The run folder is the queue: its workers take one cell at a time, until all cells have a row."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence

from privkit.files.paths import open_file
from privkit.files.sealed import Broken
from privkit.files.storage import append_line
from privkit.reports.gate import Gate
from privkit.reports.schema import Row
from privkit.run.folder import RunFolder
from privkit.run.plan import Cell
from privkit.run.records import TRAINED, line, parse_row
from privkit.run.verdict import verdict_of, write_verdict
from privkit.run.workers import Worker

_POLLS = (0.05, 1.0)
"""Seconds between two looks at the run while others do all that is left: at first, and at last."""


class Queue:
    """The cells of a run, shared by the workers of its folder.

    A worker takes the first cell of the plan that nobody claims and whose model is trained or claimed by nobody.
    Control experiments are done once a run, on the first seed's images. So a later seed's cell waits until the first
    seed's cell with the same defense and attack has a row, and the rows do not depend on the number of workers.

    Args:
        folder: of the run, joined.
        cells: its plan.
        gates: the user's, for the verdict.
    """

    def __init__(self, folder: RunFolder, cells: Sequence[Cell], gates: Sequence[Gate]) -> None:
        self.folder, self.cells, self.gates = folder, cells, gates
        self._rows: dict[str, Row] = {}
        self._seen = (0, 0)  # inode and size of results.jsonl
        self._before = _first_of_their_kind(cells)

    @property
    def rows(self) -> list[Row]:
        """The rows that there are, in the order of the plan."""
        return [self._rows[cell.id] for cell in self.cells if cell.id in self._rows]

    def start(self, rows: dict[str, Row]) -> None:
        """Begin with the rows of a folder that was just mended."""
        self._rows, self._seen = rows, self._place()

    def take(self) -> Cell | None:
        """The next cell for this worker, claimed; None once every cell has a row. It waits for other workers."""
        pause, last = _POLLS
        while True:
            with self.folder.exclusive():
                self.catch_up()
                if len(self._rows) == len(self.cells):
                    return None
                cell = self._free(self.folder.others())
                if cell is not None:
                    self.folder.workers.claim(cell.id, cell.model_id, cell.attack.label)
                    if (row := self.folder.stored(cell.id)) is None:
                        return cell
                    append_line(self.folder.results, line(row))  # its worker was killed before it could
                    continue
            time.sleep(pause)
            pause = min(2 * pause, last)

    def finish(self, row: Row) -> Row:
        """Store the row of a cell that was taken; if another worker has stored one since, that one stays."""
        with self.folder.exclusive():
            self.catch_up()
            if row.cell not in self._rows:
                self._rows[row.cell] = self.folder.finish(row)
                self._seen = self._place()
            self.folder.workers.claim()
            self.judge()
        return self._rows[row.cell]

    def close(self) -> None:
        """Bring `results.jsonl` into the order of the plan."""
        with self.folder.exclusive():
            self.catch_up()
            self.folder.arrange(self.rows)
            self._seen = self._place()

    def judge(self) -> None:
        """Write the verdict on the rows that there are."""
        write_verdict(self.folder.path, verdict_of(self.folder.manifest, self.rows, self.gates))

    def _free(self, others: Sequence[Worker]) -> Cell | None:
        """The first cell that may be done now; one whose attack nobody begins for the first time, if there is one.

        Two workers that begin one attack together would both do its control experiments.
        """
        claimed, training = {other.cell for other in others}, {other.model for other in others}
        known = {row.attack for row in self._rows.values()}
        beginning = {other.attack for other in others} - known
        free = [cell for cell in self._pending() if cell.id not in claimed and self._trainable(cell, training)]
        return next((cell for cell in free if cell.attack.label not in beginning), next(iter(free), None))

    def _pending(self) -> Iterator[Cell]:
        """Cells without a row whose turn it is."""
        for cell in self.cells:
            if cell.id not in self._rows and all(first in self._rows for first in self._before[cell.id]):
                yield cell

    def _trainable(self, cell: Cell, training: set[str]) -> bool:
        """Whether a cell's model is trained, or this worker may train it."""
        return cell.model_id not in training or (self.folder.model(cell.model_id) / TRAINED).exists()

    def catch_up(self) -> None:
        """Read the lines that others appended; a line that was cut off by a kill is mended."""
        place = self._place()
        if place == self._seen:
            return
        start = self._seen[1] if place[0] == self._seen[0] and place[1] > self._seen[1] else 0
        with os.fdopen(open_file(self.folder.results, os.O_RDONLY), "rb") as file:
            file.seek(start)
            data = file.read()
        try:
            if not data.endswith(b"\n"):
                raise Broken("is cut off")
            rows = [parse_row(one) for one in data.splitlines()]
        except Broken:
            self._rows, _ = self.folder.finished([cell.id for cell in self.cells], errors=True)
        else:
            known = {} if start == 0 else self._rows
            self._rows = known | {row.cell: row for row in rows}
        self._seen = self._place()

    def _place(self) -> tuple[int, int]:
        """What says that `results.jsonl` changed."""
        try:
            there = os.stat(self.folder.results, follow_symlinks=False)
        except FileNotFoundError:
            return 0, 0
        return there.st_ino, there.st_size


def work(queue: Queue, run: Callable[[Cell], Row], ended: Callable[[Row], None]) -> None:
    """Do cells until all have a row.

    Args:
        queue: shared with other workers.
        run: computes a cell.
        ended: is given each row as it was stored.
    """
    while (cell := queue.take()) is not None:
        ended(queue.finish(run(cell)))


def _first_of_their_kind(cells: Sequence[Cell]) -> dict[str, list[str]]:
    """Cell of a later seed -> those of the first seed with its defense and its attack; of a first seed, none."""
    first: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        if cell.seed == cells[0].seed:
            first.setdefault((cell.defense.label, cell.attack.label), []).append(cell.id)
    return {
        cell.id: [] if cell.seed == cells[0].seed else first.get((cell.defense.label, cell.attack.label), [])
        for cell in cells
    }
