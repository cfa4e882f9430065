"""Records the tensors that cross the cut in a user's own training loop, and writes them as a recording."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.records import to_json
from privkit.attacks.base import View
from privkit.domains.domain import Domain
from privkit.domains.images.domain import Images, check_images
from privkit.errors import DataError, UsageError, unknown
from privkit.recording.read import Recording
from privkit.recording.replay import variance_of
from privkit.recording.schema import Description
from privkit.recording.segments import lower_fields, segment_fields
from privkit.recording.write import write_recording
from privkit.shared.array import Array

_Sent = TypeVar("_Sent", Tensor, Array)
_FILLED_IN = frozenset({"schema_version", "records", "rounds", "watched", "tensors", "replay", "files"})
"""Fields of `recording.json` that follow from what was recorded."""


class _Round:
    gradient: Tensor | None = None
    features: Tensor | None = None
    sent_up: Tensor | None = None

    def __init__(self, smashed: Tensor | Array, x: Tensor | Array | None, y: Tensor | Array | None) -> None:
        self.smashed = self.crossing(smashed, "gradient")
        self.x = None if x is None else _records(x, "x")
        self.y = None if y is None else _kept(y)

    def crossing(self, value: Tensor | Array, name: str) -> Tensor:
        """Copy a tensor that crosses a cut. A copy of its gradient is later stored in the attribute `name`."""
        if isinstance(value, Tensor) and value.requires_grad:
            value.register_hook(lambda gradient: setattr(self, name, _kept(gradient)))
        return _kept(value)


class Recorder:
    """Keeps the last rounds of a training loop, and writes them as a recording for `privkit audit`.

    Give the recorder the module whose output crosses the cut. It then records each call of the module in training mode.
    Or call it on the output: `recorder(smashed, x=images, y=labels)`. It also records the returned gradient, and
    never changes the loop's results. In a U-shape (clients also hold the last layers), call `features` on the features
    that the server sends down.

    Args:
        client: the module that maps records to the release; None if you call the recorder yourself.
        rounds: number of last rounds to keep. Rounds whose size differs from the first round's are left out.

    Attributes:
        left_out: number of rounds that were left out.
        watched: number of all rounds, including those left out.

    >>> import tempfile
    >>> lower, images = nn.Sequential(nn.Flatten(), nn.Linear(16, 4)), torch.rand(10, 1, 4, 4)
    >>> recorder = Recorder(lower)
    >>> lower(images).sum().backward()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     recording = recorder.save(folder + "/recording", name="none", own=torch.rand(8, 1, 4, 4), lower=lower)
    >>> recording.views[0].smashed.shape, len(recording.truth), recording.description.lower.program
    (torch.Size([10, 4]), 10, 'lower.pt')
    """

    def __init__(self, client: nn.Module | None = None, *, rounds: int = 10) -> None:
        if rounds < 1:
            raise UsageError(f"rounds must be a whole number >= 1, got {rounds}; it is how many of the last are kept")
        self._rounds: deque[_Round] = deque(maxlen=rounds)
        self._last: _Round | None = None
        self.left_out = self.watched = 0
        self._handle = None if client is None else client.register_forward_hook(self._hook, with_kwargs=True)

    def _hook(self, module: nn.Module, given: tuple[Tensor, ...], named: Mapping[str, Tensor], smashed: Tensor) -> None:
        if module.training:  # an evaluation on test images is no round
            self(smashed, x=given[0] if given else _first(module, named))

    def __call__(self, smashed: _Sent, *, x: Tensor | Array | None = None, y: Tensor | Array | None = None) -> _Sent:
        """Record one message (the smashed data of one batch), and return it unchanged.

        Args:
            smashed: the data that cross the cut, [N, T, D], [N, C, H, W] or [N, D]; like `x` and `y`, a tensor or an
                array.
            x: records of the message, used for scoring: images [N, C, H, W] in [0, 1], not normalized, or records [N,
                ...] of the domain given to `save`.
            y: labels of the records, used for scoring: int64 [N], or 0 and 1 in [N, L].

        Raises:
            UsageError: if images are not floats in [0, 1], for example because they are normalized.
            DataError: if images are [N, H, W, C], or if records hold NaN or infinity.
        """
        self.watched += 1
        made = self._last = _Round(smashed, x, y)
        if self._rounds and made.smashed.shape != self._rounds[0].smashed.shape:
            self.left_out += 1
        else:
            self._rounds.append(made)
        return smashed

    def features(self, features: _Sent) -> _Sent:
        """Record the features that a U-shape's server sends to the clients' last layers; return them unchanged.

        The gradient that the client sends back is recorded, too. To let the audit score attacks on labels, pass the
        true labels as `y` when you call the recorder.

        Args:
            features: features [N, …], one entry for each released record.

        Raises:
            UsageError: if no round was recorded yet.
        """
        if self._last is None:
            raise UsageError(
                "features belong to a recorded round, and there is none yet: first call the recorder on the release"
            )
        self._last.features = self._last.crossing(features, "sent_up")
        return features

    def save(
        self,
        folder: Path | str,
        *,
        name: str,
        own: Tensor | Array | None = None,
        own_labels: Tensor | Array | None = None,
        lower: nn.Module | None = None,
        lower_builder: str = "",
        upper: nn.Module | None = None,
        upper_builder: str = "",
        domain: Domain | None = None,
        mechanism: SplitMechanism | None = None,
        accuracy: tuple[float, int] | None = None,
        clients: int = 1,
        passes: int = 1,
        **described: Any,
    ) -> Recording:
        """Write the recording and stop watching.

        As a check, the written `lower` gets the last round's records again, in evaluation mode. If its output is
        farther from the release than `privkit.recording.replay.FAR`, training mode is tried, too, in which batch
        normalization and dropout differ. `recording.json` notes the closer mode and its distance. A warning names the
        last kept round that `lower` does not reproduce, such as a round before the optimizer's last step.

        Args:
            folder: folder of the recording, new or empty.
            name: name of the defense, as tables show it.
            own: the adversary's own records [M, ...], in the form of `x`; most attacks need several hundred.
            own_labels: labels of the adversary's records, int64 [M], or 0 and 1 in [M, L].
            lower: the clients' module from records to the release, including the defense; None if no adversary should
                know it. An audit needs it for query and white-box attacks; without it, only passive attacks run.
            lower_builder: "module:object" that builds `lower`. Then only weights are recorded, and an audit must trust
                the module (`--trust module`). Empty to record a TorchScript program, traced on the recorded `x`.
            upper: the server's segment, from the release to logits; in a U-shape, attacks do not get it.
            upper_builder: "module:object" that builds `upper`; empty to record it as a program.
            domain: domain of the records, `privkit.domains.Tokens(…)` or `Tables(…)`; None for images.
            mechanism: the mechanism (clipping, noise, …) from which the privacy certificate is computed; None for no
                certificate.
            accuracy: test accuracy in [0, 1], and the number of test images.
            clients: number of clients; each release holds equally many records of each client, client after client.
            passes: number of passes in which the kept rounds send the same records in the same order; `x` and `y` of
                one pass suffice.
            **described: further fields of `recording.json`: `defense`, `classes`, `dataset`, `model`, `notes`, ….

        Returns:
            The recording, read back.

        Raises:
            UsageError: if nothing was recorded, if fields or passes do not fit the recorded rounds, or if the folder is
                not empty.
            DataError: if the recorded tensors do not fit together. The folder is then left as it was.
        """
        if not self._rounds:
            raise UsageError(
                "nothing was recorded: run the loop after the recorder was made, or call it on the release"
            )
        if self._handle is not None:
            self._handle.remove()
        if mechanism is not None and not isinstance(mechanism, SplitMechanism):
            raise UsageError(
                f"mechanism is a privkit.accountants.spec.mechanism.SplitMechanism, got a {type(mechanism).__name__}; "
                "docs/reference/recording.md says what it declares"
            )
        for side, module in (("lower", lower), ("upper", upper)):
            if module is not None and not isinstance(module, nn.Module):
                raise UsageError(f"{side} is a torch.nn.Module, got a {type(module).__name__}; wrap it in a module")
        mine = None if own is None else _records(own, "own")
        mine_labels = None if own_labels is None else _kept(own_labels)
        # copies, since a user's hooks may record the replay
        rounds, watched, left_out = list(self._rounds), self.watched, self.left_out
        described |= _fields(described, len(rounds[0].smashed), clients, accuracy)
        notes = list(described.get("notes", []))
        of_pass = {kind: _one_pass(kind, [getattr(one, kind) for one in rounds], passes) for kind in ("x", "y")}
        x, labels = (_together(kind, parts, notes) for kind, parts in of_pass.items())
        if domain is None:
            domain = _images(described.pop("image_shape", None), x, mine)
        views = [View(round=n, smashed=one.smashed, cut_gradient=one.gradient) for n, one in enumerate(rounds)]
        second = [
            View(round=n, smashed=one.features, cut_gradient=one.sent_up)
            for n, one in enumerate(rounds)
            if one.features is not None
        ]
        if len(second) not in (0, len(rounds)):
            raise UsageError(f"features were given in {len(second)} of {len(rounds)} rounds; give those of each round")
        files, told = dict[str, bytes](), ""
        if lower is not None:
            given = zip(of_pass["x"] * passes, rounds, strict=True)
            known = [(records, one.smashed) for records, one in given if records is not None]
            sent = known if of_pass["x"][-1] is not None and not described.get("defense") else []
            sample = x if x is not None else known[0][0] if known else None
            trained = lower.training or self._handle is not None  # the hook records in training mode only
            noise = variance_of(mechanism)
            made, told = lower_fields(lower, lower_builder, sample, sent, noise, files, trained=trained)
            described |= made
        if upper is not None:
            described["upper"] = segment_fields("upper", upper, upper_builder, rounds[0].smashed.float(), files)
        if left_out:
            notes.append(f"{left_out} rounds of another size were left out when this was recorded")
        described |= {"name": name, "clients": clients, "passes": passes, "watched": watched, "notes": notes}
        described["mechanism"] = None if mechanism is None else to_json(mechanism)
        home, owned, true = Path(folder), (mine, mine_labels), (x, labels)
        written = write_recording(
            home, views, domain=domain, second=second, files=files, own=owned, truth=true, **described
        )
        if told:
            warnings.warn(told, stacklevel=2)
        return written


def _first(module: nn.Module, named: Mapping[str, Tensor]) -> Tensor | None:
    """The first argument of a call that gives all arguments by name; None without arguments."""
    order = [*signature(module.forward).parameters, *named]
    return next((named[name] for name in order if name in named), None)


def _images(shape: Sequence[int] | None, *known: Tensor | None) -> Domain:
    shape = next((one.shape[1:] for one in known if one is not None), None) if shape is None else shape
    if shape is None:
        raise UsageError(
            "the shape of the private images is not known; give x to the recorder, or image_shape=(C, H, W)"
        )
    if len(shape) != 3:
        raise UsageError(
            f"images are [N, C, H, W], and these records have shape {list(shape)} each; of texts or table rows give "
            "domain=privkit.domains.Tokens(…) or Tables(…)"
        )
    return Images(shape=(shape[0], shape[1], shape[2]))


def _fields(
    described: Mapping[str, Any], rows: int, clients: int, accuracy: tuple[float, int] | None
) -> dict[str, Any]:
    """Check the given fields of `recording.json`, and compute the batch size and the measurements."""
    for name in described:
        if name in _FILLED_IN:
            raise UsageError(f"save fills in {name} by what was recorded; leave it out")
        if name not in Description.model_fields and name != "members":
            raise unknown("field", name, Description.model_fields.keys() - _FILLED_IN)
    rows *= described.get("mixed", 1)
    if clients < 1 or rows % clients:
        raise UsageError(
            f"clients={clients} cannot have equally many of the {rows} records of a release; give a divisor of {rows}, "
            "or record clients of other sizes apart"
        )
    each = rows // clients
    if described.get("batch_size", each) != each:
        raise UsageError(
            f"a release has {rows} records, so that batch_size={described['batch_size']} does not fit "
            f"clients={clients}; leave batch_size out, which follows, or correct clients"
        )
    measured = dict(described.get("measured") or {})
    if accuracy is not None:
        if measured.keys() & {"accuracy", "test_images"}:
            raise UsageError("accuracy is given twice, also in measured; leave it out of measured")
        if not isinstance(accuracy, tuple | list) or len(accuracy) != 2 or not 0 <= accuracy[0] <= 1:
            raise UsageError(
                f"accuracy={accuracy!r}: give the share of right answers, from 0 to 1, and the number of test records, "
                "such as accuracy=(0.95, 200)"
            )
        measured |= {"accuracy": float(accuracy[0]), "test_images": int(accuracy[1])}
    return {"batch_size": each, "measured": measured or None}


def _one_pass(name: str, parts: list[Tensor | None], passes: int) -> list[Tensor | None]:
    """The records or labels of each round of one pass, taken from any pass that has them."""
    if passes < 1 or len(parts) % passes:
        raise UsageError(
            f"{len(parts)} kept rounds are not {passes} passes of equal size; keep as many rounds as all passes have: "
            "Recorder(rounds=passes × rounds of one)"
        )
    each = len(parts) // passes
    found: list[Tensor | None] = []
    for number in range(each):
        known = [(place, part) for place in range(number, len(parts), each) if (part := parts[place]) is not None]
        for place, part in known[1:]:
            if not torch.equal(part, known[0][1]):
                raise UsageError(
                    f"passes={passes} send the same records in the same order, and {name} of kept round {place + 1} "
                    f"differs from that of round {known[0][0] + 1}; shuffle alike in each pass, or leave passes out"
                )
        found.append(known[0][1] if known else None)
    return found


def _together(name: str, parts: list[Tensor | None], notes: list[str]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    shapes = {str(list(part.shape[1:])) for part in known}
    if len(shapes) > 1:
        raise UsageError(f"a row of {name} has shape {' and '.join(sorted(shapes))} in recorded rounds; give one shape")
    if 0 < len(known) < len(parts):
        notes.append(f"{name} was given in {len(known)} of {len(parts)} rounds, so it was left out")
    return torch.cat(known) if known and len(known) == len(parts) else None


def _records(value: Tensor | Array, name: str) -> Tensor:
    """Copy records, with floats as float32. Records of shape [N, C, H, W] must be images with floats in [0, 1]."""
    kept = _kept(value)
    kept = kept.float() if kept.is_floating_point() else kept
    if kept.ndim != 4 or not len(kept):
        if not bool(kept.isfinite().all()):
            raise DataError(f"{name}: the records hold NaN or infinity; fill what is missing")
        return kept
    low, high = float(kept.min()), float(kept.max())
    if low < 0 or high > 1 or not kept.is_floating_point():
        given = f"{low:g} to {high:g}" if kept.is_floating_point() else str(kept.dtype)
        raise UsageError(
            f"{name}: images are float32 in [0, 1], got {given}; give them as before a normalization (uint8 as "
            "x / 255), and let the client's module (lower) do the rest: nn.Sequential(normalize, client)"
        )
    check_images(kept)
    return kept


def _kept(value: Any) -> Tensor:
    try:
        return torch.as_tensor(value).detach().cpu().clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"a recorder takes tensors and numeric arrays, got a {type(value).__name__}: {error}"
        ) from None
