"""The attack contract: what an adversary observes, how an attack is mounted, and what it returns; never the truth."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Never, Protocol, TypeVar

import torch
from torch import Generator, Tensor

from privkit.constraints import Checked
from privkit.shared.threat_models import ThreatModel


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
        mixed: k, number of images that each released row mixes; 1 if clients are not mixed.
        weights: weight of each of the k images at each position of a row, [N, k, T] (T = 1: one for all positions),
            if the coins (the random draws) of mixing or masking are public; None if they are hidden, or there are none.
        clients: int64 [N, k], the client on each of the k seats of a row, −1 on an empty one. A seat is a place in the
            group that a row mixes. The server knows the seats if it forms the groups and returns each client's
            gradient; None if the coins of mixing are hidden from the adversary. Row m·N/M + b holds the b-th record of
            each client of message m, so the seats of several passes can be linked.
        cut_gradient: gradient of the loss at the cut, shaped like `smashed`, or None if the protocol does not send
            it.
        messages: M ≥ 1, messages of N/M rows each, one after another; a batch-level shuffle mixes within one.
        labels: labels that are sent with the rows: int64 [N], or float [N, L] where they were mixed or noised; None if
            the protocol does not send it.
        whole: whether each patch of an image (or token of a sequence) has its token, in its place or in another; False
            if tokens were dropped or merged.
        parts: names of the parts that `smashed` consists of, if a release lies in several storages and the adversary
            holds these; empty if it was not split. If parts are places, `smashed` is zero in those of other storages.
    """

    round: int
    smashed: Tensor
    mixed: int = 1
    weights: Tensor | None = None
    clients: Tensor | None = None
    cut_gradient: Tensor | None = None
    messages: int = 1
    labels: Tensor | None = None
    whole: bool = True
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class QueryResult:
    """What came back when the adversary sent its own images through the defended clients.

    Attributes:
        view: the messages, as the server would have seen them.
        members: int64 [N, k], the row of the sent image on each seat of each released row; −1 on an empty seat.
    """

    view: View
    members: Tensor

    @classmethod
    def row_by_row(cls, view: View) -> QueryResult:
        """The same answer, reordered so that row n belongs to the n-th sent image."""
        return cls(view=view, members=torch.arange(len(view.smashed), device=view.smashed.device).unsqueeze(1))

    def row_of_each(self, images: int, asking: str) -> Tensor:
        """The released row of each sent image, int64 [images].

        Raises:
            NotApplicable: if some image has no row in the answer; `asking` names the attack that needs it.

        >>> import torch
        >>> answer = QueryResult(view=View(round=0, smashed=torch.zeros(2, 3)), members=torch.tensor([[1], [0]]))
        >>> answer.row_of_each(2, "an attack").tolist()
        [1, 0]
        """
        members = self.members.flatten()
        order = members.argsort(stable=True)
        if len(order) != images or not torch.equal(members[order], torch.arange(images).to(order)):
            raise NotApplicable(f"{asking} needs a query that answers with one row for each image")
        return order


Query = Callable[[Tensor, Generator], QueryResult]  # images [N, C, H, W] of one round in, the answer out


class TrainingClients(Protocol):
    """The clients in training, as a malicious server meets them: it can answer them with any gradient, and do nothing
    else."""

    def round(self, answer: Callable[[View], Tensor]) -> None:
        """One round: clients send private images, get the gradient that `answer` computes, and learn from it.

        Args:
            answer: function from a round's view, including labels, to the gradient at the cut, shaped like `smashed`.
        """

    def views(self) -> list[View]:
        """Releases of the attacked images by the clients as they are now, in as many passes as were recorded."""

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizers and random states, so that a killed attack can be resumed."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What every adversary has when its attack begins; each goal adds further fields.

    Attributes:
        image_shape: shape of one private record, (C, H, W) for images; public by the model's architecture.
        batch_size: records per round, over all clients, which the server sees anyway.
        views: the recorded rounds, pass after pass.
    """

    image_shape: tuple[int, ...]
    batch_size: int
    views: Sequence[View] = ()


@dataclass(frozen=True, kw_only=True)
class Scores:
    """One score per example, for goals that ask yes or no (is the label 1? was it a member?).

    Attributes:
        values: float [N]; higher means "yes".
        examples: int64 [N], the released row (or queried example) to which each score belongs.
        of_labels: float [N, L], one score per label, higher for the likelier; None if the attack asks for one label
            only.
    """

    values: Tensor
    examples: Tensor
    of_labels: Tensor | None = None


class Session(Protocol):
    """Object to which a long attack reports its progress and saves its state, to be resumed after a kill."""

    def load(self) -> dict[str, Any] | None:
        """State of the last `save`, or None on a fresh start."""
        return None

    def save(self, state: dict[str, Any]) -> None:
        """Keep a state of tensors, numbers, strings, lists and dicts; a session may skip some saves to save time."""
        return

    def keep(self, state: dict[str, Any]) -> None:
        """Save a state at once, for example the last good one of a training that diverged."""
        return

    def report(self, done: int, total: int, value: float) -> None:
        """Report that `done` of `total` epochs are finished, with the newest value of the curve."""
        return

    def goes_on(self, epochs: int, curve: Sequence[float]) -> bool:
        """Whether a training that has done its `epochs`, or a doubling of them, shall be doubled once more."""
        return False


class NoSession(Session):
    """A session without storage and reports, the default for attacks run by hand."""


Value = TypeVar("Value")
Held = TypeVar("Held", bound=Observation, contravariant=True)
Output = TypeVar("Output", covariant=True)


@dataclass(frozen=True, kw_only=True)
class Mounting(Generic[Held, Output]):
    """Declaration of how an attack must be mounted.

    Attributes:
        passes: how often the attacked images cross the wire for it, ≥ 1.
        budget_share: share of the run's epochs for attacks that fills its field `epochs`; 0 if the attack sets its own
            number.
        start: the untrained attack: the same one without learning and search; None if there is none, or if this attack
            is already untrained.
        control: function from the training steps of one epoch to the specification that replaces the attack in control
            experiments; None for the attack itself.
        control_side: pixels per side that are enough for its controls; None for the images as they are.
        ignores_views: whether it is a constant guess, which needs no controls.
        domains: kinds of records that it reconstructs, such as "images", or "any".
        undoes: the effects of a defense that it can undo: some of "maps" (a fixed function of a record), "scales" (each
            channel by a number of its own), "masks", "mixes", "permutes" and "shortens", as defenses declare them. Its
            positive control uses the defense only if the attack undoes all its effects.
        any_tokens: whether it reads releases that are not `View.whole`.
        returns_auxiliary: whether its guesses are always records of the adversary's own. Its controls then hide the
            attacked records among them.
        shadow_models: number of shadow models that it trains.
        labeled: number of records of each label whose label it knows; 0 for one positive record in each round, if it
            uses known labels at all.
        gradients: whether it reads the gradients that come back, so that it needs a lower segment that learns.
        architecture_only: whether it uses a lower segment's architecture only, and throws away its weights.
        short_of_published: a sentence, if it is mounted below its published strength.
    """

    passes: int = 1
    budget_share: float = 0.0
    start: Attack[Held, Output] | None = None
    control: Callable[[int], Attack[Held, Output]] | None = None
    control_side: int | None = None
    ignores_views: bool = False
    domains: tuple[str, ...] = ("images",)
    undoes: frozenset[str] = frozenset()
    any_tokens: bool = False
    returns_auxiliary: bool = False
    shadow_models: int = 0
    labeled: int = 0
    gradients: bool = True
    architecture_only: bool = False
    short_of_published: str = ""


class Attack(Protocol[Held, Output]):
    """One attack: a frozen dataclass that declares what it needs and how it is mounted, with a single method."""

    @property
    def name(self) -> str:
        """The attack's name in the registry."""

    @property
    def goal(self) -> str:
        """The goal of the attack, one of `privkit.attacks.goals.GOALS`, or "module:object"."""

    @property
    def needs(self) -> frozenset[str]:
        """Fields of the observation without which the attack cannot be mounted."""

    @property
    def uses(self) -> frozenset[str]:
        """Fields that make the attack stronger, but are not necessary."""

    @property
    def mounting(self) -> Mounting[Held, Output]:
        """How the attack must be mounted, as a `Mounting`."""

    def run(self, observation: Held, generator: Generator, session: Session | None = None) -> Output:
        """Run the attack on an observation. The same generator state gives the same bits on the same CPU.

        Args:
            observation: the adversary's observation.
            generator: a CPU generator, the only source of randomness.
            session: where a long attack saves its state and reports its progress.

        Raises:
            NotApplicable: if it cannot be mounted on this observation.
            AttackDiverged: if its own training is not finite; the last good state is kept.
        """


class ReconstructingAttack(Checked):
    """Base of privkit's own attacks on records: what most of them declare alike."""

    goal: ClassVar[str] = "reconstruct"
    uses: ClassVar[frozenset[str]] = frozenset()


class NamingAttack(Checked):
    """Base of privkit's own attacks on labels: what most of them declare alike."""

    goal: ClassVar[str] = "labels"
    uses: ClassVar[frozenset[str]] = frozenset()


AnyAttack = Attack[Never, object]  # an attack on any goal, for code that mounts it and does not run it


def known_to(attack: AnyAttack) -> frozenset[str]:
    """Fields of the observation that an attack declares. An audit passes only these to the attack."""
    return attack.needs | attack.uses


def threat_model(attack: AnyAttack, held: Collection[str] | None = None) -> ThreatModel:
    """The threat model under which an attack is mounted.

    It follows from what the attack is given: the training or records in it, several passes or weights or both, queries,
    in this order; an attack with none of them is passive.

    Args:
        held: fields of the observation that its adversary has; None for all that the attack declares.
    """
    held = known_to(attack) if held is None else held
    if {"clients", "present"} & set(held):
        return "malicious"
    knows = "lower" in held and not attack.mounting.architecture_only
    if attack.mounting.passes > 1:
        return "weights_and_many_passes" if knows else "many_passes"
    if knows:
        return "weights"
    return "query" if {"query", "predict"} & set(held) else "passive"


def lacking(attack: AnyAttack, observation: Observation) -> list[str]:
    """Names of the fields that the attack needs and the adversary lacks."""
    return sorted(need for need in attack.needs if getattr(observation, need) is None)


def given(field: Value | None) -> Value:
    """A field of the observation that `require` found to be there."""
    assert field is not None
    return field


def require(attack: AnyAttack, observation: Observation) -> None:
    """Raise `NotApplicable` if the adversary lacks what the attack needs."""
    if missing := lacking(attack, observation):
        raise NotApplicable(f"{attack.name} needs {' and '.join(missing)}, which this adversary does not have")
