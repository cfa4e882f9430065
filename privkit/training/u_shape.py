"""U-shaped split learning: the labels and the last layer stay at the clients, and the server has the middle layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from privkit.errors import UsageError
from privkit.torch_utils.seeded import seeded
from privkit.training.losses import next_token, own_loss
from privkit.training.stacked import Stacked


@dataclass(frozen=True, kw_only=True)
class SecondCut:
    """The tensors that cross the second cut of a U-shape in one round, detached: M messages of B records each."""

    features: Tensor  # [M, B, ...], the server's output, which goes down to the clients
    gradient: Tensor  # [M, B, ...], gradient of each message's loss at the features, which clients send up


class UShaped(nn.Module):
    """The network above the first cut of a U-shape: the server's middle layers, and each client's tail (last layers).

    The tails map features [n, B, ...] to logits [n, B, classes], or [n, B, T, words] for texts. `loss` is the clients'
    loss (`privkit.training.losses.OwnLoss`); None for cross-entropy.
    """

    def __init__(self, middle: nn.Module, tails: Stacked, loss: Callable[[Tensor, Tensor], Tensor] | None) -> None:
        super().__init__()
        self.middle, self.tails, self.loss = middle, tails, loss

    def forward(self, smashed: Tensor) -> Tensor:
        """Smashed data [n·B, ...], client after client, -> logits [n·B, ...]."""
        return self.logits(self.middle(smashed))

    def logits(self, features: Tensor) -> Tensor:
        """Apply each client's tail to the client's features, [n·B, ...]."""
        logits: Tensor = self.tails(features.unflatten(0, (self.tails.copies, -1))).flatten(0, 1)
        return logits


@torch.no_grad()
def u_shaped(upper: nn.Module, smashed: Tensor, copies: int) -> UShaped:
    """Cut `upper` a second time for a U-shape: its last layer with weights becomes the tail, which each client holds.

    The layer is removed in place. `smashed` [N, ...] serves to test that the cut changes no result. The tails of the n
    = `copies` clients that send in a round start with equal weights. Raises `UsageError` if `upper` has its own loss
    other than `next_token`, is a single layer, or computes more behind its last layer with weights.

    Source: Gupta and Raskar 2018, §3.4, "U-shaped configurations for split learning without label sharing".

    >>> upper = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    >>> u_shaped(upper, torch.rand(6, 4), 2).middle
    Sequential(
      (0): Linear(in_features=4, out_features=3, bias=True)
      (1): Tanh()
      (2): Identity()
    )
    """
    if (loss := own_loss(upper)) not in (None, next_token):
        raise UsageError(
            "labels=kept takes the last layer to the clients, and this upper segment has a loss of its own"
        )
    ran: list[nn.Module] = []
    leaves = [part for part in upper.modules() if not list(part.children()) and list(part.parameters())]
    hooks = [leaf.register_forward_hook(lambda module, *_: ran.append(module)) for leaf in leaves]
    training = upper.training
    with seeded(torch.device("cpu"), 0):
        logits = upper.eval()(smashed)
        for hook in hooks:
            hook.remove()
        if not ran or ran[-1] is upper:
            raise UsageError(
                "labels=kept takes the last layer to the clients, and nothing would be left to the server: cut the "
                "model lower"
            )
        tail = ran[-1]
        name = next(name for name, part in upper.named_modules() if part is tail)
        parent, _, child = name.rpartition(".")
        setattr(upper.get_submodule(parent), child, nn.Identity())
        features = upper(smashed)
    upper.train(training)
    if not (isinstance(features, Tensor) and isinstance(logits, Tensor) and torch.equal(tail(features), logits)):
        raise UsageError(
            f"labels=kept takes the last layer ({name}) to the clients, and this upper segment does more behind it; "
            "end its forward with that layer"
        )
    tails = Stacked(tail, copies)
    tails.settle(features[:1].expand(copies, 1, *features.shape[1:]))
    return UShaped(upper, tails, loss)
