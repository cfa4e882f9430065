"""The configuration of an audit: everything that a run depends on, frozen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal

from privkit.attacks.query_rules import ANY_QUERIES, QueryRules
from privkit.parts.registry import Component
from privkit.settings.budgets import Budget, Tuning
from privkit.settings.table import ExecutionSettings

if TYPE_CHECKING:
    from privkit.metrics.own import ImageMetric
    from privkit.recording.read import Recording
    from privkit.reports.gate import Gate
    from privkit.settings.pairing import Part
    from privkit.settings.quick_attacks import Chosen
    from privkit.training.spec import TrainingSpec


_OPTIONAL = ("automatic", "metrics", "parts", "queries", "tune", "escalate", "also")
"""Fields that are left out if empty, so that a configuration keeps its fingerprint from earlier versions."""
_SILENT = ("gates", "recording", "settings", "remarks")
"""Fields that change no result, besides the settings of execution; all other fields are in the fingerprint."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """The dataset, model, defenses and protocols of a run, from names that a user gave or from a recording."""

    dataset: Component  # the private dataset
    model: Component  # the network that is split
    pairs: Sequence[Part]  # each protocol with its defenses
    training: Mapping[str, Any]  # options of the training
    recording: Recording | None = None  # a recording that replaces the training; None to train
    chosen: Callable[[], Chosen] | None = None  # chooses the attacks of `auto`; None if they follow from the defense


def distinct(components: Iterable[Component]) -> tuple[Component, ...]:
    """Components without repetitions; texts that name the same component count as one."""
    found: dict[str, Component] = {}
    for component in components:
        found.setdefault(json.dumps(component.to_json(), sort_keys=True, default=str), component)
    return tuple(found.values())


@dataclass(frozen=True, kw_only=True)
class AuditConfig(ExecutionSettings):
    """Holds the checked settings of an audit run.

    The class inherits the settings of execution, such as `device` and `threads`, which change no result; their meanings
    are `privkit.settings.table.SETTINGS[name].help`. A component is a registered or imported object, such as a defense,
    with its options.

    Attributes:
        defenses: the defenses to audit; the undefended baseline is added if it is not among them.
        attacks: the attacks on each defense; empty if all are in `automatic`.
        automatic: further attacks that `--attack auto` chooses for a defense, by the defense's label.
        dataset: the dataset of the private records.
        model: the network that is split between clients and server.
        protocol: how clients and server train together, as a `SplitProtocol`.
        partition: how the private records are divided among the clients.
        delta: the δ in (0, 1) at which every ε is given.
        seeds: the seeds; the whole run is repeated for each seed.
        budget: the numbers of records and epochs of training and attacks.
        training: optimizer, batch size and other options of the training.
        auxiliary: source of the adversary's images: "disjoint" (same distribution), "training" (the client's training
            images, the patch-shuffling paper's worst case), "candidates" (disjoint images and the attacked ones) or
            another dataset, by its label.
        other: this other dataset; None for the three sources above.
        victims: the attacked images: "private" or "test". None means "test" with auxiliary="training", as in the paper,
            and otherwise "private".
        features: networks that measure how similar guesses are to true images, such as "embedded" or "lpips:alex".
        metrics: the user's own metrics of images.
        held: names of the parts of a split release that the adversary holds; empty for all parts.
        queries: limits on the adversary's queries, i.e. own images sent through the defended clients.
        tune: settings for tuning attacks on the adversary's own records; None keeps attacks as given.
        escalate: how often ≥ 0 a failed attack that may still improve continues with twice the work.
        gates: the user's pass/fail conditions on results, such as "ssim<=0.4".
        recording: a recording of a training, which replaces the training; None to train.
        settings: the settings from which `privkit.settings.resolve.resolve` made this configuration, as JSON; empty
            without `resolve`.
        also: the configurations of this run for defenses under other protocols, one for each protocol; see the property
            `parts`.
        remarks: label of a defense -> a sentence that says that `auto` has no measurements of this defense.
    """

    defenses: tuple[Component, ...]
    attacks: tuple[Component, ...]
    automatic: Mapping[str, tuple[Component, ...]] = field(default_factory=dict)
    dataset: Component
    model: Component
    protocol: Component
    partition: Component
    delta: float = 1e-5
    seeds: tuple[int, ...] = (0,)
    budget: Budget
    training: TrainingSpec
    auxiliary: str = "disjoint"
    other: Component | None = None
    victims: Literal["private", "test"] | None = None
    features: tuple[str, ...] = ()
    metrics: tuple[Component, ...] = ()
    held: tuple[str, ...] = ()
    queries: QueryRules = ANY_QUERIES
    tune: Tuning | None = None
    escalate: int = 0
    gates: tuple[Gate, ...] = ()
    recording: Recording | None = None
    settings: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    also: tuple[AuditConfig, ...] = ()
    remarks: Mapping[str, str] = field(default_factory=dict)

    def attacks_on(self, defense: Component) -> tuple[Component, ...]:
        """List the attacks on `defense`, one of the run's defenses, without repetitions: first the attacks of
        `--attack auto`, then the others.
        """
        return distinct((*self.automatic.get(defense.label, ()), *self.attacks))

    @property
    def every_attack(self) -> tuple[Component, ...]:
        """List the attacks on all defenses, without repetitions."""
        return distinct(attack for defense in self.defenses for attack in self.attacks_on(defense))

    @property
    def parts(self) -> tuple[AuditConfig, ...]:
        """List the configurations of this run, one for each protocol: this one, whose `defenses` are trained under its
        own `protocol`, then those in `also`.
        """
        return (self, *self.also)

    @property
    def own_metrics(self) -> dict[str, ImageMetric]:
        """Return the user's own metrics: label -> metric object."""
        return {metric.label: metric.spec for metric in self.metrics}

    @property
    def attacked(self) -> Literal["private", "test"]:
        """Return which images are attacked, "private" or "test", also if `victims` is None."""
        return self.victims or ("test" if self.auxiliary == "training" else "private")

    def answers(self) -> dict[str, Any]:
        """Return the fields that can change a result, as JSON values, under their names in the run's manifest."""
        silent = {*_SILENT, *(each.name for each in fields(ExecutionSettings))}
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in silent}
        own |= {"victims": self.attacked, "queries": None if self.queries == ANY_QUERIES else self.queries}
        found = {"parts" if name == "held" else name: _as_json(value) for name, value in own.items()}
        return {name: value for name, value in found.items() if value or name not in _OPTIONAL}

    @property
    def fingerprint(self) -> str:
        """Hash the fields that can change a result, as 12 hexadecimal digits; a run folder belongs to one such hash."""
        return hashlib.sha256(json.dumps(self.answers(), sort_keys=True).encode()).hexdigest()[:12]


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_as_json(part) for part in value]
    if isinstance(value, Mapping):
        return {name: _as_json(part) for name, part in value.items()}
    if isinstance(value, AuditConfig):
        return value.answers()
    if isinstance(value, Component):
        return value.to_json()
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
