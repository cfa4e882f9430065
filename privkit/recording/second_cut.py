"""The second cut of a recorded U-shape: the server sends features down, and the client sends their gradient up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from privkit.attacks.base import View
from privkit.errors import DataError

_DOWN, _UP = "features", "features_gradient"
OF_ROUND = (_DOWN, _UP)  # tensors of one round


def named(views: Sequence[View]) -> dict[str, Tensor | None]:
    """Name the second cut's tensors of all rounds: features (`smashed` in these views) and returned gradients."""
    return {
        f"round_{number}.{kind}": value
        for number, view in enumerate(views)
        for kind, value in ((_DOWN, view.smashed), (_UP, view.cut_gradient))
    }


def second_cut(sent: Sequence[View], tensors: Mapping[str, Tensor], here: Path) -> tuple[View, ...]:
    """The second cut of a recorded U-shape (clients hold the last layers) in each round; empty for other recordings. In
    these views, `smashed` holds the server's features, and `cut_gradient` the gradient that the client returned."""
    if not any(name.endswith(f".{kind}") for name in tensors for kind in OF_ROUND):
        return ()
    if any(view.labels is not None or view.mixed > 1 for view in sent):
        raise DataError(
            f"{here}: in a U-shape labels stay at clients, and nothing is mixed; leave out the labels of rounds, or "
            f"{_DOWN} and {_UP}"
        )
    return tuple(_of_round(number, len(view.smashed), tensors, here) for number, view in enumerate(sent))


def _of_round(number: int, rows: int, tensors: Mapping[str, Tensor], here: Path) -> View:
    down, up = (tensors.get(f"round_{number}.{kind}") for kind in OF_ROUND)
    if down is None or up is None:
        missing = _DOWN if down is None else _UP
        raise DataError(f"{here}: round_{number}.{missing} is missing; a U-shape has {_DOWN} and {_UP} in each round")
    first = tensors.get(f"round_0.{_DOWN}", down)
    if not down.is_floating_point() or not 2 <= down.ndim <= 4 or not down.numel() or down.shape != first.shape:
        raise DataError(
            f"{here}: round_{number}.{_DOWN} must be float [{rows}, …], alike in each round, got {down.dtype} "
            f"{list(down.shape)}"
        )
    if len(down) != rows or not up.is_floating_point() or up.shape != down.shape:
        raise DataError(
            f"{here}: round_{number} has {rows} released rows, {_DOWN} {list(down.shape)} and {_UP} {up.dtype} "
            f"{list(up.shape)}; give a row of both for each released one"
        )
    return View(round=number, smashed=down.float(), cut_gradient=up.float())
