"""Ridge inversion: images are read off releases linearly and in closed form, and a small network adds what is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import Mounting, NotApplicable, Query, Session, View
from privkit.attacks.fit import Learner, fit
from privkit.attacks.goals.control import CONTROL_STEPS
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check, check_one_form
from privkit.attacks.inversion.cross_fitted import FOLDS, Fitted, ridge
from privkit.attacks.inversion.mixed_releases import per_member
from privkit.attacks.inversion.unmix import alone
from privkit.constraints import Checked, Count, Whole
from privkit.torch_utils.one_cycle import one_cycle
from privkit.torch_utils.seeded import seeded

_STEP_ROWS = 64
_LEARNING_RATE = 1e-3
_POWER_ITERATIONS = 4


@dataclass(frozen=True, kw_only=True)
class Ridge(Checked):
    """Regresses the adversary's own images on their releases, and lets a residual network refine what comes out.

    A release is projected on its largest principal components. Where the adversary knows which client sent a row, it
    takes one regression a client if that guesses left-out images better than one for all. The network learns from
    guesses at images that the regression was not fitted to, since only these are as wrong as those at the victim's.

    Attributes:
        passes: R ≥ 1, how often the same victims crossed; several are solved for each record's release first, as in
            `Unmix`.
        repeats: how often each own image is sent; each time, coins and noise are new.
        components: principal components that are kept at most.
        epochs: of the residual network; 0 leaves the regression's guesses as they are.
        width: of its two hidden layers.

    The curve is the MSE on a third of the own images that the network does not learn from: of the regression, then of
    the network after each epoch. The share of the network's correction that guesses these images best is taken.

    Source: privkit's own; ridge regression with cross-fitting. Linear readability of shallow features is folklore.
    """

    name: ClassVar[str] = "ridge"
    goal: ClassVar[str] = "reconstruct"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary", "query"})
    uses: ClassVar[frozenset[str]] = frozenset()

    passes: Count = 1
    repeats: Count = 3
    components: Count = 400
    epochs: Whole = 12
    width: Count = 1024

    @property
    def mounting(self) -> ImageMounting:
        """Its controls refine with few steps; the regression alone is no start, because it has learned already."""
        return Mounting(
            passes=self.passes,
            undoes=frozenset({"maps", "masks", "mixes"}),
            control=lambda an_epoch: replace(self, epochs=min(self.epochs, ceil(CONTROL_STEPS / an_epoch))),
        )

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        """Query, regress, refine; see `Attack.run`.

        Raises:
            NotApplicable: as `Unmix` with several passes; if there are fewer own images than three rounds.

        >>> from privkit.attacks.base import QueryResult
        >>> def query(images: Tensor, draws: Generator) -> QueryResult:
        ...     view = View(round=0, smashed=images.flatten(1) @ torch.eye(16).flip(0))
        ...     return QueryResult(view=view, members=torch.arange(len(images)).unsqueeze(1))
        >>> own, private = torch.rand(200, 1, 4, 4), torch.rand(5, 1, 4, 4)
        >>> views = [query(private, Generator()).view]
        >>> observation = ImageObservation(
        ...     views=views, image_shape=(1, 4, 4), batch_size=5, auxiliary=own, query=query
        ... )
        >>> guess = Ridge(epochs=0).run(observation, Generator().manual_seed(0)).images
        >>> bool((guess - private).abs().max() < 1e-4)
        True
        """
        check(self, observation)
        check_one_form(self, observation.views)
        seated = None
        if self.passes > 1:
            observation, seated = alone(observation, self.passes, generator)
        views, query, batch = observation.views, observation.query, observation.batch_size
        assert observation.auxiliary is not None
        assert query is not None
        device = views[0].smashed.device
        own = observation.auxiliary.to(device)
        if len(own) < FOLDS * batch:
            raise NotApplicable(
                f"ridge leaves out each third of its own images once, in rounds as large as the victim's ({batch} "
                f"images): it needs at least {FOLDS * batch}, got {len(own)}"
            )
        root, module = torch.randint(2**48, (2,), generator=generator).tolist()
        with seeded(device, module), torch.no_grad():
            sent = _Sent.of(query, own, batch, self.repeats, Generator(device).manual_seed(root))
            seen = _Rows.of(views)
            known, wanted = _principal(sent.rows.features, seen.features, self.components)
        targets = own.flatten(1)[sent.images]
        folds = sent.images % FOLDS
        fitted = _best(known, targets, folds, wanted, sent.rows.clients, seen.clients)
        guess, own_guess, held = fitted.other.float().clamp(0, 1), fitted.own.float().clamp(0, 1), folds == 0
        curve: tuple[float, ...] = (nn.functional.mse_loss(own_guess[held], targets[held]).item(),)
        note = ""
        if self.epochs:
            with seeded(device, module):
                training = _Residual(own_guess, targets, held, self.width, self.epochs, root)
                curve += fit(training, self.epochs, session, objective="ridge: the held-out error")
            training.network.eval()  # a training that was finished before a kill runs no epoch again
            with torch.no_grad():
                share = _helpful(training.network(own_guess[held]) - own_guess[held], targets[held] - own_guess[held])
                guess = (guess + share * (training.network(guess) - guess)).clamp(0, 1)
            note = f"{100 * share:.0f} % of the network's correction was taken, which guesses left-out images best"
        images = guess.view(-1, *observation.image_shape)
        return Reconstruction(images=images if seated is None else seated(images), curve=curve, note=note)


@dataclass(frozen=True)
class _Rows:
    """Rows of releases, one for each image that they hold: [N, F], and the client that sent each, int64 [N]."""

    features: Tensor
    clients: Tensor

    @classmethod
    def of(cls, views: Sequence[View]) -> _Rows:
        """What crossed, cells scaled by the weight that the image has in them, beside these weights."""
        clients = [
            (view.smashed.new_zeros(len(view.smashed) * view.mixed) if view.clients is None else view.clients.flatten())
            for view in views
        ]
        return cls(torch.cat([_weighted(view) for view in views]), torch.cat(clients).long())


def _weighted(view: View) -> Tensor:
    """[N·k, F]."""
    rows = per_member(view)
    if view.weights is None:
        return rows.flatten(1)
    axis = 2 if rows.ndim == 3 else 1
    smashed, weights = rows.narrow(axis, 0, rows.shape[axis] - 1), rows.narrow(axis, rows.shape[axis] - 1, 1)
    return torch.cat([(smashed * weights).flatten(1), weights.flatten(1)], 1)


@dataclass(frozen=True)
class _Sent:
    """Own images as they crossed: a row for each, and which image it is, int64 [N]."""

    rows: _Rows
    images: Tensor

    @classmethod
    def of(cls, query: Query, own: Tensor, batch: int, repeats: int, draws: Generator) -> _Sent:
        rows, clients, images = [], [], []
        whole = len(own) // batch * batch
        for _ in range(repeats):
            order = torch.randperm(len(own), generator=draws, device=own.device)[:whole]
            for part in order.split(batch):
                answer = query(own[part], draws)
                members, row = answer.members.flatten(), _Rows.of([answer.view])
                taken = members >= 0
                rows.append(row.features[taken])
                clients.append(row.clients[taken])
                images.append(part[members[taken]])
        return cls(_Rows(torch.cat(rows), torch.cat(clients)), torch.cat(images))


def _principal(known: Tensor, wanted: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Both on the principal components of the first."""
    middle = known.mean(0)
    known, wanted = known - middle, wanted - middle
    if known.shape[1] <= most:
        return known, wanted
    _, _, basis = torch.svd_lowrank(known, q=min(most, len(known)), niter=_POWER_ITERATIONS)
    return known @ basis, wanted @ basis


def _best(known: Tensor, targets: Tensor, folds: Tensor, wanted: Tensor, senders: Tensor, held_by: Tensor) -> Fitted:
    """One regression for all rows or one a client, whichever guesses left-out images better."""
    together = ridge(known, targets, folds, wanted)
    clients = senders.unique().tolist()
    if len(clients) < 2:
        return together
    own, other, error = torch.empty_like(together.own), together.other.clone(), 0.0
    for client in clients:
        mine, theirs = senders == client, held_by == client
        fitted = ridge(known[mine], targets[mine], folds[mine], wanted[theirs])
        own[mine], other[theirs] = fitted.own, fitted.other
        error += fitted.error * float(mine.float().mean())
    return Fitted(own=own, other=other, error=error) if error < together.error else together


def _helpful(correction: Tensor, missing: Tensor) -> float:
    """The share, in [0, 1], of a correction that leaves the least square error."""
    return float(((correction * missing).sum() / correction.square().sum().clamp_min(1e-12)).clamp(0, 1))


class _Refiner(nn.Module):
    """A guess plus what two hidden layers make of it; at its start the guess itself."""

    def __init__(self, pixels: int, width: int) -> None:
        super().__init__()
        last = nn.Linear(width, pixels)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        hidden = [nn.Linear(pixels, width), nn.GELU(), nn.Dropout(0.1), nn.Linear(width, width), nn.GELU()]
        self.added = nn.Sequential(*hidden, nn.Dropout(0.1), last)

    def forward(self, guess: Tensor) -> Tensor:
        refined: Tensor = guess + self.added(guess - 0.5)
        return refined


class _Residual(Learner):
    """Trains the refiner on guesses [N, P] at own images [N, P]; an epoch tells its error on those held out."""

    def __init__(self, guesses: Tensor, truth: Tensor, held: Tensor, width: int, epochs: int, seed: int) -> None:
        self._guesses, self._truth, self._held, self._seed = guesses, truth, held, seed
        network = _Refiner(truth.shape[1], width).to(truth.device)
        optimizer = torch.optim.AdamW(network.parameters(), lr=_LEARNING_RATE, weight_decay=0.05)
        steps = epochs * ceil(int((~held).sum()) / _STEP_ROWS)
        super().__init__(network, optimizer, one_cycle(optimizer, _LEARNING_RATE, steps, warm_up=0.1))

    def epoch(self, number: int) -> float:
        """One pass over the rows that are not held out."""
        device = self._truth.device
        self.network.train()
        with seeded(device, self._seed + number):
            own = (~self._held).nonzero().squeeze(1)
            for rows in own[torch.randperm(len(own), device=device)].split(_STEP_ROWS):
                self.step(nn.functional.mse_loss(self.network(self._guesses[rows]), self._truth[rows]))
        self.network.eval()
        with torch.no_grad():
            drawn = self.network(self._guesses[self._held]).clamp(0, 1)
        return nn.functional.mse_loss(drawn, self._truth[self._held]).item()
