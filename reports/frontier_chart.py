"""The chart of a frontier: accuracy on the x axis, recovery on the y axis, ε as the strength of the color."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite, log10

from privkit.reports.charts import BOTTOM, LEFT, RIGHT, TOP, Chart, Mark, Shape, padded_range, panel, points
from privkit.reports.frontier import Frontier, Point
from privkit.reports.tables import interval
from privkit.shared.rounding import rounded_up

WIDTH, HEIGHT = 680, 400
_LETTER, _LINE = 6.4, 13.0  # size of a label's letter on the sheet
_FAINTEST = 0.18  # opacity of the largest proven ε; the smallest is drawn in full color


def frontier_chart(found: Frontier) -> Chart:
    """The chart of a frontier: a mark for each setting, with its intervals of accuracy and recovery, and a line that
    joins the settings of one defense, in the order of the run.

    The color is full for the smallest proven ε and pale for the largest; a hollow mark means that no ε is proven. A
    diamond marks the undefended model. Dashed lines are floors (guesses without the release).
    """
    accuracies = [end for point in found.points for end in (point.accuracy.low, point.accuracy.high)]
    heights = [end for point in found.points for end in (point.recovered.low, point.recovered.high)]
    x, y = panel(WIDTH, HEIGHT, padded_range(accuracies), padded_range([*heights, *found.floors.values()]))
    shapes: list[Shape] = []
    words: list[tuple[float, float, str]] = []
    for name, value in sorted(found.floors.items(), key=lambda floor: floor[1]):
        height = float(y([value])[0])
        line = points((LEFT, WIDTH - RIGHT), (height, height))
        shapes.append(Shape(kind="floor", points=line, name=name))
        near = bool(words) and words[-1][1] - height < _LINE  # this line would cross the words below it
        said = f"{words.pop()[2]}, {name}" if near else name
        words.append((WIDTH - RIGHT, height - 4, said))
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
    """Smallest and largest proven ε, the ends of the color scale; None if nothing is proven."""
    proven = [point.epsilon for point in found.points if point.epsilon and isfinite(point.epsilon)]
    return (min(proven), max(proven)) if proven else None


def _strength(point: Point, found: Frontier) -> float | None:
    """Opacity of a mark, from the logarithm of its ε; None without ε."""
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
    """The marks, with labels where there is room; labels of dominated marks are placed last."""
    taken = [(mark.x - 7, mark.y - 7, mark.x + 7, mark.y + 7) for mark in marks]
    taken += [(x - _LETTER * len(text), y - _LINE, x, y) for x, y, text in words]
    placed = {}
    for number in sorted(range(len(marks)), key=lambda place: "pale" in marks[place].kind):
        mark, wide = marks[number], _LETTER * len(labels[number])
        for right, down, anchor in ((10, -6, "start"), (-10, -6, "end"), (10, 15, "start"), (-10, 15, "end")):
            x, y = mark.x + right, mark.y + down
            left = x if anchor == "start" else x - wide
            box = (left, y - _LINE, left + wide, y)
            inside = left > LEFT and left + wide < WIDTH and box[1] > TOP and y < HEIGHT - BOTTOM
            if inside and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                placed[number] = (x, y, anchor)
                break
    return tuple(
        replace(mark, label=labels[number], label_at=placed[number]) if number in placed else mark
        for number, mark in enumerate(marks)
    )


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
