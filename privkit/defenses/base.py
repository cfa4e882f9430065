"""The defense contract: smashed data in, a release out, with the receipt that the accountant charges."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from annotated_types import Gt, Lt
from torch import Generator, Tensor, nn

from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import PrivateUpdates
from privkit.constraints import Checked, Count, Whole
from privkit.shared.certificate import Certificate

Place = Literal["client", "mixer", "server"]
"""Who runs a stage. A message goes from its client to a mixer, whom clients trust, and on to the server."""

Level = Literal["smashed", "input"]
"""What a defense is given: smashed data or, at the input layer, images."""

Drawn = Literal["every_round", "once"]
"""When a mixing defense draws its ratios: afresh in every round, or once for the whole run."""

Effect = Literal["trains", "maps", "clips", "masks", "permutes", "mixes", "noises", "answers", "splits", "shortens"]


@dataclass(frozen=True, kw_only=True)
class Release:
    """What the server gets in one round.

    Attributes:
        smashed: float [M, B, T, D] tokens, [M, B, C, H, W] feature maps or [M, B, D] vectors: M messages of B images
            each, differentiable in the clients' smashed data.
        labels: the labels that travel with them: int64 [M, B], or float [M, B, L] where they were mixed or noised; the
            server's own where the server holds them.
        weights: public coins of a mixing defense, float [M, k, T]: the weight of member i at position t of message m; T
            is 1 if all positions have one weight. None where nothing is mixed or masked.
        apart: float [G, k, B, ...], the members' messages as their clients sent them to whoever mixes; None where they
            sent their smashed data as they are.
        apart_labels: float [G, k, B, L], the labels beside them; None where these are the clients' own.
    """

    smashed: Tensor
    labels: Tensor
    weights: Tensor | None = None
    apart: Tensor | None = None
    apart_labels: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class ReleaseCount(Checked):
    """How often a run releases what belongs to one record or one client: what a receipt cannot know by itself.

    Attributes:
        rounds: rounds in which a client takes part.
        epochs: releases of one record over the run.
        batch_size: releases of one client in a round.
        copies: releases of one record in a round: several where a client has fewer records than a batch.
        clients: n.
        lower_model: "frozen", "trained" (on raw data, and kept by its client), "averaged" (sent out, too), or the noisy
            updates that trained it.
        delta: the δ at which ε is wanted.
        unmatched: clients of the group that is left over when k does not divide n; 0 where it does.
    """

    rounds: Count = 1
    epochs: Count = 1
    batch_size: Count = 1
    copies: Count = 1
    clients: Count = 1
    lower_model: Literal["frozen", "trained", "averaged"] | PrivateUpdates = "frozen"
    delta: Annotated[float, Gt(0), Lt(1)] = 1e-5
    unmatched: Whole = 0


ONE_RELEASE = ReleaseCount()
"""One record, released once by a frozen lower segment."""


class Receipt(ABC):
    """What one call really did; it stays on the trusted side and is the only thing an accountant charges."""

    @abstractmethod
    def certificate(self, release_count: ReleaseCount = ONE_RELEASE) -> Certificate:
        """What these realised parameters prove, over as many releases as the run made."""

    def mechanism(self, release_count: ReleaseCount = ONE_RELEASE) -> SplitMechanism | None:
        """The mechanism whose ε the certificate claims; None if it claims none."""
        return None

    @property
    def shared(self) -> str:
        """Why a row of the release may depend on other rows; empty if it is made of its own image and of fresh noise
        of its own."""
        return "nothing is known of how the rows of this release depend on each other"

    @property
    def order(self) -> Tensor | None:
        """The permutation that a shuffle hides (`receipts.Permuted.source`), or None."""
        return None

    @property
    def payload_share(self) -> float | None:
        """Share of the smashed data that a client sends, in [0, 1], or None where the release's weights show it."""
        return None


FrozenBlock = bool | Literal["first"]
"""No block, an extra one with drawn weights (true), or the model's first one above the cut, such as a checkpoint's."""

_NEGLIGIBLE = 1e-12
"""A scale of noise that is lost in the rounding of float32, and still above 0, as every noise must be."""


class Defense(Checked, ABC):
    """One defense: a frozen dataclass. `apply` is what it does to smashed data; the other methods are hooks.

    What a field may be stands in its annotation and is checked when an object is made (`privkit.constraints`).

    Attributes:
        name: its name in the registry.
        place: who runs it. A server earns no credit for what it does to itself.
        effects: what it does, for the claims of a chain: "trains" (a term of the clients' loss; the release stays),
            "maps" (a fixed function of each image that marks no position), "clips", "masks", "permutes" (tokens),
            "mixes" (clients), "noises" (smashed data), "answers" (the gradient that goes back), "splits" (into parts),
            "shortens" (leaves fewer tokens of each image). None, undeclared, can be no part of a chain.
        over_batch: whether a shuffle may bring tokens of one image into another. It counts as true unless it is
            declared to be false, and is read of stages that permute.
        position_embedding: whether tokens may carry a position embedding when they reach it; where order is the secret,
            no.
        smallest_batch: images a message below which it does nothing.
        group: k, clients whose smashed data are mixed into one message; 1 mixes nobody with nobody.
        level: "smashed" or "input": what `apply` is given. At the input layer it gets images [M, B, C, H, W].
        images_only: whether it reads the images themselves beside their smashed data, and so works on images alone. At
            the input layer every defense does.
        soft_labels: whether `apply` gets one-hot labels, float [..., L], because it changes them.
        at_inference: whether test images pass it, too. What only makes training private or robust (mixing) does not.
        frozen_block: whether the client appends a frozen transformer block to the release: an extra one with drawn
            weights, or the "first" block of the model above the cut, which then leaves the server's segment.
        published: whether the server learns the coins in `Release.weights`.
        keeps_positions: whether position t of a message holds position t of its members' smashed data; a shuffle does
            not keep them.
        drawn: when a mixing defense draws its ratios: "every_round", or "once", so that every client keeps its own.
        storages: names of the parts into which it splits a release; none if it stays whole.
        noise_fields: names of the fields that scale noise on what this defense releases.
        denoises: whether it only removes noise, so that it is left out where noise-free accuracy is measured.
    """

    name: ClassVar[str]
    place: Place = "client"
    effects: ClassVar[frozenset[Effect] | None] = None
    over_batch: ClassVar[bool] = True
    position_embedding: ClassVar[bool] = True
    smallest_batch: ClassVar[int] = 1
    group: Count = 1
    level: Level = "smashed"
    images_only: ClassVar[bool] = False
    soft_labels: ClassVar[bool] = False
    at_inference: bool = True
    frozen_block: FrozenBlock = False
    published: bool = True
    keeps_positions: ClassVar[bool] = True
    drawn: Drawn = "every_round"
    storages: tuple[str, ...] = ()
    noise_fields: ClassVar[tuple[str, ...]] = ()
    denoises: ClassVar[bool] = False

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences for the row: where training does not follow the derivative, as only a reproduction wants it."""
        return ()

    def noiseless(self) -> Defense:
        """The same with noise too small to matter: what an adversary that knows the mechanism expects of it.

        >>> from privkit.defenses.gaussian_noise import GaussianNoise
        >>> GaussianNoise(sigma=2.0).noiseless().sigma
        1e-12
        """
        return replace(self, **dict.fromkeys(self.noise_fields, _NEGLIGIBLE))  # type: ignore[type-var]

    def public_transform(self, smashed: Tensor) -> Tensor:
        """What `apply` makes of every image alone before it draws anything: public, and so the adversary's, too.

        Args:
            smashed: [N, ...], of N images, or with `level` "input" the images [N, C, H, W].
        """
        return smashed

    @abstractmethod
    def apply(
        self, smashed: Tensor, labels: Tensor, generator: Generator, present: Tensor | None = None
    ) -> tuple[Release, Receipt]:
        """Defend one round.

        A defense that can draw its ratios once takes `kept`, too: a generator in the same state in every round, on the
        device of `smashed`, from which it draws them; None for one of its own.

        Args:
            smashed: float [M, B, ...], the messages of M clients; for a defense with `group` k > 1, [M, k, B, ...]: the
                k members of M groups. Tokens come without their class token.
            labels: int64 [M, B] (or [M, k, B]); one-hot, float [..., L], with `soft_labels`.
            generator: the only source of randomness, on the device of `smashed`.
            present: bool [M, k] for a mixing defense: seats of a group that are taken; None for all. The data on an
                empty seat have no meaning and must get weight 0. Defenses that mix nobody do not read it.

        Returns:
            The release, M messages of B images, differentiable in `smashed`, and the receipt.

        Raises:
            ValueError: if the smashed data or labels have a shape or type that the defense cannot take.
        """

    def companion(
        self, smashed_shape: tuple[int, ...], image_shape: tuple[int, int, int], seed: int
    ) -> nn.Module | None:
        """A network that the client trains beside the task (a simulated attacker), or None.

        Args:
            smashed_shape: of one image's smashed data, without the batch.
            image_shape: (C, H, W).
            seed: of its weights; the global generator stays as it is.
        """
        return None

    def lower_filter(self, smashed_shape: tuple[int, ...], seed: int) -> nn.Module | None:
        """A network that ends each client's lower segment and keeps its shape, or None.

        The task's gradient passes it; that of `penalty` trains it and goes no further.

        Args:
            smashed_shape: of one image's smashed data, without the batch.
            seed: of its weights; the global generator stays as it is.
        """
        return None

    def penalty(self, images: Tensor, smashed: Tensor, companion: Callable[[Tensor], Tensor] | None) -> Tensor | None:
        """A term that the clients add to the task's loss, or None.

        Args:
            images: [M, B, C, H, W] in [0, 1].
            smashed: [M, B, ...], before `apply`.
            companion: what `companion` made, one for each client, called with all messages' images at once, [M·B, ...].

        Returns:
            [M], one value a client.
        """
        return None

    def adapter(self, smashed_shape: tuple[int, ...], seed: int) -> nn.Module | None:
        """A network that the server trains in front of its segment, where a release has another width; or None.

        Args:
            smashed_shape: of one image's smashed data, without the batch, before `apply`; it gives them back.
            seed: of its weights; the global generator stays as it is.
        """
        return None

    def head(self) -> nn.Module | None:
        """What the server does to the outputs of its segment, as a module behind it; or None."""
        return None

    def before_backward(self, arrived: Tensor) -> None:
        """What the server does to the smashed data that its segment was given, in place, after it computed the loss."""
        return None

    def on_gradient(self, gradient: Tensor, generator: Generator) -> Tensor:
        """What the server does to the cut-layer gradient [M, B, ...] before it sends it back."""
        return gradient


def require_tokens(name: str, smashed: Tensor) -> tuple[int, int, int, int]:
    """Shape (M, B, T, D) of messages of tokens, or an error that says where to cut the model."""
    if smashed.ndim != 4:
        raise ValueError(
            f"{name} needs tokens [M, B, T, D], got shape {list(smashed.shape)}; cut the model where it holds tokens"
        )
    m, b, t, d = smashed.shape
    return m, b, t, d


def take_rows(tokens: Tensor, rows: Tensor) -> Tensor:
    """One gather: output token (m, n, t) is row `rows[m, n, t]` of all M·B·T tokens.

    Args:
        tokens: float [M, B, T, D].
        rows: int64 [M, B, T], a permutation of 0..M·B·T−1.

    `Tensor.gather` with an expanded index has the fastest backward pass of torch's row gathers on a CPU (7.6 ms for
    B=50, T=196, D=512 forward and backward on two cores, where `index_select` takes 63 ms).

    >>> import torch
    >>> take_rows(torch.arange(4.0).view(1, 2, 2, 1), torch.tensor([[[3, 0], [1, 2]]])).flatten()
    tensor([3., 0., 1., 2.])
    """
    d = tokens.shape[-1]
    return tokens.reshape(-1, d).gather(0, rows.reshape(-1, 1).expand(-1, d)).view_as(tokens)


def is_own(stage: Defense) -> bool:
    """Whether a stage is a user's own, and none of privkit's.

    >>> from privkit.defenses.clip import Clip
    >>> from privkit.templates.defense import Template
    >>> is_own(Clip()), is_own(Template())
    (False, True)
    """
    return type(stage).__module__.rpartition(".")[0] != __name__.rpartition(".")[0]
