"""What FSHA's server trains and answers, each part against its definition."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import AttackDiverged, NotApplicable, View
from privkit.attacks.hijack import fsha as module
from privkit.attacks.hijack.fsha import FSHA
from privkit.attacks.hijack.fsha_networks import hijacking_networks
from privkit.attacks.hijack.fsha_server import Server, range_of
from privkit.attacks.hijack.gan import between
from privkit.attacks.inversion.simulator_training import ByLabel


def test_weights_that_are_not_finite_make_no_snapshot(hijack: Any) -> None:
    clients = hijack.client()
    server = Server(hijack.one._settings(), clients.views()[0], clients, hijack.known(clients), hijack.own, 0)
    server.examine()
    with torch.no_grad():
        next(server.networks.discriminator.parameters()).view(-1)[0] = math.nan
    with pytest.raises(AttackDiverged, match="weight"):
        server.examine()


def test_the_answer_is_the_gradient_of_the_discriminators_mean_score(hijack: Any) -> None:
    clients = hijack.client()
    view = clients.views()[0]
    server = Server(hijack.one._settings(), view, clients, hijack.known(clients), hijack.own, 0)
    discriminator = server.networks.discriminator
    released = view.smashed.clone().requires_grad_()
    discriminator(released).mean().backward()
    assert released.grad is not None
    answer = server.answer(view, Generator().manual_seed(0))
    torch.testing.assert_close(answer, released.grad)


def test_the_discriminators_loss_against_its_definition(hijack: Any) -> None:
    clients = hijack.client()
    view = replace(clients.views()[0], labels=None)
    server = Server(hijack.one._settings(), view, clients, hijack.known(clients), hijack.own, 0)
    discriminator, pilot = server.networks.discriminator, server.networks.pilot
    draws = Generator().manual_seed(4)
    rows = torch.randint(len(server.images), (50,), generator=draws)
    fake = pilot(server.images[rows]).detach()
    points = between(view.smashed, fake, draws).requires_grad_()
    (slope,) = torch.autograd.grad(discriminator(points).sum(), points, create_graph=True)
    loss = (
        discriminator(fake).mean()
        - discriminator(view.smashed).mean()
        + 10 * (slope.flatten(1).norm(dim=1) - 1).square().mean()
    )
    expected = torch.autograd.grad(loss, list(discriminator.parameters()), allow_unused=True)
    server.answer(view, Generator().manual_seed(4))
    for weight, gradient in zip(discriminator.parameters(), expected, strict=True):
        torch.testing.assert_close(weight.grad, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("released", "image"),
    [
        ((64, 16, 16), (3, 32, 32)),
        ((128, 8, 8), (3, 32, 32)),
        ((256, 4, 4), (3, 32, 32)),
        ((8, 12, 12), (1, 28, 28)),
        ((5, 3, 3), (1, 25, 25)),
        ((6, 40, 40), (1, 28, 28)),
        ((4, 8, 12), (3, 16, 24)),
        ((49, 10), (1, 28, 28)),
        ((16, 10), (1, 28, 28)),
        ((256,), (3, 32, 32)),
        ((7,), (1, 28, 28)),
    ],
)
def test_networks_fit_any_cut(released: tuple[int, ...], image: tuple[int, int, int]) -> None:
    networks = hijacking_networks(released, image, 2, classes=3)
    made = networks.pilot(torch.rand(2, *image))
    assert made.shape == (2, *released)
    assert networks.decoder(made).shape == (2, *image)
    assert networks.discriminator(made, torch.tensor([-1, 2])).shape == (2,)
    assert networks.discriminator(made, torch.tensor([-1, 2]))[0] == networks.discriminator(made)[0]


def test_pilots_end_in_the_range_of_the_release() -> None:
    ends = {"relu": torch.rand(2, 4), "tanh": torch.rand(2, 4) - 0.5, "linear": 9 * torch.rand(2, 4) - 4}
    assert {name: range_of(values) for name, values in ends.items()} == {name: name for name in ends}
    made = hijacking_networks((4, 4, 4), (1, 8, 8), 2, "relu").pilot(torch.rand(9, 1, 8, 8))
    assert made.min() == 0


def test_images_are_drawn_by_label_and_any_for_a_class_that_the_server_lacks() -> None:
    labels = torch.tensor([2, 0, 2, 4, 0, 2])
    by_label = ByLabel(labels)
    told = torch.tensor([0, 2, 4, 1, 9]).repeat(200)
    rows, given = by_label.drawn(told, Generator().manual_seed(0))
    has = torch.isin(told, labels)
    assert torch.equal(labels[rows][has], told[has])
    assert torch.equal(given, torch.where(has, told, -1))
    assert rows[~has].unique().tolist() == list(range(6))
    assert rows[told == 2].unique().tolist() == [0, 2, 5]


def test_masks_keep_what_they_should(hijack: Any) -> None:
    clients, settings = hijack.client(), replace(hijack.one, keep=0.2, noise=1.0)._settings()
    server = Server(settings, clients.views()[0], clients, hijack.known(clients), hijack.own, 0)
    sent = server._sent(torch.ones(100, 4, 4, 4), Generator().manual_seed(0))
    assert (sent != 0).float().mean().item() == pytest.approx(0.2, abs=0.02)
    assert sent[sent != 0].std().item() == pytest.approx(1, abs=0.1)


def test_what_is_known_of_a_defense_is_done_to_whole_rounds_only(hijack: Any) -> None:
    """A batch-level shuffle needs all images of a message; the held-out ones are filled up to a round."""
    clients, seen = hijack.client(), []

    def turned(smashed: Tensor, draws: Generator) -> Tensor:
        seen.append(len(smashed))
        return smashed.flip(0)

    known = hijack.known(clients, imitate=turned)
    server = Server(hijack.one._settings(), clients.views()[0], clients, known, hijack.own, 0)
    made = torch.rand(32, 4, 4, 4)
    assert torch.equal(server._sent(made, Generator()), made.flip(0))
    server.examine()
    assert seen == [32] * 4  # the call above, and 79 images in three rounds
    assert torch.equal(torch.cat(server._examined())[:79], server.held_out)
    by_hand = Server(replace(hijack.one, noise=1e-9)._settings(), clients.views()[0], clients, known, hijack.own, 0)
    torch.testing.assert_close(by_hand._sent(made, Generator()), made)


def test_rounds_that_are_not_what_was_seen_are_refused(hijack: Any) -> None:
    clients = hijack.client()
    views = [View(round=0, smashed=torch.rand(4, 9, 4, 4))]
    with pytest.raises(NotApplicable, match=r"rounds of \[4, 4, 4\]"):
        hijack.one.run(replace(hijack.known(clients), views=views), Generator())


def test_the_released_recipe_is_the_authors(hijack: Any) -> None:
    clients = hijack.client()
    view = replace(clients.views()[0], smashed=clients.views()[0].smashed.abs(), labels=hijack.labels[:50])
    server = Server(FSHA(recipe="released", width=2)._settings(), view, clients, hijack.known(clients), hijack.own, 0)
    assert [group["lr"] for o in (server.on_images, server.on_discriminator) for group in o.param_groups] == [
        1e-5,
        1e-4,
    ]
    assert (server.settings.penalty_weight, server.labels, module.EPOCHS["released"]) == (500.0, None, 100)
    assert not any(isinstance(layer, nn.ReLU) for layer in server.networks.pilot.modules())
