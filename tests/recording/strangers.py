"""Recordings by a hostile author: code that must not run, invalid contents, and how privkit refuses them."""

import io
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from privkit.accountants.spec.records import to_json
from privkit.audit.declared import declared_by
from privkit.audit.recorded import _certificate
from privkit.errors import PrivkitError
from privkit.files.sealed import digest, sealed
from privkit.recording.read import Recording, read_recording
from privkit.settings.recorded import sufficient_attacks
from tests.recording.declarations import MECHANISM
from tests.recording.made import DESCRIBED, Half, tensors

EXPORTED: dict[str, Any] = {
    "model": "vit_micro",
    "defense": {"name": "none"},
    "protocol": {"name": "sl"},
    "image_shape": [1, 8, 8],
    "classes": 10,
    "seed": 0,
}


FIRST = "tensors.safetensors"


CLIENTS = "privkit.audit.export:clients"


LOADERS: list[dict[str, Any]] = [
    {"builder": "torch:load", "options": {"f": "weights.bin", "weights_only": False}},
    {"builder": "torch.hub:load", "options": {"repo_or_dir": ".", "model": "lower", "source": "local"}},
    {"builder": "torch.utils.cpp_extension:load_inline", "options": {"name": "x", "cpp_sources": "int f();"}},
    {"builder": "privkit.parts.registry:load", "options": {"target": "canary_part:lower"}},
    {"builder": "privkit.files.import_path:imported", "options": {"what": "it", "path": "canary_part:lower"}},
    {"builder": "canary_model:lower"},
    {"builder": CLIENTS, "options": {**EXPORTED, "model": "canary_model:lower"}},
    {"builder": CLIENTS, "options": {**EXPORTED, "model": "canary_model.lower:canary_model.lower"}},
    {"builder": CLIENTS, "options": {**EXPORTED, "defense": {"name": "canary_part:lower"}}},
]


def everything(folder: Path) -> Recording:
    """Do everything that an audit does with a recording before it attacks."""
    recording = read_recording(folder)
    recording.lower()
    recording.upper()
    _certificate(recording, declared_by(recording), recording.mechanism_of(1), 1e-5)
    sufficient_attacks(recording)
    return recording


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Context manager that fails if its block takes longer than `seconds`."""

    def late(number: int, frame: object) -> None:
        raise AssertionError(f"not done in {seconds} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


VALUES: list[Any] = [
    *(None, True, -1, 0, 1, 2, 7, 10**9, 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf"), "", "a\0", "\ud800"),
    *(3, 12, 100, 65537, 2**31, 1e-300, 1e-5, 3.0, 12.5, False, "trained", "client", "laplace"),
    *("..", "/dev/zero", "../x", "recording.json", "a" * 10**5, [], [[]], {}, {"kind": "noise"}, [1, 8, 8], ["x"]),
    *(
        LOADERS[0],
        LOADERS[5],
        LOADERS[6],
        LOADERS[8],
        {"program": "lower.pt"},
        "canary_part:lower",
        "canary_part:a+none",
    ),
]
"""Wrong values with which fields are replaced."""


KINDS = [
    torch.float32,
    torch.int64,
    torch.float16,
    torch.float64,
    torch.uint8,
    torch.int64,
    torch.uint64,
    torch.bool,
    torch.complex64,
]


def hostile(folder: Path, draws: random.Random) -> None:
    """Write a recording with one to three invalid contents and, mostly, a correct checksum."""
    lower: dict[str, Any] = (
        {"builder": CLIENTS, "options": EXPORTED} if draws.random() < 0.3 else {"program": "lower.pt"}
    )
    changed: dict[str, Any] = {}
    fields: dict[str, Any] = {
        "lower": lower,
        "mechanism": to_json(MECHANISM),
        "replay": {"mode": "eval", "distance": 0},
    }
    names = [
        "round_0.smashed",
        "truth.labels",
        "truth.members",
        "own.labels",
        "round_1.labels",
        "round_0.clients",
        "x\0",
    ]
    steps: list[Callable[[], object]] = [
        lambda: fields.update({(key := draws.choice(sorted(ORDINARY))): spoiled(ORDINARY[key], draws)}),
        lambda: fields.update(mechanism=spoiled(fields["mechanism"], draws)),
        lambda: fields.update(lower=spoiled(fields["lower"], draws)),
        lambda: changed.update(
            {
                draws.choice(names): torch.zeros(draws.choice([(), (0,), (6,), (12,), (12, 1), (6, 1, 8, 8)])).to(
                    draws.choice(KINDS)
                )
            }
        ),
        lambda: changed.update({draws.choice([*tensors()]): None}),
    ]
    for step in draws.choices(steps, weights=[4, 6, 3, 2, 1], k=draws.choice([1, 1, 1, 2, 3])):
        step()
    folder.mkdir()
    (folder / "lower.pt").write_bytes(
        draws.choice([*[PROGRAM] * 9, PROGRAM[:-100], Path("weights.bin").read_bytes(), b""])
    )
    save_file({name: value for name, value in {**tensors(), **changed}.items() if value is not None}, folder / FIRST)
    listed = {name: digest((folder / name).read_bytes()) for name in (FIRST, "lower.pt")}
    (folder / "recording.json").write_text(sealed({"files": listed, **DESCRIBED, **fields}))
    spoil = draws.random()
    victim = folder / draws.choice(["recording.json", FIRST, "lower.pt"])
    if spoil < 0.05:
        victim.unlink()
        os.mkfifo(victim)
    elif spoil < 0.1:
        victim.unlink()
        victim.symlink_to("/dev/zero")
    elif spoil < 0.2:
        victim.write_bytes(draws.randbytes(64) + victim.read_bytes()[64:])


ORDINARY: dict[str, Any] = {
    **{**DESCRIBED, "clients": 1, "watched": 9, "passes": 1, "messages": 1, "mixed": 1, "whole": True, "classes": 10},
    **{"tensors": "tensors.safetensors", "defense": "gaussian_noise", "dataset": "mine", "notes": ["of May"]},
    "measured": {"accuracy": 0.5, "test_images": 10, "bytes_up": 3.0},
    "upper": {"program": "lower.pt"},
}
"""Fields that a recording may have, as an honest one has them."""


def spoiled(given: Any, draws: random.Random) -> Any:
    """A nested value with one part replaced, mostly by one of its type: other types are refused early."""
    if isinstance(given, dict) and given and draws.random() < 0.95:
        key = draws.choice(sorted(given))
        return {**given, key: spoiled(given[key], draws)}
    alike = [value for value in VALUES if type(value) is type(given)]
    return draws.choice(alike if alike and draws.random() < 0.9 else VALUES)


def _program() -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(Half()), buffer)
    return buffer.getvalue()


PROGRAM = _program()


def end(folder: Path) -> str:
    """The sentence with which a recording is refused; empty if it is harmless."""
    try:
        everything(folder)
    except PrivkitError as error:
        return str(error)
    return ""
