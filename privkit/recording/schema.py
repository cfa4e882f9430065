"""The schema of `recording.json`, which describes the tensors. The file has a version and a checksum."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from privkit.errors import DataError, shortened, unknown
from privkit.files.paths import read_bytes
from privkit.files.sealed import Broken, opened

RECORDING_VERSION = 2
"""Increased when earlier readers would misread the folder; version 2 has a checksum and a complete mechanism."""
FILE = "recording.json"

_MOST_BYTES = 4 << 20  # bytes of `recording.json`
MOST_CLASSES = 100_000
_MOST_SEATS = 100_000  # largest number of clients, of messages, and of records in one release


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"a name has no control characters, got {shortened(text)}")
    return text


_Whole = Annotated[int, Field(ge=1, le=1_000_000_000)]
_Seats = Annotated[int, Field(ge=1, le=_MOST_SEATS)]
_Name = Annotated[str, Field(max_length=200), AfterValidator(_printable)]
_Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Network(_Frozen):
    """A segment of the recorded model: either weights with the code that builds it, or a program."""

    builder: _Name = ""  # "module:object", a class or function that returns the segment
    options: dict[str, Any] = {}  # keywords for the builder
    domain: bool = False  # whether the builder also gets the recording's domain, as the keyword `domain`
    weights: _Name = ""  # file of its state dict (safetensors or npz); empty if the builder sets the weights
    program: _Name = ""  # file of a TorchScript or exported program, in place of all other fields

    @model_validator(mode="after")
    def _one_of_both(self) -> Network:
        if bool(self.builder) == bool(self.program) or (self.program and (self.weights or self.options or self.domain)):
            raise ValueError("give either a program, or a builder with its options and weights")
        return self


class _OwnerMeasurements(_Frozen):
    """Measurements reported by the recording's owner, which privkit repeats without checking them."""

    accuracy: Annotated[float, Field(ge=0, le=1)] | None = None  # share of right answers on test images
    test_images: _Whole | None = None  # number of test images, for the interval of the accuracy
    bytes_up: _Amount | None = None  # bytes of one record's smashed data
    bytes_down: _Amount | None = None  # bytes of the gradient that comes back for one record

    @model_validator(mode="after")
    def _with_its_number(self) -> _OwnerMeasurements:
        if (self.accuracy is None) != (self.test_images is None):
            raise ValueError("accuracy and test_images belong together: the interval needs both")
        return self


class _Replayed(_Frozen):
    """Mode of the written lower segment, and distance of the replayed last round; an audit measures distances anew."""

    # evaluation or training mode of the segment; batch normalization and dropout differ between them
    mode: Literal["eval", "train"]
    distance: _Amount  # relative distance from the release (`privkit.recording.replay`)


class Description(_Frozen):
    """The fields of `recording.json`."""

    schema_version: Literal[1, 2]
    name: Annotated[_Name, Field(min_length=1)]  # the defense's name, as tables show it
    # (C, H, W) of private images; None for texts and table rows
    image_shape: Annotated[list[_Whole], Field(min_length=3, max_length=3)] | None = None
    records: _Name = ""  # the file that says what a record is (`privkit.domains.as_json`), in place of `image_shape`
    batch_size: _Whole  # records of one client in a round
    clients: _Seats = 1  # number of clients that send in a round
    rounds: _Whole  # number of recorded rounds, of all passes together
    # number of rounds that the recorder saw; it kept the last ones. None if rounds were not counted
    watched: _Whole | None = None
    passes: _Whole = 1  # how often the same records were sent, in the same order
    messages: _Seats = 1  # number of messages in a round, all of equal size
    mixed: _Seats = 1  # number of records that are mixed into each release
    whole: bool = True  # whether each patch of an image, or each word or field, has its own token
    # number of classes, or of labels per record; None to derive it from the labels
    classes: Annotated[int, Field(ge=2, le=MOST_CLASSES)] | None = None
    tensors: _Name = "tensors.safetensors"
    lower: Network | None = None  # the clients' segment, with its defense unless `defense` names the defense
    # the defense between the lower segment and the release, as in `--defense`; empty if `lower` contains it
    defense: Annotated[str, Field(max_length=10_000)] = ""
    upper: Network | None = None
    # replay of the last round through `lower`, as the recorder measured it; its mode is that of `lower`
    replay: _Replayed | None = None
    # the basis of a certificate, as `privkit.accountants.spec.records` reads it
    mechanism: dict[str, Any] | None = None
    measured: _OwnerMeasurements = _OwnerMeasurements()
    dataset: _Name = "recorded"
    model: _Name = "recorded"
    protocol: _Name = "recorded"
    notes: list[str] = []  # sentences for every result
    files: dict[str, str] = {}  # file -> SHA-256, of every file; version 1 may leave some out

    @model_validator(mode="after")
    def _whole_passes(self) -> Description:
        if self.rounds % self.passes:
            raise ValueError(f"{self.passes} passes of {self.rounds} rounds are not a whole number of rounds each")
        if (self.image_shape is None) == (not self.records):
            raise ValueError(
                "give either image_shape, for images, or records, the file that says what a text or a table row is"
            )
        if self.mixed > self.batch_size * self.clients:
            raise ValueError(f"{self.mixed} records in a row (mixed) are more than a round has (batch_size, clients)")
        if self.defense and self.lower is None:
            raise ValueError(
                "defense is what follows the lower segment, and there is no lower; add it, or drop defense"
            )
        return self


def parsed(data: bytes, path: Path) -> Any:
    """Parse JSON; raises `DataError` if the bytes are not JSON. `path` names the file in the error."""
    try:
        fields = json.loads(data)
        json.dumps(fields, ensure_ascii=False).encode()  # halves of surrogate pairs can neither be shown nor kept
    except (ValueError, RecursionError):
        raise DataError(f"{path} is not JSON; write it anew, as docs/reference/recording.md says") from None
    return fields


def description(data: bytes, path: Path) -> Description:
    """Parse and check the bytes of a `recording.json`, which has a checksum from version 2 on; raises `DataError`."""
    fields = parsed(data, path)
    version = fields.get("schema_version") if isinstance(fields, dict) else None
    if isinstance(version, int) and version > RECORDING_VERSION:
        raise DataError(
            f"{path} has schema version {shortened(version)}, and this privkit reads up to {RECORDING_VERSION}; "
            "install a newer privkit"
        )
    if isinstance(fields, dict) and (version != 1 or "sha256" in fields):
        try:
            fields = opened(data)
        except Broken as error:
            raise DataError(
                f"{path} {error}; restore it, or describe the recording again with "
                "privkit.recording.write.write_description"
            ) from None
    try:
        return Description.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = shortened(".".join(map(str, first["loc"])))[1:-1] or "the whole"
        if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
            told = unknown("field", str(first["loc"][0]), Description.model_fields)
            raise DataError(f"{path}: {told}; see docs/reference/recording.md") from None
        said = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
        raise DataError(f"{path}: {where}: {said[:1].lower()}{said[1:]}; see docs/reference/recording.md") from None


def description_file(folder: Path) -> bytes:
    """Read the bytes of a folder's `recording.json`; raises `DataError` if there is no such plain file."""
    try:
        return plain_bytes(folder, FILE, _MOST_BYTES)
    except DataError as error:
        raise DataError(
            f"{folder} holds no recording: {str(error).removeprefix(f'{folder}: ').partition(';')[0]}; write the "
            "folder with privkit.Recorder, or as docs/reference/recording.md says"
        ) from None


def plain_bytes(folder: Path, name: str, most: int) -> bytes:
    """Read a plain file (no link, pipe or device) of at most `most` bytes in a folder; raises `DataError` otherwise.
    Only the folder's own path may contain links."""
    if not name.isprintable() or name != Path(name).name or os.path.islink(folder / name):
        raise DataError(f"{folder}: {shortened(name)} must be a file of this folder itself; copy it there")
    try:
        return read_bytes(folder.resolve() / name, most)
    except OSError as error:
        raise DataError(f"{folder}: cannot read {name} ({error.strerror}); record it again") from None
