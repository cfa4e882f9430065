"""Mixture posterior: the mean image behind mixed rows, as if images and what clients send were jointly Gaussian."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isqrt
from typing import ClassVar

import torch
from torch import Generator, Tensor

from privkit.attacks.base import Mounting, NotApplicable, Query, Session, View
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check_forms, check_inputs
from privkit.attacks.inversion.mixed_releases import LinkedRows, by_cell, check_public, records_of_rows
from privkit.attacks.inversion.rounds import by_round
from privkit.attacks.patches import as_tokens
from privkit.constraints import Checked, Count
from privkit.torch_utils.seeded import seeded

PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1)
"""Variances that are added to the noise's, in units of a number's mean variance."""
_HELD = 5  # one of so many rounds of own images is held out
_TRIED = 100  # held-out images, at most, on which penalties are tried
_EQUATIONS = 2**26  # coefficients of the equations for all clients' maps, at most
_WIDEST = 2**13  # numbers of a release, at most, whose covariances are estimated
_REST = 256  # principal components of what the maps leave unexplained
_SHRINK = 1e-3  # penalty of a squared coefficient of a map, in units of the equations' mean
_STEPS = 150  # of conjugate gradients, at most
_CLOSE = 1e-3  # length of what they leave, as a share of the right side's, from which no more are needed


@dataclass(frozen=True, kw_only=True)
class MixturePosterior(Checked):
    """Solves one Gaussian model of all clients: each row is the sum of its members' images, mapped by their clients.

    Client c sends z = M_c·φ(x) + e for an image x, with φ its largest principal components and 1. A row holds
    Σ_k λ_k·z_k and noise. Least squares over all rows of the adversary's own images give every M at once, so that the
    partner of an image is no noise. What they leave of own images that were held out gives the covariance of e, since
    rows of one image at one client share its e, and the variance of the noise. The guess is the mean of an image given
    all rows that hold it in any pass, together with its partners there. Weights may differ from position to position,
    as those of CutMix do. Rows of one image each are mixtures of one.

    Attributes:
        passes: R ≥ 1, how often the same victims crossed; views come pass after pass.
        repeats: how often each own image is sent.
        components: principal components of images at most. Many clients or positions allow fewer, so that the equations
            have no more than 2²⁶ coefficients.

    The curve is one number, the MSE on at most 100 held-out own images, by which the penalty was chosen.

    Source: privkit's own; the conditional mean of normal variables, solved by conjugate gradients (Hestenes and Stiefel
    1952). That public mixing is linear: DP-CutMixSL, Eq. 6 to 8 and 15.
    """

    name: ClassVar[str] = "mixture_posterior"
    goal: ClassVar[str] = "reconstruct"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary", "query"})
    uses: ClassVar[frozenset[str]] = frozenset()

    passes: Count = 1
    repeats: Count = 32
    components: Count = 150

    @property
    def mounting(self) -> ImageMounting:
        return Mounting(passes=self.passes, undoes=frozenset({"maps", "scales", "masks", "mixes"}))

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        """Send own images, solve for the clients' maps, and then for the attacked images.

        Raises:
            NotApplicable: if the members or weights of mixed rows are hidden, own images are fewer than three rounds, a
                release has more than 8,192 numbers, or an answer is not finite.
        """
        check_inputs(self, observation)
        check_forms(self, observation.views)
        rounds = by_round(observation.views, self.passes, mixed=True)
        attacked = [_linked(same) for same in rounds]
        query, batch, device = observation.query, observation.batch_size, attacked[0].smashed.device
        assert observation.auxiliary is not None
        assert query is not None
        own = observation.auxiliary.to(device)
        own = own[: len(own) // batch * batch]
        if len(own) < 3 * batch:
            raise NotApplicable(
                f"mixture_posterior learns from rounds of the victim's size ({batch} images), and is judged on others: "
                f"it needs at least {3 * batch} own images, got {len(observation.auxiliary)}"
            )
        if (numbers := attacked[0].smashed[0].numel()) > _WIDEST:
            raise NotApplicable(
                f"mixture_posterior needs the covariances of a release's numbers, at most {_WIDEST} of them, and here "
                f"are {numbers}: take ridge"
            )
        root, module = torch.randint(2**48, (2,), generator=generator).tolist()
        draws = Generator(device).manual_seed(root)
        with seeded(device, module), torch.no_grad():
            number = torch.arange(len(own), device=device)
            learned, held = number.split(len(own) - max(1, len(own) // batch // _HELD) * batch)
            most = isqrt(_EQUATIONS // attacked[0].weights.shape[2]) // max(one.clients for one in attacked) - 1
            features = _features(own.flatten(1), max(1, min(self.components, most)))
            equations = _Equations(features, max(one.clients for one in attacked))
            for _ in range(self.repeats):
                equations.add(_Rows.of(query, own, learned, batch, draws))
            apart = _Rows.joined([_Rows.of(query, own, held, batch, draws) for _ in range(self.repeats)])
            model = equations.model(own.flatten(1), apart)
            errors = _errors(model, query, own, held[:_TRIED].split(batch), self.passes, draws)
            penalty = PENALTIES[errors.index(min(errors))]
            equations.add(apart)
            model = replace(model, maps=equations.maps())
            seated = [
                linked.seated(model.guess(linked, penalty), same[0])
                for linked, same in zip(attacked, rounds, strict=True)
            ]
        return Reconstruction(images=torch.cat(seated).view(-1, *observation.image_shape), curve=(min(errors),))


def _errors(
    model: _Model, query: Query, own: Tensor, parts: Sequence[Tensor], passes: int, draws: Generator
) -> list[float]:
    """The error of each penalty on rounds of own images, int64 [B] each, that cross as often as the victims did."""
    wrong = []
    for part in parts:
        answers = [query(own[part], draws) for _ in range(passes)]
        linked = _linked([answer.view for answer in answers])
        members = answers[0].members.flatten()
        there, truth = members >= 0, own[part][members.clamp_min(0)].flatten(1)
        guesses = [linked.seated(model.guess(linked, penalty), answers[0].view) for penalty in PENALTIES]
        wrong.append([float((guess - truth)[there].square().mean()) for guess in guesses])
    return [sum(errors) / len(errors) for errors in zip(*wrong, strict=True)]


def _features(flat: Tensor, most: int) -> Tensor:
    """Principal components of images [n, P] and a 1, [n, f]."""
    away = flat - flat.mean(0)
    vectors: Tensor = torch.linalg.eigh((away.T @ away).double())[1]
    return torch.cat([away @ vectors[:, -most:].to(flat), flat.new_ones(len(flat), 1)], 1)


def _weighted(view: View) -> View:
    """The view with a weight for each of its `_cells`, 1 where nothing was mixed or masked."""
    if view.mixed > 1:
        check_public([view])
    weights = view.smashed.new_ones(len(view.smashed), 1, 1) if view.weights is None else view.weights
    return replace(view, weights=by_cell(weights, view.smashed).float())


def _linked(same: Sequence[View]) -> LinkedRows:
    return LinkedRows.of([_weighted(view) for view in same])


def _cells(smashed: Tensor, positions: int) -> Tensor:
    """Rows as cells [N, T, D] that have one weight each; T = 1 for a weight of the whole row."""
    return (smashed.flatten(1).unsqueeze(1) if positions == 1 else as_tokens(smashed)).float()


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """Own images as they crossed."""

    cells: Tensor  # [N, T, D]
    images: Tensor  # int64 [N, k], the own image on each seat
    clients: Tensor  # int64 [N, k]
    weights: Tensor  # [N, k, T], 0 on empty seats

    @classmethod
    def of(cls, query: Query, own: Tensor, some: Tensor, batch: int, draws: Generator) -> _Rows:
        """Send some own images, int64 [n], in rounds with new company."""
        parts = []
        for part in some[torch.randperm(len(some), generator=draws, device=own.device)].split(batch):
            answer = query(own[part], draws)
            view = _weighted(answer.view)
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
    def joined(cls, parts: Sequence[_Rows]) -> _Rows:
        return cls(**{name: torch.cat([getattr(part, name) for part in parts]) for name in vars(parts[0])})

    def of_client(self, client: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rows with an image of the client, int64 [m], the image, int64 [m], and its weights [m, T]."""
        seats = (self.clients == client) & (self.weights != 0).any(2)
        rows, seat = seats.any(1).nonzero().squeeze(1), seats.int().argmax(1)
        return rows, self.images[rows, seat[rows]], self.weights[rows, seat[rows]]


class _Equations:
    """The normal equations of all clients' maps, cell by cell, from rows of own images.

    Args:
        features: of all own images, [n, f], the last of them 1.
        clients: K.
    """

    def __init__(self, features: Tensor, clients: int) -> None:
        self._features, self._clients = features, clients
        self._gram, self._right = features.new_zeros(0), features.new_zeros(0)

    def add(self, rows: _Rows) -> None:
        """Take more rows; only clients that meet in a row, and only the rows where they do, are multiplied."""
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

    def maps(self) -> Tensor:
        """M of each client, [K, f, T·D]: an image's features times M are what the client sends of it."""
        solved = []
        for gram, right in zip(self._gram.flatten(1, 2).flatten(2), self._right.flatten(1, 2), strict=True):
            regular = gram.double()
            regular.diagonal().add_(_SHRINK * regular.diagonal().mean())
            solved.append(torch.cholesky_solve(right.double(), torch.linalg.cholesky(regular)).float())
        maps: Tensor = torch.stack(solved).unflatten(1, (self._clients, -1)).permute(1, 2, 0, 3).flatten(2)
        return maps

    def model(self, flat: Tensor, apart: _Rows) -> _Model:
        """The model of images [n, P], whose variances follow from rows of images that were not added.

        What the maps leave of two rows with the same image of one client shares its e, and no noise. This gives the
        variances of e, the rest is noise, and without the noise, what is left gives all covariances of e.
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
            (some.transpose(1, 2) @ some).square().sum(0)
            for some in apart.weights.split(max(1, _EQUATIONS // cells**2))
        )
        assert isinstance(met_in_row, Tensor)
        spread = _inverse(met_in_row).repeat_interleave(width, 0).repeat_interleave(width, 1)
        rest = _root((scaled.T @ scaled - torch.diag(len(left) * share * noise)) * spread)
        noise = left.square().mean(0) - share * rest.square().sum(0)
        least = max(1e-6 * float(apart.cells.var(0).mean()), 1e-20)
        return _Model(features=self._features, flat=flat, maps=maps, rest=rest, noise=noise.clamp_min(least))


def _inverse(counts: Tensor) -> Tensor:
    """1 over each, and 0 where there is nothing."""
    return torch.where(counts > 1e-6 * counts.max(), 1 / counts.clamp_min(1e-30), 0)


def _root(covariance: Tensor) -> Tensor:
    """R [q, d] with RᵀR close to a symmetric matrix [d, d] on its largest eigenvalues, without negative ones."""
    draws = Generator(covariance.device).manual_seed(0)
    size = len(covariance), min(_REST, len(covariance))
    basis: Tensor = torch.randn(size, generator=draws, device=covariance.device)
    for _ in range(3):
        basis = torch.linalg.qr(covariance @ basis)[0]
    values, vectors = torch.linalg.eigh((basis.T @ covariance @ basis).double())
    root: Tensor = basis @ (vectors * values.clamp_min(0).sqrt()).float()
    return root.T


@dataclass(frozen=True, kw_only=True)
class _Model:
    """Images and what clients send of them, jointly Gaussian, and noise that is independent in all numbers."""

    features: Tensor  # [n, f], of own images
    flat: Tensor  # [n, P], own images
    maps: Tensor  # [K, f, d]
    rest: Tensor  # [q, d], a root of the covariance of what the maps leave unexplained
    noise: Tensor  # [d], variances

    def guess(self, rows: LinkedRows, penalty: float) -> Tensor:
        """The mean of each record's image [P·n, pixels] in [0, 1] given all rows, in the order of `rows.records`."""
        count, positions = rows.clients, rows.weights.shape[2]
        released = _cells(rows.smashed, positions).unflatten(0, (rows.places, -1)).transpose(1, 2)  # [P, T, E, D]
        seats = (rows.records % count).unsqueeze(2).expand(-1, -1, positions)
        design = released.new_zeros(len(rows.smashed), count, positions).scatter_add_(1, seats, rows.weights)
        design = design.unflatten(0, (rows.places, -1)).permute(0, 3, 1, 2).contiguous()  # [P, T, E, n]
        maps, mean = self.maps[:count], self.features.mean(0)
        away = self.features - mean
        roots = torch.cat([_root(away.T @ away / len(away)) @ maps, self.rest.expand(count, -1, -1)], 1)  # [n, q, d]

        def cells(sent: Tensor) -> Tensor:  # [n, (P,) d] -> [(P,) T, n, D]
            apart: Tensor = sent.unflatten(-1, (positions, -1))
            return apart.movedim(0, -2)

        def shares(some: Tensor) -> Tensor:  # [P, T, E, D] -> [n, P, d]
            of_each: Tensor = design.transpose(2, 3) @ some
            return of_each.movedim(2, 0).flatten(2)

        variance = design.square() @ cells(roots.square().sum(1))
        noise = self.noise.view(positions, 1, -1) + penalty * variance.mean()

        def covariance(some: Tensor) -> Tensor:
            moved: Tensor = design @ cells((shares(some) @ roots.transpose(1, 2)) @ roots) + noise * some
            return moved

        found = conjugate_gradients(covariance, released - design @ cells(mean @ maps), 1 / (variance + noise))
        pixels = self.flat.mean(0)
        across = away.T @ (self.flat - pixels) / len(away)
        guessed = pixels + (shares(found) @ maps.transpose(1, 2)) @ across
        return guessed.transpose(0, 1).flatten(0, 1).clamp(0, 1)


def conjugate_gradients(product: Callable[[Tensor], Tensor], right: Tensor, scale: Tensor) -> Tensor:
    """x with A·x = right for positive definite A, one for each first index; `scale` is about 1 over A's diagonal.

    Source: Hestenes and Stiefel 1952.

    >>> matrix = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    >>> conjugate_gradients(lambda x: x @ matrix, torch.tensor([[3.0, 4.0]]), torch.ones(2)).round(decimals=4)
    tensor([[1., 1.]])
    """

    def inner(one: Tensor, other: Tensor) -> Tensor:
        return (one * other).flatten(1).sum(1).view(-1, *[1] * (one.ndim - 1))

    found, left = torch.zeros_like(right), right
    step = along = scale * left
    size, enough = inner(left, along), _CLOSE**2 * inner(right, right)
    for _ in range(_STEPS):
        if bool((inner(left, left) <= enough).all()):
            break
        moved = product(along)
        length = size / inner(along, moved).clamp_min(1e-30)
        found, left = found + length * along, left - length * moved
        step = scale * left
        size, before = inner(left, step), size
        along = step + size / before.clamp_min(1e-30) * along
    return found
