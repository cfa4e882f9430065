"""Orthogonal maps: distances stay, what is left out is lost, and own tokens reveal a secret matrix."""

import pytest
import torch
from torch import Tensor

from privkit.defenses.base import ReleaseCount
from privkit.defenses.orthogonal import OrthogonalMap
from tests.small import generator


def released(smashed: Tensor, **options: object) -> Tensor:
    defense = OrthogonalMap(**options)  # type: ignore[arg-type]
    return defense.apply(smashed, torch.zeros(smashed.shape[:2]), generator())[0].smashed


def test_a_rotation_keeps_inner_products_and_changes_coordinates() -> None:
    z = torch.randn(1, 6, 5, 12, dtype=torch.float64, generator=generator())
    turned = released(z)
    torch.testing.assert_close(turned.flatten(0, 2) @ turned.flatten(0, 2).T, z.flatten(0, 2) @ z.flatten(0, 2).T)
    assert (turned - z).norm() > 0.5 * z.norm()
    torch.testing.assert_close(released(z), turned, rtol=0, atol=0)  # the same in every round
    assert not torch.allclose(released(z, matrix_seed=1), turned)


def test_a_lifted_projection_keeps_its_subspace_and_loses_the_rest() -> None:
    z = torch.randn(1, 40, 12, dtype=torch.float64, generator=generator())
    once = released(z, keep=0.25, secret=False)
    torch.testing.assert_close(released(once, keep=0.25, secret=False), once)
    assert torch.linalg.matrix_rank(once[0]) == 3
    sent = released(z, keep=0.25)
    torch.testing.assert_close(sent.norm(dim=-1), once.norm(dim=-1))
    assert not sent[..., 3:].any()


def test_the_channels_of_a_feature_map_are_its_features() -> None:
    maps = torch.randn(2, 3, 8, 4, 5, dtype=torch.float64, generator=generator())
    tokens = released(maps.flatten(3).transpose(2, 3), keep=0.5)
    torch.testing.assert_close(released(maps, keep=0.5).flatten(3).transpose(2, 3), tokens)


def test_as_many_own_tokens_as_dimensions_reveal_a_secret_matrix() -> None:
    """So attacks that know the segment are given it."""
    own, private = torch.randn(2, 1, 1, 12, 12, dtype=torch.float64, generator=generator())
    q = torch.linalg.lstsq(own[0, 0], released(own)[0, 0]).solution
    torch.testing.assert_close(private @ q, released(private))


@pytest.mark.parametrize(("keep", "share"), [(1.0, 1.0), (0.25, 0.25), (0.001, 1 / 12)])
def test_the_receipt_counts_the_dimensions_that_travel(keep: float, share: float) -> None:
    receipt = OrthogonalMap(keep=keep).apply(torch.zeros(1, 2, 12), torch.zeros(1, 2), generator())[1]
    found = receipt.certificate(ReleaseCount(epochs=5))
    assert receipt.payload_share == pytest.approx(share)
    assert found.kind == "nothing"
    assert "positions_seen" not in found.quantities  # it marks no position
