"""Whether a lower segment keeps the records of a batch apart: noise that is counted for one row hides one row."""

from __future__ import annotations

import torch
from torch import Tensor

from privkit.recording.replay import Ask
from privkit.shared.seeds import derive
from privkit.torch_utils.seeded import seeded

_FLOAT = 1e-5  # of a number's median over the batch: what another order of the same sums may change


@torch.no_grad()
def carried(ask: Ask, x: Tensor) -> tuple[int, int]:
    """How many records moved how many rows, where more rows moved than records; (0, 0) if nowhere.

    Records are replaced by their neighbors, half of a batch at a time: those with a 1, or a 0, in one binary digit of
    their place. So any two are told apart by one of the 2·⌈log₂ N⌉ halves. Rows in another order are no meeting: each
    record still moves one.

    Args:
        ask: that draws the same for the same seed.
        x: a batch [N, ...], of the size that crossed the cut.

    Raises:
        ValueError: if equal batches get different answers.

    >>> carried(lambda x: x.roll(1, 0), torch.arange(6.0).view(6, 1))
    (0, 0)
    >>> carried(lambda x: x + x[:1], torch.arange(6.0).view(6, 1))
    (3, 6)
    """
    before, places = _answer(ask, x), torch.arange(len(x))
    if not torch.equal(before, _answer(ask, x.clone())):
        raise ValueError("the lower segment answers equal batches differently")
    least = _FLOAT * before.abs().median(0).values
    for digit in range((len(x) - 1).bit_length()):
        ones = (places >> digit) % 2 == 1
        for half in (~ones, ones):
            given = x.clone()
            given[half] = x.roll(1, 0)[half]
            replaced = int((given != x).flatten(1).any(1).sum())
            moved = int(((_answer(ask, given) - before).abs() > least).flatten(1).any(1).sum())
            if moved > replaced:
                return replaced, moved
    return 0, 0


def _answer(ask: Ask, x: Tensor) -> Tensor:
    with seeded(torch.device("cpu"), derive(0, "rows apart")):
        return ask(x).detach().cpu().float()
