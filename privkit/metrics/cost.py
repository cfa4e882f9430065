"""What a defense costs: bytes on the wire and the client's multiply-accumulates."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Costs of one image in one training round.

    Attributes:
        bytes_up: smashed data sent to the server, float32.
        bytes_down: gradient sent back; 0 where the client's segment is frozen.
        client_macs: multiply-accumulates of the client's forward pass (matrix products and convolutions; the gather
            of a shuffle multiplies nothing).
        client_parameters: parameters at the client.
    """

    bytes_up: int
    bytes_down: int
    client_macs: int
    client_parameters: int


def measure(edge: nn.Module, image: Tensor, *, trained: bool) -> Cost:
    """Count the costs of a client's segment with torch's own counter.

    Args:
        edge: everything that runs at the client and has weights.
        image: [1, C, H, W] on the device of `edge`.
        trained: whether the client's segment gets a gradient.

    Source: torch.utils.flop_counter (two operations a multiply-accumulate).

    >>> measure(nn.Flatten(), torch.zeros(1, 1, 2, 2), trained=True).bytes_up
    16
    """
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        release = edge(image)
    sent = release.numel() * 4
    return Cost(
        bytes_up=sent,
        bytes_down=sent if trained else 0,
        client_macs=counter.get_total_flops() // 2,
        client_parameters=sum(p.numel() for p in edge.parameters()),
    )
