"""Tokens are followed from image to image; places are recognized where they have laws, and only there."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Generator, Tensor

from privkit.attacks.assign import take
from privkit.attacks.base import NotApplicable, QueryResult, View
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.inversion.ridge import Ridge
from privkit.attacks.order.followed_tokens import STEPS, PlaceLaws, followed
from privkit.attacks.order.token_reading import Asker
from privkit.attacks.patches import Geometry
from privkit.attacks.query_rules import ANY_QUERIES, QueryRules
from privkit.training.clients import frozen_block
from privkit.wire.channel import Queries

Release = Callable[[Tensor, Generator], Tensor]
BATCH, T, D = 50, 16, 12
GEOMETRY = Geometry(token_dim=D, tokens=T, patch=2, image_shape=(1, 8, 8))
IMAGES = (
    torch.tensor(load_digits().images)
    .float()
    .div(16)
    .unsqueeze(1)[torch.randperm(1_797, generator=Generator().manual_seed(0))]
)
OWN, PRIVATE = IMAGES[:1_000], IMAGES[1_000:1_100]
RECOGNIZED = Ridge(order="recognized", repeats=1, epochs=0)


def own_maps(seed: int, apart: float = 1.0) -> Callable[[Tensor], Tensor]:
    """Tokens of all pixels, by a bent map of each place's own; their means lie `apart`."""
    draws = Generator().manual_seed(seed)
    weight, bias = torch.randn(T, 64, D, generator=draws) / 4, apart * torch.randn(T, 1, D, generator=draws)
    middle = OWN.mean(0).flatten()
    return lambda images: (
        (torch.einsum("np,tpd->tnd", images.flatten(1) - middle, weight) + bias).atan().transpose(0, 1)
    )


def shuffled(tokens: Callable[[Tensor], Tensor], messages: int | None = None, noise: float = 0.0) -> Release:
    """Tokens permuted within each row; of `messages` within each whole message."""

    def release(images: Tensor, draws: Generator) -> Tensor:
        found = tokens(images)
        if messages is not None:
            found = found.reshape(messages, -1, D)
        order = torch.rand(found.shape[:2], generator=draws).argsort(1)
        mixed = take(found, order).reshape(len(images), T, D)
        return mixed + noise * torch.randn(mixed.shape, generator=draws)

    return release


def query_of(release: Release) -> Callable[[Tensor, Generator], QueryResult]:
    def query(images: Tensor, draws: Generator) -> QueryResult:
        view = View(round=0, smashed=release(images, draws))
        return QueryResult(view=view, members=torch.arange(len(images)).unsqueeze(1))

    return query


def seen(release: Release, **more: object) -> ImageObservation:
    query = query_of(release)
    views = [query(part, Generator().manual_seed(7)).view for part in PRIVATE.split(BATCH)]
    return ImageObservation(
        views=views, batch_size=BATCH, image_shape=(1, 8, 8), auxiliary=OWN, query=query, **more  # type: ignore[arg-type]
    )  # fmt: skip


def error(release: Release, attack: Ridge = RECOGNIZED, seed: int = 0) -> float:
    """Of the floor, which is the error of the mean image."""
    guess = attack.run(seen(release), Generator().manual_seed(seed)).images
    return float((guess - PRIVATE).square().mean() / (OWN.mean(0) - PRIVATE).square().mean())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_tokens_are_followed_into_one_order(seed: int) -> None:
    """Though they move further than they lie apart."""
    tokens, draws = own_maps(seed, apart=0.1), Generator().manual_seed(seed)
    found = followed(Asker(query_of(shuffled(tokens)), BATCH, draws, GEOMETRY, ANY_QUERIES), OWN, later=0)
    truth = tokens(OWN[: len(found)])
    places = torch.cdist(found[0], truth[0]).argmin(1)
    assert places.sort().values.tolist() == list(range(T))
    right = (found - truth[:, places]).abs().amax(2) < 1e-5
    assert right.double().mean() > 0.99


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_laws_tell_places_apart_whose_means_do_not(seed: int) -> None:
    tokens = own_maps(seed, apart=0.2)
    order = torch.rand(len(PRIVATE), T, generator=Generator().manual_seed(seed)).argsort(1)
    found = order.gather(1, PlaceLaws.fit(tokens(OWN)).order(take(tokens(PRIVATE), order)))
    assert (found == torch.arange(T)).double().mean() > 0.85


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_places_of_own_laws_give_the_images(seed: int) -> None:
    release = shuffled(own_maps(seed))
    assert error(release, seed=seed) < 0.1
    assert error(release, Ridge(repeats=1, epochs=0), seed) > 0.3


def test_a_little_noise_does_not_hide_them() -> None:
    assert error(shuffled(own_maps(0), noise=0.05)) < 0.1


def test_places_that_share_a_law_stay_unknown() -> None:
    tokens = torch.randn(600, T, D, generator=Generator().manual_seed(0))
    found = PlaceLaws.fit(tokens[:500]).order(tokens[500:])
    assert (found == torch.arange(T)).double().mean() < 2 / T


@pytest.mark.parametrize(
    "release", [shuffled(own_maps(0), messages=1), shuffled(own_maps(0), noise=5.0)], ids=["other rows", "noise"]
)
def test_tokens_that_cannot_be_followed_are_refused(release: Release) -> None:
    with pytest.raises(NotApplicable, match="tokens leave their image's row, something other than the order is random"):
        error(release)


@pytest.mark.parametrize("images", [OWN[:1], OWN[:60], OWN[:1].expand(400, -1, -1, -1)], ids=["one", "few", "alike"])
def test_own_images_that_teach_nothing_are_refused(images: Tensor) -> None:
    asked = replace(seen(shuffled(own_maps(0))), auxiliary=images)
    with pytest.raises(NotApplicable, match=r"it needs at least 150|own images explain"):
        RECOGNIZED.run(asked, Generator().manual_seed(0))


def test_answers_that_are_not_finite_are_refused() -> None:
    asked = seen(shuffled(own_maps(0)))
    broken = query_of(lambda images, draws: torch.full((len(images), T, D), torch.nan))
    with pytest.raises(NotApplicable, match="hold NaN or infinity"):
        RECOGNIZED.run(replace(asked, query=broken), Generator().manual_seed(0))


def test_rows_of_several_images_are_refused() -> None:
    asked = seen(shuffled(own_maps(0)))
    mixed = [replace(view, mixed=2) for view in asked.views]
    with pytest.raises(NotApplicable, match="row is a mixture of several images"):
        RECOGNIZED.run(replace(asked, views=mixed), Generator().manual_seed(0))


def test_a_public_block_is_undone_before_tokens_are_followed() -> None:
    block, release = frozen_block(D, 0).eval(), shuffled(own_maps(0))
    asked = replace(seen(lambda images, draws: block(release(images, draws))), block=block)
    found, plain = (RECOGNIZED.run(one, Generator().manual_seed(0)) for one in (asked, seen(release)))
    torch.testing.assert_close(found.images, plain.images, atol=1e-2, rtol=0)
    assert "undone: relative residual at most" in found.note
    assert not plain.note


def test_few_rounds_are_shared_with_the_regression() -> None:
    """It takes 2 · 8 rounds to follow tokens and 20 to send every own image once."""
    asked = seen(shuffled(own_maps(0)))
    assert asked.query is not None
    rules = QueryRules(rounds=2 * STEPS + 20)
    counted = Queries(asked.query, rules)
    RECOGNIZED.run(replace(asked, query=counted, rules=rules), Generator().manual_seed(0))
    assert counted.rounds == 2 * STEPS + 20
    with pytest.raises(NotApplicable, match=r"allows 35 rounds.*at least 36 to read their tokens"):
        RECOGNIZED.run(replace(asked, rules=QueryRules(rounds=2 * STEPS + 19)), Generator().manual_seed(0))


def test_one_pass_is_recognized() -> None:
    with pytest.raises(ValueError, match="order=recognized is for one pass, got passes=2"):
        Ridge(order="recognized", passes=2)
