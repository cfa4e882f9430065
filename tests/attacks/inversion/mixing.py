"""Clients whose tokens are mixed, the server's record of their digits, and the server's own digits."""

import torch
from torch import Tensor

from privkit.attacks.base import View
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.defenses.base import Defense
from privkit.training import Clients, SplitProtocol
from privkit.wire.channel import black_box_query, record_rounds
from tests.small import digits, fitted

CLIENTS, BATCH = 5, 4  # an odd number: one group has an empty seat
DIGITS = digits(220)
VICTIMS, OWN = DIGITS[:40], DIGITS[40:]
FLOOR = (OWN.x.mean(0) - VICTIMS.x).square().mean().item()


def clients(defense: Defense) -> Clients:
    return fitted(defense, SplitProtocol(clients=CLIENTS))[0]


def passes(edge: Clients, count: int) -> list[View]:
    return record_rounds(edge, VICTIMS, batch_size=BATCH, seed=1, passes=count).views


def smashed(edge: Clients) -> Tensor:
    """The smashed data of the first round's records before mixing."""
    with torch.no_grad():
        return edge.eval().lowers.copy(0)(VICTIMS.x[: CLIENTS * BATCH])


def seen(edge: Clients, views: list[View]) -> ImageObservation:
    return ImageObservation(
        image_shape=(1, 8, 8),
        batch_size=CLIENTS * BATCH,
        views=views,
        auxiliary=OWN.x,
        query=black_box_query(edge),
    )
