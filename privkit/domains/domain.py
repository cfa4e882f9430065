"""The interface of a domain, which describes one record: an image, a token sequence or a table row."""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Generator, Tensor

from privkit.shared.measures import Records

Values = NDArray[np.float64]  # one number per record, [N], or per pair of records


class Domain(Protocol):
    """Describes what one record is (an image, a token sequence or a table row), with operations on batches of records.

    N records are one tensor `x` [N, *shape] in every domain, so all domains share the code that stacks records.

    Attributes:
        kind: the measures that score an attack's guesses at such records, and constant guesses for comparison.
        name: the domain's name, as datasets, models and attacks declare it.
        records: the plural noun for such records in sentences, such as "images".
        shape: shape of one record.
    """

    kind: ClassVar[Records]
    name: ClassVar[str]
    records: ClassVar[str]

    @property
    def shape(self) -> tuple[int, ...]: ...

    def check(self, x: Tensor) -> None:
        """Raise `DataError` for values that are no records of this domain; the message advises on common mistakes."""

    def zeros(self, count: int) -> Tensor:
        """Valid records of zeros [count, *shape], to find a network's output shapes."""

    def random(self, count: int, generator: Generator) -> Tensor:
        """Valid random records [count, *shape], on the CPU, to try networks, defenses and attacks."""

    def extremes(self, generator: Generator) -> Tensor:
        """Valid records [E, *shape], E ≥ 1, that differ strongly from real ones, for audits with planted records."""

    def fit(self, x: Tensor, given: Domain) -> Tensor:
        """Convert records of the domain `given` to this domain, as an adversary's auxiliary data. Raises `UsageError`
        if records of `given` cannot be converted.
        """

    def fingerprints(self, x: Tensor) -> list[bytes]:
        """One hash per record; records with equal hashes count as the same record."""

    def warning(self, x: Tensor) -> str:
        """A sentence that says why every attack on these records would look successful; empty if there is no reason."""

    def guesses(self, auxiliary: Tensor) -> dict[str, Tensor]:
        """Constant guesses, computed from the adversary's records [N, *shape]: name -> one record [*shape]."""

    def scores(self, truth: Tensor, guess: Tensor) -> dict[str, Values]:
        """Score N guesses against their true records, both [N, *shape]. Returns a dictionary from a measure's name to
        values [N], without the measures that are undefined for these records.
        """

    def distances(self, guess: Tensor, truth: Tensor) -> Values:
        """The distance of each of G guesses, [G, *shape], from each of N records, [N, *shape]: values [G, N]. The
        distance is the domain's first measure, with its sign chosen such that a smaller value is nearer.
        """

    def shown(self, x: Tensor) -> list[str]:
        """One line of text for each record, for the report; empty for images, which are shown as pictures."""
