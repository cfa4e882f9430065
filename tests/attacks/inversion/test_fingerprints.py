"""Clients with networks of their own mark their tokens, also in a shuffled mixture; clients with one network do not."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor

from privkit.attacks.assign import take
from privkit.attacks.base import NotApplicable, QueryResult, View
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.inversion.fingerprints import Fingerprints
from privkit.attacks.inversion.ridge import Ridge
from privkit.attacks.order.followed_tokens import PlaceLaws
from privkit.defenses.cutmix import ShuffledCutMix
from privkit.torch_utils.patches import patchify
from tests.small import SHAPE, digits

IMAGES = digits(720).x
OWN, PRIVATE, CLIENTS, BATCH, WIDTH, PATCH = IMAGES[:640], IMAGES[640:], 4, 40, 24, 4
FLOOR = float((OWN.mean(0) - PRIVATE).square().mean())
Lower = Callable[[Tensor], Tensor]


def networks(seed: int, alike: bool = False) -> Lower:
    """Images [c, B, C, H, W] -> tokens [c, B, T, D] that see their patch, a little of the image, and their place."""
    draws = Generator().manual_seed(seed)
    one = torch.randn(1 if alike else CLIENTS, 16 * 4 + 16 + 1, 4, WIDTH, generator=draws)
    patch, whole, place = one.expand(CLIENTS, -1, -1, -1).split([16, 64, 1], 1)

    def lower(images: Tensor) -> Tensor:
        patches = torch.stack([patchify(some, PATCH) for some in images])
        seen = torch.einsum("cbtp,cpd->cbtd", patches, patch[:, :, 0])
        return seen + torch.einsum("cbp,cptd->cbtd", images.flatten(2), whole) / 4 + place

    return lower


def mixed(lower: Lower, group: int = 2, noise: float = 0.0, fixed: bool = False) -> Callable[..., QueryResult]:
    """Rounds through the real defense, in groups of clients that are drawn anew."""

    def query(images: Tensor, draws: Generator) -> QueryResult:
        sent = lower(images.unflatten(0, (CLIENTS, -1)))
        order = torch.arange(CLIENTS) if fixed else torch.randperm(CLIENTS, generator=draws)
        groups = order.view(-1, group)
        labels = torch.zeros(*groups.shape, sent.shape[1], 10)
        released = ShuffledCutMix(group=group).apply(sent[groups], labels, draws)[0].smashed.flatten(0, 1)
        clients = groups.repeat_interleave(sent.shape[1], 0)
        place = torch.arange(len(released)).remainder(sent.shape[1]).unsqueeze(1)
        view = View(
            round=0,
            smashed=released + noise * torch.randn(released.shape, generator=draws),
            mixed=group,
            clients=clients,
            messages=len(groups),
        )
        return QueryResult(view=view, members=clients * sent.shape[1] + place)

    return query


def seen(query: Callable[..., QueryResult], own: Tensor = OWN) -> tuple[ImageObservation, Tensor]:
    """What is observed, and the private image on each seat."""
    draws = Generator().manual_seed(7)
    answers = [query(part, draws) for part in PRIVATE.split(BATCH)]
    members = torch.cat([number * BATCH + answer.members.flatten() for number, answer in enumerate(answers)])
    views = [answer.view for answer in answers]
    observed = ImageObservation(views=views, batch_size=BATCH, image_shape=SHAPE, auxiliary=own, query=query)
    return observed, PRIVATE[members]


def error(attack: Fingerprints | Ridge, query: Callable[..., QueryResult]) -> float:
    """Of the floor, the error of the mean image."""
    observed, truth = seen(query)
    guess = attack.run(observed, Generator().manual_seed(0)).images
    return float((guess - truth).square().mean()) / FLOOR


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_shuffled_mixture_falls_apart(seed: int) -> None:
    query = mixed(networks(seed))
    assert error(Fingerprints(), query) < 0.35
    assert error(Ridge(epochs=0), query) > 0.8


@pytest.mark.parametrize(("group", "fixed"), [(2, True), (4, False)])
def test_clients_that_always_meet_are_told_apart(group: int, fixed: bool) -> None:
    assert error(Fingerprints(), mixed(networks(0), group=group, fixed=fixed)) < 0.45


def test_a_shuffle_within_rows_is_read_too() -> None:
    lower = networks(0)

    def query(images: Tensor, draws: Generator) -> QueryResult:
        tokens = lower(images.unsqueeze(0).expand(CLIENTS, -1, -1, -1, -1))[0]
        order = torch.rand(tokens.shape[:2], generator=draws).argsort(1)
        return QueryResult(
            view=View(round=0, smashed=take(tokens, order)), members=torch.arange(len(images)).unsqueeze(1)
        )

    assert error(Fingerprints(), query) < 0.1


def test_the_note_counts_owners_and_places() -> None:
    found = Fingerprints().run(seen(mixed(networks(0)))[0], Generator().manual_seed(0))
    assert found.note == "100 % of own tokens were assigned to their owner, and 100 % to their place"


def test_what_it_cannot_read_is_refused() -> None:
    lower = networks(0)
    for query, why in (
        (mixed(networks(0, alike=True)), "clients with similar lower segments cannot be told apart"),
        (mixed(lower, noise=1.0), "noise was added"),
        (mixed(lambda images: torch.randn(*images.shape[:2], 4, WIDTH)), "100 % of own tokens changed"),
    ):
        with pytest.raises(NotApplicable, match=why):
            Fingerprints().run(seen(query)[0], Generator().manual_seed(0))
    observed, _ = seen(mixed(lower), OWN[:199])
    with pytest.raises(NotApplicable, match="at least 200 own images, got 199"):
        Fingerprints().run(observed, Generator().manual_seed(0))
    with pytest.raises(NotApplicable, match=r"one client has only .*: raise sets=…"):
        Fingerprints(sets=1).run(seen(mixed(lower))[0], Generator().manual_seed(0))
    for change, why in (
        ({"clients": None}, "does not know which"),
        ({"smashed": torch.zeros(20, 8)}, "needs tokens"),
        ({"smashed": torch.zeros(20, 6, 8)}, "not a square grid"),
    ):
        views = [replace(view, **change) for view in observed.views]
        with pytest.raises(NotApplicable, match=why):
            Fingerprints().run(replace(observed, views=views), Generator().manual_seed(0))


def test_laws_that_shrink_less_look_at_small_directions() -> None:
    """Places differ in the smallest of two directions only."""
    draws = Generator().manual_seed(0)
    own = torch.randn(500, 2, 2, generator=draws) * torch.tensor([1.0, 1e-3]) + torch.tensor([[0.0, 0], [0, 1e-2]])
    shuffled = own.flip(1)
    assert PlaceLaws.fit(own, shrunk=1e-8).order(shuffled).eq(torch.tensor([1, 0])).all()
    assert not PlaceLaws.fit(own).order(shuffled).eq(torch.tensor([1, 0])).all()
