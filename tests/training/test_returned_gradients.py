"""The gradient that each client is answered with."""

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.defenses.base import Defense
from privkit.defenses.cutmix import RandomCutMix, ShuffledCutMix
from privkit.errors import UsageError
from privkit.training import SplitProtocol, split_round
from tests.small import SHAPE, built, digits


def gradients(defense: Defense, protocol: SplitProtocol) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradient at each client's smashed data, the messages' gradient, masks and groups of one round."""
    edge, upper = built(defense, protocol)
    edge.eval()
    data = digits(40)
    x, y = data.x.view(4, 10, *SHAPE), data.y.view(4, 10)
    caught: list[Tensor] = []

    def watch(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        output.register_hook(caught.append)

    handle = edge.lowers.register_forward_hook(watch)
    found = split_round(edge, upper, x, y, Generator().manual_seed(0))
    handle.remove()
    share = found.sent.release.weights
    assert share is not None
    return sum(caught[1:], caught[0]), found.cut_gradient, share, found.sent.groups


def test_unicast_is_the_masked_gradient() -> None:
    ours, message, share, groups = gradients(RandomCutMix(), SplitProtocol(clients=4))
    for g, group in enumerate(groups.tolist()):
        for seat, client in enumerate(group):
            assert torch.equal(ours[client], message[g] * share[g, seat][None, :, None])


def test_broadcast_is_the_whole_gradient_of_the_group() -> None:
    ours, message, _, groups = gradients(RandomCutMix(), SplitProtocol(clients=4, gradient="broadcast"))
    for g, group in enumerate(groups.tolist()):
        for client in group:
            assert torch.equal(ours[client], message[g])


def test_averaged_gradients_are_the_same_for_everybody() -> None:
    ours, message, _, _ = gradients(RandomCutMix(), SplitProtocol(clients=4, gradient="average"))
    torch.testing.assert_close(ours, message.mean(0).expand_as(ours))


def test_a_message_of_shuffled_cells_cannot_be_broadcast() -> None:
    with pytest.raises(UsageError, match="unicast"):
        built(ShuffledCutMix(), SplitProtocol(clients=4, gradient="broadcast"))
