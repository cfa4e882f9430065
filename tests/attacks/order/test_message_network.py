"""Whose token is this, asked of a whole message."""

from collections.abc import Callable
from functools import cache, partial

import pytest
import torch
from torch import Generator, Tensor

from privkit.attacks.assign import by_capacity, sinkhorn
from privkit.attacks.fit import fit
from privkit.attacks.order.piece_network import (
    MessageNetwork,
    PieceTraining,
    assign_members,
    dealt_out,
    linear_start,
    message_loss,
    message_steps,
    own_prior,
    shuffled_losses,
    shuffled_messages,
)
from privkit.torch_utils.seeded import seeded

IMAGES, B, T, KEEP, EPOCHS = 80, 8, 16, 0.25, 10


def signed(count: int, seed: int) -> Tensor:
    """Tokens [N, T, 24] of images: a mark that an image's tokens share is hidden in each beside larger noise.

    A row that keeps a quarter of them hardly shows the mark; all tokens of an image together do.
    """
    draws = Generator().manual_seed(seed)
    mark = torch.randn(count, 1, 8, generator=draws)
    noise = 0.7 * torch.randn(count, T, 8, generator=draws)
    return torch.cat([mark + noise, torch.randn(count, T, 16, generator=draws)], 2)


def noise(count: int, seed: int) -> Tensor:
    """Tokens that say nothing of their image."""
    return torch.randn(count, T, 24, generator=Generator().manual_seed(seed))


def drawn() -> MessageNetwork:
    """A network that has learned nothing."""
    with seeded(torch.device("cpu"), 0):
        return MessageNetwork(24, 32)


@cache
def trained() -> MessageNetwork:
    """A network that has learned marks."""
    draws, own, network = Generator().manual_seed(0), signed(IMAGES, 0), drawn()
    losses = partial(shuffled_losses, network, own.__getitem__, IMAGES, (B, T), KEEP, draws)
    fit(PieceTraining(network, losses, message_steps(IMAGES, B), EPOCHS, draws), EPOCHS)
    return network.requires_grad_(False)


def started(own: Tensor) -> MessageNetwork:
    """A network in closed form, without any training."""
    network = drawn()
    linear_start(network, own.__getitem__, len(own), (B, T), KEEP, Generator().manual_seed(0))
    return network


def right(network: MessageNetwork, tokens: Callable[[int, int], Tensor] = signed) -> float:
    """Share of tokens of ten unseen messages that go to their image."""
    shares, draws = [], Generator().manual_seed(1)
    for number in range(10):
        source = dealt_out(B, T, KEEP, draws)
        pieces = tokens(B, 100 + number).flatten(0, 1)[source]
        taken, _ = assign_members(network, pieces, KEEP)
        shares.append((source.flatten()[taken] // T == torch.arange(B).unsqueeze(1)).float().mean())
    return float(torch.stack(shares).mean())


def test_the_linear_start_finds_the_owners_of_linear_marks() -> None:
    """It needs no training, and few images; rows alone tell KEEP and their share of the rest, .34."""
    assert right(started(signed(IMAGES, 0))) > 0.6
    assert right(started(signed(2 * B, 0))) > 0.5


def test_the_linear_start_is_best_with_its_factor() -> None:
    """Stronger or weaker attractions explain shuffled messages of own images less well."""
    own, draws = signed(IMAGES, 0), Generator().manual_seed(3)
    network, messages = started(own), list(shuffled_messages(own.__getitem__, IMAGES, (B, T), KEEP, draws))
    losses = {}
    network.requires_grad_(False)
    for factor in (0.25, 1.0, 4.0):
        network.trust.data.fill_(factor)
        losses[factor] = sum(float(message_loss(network(x, own_prior(B, KEEP)), whose)) for x, whose in messages)
    assert min(losses, key=losses.__getitem__) == 1.0


@pytest.mark.parametrize("constant", [0.0, 1.0])
def test_the_linear_start_survives_tokens_without_information(constant: float) -> None:
    """Constant features have no covariance."""
    network = started(torch.full((IMAGES, T, 24), constant))
    assert all(parameter.isfinite().all() for parameter in network.parameters())


def test_the_linear_start_finds_no_owner_in_noise() -> None:
    assert right(started(noise(IMAGES, 0)), noise) < KEEP + (1 - KEEP) / B + 0.03


def test_a_row_expects_what_it_keeps_and_its_share_of_the_rest() -> None:
    expected = torch.full((4, 4), 0.15) + 0.4 * torch.eye(4)
    torch.testing.assert_close(own_prior(4, 0.4).exp(), expected, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_noise_has_no_owner() -> None:
    """Rows keep a quarter and get back their share of the rest: no more can be known."""
    known = KEEP + (1 - KEEP) / B
    assert right(trained(), noise) < known + 0.03


def test_each_round_is_a_law_of_images_and_messages_do_not_meet() -> None:
    network = trained()
    prior, pieces = own_prior(B, KEEP), signed(3 * B, 5).unflatten(0, (3, B))
    together = network(pieces, prior)
    assert together.shape == (3, 3, B * T, B)
    torch.testing.assert_close(together.exp().sum(-1), torch.ones(3, 3, B * T))
    for number, message in enumerate(pieces):
        torch.testing.assert_close(network(message, prior), together[:, number], atol=1e-4, rtol=1e-4)


def test_a_round_against_its_formula() -> None:
    """A token is drawn to an image by all tokens but itself, as much as each is likely to be of that image."""
    with seeded(torch.device("cpu"), 0):
        network = MessageNetwork(3, 4)
    with torch.no_grad():
        network.signs.copy_(torch.tensor([1.0, -0.5, 2.0, 0.3]))
        network.trust.fill_(0.7)
    pieces, prior = torch.randn(2, 2, 3, generator=Generator().manual_seed(0)), torch.tensor([[0.5, -1.0], [0.0, 0.2]])
    tokens = pieces.flatten(0, 1)
    embedded = network.linear(tokens) + network.curved(tokens)
    chances = prior[[0, 0, 1, 1]].softmax(1)
    scores = prior[[0, 0, 1, 1]].clone()
    for token in range(4):
        for other in {0, 1, 2, 3} - {token}:
            attraction = (network.signs * embedded[token] * embedded[other]).sum() / 4**0.5
            scores[token] += 0.7 * attraction * chances[other]
    torch.testing.assert_close(network(pieces, prior)[0], sinkhorn(scores.T, 1, 2).T)


def test_rows_and_tokens_may_be_given_in_any_order() -> None:
    """Images are exchanged with their rows; a token's place in its row says nothing."""
    network, pieces, prior = trained(), signed(B, 5), own_prior(B, KEEP)
    rows, tokens = torch.randperm(B, generator=Generator().manual_seed(2)), torch.arange(T).flip(0)
    chances = network(pieces, prior).unflatten(1, (B, T))
    other = network(pieces[rows][:, tokens], prior).unflatten(1, (B, T))
    torch.testing.assert_close(other, chances[:, rows][:, :, tokens][..., rows], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("keep", [0.0, 0.4, 1.0])
def test_a_simulated_shuffle_keeps_its_share(keep: float) -> None:
    source = dealt_out(B, T, keep, Generator().manual_seed(0))
    assert torch.equal(source.flatten().sort().values, torch.arange(B * T))
    assert ((source // T == torch.arange(B).unsqueeze(1)).sum(1) >= int(keep * T)).all()


def test_capacity_is_kept() -> None:
    taken, chances = assign_members(trained(), signed(B, 6), KEEP)
    assert torch.equal(taken.flatten().sort().values, torch.arange(B * T))
    assert torch.equal(taken, by_capacity(chances, T))
