"""Decoders read what they claim to read and ignore what they claim to ignore, and the one for shuffles breaks one."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.assign import distances, sinkhorn
from privkit.attacks.base import NotApplicable, Query, QueryResult, View
from privkit.attacks.goals.reconstruct import ImageObservation, Reconstruction
from privkit.attacks.inversion.black_box import BlackBox
from privkit.attacks.inversion.decoders import DECODERS, DecoderName, build_decoder
from privkit.attacks.inversion.decoders.base import Decoder, MapGeometry, Painter, as_maps
from privkit.attacks.inversion.decoders.convolutional import Pix2Pix, UNet
from privkit.attacks.inversion.decoders.unordered import SetDecoder, Standardized
from privkit.attacks.inversion.floors import MeanImage
from privkit.attacks.patches import patchify
from tests.attacks.victims import answering
from tests.small import digits

BATCH = 20
IMAGES = digits(900).x
VICTIMS, AUXILIARY = IMAGES[:100], IMAGES[100:]
EDGE = torch.randn(4, 12, generator=Generator().manual_seed(3))
VECTOR_EDGE = torch.randn(64, 32, generator=Generator().manual_seed(4))
UNORDERED: tuple[DecoderName, ...] = ("set", "message")


def shuffled(images: Tensor, draws: Generator) -> Tensor:
    """Tokens of a frozen random edge, freshly permuted inside each image."""
    tokens = patchify(images, 2) @ EDGE
    order = torch.rand(tokens.shape[:2], generator=draws).argsort(1)
    return tokens.gather(1, order.unsqueeze(2).expand_as(tokens))


def vectors(images: Tensor, draws: Generator) -> Tensor:
    return images.flatten(1)


def run(attack: BlackBox, release: Any, batch: int = BATCH, auxiliary: int = 800) -> Reconstruction:
    return attack.run(observed(answering(release), batch, auxiliary), Generator().manual_seed(0))


def observed(query: Query, batch: int = BATCH, auxiliary: int = 800) -> ImageObservation:
    draws = Generator().manual_seed(9)
    views = [replace(query(part, draws).view, round=i) for i, part in enumerate(VICTIMS.split(batch))]
    knowledge = ImageObservation(image_shape=(1, 8, 8), batch_size=batch, auxiliary=AUXILIARY[:auxiliary], query=query)
    return replace(knowledge, views=views)


def error(result: Reconstruction) -> float:
    return (result.images - VICTIMS).square().mean().item()


def scattered(name: DecoderName, tokens: Tensor) -> Decoder:
    """An untrained decoder whose weights are all random: the heads start at zero, and would draw nothing."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        decoder = build_decoder(name, tokens, (1, 8, 8))
        for weight in decoder.parameters():
            weight.data += 0.1 * torch.randn_like(weight)
    return decoder


FLOOR = (AUXILIARY.mean(0) - VICTIMS).square().mean().item()


@pytest.mark.slow
def test_the_set_decoder_breaks_a_shuffle_that_holds_against_the_papers() -> None:
    """Ten epochs give .54 of the floor; six gave .67 on one processor."""
    assert error(run(BlackBox(decoder="set", epochs=10), shuffled)) < 0.65 * FLOOR
    assert error(run(BlackBox(decoder="mae", epochs=10), shuffled)) > 0.9 * FLOOR


@pytest.mark.parametrize("name", UNORDERED)
def test_the_order_of_tokens_in_a_row_is_ignored(name: DecoderName) -> None:
    tokens = patchify(VICTIMS[:6], 2) @ EDGE
    decoder = scattered(name, tokens)
    order = torch.rand(6, 16, generator=Generator().manual_seed(1)).argsort(1)
    moved = tokens.gather(1, order.unsqueeze(2).expand_as(tokens))
    with torch.no_grad():
        torch.testing.assert_close(decoder(moved), decoder(tokens), atol=1e-4, rtol=1e-4)


def test_one_image_tells_nothing_of_another_unless_the_unit_is_the_message() -> None:
    tokens = patchify(VICTIMS[:6], 2) @ EDGE
    other = tokens.clone()
    other[5] += 1
    for name in UNORDERED:
        decoder = scattered(name, tokens)
        with torch.no_grad():
            same = torch.allclose(decoder(other)[0], decoder(tokens)[0], atol=1e-6)
        assert same == (name == "set")


def test_rounds_of_too_many_tokens_are_refused_by_the_message_decoder_only() -> None:
    tokens = torch.zeros(161, 16, 4)
    with pytest.raises(NotApplicable, match="may be 2,560, but a round has 2,576"):
        build_decoder("message", tokens, (1, 8, 8))
    build_decoder("message", tokens[:160], (1, 8, 8))
    build_decoder("set", tokens, (1, 8, 8))


@pytest.mark.slow
def test_the_arrangement_is_a_soft_permutation_that_finds_places() -> None:
    """After training, many a token with ink goes where it came from (chance: 1 in 16), and no order was ever shown."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        draws = Generator().manual_seed(1)
        decoder = SetDecoder.of(shuffled(AUXILIARY[:40], draws), (1, 8, 8), width=None, depth=None)
        optimizer = torch.optim.AdamW(decoder.parameters(), lr=0.003)
        for _ in range(120):
            images = AUXILIARY[torch.randint(len(AUXILIARY), (BATCH,), generator=draws)]
            optimizer.zero_grad()
            decoder.objective(shuffled(images, draws), images).backward()
            optimizer.step()
    with torch.no_grad():
        placing = decoder.arrangement(patchify(VICTIMS, 2) @ EDGE).exp()
    torch.testing.assert_close(placing.sum(1), torch.ones(100, 16))
    ink = patchify(VICTIMS, 2).amax(2) > 0
    found = placing.argmax(2) == torch.arange(16)
    assert found[ink].double().mean() > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["autoencoder", "unet", "pix2pix"])
@pytest.mark.parametrize("release", [vectors, lambda images, draws: images.repeat(1, 3, 1, 1)], ids=["vectors", "maps"])
def test_decoders_of_maps_win_on_vectors_and_on_maps_too(name: Any, release: Any) -> None:
    assert error(run(BlackBox(decoder=name, epochs=8), release)) < 0.4 * FLOOR


@pytest.mark.slow
def test_the_default_decoder_of_maps_is_stronger_than_the_one_of_tokens() -> None:
    """Random convolutions, six seeds, three epochs: .12 to .20 of the floor against .82 to 1.03."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        edge = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1), nn.ReLU())
    edge.requires_grad_(False)
    usual, mae = (error(run(BlackBox(decoder=name, epochs=3), lambda x, draws: edge(x))) for name in (None, "mae"))
    assert usual < 0.5 * mae
    assert build_decoder(None, torch.zeros(2, 16, 4, 4), (1, 8, 8)).layout is MapGeometry
    assert build_decoder(None, torch.zeros(2, 16, 16), (1, 8, 8)).layout is not MapGeometry


@pytest.mark.slow
def test_by_default_vectors_are_read_and_noise_is_not() -> None:
    def noise(images: Tensor, draws: Generator) -> Tensor:
        return torch.randn(len(images), 32, generator=draws)

    assert error(run(BlackBox(epochs=3), lambda images, draws: images.flatten(1) @ VECTOR_EDGE)) < 0.3 * FLOOR
    assert error(run(BlackBox(epochs=3), noise)) > 0.97 * FLOOR


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 33, 33), (3, 32, 48)])
@pytest.mark.parametrize("release", [torch.zeros(2, 8, 12, 12), torch.zeros(2, 9, 5), torch.zeros(2, 7)], ids=str)
def test_decoders_of_maps_fit_any_image(shape: tuple[int, int, int], release: Tensor) -> None:
    for name in ("convolutions", "autoencoder", "unet", "pix2pix"):
        assert build_decoder(name, release, shape, width=4)(release).shape == (2, *shape)


def test_tokens_lie_row_by_row_on_a_map() -> None:
    images = torch.rand(2, 1, 8, 8)
    cells = as_maps(patchify(images, 2), MapGeometry(channels=4, rows=4, columns=4, image_shape=(1, 8, 8)))
    torch.testing.assert_close(cells[:, :, 1, 2], images[:, 0, 2:4, 4:6].flatten(1))
    painter = Painter(MapGeometry.of(patchify(images, 2), (1, 8, 8)), 1)
    nn.init.zeros_(painter.paint.bias)  # type: ignore[arg-type]
    painter.paint.weight.data = torch.eye(4).view(4, 4, 1, 1)
    torch.testing.assert_close(painter(patchify(images, 2)), images)


def test_releases_that_no_map_decoder_can_read() -> None:
    for release in (torch.zeros(2, 6, 4), torch.zeros(2, 1, 4, 4, 4)):
        with pytest.raises(NotApplicable, match="decoder of maps needs"):
            build_decoder("unet", release, (1, 8, 8))
    with pytest.raises(NotApplicable, match="needs tokens"):
        build_decoder("set", torch.zeros(2, 5), (1, 8, 8))
    with pytest.raises(ValueError, match="two convolutions"):
        build_decoder("convolutions", torch.zeros(2, 5), (1, 8, 8), depth=3)


def test_both_players_learn_and_each_only_its_own_part() -> None:
    """The discriminator's verdict moves the generator, and only the lesson moves the discriminator."""
    images = VICTIMS[:4]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        game = Pix2Pix(MapGeometry.of(images, (1, 8, 8)), width=4)
        alone = UNet(MapGeometry.of(images, (1, 8, 8)), width=4)
    alone.load_state_dict(
        {name: value for name, value in game.state_dict().items() if not name.startswith("discriminator")}
    )
    game.objective(images, images).backward()
    alone.objective(images, images).backward()
    leave, plain = game.body.leave.weight.grad, alone.body.leave.weight.grad
    assert leave is not None
    assert plain is not None
    assert not torch.allclose(leave, plain)
    discriminator = [weight.grad for weight in game.discriminator.parameters()]
    game.zero_grad()
    drawn = game(images).detach()
    bce = nn.functional.binary_cross_entropy_with_logits
    real, fake = game.discriminator(images), game.discriminator(drawn)
    (0.005 * (bce(real, torch.ones_like(real)) + bce(fake, torch.zeros_like(fake)))).backward()
    for weight, gradient in zip(game.discriminator.parameters(), discriminator, strict=True):
        torch.testing.assert_close(weight.grad, gradient, atol=1e-7, rtol=1e-3)


def test_sinkhorn_finds_the_permutation_that_the_scores_hide() -> None:
    order = torch.tensor([2, 0, 3, 1])
    scores = 20 * torch.eye(4)[order] + 30 * torch.rand(4, 1, generator=Generator().manual_seed(0))
    assert torch.equal(sinkhorn(scores, 20).argmax(1), order)


def test_distances_are_squared_and_euclidean() -> None:
    a, b = torch.rand(2, 5, 3), torch.rand(2, 4, 3)
    torch.testing.assert_close(distances(a, b), torch.cdist(a, b).square(), atol=1e-5, rtol=1e-4)


def test_channels_that_do_not_vary_in_the_sample_are_not_blown_up() -> None:
    sample = torch.zeros(2, 50, 6)
    sample[..., :2] = torch.randn(2, 50, 2, generator=Generator().manual_seed(0))
    standardized = Standardized(sample)
    assert standardized(torch.full((1, 6), 0.1)).abs().max() < 10
    assert standardized(sample)[..., :2].std() == pytest.approx(1, abs=0.05)
    assert torch.isfinite(Standardized(torch.ones(1, 3, 6))(torch.ones(1, 6))).all()


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("name", sorted(DECODERS))
def test_every_decoder_beats_its_untrained_start_and_repeats_its_bits(name: Any) -> None:
    def identity(images: Tensor, draws: Generator) -> Tensor:
        return patchify(images, 2)

    attack = BlackBox(decoder=name, epochs=2)
    first = run(attack, identity, 5, 100)
    assert error(first) < error(run(replace(attack, epochs=0), identity, 5, 100))
    assert torch.equal(first.images, run(attack, identity, 5, 100).images)


def test_a_tenth_of_the_auxiliary_images() -> None:
    asked: list[int] = []

    def identity(images: Tensor, draws: Generator) -> Tensor:
        asked.append(len(images))
        return patchify(images, 2)

    run(BlackBox(epochs=1), identity)
    every = len(asked)
    asked.clear()
    run(BlackBox(epochs=1, fraction=0.1), identity)
    victims = len(VICTIMS) // BATCH
    assert every - victims == len(AUXILIARY) // BATCH
    assert len(asked) - victims == len(AUXILIARY) // 10 // BATCH
    with pytest.raises(NotApplicable, match="at least 40 auxiliary records, got 8"):
        run(BlackBox(epochs=1, fraction=0.01), identity)
    for bad in (0.0, 1.1, float("nan")):
        with pytest.raises(ValueError, match="fraction must be a finite number > 0 and <= 1"):
            BlackBox(fraction=bad)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mae", "unet"])
def test_mixed_rows_are_read_with_their_public_weights(name: Any) -> None:
    """Two images per row with exclusive masks: with the masks a decoder draws what is there, and beats one without."""

    def mixed(public: bool) -> Query:
        def query(images: Tensor, draws: Generator) -> QueryResult:
            pairs = patchify(images, 2).unflatten(0, (-1, 2))
            coin = (torch.rand(len(pairs), 1, 16, generator=draws) < 0.5).float()
            share = torch.cat([coin, 1 - coin], 1)
            view = View(
                round=0,
                smashed=(share.unsqueeze(3) * pairs).sum(1),
                mixed=2,
                weights=share if public else None,
            )
            return QueryResult(view=view, members=torch.arange(len(images)).view(-1, 2))

        return query

    errors = {}
    for public in (True, False):
        seen = observed(mixed(public))
        errors[public] = error(BlackBox(decoder=name, epochs=6).run(seen, Generator().manual_seed(0)))
    assert errors[True] < 0.8 * errors[False], errors
    if name == "mae":
        floor = MeanImage().run(seen, Generator()).images
        assert errors[True] < 0.6 * (floor - VICTIMS).square().mean().item()


@pytest.mark.slow
def test_mixed_vectors_are_read_with_their_public_share() -> None:
    """A row is one of two images: who knows the shares draws it at its seat, and the mean image at the other one."""

    def mixed(public: bool) -> Query:
        def query(images: Tensor, draws: Generator) -> QueryResult:
            share = (torch.rand(len(images) // 2, 1, generator=draws) < 0.5).float()
            share = torch.stack([share, 1 - share], 1)
            rows = (share * (images.flatten(1) @ VECTOR_EDGE).unflatten(0, (-1, 2))).sum(1)
            view = View(round=0, smashed=rows, mixed=2, weights=share if public else None)
            return QueryResult(view=view, members=torch.arange(len(images)).view(-1, 2))

        return query

    known, hidden = (
        error(BlackBox(epochs=6).run(observed(mixed(public)), Generator().manual_seed(0))) for public in (True, False)
    )
    assert known < 0.8 * hidden
