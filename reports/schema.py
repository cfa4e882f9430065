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
"""Version of the schema, raised if a record changes its fields. privkit 0.1 writes 9, and refuses other versions."""

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
    """The time for one attack on one defense with one seed: CPU seconds over all threads, or elapsed seconds with a
    GPU. Several such experiments may share a model and control experiments, whose time is spent only once."""

    training: float | None  # seconds of the model's training, evaluation and costs; None for a recording
    attack: float  # seconds after the training, without control experiments
    controls: float  # seconds of the attack's control experiments


class Check(Frozen):
    """A control experiment (a test with a known result) or another check: passed, failed, or undecided (None)."""

    name: str
    passed: bool | None
    detail: str  # the finding in a sentence
    decisive: bool
    """Whether the numbers are meaningless unless the check passes; the run then fails (exit code 1)."""


class Provenance(Frozen):
    """The origin of numbers: hashes and versions of everything that may change them. A run continues only if its
    provenance is unchanged, except for `noted`."""

    data: dict[str, str] = {}  # SHA-256 of ids, labels and records of each split of the data
    code: dict[str, str] = {}  # SHA-256 of the source of each module outside privkit
    files: dict[str, str] = {}  # SHA-256 of checkpoints, feature networks and files that a user's own code read
    packages: dict[str, str] = {}  # versions of privkit, Python and the libraries that compute
    machine: dict[str, str] = {}  # device and number of threads
    noted: dict[str, str] = {}  # commit, processor and operating system


class Tuned(Frozen):
    """The result of a search for the best options (fields) of an attack, on the adversary's own records only."""

    chosen: str  # the attack that was run, as text for `--attack`
    fields: tuple[str, ...]  # names of the searched fields
    metric: str  # name of the metric that was optimized
    given: float  # value of the metric with the fields that the user gave
    best: float  # value of the metric with the chosen fields
    trials: int  # number of trials
    failed: int  # number of trials without a result
    played: int  # number of the adversary's records that acted as attacked records in each trial
    own: int  # number of the adversary's other records, which trained the attack
    queries: int  # number of rounds of queries that the search sent

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
    """The result of one cell, i.e. one attack on one defense with one seed.

    An *alignment* says which record a guess is compared with: "unaligned": guess n with record n; "matched": guesses
    are assigned to the records of their message such that they fit best. A *floor* is a guess without the release, such
    as the mean image; "class_mean" uses the true labels. Among the floors, "zero_steps" is an exception: the attack's
    own guesses before any training.

    Two rows are equal if all fields except `seconds` are equal.
    """

    schema_version: Literal[9] = 9
    cell: str  # the cell's id
    status: Status  # whether the cell has a result
    reason: str = ""  # why there is no number; empty if there is one
    defense: str
    attack: str
    dataset: str
    model: str
    protocol: str
    partition: str
    seed: int
    # names of everything that the adversary may hold besides the release, by `privkit.attacks.base.known_to`
    knowledge: tuple[str, ...] = ()
    # one of `privkit.shared.threat_models`, by the adversary's abilities in this run; empty in older rows
    threat_model: str = ""
    # phrases on the cut of the network, on layers after the defense, and on the passes of records; empty in older rows
    arrangement: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()  # parts of a split release that the adversary holds
    auxiliary: str  # source of the adversary's own records
    attacked: str  # the attacked records: "private" or "test"
    records: str = "images"  # plural noun of the dataset's records
    # number of records in each split of the data; without a class mean, also the number of labels of attacked records
    counts: dict[str, int] = {}
    batch_size: int
    data_range: float = 1.0  # largest minus smallest value of a pixel
    tuned: Tuned | None = None  # the search for the attack's fields; None without a search
    feature_networks: tuple[str, ...] = ()  # networks behind F-SIM, identification and LPIPS, and the user's metrics
    accuracy: Interval | None = None  # accuracy of the task, on the test records
    task: dict[str, Interval] = {}  # MCC and AUC, on the test records, and accuracies of the last and the best epoch
    certificate: Certificate | None = None  # the proven or declared claim; None if the result has no claim
    limits: Limits | None = None  # limits that the proven trade-off curve sets to any attack on the covered data
    recovered: dict[str, Metrics] = {}  # alignment -> metric -> value
    floors: dict[str, dict[str, Metrics]] = {}  # floor -> alignment -> metric -> value
    # floor -> metric -> mean over records of the floor's error minus the attack's error; empty in older rows
    ahead: dict[str, Metrics] = {}
    answers: dict[str, Interval] = {}  # scores ("auc" and so on) of attacks on labels, members, canaries or an order
    queries: int | None = None  # number of rounds in which the attack sent its own records through the clients
    # lower bound on ε from canaries, compared with the claim on the same release
    empirical_bound: EmpiricalBound | None = None
    doubt: str = ""  # why a failure of this attack would not show that the defense holds; empty in older rows
    notes: tuple[str, ...] = ()  # sentences on the numbers
    checks: tuple[Check, ...] = ()  # control experiments and other checks
    costs: Costs | None = None  # bytes, operations and memory of one client
    training_curve: tuple[float, ...] = ()  # training loss of each epoch
    validation_curve: tuple[dict[str, float], ...] = ()  # accuracy, MCC and AUC of each epoch
    best_epoch: int | None = None  # the best epoch on validation records, counted from 1
    kept: Literal["last", "best"] = "last"  # the epoch whose model is attacked
    auc_curve: tuple[Interval, ...] = ()  # AUC of the attack after each epoch; empty if it ran only once
    attack_curve: tuple[float, ...] = ()  # the attack's own objective, by epoch
    seconds: Seconds | None = None  # time of the row; None in older rows
    files: dict[str, str] = {}  # SHA-256 of the other files of this row, by name
    provenance: Provenance = Provenance()  # origin of the numbers

    def __eq__(self, other: object) -> bool:
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
    """Means over several seeds, of one attack on one defense, or of a guess without the release that `floor` names.

    `protocol` is set only if this guess differs between protocols. `values` maps each measure to the mean of the seeds'
    means, with its interval: the accuracy, the measures that compare guess n with record n, and the likeness after
    guesses are matched to records.
    """

    defense: str
    attack: str
    floor: str = ""
    protocol: str = ""
    seeds: tuple[int, ...]
    values: dict[str, Interval]


class PlannedCell(Frozen):
    """One planned cell (one attack on one defense with one seed), with its id and the id of the model that it attacks.
    Some cells attack the undefended model, and are needed only if the same attack fails on a defense. For such a cell,
    `twin_of` lists the ids of the cells that run the same attack on a defense; it is empty for all other cells."""

    cell: str
    model: str
    defense: str
    attack: str
    seed: int
    twin_of: tuple[str, ...] = ()


class Manifest(Frozen):
    """The configuration of a run folder, and its cells (one attack on one defense with one seed each) in order.
    `config` holds only the settings that change a result. `settings` holds the settings of the last command, as the
    user wrote them. The provenance of numbers is stored with the result rows and models."""

    schema_version: Literal[9] = 9
    privkit: str  # privkit's version
    created: str  # time of creation
    argv: tuple[str, ...]  # the command
    config: dict[str, object]
    settings: dict[str, object] = {}
    fingerprint: str  # hash of the configuration
    threads: int  # number of CPU threads
    seeds: tuple[int, ...]
    cells: tuple[PlannedCell, ...]
