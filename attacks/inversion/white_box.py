"""White-box inversion: optimize images until the client's own lower segment maps them to the recorded release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import (
    Mounting,
    NoSession,
    NotApplicable,
    QueryResult,
    ReconstructingAttack,
    Session,
    View,
    given,
)
from privkit.attacks.fit import Stage, fit, gained
from privkit.attacks.goals.reconstruct import (
    ImageMounting,
    ImageObservation,
    Reconstruction,
    check_forms,
    divided,
)
from privkit.attacks.inversion.image_fit import RESTART_NOISE, ImageFit, Method, PlaceModel, Problem
from privkit.attacks.inversion.known_lower import check_release, frozen
from privkit.attacks.inversion.mixed_releases import LinkedRows, by_place, check_public
from privkit.attacks.inversion.rounds import averaged, by_round, chunks_of
from privkit.attacks.order.own_tokens import KEEPS_ALL, shares_kept
from privkit.attacks.order.token_reading import rows_a_message
from privkit.attacks.release_scale import least_variance
from privkit.attacks.search_space import Search, Untuned
from privkit.constraints import Count, NonNegative, Positive, Whole

_RIDGE = 1e-3
_TOKENS_IN_ORDER = 1_024  # most tokens of a message whose order is searched over all of them
_RIDGE_IMAGES = 2_000  # most images of the ridge regression, whose dual form solves one equation per image
_OBJECTIVE = "white_box: the objective"
_CALIBRATION_ROWS = 16
_PLACE_IMAGES = 2_000  # most images of `PlaceModel`; more hardly improve it, and all tokens are in memory at once
_CALIBRATION_EPOCHS = 2
_UNTRIED = (0.1, 0.0)
_UNTRIED_MIXED = (0.1, 0.3)
_VARIATIONS = (0.003, 0.03, 0.1, 0.3, 1.0, 3.0)  # weights of total variation: small for exact releases, large for noise
_DISTANCES = (0.0, 0.3)  # weights of the distance: above 0 if a release leaves pixels undetermined
_NEAR_LEARNED = ((0.003, 10.0), (0.003, 100.0))  # both weights, if wrong images explain a release nearly as well

Order = Literal["auto", "known", "shuffled", "batch", "guessed"]
_Rows = View | LinkedRows
Weight = Annotated[NonNegative, Search(_VARIATIONS[0], _VARIATIONS[-1])]
"""Weight of a prior, relative to the matching error."""


@dataclass(frozen=True, kw_only=True)
class WhiteBox(ReconstructingAttack):
    """Optimize images, by Adam (amsgrad), until a known lower segment maps them to the release.

    The lower segment is the clients' part of the network; the release is the defended output that clients send.

    Attributes:
        recipe: default values of the options that are None: "strong", or "released" with the authors' values (mid-grey
            start, constant rate of 1e-3 on [-1, 1], no bounds, no priors, one guessed order).
        epochs: number ≥ 0 of epochs of a hundred steps; 0 returns the start. None: 4 in "strong", 5,000 in "released".
        start: the images before the first step: "learned" (ridge regression of the adversary's images on their
            releases, in "strong"), "mean" (the adversary's mean image), "grey" (0.5, in "released") or "zero" (black).
            If the adversary has no images, "learned" and "mean" become "grey"; if the order is unknown, or images are
            mixed or masked, "learned" becomes "mean".
        bounds: how to keep pixels in [0, 1]: "sigmoid" of unbounded numbers (in "strong"), "project" after each step,
            or "none" (in "released").
        learning_rate: learning rate > 0 of Adam, in units of the unbounded numbers ("sigmoid") or of pixels in [0, 1];
            in "strong" 0.5 with "sigmoid" and otherwise 0.1.
        total_variation: weight ≥ 0 of total variation relative to the matching error, which is divided by the release's
            variance. "strong" takes the value that is best on the adversary's images, or 0.1 without queries.
        l2: weight ≥ 0 of the mean squared distance from the start. "strong" takes the value that is best on the
            adversary's images, or 0 (0.3 for mixed images) without queries.
        restarts: number ≥ 1 of starts for each attacked image, all but the first with added noise; the result with the
            smallest objective is kept.
        order: order of released tokens. "known": tokens are in their places. "shuffled": tokens are shuffled within
            each image, and their order is also optimized. "batch": the same, within each message. "guessed": a random
            order is drawn once before the optimization. "auto": the best of "known" and "shuffled" (in "released":
            "known" and "guessed") on the adversary's images. In "strong", "batch" is tried as well if tokens come back
            in rows of other images and a message has at most 1,024 tokens. Without queries, or if tokens are mixed,
            "auto" is "known".
        temperature: temperature ≥ 0 of the final order, in nats. At 0 each place gets one token (Hungarian); above 0 it
            gets a blend of likely tokens (Sinkhorn), which has a smaller squared error, but blurred structure.
        passes: how many times ≥ 1 the same attacked images were sent, one complete sending after another. The releases
            of an image are averaged first; with public masks, each position is averaged over the passes that kept it.
            If images are mixed, one guess at an image must explain all releases that contain it.
        parallel: number ≥ 1 of images optimized at a time.

    The result's `curve` is the attack's objective after each hundred steps: the matching error as a share of the
    release's variance, plus the weighted terms. Below 1e-4 a release counts as explained, and the curve stays at 1e-4.
    The curve does not show the error of the images.

    If the attack fails, an audit can continue it (`privkit.attacks.escalate`) in cycles. A cycle has as many steps as
    all earlier cycles together, and starts from their images with a new learning-rate schedule. For each image (or
    group of images that share tokens) the version with the smaller objective is kept.

    If a lower segment treats all places alike, every order explains the release. Then only the statistics of places in
    the adversary's images (`PlaceModel`) can order the tokens.

    Source: He et al. 2019, "Model inversion attacks against collaborative inference"; Yao et al., patch shuffling, Eq.
    4 and §V-B.2, whose authors neither bound the pixels nor optimize the order.

    >>> lower = nn.Flatten()
    >>> secret = torch.rand(3, 1, 4, 4, generator=Generator().manual_seed(1))
    >>> views = [View(round=0, smashed=lower(secret))]
    >>> observation = ImageObservation(views=views, image_shape=(1, 4, 4), batch_size=3, lower=lower)
    >>> guess = WhiteBox(total_variation=0.0).run(observation, Generator().manual_seed(0)).images
    >>> (guess - secret).abs().mean() < 0.01
    tensor(True)
    """

    name: ClassVar[str] = "white_box"
    needs: ClassVar[frozenset[str]] = frozenset({"lower"})
    uses: ClassVar[frozenset[str]] = frozenset({"auxiliary", "query"})

    recipe: Literal["strong", "released"] = "strong"
    epochs: Whole | None = None
    start: Literal["learned", "mean", "grey", "zero"] | None = None
    bounds: Literal["sigmoid", "project", "none"] | None = None
    learning_rate: Annotated[Positive, Search(1e-3, 1.0)] | None = None
    total_variation: Weight | None = None
    l2: Weight | None = None
    restarts: Count = 1
    order: Annotated[Order, Untuned()] = "auto"
    temperature: NonNegative = 0.0
    passes: Count = 1
    parallel: Count = 256

    @property
    def mounting(self) -> ImageMounting:
        return Mounting(
            passes=self.passes,
            any_tokens=True,
            undoes=frozenset({"maps", "masks", "mixes"} if self.passes > 1 else {"maps", "shortens"}),
            start=None if self.epochs == 0 else replace(self, epochs=0),
            control=lambda steps: replace(self, epochs=1),
        )

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        views = observation.views
        check_forms(self, observation)
        session, device = session or NoSession(), views[0].smashed.device
        root = int(torch.randint(2**48, (1,), generator=generator))
        lower = frozen(given(observation.lower), device)
        check_release(lower, views[0], observation.image_shape)
        self._check(views)

        own, tried = divided(observation, device)
        learned = _Own(lower, own)
        state = session.load() or {}
        if "chosen" not in state:
            state["chosen"] = self._chosen(views, observation, learned, tried, root)
        order, *priors = state["chosen"]
        method = self._method(order)
        rounds = by_round(views, self.passes, mixed=True) if self.passes > 1 else [[view] for view in views]
        attacked = [_victims_of_round(same, order) for same in rounds]
        chunks = _chunks(attacked, order, self.parallel)
        total = len(chunks) * method.epochs
        unit = _release_variance(attacked)
        images = []
        for index, chunk in enumerate(chunks):
            problem, slot = self._problem(chunk, observation, learned, order, unit), str(index)
            # A finished chunk continues if the session asks for it; the chunk's saved state holds its past epochs.
            others = sum(len(fitted["curve"]) for key, fitted in state.items() if key not in ("chosen", slot))
            stage = Stage(session, state, slot, others, total)
            guess, state[slot] = self._best(lower, problem, method, (priors[0], priors[1]), root + 1 + index, stage)
            images.append(guess)
        sizes = [len(chunk.smashed) for chunk in chunks]
        epochs = zip(*[state[str(index)]["curve"] for index in range(len(chunks))], strict=True)
        curve = tuple(sum(n * x for n, x in zip(sizes, each, strict=True)) / sum(sizes) for each in epochs)
        return Reconstruction(
            images=_guesses_of_seats(torch.cat(images), attacked, rounds),
            curve=curve,
            converged=not gained(curve[len(curve) // 2 - 1], curve[-1]) if len(curve) > method.epochs else None,
        )

    def _check(self, views: Sequence[View]) -> None:
        first = views[0]
        check_public(views)
        if self.order not in ("auto", "known") and (first.smashed.ndim != 3 or first.mixed > 1):
            raise NotApplicable(
                f"order={self.order} is for tokens of single images, but the release is {list(first.smashed.shape)}"
            )

    def _method(self, order: Any) -> Method:
        strong = self.recipe == "strong"
        bounds: Any = self.bounds or ("sigmoid" if strong else "none")
        rate = (0.5 if bounds == "sigmoid" else 0.1) if strong else 5e-4  # 1e-3 where pixels span [-1, 1]
        return Method(
            epochs=(4 if strong else 5_000) if self.epochs is None else self.epochs,
            learning_rate=self.learning_rate or rate,
            decay=strong,
            bounds=bounds,
            temperature=self.temperature,
            order=order,
        )

    def _begins(self, rows: _Rows, learned: _Own, order: str) -> str:
        """The start that the adversary's data allow: "learned", "mean", "zero" or "grey"."""
        wish = self.start or ("learned" if self.recipe == "strong" else "grey")
        if learned.images is None:
            return "grey" if wish in ("learned", "mean") else wish
        alone = order == "known" and rows.mixed == 1 and rows.weights is None
        return "mean" if wish == "learned" and not alone else wish

    def _problem(self, rows: _Rows, observation: ImageObservation, learned: _Own, order: str, unit: Tensor) -> Problem:
        smashed, group, records = rows.smashed, 1, None
        if isinstance(rows, LinkedRows):
            group, records = len(smashed) // rows.places, rows.records
        elif order == "batch":
            group = rows_a_message(rows)
        count = len(smashed) * rows.mixed if records is None else int(records.max()) + 1
        places, begins = None, self._begins(rows, learned, order)
        level = 0.0 if begins == "zero" else 0.5
        start = torch.full((count, *observation.image_shape), level, device=smashed.device)
        if begins == "learned":
            start = learned.regression(smashed)
        elif begins == "mean":
            start = given(learned.images).mean(0).expand_as(start)
        if order in ("shuffled", "batch") and learned.images is not None and self.recipe == "strong":
            places = learned.places.costs(smashed)
        return Problem(
            smashed=smashed,
            start=start,
            unit=unit,
            mixed=rows.mixed,
            weights=rows.weights,
            records=records,
            places=places,
            group=group,
        )

    def _best(
        self,
        lower: nn.Module,
        problem: Problem,
        method: Method,
        priors: tuple[float, float],
        seed: int,
        session: Session,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Optimize the images of some released rows from all starts, and keep the best start's result for each row.

        Rows that share tokens or images form a group and keep the same start. Also returns the curve and the state from
        which a further cycle continues.
        """
        if self.restarts > 1:
            many = problem.repeated(self.restarts)
            draws = Generator().manual_seed(seed)
            noise = RESTART_NOISE * torch.randn(many.start.shape, generator=draws).to(many.start.device)
            noise[: len(problem.start)] = 0
            problem = replace(many, start=(many.start + noise).clamp(0, 1), anchor=many.start)
        training = ImageFit(lower, problem, method, priors, seed)
        curve = fit(training, method.epochs, session, objective=_OBJECTIVE)
        fitted = {"curve": list(curve), "training": training.rest()}
        images, objective = training.guess()
        if self.restarts == 1:
            return images, fitted
        winner = objective.view(self.restarts, -1, problem.group).mean(2).argmin(0)
        groups = torch.arange(len(winner), device=winner.device)
        images = images.unflatten(0, (self.restarts, len(winner), -1))[winner, groups]
        return images.flatten(0, 1), fitted

    def _chosen(
        self, views: Sequence[View], observation: ImageObservation, learned: _Own, tried: Tensor | None, root: int
    ) -> tuple[Any, float, float]:
        """Choose the order of tokens and the weights of both priors that reconstruct queried images best."""
        tokens = views[0].smashed.ndim == 3 and views[0].mixed == 1
        unordered = "shuffled" if self.recipe == "strong" else "guessed"
        orders = [self.order] if self.order != "auto" else ["known", unordered] if tokens else ["known"]
        strong = self.recipe == "strong"
        usual = (_UNTRIED_MIXED if views[0].mixed > 1 else _UNTRIED) if strong else (0.0, 0.0)
        fixed = self.total_variation, self.l2
        tries = (_VARIATIONS, _DISTANCES) if strong else ((0.0,), (0.0,))
        smooth, near = (values if one is None else (one,) for one, values in zip(fixed, tries, strict=True))
        weights = {order: [*product(smooth, near)] for order in orders}
        if strong and fixed == (None, None) and self._begins(views[0], learned, orders[0]) == "learned":
            weights[orders[0]] += _NEAR_LEARNED
        method = self._method(orders[0])
        asks = observation.query is not None and observation.rules.allow(self.passes)
        if sum(map(len, weights.values())) == 1 or tried is None or not asks or method.epochs == 0:
            first, second = (other if one is None else one for one, other in zip(fixed, usual, strict=True))
            return orders[0], first, second
        candidates = [(order, *pair) for order in orders for pair in weights[order]]
        draws = Generator(tried.device).manual_seed(root)
        with torch.no_grad():
            answers = [given(observation.query)(tried, draws) for _ in range(self.passes)]
        errors: list[float] = []

        def tried_on(order: str, weights: list[tuple[float, float]]) -> list[float]:
            whole = _victims_of_round([answer.view for answer in answers], order)
            rows = _chunks([whole], order, _CALIBRATION_ROWS * whole.mixed)[0]
            if isinstance(rows, LinkedRows):
                batch = len(tried) // rows.clients
                seat = by_place([answer.members for answer in answers], batch)[: len(rows.smashed)].flatten()
                counted = seat >= 0
            else:
                self._check([rows])
                seat = answers[0].members[: len(rows.smashed)].flatten()
                counted = (seat >= 0) & (torch.arange(len(seat), device=seat.device) < _CALIBRATION_ROWS * rows.mixed)
            problem = self._problem(rows, observation, learned, order, _release_variance([rows]))
            pairs = torch.tensor(weights, device=tried.device).repeat_interleave(len(rows.smashed), 0)
            short = replace(self._method(order), epochs=min(method.epochs, _CALIBRATION_EPOCHS))
            training = ImageFit(learned.lower, problem.repeated(len(weights)), short, (pairs[:, 0], pairs[:, 1]), root)
            fit(training, short.epochs, objective=_OBJECTIVE)
            guess = training.guess()[0].unflatten(0, (len(weights), -1))[:, problem.seats]
            wrong = (guess - tried[seat.clamp_min(0)]).square().flatten(2).mean(2)
            return wrong[:, counted].mean(1).tolist()  # type: ignore[no-any-return]

        for order in orders:
            errors += tried_on(order, weights[order])
        best = min(range(len(errors)), key=errors.__getitem__)
        if self.order == "auto" and strong and tokens and _mixes_images(learned.lower, tried, answers[0]):
            pair = candidates[best][1:]  # an order over a message is costly to try, so only with these weights
            if tried_on("batch", [pair])[0] < errors[best]:
                return "batch", *pair
        return candidates[best]


@dataclass(frozen=True)
class _Own:
    """Results from the adversary's images that are the same for all attacked images, and computed only once."""

    lower: nn.Module
    images: Tensor | None

    @cached_property
    def places(self) -> PlaceModel:
        return PlaceModel.fit(_released_by(self.lower, given(self.images)[:_PLACE_IMAGES]))

    def regression(self, smashed: Tensor) -> Tensor:
        """Guess images [N, C, H, W] in [0, 1] from released rows [N, ...], by ridge regression."""
        mean, away, weights, middle = self._ridge
        return ((smashed.flatten(1) - mean) @ away.T @ weights).view(-1, *middle.shape).add(middle).clamp(0, 1)

    @cached_property
    def _ridge(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The mean release, releases minus this mean, a ridge regression's weights (dual form), and the mean image."""
        own = given(self.images)[:_RIDGE_IMAGES]
        seen = _released_by(self.lower, own).flatten(1)
        mean = seen.mean(0)
        away = seen - mean
        gram = away @ away.T
        gram.diagonal().add_(_RIDGE * gram.diagonal().mean().clamp_min(least_variance(seen)))
        weights = torch.linalg.solve(gram, own.flatten(1) - own.flatten(1).mean(0))
        return mean, away, weights, own.mean(0)


@torch.no_grad()
def _released_by(lower: nn.Module, images: Tensor) -> Tensor:
    return torch.cat([lower(part) for part in images.split(256)])


def _mixes_images(lower: nn.Module, images: Tensor, answer: QueryResult) -> bool:
    """Whether to search token orders over whole messages: true if tokens of queried images came back in other rows.

    The search needs an undefended lower segment that outputs tokens, and messages of unmixed images with at most 1,024
    tokens.
    """
    size, released = rows_a_message(answer.view), answer.view.smashed
    if size < 2 or size * released.shape[1] > _TOKENS_IN_ORDER:
        return False
    return shares_kept(_released_by(lower, images)[answer.members.flatten()], released, size)[0] <= KEEPS_ALL


def _victims_of_round(same: Sequence[View], order: str) -> _Rows:
    if len(same) == 1:
        return same[0]
    return LinkedRows.of(same) if same[0].mixed > 1 else averaged(same, align=order == "shuffled")


def _chunks(attacked: Sequence[_Rows], order: str, images: int) -> Sequence[_Rows]:
    if isinstance(attacked[0], LinkedRows):
        return [part for one in attacked if isinstance(one, LinkedRows) for part in one.parts(images)]
    views = [one for one in attacked if isinstance(one, View)]
    return views if order == "batch" else chunks_of(views, max(1, images // views[0].mixed))


def _guesses_of_seats(images: Tensor, attacked: Sequence[_Rows], rounds: Sequence[Sequence[View]]) -> Tensor:
    if not isinstance(attacked[0], LinkedRows):
        return images
    linked = [one for one in attacked if isinstance(one, LinkedRows)]
    parts = images.split([one.places * one.clients for one in linked])
    return torch.cat([one.seated(part, same[0]) for one, part, same in zip(linked, parts, rounds, strict=True)])


def _release_variance(attacked: Sequence[_Rows]) -> Tensor:
    released = torch.cat([rows.smashed for rows in attacked])
    return released.var(correction=0).clamp_min(least_variance(released))
