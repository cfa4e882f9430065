"""Tables and charts of the page on defenses, from the registry of measured defenses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import mean, median

import registry_pictures

from privkit.reports.frontier import Frontier, Point, frontier_chart
from privkit.reports.page import standalone
from privkit.reports.registry import Entry, MeasuredSetting, dominates, read_registry, settings
from privkit.settings.quick_attacks import AUTO_THREAT_MODELS
from privkit.shared.grouped import grouped
from privkit.shared.interval import Interval
from privkit.shared.measures import CLASS_MEAN, IDENTIFIED
from privkit.shared.threat_models import threat_name

AFFORDED = (0.02, 0.05, 0.1, 0.2)
"""Largest losses of accuracy in the table of advice, one line each; a last line allows a loss of half the accuracy."""
DRAWN = ("query", "weights_and_many_passes")
"""The adversaries of the charts: the weakest and the strongest."""
ENOUGH = 10
"""Least number of settings of a dataset for which the page gives advice."""
LEARNED = 0.1
"""Least accuracy of the undefended model for which the page gives advice."""
MANY = 0.9
"""Share of identified records from which on a defense counts as useless."""


def datasets(registered: Iterable[Entry]) -> dict[str, list[MeasuredSetting]]:
    """Dataset -> its measured settings, those with the most identified records first."""
    return grouped(settings(registered), lambda one: one.dataset)


def _comparable(found: Sequence[MeasuredSetting]) -> bool:
    """Whether the page may compare settings: there are enough of them, and the undefended model learned its task."""
    return len({one.defense for one in found}) >= ENOUGH and any((one.bare_accuracy or 0) >= LEARNED for one in found)


def which() -> tuple[list[str], list[list[str]]]:
    """Table of advice: for each loss of accuracy and adversary, the setting with the fewest identified records."""
    rows = []
    for dataset, found in datasets(read_registry()).items():
        if not _comparable(found):
            continue
        kept = [one for one in found if one.bare_accuracy and one.accuracy >= one.bare_accuracy / 2]
        for loss in AFFORDED:
            within = [one for one in kept if one.accuracy >= (one.bare_accuracy or 0) - loss]
            rows.append([dataset, f"≤ {loss:.2f}", *(_least(within, model) for model in AUTO_THREAT_MODELS)])
        rows.append([dataset, "half", *(_least(kept, model) for model in AUTO_THREAT_MODELS)])
    return ["dataset", "accuracy lost", *map(threat_name, AUTO_THREAT_MODELS)], rows


def _least(found: Sequence[MeasuredSetting], model: str) -> str:
    """The setting of which this adversary identifies fewest records; "nothing" if it identifies nearly all."""
    here = [one for one in found if one.threat_model == model]
    if not here:
        return "–"
    best = min(here, key=lambda one: (one.identified.value, -one.accuracy))
    ran = f"{len(best.seeds)} seed{'s' * (len(best.seeds) > 1)}"
    told = f"{best.identified.value:.3f}, accuracy {best.accuracy:.2f}, {ran}"  # so that .897 does not look like .90
    return f"**nothing** ({told})" if best.identified.value >= MANY else f"`{best.defense}` ({told})"


def seeds() -> str:
    """How many settings have how many seeds, such as "`digits` has 43 with 1 seed and 33 with 3 seeds"."""
    told = []
    for dataset, found in grouped(read_registry(), lambda one: one.dataset).items():
        ran = [len({one.seed for one in rows}) for rows in grouped(found, lambda one: one.defense).values()]
        counts = [f"{ran.count(number)} with {number} seed{'s' * (number > 1)}" for number in sorted(set(ran))]
        told.append(f"`{dataset}` has {' and '.join(counts)}")
    return "; ".join(told)


def every() -> tuple[list[str], list[list[str]]]:
    """Table of all settings: accuracy, and the share that each adversary identifies (bold: falls, italic: holds)."""
    rows = []
    for dataset, found in datasets(read_registry()).items():
        for defense in sorted({one.defense for one in found}):
            own = {one.threat_model: one for one in found if one.defense == defense}
            first = next(iter(own.values()))
            traffic = "–" if first.traffic is None else f"×{first.traffic:.2f}"
            cells = [_cell(own.get(model)) for model in AUTO_THREAT_MODELS]
            rows.append(
                [dataset, f"`{defense}`", str(len(first.seeds)), _accuracy(first), *cells, first.claim, traffic]
            )
    heading = [
        "dataset",
        "setting",
        "seeds",
        "accuracy (undefended)",
        *map(threat_name, AUTO_THREAT_MODELS),
        "claim",
        "bytes",
    ]
    return heading, rows


def _accuracy(one: MeasuredSetting) -> str:
    return f"{one.accuracy:.2f}" + ("" if one.bare_accuracy is None else f" ({one.bare_accuracy:.2f})")


def _cell(one: MeasuredSetting | None) -> str:
    if one is None:
        return "–"
    falls, holds = (one.outcomes.count(outcome) for outcome in ("falls", "holds"))
    mark = "**" if falls == len(one.seeds) else "*" if holds == len(one.seeds) else ""
    return f"{mark}{one.identified.value:.2f}{mark}"


def guesses() -> tuple[list[str], list[list[str]]]:
    """Table of pictures of guesses, with the setting, the attack, and the adversaries who can run this attack."""
    rows = []
    for picture, entries in registry_pictures.shown(read_registry()).items():
        one, names = entries[0], ", ".join(threat_name(entry.threat_model) for entry in entries)
        source = f"../{picture.relative_to(registry_pictures.FOLDER.parent).as_posix()}"
        drawn = f"![Records above, guesses below]({source})"
        share = f"{one.identified * one.victims:.0f} of {one.victims}"
        rows.append([one.dataset, f"`{one.defense}`", drawn, share, one.attack, f"{one.accuracy:.2f}", names])
    return ["dataset", "setting", "guesses", "identified", "attack", "accuracy", "adversary"], rows


def breaks() -> tuple[list[str], list[list[str]]]:
    """For each setting: the attack that counts for each adversary, what it identified, and what it cost."""
    registered, rows = read_registry(), []
    places = {model: place for place, model in enumerate(AUTO_THREAT_MODELS)}
    for dataset, found in datasets(registered).items():
        for defense in sorted({one.defense for one in found}):
            here = [one for one in found if one.defense == defense]
            models = sorted(here, key=lambda one: places.get(one.threat_model, len(places)))
            for (outcome, *told), alike in grouped(models, lambda one: _outcome(one, registered)).items():
                names = ", ".join(threat_name(one.threat_model) for one in alike)
                names = "all" if len(alike) == len(AUTO_THREAT_MODELS) else names
                rows.append([dataset, f"`{defense}`", _accuracy(here[0]), outcome, names, *told])
    heading = ["dataset", "setting", "accuracy (undefended)", "outcome", "adversary", "attack", "identified"]
    return [*heading, "rounds of queries", "CPU s"], rows


def _outcome(one: MeasuredSetting, registered: Sequence[Entry]) -> tuple[str, ...]:
    """Cells for one adversary: the outcome; the attack that identified most, its share, its queries and CPU seconds."""
    stands = "stands" if set(one.outcomes) <= {"holds", "class"} else "not shown"
    price = next(
        entry
        for entry in registered
        if (entry.dataset, entry.defense, entry.threat_model, entry.attack)
        == (one.dataset, one.defense, one.threat_model, one.attack)
    )
    asked = f"{price.queries:,}" if price.queries > 1 else "–"
    outcome = "falls" if "falls" in one.outcomes else stands
    return outcome, f"`{one.attack}`", f"{one.identified.value:.2f}", asked, f"{price.seconds:.0f}"


def of(*defenses: str) -> tuple[list[str], list[list[str]]]:
    """Table of what each adversary recovers behind these settings, on each dataset; means over seeds."""
    groups = grouped(
        [one for one in read_registry() if one.defense in defenses],
        lambda one: (one.dataset, one.defense, one.threat_model),
    )
    rows = []
    for (dataset, defense, model), found in groups.items():
        alike = [one.likeness for one in found if one.likeness is not None]
        likeness = f"{mean(alike):.2f}" if alike else "–"
        identified, accuracy = (
            f"{mean(values):.2f}" for values in zip(*((one.identified, one.accuracy) for one in found), strict=True)
        )
        attacks = ", ".join(f"`{attack}`" for attack in dict.fromkeys(one.attack for one in found))
        seeds = str(len(found))
        rows.append([dataset, f"`{defense}`", threat_name(model), attacks, seeds, likeness, identified, accuracy])
    return ["dataset", "defense", "adversary", "attack", "seeds", "SSIM", "identified", "accuracy"], rows


def pictures() -> dict[str, str]:
    """Dataset -> an SVG with two charts (one per adversary) of the settings' accuracy and identified share."""
    return {
        dataset: standalone([(threat_name(model), [frontier_chart(_frontier(found, model))]) for model in DRAWN])
        for dataset, found in datasets(read_registry()).items()
        if _comparable(found)
    }


def _frontier(found: Sequence[MeasuredSetting], model: str) -> Frontier:
    """Chart data for one adversary, with the undefended model and, as floor, the guess of the class mean."""
    here = [one for one in found if one.threat_model == model]
    bare = [one.bare_accuracy for one in here if one.bare_accuracy is not None]
    points = [
        _point(one.defense, one.attack, one.accuracy, one.identified, any(dominates(other, one) for other in here))
        for one in here
    ]
    if bare:
        points.append(_point("none", "black_box", median(bare), _exact(1.0), dominated=False))
    floor = max(one.chance for one in here)
    return Frontier(metric=IDENTIFIED.name, points=tuple(points), floors={CLASS_MEAN.title: floor})


def _point(defense: str, attack: str, accuracy: float, identified: Interval, dominated: bool) -> Point:
    family, _, options = defense.partition(":")
    return Point(
        defense=defense,
        family=family,
        setting=options,
        attack=attack,
        seeds=1,
        accuracy=_exact(accuracy),
        recovered=identified,
        start=False,
        epsilon=None,
        dominated=dominated,
    )


def _exact(value: float) -> Interval:
    return Interval(value=value, low=value, high=value, n=1, method="exact")
