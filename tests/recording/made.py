"""A small recording to damage, as its tensors and its description."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from privkit.recording.write import write_description
from tests.small import generator

ROWS, ROUNDS = 6, 2
DESCRIBED: dict[str, Any] = {
    "schema_version": 2,
    "name": "half",
    "image_shape": [1, 8, 8],
    "batch_size": ROWS,
    "rounds": ROUNDS,
}


class Half(nn.Module):
    """A lower segment with a weight, which a builder can name."""

    def __init__(self, factor: float = 0.5) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, images: Tensor) -> Tensor:
        return images * self.factor


def tensors() -> dict[str, Tensor]:
    """Two rounds of images at half their brightness."""
    draws = generator()
    truth, own = torch.rand(ROUNDS * ROWS, 1, 8, 8, generator=draws), torch.rand(40, 1, 8, 8, generator=draws)
    rounds = {f"round_{number}.smashed": part / 2 for number, part in enumerate(truth.split(ROWS))}
    return {**rounds, "own.images": own, "truth.images": truth}


def written(folder: Path, changed: dict[str, Tensor | None] | None = None, **described: Any) -> Path:
    """The folder of the recording with other tensors and other fields; None leaves a tensor out."""
    folder.mkdir(exist_ok=True)
    kept = {name: value for name, value in {**tensors(), **(changed or {})}.items() if value is not None}
    save_file(kept, folder / "tensors.safetensors")
    write_description(folder, {**DESCRIBED, **described})
    return folder
