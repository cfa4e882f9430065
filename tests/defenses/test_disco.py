"""DISCO: exactly a share of the channels is pruned, and each gradient trains whom the paper says."""

import pytest
import torch
from torch import Tensor, nn

from privkit.defenses.adversarial import ChannelFilter, Disco
from privkit.domains.images.domain import Images
from privkit.errors import UsageError
from privkit.parts.registry import parse
from privkit.torch_utils.seeded import seeded
from privkit.training import Clients, SplitProtocol
from privkit.training.stacked import Filtered, Stacked
from privkit.wire.channel import shared_lower
from tests.small import IMAGES, built, digits, generator


def of_channels(values: Tensor) -> Tensor:
    """[N, C, values of a channel]."""
    return (
        values.unsqueeze(2) if values.ndim == 2 else values.transpose(1, 2) if values.ndim == 3 else values.flatten(2)
    )


@pytest.mark.parametrize("shape", [(16, 10), (10, 4, 3), (10,)])
@pytest.mark.parametrize(("ratio", "pruned"), [(0.0, 0), (0.3, 3), (0.55, 5), (0.99, 9)])
def test_the_ratio_is_exact_and_what_is_kept_is_unchanged(shape: tuple[int, ...], ratio: float, pruned: int) -> None:
    z = torch.randn(5, *shape, generator=generator())
    got = of_channels(Disco(ratio=ratio).lower_filter(shape, 0)(z))
    zero = (got == 0).all(2)
    assert (zero.sum(1) == pruned).all()
    assert torch.equal(got[~zero], of_channels(z)[~zero])
    tied = ChannelFilter(10, ratio, 4)
    nn.init.zeros_(tied.score.get_parameter("3.weight"))
    assert ((of_channels(tied(z.new_ones(2, *shape))) == 0).all(2).sum(1) == pruned).all()


def test_the_choice_depends_on_the_image_and_on_no_place() -> None:
    z = torch.randn(6, 9, 12, generator=generator())
    chooses = Disco().lower_filter((9, 12), 3)
    kept = (chooses(z) != 0).any(1)
    assert len({tuple(row) for row in kept.tolist()}) > 1
    moved = chooses(z.flip(1))
    torch.testing.assert_close(moved, chooses(z).flip(1))


def edge_of(defense: Disco, clients: int = 1) -> Clients:
    with seeded(torch.device("cpu"), 0):
        lower = nn.Sequential(nn.Flatten(), nn.Linear(64, 12))
    return Clients.build(
        lower, defense, Images(shape=(1, 8, 8)), classes=10, seed=0, protocol=SplitProtocol(clients=clients)
    )


@pytest.mark.parametrize("clients", [1, 3])
def test_the_attackers_error_trains_filter_and_attacker_and_not_the_lower_segment(clients: int) -> None:
    data = digits(4 * clients)
    gradients = {}
    for strength in (0.0, 1.0):
        edge = edge_of(Disco(strength=strength), clients)
        assert edge.companion is not None
        attacker = torch.optim.Adam(edge.companion.parameters(), lr=0.01)
        for _ in range(30):  # one that is worse than the mean image pushes nobody
            edge.zero_grad()
            sent = edge.release(data.x.unflatten(0, (clients, 4)), data.y.view(clients, 4), generator())
            assert sent.penalty is not None
            sent.penalty.sum().backward()
            attacker.step()
        assert torch.equal(sent.smashed, edge.lowers(data.x.unflatten(0, (clients, 4))))
        gradients[strength] = {name: weight.grad for name, weight in edge.named_parameters() if weight.grad is not None}
    assert not any(name.startswith("lowers.module.0") for name in gradients[1.0])
    filters = [name for name in gradients[1.0] if name.startswith("lowers.module.1")]
    assert filters
    assert all(bool((gradients[0.0][name] == 0).all()) for name in filters)
    assert any(bool((gradients[1.0][name] != 0).any()) for name in filters)
    attackers = [name for name in gradients[1.0] if name.startswith("companion")]
    assert all(torch.equal(gradients[0.0][name], gradients[1.0][name]) for name in attackers)


def test_the_task_trains_segment_and_filter() -> None:
    data = digits(4)
    edge = edge_of(Disco())
    sent = edge.release(data.x.unsqueeze(0), data.y.unsqueeze(0), generator())
    sent.release.smashed.square().sum().backward()
    for part in edge.lowers.module.children():
        assert any(bool((weight.grad != 0).any()) for weight in part.parameters() if weight.grad is not None)


def test_each_client_has_its_own_filter_and_a_white_box_holds_it() -> None:
    edge = edge_of(Disco(), 3)
    assert isinstance(edge.lowers, Filtered)
    part = edge.lowers.part("1")
    assert isinstance(part, Stacked)
    assert part.module is edge.lowers.module.get_submodule("1")
    x = digits(4).x
    known = shared_lower(edge)
    assert known is not None
    torch.testing.assert_close(known(x), edge.lowers(x.expand(3, *x.shape))[0])
    assert ((known(x) == 0).sum(1) == 6).all()


def test_says_what_it_proves_and_how_it_learns() -> None:
    edge, _ = built(Disco(), SplitProtocol(clients=2))
    data = digits(8)
    receipt = edge.release(data.x.unflatten(0, (2, 4)), data.y.view(2, 4), generator()).receipt
    assert receipt.certificate().kind == "nothing"
    assert "its choice follows from the image" in receipt.certificate().statement
    assert "sigmoid, since its choice" in Disco().remarks[0]
    assert tuple(edge.lowers.copy(0)(IMAGES.zeros(2)).shape) == (2, 16, 96)
    with pytest.raises(ValueError, match="ratio must be a finite number >= 0 and < 1"):
        Disco(ratio=1.0)
    with pytest.raises((ValueError, UsageError), match="adv and disco: a client trains one simulated attacker"):
        parse("defenses", "adv+disco")
