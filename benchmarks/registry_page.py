"""Sections of the page of breaks and stands, from the lines of the registry."""

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
"""How much accuracy one gives up at most, one line each; a last line gives up half of it, and none gives up more."""
DRAWN = ("query", "weights_and_many_passes")
"""The weakest and the strongest adversary of the pictures."""
ENOUGH = 10
"""Settings of a dataset below which a choice among them says nothing."""
LEARNED = 0.1
"""Accuracy of the undefended model below which it learned nothing, so that no setting can be chosen by accuracy."""
MANY = 0.9
"""Share of identified records from which on a defense gives away nearly all."""


def datasets(registered: Iterable[Entry]) -> dict[str, list[MeasuredSetting]]:
    """Dataset -> its settings, those that give away most first."""
    return grouped(settings(registered), lambda one: one.dataset)


def _comparable(found: Sequence[MeasuredSetting]) -> bool:
    """Whether there are enough settings, of a model that learned its task."""
    return len({one.defense for one in found}) >= ENOUGH and any((one.bare_accuracy or 0) >= LEARNED for one in found)


def which() -> tuple[list[str], list[list[str]]]:
    """For each loss of accuracy that one can afford and each adversary: the setting that gives away least."""
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
    """The setting of one adversary that gives away least; what nothing stands against is said."""
    here = [one for one in found if one.threat_model == model]
    if not here:
        return "–"
    best = min(here, key=lambda one: (one.identified.value, -one.accuracy))
    told = f"{best.identified.value:.2f}, accuracy {best.accuracy:.2f}"
    return f"**nothing** ({told})" if best.identified.value >= MANY else f"`{best.defense}` ({told})"


def every() -> tuple[list[str], list[list[str]]]:
    """Each setting with its accuracy and what each adversary identifies; bold where it falls, italic where it holds."""
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
    """Each picture that was kept, with the setting and attack that it shows and the adversaries who mount it."""
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
    """The outcome against one adversary; the attack that identified most, what it identified, and its price."""
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
    """What each adversary recovers behind some settings, on each dataset: means over seeds."""
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
    """Dataset -> its settings by accuracy and identified share, against each of two adversaries, as one SVG."""
    return {
        dataset: standalone([(threat_name(model), [frontier_chart(_frontier(found, model))]) for model in DRAWN])
        for dataset, found in datasets(read_registry()).items()
        if _comparable(found)
    }


def _frontier(found: Sequence[MeasuredSetting], model: str) -> Frontier:
    """The settings against one adversary; the diamond is the undefended model, the floor the guess by the label."""
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
