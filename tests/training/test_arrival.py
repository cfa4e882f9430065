"""What a server sees that applies the defense itself, and what everybody knows of a defense before its coins."""

from typing import Any

import pytest
import torch

from privkit.defenses.base import Defense, ReleaseCount
from privkit.defenses.blur import Blur
from privkit.defenses.cutout import RandomCutout
from privkit.defenses.dp_cutmixsl import DpCutMixSl, DpMixSl, DpSl
from privkit.defenses.noise import GaussianNoise, LaplaceNoise
from privkit.defenses.none import NoDefense
from privkit.models.vit import Vit
from privkit.training import Clients, SplitProtocol
from privkit.wire.channel import record_rounds, shared_lower
from tests.small import IMAGES, generator, random_images


def edge_of(defense: Defense, clients: int = 1) -> Clients:
    lower = Vit(patch=4, width=8, depth=2, heads=2, cut="block1").build(IMAGES, 3, positions=True, seed=0).lower
    return Clients.build(lower, defense, IMAGES, classes=3, seed=0, protocol=SplitProtocol(clients=clients))


def seen(defense: Defense, clients: int = 1) -> tuple[torch.Tensor, torch.Tensor, int]:
    found = record_rounds(edge_of(defense, clients), random_images(4 * clients, 3), batch_size=2, seed=0)
    return torch.cat([view.smashed for view in found.views]), found.members, found.views[0].mixed


@pytest.mark.parametrize(
    "defense",
    [GaussianNoise(place="server"), LaplaceNoise(place="server"), DpSl(place="server")],
)
def test_a_server_sees_what_it_is_trusted_to_noise(defense: Defense) -> None:
    rows, members, mixed = seen(defense)
    plain, _, _ = seen(NoDefense())
    assert torch.equal(rows, plain)
    assert (members.tolist(), mixed) == ([0, 1, 2, 3], 1)
    assert not torch.equal(seen(type(defense)())[0], plain)


def test_masks_of_a_server_hide_nothing_from_it() -> None:
    data = random_images(4, 3)
    sent = edge_of(RandomCutout(place="server")).release(data.x[None], data.y[None], generator())
    assert torch.equal(sent.arrived.smashed, sent.smashed)
    certificate = sent.receipt.certificate(ReleaseCount(epochs=3))
    assert "the server does this to data that it already holds" in certificate.statement
    assert (certificate.quantities, sent.receipt.payload_share) == ({}, None)


@pytest.mark.parametrize("clients", [2, 3])
@pytest.mark.parametrize("kind", [DpMixSl, DpCutMixSl])
def test_a_server_that_mixes_gets_every_clients_own_message(kind: Any, clients: int) -> None:
    """Three clients in groups of two leave a seat empty."""
    plain, everybody, _ = seen(NoDefense(), clients)
    rows, members, mixed = seen(kind(place="server", site="mixer", group=2), clients)
    assert torch.equal(rows, plain)
    assert (members.tolist(), mixed) == (everybody.tolist(), 1)
    faint = kind(place="server", site="client", group=2, sigma=1e-9, sigma_labels=1e-9, bound=0.1)
    rows, members, _ = seen(faint, clients)
    torch.testing.assert_close(rows, plain.clamp(0, 0.1))
    assert members.tolist() == everybody.tolist()
    loud = kind(place="server", site="client", group=2, sigma=1.0, bound=0.1)
    assert 0.5 < (seen(loud, clients)[0] - plain.clamp(0, 0.1)).std() < 2


@pytest.mark.parametrize("kind", [DpMixSl, DpCutMixSl])
def test_a_server_cannot_mix_images(kind: Any) -> None:
    with pytest.raises(ValueError, match="would send the server the images"):
        kind(level="input", place="server")


@pytest.mark.parametrize(
    ("defense", "quiet"),
    [
        (GaussianNoise(clip=0.2), GaussianNoise(clip=0.2).noiseless()),
        (GaussianNoise(clip=0.2, clip_by="image"), GaussianNoise(clip=0.2, clip_by="image").noiseless()),
        (LaplaceNoise(clip=0.2), LaplaceNoise(clip=0.2).noiseless()),
        (DpSl(bound=0.2), DpSl(bound=0.2).noiseless()),
        (Blur(factor=2), Blur(factor=2)),
    ],
)
def test_a_white_box_knows_the_clipping(defense: Defense, quiet: Defense) -> None:
    edge, data = edge_of(defense), random_images(4, 3)
    known = shared_lower(edge)
    assert known is not None
    sent = record_rounds(edge_of(quiet), data, batch_size=4, seed=0).views[0].smashed
    torch.testing.assert_close(known(data.x), sent, atol=1e-6, rtol=1e-6)
    bare = shared_lower(edge_of(NoDefense()))
    assert bare is not None
    assert not torch.allclose(bare(data.x), sent, atol=1e-3)
