"""The attack contract: what an adversary may hold, and what it returns. The truth is not among it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Generator, Tensor, nn


class NotApplicable(Exception):
    """The attack cannot be mounted on these views with this knowledge; the message says why."""


class AttackDiverged(Exception):
    """The attack's own training ended in NaN or infinity; the message says where."""


@dataclass(frozen=True, kw_only=True)
class View:
    """One round's messages that crossed the cut, as the adversary recorded them.

    Attributes:
        round: 0-based communication round.
        smashed: the release, float [N, T, D] (tokens), [N, C, H, W] (feature maps) or [N, D] (vectors).
        mixed: k, images that each released row holds; more than 1 where clients are mixed.
        weights: weight of each of the k images at each position of a row, [N, k, T] (T = 1: one for all positions),
            if the coins of mixing or masking are public; None where they are hidden, or there are none.
        cut_gradient: gradient of the loss at the cut, shaped like `smashed`, or None where the protocol does not send
            it.
        messages: M ≥ 1, messages of N/M rows each, one after another; a batch-level shuffle mixes within one.
        labels: what travels with the rows: int64 [N], or float [N, L] where they were mixed or noised; None where the
            protocol does not send it.
    """

    round: int
    smashed: Tensor
    mixed: int = 1
    weights: Tensor | None = None
    cut_gradient: Tensor | None = None
    messages: int = 1
    labels: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class QueryResult:
    """What came back when the adversary sent its own images through the defended edge.

    Attributes:
        view: the messages, as the server would have seen them.
        members: int64 [N, k], the row of the sent image on each seat of each released row; −1 on an empty seat.
    """

    view: View
    members: Tensor


Query = Callable[[Tensor, Generator], QueryResult]
"""Images [N, C, H, W] of one round in, the answer out."""


class TrainingClients(Protocol):
    """The clients in training, as a server meets them that answers as it likes: a malicious one's only lever."""

    def round(self, answer: Callable[[View], Tensor]) -> None:
        """One round: the clients send private images, get `answer`'s gradient for their release, and learn from it.

        Args:
            answer: a view of one round, its labels among it, to the gradient at the cut, shaped like `smashed`.
        """
        ...

    def views(self) -> list[View]:
        """What the clients, as they are now, release of the attacked images."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizers and draws, so that a killed attack goes on."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        ...


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """What the adversary has beside its views; None means that it does not have it.

    Attributes:
        image_shape: (C, H, W) of the private images; public by the model's architecture.
        batch_size: images a round, over all clients, which the server sees anyway.
        auxiliary: images [M, C, H, W] in [0, 1] of the adversary's own.
        auxiliary_labels: their labels, int64 [M].
        query: runs the clients' *defended* lower segments on one round of the adversary's images (black box).
        lower: a client's lower segment itself (white box).
        upper: the server's segment, which a server has: smashed data -> logits [N, L].
        clients: the clients in training from their start, for an attack that takes training over.
        imitate: what the clients' defense makes of one round of smashed data [N, ...] by its public law, with coins of
            the adversary's own; differentiable, and shaped like them.
    """

    image_shape: tuple[int, int, int]
    batch_size: int
    auxiliary: Tensor | None = None
    auxiliary_labels: Tensor | None = None
    query: Query | None = None
    lower: nn.Module | None = None
    upper: nn.Module | None = None
    clients: TrainingClients | None = None
    imitate: Callable[[Tensor, Generator], Tensor] | None = None


@dataclass(frozen=True, kw_only=True)
class Reconstruction:
    """Guesses at the private images.

    Attributes:
        images: float32 [N·k, C, H, W] in [0, 1]; row n·k + i is the guess at the i-th image in the n-th released row,
            views concatenated.
        curve: the attack's own objective on held-out *auxiliary* images after each epoch (MSE on [0, 1], lower is
            a stronger attack); empty for attacks that learn nothing.
        arrangement: the order that the images were put together by, from attacks that undo a shuffle; rows are the
            released rows, views concatenated.
    """

    images: Tensor
    curve: tuple[float, ...] = ()
    arrangement: Arrangement | None = None

    @property
    def converged(self) -> bool | None:
        """Whether the curve improved by less than 5 % in its last quarter and ends within 5 % of its best epoch.

        None without enough epochs. A curve that rises again, as an overfitted decoder's does, has not converged.

        Source: privkit's own sanity gate. A decaying learning rate flattens every curve at its end, so a passed
        gate is necessary for convergence, not sufficient.

        >>> import torch
        >>> Reconstruction(images=torch.zeros(1, 1, 2, 2), curve=(1.0, 0.5, 0.4, 0.39)).converged
        True
        >>> Reconstruction(images=torch.zeros(1, 1, 2, 2), curve=(1.0, 0.5, 0.4, 0.3)).converged
        False
        >>> Reconstruction(images=torch.zeros(1, 1, 2, 2), curve=(0.1, 0.2, 0.3, 0.4)).converged
        False
        """
        if len(self.curve) < 4:
            return None
        before = self.curve[-1 - len(self.curve) // 4]
        return 0.95 * before < self.curve[-1] <= 1.05 * min(self.curve)


@dataclass(frozen=True, kw_only=True)
class Scores:
    """One score an example, for attacks that answer a yes-or-no question (is the label 1? was it a member?).

    Attributes:
        values: float [N]; higher means "yes".
        examples: int64 [N], which released row (or queried example) each score is of.
    """

    values: Tensor
    examples: Tensor


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """A guess at the order that a shuffle took away.

    Attributes:
        source: int64 [N, T]; released token t of row n is guessed to have been token source % T of image source // T,
            images counted from 0 within its message of `batch_size` rows.
    """

    source: Tensor


class Session(Protocol):
    """What a long attack reports to, and where it saves itself, so that a killed attack goes on."""

    def load(self) -> dict[str, Any] | None:
        """State of the last `save`, or None on a fresh start."""
        ...

    def save(self, state: dict[str, Any]) -> None:
        """Keep a state of tensors, numbers, strings, lists and dicts; a session may skip some saves to save time."""
        ...

    def keep(self, state: dict[str, Any]) -> None:
        """Keep a state in any case: the last good one of a training that diverged."""
        ...

    def report(self, done: int, total: int, value: float) -> None:
        """Tell the progress: `done` of `total` epochs, with the newest value of the curve."""
        ...


class NoSession:
    """Keeps nothing and reports to nobody: the default for attacks run by hand."""

    def load(self) -> dict[str, Any] | None:
        """Nothing was saved."""
        return None

    def save(self, state: dict[str, Any]) -> None:
        """Forget."""

    def keep(self, state: dict[str, Any]) -> None:
        """Forget."""

    def report(self, done: int, total: int, value: float) -> None:
        """Stay silent."""


class Attack(Protocol):
    """One attack: a frozen specification with a single method.

    Attributes:
        name: its name in the registry.
        needs: fields of the knowledge without which it cannot be mounted.

    More are looked for where an attack has them: `uses`, fields of the knowledge that make it stronger, but which it
    can do without; `start`, the same attack with nothing learned and nothing searched, where `epochs=0` is not that;
    `short_of_published`, a sentence where it is mounted below its published strength; `passes`, how often the same
    victims must have crossed the wire (views are then those of pass after pass; 1 without it), and `asks`: "images"
    (without it), "labels", "members" or "canaries", the question that its `Scores` answer. One that trains for `epochs`
    says `budgeted` where None stands for what a run's budget allows (True, or a share of it), not for its own number;
    `control_epochs` where it needs so many to win where winning is easy, or `control`, the specification that does; and
    `control_side` where images of so many pixels a side are enough to show it.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]]

    def run(
        self, views: Sequence[View], knowledge: Knowledge, generator: Generator, session: Session | None = None
    ) -> Reconstruction | Scores:
        """Attack the views; the same generator state gives the same bits on the same CPU."""
        ...


def known_to(attack: Attack) -> frozenset[str]:
    """Fields of the knowledge that an attack declares: an audit hands over no others."""
    return attack.needs | getattr(attack, "uses", frozenset())


def missing(attack: Attack, knowledge: Knowledge) -> list[str]:
    """Names of what the attack needs and the adversary lacks; a non-empty answer makes a cell `not_applicable`."""
    return sorted(need for need in attack.needs if getattr(knowledge, need, None) is None)
