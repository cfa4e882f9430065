"""Draws disjoint private, auxiliary, test and validation records of a dataset from a seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from privkit.domains.base import Batch, Pools, several
from privkit.domains.domain import Domain
from privkit.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Splits:
    """Holds the parts of an experiment, into which `split` divides a dataset's records at random.

    Attributes:
        private: the clients' training records, over all clients.
        auxiliary: the adversary's records, disjoint from the private and the test records.
        test: records on which the task's accuracy is measured.
        classes: number of classes, or of 0/1 labels that each record has.
        validation: records on which each epoch of training is evaluated; None if there are none.
        official_test: whether the test records are a test set that the dataset brings, which may differ in kind from
            the training records.
    """

    private: Batch
    auxiliary: Batch
    test: Batch
    classes: int
    validation: Batch | None = None
    official_test: bool = False

    @property
    def domain(self) -> Domain:
        """Return what one record is (an image, a token sequence or a table row); it is the same in all parts."""
        return self.private.domain

    def hashes(self) -> dict[str, str]:
        """Hash each existing part: name -> hexadecimal SHA-256. Equal hashes show that two runs used equal records."""
        return {name: part.sha256() for name, part in self.parts.items()}

    @property
    def parts(self) -> dict[str, Batch]:
        """Return the existing parts by name: "private", "auxiliary", "test" and, unless None, "validation"."""
        parts = {"private": self.private, "auxiliary": self.auxiliary, "test": self.test, "validation": self.validation}
        return {name: part for name, part in parts.items() if part is not None}


def part_sizes(pools: Pools, *, private: int, auxiliary: int, test: int, validation: int = 0) -> dict[str, int]:
    """The sizes of the parts that `split` would draw, without reading records; raises `DataError` for an empty part."""
    wished = {"private": private, "auxiliary": auxiliary}
    wished |= {"test": test} if pools.test is None else {}
    wished |= {"validation": validation} if validation and pools.validation is None else {}
    available, total = len(pools.train), sum(wished.values())
    # whole numbers, since 50 * 0.58 is below 29 in floats
    sizes = {part: count * min(available, total) // total for part, count in wished.items()}
    if min(sizes.values()) < 1:
        asked = ", ".join(f"{part}={count}" for part, count in wished.items())
        raise DataError(f"{available} records are too few for the parts of {asked}, each of at least one; bring more")
    if pools.test is not None:
        if not len(pools.test):
            raise DataError("the official test set has no record; bring its files")
        sizes["test"] = min(test, len(pools.test))
    if validation and pools.validation is not None:
        sizes["validation"] = min(validation, len(pools.validation))
    return sizes


def split(pools: Pools, *, private: int, auxiliary: int, test: int, seed: int, validation: int = 0) -> Splits:
    """Draw the private, validation, auxiliary and test parts of an experiment.

    `numpy.random.default_rng(seed).permutation` shuffles the training records. The first records are private, the next
    ones serve for validation, and the last ones are auxiliary. Test records come from the official test set, if there
    is one; otherwise, they are the training records just before the auxiliary ones. An official validation set replaces
    the validation records above.

    If the training records are too few, all parts drawn from them shrink in proportion.

    Args:
        pools: the dataset's official parts.
        private: desired number ≥ 1 of the clients' training records.
        auxiliary: desired number ≥ 1 of the adversary's records.
        test: desired number ≥ 1 of records for the task's accuracy.
        seed: the seed of the shuffles.
        validation: desired number ≥ 0 of records on which each epoch is evaluated; 0 for none.

    Raises:
        DataError: if a part would be empty, or if a label is none of the dataset's classes.
    """
    sizes = part_sizes(pools, private=private, auxiliary=auxiliary, test=test, validation=validation)
    order = np.random.default_rng(seed).permutation(len(pools.train))
    end = len(order) - sizes["auxiliary"]
    if pools.test is None:
        test_batch = pools.train.take(order[end - sizes["test"] : end])
    else:
        test_order = np.random.default_rng(seed).permutation(len(pools.test))
        test_batch = pools.test.take(test_order[: sizes["test"]])
    front, behind = sizes["private"], sizes["private"] + sizes.get("validation", 0)
    held_out = pools.train.take(order[front:behind]) if validation and pools.validation is None else None
    if validation and pools.validation is not None:
        chosen = np.random.default_rng(seed).permutation(len(pools.validation))[: sizes["validation"]]
        held_out = pools.validation.take(chosen)
    parts = Splits(
        private=pools.train.take(order[:front]),
        auxiliary=pools.train.take(order[end:]),
        test=test_batch,
        classes=pools.classes,
        validation=held_out,
        official_test=pools.test is not None,
    )
    for part in parts.parts.values():
        if several(part.y):
            if part.y.shape[1] != pools.classes:
                raise DataError(
                    f"records have {part.y.shape[1]} labels each, and the dataset names {pools.classes}; make its "
                    "`classes` their number"
                )
        elif int(part.y.max()) >= pools.classes:
            raise DataError(
                f"label {int(part.y.max())} is none of the {pools.classes} classes 0 to {pools.classes - 1}; number "
                "the classes from 0, or raise the dataset's `classes`"
            )
    return parts


def spare(
    pools: Pools, *, private: int, auxiliary: int, test: int, seed: int, validation: int = 0
) -> NDArray[np.int64]:
    """Indices of the training records that `split` with the same arguments leaves unused, in reverse shuffled order."""
    sizes = part_sizes(pools, private=private, auxiliary=auxiliary, test=test, validation=validation)
    order = np.random.default_rng(seed).permutation(len(pools.train))
    end = len(order) - sizes["auxiliary"] - (sizes["test"] if pools.test is None else 0)
    drawn = validation if pools.validation is None else 0
    return order[sizes["private"] + (sizes["validation"] if drawn else 0) : end][::-1]


def without(batch: Batch, known: Batch, given: Domain | None = None) -> Batch:
    """The records of `batch` that are not also in `known`, by `Domain.repeats`; two datasets can share records. The
    domain `given` is the one from which `batch` was converted, if there is one.
    """
    repeated = batch.domain.repeats(batch.x, known.x, given or batch.domain)
    return batch[torch.from_numpy(~repeated).to(batch.x.device)] if repeated.any() else batch


def left_out(count: int, records: str, others: int = 0) -> str:
    """A sentence for the results: `count` of the adversary's records were left out, since they are private or attacked,
    and `others` records replaced them. Empty if `count` is 0.
    """
    more = f", and {others} others took their place" if others else ""
    return f"{count} own {records} that were drawn are private or attacked ones: left out{more}" if count else ""
