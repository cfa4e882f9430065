"""Derivatives along directions are those of the whole Jacobian, through every layer of a client's segment."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from privkit.defenses.noise import clipped
from privkit.domains.images.domain import Images
from privkit.parts.registry import parse
from privkit.torch_utils.directional import along


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("model", ["vit_micro", "cnn"])
@pytest.mark.parametrize("clip_by", ["coordinate", "image"])
def test_columns_are_those_of_the_jacobian_behind_a_clip(model: str, clip_by: str) -> None:
    split = parse("models", model).spec.build(Images(shape=(1, 8, 8)), 10, positions=True, seed=0)
    lower = split.lower.double().eval()

    def released(images: Tensor) -> Tensor:
        return clipped(lower(images)[None], 0.5, clip_by)[0]  # type: ignore[arg-type]

    generator = np.random.default_rng(0)
    record, ways = generator.uniform(size=64), generator.normal(size=(64, 5))
    image = torch.as_tensor(record).view(1, 1, 8, 8)
    whole = torch.autograd.functional.jacobian(released, image).reshape(-1, 64).numpy()
    found = along(released, (1, 8, 8), dtype=torch.float64, chunk=2)(record, ways)
    assert np.abs(whole).max() > 0.01
    assert np.allclose(found, whole @ ways, atol=1e-10)


def test_a_module_in_evaluation_mode_normalizes_by_its_statistics() -> None:
    norm = nn.BatchNorm1d(3).eval()
    assert along(norm, (3,))(np.ones(3), np.eye(3)) == pytest.approx(np.eye(3), abs=1e-4)
