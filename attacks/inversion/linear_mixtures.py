"""Releases that are sums of several clients' smashed data with known weights: one system of linear equations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from privkit.attacks.base import NotApplicable, View
from privkit.attacks.inversion.linked_rows import records_of_rows
from privkit.attacks.inversion.mixed_releases import by_cell
from privkit.attacks.patches import as_tokens

NOISES = (1e-6, 1e-4, 1e-2, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Variances of noise that are tried, in units of the smashed data's own."""


@dataclass(frozen=True, kw_only=True)
class Mixtures:
    """All releases of the same records in one round, as equations A·x = y for each place in a batch and each cell.

    Attributes:
        design: A, float64 [B or 1, T or 1, E, n]: E equations about n clients. An axis is 1 where all have the same A.
        released: y, float64 [B, T or 1, E, D]; with one cell, D holds the whole release.
        form: of one record's smashed data.
    """

    design: Tensor
    released: Tensor
    form: torch.Size

    @classmethod
    def of(cls, same: Sequence[View]) -> Mixtures:
        """Read the equations off several passes.

        Args:
            same: passes of one round; see `View.clients` for the order of their rows.

        Raises:
            NotApplicable: if rows hold several records and the adversary does not know which, or with what weights.
        """
        seats = torch.stack([_clients_of_seats(view) for view in same]).flatten(
            0, 1
        )  # [E, k], the same for each place in a batch
        batch = len(same[0].smashed) // same[0].messages
        rows = torch.cat([view.smashed for view in same])
        weights = torch.cat([_seat_weights(view) for view in same]).unflatten(0, (-1, batch))
        released = (rows.flatten(1).unsqueeze(1) if weights.shape[3] == 1 else as_tokens(rows)).unflatten(
            0, (-1, batch)
        )
        shared = bool((weights == weights[:, :1]).all())
        weights = (weights[:, :1] if shared else weights).double().permute(1, 3, 0, 2)  # [B, T, E, k]
        design = weights.new_zeros(*weights.shape[:3], int(seats.max()) + 1)
        taken = (seats >= 0).expand_as(weights)
        design.scatter_add_(3, seats.clamp_min(0).expand_as(weights), torch.where(taken, weights, 0))
        return cls(design=design, released=released.double().permute(1, 2, 0, 3), form=rows.shape[1:])

    def solved(self, typical: Tensor, noise: float) -> tuple[Tensor, Tensor]:
        """Each client's smashed data, by least squares with a penalty for what no typical record would release.

        Args:
            typical: [T or 1, D], the mean record's smashed data, which is what remains of a cell that never crossed.
            noise: variance of the release's noise over that of the smashed data, > 0.

        Returns:
            [n·B, ...], client c's b-th record in row c·B + b, and the share of the variance that is explained, float64
            [n·B, T or 1]: 1 for a cell that is determined, 0 for one that never crossed.

        Source: ridge regression (Hoerl and Kennard 1970), which is the posterior mean under Gaussian noise and prior.

        >>> weights = torch.tensor([[[0.75], [0.25]]])
        >>> one, other = (View(round=0, smashed=torch.tensor([[row]]), mixed=2, weights=weights,
        ...     clients=torch.tensor([seats])) for row, seats in ((2.0, [0, 1]), (4.0, [1, 0])))
        >>> Mixtures.of([one, other]).solved(torch.zeros(1, 1), 1e-9)[0].flatten().round(decimals=4)
        tensor([1., 5.])
        """
        transposed = self.design.transpose(2, 3)
        gram = transposed @ self.design
        regular = gram + noise * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        inverse = torch.linalg.inv(regular)
        unusual = self.released - self.design.sum(3, keepdim=True) * typical.unsqueeze(1)
        found = inverse @ (transposed @ unusual) + typical.unsqueeze(1)  # [B, T, n, D]
        known = 1 - noise * inverse.diagonal(dim1=2, dim2=3)
        batch, cells, clients, _ = found.shape
        smashed = found.permute(2, 0, 1, 3).reshape(clients * batch, cells, -1)
        if len(self.form) == 3 and cells > 1:
            smashed = smashed.transpose(1, 2)
        explained = known.permute(2, 0, 1).expand(-1, batch, -1).reshape(clients * batch, -1)
        return smashed.reshape(-1, *self.form).float(), explained.clamp(0, 1)

    def typical(self) -> Tensor:
        """The mean of the smashed data that were released, [T or 1, D]."""
        weight = self.design.sum((0, 2, 3)) * (len(self.released) / len(self.design))
        return self.released.sum((0, 2)) / weight.clamp_min(1e-12).unsqueeze(1)

    def variances(self) -> tuple[float, float]:
        """Of the release's noise, and of a record's smashed data.

        The noise is what least squares leave, over the equations that are more than the unknowns; 0 if none are.
        """
        typical = self.typical()
        smashed, explained = self.solved(typical, NOISES[0])
        left = (self.released - self.predicted(smashed)).square().mean(3)
        spare = left.numel() - float(explained.sum())
        noise = float(left.sum()) / spare if spare >= 1 else 0.0
        unusual = self.released - self.design.sum(3, keepdim=True) * typical.unsqueeze(1)
        weight = float(self.design.square().sum(3).mean())
        return noise, max(float(unusual.square().mean()) - noise, 1e-12) / max(weight, 1e-12)

    def predicted(self, smashed: Tensor) -> Tensor:
        """What would be released of n·B records, shaped like `released`."""
        batch, cells = len(self.released), self.released.shape[1]
        tokens = smashed.flatten(1).unsqueeze(1) if cells == 1 else as_tokens(smashed)
        mixed: Tensor = self.design @ tokens.double().unflatten(0, (-1, batch)).permute(1, 2, 0, 3)
        return mixed


def fitting_noise(passes: Sequence[View], another: View) -> tuple[Tensor, float, float]:
    """What a typical record releases, and the noise with which solving some passes predicts another one best.

    The third value is the share of the other pass's variance that is then left, 1 where nothing is predicted.

    Args:
        passes: of the adversary's own records.
        another: one more pass of the same.
    """
    known, held_out = Mixtures.of(passes), Mixtures.of([another])
    typical = known.typical()
    wrong = [
        (held_out.predicted(known.solved(typical, noise)[0]) - held_out.released).square().mean().item()
        for noise in NOISES
    ]
    unusual = held_out.released - held_out.design.sum(3, keepdim=True) * typical.unsqueeze(1)
    best = min(range(len(wrong)), key=wrong.__getitem__)
    return typical, NOISES[best], wrong[best] / max(unusual.square().mean().item(), 1e-300)


def _clients_of_seats(view: View) -> Tensor:
    """The client on each seat of each message, [M, k]; without groups, each message is a client's own."""
    batch = len(view.smashed) // view.messages
    held = records_of_rows(view)[::batch]
    return torch.where(held >= 0, held // batch, -1)


def _seat_weights(view: View) -> Tensor:
    """The weight of each seat of a row in each cell, [N, k, T or 1]."""
    if view.weights is not None:
        return by_cell(view.weights, view.smashed)
    if view.mixed > 1:
        raise NotApplicable(
            f"each row holds {view.mixed} images with hidden weights; use a defense with published=true"
        )
    return view.smashed.new_ones(len(view.smashed), 1, 1)
