"""The costs of split learning for one client; training counts them, and result rows show them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Traffic, computation and memory of one client in training.

    Attributes:
        bytes_up: bytes per image that the client sends: smashed data and label, in all messages of a round.
        bytes_down: bytes per image that the client receives: the cut-layer gradient; 0 if the client's segment is
            frozen.
        bytes_up_model: bytes per round: weights sent for averaging, divided by the rounds between two averagings; or
            weights handed on to the next client.
        bytes_down_model: bytes per round: averaged or handed-on weights received, divided by the same number of rounds.
        bytes_seed: bytes per round: the seed of masks, sent to the client.
        client_macs: multiply-accumulates per image of matrix products and convolutions in the forward pass; gathers and
            Fourier transforms count as 0.
        client_training_macs: multiply-accumulates per image of forward and backward pass, including networks that the
            defense trains.
        client_parameters: number of weights at the client, including networks that the defense trains.
        peak_memory: bytes in use for training on one batch: weights, gradients, AdamW's two moments, images,
            activations.

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
        """The bytes that one client sends, and the bytes that it receives, in a round of `batch_size` images."""
        up = batch_size * self.bytes_up + self.bytes_up_model
        return up, batch_size * self.bytes_down + self.bytes_seed + self.bytes_down_model
