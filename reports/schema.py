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
    """A metric over the attacked records: its mean with limits, as in `Interval`, its worst case and its direction.

    Attributes:
        worst: value of the record that the attack recovered best.
        higher_is_closer: whether a larger value means a better reconstruction.
    """

    worst: float
    higher_is_closer: bool


Metrics = dict[str, Metric]


class Seconds(Frozen):
    """The time for one attack on one defense with one seed: CPU seconds over all threads, or elapsed seconds with a
    GPU. Several such experiments may share a model and control experiments, whose time is spent only once."""

    training: float | None  # seconds of the model's training, evaluation and costs; None for a recording
    attack: float  # seconds after the training, without control experiments
    controls: float  # seconds of the attack's control experiments


class Check(Frozen):
    """A control experiment (a test with a known result) or another check of a result row.

    Attributes:
        name: name of the check, such as "wins_through_the_defense".
        passed: whether the check passed; None if it is undecided, for example since it could not be run.
        detail: the finding in a sentence.
        decisive: whether the numbers are meaningless if the check does not pass; the run then fails (exit code 1).
    """

    name: str
    passed: bool | None
    detail: str
    decisive: bool


class Provenance(Frozen):
    """The origin of numbers: hashes and versions of everything that may change them. A run continues only if its
    provenance is unchanged, except for `noted`.

    Attributes:
        data: SHA-256 of ids, labels and records of each split of the data.
        code: SHA-256 of the source of each module outside privkit.
        files: SHA-256 of checkpoints, feature networks and files that a user's own code read.
        packages: versions of privkit, Python and the libraries that compute.
        machine: device, number of threads and, if several processes are joined, their number.
        noted: commit, processor and operating system.
    """

    data: dict[str, str] = {}
    code: dict[str, str] = {}
    files: dict[str, str] = {}
    packages: dict[str, str] = {}
    machine: dict[str, str] = {}
    noted: dict[str, str] = {}


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

    An *alignment* says which record a guess is compared with. With "unaligned", guess n is compared with record n. With
    "matched", guesses are assigned to the records of their message such that they fit best. A *floor* is a guess
    without the release, such as the mean image; "class_mean" uses the true labels. One floor, "zero_steps", is an
    exception: it has the attack's own guesses before any training. Parts, such as defenses, are named with their
    options, as on the command line.

    Two rows are equal if all fields except `seconds` are equal.

    Attributes:
        schema_version: version of the schema, `SCHEMA_VERSION`.
        cell: the cell's id: defense, attack, seed, and a hash of the settings that change its result.
        status: "done" if there is a result; "not_applicable" if the attack cannot be run here; "error" if it failed.
        reason: why there is no number; empty if there is one.
        defense: the defense; "none" is the undefended model.
        attack: the attack.
        dataset: the dataset of the private records.
        model: the network that is split.
        protocol: how clients and server train together.
        partition: how the private records are divided among the clients.
        seed: the seed of all random numbers.
        knowledge: names of everything that the adversary may hold besides the release, by
            `privkit.attacks.base.known_to`.
        threat_model: one of `privkit.shared.threat_models`, by the adversary's abilities in this run; empty in older
            rows.
        arrangement: phrases on the cut of the network, on layers after the defense, and on the passes of records; empty
            in older rows.
        parts: parts of a split release that the adversary holds; empty if the release is not split.
        auxiliary: source of the adversary's own records.
        attacked: the attacked records: "private" or "test".
        records: plural noun of the dataset's records.
        counts: number of records in each split of the data; without a class mean, also the number of labels of attacked
            records.
        batch_size: number of records that a client sends in a round.
        data_range: largest minus smallest value of a pixel.
        tuned: the search for the attack's fields; None without a search.
        feature_networks: networks behind F-SIM, identification and LPIPS, and the user's metrics.
        accuracy: accuracy of the task on the test records; None if it was not measured.
        task: MCC and AUC on the test records, and accuracies of the last and the best epoch.
        certificate: the proven or declared claim; None if the result has no claim.
        limits: limits that the claim's trade-off curve sets to any attack on the covered data; None if there are none.
        recovered: alignment -> metric -> value; empty if the attack guesses no records.
        floors: floor -> alignment -> metric -> value.
        ahead: floor -> metric -> mean over records of the floor's error minus the attack's error; empty in older rows.
        answers: scores ("auc" and so on) of attacks on labels, members, canaries or an order.
        queries: number of rounds in which the attack sent its own records through the clients; None if the attack has
            no access to the clients.
        empirical_bound: lower bound on ε from canaries, compared with the claim on the same release; None without
            canaries.
        doubt: why a failure of this attack would not show that the defense holds; empty if there is no such reason, and
            in older rows.
        notes: sentences on the numbers.
        checks: control experiments and other checks.
        costs: bytes, operations and memory of one client; None if they were not counted.
        training_curve: training loss of each epoch.
        validation_curve: accuracy, MCC and AUC of each epoch on the records that choose the best epoch.
        best_epoch: the epoch with the best score in `validation_curve`, counted from 1; None without such records.
        kept: the epoch whose model is attacked: the "last", the "best" on validation records, or "best_test", the best
            on the test records themselves.
        auc_curve: AUC of the attack after each epoch; empty if it ran only once.
        attack_curve: the attack's own objective, by epoch.
        seconds: time of the row; None in older rows, and if worker processes ended without a result.
        files: SHA-256 of the other files of this row, by name.
        provenance: origin of the numbers.
    """

    schema_version: Literal[9] = 9
    cell: str
    status: Status
    reason: str = ""
    defense: str
    attack: str
    dataset: str
    model: str
    protocol: str
    partition: str
    seed: int
    knowledge: tuple[str, ...] = ()
    threat_model: str = ""
    arrangement: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    auxiliary: str
    attacked: str
    records: str = "images"
    counts: dict[str, int] = {}
    batch_size: int
    data_range: float = 1.0
    tuned: Tuned | None = None
    feature_networks: tuple[str, ...] = ()
    accuracy: Interval | None = None
    task: dict[str, Interval] = {}
    certificate: Certificate | None = None
    limits: Limits | None = None
    recovered: dict[str, Metrics] = {}
    floors: dict[str, dict[str, Metrics]] = {}
    ahead: dict[str, Metrics] = {}
    answers: dict[str, Interval] = {}
    queries: int | None = None
    empirical_bound: EmpiricalBound | None = None
    doubt: str = ""
    notes: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    costs: Costs | None = None
    training_curve: tuple[float, ...] = ()
    validation_curve: tuple[dict[str, float], ...] = ()
    best_epoch: int | None = None
    kept: Literal["last", "best", "best_test"] = "last"
    auc_curve: tuple[Interval, ...] = ()
    attack_curve: tuple[float, ...] = ()
    seconds: Seconds | None = None
    files: dict[str, str] = {}
    provenance: Provenance = Provenance()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Row):
            return NotImplemented
        return {**self.__dict__, "seconds": None} == {**other.__dict__, "seconds": None}

    @property
    def remark(self) -> str:
        """A warning if a claimed ε is finite, but proves nothing of use (`limits.of_use`); empty otherwise."""
        found = self.certificate
        if found is None or found.kind != "differential_privacy" or not found.sound or isinf(found.epsilon):
            return ""
        return "" if of_use(found.epsilon, found.delta or 0.0, self.limits) else NO_USE

    @property
    def caveats(self) -> list[str]:
        """Sentences on the checks that failed or are undecided."""
        return [check.detail for check in self.checks if not check.passed]


class Summary(Frozen):
    """Means over several seeds, of one attack on one defense, or of a guess without the release (a floor).

    Attributes:
        defense: the defense; empty for a floor other than the untrained attack.
        attack: the attack; empty if `defense` is empty.
        floor: name of the floor; empty for an attack.
        protocol: the protocol, if a floor differs between protocols; otherwise empty.
        seeds: the seeds, at least two.
        values: measure -> mean of the seeds' means, with its interval over seeds: the accuracy, the measures that
            compare guess n with record n, the likeness after guesses are matched to records, and the scores of attacks
            that return scores.
    """

    defense: str
    attack: str
    floor: str = ""
    protocol: str = ""
    seeds: tuple[int, ...]
    values: dict[str, Interval]


class PlannedCell(Frozen):
    """One planned cell (one attack on one defense with one seed).

    Attributes:
        cell: the cell's id.
        model: id of the defended model that the cell attacks.
        defense: the defense; "none" is the undefended model.
        attack: the attack.
        seed: the seed of all random numbers.
        twin_of: ids of the cells that run the same attack on defenses, if this cell is on the undefended model, and
            needed only if the attack fails in one of them. Empty for all other cells.
    """

    cell: str
    model: str
    defense: str
    attack: str
    seed: int
    twin_of: tuple[str, ...] = ()


class Manifest(Frozen):
    """The configuration of a run folder, and its cells. The provenance of numbers is stored with rows and models.

    Attributes:
        schema_version: version of the schema, `SCHEMA_VERSION`.
        privkit: privkit's version.
        created: time of creation.
        argv: the command, word by word.
        config: the settings that change a result.
        settings: the settings of the last command, as the user wrote them.
        fingerprint: hash of `config`, 12 hexadecimal digits.
        threads: number of CPU threads.
        seeds: the seeds of the run.
        cells: the planned cells (one attack on one defense with one seed each), in order.
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
