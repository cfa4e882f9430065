"""The goal of reconstructing private records: observation, output, checks of the input, and scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from privkit.attacks.base import (
    AnyAttack,
    Attack,
    Mounting,
    NotApplicable,
    Observation,
    Query,
    QueryResult,
    TrainingClients,
    View,
    given,
    require,
)
from privkit.attacks.goals.order import Permutation
from privkit.attacks.memory import Memory
from privkit.attacks.query_rules import ANY_QUERIES, QueryRules
from privkit.attacks.release_scale import usual_unit
from privkit.attacks.scores.image import Pixels, Values, image_scores

_DATA_RANGE = 1.0


@dataclass(frozen=True, kw_only=True)
class ImageObservation(Observation):
    """Holds the data that an adversary who reconstructs private images may have; an unknown field is None.

    For token sequences and tables, the same fields hold records [M, ...] instead of images. A network is cut into the
    clients' lower segment and the server's upper segment; the smashed data that clients send are the release.

    Attributes:
        image_shape: shape of one private record, (C, H, W) for images.
        columns: for table rows, the number of categories of each column, 0 for a dense (numeric) one; empty otherwise.
        words: for token sequences, the number of words in the public vocabulary; 0 if it is unknown.
        auxiliary: the adversary's M images [M, C, H, W] in [0, 1].
        auxiliary_labels: labels of the auxiliary images, int64 [M].
        query: function (images [N, C, H, W] of one round, generator) -> `QueryResult`: the clients' *defended* lower
            segments run on the adversary's images.
        rules: which queries the threat model allows.
        lower: a client's lower segment itself, with the trained weights (white box).
        block: the frozen block that the clients run after the defense, on each row alone: tokens [N, T, D] -> tokens
            [N, T, D]. Its weights are public.
        upper: the server's own segment: smashed data -> logits [N, L] for N rows and L labels.
        upper_history: copies of the server's segment from its training, the oldest first.
        clients: the clients at the start of training, for an attack that takes over the training.
        imitate: differentiable function (smashed data [N, ...] of one round, generator) -> defended smashed data
            [N, ...], by which the adversary applies the clients' defense with random numbers of its own.
        memory: cache of what earlier attacks computed from the same records; it saves work and does not change results.
    """

    image_shape: tuple[int, int, int]
    columns: tuple[int, ...] = ()
    words: int = 0
    auxiliary: Tensor | None = None
    auxiliary_labels: Tensor | None = None
    query: Query | None = None
    rules: QueryRules = ANY_QUERIES
    lower: nn.Module | None = None
    block: nn.Module | None = None
    upper: nn.Module | None = None
    upper_history: Sequence[nn.Module] | None = None
    clients: TrainingClients | None = None
    imitate: Callable[[Tensor, Generator], Tensor] | None = None
    memory: Memory | None = None

    def seen_through(self, change: Callable[[View], View]) -> ImageObservation:
        """Return the observation after `change` is applied to every view (the messages of a round), including the views
        in answers to queries.
        """
        query = None if self.query is None else _Changed(self.query, change)
        return replace(self, views=[change(view) for view in self.views], query=query)

    def of_usual_size(self) -> ImageObservation:
        """Return the observation with all releases multiplied by one power of 2, so that their standard deviation is
        about 1. If the standard deviation lies in [1/8, 8] already, nothing changes.
        """
        unit = usual_unit(torch.cat([view.smashed.flatten() for view in self.views]))
        return self if unit == 1 else self.seen_through(lambda view: replace(view, smashed=view.smashed * unit))


class _Changed:
    """A query with changed views in its answers. It counts rounds if the original query counts them (`Counted`)."""

    def __init__(self, ask: Query, change: Callable[[View], View]) -> None:
        self._ask: Any = ask
        self._change = change

    def __call__(self, images: Tensor, draws: Generator) -> QueryResult:
        answer: QueryResult = self._ask(images, draws)
        return replace(answer, view=self._change(answer.view))

    @property
    def rounds(self) -> int:
        rounds: int = self._ask.rounds
        return rounds

    @rounds.setter
    def rounds(self, rounds: int) -> None:
        self._ask.rounds = rounds


@dataclass(frozen=True, kw_only=True)
class Reconstruction:
    """Holds an attack's guesses at the private images.

    Attributes:
        images: the guessed images, float32 [N·k, C, H, W] in [0, 1], or records in the form of the auxiliary records. N
            is the number of released rows (over all views), and k the number of images mixed in each row. Entry n·k + i
            is the guess at the i-th image of row n.
        curve: the attack's objective on held-out *auxiliary* images after each epoch (MSE of pixels in [0, 1], lower
            means a stronger attack); empty for attacks without training.
        converged: whether doubling the training lowered the objective by at most 5 %
            (`privkit.attacks.fit.fit_doubling`); None for attacks that do not double their training. The curve itself
            cannot show this, since a decaying learning rate flattens every curve.
        permutation: the guessed order of tokens by which the images were assembled, for attacks that undo a shuffle; it
            has one row for each released row.
        note: a sentence on the method, for attacks that choose between several methods; empty for others.
    """

    images: Tensor
    curve: tuple[float, ...] = ()
    converged: bool | None = None
    permutation: Permutation | None = None
    note: str = ""


ImageAttack = Attack[ImageObservation, Reconstruction]
ImageMounting = Mounting[ImageObservation, Reconstruction]


def check_inputs(attack: AnyAttack, observation: ImageObservation) -> None:
    """Raise `NotApplicable` if an attack cannot use an observation: nothing was released, the release is not finite, a
    field that the attack needs is missing, tokens were dropped and the attack needs all, or the auxiliary images do not
    fit the private images or their labels."""
    require(attack, observation)
    views, auxiliary, labels = observation.views, observation.auxiliary, observation.auxiliary_labels
    if not views or any(view.smashed.numel() == 0 for view in views):
        raise NotApplicable("there is nothing to attack: no view was recorded, or a release is empty")
    if not all(bool(view.smashed.isfinite().all()) for view in views):
        raise NotApplicable("the release holds NaN or infinity: the training diverged")
    if not attack.mounting.any_tokens and not all(view.whole for view in views):
        raise NotApplicable(
            f"tokens were dropped or merged, and {attack.name} needs a token for each patch of an image: take "
            "black_box, which reads any number of tokens"
        )
    if auxiliary is None:
        return
    if tuple(auxiliary.shape[1:]) != observation.image_shape:
        raise NotApplicable(
            f"auxiliary images are {list(auxiliary.shape[1:])}, the private ones {list(observation.image_shape)}: "
            "bring auxiliary data of the same shape"
        )
    if labels is not None and len(labels) != len(auxiliary):
        raise NotApplicable(f"there are {len(labels)} auxiliary labels for {len(auxiliary)} auxiliary images")


def check_forms(attack: AnyAttack, observation: ImageObservation) -> None:
    """Run `check_inputs`; raise `NotApplicable` if released rows differ in shape or in the number of mixed records."""
    check_inputs(attack, observation)
    views = observation.views
    if any(view.smashed.shape[1:] != views[0].smashed.shape[1:] or view.mixed != views[0].mixed for view in views):
        raise NotApplicable(f"{attack.name} needs views of one form: attack views of different forms one by one")


def check_rows(attack: AnyAttack, observation: ImageObservation) -> None:
    """Run `check_forms`, and raise `NotApplicable` if a released row mixes several images."""
    check_forms(attack, observation)
    if (most := max(view.mixed for view in observation.views)) > 1:
        raise NotApplicable(f"each released row holds {most} images, but {attack.name} decodes one per row")


def divided(observation: ImageObservation, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """Divide the adversary's images into images to learn from, and one round of images on which to compare an attack's
    options. The second part is None if there are too few images, and both are None if there are fewer than two."""
    if observation.auxiliary is None or len(observation.auxiliary) < 2:
        return None, None
    images, batch = observation.auxiliary.to(device), observation.batch_size
    if len(images) < 2 * batch or len(images) - batch < 2:
        return images, None
    return images[:-batch], images[-batch:]


def whole_rounds(attack: AnyAttack, observation: ImageObservation, least: int, most: int | None = None) -> Tensor:
    """Whole rounds of at most `most` of the adversary's images; raises `NotApplicable` for under `least` rounds."""
    batch, own = observation.batch_size, given(observation.auxiliary)[:most]
    if len(own) < least * batch:
        raise NotApplicable(
            f"{attack.name} learns from rounds of the victim's size ({batch} images): it needs at least "
            f"{least * batch} own images, got {len(own)}"
        )
    return own[: len(own) // batch * batch].to(observation.views[0].smashed.device)


@torch.no_grad()
def observe(
    lower: nn.Module, images: Tensor, *, batch_size: int, auxiliary: Tensor | None = None, known: bool = False
) -> ImageObservation:
    """The observation of a server to which a client sends images through any module.

    Use it to run an attack directly, without `run_audit`.

    Args:
        lower: the client's segment, with its defense: images [N, C, H, W] -> smashed data [N, ...], row by row.
        images: the private images, [N, C, H, W] in [0, 1]; N is a multiple of `batch_size`.
        batch_size: images per round.
        auxiliary: the adversary's images; given these, the adversary can also query `lower`.
        known: whether the adversary holds `lower` itself (white box).

    >>> observe(nn.Flatten(), torch.rand(6, 1, 2, 2), batch_size=3).views[1].smashed.shape
    torch.Size([3, 4])
    """

    @torch.no_grad()
    def query(own: Tensor, draws: Generator) -> QueryResult:
        return QueryResult.row_by_row(View(round=0, smashed=lower(own)))

    return ImageObservation(
        image_shape=(images.shape[1], images.shape[2], images.shape[3]),
        batch_size=batch_size,
        views=[View(round=number, smashed=lower(part)) for number, part in enumerate(images.split(batch_size))],
        auxiliary=auxiliary,
        query=None if auxiliary is None else query,
        lower=lower if known else None,
    )


def match(truth: Pixels, guess: Pixels, batch_size: int) -> NDArray[np.int64]:
    """For each of N images, the index of the guess that the best assignment in its round gives to it: int64 [N].

    A defense that mixes images can exchange their places within a round of `batch_size` images. The assignment with the
    smallest total MSE undoes this. The assignment uses the true images, so an adversary who has to sort the guesses
    reaches at most the resulting scores.

    Source: Kuhn 1955, computed by scipy `linear_sum_assignment`.
    """
    from scipy.optimize import linear_sum_assignment

    chosen = np.empty(len(truth), dtype=np.int64)
    for start in range(0, len(truth), batch_size):
        rows = slice(start, start + batch_size)
        a = truth[rows].reshape(len(truth[rows]), -1).astype(np.float64)
        b = guess[rows].reshape(len(guess[rows]), -1).astype(np.float64)
        squared = (a * a).sum(1)[:, None] + (b * b).sum(1) - 2 * a @ b.T
        chosen[rows] = start + linear_sum_assignment(squared)[1]
    return chosen


def score(truth: Tensor, guess: Tensor, batch_size: int) -> dict[str, dict[str, Values]]:
    """Every image metric for each of N images [N, C, H, W] in [0, 1]; SSIM is left out if the images are too small.

    Returns two dicts, metric -> float64 [N]: "unaligned" compares guess n with image n; "matched" compares each image
    with the guess that `match` assigns to it.
    """
    originals, guesses = truth.cpu().numpy(), guess.cpu().numpy()
    aligned = {"unaligned": guesses, "matched": guesses[match(originals, guesses, batch_size)]}
    return {name: image_scores(originals, images, data_range=_DATA_RANGE) for name, images in aligned.items()}
