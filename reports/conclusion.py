"""A run's conclusion on each defense: whether it protects, against whom, at what cost, and what was not tried."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

from privkit.reports.schema import Frozen, Metric, Row
from privkit.reports.strongest import (
    BEFORE,
    bare_rows,
    counted,
    identifies_above_floors,
    most_identified,
    sound,
    undefended,
    without_options,
)
from privkit.reports.tables import UNKNOWN, claim_text, rounds_of
from privkit.reports.threats import FAILED_CONTROL, NO_NUMBER, STRONGER, Outcome, ThreatVerdict
from privkit.shared.grouped import grouped
from privkit.shared.measures import CONSTANT_ATTACKS, IDENTIFIED
from privkit.shared.own_records import hold_attacked
from privkit.shared.threat_models import INCLUDES, THREAT_MODELS, threat_name

_WORDS: dict[Outcome, str] = {
    "falls": "Falls under",
    "class": "Gives away the class only under",
    "holds": "Holds under",
    "not_shown": "Not shown under",
    "no_number": "No sound number under",
    "not_applicable": "Not possible:",
    "not_tried": "Not tried:",
}
"""Outcome -> first words of the list of its threat models. The first of these that occurs decides the conclusion."""
_UNCONTROLLED = "Falls to an attack that failed its control under"


class Conclusion(Frozen):
    """The conclusion on one defense, shown above all other results."""

    defense: str  # the defense's label
    tone: Literal["bad", "good", "open"]  # whether the conclusion is good or bad for the defense, or open
    sentence: str  # whether the defense protects, how many records are identified, and the change of accuracy
    models: str  # the threat models under which the defense is broken or holds, and those that were not tried
    arrangement: str  # model, cut and data, the adversary's own records, and the number of queries
    claim: str  # what is proven or declared

    @property
    def lines(self) -> list[str]:
        """The conclusion as lines for a terminal."""
        return [self.sentence, f"  {self.models}", f"  {self.arrangement}", f"  Claim: {self.claim}"]


def conclusions(rows: Sequence[Row], threats: Sequence[ThreatVerdict]) -> list[Conclusion]:
    """One conclusion for each defense, in the order of the verdicts `threats`. Without verdicts, each conclusion says
    why no attack gave a number."""
    made = []
    for defense in dict.fromkeys(one.defense for one in threats):
        verdicts = [one for one in threats if one.defense == defense and one.threat_model in THREAT_MODELS]
        found = next(outcome for outcome in _WORDS if any(one.outcome == outcome for one in verdicts))
        named = [one for one in verdicts if one.outcome == found]
        named = [one for one in named if not one.uncontrolled] or named
        most = max(named, key=lambda one: one.identified.value if one.identified else 0.0)
        own = [row for row in rows if row.defense == defense]
        counts = _identified(named, own, rows)
        if counts and found == "falls" and not any(map(identifies_above_floors, map(counted, own))):
            closer = most.measured.partition(f", {IDENTIFIED.title}")[0]
            counts = f"{counts}; {most.attack} beats every guess without the release, with {closer}"
        row = next((row for row in own if row.attack == most.attack), own[0])
        done = [row for row in own if row.status == "done"]  # other rows' claims may count passes that nobody sent
        judged = [one for one in verdicts if one.attack]
        held = {one.outcome for one in judged} == {"holds"} and not any(map(_reservations, judged))
        besides = dict.fromkeys(remark for one in named for remark in _reservations(one))
        made.append(
            Conclusion(
                defense=defense,
                tone="good" if held else "bad" if found == "falls" and not most.uncontrolled else "open",
                sentence="; ".join([f"{_sentence(most, row, counts)}{_cost(own, rows)}", *besides]) + ".",
                models=_models(verdicts),
                arrangement=_arrangement(row, own),
                claim=_claim(max([row, *done], key=_weakness)),
            )
        )
    groups = grouped(rows, lambda row: row.defense)
    defended = [own for defense, own in groups.items() if not undefended(defense)]
    return made or [_unattacked(own) for own in defended or groups.values()]


def _unattacked(own: Sequence[Row]) -> Conclusion:
    """The conclusion on a defense for which no attack on records gave a number."""
    row, nouns = own[0], own[0].records
    what = f"whether {row.defense} protects these {nouns}"
    if undefended(row.defense):
        what = f"what the release of these {nouns} gives away without a defense"
    reasons = "; ".join(dict.fromkeys(one.reason for one in own if one.status != "done"))
    why = reasons or (f"the recording holds no own {nouns}" if row.counts.get("auxiliary") == 0 else "")
    how = f"could be mounted: {why}" if why else "was mounted"
    return Conclusion(
        defense=row.defense,
        tone="open",
        sentence=f"It is not shown {what}: no reconstruction attack {how}.",
        models=f"No number under {', '.join(map(threat_name, THREAT_MODELS))}.",
        arrangement=_arrangement(row, own),
        claim=_claim(row),
    )


def _weakness(row: Row) -> tuple[float, float]:
    """Larger for a row whose certificate claims less: a larger ε, then fewer orders."""
    found = row.certificate
    return (found.epsilon, -found.quantities.get("log10_permutations", 0.0)) if found else (-1.0, 0.0)


def _claim(row: Row) -> str:
    return claim_text(row).replace(UNKNOWN, "nothing")


def _reservations(one: ThreatVerdict) -> list[str]:
    """The remarks that qualify "holds": records that are recovered all the same, and known stronger attacks."""
    return [remark for remark in one.remarks if remark.startswith(("but ", STRONGER))]


def _sentence(most: ThreatVerdict, row: Row, counts: str) -> str:
    these, what, behind = f"these {row.records}", most.defense, f": {counts}" if counts else ""
    if most.outcome == "falls":
        found = counts or f"{most.attack} reaches {most.measured}"
        if most.uncontrolled:
            who = "Without a defense, records fall" if undefended(what) else f"{what} falls"
            return f"{who} only to {most.attack}, which {FAILED_CONTROL}: {found}"
        if undefended(what):
            return f"Without a defense, {found}"
        return f"{what} does not protect {these}: {found}"
    why = most.sentence.removeprefix("not shown: ").partition(";")[0]
    said: dict[Outcome, str] = {
        "class": f"{what} gives away the class of {these}, but no record to the attacks mounted here{behind}",
        "holds": f"{what} {most.sentence.partition(f': {most.measured}')[0]}{behind}",  # names the attacks
        "not_shown": f"It is not shown whether {what} protects {these}: {why}",
        "no_number": f"Nothing is shown about {what}: {most.sentence.removeprefix(f'{NO_NUMBER}: ')}",
    }
    return said.get(most.outcome, f"Nothing was measured of {what}: {most.sentence}")


def _identified(verdicts: Sequence[ThreatVerdict], own: Sequence[Row], rows: Sequence[Row]) -> str:
    """A phrase with two numbers: the most records that an attack identifies with this defense, and without a defense.
    The phrase is empty if records were not counted, and names the attack if none of `verdicts` names it."""
    named = {one.threat_model for one in verdicts}
    within = {model for name, models in INCLUDES.items() if name in named for model in models}
    told = {one.attack for one in verdicts}
    found = _most([row for row in own if row.threat_model in within and (sound(row) or row.attack in told)])
    if found is None:
        return ""
    by = "" if found.attack in {without_options(one) for one in told} else f" by {found.attack}"
    seeds = {row.seed for row in own if row.status == "done"}
    others = [row for row in bare_rows(rows, own[0].protocol) if sound(row) and row.seed in seeds]
    bare = None if undefended(own[0].defense) else _most(others)
    beside = f" (undefended: {_count(bare.number)} by {bare.attack})" if bare else ""
    where = "" if all(one.uncontrolled for one in verdicts) else " from what crosses the wire"
    who = ", by an adversary who has them" if hold_attacked(own[0].auxiliary, own[0].attacked) else ""
    mean = " on average" if found.differ else ""
    return f"{_count(found.number)} of {found.of} are identified{mean}{where}{by}{who}{beside}"


class _Most(NamedTuple):
    number: float  # number of records that an attack identifies, a mean over seeds
    of: int  # number of attacked records
    attack: str  # the attack, without its options
    differ: bool  # whether seeds have other numbers


def _count(mean: float) -> str:
    """A mean number of records: with one decimal, unless it is whole up to rounding.

    >>> _count(50.0), _count(49 + 2 / 3)
    ('50', '49.7')
    """
    return f"{mean:.0f}" if abs(mean - round(mean)) < 1e-6 else f"{mean:.1f}"


def _most(rows: Sequence[Row]) -> _Most | None:
    found: dict[str, list[Metric]] = {}
    starts: set[str] = set()
    for row in rows:
        if (share := most_identified(row)) is not None and row.attack not in CONSTANT_ATTACKS:
            found.setdefault(row.attack, []).append(share)
            starts |= {row.attack} if row.recovered.get("unaligned", {}).get(IDENTIFIED.name) != share else set()
    if not found:
        return None
    counts = {attack: [one.value * one.n for one in each] for attack, each in found.items()}
    means = {attack: sum(each) / len(each) for attack, each in counts.items()}
    best = max(means, key=lambda attack: means[attack])
    named = f"{without_options(best)}{BEFORE * (best in starts)}"
    return _Most(means[best], found[best][0].n, named, len(set(counts[best])) > 1)


def _cost(own: Sequence[Row], rows: Sequence[Row]) -> str:
    after, before = _accuracies(own), _accuracies(bare_rows(rows, own[0].protocol))
    if not after:
        return ""
    shared = after.keys() & before.keys()  # the defense or the undefended model may have ended in an error at a seed
    if not shared or undefended(own[0].defense):
        return f"; accuracy is {_mean(after, after):.2f}"
    now, then = _mean(after, shared), _mean(before, shared)
    if round(now, 2) >= round(then, 2):
        return f"; accuracy is {now:.2f} (undefended: {then:.2f})"
    return f", and accuracy falls from {then:.2f} to {now:.2f}"


def _accuracies(rows: Sequence[Row]) -> dict[int, float]:
    return {row.seed: row.accuracy.value for row in rows if row.accuracy is not None}


def _mean(values: Mapping[int, float], seeds: Collection[int]) -> float:
    return sum(values[seed] for seed in seeds) / len(seeds)


def _models(verdicts: Sequence[ThreatVerdict]) -> str:
    groups: dict[str, list[str]] = {words: [] for words in (_WORDS["falls"], _UNCONTROLLED, *_WORDS.values())}
    for one in verdicts:
        groups[_UNCONTROLLED if one.uncontrolled else _WORDS[one.outcome]].append(threat_name(one.threat_model))
    return " ".join(f"{words} {', '.join(models)}." for words, models in groups.items() if models)


def _arrangement(row: Row, rows: Sequence[Row]) -> str:
    """The conditions of the conclusion as text: model, data, cut, the adversary's records, and its queries."""
    own, asked = row.counts.get("auxiliary"), {one.queries or 0 for one in rows}
    most, upto = max(asked), "up to " if len(asked) > 1 else ""
    whose = "the attacked ones among them" if hold_attacked(row.auxiliary, row.attacked) else row.auxiliary
    held = [f"{own:,} own {row.records} ({whose})"] if own is not None else []
    sent = f"{upto}{rounds_of(most)}" if most else "no queries"
    return ", ".join((f"{row.model} on {row.dataset}", *row.arrangement, *held, sent))
