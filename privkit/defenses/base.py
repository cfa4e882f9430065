"""The interface of a defense: it turns smashed data into a release, and reports what it did to the accountant."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Generic, Literal, TypeVar

from annotated_types import Gt, Lt
from torch import Generator, Tensor, nn

from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import PrivateUpdates
from privkit.constraints import Checked, Count, Whole
from privkit.shared.certificate import Certificate

Place = Literal["client", "mixer", "server"]
"""Who runs a defense stage. A message goes from its client to a mixer, whom clients trust, and on to the server."""

Level = Literal["smashed", "input"]  # the input of a defense: smashed data or, at the input layer, images

Drawn = Literal["every_round", "once"]
"""When a mixing defense draws its ratios: afresh in every round, or once for the whole run."""

PartsBy = Literal["channels", "places"]
"""What a part of a release holds: some channels at all places (tokens, or rows of maps), or all channels at some."""

Effect = Literal[
    "trains", "maps", "scales", "clips", "masks", "permutes", "mixes", "noises", "answers", "splits", "shortens"
]


@dataclass(frozen=True, kw_only=True)
class Release:
    """What the server gets in one round.

    Attributes:
        smashed: float [M, B, T, D] tokens, [M, B, C, H, W] feature maps or [M, B, D] vectors: M messages of B images
            each, one message per client or per group of mixed clients; differentiable in the clients' smashed data.
        labels: labels of these images, int64 [M, B], or float [M, B, L] for L classes if labels were mixed or noised.
            If the server holds the labels, these are the server's own labels.
        weights: weights that a mixing or masking defense drew, float [M, k, T]; entry (m, i, t) is the weight of the
            i-th of k mixed clients at position t (a token or patch) of message m. T is 1 if all positions share one
            weight. None if nothing was mixed or masked.
        apart: each client's message before mixing, for G groups of k clients, float [G, k, B, ...]; None if these
            messages are the raw smashed data.
        apart_labels: the labels of the messages in `apart`, float [G, k, B, L]; None if they are the clients' unchanged
            labels.
    """

    smashed: Tensor
    labels: Tensor
    weights: Tensor | None = None
    apart: Tensor | None = None
    apart_labels: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class ReleaseCount(Checked):
    """How often a run releases data of a record or a client. The training loop sets it; a receipt covers one round.

    Attributes:
        rounds: number of rounds in which a client takes part.
        epochs: number of releases of one record over the run.
        batch_size: number of releases of one client in a round.
        copies: number of releases of one record in a round: several if a client has fewer records than a batch.
        clients: number n of clients.
        lower_model: how the lower segment is trained: "frozen"; "trained" on raw data, and kept by its client;
            "averaged", trained on raw data and sent to others; or by noisy updates (`PrivateUpdates`).
        delta: the δ for which ε is computed.
        unmatched: number of clients in the last, smaller group if the group size does not divide n; otherwise 0.
    """

    rounds: Count = 1
    epochs: Count = 1
    batch_size: Count = 1
    copies: Count = 1
    clients: Count = 1
    lower_model: Literal["frozen", "trained", "averaged"] | PrivateUpdates = "frozen"
    delta: Annotated[float, Gt(0), Lt(1)] = 1e-5
    unmatched: Whole = 0


ONE_RELEASE = ReleaseCount()  # one record, released once by a frozen lower segment


class Receipt(ABC):
    """Report to the accountants on what one call of a defense did. The server does not get it."""

    @abstractmethod
    def certificate(self, release_count: ReleaseCount = ONE_RELEASE) -> Certificate:
        """The privacy certificate of all releases of the run, computed from the parameters in this receipt.

        `release_count` says how often the run releases each record; by default once, by a frozen lower segment. If
        nothing can be proven, the certificate is of kind "nothing".
        """

    def mechanism(self, release_count: ReleaseCount = ONE_RELEASE) -> SplitMechanism | None:
        """The mechanism whose ε the `certificate` of this `release_count` states; None if there is no such ε."""
        return None

    @property
    def shared(self) -> str:
        """A sentence that says why an image's release may depend on other images; empty if it does not."""
        return "nothing is known of how the rows of this release depend on each other"

    @property
    def order(self) -> Tensor | None:
        """The permutation that a shuffle hides (`receipts.Permuted.source`); None without a shuffle."""
        return None

    @property
    def log10_alike(self) -> float:
        """log10 of the number of token orders of one message that give the same release; 0 without a shuffle."""
        return 0.0

    @property
    def payload_share(self) -> float | None:
        """Share of its smashed data that a client sends, in [0, 1]; None if it follows from `Release.weights`."""
        return None


R = TypeVar("R", bound=Receipt)

FrozenBlock = bool | Literal["first", "auto"]
"""Clients run no frozen block (false), an additional block with random weights (true), or the model's first block
above the cut ("first"). "auto" means "first" on images if the model has a block there, and no block otherwise."""

_NEGLIGIBLE = 1e-12
"""A noise scale, above 0 as every scale must be, but so small that the noise is lost in float32 rounding."""


class Defense(Checked, ABC):
    """A defense of split learning: `apply` defends one round's smashed data, and other methods are optional hooks.

    Defenses are frozen dataclasses. The range in a field's annotation is checked at construction.

    Attributes:
        name: name in the registry.
        place: the party that runs the defense. A defense at the server does not protect against the server.
        effects: what the defense does; the privacy claims of a chain of defenses are derived from it: "trains" (adds a
            term to the clients' loss and leaves the release unchanged), "maps" (applies a fixed function to each image
            and adds no position information), "scales" (multiplies each channel by its own factor, fixed or random, and
            may shift it; channels do not mix), "clips", "masks", "permutes" (tokens), "mixes" (clients), "noises"
            (smashed data), "answers" (changes the gradient that is sent back to clients), "splits" (cuts the release
            into parts for several storages), "shortens" (leaves fewer tokens of each image). A defense without declared
            effects (None) cannot join a chain.
        over_batch: whether a permutation can move tokens of one image into another; true unless declared false.
        position_embedding: whether tokens may carry a position embedding when they reach the defense; False if the
            order of tokens is the secret.
        smallest_batch: the smallest batch (number of images) for which the defense has an effect.
        group: k, the number of clients whose smashed data are mixed into one; 1 without mixing.
        level: the input of `apply`: "smashed" for smashed data; "input" for images.
        images_only: whether the defense reads the images themselves, so that it needs records that are images.
        soft_labels: whether the defense needs one-hot labels, because `apply` changes them or `label_term` reads them.
        at_inference: whether test images pass through the defense, too; False for defenses of training alone, such as
            mixing.
        frozen_block: whether the client runs a frozen transformer block after the defense: true adds a block with
            random weights; "first" moves the server's first block to the client; "auto" is "first" on images if the
            server's segment has a block, and no block otherwise.
        published: whether the server learns `Release.weights`.
        keeps_positions: whether position t of a release holds position t of the clients' smashed data. Stages with the
            effect "permutes" need not declare it.
        keeps_zeros: whether zeros at a position (a token or patch) stay zeros, for a defense that maps smashed data.
        drawn: when a mixing defense draws its ratios: "every_round", or "once", so that every client keeps its ratio.
        storages: names of the parts into which the defense splits a release; empty if the release stays whole.
        parts_by: whether a part consists of channels or of places.
        noise_fields: names of the fields that are proportional to the defense's noise, such as its standard deviation.
        denoises: whether the defense only removes noise; it is then left out when accuracy without noise is measured.
        straight_through: whether the gradient differs from the derivative of the release on purpose, as in a quantizer
            with a straight-through gradient. The audit's results report this, and `privkit check` does not test the
            derivative.
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
    keeps_zeros: ClassVar[bool] = False
    drawn: Drawn = "every_round"
    storages: tuple[str, ...] = ()
    parts_by: PartsBy = "channels"
    noise_fields: ClassVar[tuple[str, ...]] = ()
    denoises: ClassVar[bool] = False
    straight_through: ClassVar[bool] = False

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences about the defense that an audit reports, for example on what the defense estimated."""
        return ()

    @property
    def keyed(self) -> bool:
        """Whether clients share a secret that stays the same in all rounds. Queries may reveal it, but a server that
        only watches does not know it."""
        return False

    def noiseless(self) -> Defense:
        """The same defense with negligible noise, used by an adversary who knows the mechanism."""
        return replace(self, **dict.fromkeys(self.noise_fields, _NEGLIGIBLE))  # type: ignore[type-var]

    def public_transform(self, smashed: Tensor) -> Tensor:
        """Apply the defense's deterministic part to N images' `smashed` data [N, ...]; adversaries know this part."""
        return smashed

    @abstractmethod
    def apply(
        self, smashed: Tensor, labels: Tensor, generator: Generator, present: Tensor | None = None
    ) -> tuple[Release, Receipt]:
        """Defend the smashed data of one round.

        A defense that can draw its mixing ratios once per run has one more argument, `kept`: a generator on the device
        of `smashed` with the same state in every round. If ratios are drawn once and `kept` is None, they come from
        seed 0.

        Args:
            smashed: float [M, B, ...], the smashed data of M clients for B images each; for a defense with `group` k >
                1, [M, k, B, ...], for M groups of k clients. Tokens come without their class token.
            labels: int64 [M, B] (or [M, k, B]); one-hot, float [..., L] for L classes, if `soft_labels` is true. For
                test images and queries, these labels are independent of the images.
            generator: the only source of randomness, on the device of `smashed`.
            present: bool [M, k], which of a group's k places hold a client; None if all do. Data in an empty place are
                meaningless and must get weight 0. Only mixing defenses read this.

        Returns:
            The release of M batches of B images, differentiable in `smashed`; and the receipt, which records what was
            done.

        Raises:
            ValueError: if the smashed data or labels have a shape or type that the defense cannot take.
        """

    def companion(
        self, smashed_shape: tuple[int, ...], image_shape: tuple[int, int, int], seed: int
    ) -> nn.Module | None:
        """An extra network that the client trains (a simulated attacker, for example), or None.

        Args:
            smashed_shape: shape of one image's smashed data, without the batch.
            image_shape: shape (C, H, W) of an image.
            seed: seed of the network's weights; torch's global generator is not used.
        """
        return None

    def lower_filter(self, smashed_shape: tuple[int, ...], seed: int) -> nn.Module | None:
        """A network that follows each client's part of the model and keeps the shape of the smashed data; or None.

        The task's gradient trains this network and the client's part before it; the gradient of `penalty` trains this
        network only.

        Args:
            smashed_shape: shape of one image's smashed data, without the batch.
            seed: seed of the network's weights; torch's global generator is not used.
        """
        return None

    def penalty(self, images: Tensor, smashed: Tensor, companion: Callable[[Tensor], Tensor] | None) -> Tensor | None:
        """A term that the clients add to the task's loss, float [M], one value for each of M clients; or None.

        Args:
            images: the B images of each client, [M, B, C, H, W] in [0, 1].
            smashed: the clients' smashed data before `apply`, [M, B, ...].
            companion: function that applies each client's extra network, which the method `companion` made, to this
                client's smashed data. It takes the data of all clients, [M·B, ...], client after client. None without
                such networks.
        """
        return None

    def adapter(self, smashed_shape: tuple[int, ...], seed: int) -> nn.Module | None:
        """A trained network in front of the server's segment, if the defense changes the width of the data; or None.

        Args:
            smashed_shape: shape of one image's smashed data, without the batch, before the defense changes its width.
            seed: seed of the network's weights; torch's global generator is not used.
        """
        return None

    def head(self) -> nn.Module | None:
        """A module behind the server's segment that changes its outputs, or None."""
        return None

    def label_term(self, arrived: Tensor, labels: Tensor) -> Tensor | None:
        """A term that the label holder adds to the loss of each of M batches of B images, float [M]; or None.

        Clients get the gradient of the whole loss.

        Args:
            arrived: smashed data at the server's segment, [M, B, ...].
            labels: one-hot labels of L classes, float [M, B, L]; the defense must set `soft_labels`.
        """
        return None

    def before_backward(self, arrived: Tensor) -> None:
        """Change `arrived`, smashed data [M, B, ...] at the server's segment, in place, after the loss is computed."""
        return None

    def on_gradient(self, gradient: Tensor, generator: Generator) -> Tensor:
        """Return what the label holder sends back instead of the `gradient` at the cut, [M, B, ...]; `generator` is the
        only source of randomness."""
        return gradient


class OnSmashed(Defense, Generic[R]):
    """A defense that changes only smashed data (at the input layer: images) and leaves labels as they are."""

    @abstractmethod
    def defended(self, smashed: Tensor, generator: Generator) -> tuple[Tensor, R]:
        """The release of `smashed` data [M, B, ...] and the receipt; `generator` and errors as in `apply`."""

    def apply(
        self, smashed: Tensor, labels: Tensor, generator: Generator, present: Tensor | None = None
    ) -> tuple[Release, R]:
        released, receipt = self.defended(smashed, generator)
        return Release(smashed=released, labels=labels), receipt


def require_tokens(name: str, smashed: Tensor) -> tuple[int, int, int, int]:
    """The shape (M, B, T, D) of messages of tokens; other shapes raise an error that says where to cut the model."""
    if smashed.ndim != 4:
        raise ValueError(
            f"{name} needs tokens [M, B, T, D], got shape {list(smashed.shape)}; cut the model where it holds tokens"
        )
    m, b, t, d = smashed.shape
    return m, b, t, d


def take_rows(tokens: Tensor, rows: Tensor) -> Tensor:
    """Permute tokens over all messages and images: output token (m, b, t) is input token number `rows[m, b, t]`.

    `tokens` are float [M, B, T, D], and `rows` int64 [M, B, T] is a permutation of 0..M·B·T−1, the numbers of the input
    tokens in memory order. On a CPU, `Tensor.gather` with an expanded index has the fastest backward pass of torch's
    row gathers.
    """
    d = tokens.shape[-1]
    return tokens.reshape(-1, d).gather(0, rows.reshape(-1, 1).expand(-1, d)).view_as(tokens)


def is_own(stage: Defense) -> bool:
    """Whether a defense stage was written by a user and is not part of privkit."""
    return type(stage).__module__.rpartition(".")[0] != __name__.rpartition(".")[0]


def stages_with(stages: Iterable[Defense], *effects: Effect) -> list[Defense]:
    """The defense stages that declare at least one of these effects."""
    return [stage for stage in stages if set(effects) & set(stage.effects or ())]
