"""The results schema: one row a finished cell, self-describing, JSON round-trip."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION = 5
"""Raised whenever a row or a manifest of before can no longer be read: 5 gave records checksums and provenance."""

Status = Literal["done", "not_applicable", "error"]


class Frozen(BaseModel):
    """Immutable, strict about unknown keys; infinities travel as strings, because JSON has none."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Interval(Frozen):
    """A value with its confidence interval over `n` images or seeds."""

    value: float
    low: float
    high: float
    n: int
    confidence: float = 0.95


class Estimate(Frozen):
    """A metric over the attacked images.

    `worst` is the image that the attack recovered best. `higher_is_closer` states the direction: whether a larger
    value means a better reconstruction.
    """

    mean: float
    low: float
    high: float
    worst: float
    higher_is_closer: bool
    n: int
    confidence: float = 0.95


Metrics = dict[str, Estimate]


class Proof(Frozen):
    """What is proven; mirrors an accountant's certificate."""

    kind: Literal["nothing", "permutation_count", "differential_privacy"]
    statement: str
    epsilon: float
    delta: float | None
    lower: float | None
    method: str
    order: float | None
    at_grid_edge: bool
    relation: Literal["replace_one", "add_or_remove_one"] | None
    unit: Literal["record", "client"] | None
    covers: Literal["release", "labels"]
    sound: bool
    objection: str
    quantities: dict[str, float]
    assumptions: tuple[str, ...]
    source: str
    versions: dict[str, str]


class Costs(Frozen):
    """Costs of one client: bytes an image (smashed data up, gradient down) and a round (averaged weights, masks' seed),
    multiply-accumulates an image, and peak memory in bytes for training on one batch."""

    bytes_up: float
    bytes_down: float
    bytes_up_model: float
    bytes_down_model: float
    bytes_seed: int
    client_macs: int
    client_training_macs: int
    client_parameters: int
    peak_memory: int


class Check(Frozen):
    """One sanity gate of an attack: passed, failed, or None where it could not be judged."""

    name: str
    passed: bool | None
    detail: str
    decisive: bool
    """A decisive gate that does not pass makes the numbers meaningless and the run fail (exit code 1)."""


class Empirical(Frozen):
    """What one run of canaries shows of ε, beside what is claimed of the same release (infinite: nothing is).

    `ceiling` is the most that so many canaries could have shown: a claim that is not below it was not put to a test.
    """

    claimed: float
    epsilon: float
    delta: float
    confidence: float
    canaries: int
    inserted: int
    ceiling: float | None = None
    statement: str


class Provenance(Frozen):
    """What numbers are made of. A run folder goes on only where all of it but `noted` is as it was.

    `data`: part of the images -> SHA-256 of ids, labels and pixels. `code`: module outside privkit -> SHA-256 of its
    source. `files`: checkpoints and feature networks -> their content. `packages`: privkit, Python and the libraries
    that compute -> version. `machine`: device and threads. `noted`: commit, processor and system, which may change.
    """

    data: dict[str, str] = {}
    code: dict[str, str] = {}
    files: dict[str, str] = {}
    packages: dict[str, str] = {}
    machine: dict[str, str] = {}
    noted: dict[str, str] = {}


class Row(Frozen):
    """One cell: one defense, one attack, one seed.

    `recovers` and `floors` are keyed by alignment ("unaligned": guess n against image n; "matched": the best
    assignment of guesses to images inside each message), `floors` by floor first; its "zero_steps" is the attack's
    start, no floor. `answers` are of attacks that ask for labels, members, canaries or an order ("auc" and so on);
    `notes` are sentences beside the numbers; `knows` is what the adversary may hold beside the release, by the names of
    `privkit.attacks.base.Knowledge`; `parts` are the parts of a release that it holds, if the defense
    splits one; `files` are the SHA-256 of the files that lie beside the row's own, and
    `provenance` is what the numbers are made of.
    """

    schema_version: Literal[5] = 5
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
    knows: tuple[str, ...] = ()
    parts: Annotated[tuple[str, ...], Field(description="parts of a split release that the adversary holds")] = ()
    auxiliary: str
    victims: str
    records: Annotated[str, Field(description="what the dataset holds")] = "images"
    images: Annotated[dict[str, int], Field(description="number of private, auxiliary, test and victim images")] = {}
    batch_size: int
    data_range: float = 1.0
    features: Annotated[tuple[str, ...], Field(description="networks behind F-SIM, identification and LPIPS")] = ()
    accuracy: Interval | None = None
    task: Annotated[dict[str, float], Field(description="MCC and AUC on the test images")] = {}
    proves: Proof | None = None
    recovers: dict[str, Metrics] = {}
    floors: dict[str, dict[str, Metrics]] = {}
    answers: dict[str, Interval] = {}
    empirical: Empirical | None = None
    notes: tuple[str, ...] = ()
    gates: tuple[Check, ...] = ()
    costs: Costs | None = None
    training_curve: tuple[float, ...] = ()
    validation: Annotated[tuple[dict[str, float], ...], Field(description="accuracy, MCC and AUC of each epoch")] = ()
    best_epoch: Annotated[int | None, Field(description="the best on validation images, counted from 1")] = None
    kept: Annotated[Literal["last", "best"], Field(description="which epoch's model the row is about")] = "last"
    attack_curve: tuple[float, ...] = ()
    files: dict[str, str] = {}
    provenance: Provenance = Provenance()

    @property
    def caveats(self) -> list[str]:
        """Gates that did not pass, in words."""
        return [gate.detail for gate in self.gates if not gate.passed]


class Summary(Frozen):
    """One defense under one attack over several seeds, or (where `floor` names it) a floor or its start.

    `values` holds accuracy and the image metrics (unaligned, and `matched_ssim`): the mean of the seeds' means with
    its interval over seeds.
    """

    defense: str
    attack: str
    floor: str = ""
    seeds: tuple[int, ...]
    values: dict[str, Interval]


class PlannedCell(Frozen):
    """One cell that a run is to finish: its id, its model's, and what it is."""

    cell: str
    model: str
    defense: str
    attack: str
    seed: int


class Manifest(Frozen):
    """Which run a folder holds, and the cells that it is to finish, in their order.

    What its numbers are made of stands in its rows and models.
    """

    schema_version: Literal[5] = 5
    privkit: str
    created: str
    argv: tuple[str, ...]
    config: dict[str, object]
    fingerprint: str
    threads: int
    seeds: tuple[int, ...]
    cells: tuple[PlannedCell, ...]
