"""Verdicts on each defense under each threat model: the attack that breaks it, or the attacks that it withstands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from privkit.reports.columns import BY_PATTERN, CONVERGED, OWN_MATCH, START, flat_csv, flattened
from privkit.reports.schema import Frozen, Metric, Row, Summary
from privkit.reports.strongest import (
    Twins,
    as_error,
    began,
    counted,
    distance,
    falls,
    grade,
    identified_share,
    metric_of,
    powerless,
    sound,
    twin_of,
    undefended,
    undefended_rows,
    without_options,
)
from privkit.reports.tables import Table, interval, rounds_of
from privkit.shared.grouped import grouped
from privkit.shared.interval import Interval
from privkit.shared.measures import CLASS_MEAN, CONSTANT_ATTACKS, FLOORS, IDENTIFIED, floor_title, likeness, measure
from privkit.shared.threat_models import INCLUDES, THREAT_MODELS, ThreatModel, threat_name

Outcome = Literal["falls", "class", "holds", "not_shown", "no_number", "not_applicable", "not_tried"]

_HEADERS = ("defense", "threat model", "verdict", "other attacks mounted", "not tried")
MEANING = (
    "A defense falls if an attack comes closer to the records than every constant guess and than the mean of each "
    "record's true class (for texts and tables also closer than random own records): the 99 % interval of the mean "
    "difference over records, in MSE for images, ROUGE-1 for texts and share of cells for tables, lies above 0. It "
    "also falls if an attack identifies more records than any guess by the label. If an attack beats only the guesses "
    "that use no label, the defense gives away the class. A defense holds against an attack that fails on it, if the "
    "same attack with the same seed and budget wins on the undefended model, and more training would not improve the "
    "attack. In all other cases, nothing is shown. Of several attacks, the one with the highest SSIM, ROUGE-1 or share "
    "of cells is named. A threat model includes every attack that its adversary can run; --attack all runs what was "
    "not tried."
)
THREATS_NOTE = (
    f"{MEANING} {' '.join(f'{threat_name(name).capitalize()}: {what}.' for name, what in THREAT_MODELS.items())}"
)
NOT_TRIED, NO_NUMBER = "not tried", "no sound number"
FAILED_CONTROL = "failed its control, so its guesses may come from elsewhere than the release"
"""The remark on the attack to which a defense falls, if no attack that passed its controls reveals a record."""
STRONGER = "a stronger attack is known and was not mounted"  # first words of the remark on a known stronger attack
_UNCOMPARED = "compared with constant guesses alone"  # the remark on rows without the class mean
_SEEN = 0.9  # an image counts as recovered if the SSIM of its guess is at least this
_RECOVERED = 0.5  # matched guesses count as recovered if their error is below this share of a constant guess's error
_LARGE = 0.1  # a possible reduction of the error is named if it is at least this share of the error
_NO_CONSTANTS = {START, *(floor.name for floor in FLOORS.values() if floor.labels)}
OTHERS = "labels, members, canaries"  # replaces the threat model for attacks that do not reconstruct records


class KnownOutcome(NamedTuple):
    """The outcome of an attack on a defense with default options, measured by privkit on images of digits."""

    attack: str
    threat_model: str
    ssim: float


class ThreatVerdict(Frozen):
    """The verdict on one defense under one threat model."""

    defense: str  # the defense's label
    threat_model: str  # one of `THREAT_MODELS`, or `OTHERS`
    # "falls": `attack` reveals records. "class": an attack reveals only classes. "holds": the defense withstands the
    # mounted attacks. "not_shown": attacks failed, but this is no evidence for the defense. For example, they also fail
    # on the undefended model, were still learning, or did not read all that the server got (`Row.doubt`). The other
    # outcomes are on attacks that need exactly this threat model. "no_number": every such attack failed its control or
    # ended in an error. "not_applicable": no such attack applies. "not_tried": no such attack was mounted
    outcome: Outcome
    # the attack that decides the verdict; empty if no attack decides it
    attack: str = ""
    against: tuple[str, ...] = ()  # the other attacks that gave sound numbers
    untried: tuple[str, ...] = ()  # registered attacks of exactly this threat model that were not mounted
    sentence: str  # the verdict in words
    measured: str = ""  # the result of `attack`, as worded in the sentence
    remarks: tuple[str, ...] = ()  # reservations about the verdict, as worded in the sentence
    identified: Interval | None = None  # share of the attacked records that `attack` identifies; None if not counted
    # share of records that `attack` identifies on the undefended model, mean over the seeds with which it ran there
    undefended: float | None = None

    @property
    def uncontrolled(self) -> bool:
        """Whether only attacks that failed their control experiments (tests with a known result) break the defense."""
        return self.outcome == "falls" and any(remark.endswith(FAILED_CONTROL) for remark in self.remarks)


def threat_verdicts(
    rows: Sequence[Row],
    summaries: Sequence[Summary],
    registered: Mapping[str, Sequence[str]],
    known: Mapping[str, Sequence[KnownOutcome]] = MappingProxyType({}),
) -> list[ThreatVerdict]:
    """The verdicts on every defense whose records were attacked. If there is no defense, the undefended model is
    judged.

    `summaries` are the means over seeds of the rows that `counted` returns. `registered` has the attacks that are
    possible on these records, by threat model (or `OTHERS`). `known` has the attacks that broke a defense in privkit's
    own measurements, by the defense's label.
    """
    elsewhere = {*CONSTANT_ATTACKS, *registered.get(OTHERS, ())}
    reads = [row for row in rows if row.threat_model and _name(row) not in elsewhere and "auc" not in row.answers]
    attacked = [counted(row) for row in reads]
    defenses = list(dict.fromkeys(row.defense for row in attacked))
    defended = [defense for defense in defenses if not undefended(defense)] or defenses
    means = {(one.defense, one.attack): one.values for one in summaries if not one.floor}
    twins = undefended_rows(attacked)
    verdicts = []
    for defense in defended:
        own = [row for row in attacked if row.defense == defense]
        if not any(row.recovered for row in own):
            continue
        mounted = {_name(row) for row in rows if row.defense == defense}
        left = {model: tuple(name for name in names if name not in mounted) for model, names in registered.items()}
        labels = {row.attack for row in own}
        stronger = [one for one in known.get(defense, ()) if one.attack not in labels]
        verdicts += [_verdict(model, own, twins, means, left.get(model, ()), stronger) for model in THREAT_MODELS]
        if others := left.get(OTHERS, ()):
            said = NOT_TRIED if set(others) == set(registered[OTHERS]) else "see the table of these attacks"
            verdicts.append(
                ThreatVerdict(defense=defense, threat_model=OTHERS, outcome="not_tried", untried=others, sentence=said)
            )
    return verdicts


def _verdict(
    model: ThreatModel,
    rows: Sequence[Row],
    twins: Twins,
    means: Mapping[tuple[str, str], Mapping[str, Interval]],
    untried: tuple[str, ...],
    known: Sequence[KnownOutcome],
) -> ThreatVerdict:
    within = [row for row in rows if row.threat_model in INCLUDES[model]]
    numbers = grouped(filter(metric_of, within), lambda row: row.attack)
    ranked = sorted(numbers, key=lambda attack: sum(map(distance, numbers[attack])) / len(numbers[attack]))
    own = [row for row in within if row.threat_model == model]
    given: dict[str, Any] = {"defense": rows[0].defense, "threat_model": model, "untried": untried}

    def made(
        outcome: Outcome, before: str, attack: str, others: Sequence[str], remarks: Iterable[str]
    ) -> ThreatVerdict:
        best, over = numbers[attack], means.get((rows[0].defense, attack), {})
        bare = [twin for row in best if (twin := twin_of(row, twins)) is not None and twin is not row]
        found, kept = _measured(best, bare, over), tuple(filter(None, remarks))
        return ThreatVerdict(
            **given,
            outcome=outcome,
            attack=attack,
            against=tuple(other for other in others if other != attack),
            sentence="; ".join((f"{before}: {found}", *kept)),
            measured=found,
            remarks=kept,
            identified=over.get(IDENTIFIED.name, identified_share(best[0].recovered)),
            undefended=_share(bare),
        )

    passed = [name for name in ranked if all(map(sound, numbers[name]))]
    if won := [attack for attack in ranked if any(map(falls, numbers[attack]))]:
        sure = [attack for attack in won if any(falls(row) and sound(row) for row in numbers[attack])]
        winner = max(sure or won, key=lambda attack: _likeness(numbers[attack]))
        best, times = numbers[winner], sum(map(falls, numbers[winner]))
        seeds = f" in {times} of {len(best)} seeds" if len(best) > 1 else ""
        needs = "" if best[0].threat_model == model else f", as under {threat_name(best[0].threat_model)}"
        failed = _failed([row for row in within if row.status == "done" and (sure or row.attack != winner)])
        doubt = "" if sure else f"{winner} {FAILED_CONTROL}"
        remarks = [doubt, _narrowly(best), _by_start(best), _uncompared(best), failed]
        return made("falls", f"falls to {winner}{needs}{seeds}", winner, passed, remarks)
    mine = [name for name in passed if name in {row.attack for row in own}]
    if mine:
        why = {name: _unshown(numbers[name], twins) for name in passed}
        shows = [name for name in passed if not why[name]]
        tried = [row for name in passed for row in numbers[name]]
        classes = [name for name in passed if any(grade(row) == "class" for row in numbers[name])]
        besides = [*_recovered(tried), _failed(within), _elsewhere(model, known), _uncompared(tried)]
        if any(name in shows for name in mine):
            named = (classes or shows)[0]
            power = f"{', '.join(shows)}, which win{'s' * (len(shows) == 1)} on the undefended model"
            if classes:
                return made(
                    "class", f"gives away the class only, to {named}; no record to {power}", named, passed, besides
                )
            return made("holds", f"holds against {power}", named, passed, [_unseen(tried), *besides])
        besides = [f"{classes[0]} gives away the class" if classes else "", *besides]
        return made("not_shown", f"not shown: {why[mine[0]]}; {', '.join(mine)}", mine[0], passed, besides)
    if own and all(row.status == "not_applicable" for row in own):
        said = f"not possible: {'; '.join(dict.fromkeys(row.reason for row in own))}"
        return ThreatVerdict(**given, outcome="not_applicable", sentence=said)
    if said := _failed(own):
        against = tuple(name for name in passed if name not in {row.attack for row in own})
        return ThreatVerdict(**given, outcome="no_number", sentence=said, against=against)
    return ThreatVerdict(**given, outcome="not_tried", sentence=NOT_TRIED)


def _unshown(rows: Sequence[Row], twins: Twins) -> str:
    """The reason why a failed attack does not show that the defense holds; empty if it shows this."""
    for row in rows:
        learning = any(check.name == CONVERGED and check.passed is False for check in row.checks)
        why = row.doubt or powerless(row, twins) or ("the attack was still learning" if learning else "")
        if why:
            return why
    return ""


def _unseen(rows: Sequence[Row]) -> str:
    """A remark that an attack's error may lie far below the error of every constant guess, by upper confidence limits.
    With few records, only large differences are significant."""
    gains = []
    for row in rows:
        metric = metric_of(row)
        floors = {name: floor["unaligned"][metric] for name, floor in row.floors.items() if name not in _NO_CONSTANTS}
        errors = {name: as_error(floor) for name, floor in floors.items() if name in row.ahead}
        known = [row.ahead[name][metric].high / error if error else 0.0 for name, error in errors.items()]
        gains += [min(known)] if known else []
    most = min(max(gains, default=0.0), 1.0)
    return f"an error {100 * most:.0f} % below every constant guess's is not ruled out" if most >= _LARGE else ""


def _elsewhere(model: ThreatModel, known: Sequence[KnownOutcome]) -> str:
    """A remark on the strongest allowed attack that was not run and that broke the defense in privkit's own table."""
    within = [one for one in known if one.threat_model in INCLUDES[model]]
    best = max(within, key=lambda one: one.ssim, default=None)
    if best is None:
        return ""
    return f"{STRONGER}: {best.attack} with SSIM {best.ssim:.3f} on digits"


def _by_start(rows: Sequence[Row]) -> str:
    """A remark if the untrained attack counts instead of the finished attack, or identifies more (mean over seeds)."""
    if times := sum(map(began, rows)):
        return f"counted before its first step{f', in {times} of {len(rows)} seeds' if len(rows) > 1 else ''}"
    shares = [
        [found[IDENTIFIED.name].value for found in (row.recovered["unaligned"], row.floors[START]["unaligned"])]
        for row in rows
        if all(IDENTIFIED.name in known.get("unaligned", {}) for known in (row.recovered, row.floors.get(START, {})))
    ]
    after, before = (sum(each) / len(shares) for each in zip(*shares, strict=True)) if shares else (0.0, 0.0)
    return f"before its first step it identifies more, {before:.2f}" if before > after else ""


def _uncompared(rows: Sequence[Row]) -> str:
    return _UNCOMPARED if not all(CLASS_MEAN.name in row.floors for row in rows) else ""


def _name(row: Row) -> str:
    return without_options(row.attack)


def _failed(rows: Sequence[Row]) -> str:
    seeds: dict[str, list[str]] = {}
    for row in rows:
        how = "ended in an error" if row.status == "error" else "" if sound(row) else "failed its control"
        seeds.setdefault(row.attack, []).append(how)
    told = [
        f"{attack} {' or '.join(dict.fromkeys(filter(None, each)))}"
        + (f" in {len(each) - each.count('')} of {len(each)} seeds" if len(each) > 1 else "")
        for attack, each in seeds.items()
        if any(each)
    ]
    return f"{NO_NUMBER}: {', '.join(told)}" if told else ""


def _recovered(rows: Sequence[Row]) -> list[str]:
    """Remarks on images that attacks recovered, although their guesses are no closer than constant guesses."""
    shown = [f"but {check.detail}" for row in rows for check in row.checks if check.name == BY_PATTERN]
    return [_single(rows), _unnamed(rows), *shown[:1]]


def _single(rows: Sequence[Row]) -> str:
    """A remark if one guess recovers an image, although the guesses on average are no closer than a constant guess. A
    mean error over records hides this image, because many bad guesses outweigh it."""
    best = {row.recovered["unaligned"]["ssim"].worst: row for row in rows if "ssim" in row.recovered["unaligned"]}
    if not best or max(best) < _SEEN:
        return ""
    row = best[max(best)]
    guesses = [floor["unaligned"]["ssim"].worst for name, floor in row.floors.items() if name != START]
    if max(guesses, default=0.0) >= max(best):
        return ""
    return f"but at least one image is recovered: the best guess of {row.attack} has SSIM {max(best):.2f}"


def _unnamed(rows: Sequence[Row]) -> str:
    """A remark if records were recovered, though not which is which, for example if the groups of a mixture are secret.

    Guesses are then matched to a message's records by comparison with the truth. The matching favors even bad guesses,
    but cannot explain an error below half the error of the best constant guess. There is no remark if the adversary's
    own records, taken as guesses, match as well (`OWN_MATCH`).
    """
    found: dict[float, tuple[Row, Metric]] = {}
    for row in rows:
        metric = metric_of(row)
        sides = {name: floor.get("matched", {}) for name, floor in row.floors.items() if name not in _NO_CONSTANTS}
        floors = [as_error(own[metric]) for own in sides.values() if metric in own]
        matched = row.recovered.get("matched", {}).get(metric)
        if matched is None or not floors or any(check.name == OWN_MATCH for check in row.checks):
            continue
        if (1 - matched.low if matched.higher_is_closer else matched.high) < _RECOVERED * min(floors):
            found[as_error(matched)] = row, matched
    if not found:
        return ""
    row, best = found[min(found)]
    what = measure(metric_of(row))
    return (
        f"but {row.records} are recovered, though not which is which: after matching, {row.attack} has {what.title} "
        f"{best.value:.{what.digits}f}"
    )


def _likeness(rows: Sequence[Row]) -> float:
    """The mean closeness of guesses to the records: the measure of likeness or, without such a measure, the negative
    distance."""
    found = [row.recovered["unaligned"] for row in rows]
    names = [likeness(list(own)) for own in found]
    each = [own[name].value if name else -distance(row) for own, name, row in zip(found, names, rows, strict=True)]
    return sum(each) / len(each)


def _share(rows: Sequence[Row]) -> float | None:
    values = [one.value for row in rows if (one := identified_share(row.recovered)) is not None]
    return sum(values) / len(values) if values else None


def _measured(rows: Sequence[Row], bare: Sequence[Row], means: Mapping[str, Interval]) -> str:
    own, metric, parts = rows[0].recovered["unaligned"], metric_of(rows[0]), []
    for name in dict.fromkeys(name for name in (likeness(list(own)), metric, IDENTIFIED.name) if name in own):
        digits = 2 if name == IDENTIFIED.name else measure(name).digits
        guesses = {
            guess: sum(row.floors[guess]["unaligned"][name].value for row in rows) / len(rows)
            for guess in rows[0].floors
            if guess != START and name in rows[0].floors[guess]["unaligned"]
        }
        guess = (max if own[name].higher_is_closer else min)(guesses, key=lambda one: guesses[one], default="")
        beside = [f"{floor_title(guess)} {guesses[guess]:.{digits}f}"] if guess else []
        if name == IDENTIFIED.name and (share := _share(bare)) is not None:
            seeds = f" in {len(bare)} of {len(rows)} seeds" if len(bare) < len(rows) else ""
            beside.append(f"undefended {share:.2f}{seeds}")
        held = f" ({', '.join(beside)})" if beside else ""
        parts.append(f"{measure(name).title} {interval(means.get(name, own[name]), digits)}{held}")
    queries = [row.queries for row in rows if row.queries]
    return ", ".join(parts) + (f"; {rounds_of(max(queries))}" if queries else "")


def _narrowly(rows: Sequence[Row]) -> str:
    """A remark if only a comparison of errors record by record shows that an attack is better than guesses without the
    release. The remark gives the smallest mean difference with its interval."""
    row = next(row for row in rows if falls(row))
    if falls(row.model_copy(update={"ahead": {}})):
        return ""
    least = min((row.ahead[guess][metric_of(row)] for guess in row.floors if guess != START), key=lambda one: one.low)
    return f"closer by {interval(least, 4)}, compared record by record"


def told(verdicts: Sequence[ThreatVerdict]) -> list[str]:
    """The verdicts as lines for a terminal, grouped by defense."""
    width = max((len(threat_name(one.threat_model)) for one in verdicts), default=0)
    lines = []
    for defense, own in grouped(verdicts, lambda one: one.defense).items():
        lines += [defense, *(f"  {threat_name(one.threat_model):<{width}}  {in_words(one)}" for one in own)]
    return lines


def in_words(one: ThreatVerdict) -> str:
    """A verdict in words, with the other attacks that were run, and the attacks that were not tried."""
    others = f"also mounted: {', '.join(one.against)}" if one.against else ""
    left = f"{NOT_TRIED}: {', '.join(one.untried)}" if one.untried else ""
    return "; ".join(filter(None, ("" if one.sentence == NOT_TRIED and left else one.sentence, others, left)))


def threats_table(verdicts: Sequence[ThreatVerdict]) -> Table | None:
    """A table with one line for each verdict; None without verdicts."""
    if not verdicts:
        return None
    lines = tuple(
        (one.defense, threat_name(one.threat_model), one.sentence, ", ".join(one.against), ", ".join(one.untried))
        for one in verdicts
    )
    return Table(headers=_HEADERS, rows=lines, floor=tuple(v.outcome in ("not_tried", "no_number") for v in verdicts))


def threats_csv(verdicts: Sequence[ThreatVerdict]) -> str:
    """CSV with one line for each verdict; names of attacks are separated by spaces."""
    apart = {"against": " ", "untried": " ", "remarks": "; "}
    lines = []
    for one in verdicts:
        found = {} if one.identified is None else {IDENTIFIED.name: one.identified}
        joined = {name: by.join(getattr(one, name)) for name, by in apart.items()}
        lines.append(one.model_dump(exclude={IDENTIFIED.name}) | joined | flattened(found))
    return flat_csv(lines)
