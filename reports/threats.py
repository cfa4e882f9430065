"""One verdict on each defense under each threat model: to which attack it falls, or against which attacks it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from privkit.reports.columns import START, csv_text
from privkit.reports.schema import Frozen, Row, Summary
from privkit.reports.strongest import beyond_guesses, deciding, distance, falls
from privkit.reports.tables import Table, interval
from privkit.reports.verdict import CLAIM, DECLARED
from privkit.shared.interval import Interval
from privkit.shared.measures import CONSTANT_ATTACKS, floor_title, likeness, measure
from privkit.shared.threat_models import INCLUDES, THREAT_MODELS, ThreatModel, shown

Outcome = Literal["falls", "holds", "not_shown", "not_applicable", "not_tried"]

HEADERS = ("defense", "threat model", "verdict", "other attacks mounted", "not tried")
MEANING = (
    "A defense falls to an attack that comes closer to the records than every constant guess (of images, by MSE): the "
    "95 % interval of the mean difference, record by record, lies above 0. Of several attacks, the one with the "
    "highest SSIM is named. It holds against these attacks at this budget; nothing follows for others. A threat model "
    "counts every attack that its adversary could mount; --attack all mounts what was not tried."
)
NOTE = f"{MEANING} {' '.join(f'{shown(name).capitalize()}: {what}.' for name, what in THREAT_MODELS.items())}"
NOT_TRIED = "not tried"
_SEEN = 0.9
"""SSIM of a single guess from which on its image is recovered."""
_RECOVERED = 0.5
"""Share of the mean image's error below which matched guesses are recovered images."""
OTHERS = "labels, members, canaries"
"""The row of attacks that ask another question than what the records looked like."""


class ThreatVerdict(Frozen):
    """What a run says of one defense under one threat model.

    Attributes:
        defense: its label.
        threat_model: one of `THREAT_MODELS`, or `OTHERS`.
        outcome: falls to `attack`; holds against all that were mounted; is not shown to, since what failed attacks were
            given of a recording is not what made its release; no mounted attack applies; or none was mounted.
        attack: the strongest one over the seeds; empty where none gave a number.
        against: the other attacks that gave numbers.
        untried: registered attacks of this very model that were not mounted.
        sentence: the verdict in words.
        measured: what `attack` reached, as the sentence has it.
        remarks: what speaks against a verdict that holds, as the sentence has it.
    """

    defense: str
    threat_model: str
    outcome: Outcome
    attack: str = ""
    against: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()
    sentence: str
    measured: str = ""
    remarks: tuple[str, ...] = ()


def threat_verdicts(
    rows: Sequence[Row], summaries: Sequence[Summary], registered: Mapping[str, Sequence[str]]
) -> list[ThreatVerdict]:
    """The verdicts on every defense whose records were attacked; on the undefended model if there is no other.

    Args:
        rows: of a run.
        summaries: over its seeds; empty where there is one.
        registered: threat model (or `OTHERS`) -> names of the attacks that could be mounted on such records.
    """
    elsewhere = {*CONSTANT_ATTACKS, *registered.get(OTHERS, ())}
    attacked = [row for row in rows if row.threat_model and _name(row) not in elsewhere and "auc" not in row.answers]
    defenses = list(dict.fromkeys(row.defense for row in attacked))
    defended = [defense for defense in defenses if defense.partition(":")[0] != "none"] or defenses
    means = {(one.defense, one.attack): one.values for one in summaries if not one.floor}
    return [
        verdict
        for defense in defended
        if any(row.recovered for row in attacked if row.defense == defense)
        for verdict in _of_defense(defense, attacked, rows, means, registered)
    ]


def _of_defense(
    defense: str,
    attacked: Sequence[Row],
    rows: Sequence[Row],
    means: Mapping[tuple[str, str], Mapping[str, Interval]],
    registered: Mapping[str, Sequence[str]],
) -> list[ThreatVerdict]:
    """One verdict a threat model, and one line on attacks that ask something else."""
    own = [row for row in attacked if row.defense == defense]
    mounted = {_name(row) for row in rows if row.defense == defense}
    left = {model: tuple(name for name in names if name not in mounted) for model, names in registered.items()}
    verdicts = [_verdict(model, own, means, left.get(model, ())) for model in THREAT_MODELS]
    if others := left.get(OTHERS, ()):
        sentence = NOT_TRIED if set(others) == set(registered[OTHERS]) else "see their table"
        verdicts.append(
            ThreatVerdict(defense=defense, threat_model=OTHERS, outcome="not_tried", untried=others, sentence=sentence)
        )
    return verdicts


def _verdict(
    model: ThreatModel,
    rows: Sequence[Row],
    means: Mapping[tuple[str, str], Mapping[str, Interval]],
    untried: tuple[str, ...],
) -> ThreatVerdict:
    """The verdict of the strongest attack that this model's adversary could mount on one defense."""
    within = [row for row in rows if row.threat_model in INCLUDES[model]]
    numbers: dict[str, list[Row]] = {}
    for row in within:
        if deciding(row):
            numbers.setdefault(row.attack, []).append(row)
    ranked = sorted(numbers, key=lambda attack: sum(map(distance, numbers[attack])) / len(numbers[attack]))
    own = [row for row in within if row.threat_model == model]

    def made(
        outcome: Outcome,
        sentence: str,
        attack: str = "",
        against: Sequence[str] = (),
        measured: str = "",
        remarks: Sequence[str] = (),
    ) -> ThreatVerdict:
        return ThreatVerdict(
            defense=rows[0].defense,
            threat_model=model,
            outcome=outcome,
            attack=attack,
            against=tuple(against),
            untried=untried,
            sentence=sentence,
            measured=measured,
            remarks=tuple(remarks),
        )

    if won := [attack for attack in ranked if any(map(falls, numbers[attack]))]:
        winner = max(won, key=lambda attack: _likeness(numbers[attack]))
        best, times = numbers[winner], sum(map(falls, numbers[winner]))
        seeds = f" in {times} of {len(best)} seeds" if len(best) > 1 else ""
        needs = "" if best[0].threat_model == model else f", as under {shown(best[0].threat_model)}"
        needs += ", which holds weights as well" if model == "many_passes" and "lower" in best[0].knowledge else ""
        found = _measured(best, means.get((best[0].defense, winner), {})) + _narrowly(best)
        others = [attack for attack in ranked if attack != winner]
        return made("falls", f"falls to {winner}{needs}{seeds}: {found}", winner, others, found)
    sound = [name for name in ranked if all(map(_sound, numbers[name]))]
    weighty = [name for name in sound if not any(row.doubt for row in numbers[name])]
    if any(row.attack in weighty for row in own):
        found = _measured(numbers[weighty[0]], means.get((rows[0].defense, weighty[0]), {}))
        tried = [row for name in weighty for row in numbers[name]]
        sharper, besides = _sharper(tried), (_single(tried), _unnamed(tried), _failed(within))
        told = f"holds against {', '.join(weighty)}, at the floor{sharper}: {found}{''.join(besides)}"
        remarks = [remark.strip("; ") for remark in (sharper, *besides) if remark]
        return made("holds", told, weighty[0], weighty[1:], found, remarks)
    if doubted := [row for row in own if row.attack in sound]:
        found = _measured(numbers[sound[0]], means.get((rows[0].defense, sound[0]), {}))
        why = next(row.doubt for row in doubted if row.doubt)
        told = f"not shown: {', '.join(sound)} failed ({found}), but {why}"
        return made("not_shown", told, sound[0], sound[1:], found, [why])
    if own and all(row.status == "not_applicable" for row in own):
        return made("not_applicable", f"not possible: {'; '.join(dict.fromkeys(row.reason for row in own))}")
    if own:
        broken = dict.fromkeys(row.attack for row in own if row.status != "not_applicable")
        return made("not_tried", f"no number: {', '.join(broken)} failed", against=ranked)
    return made("not_tried", NOT_TRIED)


def _sound(row: Row) -> bool:
    """Whether the attack passed its control experiments; what is claimed of ε says nothing about its numbers."""
    return all(check.passed for check in row.checks if check.decisive and check.name not in (CLAIM, DECLARED))


def _name(row: Row) -> str:
    """Of the attack, without options."""
    return row.attack.partition(":")[0]


def _failed(rows: Sequence[Row]) -> str:
    """A remark on attacks that ended in an error or did not pass their control experiments."""
    seeds: dict[str, list[bool]] = {}
    for row in rows:
        sound = row.status != "error" and _sound(row)
        seeds.setdefault(row.attack, []).append(sound)
    told = [
        attack + (f" in {each.count(False)} of {len(each)} seeds" if len(each) > 1 else "")
        for attack, each in seeds.items()
        if not all(each)
    ]
    return f"; no sound number: {', '.join(told)}" if told else ""


def _single(rows: Sequence[Row]) -> str:
    """A remark, if some guess is as close as a recovered image is, though all together are no closer than a constant.

    An error of the mean over records hides that: bad guesses at the others cost more than a few good ones gain.
    """
    best = {row.recovered["unaligned"]["ssim"].worst: row for row in rows if "ssim" in row.recovered["unaligned"]}
    if not best or max(best) < _SEEN:
        return ""
    row = best[max(best)]
    guesses = [floor["unaligned"]["ssim"].worst for name, floor in row.floors.items() if name != START]
    if max(guesses, default=0.0) >= max(best):
        return ""
    return f"; but at least one image is recovered: the best guess of {row.attack} has SSIM {max(best):.2f}"


def _unnamed(rows: Sequence[Row]) -> str:
    """A remark, if images were recovered, and only whose they are was not, as where groups are secret.

    Guesses are then matched to the records of a round by the truth, which makes good ones of bad ones to some extent:
    an error of half the mean image's is none of them.
    """
    found = {}
    for row in rows:
        matched, floor = (
            side.get("matched", {}).get("mse") for side in (row.recovered, row.floors.get("mean_image", {}))
        )
        if matched is not None and floor is not None and matched.high < _RECOVERED * floor.value:
            found[matched.value] = row.attack
    if not found:
        return ""
    return (
        f"; but images are recovered, and not whose they are: {found[min(found)]} has MSE {min(found):.4f} once matched"
    )


def _sharper(rows: Sequence[Row]) -> str:
    """A remark, if guesses that are no closer by the deciding metric are closer by SSIM, as sharp ones may be."""
    sharper = {row.recovered["unaligned"]["ssim"].value: row for row in rows if beyond_guesses(row, "ssim")}
    if not sharper:
        return ""
    best = sharper[max(sharper)]
    return f" by {measure(deciding(best)).title} but not by SSIM ({best.attack} {max(sharper):.3f})"


def _likeness(rows: Sequence[Row]) -> float:
    """How close guesses come to the records, by the measure of likeness, and without it by the deciding one."""
    found = [row.recovered["unaligned"] for row in rows]
    names = [likeness(list(own)) for own in found]
    each = [own[name].value if name else -distance(row) for own, name, row in zip(found, names, rows, strict=True)]
    return sum(each) / len(each)


def _measured(rows: Sequence[Row], means: Mapping[str, Interval]) -> str:
    """What one attack reached, beside the strongest constant guess, and with how many queries."""
    own, parts = rows[0].recovered["unaligned"], []
    metric = deciding(rows[0])
    for name in dict.fromkeys(filter(None, (likeness(list(own)), metric))):
        digits = measure(name).digits
        guesses = {
            guess: sum(row.floors[guess]["unaligned"][name].value for row in rows) / len(rows)
            for guess in rows[0].floors
            if guess != START
        }
        guess = (max if own[name].higher_is_closer else min)(guesses, key=lambda one: guesses[one], default="")
        floor = f" ({floor_title(guess)} {guesses[guess]:.{digits}f})" if guess else ""
        parts.append(f"{measure(name).title} {interval(means.get(name, own[name]), digits)}{floor}")
    queries = [row.queries for row in rows if row.queries]
    return ", ".join(parts) + (f"; {max(queries):,} rounds of queries" if queries else "")


def _narrowly(rows: Sequence[Row]) -> str:
    """By how much an attack came closer, if only the differences of the same records show that it did."""
    row = next(row for row in rows if falls(row))
    if falls(row.model_copy(update={"ahead": {}})):
        return ""
    least = min((row.ahead[guess][deciding(row)] for guess in row.floors if guess != START), key=lambda one: one.low)
    return f"; closer by {interval(least, 4)} record by record"


def told(verdicts: Sequence[ThreatVerdict]) -> list[str]:
    """The verdicts as lines for a terminal, each defense's below its name."""
    width = max((len(shown(one.threat_model)) for one in verdicts), default=0)
    lines = []
    for number, one in enumerate(verdicts):
        if not number or one.defense != verdicts[number - 1].defense:
            lines.append(one.defense)
        others = f"; also mounted: {', '.join(one.against)}" if one.against else ""
        left = f"not tried: {', '.join(one.untried)}" if one.untried else ""
        sentence = left if one.sentence == NOT_TRIED and left else f"{one.sentence}{others}{'; ' if left else ''}{left}"
        lines.append(f"  {shown(one.threat_model):<{width}}  {sentence}")
    return lines


def threats_table(verdicts: Sequence[ThreatVerdict]) -> Table | None:
    """One line a verdict; None where there is none."""
    lines = tuple(
        (one.defense, shown(one.threat_model), one.sentence, ", ".join(one.against), ", ".join(one.untried))
        for one in verdicts
    )
    return (
        Table(headers=HEADERS, rows=lines, floor=tuple(one.outcome == "not_tried" for one in verdicts))
        if lines
        else None
    )


def threats_csv(verdicts: Sequence[ThreatVerdict]) -> str:
    """One line a verdict, names of attacks apart by spaces."""
    apart = {"against": " ", "untried": " ", "remarks": "; "}
    return csv_text(
        [one.model_dump() | {name: by.join(getattr(one, name)) for name, by in apart.items()} for one in verdicts]
    )
