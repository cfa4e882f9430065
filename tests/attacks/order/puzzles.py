"""Images whose patches are shuffled by the clients, for tests of attacks on the order."""

from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor

from privkit.attacks.base import Query, QueryResult, View
from privkit.attacks.goals.reconstruct import ImageObservation, Reconstruction
from privkit.attacks.order.jigsaw import Jigsaw
from privkit.attacks.patches import patchify
from privkit.domains.images.domain import Images
from privkit.training.clients import Clients
from privkit.training.protocol import SplitProtocol
from privkit.wire.channel import answer_of
from tests.attacks.victims import answering, crops

BATCH = 5
T = 16


IMAGES = crops(120)
VICTIMS, AUXILIARY = IMAGES[:10], IMAGES[10:]
MORE_VICTIMS = crops(30, seed=1)  # a share of ten images that are right hangs on the seed of a network
WEIGHT = torch.randn(192, 64, generator=Generator().manual_seed(3)) / 8


def pixels(images: Tensor) -> Tensor:
    return patchify(images, 8)


class Pixels(torch.nn.Module):
    """The identity as a lower segment."""

    def forward(self, images: Tensor) -> Tensor:
        return pixels(images)


def projected(images: Tensor) -> Tensor:
    """Tokens of 64 numbers for patches of 192 pixels, so that a patch can only be estimated."""
    return pixels(images) @ WEIGHT


class Projected(torch.nn.Module):
    """`projected` as a lower segment."""

    def forward(self, images: Tensor) -> Tensor:
        return projected(images)


def shuffled(images: Tensor, draws: Generator, lower: Any = pixels, keep: float = 1.0) -> tuple[Tensor, Tensor]:
    """One message under patch shuffling (keep=1) or batch shuffling, and the original place of each token."""
    b, kept = len(images), int(keep * T)
    own = torch.rand(b, T, generator=draws).argsort(1) + T * torch.arange(b).unsqueeze(1)
    pool = own[:, kept:].flatten()
    dealt = pool[torch.randperm(len(pool), generator=draws)].view(b, -1)
    source = torch.cat([own[:, :kept], dealt], 1)
    source = source.gather(1, torch.rand(b, T, generator=draws).argsort(1))
    return lower(images).flatten(0, 1)[source], source


def scene(
    lower: Any = pixels, keep: float = 1.0, victims: Tensor = VICTIMS
) -> tuple[list[View], Tensor, ImageObservation]:
    draws = Generator().manual_seed(9)
    sent = [shuffled(part, draws, lower, keep) for part in victims.split(BATCH)]
    views = [View(round=i, smashed=smashed) for i, (smashed, _) in enumerate(sent)]

    query = answering(lambda images, draws: shuffled(images, draws, lower, keep)[0])
    knowledge = ImageObservation(image_shape=(3, 32, 32), batch_size=BATCH, auxiliary=AUXILIARY, query=query)
    return views, torch.cat([source for _, source in sent]), knowledge


def several_messages(knowledge: ImageObservation, messages: int) -> ImageObservation:
    """The adversary's observation if a round, and each answer to a query, has several messages of `BATCH` images."""
    assert knowledge.query is not None
    ask = knowledge.query

    def query(images: Tensor, draws: Generator) -> QueryResult:
        parts = [ask(part, draws).view.smashed for part in images.split(BATCH)]
        view = View(round=0, smashed=torch.cat(parts), messages=messages)
        return QueryResult(view=view, members=torch.arange(len(images)).unsqueeze(1))

    return replace(knowledge, batch_size=messages * BATCH, query=query)


def clients(lower: torch.nn.Module, defense: Any, number: int = 1) -> Clients:
    """Clients with images of this size."""
    protocol = SplitProtocol(clients=number, lower="own" if number > 1 else "handed_on")
    return Clients.build(lower, defense, Images(shape=(3, 32, 32)), classes=2, seed=0, protocol=protocol).eval()


def in_full(edge: Clients) -> Query:
    """A query in which all images are computed by the lower segments, also copies of one image."""

    @torch.no_grad()
    def query(images: Tensor, draws: Generator) -> QueryResult:
        inputs = images.unflatten(0, (edge.lowers.copies, -1))
        return answer_of(edge.release(inputs, torch.zeros(inputs.shape[:2], dtype=torch.int64), draws), 0, edge)

    return query


def passing(edge: Clients) -> list[int]:
    """A list that gets the number of images of each later call of the lower segments."""
    passed: list[int] = []
    edge.lowers.register_forward_pre_hook(lambda _, inputs: passed.append(inputs[0].shape[:2].numel()))
    return passed


def as_released(truth: Tensor) -> float:
    """Share of tokens that are released in the row of their own image, which is seen without an attack."""
    rows = torch.arange(len(truth)).unsqueeze(1) % BATCH
    return float((truth // T == rows).double().mean())


def run(attack: Jigsaw, views: list[View], knowledge: ImageObservation) -> Reconstruction:
    return attack.run(replace(knowledge, views=views), Generator().manual_seed(0))


def guess(found: Reconstruction) -> Tensor:
    assert found.permutation is not None
    return found.permutation.source


def score(measure: Any, found: Reconstruction, truth: Tensor) -> float:
    return float(measure(guess(found), truth, batch=BATCH).mean())


def score_over_seeds(
    measure: Any, attack: Jigsaw, views: list[View], knowledge: ImageObservation, truth: Tensor, seeds: int = 3
) -> float:
    """The mean score over several seeds: on ten images, networks of different seeds differ by 0.1 and more."""
    found = [attack.run(replace(knowledge, views=views), Generator().manual_seed(seed)) for seed in range(seeds)]
    return sum(score(measure, one, truth) for one in found) / seeds
