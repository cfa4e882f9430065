"""Writes the segments of a recording as programs or weights; for the lower segment, also its mode (training or
evaluation) and how far its output is from the release."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from privkit.errors import UsageError, one_line
from privkit.files.storage import packed
from privkit.recording.replay import FAR, Ask, carried, replay

_Sent = tuple[Tensor, Tensor]  # the records of a round, and their release
_NO_EVIDENCE = f"(more than {FAR:g}), so a failed attack with lower or queries on it shows nothing"


def lower_fields(
    module: nn.Module,
    builder: str,
    sample: Tensor | None,
    rounds: Sequence[_Sent],
    variance: float,
    files: dict[str, bytes],
    *,
    trained: bool,
) -> tuple[dict[str, Any], str]:
    """Make the fields of `recording.json` about the lower segment, and a warning on a round that it fails to reproduce.

    The mode is training or evaluation: the one whose output is closer to the last release, or evaluation if there is no
    round. If noise of this `variance` hides which mode is closer, training mode is used under two conditions: the
    segment was in training mode (`trained`), and in this mode records of a batch affect each other (as in batch
    normalization). The segment's file is added to `files`. A program is traced on the records `sample`.
    """
    kept = segment_fields("lower", module, builder, sample, files)
    if not rounds:
        return {"lower": kept}, ""
    last, other = rounds[-1], dict[str, bytes]()
    found = {"eval": _distance(_ask("lower", module, builder, files), last, variance)}
    met = bool(trained and variance and _meet(_copy(module, training=True), last))
    if found["eval"] > FAR or met:
        with suppress(UsageError):  # a module may not be traceable in training mode
            segment_fields("lower", module, builder, sample, other, training=True)
            found["train"] = _distance(_ask("lower", module, builder, other, training=True), last, variance)
    mode = min(sorted(found, reverse=met), key=lambda name: found[name])
    if found[mode] == inf:
        return {"lower": kept}, ""
    if mode == "train":
        files |= other
    told = _moved(_ask("lower", module, builder, files, training=mode == "train"), rounds, variance)
    return {"lower": kept, "replay": {"mode": mode, "distance": found[mode]}}, told


def segment_fields(
    part: str,
    module: nn.Module,
    builder: str,
    sample: Tensor | None,
    files: dict[str, bytes],
    *,
    training: bool = False,
) -> dict[str, str]:
    """Make the fields of `recording.json` for a segment; the segment's file is added to `files`."""
    if builder:
        files[f"{part}.safetensors"] = packed(module.state_dict())
        return {"builder": builder, "weights": f"{part}.safetensors"}
    if sample is None:
        raise UsageError(f"{part} is traced on the recorded x, and there is none; give x, or {part}_builder")
    buffer, copied = io.BytesIO(), _copy(module, training=training)
    with warnings.catch_warnings(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # torch warns of shapes that a trace takes for constants
        try:
            torch.jit.save(torch.jit.trace(copied, sample, check_trace=False), buffer)
        except Exception as error:  # a user's own code may raise anything
            raise UsageError(_failed(part, copied, sample, error)) from None
    files[f"{part}.pt"] = buffer.getvalue()
    return {"program": f"{part}.pt"}


def _failed(part: str, module: nn.Module, sample: Tensor, error: Exception) -> str:
    try:
        module(sample)
    except Exception as other:
        given = f"{sample.dtype} {list(sample.shape)}".removeprefix("torch.")
        what = "x is what lower is" if part == "lower" else "the release is what upper is"
        return (
            f"{part} fails on what was recorded, {given} ({one_line(other)}); record so that {what} called on, or give "
            f"the {part} of this loop"
        )
    return f"{part} cannot be recorded as a program ({one_line(error)}); name its {part}_builder"


def _copy(module: nn.Module, *, training: bool) -> nn.Module:
    return deepcopy(module).cpu().float().train(training)


def _ask(part: str, module: nn.Module, builder: str, files: Mapping[str, bytes], *, training: bool = False) -> Ask:
    """The segment as an audit will read it; with a builder, a copy of the module, which has the recorded weights."""
    if builder:
        return _copy(module, training=training)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that programs are an old format
        program: Ask = torch.jit.load(io.BytesIO(files[f"{part}.pt"]), map_location="cpu")
    return program


def _meet(ask: Ask, last: _Sent) -> bool:
    try:
        return carried(ask, last[0]) != (0, 0)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return False


def _distance(ask: Ask, sent: _Sent, variance: float) -> float:
    try:
        found = replay(ask, *sent).distance(variance)
        return found if found < inf else inf  # non-finite tensors are refused when they are written
    except (RuntimeError, ValueError, IndexError, TypeError):  # the audit reports such a misfit
        return inf


def _moved(ask: Ask, rounds: Sequence[_Sent], variance: float) -> str:
    """A warning about the latest of `rounds` that the segment does not reproduce; empty if it reproduces all rounds."""
    for made, sent in enumerate(reversed(rounds)):
        if (far := _distance(ask, sent, variance)) <= FAR:
            continue
        if not made:
            return (
                f"the last round, sent again through lower, differs by {far:.2f} of its size {_NO_EVIDENCE}; if the "
                "optimizer stepped after that release, record rounds after the last step or save before it; if not, "
                "give the module that made the release, with its defense"
            )
        return (
            f"lower reproduces the last {made} of {len(rounds)} kept rounds, but the one before differs by {far:.2f} "
            f"of its size {_NO_EVIDENCE}; record rounds after the last step, or fewer: Recorder(rounds={made})"
        )
    return ""
