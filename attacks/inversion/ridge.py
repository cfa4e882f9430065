"""Ridge inversion: a closed-form linear regression from releases to images, refined by a small network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import Mounting, NotApplicable, Query, ReconstructingAttack, Session, View, given
from privkit.attacks.goals.control import CONTROL_STEPS
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check_forms
from privkit.attacks.inversion.known_lower import without_block
from privkit.attacks.inversion.mixed_releases import per_member
from privkit.attacks.inversion.refinement import Refinement
from privkit.attacks.inversion.unmix import records_alone
from privkit.attacks.order.field_order import in_columns
from privkit.attacks.order.followed_tokens import in_recognized_places
from privkit.constraints import Count, NonNegative, Whole
from privkit.torch_utils.seeded import seeded

_POWER_ITERATIONS = 4
_WHOLE = 2_000  # most numbers of a release that is used in full
_COMPONENTS = 400  # principal components of a larger release
_TARGETS = 2**27  # most numbers in the targets of all rows, which many categories could exceed
FOLDS = 3
PENALTIES = tuple(10.0**power for power in range(-8, 3))
"""Penalties on a squared coefficient, in units of the rows' total variance."""


@dataclass(frozen=True, kw_only=True)
class Ridge(ReconstructingAttack):
    """Guess images by linear regression on their releases, fitted to the adversary's images; a network refines guesses.

    A release is the smashed data that clients send for an image. A release of at most 2,000 numbers is used in full:
    without noise, its small components hold fine lines. A larger release is projected on its largest principal
    components. If the adversary knows the client of each released row, and one regression per client guesses held-out
    images better, the attack uses one per client. The network learns from guesses at images that were left out of the
    regression: only their errors resemble the errors at attacked images. In table rows, each category is one number,
    and the category with the largest number is guessed.

    Attributes:
        passes: how many times ≥ 1 the same attacked images were sent; if several times, each record's own release is
            first solved for, as in `Unmix`.
        repeats: how many times ≥ 1 each of the adversary's images is sent, with fresh random draws and noise.
        components: largest number ≥ 1 of principal components that are kept. None keeps all of a release of at most
            2,000 numbers, and 400 of a larger release.
        epochs: number ≥ 0 of epochs in which a network learns to correct the regression's guesses; 0 leaves the guesses
            unchanged.
        width: number ≥ 1 of units in each of the network's two hidden layers.
        contrast: weight ≥ 0, in the network's loss, of identifying each image among others, relative to the squared
            error (`GuessError`). Under a strong defense, guesses are pale, so each guess is near to many images. A
            larger weight identifies more images, but reconstructs them less exactly.
        order: "released" keeps the order of tokens. "recognized" puts each token in the place whose distribution of
            tokens fits it; these distributions are learned by following tokens over the adversary's images
            (`followed_tokens`), after a public block behind the shuffle is undone. In table rows, it puts each token in
            the column whose tokens in the adversary's records are nearest (`field_order`). "recognized" needs `passes`
            = 1.

    Raises:
        NotApplicable: by `run`, if the adversary's images fill fewer than three rounds, or a table has too many
            categories; if `passes` > 1, also in the cases of `Unmix`.

    The network does not learn from a third of the adversary's images. The result's `curve` is the MSE on this third
    (with `contrast`, the weighted loss): of the regression, then of the network after each epoch. The network's
    correction is multiplied by the factor in [0, 1] that fits this third best.

    Source: privkit's own; ridge regression with cross-fitting. That shallow features are linearly decodable is
    folklore.
    """

    name: ClassVar[str] = "ridge"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary", "query"})

    passes: Count = 1
    repeats: Count = 3
    components: Count | None = None
    epochs: Whole = 12
    width: Count = 1024
    contrast: NonNegative = 0.0
    order: Literal["released", "recognized"] = "released"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order == "recognized" and self.passes > 1:
            raise ValueError(f"order=recognized is for one pass, got passes={self.passes}; leave one of them out")

    @property
    def mounting(self) -> ImageMounting:
        undoes = {"maps", "scales", "masks", "mixes"} if self.order == "released" else {"maps", "scales", "permutes"}
        return Mounting(
            passes=self.passes,
            undoes=frozenset(undoes),
            domains=("images", "tables"),
            control=lambda an_epoch: replace(self, epochs=min(self.epochs, ceil(CONTROL_STEPS / an_epoch))),
        )

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        check_forms(self, observation)
        to_seats = None
        if self.passes > 1:
            observation, to_seats = records_alone(observation, self.passes, generator)
        batch, device = observation.batch_size, observation.views[0].smashed.device
        own = given(observation.auxiliary).to(device)
        if len(own) < FOLDS * batch:
            raise NotApplicable(
                f"ridge leaves out each third of its own images once, in rounds as large as the victim's ({batch} "
                f"images): it needs at least {FOLDS * batch}, got {len(own)}"
            )
        columns = observation.columns
        if columns and self.repeats * len(own) * (numbers := sum(max(1, n) for n in columns)) > _TARGETS:
            raise NotApplicable(
                f"ridge regresses {numbers:,} numbers, one for each category, on {self.repeats * len(own):,} releases, "
                "which takes too much memory: take black_box"
            )
        note = ""
        if self.order == "recognized":
            observation, note = without_block(observation)
            rounds = self.repeats * (len(own) // batch)
            observation = (
                in_columns(observation, generator) if columns else in_recognized_places(observation, generator, rounds)
            )
        views, query = observation.views, given(observation.query)
        root, module = torch.randint(2**48, (2,), generator=generator).tolist()
        with seeded(device, module), torch.no_grad():
            sent, senders, images = _sent(query, own, batch, self.repeats, Generator(device).manual_seed(root))
            seen, clients = _rows(views)
            known, wanted = principal(sent, seen, self.components)
        targets, folds = as_numbers(own, columns)[images], images % FOLDS
        fitted = _best(known, targets, folds, wanted, senders, clients)
        guess, own_guess, held = fitted.other.float().clamp(0, 1), fitted.own.float().clamp(0, 1), folds == 0
        refined = Refinement(
            guesses=own_guess,
            truth=targets,
            held=held,
            width=self.width,
            epochs=self.epochs,
            module=module,
            root=root,
            contrast=self.contrast,
            share_by_contrast=self.contrast > 0,
        ).of(guess, session, "ridge")
        drawn = _as_cells(refined.images, columns) if columns else refined.images.view(-1, *observation.image_shape)
        note = "; ".join(filter(None, (note, refined.note)))
        return replace(refined, images=drawn if to_seats is None else to_seats(drawn), note=note)


def as_numbers(records: Tensor, columns: Sequence[int]) -> Tensor:
    """Encode table rows [N, C] as numbers [N, P], with one-hot categories; without `columns`, flatten [N, ...]."""
    if not columns:
        return records.flatten(1)
    cells = zip(records.unbind(1), columns, strict=True)
    return torch.cat([nn.functional.one_hot(x.long(), n).to(x) if n else x.unsqueeze(1) for x, n in cells], 1)


def _as_cells(numbers: Tensor, columns: Sequence[int]) -> Tensor:
    """Decode table rows [N, C] from numbers [N, P] in [0, 1]; the category with the largest number is chosen.

    >>> _as_cells(torch.tensor([[0.5, 0.1, 0.7, 0.2]]), (0, 3))
    tensor([[0.5000, 1.0000]])
    """
    cells = zip(numbers.split([max(1, n) for n in columns], 1), columns, strict=True)
    return torch.cat([x.argmax(1, keepdim=True).to(x) if n else x for x, n in cells], 1)


def _rows(views: Sequence[View]) -> tuple[Tensor, Tensor]:
    """The released rows, [N, F], and the client of each, int64 [N]; a row that mixes several images is repeated."""
    clients = [
        (view.smashed.new_zeros(len(view.smashed) * view.mixed) if view.clients is None else view.clients.flatten())
        for view in views
    ]
    return torch.cat([_weighted(view) for view in views]), torch.cat(clients).long()


def _weighted(view: View) -> Tensor:
    rows = per_member(view)
    if view.weights is None:
        return rows.flatten(1)
    axis = 2 if rows.ndim == 3 else 1
    smashed, weights = rows.narrow(axis, 0, rows.shape[axis] - 1), rows.narrow(axis, rows.shape[axis] - 1, 1)
    return torch.cat([(smashed * weights).flatten(1), weights.flatten(1)], 1)


def _sent(query: Query, own: Tensor, batch: int, repeats: int, draws: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Send the adversary's images; return released rows [N, F], their clients and images' indices, int64 [N] each."""
    rows, clients, images = [], [], []
    whole = len(own) // batch * batch
    for _ in range(repeats):
        order = torch.randperm(len(own), generator=draws, device=own.device)[:whole]
        for part in order.split(batch):
            answer = query(own[part], draws)
            members, (row, senders) = answer.members.flatten(), _rows([answer.view])
            taken = members >= 0
            rows.append(row[taken])
            clients.append(senders[taken])
            images.append(part[members[taken]])
    return torch.cat(rows), torch.cat(clients), torch.cat(images)


def principal(known: Tensor, wanted: Tensor, components: int | None) -> tuple[Tensor, Tensor]:
    """Center rows, [N, F] and [M, F], by the mean of `known`, and reduce them to principal components of `known`.

    Rows of more than `components` numbers are reduced to this number of components; other rows are only centered. With
    None, rows of more than 2,000 numbers are reduced to 400 components."""
    middle, most = known.mean(0), components or _COMPONENTS
    known, wanted = known - middle, wanted - middle
    if known.shape[1] <= (components or _WHOLE):
        return known, wanted
    _, _, basis = torch.svd_lowrank(known, q=min(most, len(known)), niter=_POWER_ITERATIONS)
    return known @ basis, wanted @ basis


def _best(known: Tensor, targets: Tensor, folds: Tensor, wanted: Tensor, senders: Tensor, held_by: Tensor) -> Fitted:
    """Fit one regression for all rows, or one for each client if this guesses left-out images better."""
    together = cross_fitted(known, targets, folds, wanted)
    clients = senders.unique().tolist()
    if len(clients) < 2:
        return together
    own, other, error = torch.empty_like(together.own), together.other.clone(), 0.0
    for client in clients:
        mine, theirs = senders == client, held_by == client
        fitted = cross_fitted(known[mine], targets[mine], folds[mine], wanted[theirs])
        own[mine], other[theirs] = fitted.own, fitted.other
        error += fitted.error * float(mine.float().mean())
    return Fitted(own=own, other=other, error=error) if error < together.error else together


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """Guesses by cross-fitting: each regression leaves one fold out."""

    own: Tensor  # float64 [N, P], guesses at the training rows, each by the fit without the row's record
    other: Tensor  # float64 [M, P], guesses at other rows, the mean over the fits
    error: float  # mean squared error of `own`


def cross_fitted(rows: Tensor, targets: Tensor, folds: Tensor, other: Tensor) -> Fitted:
    """Fit targets [N, P] on rows [N, F] by ridge regression, three times, each without one of the folds {0, 1, 2}.

    Rows of one record share a fold; the penalty is chosen by the error on left-out folds. A row is guessed by the fit
    without its fold, and each of the `other` rows [M, F] by the mean over the fits.

    Source: Hoerl and Kennard 1970; the penalty by cross-validation (Stone 1974).
    """
    rows, targets, other = rows.double(), targets.double(), other.double()
    fits = [_Fit.of(rows[folds != fold], targets[folds != fold]) for fold in range(FOLDS)]
    left_out = [folds == fold for fold in range(FOLDS)]
    turned = [one.turned(rows[out]) for one, out in zip(fits, left_out, strict=True)]

    def guessed(penalty: float) -> Tensor:
        own = torch.empty_like(targets)
        for one, out, along in zip(fits, left_out, turned, strict=True):
            own[out] = one.guess(along, penalty)
        return own

    errors = [float((guessed(penalty) - targets).square().mean()) for penalty in PENALTIES]
    best = PENALTIES[errors.index(min(errors))]
    mean = torch.stack([one.guess(one.turned(other), best) for one in fits]).mean(0)
    return Fitted(own=guessed(best), other=mean, error=min(errors))


@dataclass(frozen=True)
class _Fit:
    """A linear fit, factored so that each ridge penalty costs only one matrix product."""

    middle: Tensor
    mean: Tensor
    basis: Tensor
    values: Tensor
    along: Tensor

    @classmethod
    def of(cls, rows: Tensor, targets: Tensor) -> _Fit:
        middle, mean = rows.mean(0), targets.mean(0)
        away = rows - middle
        if len(away) < away.shape[1]:
            left, roots, basis = torch.linalg.svd(away, full_matrices=False)
            along = roots.unsqueeze(1) * (left.T @ (targets - mean))
            return cls(middle, mean, basis.T, roots.square(), along)
        values, basis = torch.linalg.eigh(away.T @ away)
        return cls(middle, mean, basis, values.clamp_min(0), basis.T @ (away.T @ (targets - mean)))

    def turned(self, rows: Tensor) -> Tensor:
        return (rows - self.middle) @ self.basis

    def guess(self, turned: Tensor, penalty: float) -> Tensor:
        shrunk = self.along / (self.values + penalty * self.values.sum().clamp_min(1e-300)).unsqueeze(1)
        return turned @ shrunk + self.mean
