"""Finds the strongest attack, which decides on a defense (rather than an average over attacks)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from privkit.reports.columns import CLAIM, DECLARATION, LEARNED, START
from privkit.reports.schema import Metric, Metrics, Row
from privkit.shared import measures
from privkit.shared.grouped import grouped
from privkit.shared.measures import CLASS_MEAN, CONSTANT_ATTACKS, FLOORS, IDENTIFIED

_Grade = Literal["nothing", "class", "record"]
"""What guesses reveal: "nothing" (no more than constant guesses), only the "class" of records, or the "record"."""
BEFORE = ", before its first step"  # suffix of an attack's name if its guesses before training count
NOT_ATTACKED = "the undefended model was not attacked"
OPTIONS = re.compile(r":(?=\w+=)[^+@]*")
"""The options of a part in its label. The colon in the import path of a user's own part does not start options."""


@dataclass(frozen=True, kw_only=True)
class Strongest:
    """The result of the strongest attack on one defense with one seed."""

    row: Row  # result row of this attack
    attacks: int  # number of attacks that gave a number; guesses without the release are not counted
    told: tuple[Row, ...] = ()  # rows of the same defense and seed for attacks on labels, members or canaries


def strongest(rows: Sequence[Row]) -> list[Strongest]:
    """Find the strongest attack for each defense and seed, in the order of the rows. A defense and seed without an
    attack that gave a number are left out. If no attack reconstructed records, the attack whose AUC is farthest from
    1/2 counts. Constant guesses count as attacks only if no other attack reconstructed records."""
    groups = grouped((row for row in rows if row.status == "done"), lambda row: (row.defense, row.seed))
    winners = []
    for group in groups.values():
        guessed = [row for row in relied(group) if metric_of(row)]
        told = tuple(row for row in group if "auc" in row.answers)
        real = [row for row in guessed if row.attack not in CONSTANT_ATTACKS]
        if guessed:
            best = min(real or guessed, key=distance)
        elif told:
            best = max(told, key=lambda row: abs(row.answers["auc"].value - 0.5))
        else:
            continue
        winners.append(Strongest(row=best, attacks=len(real) if guessed else len(told), told=told))
    return winners


def as_error(estimate: Metric) -> float:
    """The estimate as an error: unchanged, or 1 minus the estimate if higher values are closer."""
    return 1 - estimate.value if estimate.higher_is_closer else estimate.value


def better(ours: Metric, floor: Metric, ahead: Metric | None, margin: float = 0.0) -> bool:
    """Whether an attack came closer to the records than a guess without the release (floor).

    `ahead` is the mean over records of the floor's error minus the attack's error. This pairing removes the difficulty
    of a record. The whole interval of `ahead` must lie above `margin` ≥ 0. `ahead` is None for older runs and untrained
    attacks: then the whole interval of `ours` must be better than `floor` by `margin`.
    """
    if ahead is not None:
        return ahead.low > margin
    return ours.low - margin > floor.value if ours.higher_is_closer else ours.high + margin < floor.value


def grade(row: Row) -> _Grade | None:
    """How much the guesses of a result row reveal: "nothing", the "class" or the "record"; the guesses are chosen by
    `counted`. The result is None if there is no guess without the release to compare with."""
    return finished_grade(counted(row))


def counted(row: Row) -> Row:
    """A result row with the guesses that count: of the finished attack or of the untrained attack, since an adversary
    may stop before the first step. The untrained attack counts if it reveals records and the finished attack is worse.
    The finished attack is worse if it reveals no records, identifies fewer, or identifies equally many with a larger
    error."""
    metric, start = metric_of(row), row.floors.get(START, {})
    if not metric or metric not in start.get("unaligned", {}):
        return row
    begun = row.model_copy(update={"recovered": start, "ahead": {}})
    if finished_grade(begun) != "record":
        return row
    return begun if finished_grade(row) != "record" or _likelier(begun) > _likelier(row) else row


def began(row: Row) -> bool:
    """Whether the guesses of a result row, chosen by `counted`, are those of the untrained attack."""
    return bool(row.recovered) and row.recovered == row.floors.get(START)


def _likelier(row: Row) -> tuple[float, float]:
    """A sort key: the share of records that a row's guesses identify, then the closeness of the guesses."""
    found = identified_share(row.recovered)
    return found.value if found else 0.0, -distance(row)


def identified_share(recovered: Mapping[str, Mapping[str, Metric]]) -> Metric | None:
    """The share of records that the guesses of `recovered` (as in `Row`) identify; None if it was not computed."""
    return recovered.get("unaligned", {}).get(IDENTIFIED.name)


def most_identified(row: Row) -> Metric | None:
    """The larger share of records that the finished or the untrained attack identifies; None if it was not computed."""
    counts = filter(None, map(identified_share, (row.recovered, row.floors.get(START, {}))))
    return max(counts, key=lambda one: one.value, default=None)


def finished_grade(row: Row) -> _Grade | None:
    """How much the finished attack's guesses reveal: "nothing", the "class" or the "record"; None without a guess to
    compare with. The grade is also "record" if more records are identified than by any guess from the label alone,
    since a sharp guess may have a large error."""
    floors = _guesses(row)
    if not floors:
        return None
    beaten = {name: beats(row, name) for name in floors}
    if all(beaten.values()) or _identifies(row):
        return "record"
    return "class" if all(beaten[name] for name in floors if not uses_labels(name)) else "nothing"


def beats(row: Row, guess: str) -> bool:
    """Whether a row's guesses are closer to the records than the guess without the release named `guess`. The class
    mean must be beaten by a margin, since the mean of few records has an error of its own."""
    metric, floor = metric_of(row), row.floors[guess]["unaligned"]
    margin = _by_few_records(row, floor, metric) if guess == CLASS_MEAN.name else 0.0
    return better(row.recovered["unaligned"][metric], floor[metric], row.ahead.get(guess, {}).get(metric), margin)


def _by_few_records(row: Row, class_mean: Metrics, metric: str) -> float:
    """The margin by which the best guess from the label alone may be closer than the class mean of few records.

    The mean of n records has an expected squared error of σ²(1 + 1/n). The best such guess, the true mean, has the
    error σ². So 1/(n + 1) of the class mean's error is due to the few records. The number of classes is the number of
    records that the class mean identifies, one per class. The margin is 0 for older rows, which lack this number.
    """
    found, own = class_mean.get(IDENTIFIED.name), row.counts.get("auxiliary", 0)
    if found is None or not own:
        return 0.0
    return as_error(class_mean[metric]) / (1 + own / max(1.0, found.value * found.n))


def uses_labels(guess: str) -> bool:
    """Whether a guess without the release, by its name in `Row.floors`, uses the true labels."""
    return guess in FLOORS and FLOORS[guess].labels


def _guesses(row: Row) -> dict[str, Metrics]:
    """The guesses without the release with which a row is compared; empty for a row without metric."""
    return {name: floor["unaligned"] for name, floor in row.floors.items() if name != START and metric_of(row)}


def _identifies(row: Row) -> bool:
    """Whether guesses identify more records than guesses from the label alone, which identify one record per label. The
    class mean is such a guess. Without a class mean, for example if the adversary's records have other classes, the
    guesses must identify more records than there are labels of attacked records. The answer is False if this number of
    labels is unknown, too."""
    found, labels, floors = identified_share(row.recovered), row.counts.get("victim_labels", 0), _guesses(row)
    if found is None or not (labels or CLASS_MEAN.name in floors):
        return False
    return identifies_above_floors(row) and found.low > labels / found.n


def identifies_above_floors(row: Row) -> bool:
    """Whether guesses identify more records than each guess without the release does."""
    found, floors = identified_share(row.recovered), _guesses(row).values()
    if found is None:
        return False
    return all(IDENTIFIED.name in floor and found.low > floor[IDENTIFIED.name].high for floor in floors)


def falls(row: Row) -> bool:
    """Whether an attack reveals records, and not only their class."""
    return grade(row) == "record"


Twins = Mapping[tuple[str, str, int], Row]
"""Protocol, attack and seed -> the row of the same attack on the undefended model (the twin)."""


def lost(row: Row) -> bool:
    """Whether an attack failed on a defense, although it passed its control experiments and there is no `doubt`
    about its failure. Such an attack must also run on the undefended model."""
    real = bool(metric_of(row)) and row.attack not in CONSTANT_ATTACKS
    return real and not falls(row) and sound(row) and not row.doubt


def unneeded(twin_of: Sequence[str], rows: Mapping[str, Row]) -> str:
    """The reason why an attack need not run on the undefended model; empty if it must run. `twin_of` has the ids of the
    cells (defense, attack and seed) in which this attack meets a defense. `twin_of` is empty if the attack always runs
    on the undefended model. `rows` maps the ids of finished cells to their results."""
    own = [rows[cell] for cell in twin_of if cell in rows]
    if not twin_of or any(map(lost, own)):
        return ""
    if len(own) < len(twin_of):
        return "only if the attack fails on a defense"
    told = {True: "the attack won on", False: "no sound number on"}
    groups = {win: dict.fromkeys(row.defense for row in own if (falls(row) and sound(row)) is win) for win in told}
    return "; ".join(f"{told[win]} {', '.join(group)}" for win, group in groups.items() if group)


def without_options(label: str) -> str:
    """The name of a defense or attack without options; for a chain of defenses, the names of its stages."""
    return OPTIONS.sub("", label)


def undefended(defense: str) -> bool:
    """Whether a defense's label means the undefended model: its name is "none"."""
    return defense.partition(":")[0] == "none"


def bare_rows(rows: Sequence[Row], protocol: str) -> list[Row]:
    """The rows of the undefended model with which a protocol's defenses are compared. There may be several undefended
    models, and the one with the fewest options counts. Another model, for example with a random frozen block, may be
    worse at the task and harder to attack, so that every defense would look better beside it."""
    bare = [row for row in rows if undefended(row.defense) and row.protocol == protocol]
    plain = min((row.defense for row in bare), key=len, default="")
    return [row for row in bare if row.defense == plain]


def undefended_rows(rows: Sequence[Row]) -> Twins:
    """The undefended model's results by protocol, attack and seed; the model with fewest options takes precedence."""
    bare = sorted((row for row in rows if undefended(row.defense)), key=lambda row: len(row.defense))
    return {(row.protocol, row.attack, row.seed): row for row in reversed(bare)}


def twin_of(row: Row, twins: Twins) -> Row | None:
    """The row of the same attack on the undefended model, with the same seed; None if it gave no number."""
    twin = twins.get((row.protocol, row.attack, row.seed))
    return twin if twin is not None and metric_of(twin) else None


def powerless(row: Row, twins: Twins) -> str:
    """Why an attack's failure is no evidence for the defense (it also fails without one); empty if it is evidence."""
    twin = twin_of(row, twins)
    if twin is None:
        return NOT_ATTACKED
    if any(check.name == LEARNED and check.passed is False for check in twin.checks):
        return "the undefended model is not shown to have learned its task"
    if falls(twin) and sound(twin):
        return ""
    return f"the attack fails on the undefended model{' as well' * (twin is not row)}"


def sound(row: Row) -> bool:
    """Whether the attack passed its control experiments (tests with a known result); tests of a claim are ignored."""
    return all(check.passed for check in row.checks if check.decisive and check.name not in (CLAIM, DECLARATION))


def relied(rows: Sequence[Row]) -> list[Row]:
    """The result rows that count. If an attack that passed its control experiments reveals records, only the rows of
    attacks that passed their control experiments count. Otherwise, all rows count."""
    if not any(falls(row) and sound(row) for row in rows):
        return list(rows)
    passed = {row.attack for row in rows if sound(row)}
    return [row for row in rows if row.attack in passed]


def metric_of(row: Row) -> str:
    """The name of the metric by which a result row is compared with others; empty if it has none."""
    return measures.deciding(list(row.recovered.get("unaligned", {})))


def distance(row: Row) -> float:
    """The distance of a row's guesses from the records, as an error, by the metric `metric_of`."""
    return as_error(row.recovered["unaligned"][metric_of(row)])
