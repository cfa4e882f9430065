"""The schema of results: one self-describing JSON row for each attack on one defense with one seed."""

from __future__ import annotations

from dataclasses import dataclass
from math import isinf
from typing import Literal

from pydantic import BaseModel, ConfigDict

from privkit.shared.certificate import Certificate
from privkit.shared.costs import Costs
from privkit.shared.empirical_bound import EmpiricalBound
from privkit.shared.interval import Interval
from privkit.shared.limits import NO_USE, Limits, of_use

SCHEMA_VERSION = 9
"""Raised whenever a record changes its fields. Version 0.1 writes 9; other builds wrote others, which are refused."""

Status = Literal["done", "not_applicable", "error"]


class Frozen(BaseModel):
    """An immutable record that rejects unknown keys. Infinities are strings, because JSON has no such numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


@dataclass(frozen=True, kw_only=True)
class Metric(Interval):
    """A metric over the attacked records: its mean with limits, its worst case and its direction."""

    worst: float  # value of the record that the attack recovered best
    higher_is_closer: bool  # whether a larger value means a better reconstruction


Metrics = dict[str, Metric]


class Seconds(Frozen):
    """The time for one attack on one defense with one seed: CPU seconds over all threads; elapsed with a GPU.

    Several such experiments may share a model and an attack's control experiments, whose time is spent only once.
    """

    training: float | None  # seconds of the model's training, evaluation and costs; None for a recording
    attack: float  # seconds of everything after the training except the control experiments
    controls: float  # seconds of the attack's control experiments


class Check(Frozen):
    """A control experiment or another check of a result: passed, failed, or None if it is undecided."""

    name: str
    passed: bool | None
    detail: str
    decisive: bool
    """A decisive check that does not pass makes the numbers meaningless and the run fail (exit code 1)."""


class Provenance(Frozen):
    """The provenance of numbers. A run continues only if its provenance is unchanged, except for `noted`.

    `data`: SHA-256 of ids, labels and records of each part of the data. `code`: SHA-256 of the source of each module
    outside privkit. `files`: SHA-256 of checkpoints, feature networks and files that a user's own code read.
    `packages`: versions of privkit, Python and the libraries that compute. `machine`: device and threads. `noted`:
    commit, processor and system, which may change.
    """

    data: dict[str, str] = {}
    code: dict[str, str] = {}
    files: dict[str, str] = {}
    packages: dict[str, str] = {}
    machine: dict[str, str] = {}
    noted: dict[str, str] = {}


class Tuned(Frozen):
    """The choice of an attack's fields, on the adversary's records only.

    `fields` were searched in `trials`, of which `failed` gave no number. In each trial, `played` of the adversary's
    records acted as attacked records, and the `own` others trained the attack. `given` is the metric of the attack
    as given, `best` that of the `chosen` fields. `queries` is the number of rounds that the search sent.
    """

    chosen: str  # the attack that was mounted, as `--attack` takes it
    fields: tuple[str, ...]
    metric: str
    given: float
    best: float
    trials: int
    failed: int
    played: int
    own: int
    queries: int

    @property
    def sentence(self) -> str:
        """A sentence on what was tuned, on which records, and with what result."""
        failed = f", {self.failed} of them without a result" if self.failed else ""
        return (
            f"tuned {', '.join(self.fields)} in {self.trials} trials{failed} on the adversary's own records alone, "
            f"{self.played} of them as victims and {self.own} as its own; {self.metric} was {self.given:.4f} as given "
            f"and is {self.best:.4f} with {self.chosen}"
        )


class Row(Frozen):
    """The result of one cell: one attack on one defense with one seed.

    `recovered` and `floors` are keyed by alignment ("unaligned": guess n against record n; "matched": the best
    assignment of guesses to images inside each message). The first key of `floors` names a guess without the release;
    "class_mean" uses the true labels, and "zero_steps" is not such a guess but the untrained attack. `ahead` is the
    mean difference between the attack and each floor, paired by record. `answers` has the scores ("auc" and so on)
    of attacks on labels, members, canaries or an order. `notes` are sentences on the numbers, `provenance` is their
    origin. Rows are compared without `seconds`, which differ from run to run.
    """

    schema_version: Literal[9] = 9
    cell: str
    status: Status
    reason: str = ""  # why there is no number, if there is none
    defense: str
    attack: str
    dataset: str
    model: str
    protocol: str
    partition: str
    seed: int
    # what the adversary may hold beside the release, by `privkit.attacks.base.known_to`
    knowledge: tuple[str, ...] = ()
    # one of `privkit.shared.threat_models`, by what the adversary really had; empty in older rows
    threat_model: str = ""
    # where the network is cut, what follows the defense, how often records cross; empty if older
    arrangement: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()  # parts of a split release that the adversary holds
    auxiliary: str  # where the adversary's own records come from
    attacked: str  # which records are attacked
    records: str = "images"  # what the dataset holds
    counts: dict[str, int] = {}  # records of each part; without a class mean, also labels of victims
    batch_size: int
    data_range: float = 1.0  # largest minus smallest value of a pixel
    tuned: Tuned | None = None  # how the attack's fields were chosen, if they were tuned
    feature_networks: tuple[str, ...] = ()  # networks behind F-SIM, identification and LPIPS, and own metrics
    accuracy: Interval | None = None  # accuracy of the task, on the test records
    task: dict[str, Interval] = {}  # MCC and AUC, on the test records, and accuracies of the last and the best epoch
    certificate: Certificate | None = None  # what is proven or declared
    limits: Limits | None = None  # limits that the proven trade-off curve sets to any attack on the covered data
    recovered: dict[str, Metrics] = {}  # alignment -> metric -> value
    floors: dict[str, dict[str, Metrics]] = {}  # guess -> alignment -> metric -> value
    # guess -> metric -> how much closer the attack came to each record; empty in older rows
    ahead: dict[str, Metrics] = {}
    answers: dict[str, Interval] = {}
    queries: int | None = None  # rounds of own images that the attack sent through the defended clients
    # lower bound on ε from canaries, beside the claim on the same release
    empirical_bound: EmpiricalBound | None = None
    doubt: str = ""  # why it does not show that the defense holds, if the attack fails; empty in older rows
    notes: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    costs: Costs | None = None
    training_curve: tuple[float, ...] = ()  # training loss of each epoch
    validation_curve: tuple[dict[str, float], ...] = ()  # accuracy, MCC and AUC of each epoch
    best_epoch: int | None = None  # the best epoch on validation records, counted from 1
    kept: Literal["last", "best"] = "last"  # which epoch's model the row is about
    auc_curve: tuple[Interval, ...] = ()  # AUC of each epoch of training, if the attack was asked in each
    attack_curve: tuple[float, ...] = ()  # the attack's own objective, by epoch
    seconds: Seconds | None = None  # time of the row; None in older rows
    files: dict[str, str] = {}  # SHA-256 of the files beside the row's own
    provenance: Provenance = Provenance()

    def __eq__(self, other: object) -> bool:
        """Whether all fields but `seconds` are equal."""
        if not isinstance(other, Row):
            return NotImplemented
        return {**self.__dict__, "seconds": None} == {**other.__dict__, "seconds": None}

    @property
    def remark(self) -> str:
        """A warning if a claimed ε is finite but too large to rule out any attack of interest; empty otherwise."""
        found = self.certificate
        if found is None or found.kind != "differential_privacy" or not found.sound or isinf(found.epsilon):
            return ""
        return "" if of_use(found.epsilon, found.delta or 0.0, self.limits) else NO_USE

    @property
    def caveats(self) -> list[str]:
        """Sentences on the checks that failed or are undecided."""
        return [check.detail for check in self.checks if not check.passed]


class Summary(Frozen):
    """The summary over several seeds of one attack on one defense, or of the guess that `floor` names.

    `protocol` is set if `floor` differs between protocols; otherwise it is empty. `values` has accuracy and the
    measures of guesses (unaligned, and the likeness after matching): the mean of the seeds' means, with its
    interval.
    """

    defense: str
    attack: str
    floor: str = ""
    protocol: str = ""
    seeds: tuple[int, ...]
    values: dict[str, Interval]


class PlannedCell(Frozen):
    """One planned cell (one attack on one defense with one seed), with its id and the id of its model.

    Some cells attack the undefended model only if the same attack fails on a defense. Then `twin_of` has the ids of
    the cells with this attack on defenses; otherwise it is empty.
    """

    cell: str
    model: str
    defense: str
    attack: str
    seed: int
    twin_of: tuple[str, ...] = ()


class Manifest(Frozen):
    """The configuration of a run folder, and the cells (attack, defense and seed) to compute, in order.

    The provenance of numbers is stored with result rows and models. `settings` are the settings of the last command, as
    the user wrote them. The configuration holds only the settings that change a result.
    """

    schema_version: Literal[9] = 9
    privkit: str
    created: str
    argv: tuple[str, ...]
    config: dict[str, object]
    settings: dict[str, object] = {}
    fingerprint: str
    threads: int
    seeds: tuple[int, ...]
    cells: tuple[PlannedCell, ...]
