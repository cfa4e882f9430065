"""The interface of a domain, which describes one record: an image, a token sequence or a table row."""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Generator, Tensor

from privkit.shared.measures import Records

RecordValues = NDArray[np.float64]  # one number per record, [N], or per pair of records


def repeated_prints(prints: list[bytes], known: list[bytes]) -> NDArray[np.bool_]:
    """Which of N fingerprints are also in `known`: bool [N]."""
    seen = set(known)
    return np.array([one in seen for one in prints], dtype=np.bool_)


class Domain(Protocol):
    """Describes what one record is (an image, a token sequence or a table row), with operations on batches of records.

    N records are one tensor `x` [N, *shape] in every domain, so all domains share the code that stacks records.

    Attributes:
        kind: the metrics and constant guesses for such records, with their names and order, and with the direction in
            which each metric improves.
        name: the domain's name, such as "images", as datasets, models and attacks declare it.
        records: the plural noun for such records in sentences, such as "images".
        shape: shape of one record, for example (C, H, W).
    """

    kind: ClassVar[Records]
    name: ClassVar[str]
    records: ClassVar[str]

    @property
    def shape(self) -> tuple[int, ...]: ...

    def check(self, x: Tensor) -> None:
        """Raise `DataError` unless `x` holds valid records [N, *shape]; the message advises on common mistakes."""

    def zeros(self, count: int) -> Tensor:
        """Make valid records of zeros [count, *shape], for example to find the shape of a network's output."""

    def random(self, count: int, generator: Generator) -> Tensor:
        """Draw valid random records [count, *shape], on the CPU, to try networks, defenses and attacks."""

    def extremes(self, generator: Generator) -> Tensor:
        """Make valid records [E, *shape], E ≥ 1, such as black images, that differ strongly from real records. An
        audit of ε considers them as replacements of the attacked records.
        """

    def fit(self, x: Tensor, given: Domain) -> Tensor:
        """Convert records `x` of the domain `given` to records [N, *shape] of this domain, so that another dataset can
        serve as the adversary's data. Raises `UsageError` if records of `given` cannot be converted.
        """

    def fingerprints(self, x: Tensor) -> list[bytes]:
        """Hash each record of `x`, [N, *shape], into bytes; records with equal hashes count as the same record."""

    def repeats(self, x: Tensor, known: Tensor, given: Domain) -> NDArray[np.bool_]:
        """Say for each record of `x`, [N, *shape], whether it is also in `known`, [M, *shape]: bool [N]. The method
        `fit` converted `x` from the domain `given`, which may have lost a part of each record.
        """

    def warning(self, x: Tensor) -> str:
        """Say in a sentence why every attack on the records `x` would look successful, for example because columns are
        constant; empty if there is no such reason.
        """

    def guesses(self, auxiliary: Tensor) -> dict[str, Tensor]:
        """Compute constant guesses, which serve as baselines of attacks, from the adversary's records [N, *shape]:
        name (such as "mean_image") -> one record [*shape].
        """

    def scores(self, truth: Tensor, guess: Tensor) -> dict[str, RecordValues]:
        """Score guess i against true record i, for N records, both [N, *shape]. Returns a dictionary from a metric's
        name to values [N], without the metrics that are undefined for these records.
        """

    def distances(self, guess: Tensor, truth: Tensor) -> RecordValues:
        """Compute the distance of each of G guesses, [G, *shape], from each of N true records, [N, *shape]: [G, N]. It
        is based on the domain's first metric; a smaller value is nearer.
        """

    def shown(self, x: Tensor) -> list[str]:
        """Write each record of `x` as one line of text, for the report; for images the list is empty."""
