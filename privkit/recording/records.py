"""The private records of a recording: what one is, and those that it holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from privkit.domains.as_json import from_json, to_json
from privkit.domains.base import Batch
from privkit.domains.domain import Domain
from privkit.domains.images.domain import Images
from privkit.domains.tokens.domain import Tokens
from privkit.errors import DataError
from privkit.recording.files import Files
from privkit.recording.schema import MOST_CLASSES, Description

_FILE = "records.json"
_MOST_BYTES = 16 << 20
"""Of the file: a vocabulary of a million words."""
_MOST_NUMBERS = 1 << 30
"""Of all records of a round: a hundred clients with fifty of ImageNet's each have 750 million."""
_MOST_COUNTS = 1 << 27
"""Places of a text, times words: floors count each word at each place."""


def described_domain(domain: Domain) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The fields of `recording.json` that say what one record is, and the file that they name.

    >>> described_domain(Images(shape=(1, 8, 8)))
    ({'image_shape': [1, 8, 8]}, {})
    """
    if isinstance(domain, Images):
        return {"image_shape": list(domain.shape)}, {}
    return {"records": _FILE}, {_FILE: f"{json.dumps(to_json(domain))}\n".encode()}


def domain_of(described: Description, files: Files) -> Domain:
    """What one record is.

    Raises:
        DataError: if its file is damaged or describes no domain, or if a round would be too large.
    """
    if described.image_shape is not None:
        domain: Domain = Images(shape=(described.image_shape[0], described.image_shape[1], described.image_shape[2]))
    else:
        domain = _read(files, described.records)
    counts = domain.length * len(domain.vocabulary) if isinstance(domain, Tokens) else 0
    if counts > _MOST_COUNTS:
        raise DataError(
            f"{files.folder / described.records}: length times the words of the vocabulary is more than "
            f"{_MOST_COUNTS:,}; record shorter texts or fewer words"
        )
    if described.batch_size * described.clients * prod(domain.shape) > _MOST_NUMBERS:
        raise DataError(
            f"{files.folder}: the {domain.records} of a round have more than {_MOST_NUMBERS:,} numbers (batch_size, "
            "clients, the shape of one); record smaller rounds"
        )
    return domain


def _read(files: Files, name: str) -> Domain:
    path = files.folder / name
    try:
        given = json.loads(files.content(name, _MOST_BYTES))
        json.dumps(given, ensure_ascii=False).encode()  # halves of surrogate pairs can neither be shown nor kept
    except (ValueError, RecursionError):
        raise DataError(f"{path} is no JSON; write it anew, as docs/reference/recording.md says") from None
    try:
        return from_json(given)
    except ValueError as error:
        raise DataError(f"{path}: {error}; see docs/reference/recording.md") from None


def records(
    described: Description, domain: Domain, tensors: Mapping[str, Tensor], kind: str, here: Path
) -> tuple[Batch, Tensor | None]:
    """Records of one kind with their labels, which are 0 if there are none; and the labels, if they are known.

    Args:
        described: the recording's description.
        domain: what one record is.
        tensors: of the recording, by their names.
        kind: "own" or "truth".
        here: file of the tensors, for sentences.

    Raises:
        DataError: if they are no records of the domain, or the labels do not fit.
    """
    name = f"{kind}.{domain.name}"
    x, labels = tensors.get(name), tensors.get(f"{kind}.labels")
    if labels is not None and (labels.is_floating_point() or labels.ndim != 1 or bool((labels < 0).any())):
        raise DataError(
            f"{here}: {kind}.labels must be whole numbers [N] from 0, got {labels.dtype} {list(labels.shape)}"
        )
    if x is not None and labels is not None and len(labels) != len(x):
        raise DataError(f"{here}: {kind}.labels has {len(labels)} labels for {len(x)} {name}; give one each")
    if labels is not None:
        check_labels(labels, f"{here}: {kind}.labels")
    if described.classes is not None and labels is not None and len(labels) and int(labels.max()) >= described.classes:
        raise DataError(
            f"{here}: {kind}.labels has label {int(labels.max())}, and classes={described.classes} end below"
        )
    known = domain.zeros(0) if x is None else x
    try:
        domain.check(known)
    except DataError as error:
        raise DataError(f"{here}: {name}: {error}") from None
    y = torch.zeros(len(known), dtype=torch.int64) if labels is None or x is None else labels.long()
    return Batch(x=known, y=y, ids=torch.arange(len(known)), domain=domain), None if labels is None else labels.long()


def check_labels(labels: Tensor, what: str) -> None:
    """Refuse numbers that are no classes, by a `DataError`: as many columns are made as the largest one has."""
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < MOST_CLASSES):
        held = f"{int(labels.min())}..{int(labels.max())}"
        raise DataError(f"{what} must lie in 0..{MOST_CLASSES - 1}, got {held}; number the classes")
