"""What every goal starts from: the recorded messages, the adversary's knowledge, and the result row so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from torch import Generator, Tensor, nn

from privkit.attacks.base import AnyAttack, NotApplicable, Query, Scores, TrainingClients
from privkit.attacks.goals.control import Control
from privkit.attacks.goals.control_clients import Defended
from privkit.attacks.scores.leak import advantage, per_batch_auc, pooled_auc, tpr_at
from privkit.audit.goals.control_clients import defense_of
from privkit.audit.seed_data import SeedData
from privkit.domains.base import several
from privkit.domains.domain import Domain
from privkit.errors import DamagedFile
from privkit.files.arrays import write_arrays
from privkit.reports.schema import Check, Row, Seconds
from privkit.run.folder import RunFolder
from privkit.run.plan import Cell
from privkit.run.progress import Progress
from privkit.run.provenance import Ingredients
from privkit.run.records import SCORES
from privkit.settings.config import AuditConfig
from privkit.shared.certificate import Certificate
from privkit.shared.interval import Interval
from privkit.shared.measures import KINDS
from privkit.shared.seeds import derive
from privkit.training import Checkpoint, Clients
from privkit.wire.channel import RecordedRounds, black_box_query, holds_all, public_block, shared_lower
from privkit.wire.hijack import imitated
from privkit.wire.transcript import Transcript

ATTACK_CHECKPOINT = "attack.ckpt"  # file in a cell's folder while its attack runs

_FALSE_POSITIVES = 0.01  # the false positive rate at which true positives are counted
_REVERSED = "of the reversed scores, since the whole interval of the AUC lies below 1/2"
"""End of a rate's `method` if low scores mark positive examples."""


@dataclass(kw_only=True)
class Spent:
    """A stopwatch for one result of an audit: the seconds of training, attack and control experiments.

    >>> times = iter([0.0, 5.0, 6.0, 8.0, 9.0])
    >>> spent = Spent(clock=lambda: next(times))
    >>> spent.trained(3.5)
    >>> with spent.controlling():
    ...     pass
    >>> spent.seconds
    Seconds(training=3.5, attack=2.0, controls=2.0)
    """

    clock: Callable[[], float]  # returns the time in seconds, as `privkit.torch_utils.clock`
    # seconds of training the model, even if another cell trained it; None for a recording
    training: float | None = None
    controls: float = 0.0  # seconds of the attack's control experiments, even if another cell ran them
    earlier: float = 0.0  # seconds of the attack before the run was interrupted
    _since: float = field(init=False)

    def __post_init__(self) -> None:
        self._since = self.clock()

    def trained(self, seconds: float) -> None:
        """Note the `seconds` that training the model took; later seconds belong to the attack."""
        self.training, self._since = seconds, self.clock()

    @contextmanager
    def controlling(self) -> Iterator[None]:
        """Context manager that counts its seconds as time of control experiments."""
        start = self.clock()
        yield
        seconds = self.clock() - start
        self.controls += seconds
        self._since += seconds

    def attacked(self) -> float:
        """Seconds of the attack in this process, without control experiments."""
        return self.clock() - self._since

    @property
    def seconds(self) -> Seconds:
        """The seconds of each stage, for the result row."""
        return Seconds(
            training=None if self.training is None else round(self.training, 3),
            attack=round(self.earlier + self.attacked(), 3),
            controls=round(self.controls, 3),
        )


@dataclass(frozen=True, kw_only=True)
class AttackContext:
    """What is given to one attack of an audit: the recorded messages, and the parts of the model that the adversary
    knows.

    A method that gives access to a part of the model returns None if the attack's adversary cannot know this part;
    subclasses for a trained model or a recording supply the parts.
    """

    config: AuditConfig  # the run's configuration
    cell: Cell  # the cell: one defense, attack and seed
    seed_data: SeedData  # what all cells of one seed share
    folder: RunFolder  # the run on disk
    progress: Progress  # displays the progress
    log: Callable[[str], None]  # the cell's log
    made_of: Ingredients  # provenance of the cell and of everything that it shares with other cells
    spent: Spent  # the stopwatch of this cell
    recording: RecordedRounds  # the messages of the attacked records, sent after training
    certificate: Certificate | None  # what is proven about the run's privacy; None if this is unknown
    row: Row  # a result with only the fields that do not depend on the attack's outcome

    @property
    def attack(self) -> AnyAttack:
        """The attack's specification."""
        attack: AnyAttack = self.cell.attack.spec
        return attack

    @property
    def round_size(self) -> int:
        """Number of records in one round, over all clients."""
        size: int = self.config.protocol.spec.active * self.config.training.batch_size
        return size

    def refuse(self) -> None:
        """Raise `NotApplicable` if the attack cannot be run on this model or recording."""

    def checks(self) -> tuple[Check, ...]:
        """Check whether measurements contradict the privacy claim, and whether the model learned its task."""
        return ()

    def notes(self) -> tuple[str, ...]:
        """Sentences about the model, and about knowledge of the attack that the privacy claim does not cover."""
        return ()

    def lacking(self) -> str:
        """Why the adversary lacks an input that the attack needs, as the end of a sentence; empty if unknown."""
        return ""

    def rounds(self) -> Transcript | None:
        """Recorded rounds of training with their labels; None if the training can be run again instead."""

    def label_shares(self) -> Tensor:
        """The share of each of L labels among the private records, [L]."""
        splits = self.seed_data.splits
        return splits.private.y.cpu().bincount(minlength=splits.classes) / len(splits.private)

    @property
    def _edge(self) -> Clients | None:
        """The defended clients; None if privkit does not know them."""
        return None

    def block(self) -> nn.Module | None:
        """The public block that clients run after the defense; None if unknown or absent, or if the adversary lacks
        parts of the release."""
        return None if self._edge is None else public_block(self._edge)

    def lower(self) -> nn.Module | None:
        """The lower segment that a white-box adversary knows; None if it is unknown or differs between clients."""
        return None if self._edge is None else shared_lower(self._edge)

    def upper(self) -> nn.Module | None:
        """The server's segment; None if the adversary does not know it."""

    def predicts_texts(self) -> bool:
        """Whether clients learn to predict the next token of their texts; always False for a recording."""
        return False

    def beside_the_release(self) -> str:
        """A sentence if the server also received other data on the records, which attacks on the release ignore; else
        empty."""
        return ""

    def keeps_labels(self) -> bool:
        """Whether clients keep their labels, as in a U-shape. If so, the server runs the attacks on labels."""
        return False

    def upper_history(self) -> list[nn.Module] | None:
        """Copies of the server's segment during its training, the oldest first; None if they are not known."""

    def query(self) -> Query | None:
        """The adversary's access to the defended clients, without a count or limit of queries; None without access."""
        return None if self._edge is None else black_box_query(self._edge)

    def clients(self) -> TrainingClients | None:
        """The clients before any training, for an attack that takes over the training; None without a training."""

    def imitate(self) -> Callable[[Tensor, Generator], Tensor] | None:
        """A function that applies the clients' defense to smashed data, or None; see `ImageObservation.imitate`."""
        edge = self._edge
        return None if edge is None or not holds_all(edge) else imitated(edge, self.seed_data.splits.domain)

    def defended(self) -> Defended | None:
        """The clients' defense, for control experiments; None if the experiments have no access to the defense."""
        domain, batch = self.seed_data.splits.domain, self.config.training.batch_size
        edge, seed = self._edge, derive(self.cell.seed, "controls")
        return None if edge is None else defense_of(edge, domain, batch, seed)

    def generator(self) -> Generator:
        """A generator for the attack's random draws, with a seed from the run's seed and the attack's name."""
        return Generator().manual_seed(derive(self.cell.seed, "attack", self.cell.attack.name))

    def checkpoint(self) -> Checkpoint:
        """Open the checkpoint in which the attack saves its state; an interrupted attack continues from it."""
        home = self.folder.cell(self.cell.id)
        note = partial(self.folder.note, self.cell, self.made_of)
        checkpoint = Checkpoint(home / ATTACK_CHECKPOINT, self.progress.step, note, self.spent.attacked)
        if checkpoint.load() is not None:
            self.log("attack resumed")
        self.spent.earlier = checkpoint.earlier
        return checkpoint

    def begin(self) -> None:
        """Report that the attack begins."""
        self.progress.stage(f"attack {self.cell.attack.label} on {self.cell.defense.label}, seed {self.cell.seed}")

    def controls(self, mount: Callable[[], tuple[Control, ...]], **of: Any) -> tuple[Check, ...]:
        """Run the attack's control experiments, in which it must succeed on easy data and fail on noise.

        `mount` runs the experiments. Their results are stored, so `mount` is called once for each attack, release shape
        and value of the keywords `of`.
        """
        form = [list(view.smashed.shape[1:]) for view in self.recording.views[:1]]
        path = self.folder.control({**self.cell.attack.to_json(), "form": form, **of})
        seed, made_of = self.cell.seed, self.made_of.control
        try:
            if (known := self.folder.read_checks(path, seed, made_of)) is not None:
                checks, seconds = known
                self.spent.controls += seconds
                return checks
        except DamagedFile:
            self.progress.note(f"{path} is damaged; these control experiments are done again")
        through = " through the defense" if "defense" in of else ""
        self.progress.stage(f"controls of {self.cell.attack.label}{through}", unit="experiments")
        before = self.spent.controls
        with self.spent.controlling():
            done = mount()
        checks = tuple(Check(**asdict(control)) for control in done)
        self.progress.step(len(checks), len(checks))
        self.folder.write_checks(path, seed, self.made_of.seen().control, checks, self.spent.controls - before)
        return checks

    def planted(self, mount: Callable[[], tuple[Control, ...]]) -> tuple[Check, ...]:
        """Run control experiments (`mount`) of an attack that returns scores: on a planted leak and on pure noise,
        without the defense. With a defense, one more check says that no control through the defense was possible."""
        checks = self.controls(mount)
        if self.cell.defense.name == "none":
            return checks
        detail = (
            f"control not possible: the control of {self.attack.name} plants a leak in a small model of its own, "
            "without the defense"
        )
        return (*checks, Check(name="wins_through_the_defense", passed=None, detail=detail, decisive=False))

    def told(self, scores: Scores, positive: Tensor, batches: Tensor | None = None) -> dict[str, Interval]:
        """Compute `told_apart` for the result row, and store the scores for the report's ROC curve."""
        path, values = self.folder.cell(self.cell.id) / SCORES, scores.values.double().cpu().numpy()
        write_arrays(path, values=values, positive=positive.cpu().numpy())
        return told_apart(scores, positive, batches)


def must_read(attack: AnyAttack, domain: Domain) -> None:
    """Raise `NotApplicable` if the attack reconstructs records of other domains, such as images instead of tables."""
    if not {domain.name, "any"} & set(attack.mounting.domains):
        reads = " and ".join(KINDS[name].noun for name in attack.mounting.domains)
        raise NotApplicable(f"{attack.name} reconstructs {reads}, and these records are {domain.records}")


def must_have_one_label(context: AttackContext) -> None:
    """Raise `NotApplicable` if records have several labels each, for an attack that uses one label per record."""
    if several(context.seed_data.victims.y):
        name = context.cell.attack.name
        raise NotApplicable(f"{name} reads one label per record, and these records have several each")


def told_apart(scores: Scores, positive: Tensor, batches: Tensor | None = None) -> dict[str, Interval]:
    """Measure how well scores separate positive examples, bool [N]: AUC, advantage, and TPR at 1 % false positives.

    If the AUC's whole interval lies below 1/2, the other two metrics use the negated scores, and their `method` says
    so. Otherwise the sign is kept: always choosing the better sign would suggest a leak where there is none. `batches`
    [N], the round of each example, adds the mean AUC within rounds.
    """
    values, truth = scores.values.double().cpu().numpy(), positive.cpu().numpy()
    leak = pooled_auc(values, truth)
    turned = -values if leak.direction == "lower" else values
    rates = {"tpr_at_1_percent": tpr_at(turned, truth, _FALSE_POSITIVES), "advantage": advantage(turned, truth)}
    if leak.direction == "lower":
        rates = {name: replace(rate, method=f"{rate.method}; {_REVERSED}") for name, rate in rates.items()}
    metrics = {"auc": leak.auc, **rates}
    if batches is not None:
        with suppress(ValueError):  # if no round has both positive and negative examples
            metrics["auc_per_batch"] = per_batch_auc(values, truth, batches.cpu().numpy()).auc
    return metrics


def better_than_chance(answers: Mapping[str, Interval]) -> tuple[bool, float]:
    """Whether an attack's AUC (from `told_apart`) is significantly above 1/2; and the attack's error, 1 − AUC."""
    auc = answers["auc"]
    return auc.low > 0.5, 1 - auc.value
