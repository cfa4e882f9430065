"""A Gaussian model of all clients: images and their smashed data are treated as jointly normal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from privkit.attacks.base import NotApplicable, Query, View
from privkit.attacks.inversion.mixed_releases import LinkedRows, by_cell, check_public, records_of_rows
from privkit.attacks.patches import as_tokens

EQUATIONS = 2**26
"""Most coefficients in the equations for all clients' maps."""
_REST = 256  # principal components of the residuals of the maps
_SHRINK = 1e-3  # penalty of a squared coefficient of a map, in units of the equations' mean
_STEPS = 150  # most steps of conjugate gradients
_CLOSE = 1e-3  # relative residual at which the steps stop


def principal_features(flat: Tensor, most: int) -> Tensor:
    """Compute features [n, f] of images [n, P]: at most `most` principal components, and the constant 1."""
    away = flat - flat.mean(0)
    vectors: Tensor = torch.linalg.eigh((away.T @ away).double())[1]
    return torch.cat([away @ vectors[:, -most:].to(flat), flat.new_ones(len(flat), 1)], 1)


def weighted(view: View) -> View:
    """Give the view a weight for each position (1 if nothing was mixed); hidden weights raise `NotApplicable`."""
    check_public([view])
    weights = view.smashed.new_ones(len(view.smashed), 1, 1) if view.weights is None else view.weights
    return replace(view, weights=by_cell(weights, view.smashed).float())


def linked(same: Sequence[View]) -> LinkedRows:
    """Link the rows that mix the same records, over the passes of one round."""
    return LinkedRows.of([weighted(view) for view in same])


def _cells(smashed: Tensor, positions: int) -> Tensor:
    """Split rows into T parts with one weight each, [N, T, D]; T = 1 if the whole row has one weight."""
    return (smashed.flatten(1).unsqueeze(1) if positions == 1 else as_tokens(smashed)).float()


@dataclass(frozen=True, kw_only=True)
class MixedRows:
    """Released rows of the adversary's images, with the images, clients and weights of each row."""

    cells: Tensor  # [N, T, D], N rows with T positions of D numbers
    images: Tensor  # int64 [N, k], the adversary's images that are mixed in each row
    clients: Tensor  # int64 [N, k], the clients of these images
    weights: Tensor  # [N, k, T], the weights of these images at T positions; 0 on empty seats

    @classmethod
    def of(cls, query: Query, own: Tensor, some: Tensor, batch: int, draws: Generator) -> MixedRows:
        """Send the adversary's images with the indices `some`, int64 [n], each mixed with newly drawn images."""
        parts = []
        for part in some[torch.randperm(len(some), generator=draws, device=own.device)].split(batch):
            answer = query(own[part], draws)
            view = weighted(answer.view)
            assert view.weights is not None
            if not bool(view.smashed.isfinite().all()):
                raise NotApplicable("the releases of own images hold NaN or infinity: nothing can be learned from them")
            parts.append(
                cls(
                    cells=_cells(view.smashed, view.weights.shape[2]),
                    images=part[answer.members.clamp_min(0)],
                    clients=records_of_rows(view).clamp_min(0) // (len(view.smashed) // view.messages),
                    weights=torch.where(answer.members.unsqueeze(2) >= 0, view.weights, 0),
                )
            )
        return cls.joined(parts)

    @classmethod
    def joined(cls, parts: Sequence[MixedRows]) -> MixedRows:
        return cls(**{name: torch.cat([getattr(part, name) for part in parts]) for name in vars(parts[0])})

    def of_client(self, client: int) -> tuple[Tensor, Tensor, Tensor]:
        """The rows that hold an image of the client, int64 [m]; these images, int64 [m]; and their weights, [m, T]."""
        seats = (self.clients == client) & (self.weights != 0).any(2)
        rows, seat = seats.any(1).nonzero().squeeze(1), seats.int().argmax(1)
        return rows, self.images[rows, seat[rows]], self.weights[rows, seat[rows]]


class Equations:
    """Least-squares equations for each client's linear map from an image's features to its smashed data.

    `add` enters released rows of the adversary's images, and `maps` solves for all K clients' maps together. The last
    of the f `features`, [n, f], is 1.
    """

    def __init__(self, features: Tensor, clients: int) -> None:
        self._features, self._clients = features, clients
        self._gram, self._right = features.new_zeros(0), features.new_zeros(0)

    def add(self, rows: MixedRows) -> None:
        """Add released rows; for two clients, products are computed only over the rows that hold images of both."""
        count, (_, cells, width) = self._features.shape[1], rows.cells.shape
        if not len(self._gram):
            self._gram = self._features.new_zeros(cells, self._clients, count, self._clients, count)
            self._right = self._features.new_zeros(cells, self._clients, count, width)
        images = rows.images.new_zeros(self._clients, len(rows.cells))
        weights = rows.weights.new_zeros(self._clients, len(rows.cells), cells)
        for client in range(self._clients):
            at, image, weight = rows.of_client(client)
            images[client, at], weights[client, at] = image, weight
            sent = (weight.unsqueeze(2) * rows.cells[at]).transpose(0, 1)
            self._right[:, client] += self._features[image].T @ sent
        for one in range(self._clients):
            for other in range(one, self._clients):
                both = weights[one] * weights[other]
                at = both.any(1).nonzero().squeeze(1)
                left, right = self._features[images[one, at]], self._features[images[other, at]]
                gram = (left.T * both[at].T.unsqueeze(1)) @ right
                self._gram[:, one, :, other] += gram
                if one < other:
                    self._gram[:, other, :, one] += gram.transpose(1, 2)

    @classmethod
    def together(cls, several: Sequence[Equations]) -> Equations:
        """Add several systems of normal equations, which gives the system of all their rows."""
        equations = cls(several[0]._features, several[0]._clients)
        equations._gram = sum((one._gram for one in several[1:]), several[0]._gram)
        equations._right = sum((one._right for one in several[1:]), several[0]._right)
        return equations

    def maps(self) -> Tensor:
        """Solve for each client's map M, [K, f, T·D]: an image's features times M give this client's smashed data."""
        solved = []
        for gram, right in zip(self._gram.flatten(1, 2).flatten(2), self._right.flatten(1, 2), strict=True):
            regular = gram.double()
            regular.diagonal().add_(_SHRINK * regular.diagonal().mean())
            solved.append(torch.cholesky_solve(right.double(), torch.linalg.cholesky(regular)).float())
        maps: Tensor = torch.stack(solved).unflatten(1, (self._clients, -1)).permute(1, 2, 0, 3).flatten(2)
        return maps

    def model(self, flat: Tensor, apart: MixedRows) -> Model:
        """Build the Gaussian model of images [n, P] and smashed data, from the maps and from further rows (`apart`).

        Two rows with the same image at one client share the map's error e but not the noise. So the product of their
        residuals gives the variance of e, and the remaining variance is noise. The residuals' covariances minus the
        noise are the covariances of e.
        """
        maps, (_, cells, width) = self.maps(), apart.cells.shape
        left = apart.cells.flatten(1).clone()
        met = []
        for client in range(self._clients):
            at, image, weight = apart.of_client(client)
            left[at] -= weight.repeat_interleave(width, 1) * (self._features[image] @ maps[client])
            met.append((at, client * len(flat) + image, weight))
        at, key, weight = (torch.cat(parts) for parts in zip(*met, strict=True))
        key = key.unique(return_inverse=True)[1]
        scaled, squares = weight.repeat_interleave(width, 1) * left[at], weight.square()
        sums = scaled.new_zeros(int(key.max()) + 1, cells * width).index_add_(0, key, scaled)
        totals = squares.new_zeros(len(sums), cells).index_add_(0, key, squares)
        pairs = _inverse(totals.square().sum(0) - squares.square().sum(0))
        alike = (sums.square().sum(0) - scaled.square().sum(0)).clamp_min(0) * pairs.repeat_interleave(width)
        share = squares.sum(0).repeat_interleave(width) / len(left)
        noise = (left.square().mean(0) - share * alike).clamp_min(0)
        met_in_row = sum(
            (some.transpose(1, 2) @ some).square().sum(0) for some in apart.weights.split(max(1, EQUATIONS // cells**2))
        )
        assert isinstance(met_in_row, Tensor)
        spread = _inverse(met_in_row).repeat_interleave(width, 0).repeat_interleave(width, 1)
        rest = _root((scaled.T @ scaled - torch.diag(len(left) * share * noise)) * spread)
        noise = left.square().mean(0) - share * rest.square().sum(0)
        least = max(1e-6 * float(apart.cells.var(0).mean()), 1e-20)
        return Model(features=self._features, flat=flat, maps=maps, rest=rest, noise=noise.clamp_min(least))


def _inverse(counts: Tensor) -> Tensor:
    return torch.where(counts > 1e-6 * counts.max(), 1 / counts.clamp_min(1e-30), 0)


def _root(covariance: Tensor) -> Tensor:
    """A matrix R [q, d] such that RᵀR approximates a symmetric matrix [d, d] by its largest positive eigenvalues."""
    draws = Generator(covariance.device).manual_seed(0)
    size = len(covariance), min(_REST, len(covariance))
    basis: Tensor = torch.randn(size, generator=draws, device=covariance.device)
    for _ in range(3):
        basis = torch.linalg.qr(covariance @ basis)[0]
    values, vectors = torch.linalg.eigh((basis.T @ covariance @ basis).double())
    root: Tensor = basis @ (vectors * values.clamp_min(0).sqrt()).float()
    return root.T


@dataclass(frozen=True, kw_only=True)
class Model:
    """Images and their smashed data as jointly Gaussian variables, plus independent noise on each number."""

    features: Tensor  # [n, f], features of the adversary's n images
    flat: Tensor  # [n, P], the P pixel values of these images
    maps: Tensor  # [K, f, d], each of K clients' map from features to smashed data
    rest: Tensor  # [q, d], a root of the covariance of the maps' errors
    noise: Tensor  # [d], variances of the noise

    def guess(self, rows: LinkedRows, penalty: float) -> Tensor:
        """Compute each record's expected image given all rows, [P·n, pixels] in [0, 1]: n clients, P batch places.

        The order is that of `rows.records`. The method solves for each record's standardized features and for the part
        of its smashed data that the map does not explain, both scaled to variance 1. `penalty`, times the mean variance
        of a released number, is added to the noise variance.
        """
        count, positions = rows.clients, rows.weights.shape[2]
        released = _cells(rows.smashed, positions).unflatten(0, (rows.places, -1)).transpose(1, 2)  # [P, T, E, D]
        seats = (rows.records % count).unsqueeze(2).expand(-1, -1, positions)
        design = released.new_zeros(len(rows.smashed), count, positions).scatter_add_(1, seats, rows.weights)
        design = design.unflatten(0, (rows.places, -1)).permute(0, 3, 1, 2).contiguous()  # [P, T, E, n]
        maps, features = self.maps[:count], self.features[:, :-1]
        spread = features.std(0, correction=0).clamp_min(1e-12)
        roots = torch.cat([spread.unsqueeze(1) * maps[:, :-1], self.rest.expand(count, -1, -1)], 1)  # [n, q, d]

        def cells(sent: Tensor) -> Tensor:  # [n, (P,) d] -> [(P,) T, n, D]
            apart: Tensor = sent.unflatten(-1, (positions, -1))
            return apart.movedim(0, -2)

        def shares(some: Tensor) -> Tensor:  # [P, T, E, D] -> [P, n, q]
            of_each: Tensor = (design.transpose(2, 3) @ some).movedim(2, 0).flatten(2)
            return (of_each @ roots.transpose(1, 2)).transpose(0, 1)

        variance = design.square() @ cells(roots.square().sum(1))
        noise = self.noise.view(positions, 1, -1) + penalty * variance.mean()

        def product(latent: Tensor) -> Tensor:
            return latent + shares(design @ cells(latent.transpose(0, 1) @ roots) / noise)

        seen = design.square().sum(2).mean(0).T.unsqueeze(2) / noise.squeeze(1)  # [n, T, D]
        scaled = roots * seen.flatten(1).sqrt().unsqueeze(1)
        within = torch.linalg.cholesky(torch.eye(roots.shape[1]).to(roots) + scaled @ scaled.transpose(1, 2))

        def alone(latent: Tensor) -> Tensor:  # as if each row held one record
            return torch.cholesky_solve(latent.permute(1, 2, 0), within).permute(2, 0, 1)

        unexpected = released - design @ cells(self.features.mean(0) @ maps)
        found = conjugate_gradients(product, shares(unexpected / noise), alone)[..., : len(spread)]
        pixels = self.flat.mean(0)
        across = (features / spread).T @ (self.flat - pixels) / len(features)
        return (pixels + found.flatten(0, 1) @ across).clamp(0, 1)


def conjugate_gradients(
    product: Callable[[Tensor], Tensor], right: Tensor, inverse: Callable[[Tensor], Tensor]
) -> Tensor:
    """Solve A·x = right for positive definite A (`product`), for each entry of the first axis.

    `inverse` applies an approximate inverse of A.

    Source: Hestenes and Stiefel 1952.

    >>> matrix = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    >>> conjugate_gradients(lambda x: x @ matrix, torch.tensor([[3.0, 4.0]]), torch.clone).round(decimals=4)
    tensor([[1., 1.]])
    """

    def inner(one: Tensor, other: Tensor) -> Tensor:
        return (one * other).flatten(1).sum(1).view(-1, *[1] * (one.ndim - 1))

    found, left = torch.zeros_like(right), right
    step = along = inverse(left)
    size = inner(left, along)
    enough = _CLOSE**2 * size
    for _ in range(_STEPS):
        if bool((size <= enough).all()):
            break
        moved = product(along)
        length = size / inner(along, moved).clamp_min(1e-30)
        found, left = found + length * along, left - length * moved
        step = inverse(left)
        size, before = inner(left, step), size
        along = step + size / before.clamp_min(1e-30) * along
    return found
