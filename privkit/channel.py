"""The only door between client and adversary: what crosses it is a `View`, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from privkit.attacks.base import View
from privkit.data.base import Batch
from privkit.defenses.base import Receipt
from privkit.seeds import derive
from privkit.training.client import Client
from privkit.training.seeded import seeded


@torch.no_grad()
def record(client: Client, victims: Batch, *, batch_size: int, seed: int) -> tuple[list[View], list[Receipt]]:
    """One more pass of the private images over the wire, after training, in messages of the training's size.

    Args:
        client: the trained client.
        victims: images on the client's device, a multiple of `batch_size`.
        batch_size: images a message.
        seed: of the defense's draws, and of the lower segment's own.

    Returns:
        The views, for the adversary, and the receipts, for the accountant.
    """
    client.eval()
    draws = Generator(victims.x.device).manual_seed(derive(seed, "record"))
    views, receipts = [], []
    with seeded(victims.x.device, derive(seed, "record", "module")):
        for number, start in enumerate(range(0, len(victims), batch_size)):
            part = victims[start : start + batch_size]
            release, receipt = client.release(part.x, part.y, draws)
            views.append(View(round=number, smashed=release.smashed.float()))
            receipts.append(receipt)
    return views, receipts


def black_box_query(client: Client) -> Callable[[Tensor, Generator], Tensor]:
    """The adversary's access to the defended lower segment: its own images in, their release out."""

    @torch.no_grad()
    def query(images: Tensor, draws: Generator) -> Tensor:
        client.eval()
        labels = torch.zeros(len(images), dtype=torch.int64, device=images.device)
        return client.release(images, labels, draws)[0].smashed.float()

    return query
