"""A recorder for a user's own training loop: it watches what crosses the cut, and writes a recording."""

from __future__ import annotations

import io
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.records import to_json
from privkit.attacks.base import View
from privkit.domains.domain import Domain
from privkit.domains.images.domain import Images
from privkit.errors import UsageError, one_line
from privkit.files.storage import packed
from privkit.recording.apart import carried
from privkit.recording.read import Recording
from privkit.recording.replay import FAR, Ask, replay, variance_of
from privkit.recording.write import write_recording
from privkit.shared.array import Array

Sent = TypeVar("Sent", Tensor, Array)


class _Round:
    gradient: Tensor | None = None
    features: Tensor | None = None
    sent_up: Tensor | None = None

    def __init__(self, smashed: Tensor | Array, x: Tensor | Array | None, y: Tensor | Array | None) -> None:
        self.smashed = self.crossing(smashed, "gradient")
        self.x, self.y = (None if value is None else _kept(value) for value in (x, y))

    def crossing(self, value: Tensor | Array, name: str) -> Tensor:
        """A copy of what crosses a cut, whose gradient is kept under this name when it comes back."""
        if isinstance(value, Tensor) and value.requires_grad:
            value.register_hook(lambda gradient: setattr(self, name, _kept(gradient)))
        return _kept(value)


class Recorder:
    """Keeps the last rounds of a training loop, and writes them as a recording for `privkit audit`.

    Give it the module whose output crosses the cut, and it watches the module in training mode. Or call it on that
    output: `recorder(smashed, x=images, y=labels)`. It also records the returned gradient. The loop's results do not
    change. In a U-shape, call `features` on what the server sends down.

    Args:
        client: the module, from records to what the server gets; None to call the recorder.
        rounds: how many of the last rounds are kept. Rounds of another size than the first, such as an incomplete last
            batch, are left out.

    Attributes:
        left_out: rounds that were left out.
        watched: all rounds that were seen, left-out ones included.

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
        self._handle = None if client is None else client.register_forward_hook(self._hook)

    def _hook(self, module: nn.Module, given: tuple[Tensor, ...], smashed: Tensor) -> None:
        if module.training:  # an evaluation on test images is no round
            self(smashed, x=given[0])

    def __call__(self, smashed: Sent, *, x: Tensor | Array | None = None, y: Tensor | Array | None = None) -> Sent:
        """Remember one message, and return it unchanged.

        Args:
            smashed: what crosses the cut, [N, T, D], [N, C, H, W] or [N, D]; a tensor or an array, as all of these are.
            x: its records, for scoring: images [N, C, H, W] in [0, 1], or records [N, ...] of the domain that `save`
                is given.
            y: their labels, int64 [N], or [N, L] of 0 and 1, for scoring.
        """
        self.watched += 1
        made = self._last = _Round(smashed, x, y)
        if self._rounds and made.smashed.shape != self._rounds[0].smashed.shape:
            self.left_out += 1
        else:
            self._rounds.append(made)
        return smashed

    def features(self, features: Sent) -> Sent:
        """Remember what the server of a U-shape sends down in the last round, and return it unchanged.

        The gradient that the client sends up is recorded, too. Give the round's labels as `y`: they are for scoring.

        Args:
            features: [N, …], a row for each released one.
        """
        if self._last is None:
            raise UsageError("features come back in a round, and none was recorded: call the recorder on the release")
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
        **described: Any,
    ) -> Recording:
        """Write the recording and stop watching.

        The last round is sent again through the written `lower`. If the result is farther than `FAR` from the release,
        `lower` is written in training mode as well, where batch normalization and dropout differ. The closer one is
        kept, and `recording.json` has its mode and its distance.

        Args:
            folder: new or empty.
            name: of the defense, as tables show it.
            own: the adversary's own records [M, ...], as `x`; most attacks need some hundreds.
            own_labels: their labels, int64 [M], or [M, L] of 0 and 1.
            lower: what an adversary may know of the clients: the module from records to what crosses the cut, defense
                included. With it an audit asks queries and mounts white boxes; without it, only passive attacks.
            lower_builder: "module:object" that builds it, so that its weights are recorded and an audit must trust the
                module (`--trust module`); empty to record it as a
                TorchScript program, traced on the recorded `x`.
            upper: the server's segment, from what crosses the cut to logits; no attack gets that of a U-shape.
            upper_builder: "module:object" that builds `upper`; empty to record it as a program.
            domain: what a record is: `privkit.domains.Tokens(…)` or `Tables(…)`; None for images.
            mechanism: the mechanism for the defense's certificate.
            accuracy: share of right answers, and the number of test images.
            **described: further fields of `recording.json`: `defense`, `classes`, `dataset`, `model`, `notes`, ….

        Returns:
            The recording, read back.

        Raises:
            UsageError: if nothing was recorded, or the folder is not empty.
            DataError: if the recorded tensors do not fit together.
        """
        if not self._rounds:
            raise UsageError(
                "nothing was recorded: run the loop after the recorder was made, or call it on the release"
            )
        if self._handle is not None:
            self._handle.remove()
        mine, mine_labels = (None if value is None else _kept(value) for value in (own, own_labels))
        rounds, watched, left_out = list(self._rounds), self.watched, self.left_out  # a user's hooks hear the replay
        x, labels = (_together(kind, [getattr(one, kind) for one in rounds]) for kind in ("x", "y"))
        if domain is None:
            domain = _images(described.pop("image_shape", None), x, mine)
        views = [
            View(round=number, smashed=one.smashed, cut_gradient=one.gradient) for number, one in enumerate(rounds)
        ]
        second = [
            View(round=number, smashed=one.features, cut_gradient=one.sent_up)
            for number, one in enumerate(rounds)
            if one.features is not None
        ]
        if len(second) not in (0, len(rounds)):
            raise UsageError(f"features were given in {len(second)} of {len(rounds)} rounds; give those of each round")
        files: dict[str, bytes] = {}
        if lower is not None:
            last = rounds[-1] if rounds[-1].x is not None and not described.get("defense") else None
            trained = lower.training or self._handle is not None  # a hook sees training mode alone
            described |= _lower(lower, lower_builder, x, last, variance_of(mechanism), files, trained=trained)
        if upper is not None:
            described["upper"] = _described("upper", upper, upper_builder, rounds[0].smashed, files)
        if accuracy is not None:
            described["measured"] = {"accuracy": float(accuracy[0]), "test_images": int(accuracy[1])}
        if left_out:
            note = f"{left_out} rounds of another size were left out when this was recorded"
            described["notes"] = [*described.get("notes", []), note]
        return write_recording(
            Path(folder),
            views,
            domain=domain,
            second=second,
            files=files,
            own=(mine, mine_labels),
            truth=(x, labels),
            name=name,
            batch_size=len(rounds[0].smashed),
            watched=watched,
            mechanism=None if mechanism is None else to_json(mechanism),
            **described,
        )


def _images(shape: Sequence[int] | None, *known: Tensor | None) -> Domain:
    """The domain of images of this shape, or of the first known ones."""
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


def _lower(
    module: nn.Module,
    builder: str,
    x: Tensor | None,
    last: _Round | None,
    variance: float,
    files: dict[str, bytes],
    *,
    trained: bool,
) -> dict[str, Any]:
    """The fields that describe the lower segment, in the mode in which it comes closer to the last release.

    Without a last round, of known records and with nothing behind the segment, it stays in evaluation mode. If noise
    hides which mode is closer, a segment that was trained stays in training mode where records meet in that alone.
    """
    kept = _described("lower", module, builder, x, files)
    if last is None:
        return {"lower": kept}
    found, other = {"eval": _distance(_ask("lower", module, builder, files), last, variance)}, dict[str, bytes]()
    met = bool(trained and variance and _meet(deepcopy(module).cpu().train(), last))
    if found["eval"] > FAR or met:
        with suppress(UsageError):  # of a module that cannot be traced in training mode
            _described("lower", module, builder, x, other, training=True)
            found["train"] = _distance(_ask("lower", module, builder, other, training=True), last, variance)
    mode = min(sorted(found, reverse=met), key=lambda name: found[name])
    if found[mode] == inf:
        return {"lower": kept}
    if mode == "train":
        files |= other
    return {"lower": kept, "replay": {"mode": mode, "distance": found[mode]}}


def _ask(part: str, module: nn.Module, builder: str, files: Mapping[str, bytes], *, training: bool = False) -> Ask:
    """The segment as it is read back; with a builder, the module itself has the recorded weights."""
    if builder:
        return deepcopy(module).cpu().train(training)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, that programs are an old format
        program: Ask = torch.jit.load(io.BytesIO(files[f"{part}.pt"]), map_location="cpu")
    return program


def _meet(ask: Ask, last: _Round) -> bool:
    """Whether records of a batch meet; not if they cannot be sent again."""
    assert last.x is not None
    try:
        return carried(ask, last.x) != (0, 0)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return False


def _distance(ask: Ask, last: _Round, variance: float) -> float:
    """Of the last round; infinite if it cannot be sent again."""
    assert last.x is not None
    try:
        return replay(ask, last.x, last.smashed).distance(variance)
    except (RuntimeError, ValueError, IndexError, TypeError):  # other records or another form: the audit says so
        return inf


def _described(
    part: str,
    module: nn.Module,
    builder: str,
    sample: Tensor | None,
    files: dict[str, bytes],
    *,
    training: bool = False,
) -> dict[str, str]:
    """How `recording.json` names a segment, whose file is added."""
    if builder:
        files[f"{part}.safetensors"] = packed(module.state_dict())
        return {"builder": builder, "weights": f"{part}.safetensors"}
    if sample is None:
        raise UsageError(f"{part} is traced on the recorded x, and there is none; give x, or {part}_builder")
    buffer = io.BytesIO()
    try:
        with warnings.catch_warnings(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")  # of shapes that a trace takes for constants
            copied = deepcopy(module).cpu().train(training)
            torch.jit.save(torch.jit.trace(copied, sample, check_trace=False), buffer)
    except (RuntimeError, TypeError) as error:
        raise UsageError(
            f"{part} cannot be recorded as a program ({one_line(error)}); name its {part}_builder"
        ) from None
    files[f"{part}.pt"] = buffer.getvalue()
    return {"program": f"{part}.pt"}


def _together(name: str, parts: list[Tensor | None]) -> Tensor | None:
    """All rounds' records or labels; None unless each round has some."""
    known = [part for part in parts if part is not None]
    shapes = {str(list(part.shape[1:])) for part in known}
    if len(shapes) > 1:
        raise UsageError(f"a row of {name} has shape {' and '.join(sorted(shapes))} in recorded rounds; give one shape")
    return torch.cat(known) if known and len(known) == len(parts) else None


def _kept(value: Any) -> Tensor:
    """A copy of a tensor or an array.

    Raises:
        UsageError: for anything else.
    """
    try:
        return torch.as_tensor(value).detach().cpu().clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"a recorder takes tensors and numeric arrays, got a {type(value).__name__}: {error}"
        ) from None
