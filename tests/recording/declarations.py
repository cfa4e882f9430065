"""Small recordings with a declared mechanism: correct ones, and helpers to make false declarations."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import Noise
from privkit.accountants.spec.records import to_json
from privkit.accountants.spec.sensitivity import Clamp
from privkit.recording.read import Recording, read_recording
from tests.recording.made import written
from tests.small import generator

ROWS, ROUNDS, SIGMA = 8, 5, 0.2
HALF = {"builder": "tests.recording.made:Half"}
MECHANISM = SplitMechanism(
    smashed=Clamp(low=0, high=0.5, dimensions=64), noise=Noise(smashed=SIGMA), lower_model="frozen"
)
"""The mechanism of images at half their brightness, each released once."""


class Noisy(nn.Module):
    """A lower segment that draws its own noise, as a user's defense does."""

    def __init__(self, sigma: float = SIGMA) -> None:
        super().__init__()
        self.sigma = sigma

    def forward(self, images: Tensor) -> Tensor:
        return images / 2 + self.sigma * torch.randn_like(images)


class First(nn.Module):
    """Sends the first record of a batch in all rows."""

    def forward(self, images: Tensor) -> Tensor:
        return images[:1].expand_as(images) / 2


class Twice(nn.Module):
    """Maps each pixel to a category from 0 to 3."""

    def forward(self, images: Tensor) -> Tensor:
        return (images * 4).floor().clamp(max=3)


def drawn(count: int = ROUNDS * ROWS, seed: int = 0) -> Tensor:
    """Random images of 8×8 pixels."""
    return torch.rand(count, 1, 8, 8, generator=generator(seed))


def noise(*shape: int, law: str = "gaussian", seed: int = 1) -> Tensor:
    """Noise of scale 1."""
    if law == "gaussian":
        return torch.randn(*shape, generator=generator(seed))
    pair = torch.empty(2, *shape).exponential_(generator=generator(seed))
    return pair[0] - pair[1]


def declared(
    folder: Path,
    released: Tensor,
    truth: Tensor | None,
    mechanism: SplitMechanism = MECHANISM,
    *,
    rows: int = ROWS,
    also: dict[str, Tensor | None] | None = None,
    **described: Any,
) -> Recording:
    """Make a recording of rounds with `rows` released records each.

    Args:
        folder: the recording's folder.
        released: the releases of all rounds, one after the other.
        truth: true images; image n is on row n unless `also` has `truth.members`.
        mechanism: the declared mechanism.
        rows: number of released records in a round.
        also: further tensors, None to leave one out.
        **described: further fields of the description; `lower` is `HALF` by default.
    """
    rounds = {f"round_{number}.smashed": part.contiguous() for number, part in enumerate(released.split(rows))}
    plain: dict[str, Tensor | None] = {"round_0.smashed": None, "round_1.smashed": None, "truth.images": truth}
    fields = {"batch_size": rows, "lower": HALF, "mechanism": to_json(mechanism), **described}
    fields["rounds"] = len(rounds)
    return read_recording(written(folder, {**plain, **rounds, **(also or {})}, **fields), trust=["tests"])


def changed(**fields: Any) -> SplitMechanism:
    """`MECHANISM` with these fields changed."""
    return replace(MECHANISM, **fields)


class Tokens(nn.Module):
    """Lines of pixels as tokens, at half their brightness."""

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(0, 1) / 2
