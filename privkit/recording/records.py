"""The private records of a recording: their domain, and the records that it contains."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from privkit.domains.as_json import domain_from_json, domain_to_json
from privkit.domains.base import Batch, several
from privkit.domains.domain import Domain
from privkit.domains.images.domain import Images
from privkit.domains.tokens.domain import Tokens
from privkit.errors import DataError
from privkit.recording.files import Files
from privkit.recording.schema import MOST_CLASSES, Description, parsed

_FILE = "records.json"
_MOST_BYTES = 16 << 20  # size limit of the file: a vocabulary of a million words
_MOST_NUMBERS = 1 << 30  # limit for the records of a round: 100 clients with 50 ImageNet images have 750 million
_MOST_COUNTS = 1 << 27  # limit for text length times vocabulary: constant guesses count each word at each place


def described_domain(domain: Domain) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The fields of `recording.json` that describe a record, and the contents of the files that these fields name."""
    if isinstance(domain, Images):
        return {"image_shape": list(domain.shape)}, {}
    return {"records": _FILE}, {_FILE: f"{json.dumps(domain_to_json(domain))}\n".encode()}


def recorded_domain(described: Description, files: Files) -> Domain:
    """Read the domain of the records; raises `DataError` if its file is invalid, or a round would be too large."""
    if described.image_shape is not None:
        domain: Domain = Images(shape=(described.image_shape[0], described.image_shape[1], described.image_shape[2]))
    else:
        path = files.folder / described.records
        try:
            domain = domain_from_json(parsed(files.content(described.records, _MOST_BYTES), path))
        except ValueError as error:
            raise DataError(f"{path}: {error}; see docs/reference/recording.md") from None
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


def records(
    described: Description, domain: Domain, tensors: Mapping[str, Tensor], kind: str, here: Path
) -> tuple[Batch, Tensor | None]:
    """Read the adversary's ("own") or the private records ("truth") of a recording. Returns a batch, in which unknown
    labels are 0, and the labels or None."""
    name = f"{kind}.{domain.name}"
    x, labels = tensors.get(name), tensors.get(f"{kind}.labels")
    if labels is not None:
        check_recorded_labels(labels, described.classes, f"{here}: {kind}.labels")
    if x is not None and labels is not None and len(labels) != len(x):
        raise DataError(f"{here}: {kind}.labels has {len(labels)} labels for {len(x)} {name}; give one each")
    if described.classes is not None and labels is not None and len(labels) and int(labels.max()) >= described.classes:
        raise DataError(
            f"{here}: {kind}.labels has label {int(labels.max())}, and classes={described.classes} end below"
        )
    known = domain.zeros(0) if x is None else x
    known = known.float() if known.dtype in (torch.float16, torch.bfloat16, torch.float64) else known
    try:
        domain.check(known)
    except DataError as error:
        raise DataError(f"{here}: {name}: {error}") from None
    labels = None if labels is None else labels.long()
    y = torch.zeros(len(known), dtype=torch.int64) if labels is None else labels[: len(known)]
    return Batch(x=known, y=y, ids=torch.arange(len(known)), domain=domain), labels


def check_recorded_labels(labels: Tensor, classes: int | None, what: str) -> None:
    """Raise `DataError` unless there is one class per record [N], or several labels per record [N, L]."""
    if labels.is_floating_point() or labels.ndim > 2:
        raise DataError(
            f"{what} must be whole numbers, [N] from 0 or [N, L] of 0 and 1, got {labels.dtype} {list(labels.shape)}"
        )
    if several(labels):
        if labels.shape[1] != (classes or labels.shape[1]) or not 2 <= labels.shape[1] <= MOST_CLASSES:
            allowed = f"2..{MOST_CLASSES}" if classes is None else f"{classes}, as classes says"
            raise DataError(
                f"{what} has {labels.shape[1]} labels per record, and the number must be {allowed}; give a column for "
                "each label, or one class number per record as [N]"
            )
        if not bool(((labels == 0) | (labels == 1)).all()):
            raise DataError(
                f"{what} has several labels per record, which must be 0 or 1 each, got {int(labels.min())}.."
                f"{int(labels.max())}; give one class number per record as [N]"
            )
        return
    # The largest label sets the number of classes, and so the memory use.
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < MOST_CLASSES):
        held = f"{int(labels.min())}..{int(labels.max())}"
        raise DataError(f"{what} must lie in 0..{MOST_CLASSES - 1}, got {held}; number the classes")


def check_alike(tensors: Mapping[str, Tensor], here: Path) -> None:
    """Raise `DataError` if a recording has labels of several kinds: class numbers [N], and L labels per record [N, L].
    One difference is allowed: labels of rounds may be float [N, L] and others class numbers [N], because a defense
    may mix labels or add noise to them."""
    labels = {name: value for name, value in sorted(tensors.items()) if name.endswith(".labels")}
    wide = next((name for name, value in labels.items() if several(value) and not value.is_floating_point()), None)
    for name, value in labels.items():
        if wide is not None and value.shape[1:] != labels[wide].shape[1:]:
            raise DataError(
                f"{here}: {wide} is {list(labels[wide].shape)}, and {name} {list(value.shape)}; give either one label "
                "a record everywhere, [N], or the same several ones, [N, L]"
            )
