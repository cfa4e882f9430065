"""The privacy–utility frontier: accuracy and the strongest attack's recovery for each setting of a defense.

It becomes a table and a chart: accuracy on the x axis, recovery (closeness of guesses) on the y axis, ε as color.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf, isfinite, log10

from privkit.reports.charts import BOTTOM, LEFT, RIGHT, TOP, Chart, Mark, Shape, padded_range, panel, points
from privkit.reports.columns import flat_csv, flattened
from privkit.reports.schema import Row, Summary
from privkit.reports.seed_intervals import over_seeds
from privkit.reports.strongest import BEFORE, OPTIONS, began, counted, relied, sound, undefended, without_options
from privkit.reports.tables import Table, interval
from privkit.shared.grouped import grouped
from privkit.shared.interval import Interval
from privkit.shared.measures import CONSTANT_ATTACKS, FLOORS, differs, floor_title, likeness, measure
from privkit.shared.rounding import rounded_up

FRONTIER_NOTE = (
    "One line per setting, with its strongest attack; brackets are 95 % intervals, over seeds or (of one seed) over "
    "records. Dominated: another defended setting is at least as good in accuracy, in what it gives away and in "
    "proven ε (if either has one), and better in one: its ε is smaller, or the intervals of one of the others do not "
    "overlap."
)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One setting (a defense with its options): accuracy, recovery by the strongest attack, and proven ε."""

    defense: str  # the defense's label
    family: str  # the label without options
    setting: str  # the options in which settings of this family differ; empty if all options are defaults
    attack: str  # the strongest attack
    sound: bool = True  # whether the attack passed its control experiments with every seed
    start: bool = False  # whether the attack's guesses before training count, since the finished attack recovers less
    seeds: int  # number of seeds
    accuracy: Interval  # accuracy of the task
    recovered: Interval  # recovery by the strongest attack, in the measure `Frontier.metric`
    epsilon: float | None  # the largest proven ε over seeds and attacks; None if one of them proves none
    protocol: str = ""  # the setting's protocol
    # name of a guess without the release -> its recovery of the attacked records, in the same measure
    floors: dict[str, float] = field(default_factory=dict)
    # whether another defended setting is at least as good in accuracy, recovery and proven ε, and better in one of
    # them; a difference in accuracy or recovery counts as better if the intervals do not overlap
    dominated: bool = False

    @property
    def defended(self) -> bool:
        """Whether the setting has a defense."""
        return not undefended(self.family)

    @property
    def guesses(self) -> str:
        """The attack's name, with remarks if its guesses before training count or if it failed a control experiment."""
        named = self.attack + BEFORE if self.start else self.attack
        return named if self.sound else f"{named}, which failed its control"


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """The accuracy and recovery of a run's settings, in the order of the run."""

    metric: str  # name of the measure of recovery
    points: tuple[Point, ...]  # one point for each setting, including the undefended baseline
    # title of a guess without the release -> its recovery; the title names the protocol if recovery depends on it
    floors: dict[str, float]

    @property
    def name(self) -> str:
        """The title of the measure `metric`."""
        return measure(self.metric).title


def frontier(rows: Sequence[Row], *, least: int = 2) -> Frontier | None:
    """The privacy–utility frontier of a run: accuracy and the strongest attack's recovery for each setting of a
    defense. Settings count if they have an accuracy and a reconstruction. The result is None if no setting counts, or
    fewer than `least` defended ones."""
    done = [counted(row) for row in rows if row.status == "done" and row.accuracy and "unaligned" in row.recovered]
    metric = likeness([name for row in done for name in row.recovered["unaligned"]])
    done = [row for row in done if metric in row.recovered["unaligned"]]
    done = [row for row in done if row.attack not in CONSTANT_ATTACKS] or done
    over = {(summary.defense, summary.attack): summary for summary in over_seeds(done) if not summary.floor}
    labels = dict.fromkeys(row.defense for row in done)
    points = [_point(label, relied([row for row in done if row.defense == label]), metric, over) for label in labels]
    points = [_with_setting(point, points) for point in points]
    defended = [point for point in points if point.defended]
    if not points or len(defended) < least:
        return None
    judged = (
        replace(point, dominated=point.defended and any(_better(other, point) for other in defended))
        for point in points
    )
    each = {protocol: _floors(group, metric) for protocol, group in grouped(done, lambda row: row.protocol).items()}
    floors = {
        floor_title(name, protocol if differs({one: found.get(name) for one, found in each.items()}) else ""): value
        for name in FLOORS
        for protocol, found in each.items()
        if (value := found.get(name)) is not None
    }
    return Frontier(metric=metric, points=tuple(judged), floors=floors)


def _floors(rows: Sequence[Row], metric: str) -> dict[str, float]:
    """The mean recovery of each floor (a guess without the release) over these rows, for floors that all rows have."""
    return {
        name: sum(row.floors[name]["unaligned"][metric].value for row in rows) / len(rows)
        for name in FLOORS
        if all(metric in row.floors.get(name, {}).get("unaligned", {}) for row in rows)
    }


def frontier_table(found: Frontier) -> Table:
    """A table with a line for each setting, then a line for each floor (a guess without the release)."""
    lines = []
    for point in found.points:
        measured = (interval(point.accuracy), interval(point.recovered))
        proven = "–" if point.epsilon is None else rounded_up(point.epsilon, 3)
        lines.append((point.defense, point.guesses, *measured, proven, "yes" if point.dominated else ""))
    floors = [("floor", name, "–", f"{value:.3f}", "–", "") for name, value in found.floors.items()]
    headers = ("defense", "strongest attack", "accuracy ↑", f"{found.name} ↓", "ε ↓", "dominated")
    return Table(headers=headers, rows=(*lines, *floors), floor=(False,) * len(lines) + (True,) * len(floors))


def frontier_csv(found: Frontier) -> str:
    """CSV with a line for each setting, all numbers unrounded; floors (guesses without the release) are columns."""
    lines = []
    for point in found.points:
        kept = {key: value for key, value in asdict(point).items() if key not in ("accuracy", "recovered", "floors")}
        measured = flattened({"accuracy": point.accuracy, found.metric: point.recovered})
        lines.append(kept | measured | {f"floor_{name}": value for name, value in point.floors.items()})
    return flat_csv(lines)


def _point(label: str, rows: Sequence[Row], metric: str, over: dict[tuple[str, str], Summary]) -> Point:
    measured: dict[str, tuple[Interval, Interval, int]] = {}
    for row in rows:
        summary = over.get((label, row.attack))
        if summary is not None and {"accuracy", metric} <= summary.values.keys():
            measured[row.attack] = (summary.values["accuracy"], summary.values[metric], len(summary.seeds))
        else:
            assert row.accuracy is not None
            measured[row.attack] = (row.accuracy, row.recovered["unaligned"][metric], 1)
    attack = max(measured, key=lambda name: measured[name][1].value)
    accuracy, recovered, seeds = measured[attack]
    own = [row for row in rows if row.attack == attack]
    proven = list(map(_epsilon, rows))
    return Point(
        defense=label,
        family=without_options(label),
        setting=label,
        attack=attack,
        sound=all(map(sound, own)),
        start=any(map(began, own)),
        seeds=seeds,
        accuracy=accuracy,
        recovered=recovered,
        epsilon=max(proven) if isfinite(max(proven)) else None,
        protocol=own[0].protocol,
        floors=_floors(own, metric),
    )


def _epsilon(row: Row) -> float:
    """The proven ε of the row's release; infinite if none is proven."""
    found = row.certificate
    if found is None or found.kind != "differential_privacy" or found.standing != "proven":
        return inf
    return found.epsilon if found.sound and found.covers == "release" else inf


def _with_setting(point: Point, points: Sequence[Point]) -> Point:
    """The same point, whose `setting` holds only the options that differ between settings of its family."""
    others = [_options(other.defense) for other in points if other.family == point.family]
    own = _options(point.defense)
    told = [option for option in own if not all(option in options for options in others)]
    return replace(point, setting=",".join(told))


def _options(label: str) -> list[str]:
    return [option for part in OPTIONS.findall(label) for option in part[1:].split(",")]


def _better(one: Point, other: Point) -> bool:
    """Whether `one` is at least as good as `other` in accuracy, recovery and ε, and better in one of these. An ε of
    None counts as infinite. Accuracy or recovery is better if the intervals do not overlap."""
    proven, its = (inf if point.epsilon is None else point.epsilon for point in (one, other))
    gains = (one.accuracy.value - other.accuracy.value, other.recovered.value - one.recovered.value)
    beyond = (one.accuracy.low > other.accuracy.high, one.recovered.high < other.recovered.low, proven < its)
    return min(gains) >= 0 and proven <= its and any(beyond)


_WIDTH, _HEIGHT = 680, 400
_LETTER, _LINE = 6.4, 13.0  # width and height of a label's letter in SVG units
_FAINTEST = 0.18  # opacity of the largest proven ε; the smallest is drawn in full color


def frontier_chart(found: Frontier) -> Chart:
    """The chart of a frontier: a mark for each setting, with its intervals of accuracy and recovery.

    A line joins the settings of one defense, in the order of the run. The color is full for the smallest proven ε and
    pale for the largest; a hollow mark means that no ε is proven. A diamond marks the undefended model. Dashed lines
    are floors (guesses without the release).
    """
    accuracies = [end for point in found.points for end in (point.accuracy.low, point.accuracy.high)]
    heights = [end for point in found.points for end in (point.recovered.low, point.recovered.high)]
    x, y = panel(_WIDTH, _HEIGHT, padded_range(accuracies), padded_range([*heights, *found.floors.values()]))
    shapes: list[Shape] = []
    words: list[tuple[float, float, str]] = []
    for name, value in sorted(found.floors.items(), key=lambda floor: floor[1]):
        height = float(y([value])[0])
        line = points((LEFT, _WIDTH - RIGHT), (height, height))
        shapes.append(Shape(kind="floor", points=line, name=name))
        near = bool(words) and words[-1][1] - height < _LINE  # this line would cross the words below it
        said = f"{words.pop()[2]}, {name}" if near else name
        words.append((_WIDTH - RIGHT, height - 4, said))
    for family in dict.fromkeys(point.family for point in found.points if point.defended):
        own = [point for point in found.points if point.family == family]
        if len(own) > 1:
            joined = points(x([one.accuracy.value for one in own]), y([one.recovered.value for one in own]))
            shapes.append(Shape(kind="joined", points=joined, name=family))
    marks = []
    for point in found.points:
        across = [float(end) for end in x([point.accuracy.low, point.accuracy.value, point.accuracy.high])]
        upwards = [float(end) for end in y([point.recovered.low, point.recovered.value, point.recovered.high])]
        marks.append(
            Mark(
                x=across[1],
                y=upwards[1],
                x_limits=(across[0], across[2]),
                y_limits=(upwards[2], upwards[0]),
                kind=("pale " if point.dominated else "") + ("" if point.defended else "undefended"),
                strength=_strength(point, found),
                name=_told(point, found),
            )
        )
    return Chart(
        title=f"Task accuracy against {found.name} of the strongest attack, one mark a setting",
        x=x,
        y=y,
        x_label="task accuracy",
        y_label=f"{found.name} of the strongest attack",
        shapes=tuple(shapes),
        marks=_labelled(marks, [_label(point, found) for point in found.points], words),
        words=tuple(words),
    )


def epsilon_range(found: Frontier) -> tuple[float, float] | None:
    """Smallest and largest proven ε, the ends of the color scale; None if no ε is proven."""
    proven = [point.epsilon for point in found.points if point.epsilon and isfinite(point.epsilon)]
    return (min(proven), max(proven)) if proven else None


def _strength(point: Point, found: Frontier) -> float | None:
    limits = epsilon_range(found)
    if limits is None or not point.epsilon or not isfinite(point.epsilon):
        return None
    low, high = (log10(value) for value in limits)
    share = (log10(point.epsilon) - low) / (high - low) if high > low else 0
    return round(1 - share * (1 - _FAINTEST), 3)


def _label(point: Point, found: Frontier) -> str:
    if not point.defended:
        return "undefended"
    families = {other.family for other in found.points if other.defended}
    return (point.setting or point.family) if len(families) == 1 else f"{point.family} {point.setting}".strip()


def _told(point: Point, found: Frontier) -> str:
    proven = "no ε is proven" if point.epsilon is None else f"ε = {rounded_up(point.epsilon, 3)}"
    return (
        f"{point.defense}: accuracy {interval(point.accuracy)}, {found.name} {interval(point.recovered)} by "
        f"{point.guesses}; {proven}{'; dominated' if point.dominated else ''}"
    )


def _labelled(marks: list[Mark], labels: list[str], words: list[tuple[float, float, str]]) -> tuple[Mark, ...]:
    taken = [(mark.x - 7, mark.y - 7, mark.x + 7, mark.y + 7) for mark in marks]
    taken += [(x - _LETTER * len(text), y - _LINE, x, y) for x, y, text in words]
    placed = {}
    for number in sorted(range(len(marks)), key=lambda place: "pale" in marks[place].kind):
        mark, wide = marks[number], _LETTER * len(labels[number])
        for right, down, anchor in ((10, -6, "start"), (-10, -6, "end"), (10, 15, "start"), (-10, 15, "end")):
            x, y = mark.x + right, mark.y + down
            left = x if anchor == "start" else x - wide
            box = (left, y - _LINE, left + wide, y)
            inside = left > LEFT and left + wide < _WIDTH and box[1] > TOP and y < _HEIGHT - BOTTOM
            if inside and not any(
                box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3] for other in taken
            ):
                taken.append(box)
                placed[number] = (x, y, anchor)
                break
    return tuple(
        replace(mark, label=labels[number], label_at=placed[number]) if number in placed else mark
        for number, mark in enumerate(marks)
    )
