"""The contract of an attack: what the adversary observes (never the truth), how to mount it, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Never, Protocol, TypeVar

import torch
from torch import Generator, Tensor

from privkit.constraints import Checked
from privkit.shared.threat_models import ThreatModel


class NotApplicable(Exception):
    """Raised if the attack cannot run on these messages with this adversary's knowledge; the error's text says why."""


class AttackDiverged(Exception):
    """Raised if the attack's training ended in NaN or infinity; the error's text says where."""


@dataclass(frozen=True, kw_only=True)
class View:
    """One round's messages that crossed the cut, as the adversary recorded them.

    Attributes:
        round: 0-based communication round.
        smashed: the N released rows, float [N, T, D] (T tokens of D numbers), [N, C, H, W] (feature maps) or [N, D]
            (vectors). Each row was released for one record, or for a mixture of records.
        mixed: number k ≥ 1 of records that are mixed into each released row; 1 without mixing.
        weights: weight of each of the k records at each position of a row, float [N, k, T] (T = 1: one weight for all
            positions), if the random draws of mixing or masking are public. None if the draws are hidden or there are
            none.
        clients: int64 [N, k], the client on each of the k seats of a row, −1 on an empty seat. A seat is a place in the
            group of clients whose records are mixed into a row. A server that forms the groups and returns each
            client's gradient knows the seats; None if the adversary does not know them. Row m·N/M + b holds the b-th
            record of each client of message m. So the adversary can link the rows in which the same record is sent
            again.
        cut_gradient: gradient of the loss at the cut, shaped like `smashed`, or None if the protocol does not send it.
        messages: number M ≥ 1 of messages in the round; each consists of N/M consecutive rows. A defense that shuffles
            a batch moves tokens only between the rows of one message.
        labels: labels that are sent with the rows: int64 [N], or float [N, L] (L labels) if they are mixed or noised;
            None if the protocol does not send labels.
        whole: whether every patch of an image (or token of a sequence) still has a token, perhaps in another place;
            False if tokens were dropped or merged.
        parts: if a release is split over several storages, the names of the parts that the adversary holds; empty if it
            was not split. If these parts are positions of a row, `smashed` is zero at all other positions.
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
    """The answer to a query: the release after the adversary sends its own images through the defended clients.

    Attributes:
        view: the answer's messages, as the server sees them.
        members: int64 [N, k], for each of N released rows the indices of the k sent images that are mixed in it (k = 1
            without mixing); −1 for an empty place.
    """

    view: View
    members: Tensor

    @classmethod
    def row_by_row(cls, view: View) -> QueryResult:
        """The answer to a query whose released row n, in `view`, belongs to the n-th sent image."""
        return cls(view=view, members=torch.arange(len(view.smashed), device=view.smashed.device).unsqueeze(1))

    def row_of_each(self, images: int, asking: str) -> Tensor:
        """For each of N = `images` sent images, the index of its released row, int64 [N].

        Raises `NotApplicable` if a row belongs to several images, or if an image has no row or several rows; the error
        names the attack, `asking`.

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
    """The clients in training, as a malicious server uses them: the server answers their releases with any gradient."""

    def round(self, answer: Callable[[View], Tensor]) -> None:
        """Run one training round: clients send private images with labels, and learn from the gradient that `answer`
        computes from the server's view of the round. The gradient has the shape of the view's `smashed`."""

    def views(self) -> list[View]:
        """The views if the clients, in their present state, send the attacked images as often as in the recording."""

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizers and random states, from which a killed attack can be resumed."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The data that every adversary has when the attack starts; subclasses add the data for one kind of attack.

    Attributes:
        image_shape: shape of one private record, (C, H, W) for images; the model's architecture reveals it.
        batch_size: number ≥ 1 of records per round over all clients; the server sees this number.
        views: the recorded rounds. If the records are sent several times, all rounds of the first sending come first.
    """

    image_shape: tuple[int, ...]
    batch_size: int
    views: Sequence[View] = ()


@dataclass(frozen=True, kw_only=True)
class Scores:
    """One score per example, for yes-or-no questions (is the label 1? was the record a member?).

    Attributes:
        values: float [N], the scores of N examples; higher means "yes".
        examples: int64 [N], the released row (or queried example) to which each score belongs.
        of_labels: float [N, L], a score for each of L labels, higher for a likelier one; None if only one label is
            scored.
    """

    values: Tensor
    examples: Tensor
    of_labels: Tensor | None = None


class Session(Protocol):
    """Object to which a long attack reports progress and saves its state, so that a killed attack can be resumed."""

    def load(self) -> dict[str, Any] | None:
        """State of the last `save`, or None on a fresh start."""
        return None

    def save(self, state: dict[str, Any]) -> None:
        """Keep a `state` of tensors, numbers, strings, lists and dicts; a session may skip some saves to save time."""
        return

    def keep(self, state: dict[str, Any]) -> None:
        """Save a `state` at once, for example the last good one of a training that diverged."""
        return

    def report(self, done: int, total: int, value: float) -> None:
        """Report that `done` of `total` epochs are finished; `value` is the objective after epoch number `done`."""
        return

    def goes_on(self, epochs: int, curve: Sequence[float]) -> bool:
        """Whether a training of `epochs` epochs should be doubled, given its objective after each epoch (`curve`)."""
        return False


class NoSession(Session):
    """A session without storage and reports, the default for attacks run by hand."""


Value = TypeVar("Value")
Held = TypeVar("Held", bound=Observation, contravariant=True)
Output = TypeVar("Output", covariant=True)


@dataclass(frozen=True, kw_only=True)
class Mounting(Generic[Held, Output]):
    """An attack's declaration of the conditions under which an audit must run it.

    Control experiments test an attack: it must succeed on an easy release, and must fail on pure noise. `Held` is the
    class of the attack's observation, and `Output` is the class of its result.

    Attributes:
        passes: number ≥ 1 of times that the clients must send the attacked images.
        budget_share: factor ≥ 0; the attack's `epochs` are this factor times the audit's epochs for attacks. 0 if the
            attack sets `epochs`.
        start: the same attack without training and search; None if none exists, or if this attack is already untrained.
        control: function from the number of training steps in an epoch to the attack that replaces this one in control
            experiments; None if this attack runs there unchanged.
        control_side: largest side in pixels of the images in control experiments; None for unchanged images.
        ignores_views: whether the attack is a constant guess, which needs no control experiments.
        domains: kinds of records that the attack reconstructs, such as "images", or "any".
        undoes: the effects of a defense that the attack can undo: some of "maps" (a fixed function of a record),
            "scales" (each channel by its own factor), "masks", "mixes", "permutes" and "shortens", as defenses declare
            them. The experiment in which the attack must succeed includes a defense only if the attack undoes all
            effects of this defense.
        any_tokens: whether the attack also reads releases with dropped or merged tokens (`View.whole` is False).
        returns_auxiliary: whether every guess is one of the adversary's records. Control experiments then hide the
            attacked records among the adversary's.
        shadow_models: number ≥ 0 of shadow models that the attack trains.
        labeled: number ≥ 0 of records that the attack knows for each label. An attack that uses known labels and
            leaves this at 0 gets one record with the positive label in each round.
        gradients: for an attack on labels, whether it reads the returned gradients, and so needs a lower segment that
            is trained; other attacks keep the default.
        architecture_only: whether the attack uses only the architecture of a lower segment, and not the weights.
        short_of_published: why the attack is weaker than published, in a sentence; empty if it is not.
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
    """One attack: a frozen dataclass that declares its needs and its conditions (`mounting`), with a single method."""

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
        """Fields of the observation that make the attack stronger, but are not necessary."""

    @property
    def mounting(self) -> Mounting[Held, Output]:
        """The conditions under which the attack must run, as a `Mounting`."""

    def run(self, observation: Held, generator: Generator, session: Session | None = None) -> Output:
        """Run the attack on an observation. The same generator state gives the same bits on the same CPU.

        Args:
            observation: what the adversary has: the recorded rounds, the fields in `needs`, and any fields in `uses`.
            generator: a CPU generator, the only source of randomness.
            session: object that saves the state of a long attack and reports its progress; None for neither.

        Returns:
            The attack's output, in the form of its goal: a `Reconstruction` of the records, or `Scores` of examples.

        Raises:
            NotApplicable: if the attack cannot run on this observation; the error's text says why.
            AttackDiverged: if the attack's training ended in NaN or infinity; the last good state is kept.
        """


class ReconstructingAttack(Checked, Attack[Any, Any]):
    """Base of privkit's own attacks that reconstruct records, with the declarations that most of them share."""

    goal: ClassVar[str] = "reconstruct"
    uses: ClassVar[frozenset[str]] = frozenset()


class NamingAttack(Checked, Attack[Any, Any]):
    """Base of privkit's own attacks on labels, with the declarations that most of them share."""

    goal: ClassVar[str] = "labels"
    uses: ClassVar[frozenset[str]] = frozenset()


AnyAttack = Attack[Never, object]  # an attack on any goal, for code that mounts it and does not run it


def known_to(attack: AnyAttack) -> frozenset[str]:
    """Fields of the observation that an attack declares. An audit passes only these fields to the attack."""
    return attack.needs | attack.uses


def threat_model(attack: AnyAttack, held: Collection[str] | None = None) -> ThreatModel:
    """The threat model of an attack, derived from the data that it uses.

    The first line that applies decides:
    - "malicious": the attack takes over the training, or plants records in it (canaries);
    - "weights_and_many_passes": it needs the records sent several times, and the clients' weights;
    - "many_passes": it needs the records sent several times;
    - "weights": it knows the clients' weights;
    - "query": it queries the clients or the trained model;
    - "passive": all other attacks.

    `held` are the fields that the adversary has; None for all that the attack declares.
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
    """Return a field of an observation that `require` has checked. The type checker then knows that it is not None."""
    assert field is not None
    return field


def require(attack: AnyAttack, observation: Observation) -> None:
    """Raise `NotApplicable` if the observation lacks a field that the attack needs."""
    if missing := lacking(attack, observation):
        raise NotApplicable(f"{attack.name} needs {' and '.join(missing)}, which this adversary does not have")
