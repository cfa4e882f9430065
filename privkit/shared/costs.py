"""The costs of split learning for one client; a training counts them, and rows show them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of one client.

    Attributes:
        bytes_up: per image: the smashed data and the label that are sent.
        bytes_down: per image: the cut-layer gradient; 0 if the client's segment is frozen.
        bytes_up_model: per round: weights sent for averaging, spread over the rounds between two averages.
        bytes_down_model: per round: averaged weights sent back, spread in the same way.
        bytes_seed: per round, downwards: the seed from which the client draws its masks.
        client_macs: per image: multiply-accumulates of matrix products and convolutions in the forward pass; a gather
            or a Fourier transform counts as 0.
        client_training_macs: per image: multiply-accumulates of forward and backward pass, with the companion.
        client_parameters: number of weights at the client, with the companion.
        peak_memory: bytes for training on one batch: weights, gradients, AdamW's two moments, images, activations.

    >>> costs = Costs(**dict.fromkeys(Costs.__dataclass_fields__, 8))
    >>> costs.a_round(batch_size=10)
    (88, 96)
    """

    bytes_up: float
    bytes_down: float
    bytes_up_model: float
    bytes_down_model: float
    bytes_seed: int
    client_macs: int
    client_training_macs: int
    client_parameters: int
    peak_memory: int

    def a_round(self, batch_size: int) -> tuple[float, float]:
        """Bytes up and bytes down of one client in a round of `batch_size` images."""
        up = batch_size * self.bytes_up + self.bytes_up_model
        return up, batch_size * self.bytes_down + self.bytes_seed + self.bytes_down_model
