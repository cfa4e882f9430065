"""Evidence of a run for an impact assessment or a model card: sentences and numbers of result rows and verdicts.

Nothing is computed again, and no sentence claims more than the verdict.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields

from privkit.reports.columns import CLAIM, DECLARATION, START
from privkit.reports.conclusion import Conclusion, conclusions
from privkit.reports.evidence_schema import (
    C11_2,
    COVERED,
    MEMBERSHIP,
    NOT_COVERED,
    UNRECOVERED,
    Answer,
    Audited,
    Claim,
    Evidence,
    MeasuredDefense,
    Origin,
    ProofStanding,
    Requirement,
    Share,
    Untried,
)
from privkit.reports.origins import mixture
from privkit.reports.page import label
from privkit.reports.schema import Manifest, Provenance, Row
from privkit.reports.sections import by_defense, made_of
from privkit.reports.strongest import BEFORE, began, counted, identified_share, undefended, without_options
from privkit.reports.tables import interval
from privkit.reports.threats import ThreatVerdict
from privkit.reports.verdict import Verdict
from privkit.shared.certificate import Certificate
from privkit.shared.grouped import grouped
from privkit.shared.interval import Interval
from privkit.shared.limits import NO_USE
from privkit.shared.measures import CONSTANT_ATTACKS, TOLD_APART
from privkit.shared.own_records import hold_attacked
from privkit.shared.threat_models import INCLUDES, THREAT_MODELS, ThreatModel, threat_name

LIMITS = (
    "It reports the attacks that were run and the claims that were made here. Another attack may recover more.",
    "A share of identified records is a mean over the attacked records. One person's record may be at higher risk.",
    "The share's interval covers the choice of records, but not other trainings or the choice of the attack.",
    "The attacks use the data that cross the cut of the split network. Other outputs of a system were not attacked.",
    "A requirement is not met because it is named here: the assessor of the system decides that.",
    "Checksums identify the data, code and rows behind the numbers, but not who wrote them.",
)
"""Sentences in which the document states its limits."""
RECORDED = (
    "What crossed the cut was recorded by whoever owns the system. privkit did not see the training; what it could not "
    "check is noted above."
)
"""A further limit, which the document states for recordings."""
_UNMEASURED = ("not_tried", "not_applicable", "no_number")  # outcomes without a number
_FALLEN = ("refuted", "no proof")  # values of `standing` with which a claim's ε is no evidence


def evidence(
    rows: Sequence[Row],
    threats: Sequence[ThreatVerdict],
    manifest: Manifest,
    verdict: Verdict,
    records: Mapping[str, str],
) -> Evidence:
    """Build the evidence of a run with at least one result row. `rows` are the run's results, and `threats` the
    verdicts by threat model. `records` maps paths of the run's files to their SHA-256."""
    groups = by_defense(rows)
    defenses = [defense for defense in groups if not undefended(defense)] or list(groups)
    guesses = [counted(row) for row in rows]  # conclusions count by themselves
    judged = [_measured(one, model, guesses) for one in threats for model in THREAT_MODELS if model == one.threat_model]
    measured = [one for one in judged if one.identified or one.outcome not in _UNMEASURED]
    answers = [_answer(row) for row in rows if "auc" in row.answers]
    claims = [claim for defense in defenses for claim in _claims(groups[defense])]
    concluded = [_concluded(one, claims) for one in conclusions(rows, threats)]
    numbered = {one.defense for one in measured if one.outcome not in _UNMEASURED}
    return Evidence(
        run=manifest.fingerprint,
        title=f"Evidence of a privacy audit: {', '.join(defenses)}",
        audited=_audited(rows, defenses, manifest, verdict),
        conclusions=tuple(concluded),
        measured=tuple(measured),
        answers=tuple(answers),
        claims=tuple(claims),
        untried=tuple(_untried(defenses, threats, verdict)),
        requirements=tuple(_requirements([one for one in concluded if one.defense in numbered], answers, claims)),
        origins=tuple(_origin(members, made) for members, made in made_of(rows)),
        records=dict(records),
        limits=LIMITS + (RECORDED,) * any(map(_recorded, rows)),
    )


def _origin(rows: Sequence[Row], made: Provenance) -> Origin:
    parts = {f"{section} {key}": value for section, found in made for key, value in found.items()}
    return Origin(heading=f"{len(rows)} row{'s' * (len(rows) > 1)}", rows=tuple(map(label, rows)), made_of=parts)


def _recorded(row: Row) -> bool:
    """Whether a result row is from a recording, so that privkit did not observe the training or the network's task."""
    return "recording.json" in row.provenance.data


def _concluded(one: Conclusion, claims: Sequence[Claim]) -> Conclusion:
    """The conclusion on a defense. If claims on this defense are refuted or are no proofs, `claim` says so."""
    fallen = [claim.privacy for claim in claims if claim.defense == one.defense and claim.standing in _FALLEN]
    return one.model_copy(update={"claim": "; ".join(fallen)}) if fallen else one


def _audited(rows: Sequence[Row], defenses: Sequence[str], manifest: Manifest, verdict: Verdict) -> Audited:
    first = rows[0]
    counts = [f"{number:,} {name.replace('_', ' ')}" for name, number in first.counts.items() if number]
    told = [] if _recorded(first) else [f"partition {_distinct(row.partition for row in rows)}"]
    network = (
        _distinct(row.model for row in rows),
        f"protocol {_distinct(row.protocol for row in rows)}",
        *told,
        f"batch {first.batch_size}",
        _distinct(", ".join(row.arrangement) or "arrangement not recorded" for row in rows),
    )
    return Audited(
        data=f"{_distinct(row.dataset for row in rows)}, {first.records}: {', '.join(counts) or 'not counted'}; "
        f"{first.attacked} ones are attacked, and the adversary's own records are {first.auxiliary}"
        + (", with the attacked ones among them" if hold_attacked(first.auxiliary, first.attacked) else ""),
        network="; ".join(network),
        defenses=tuple(defenses),
        state=verdict.sentence,
        gates=verdict.gates,
        failures=verdict.failures,
        notes=tuple(dict.fromkeys(note for row in rows for note in row.notes)),
        exit_code=verdict.exit_code,
        mixed=mixture(rows),
        command=shlex.join(manifest.argv),
        made=f"{manifest.created}, by privkit {manifest.privkit}",
    )


def _distinct(names: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(names))


def _measured(one: ThreatVerdict, model: ThreatModel, rows: Sequence[Row]) -> MeasuredDefense:
    within = [row for row in rows if row.defense == one.defense and row.threat_model in INCLUDES[model]]
    return MeasuredDefense(
        **one.model_dump(include={"defense", "threat_model", "outcome", "sentence", "against"}),
        heading=f"{one.defense}: {threat_name(model)}",
        adversary=THREAT_MODELS[model],
        identified=tuple(_shares(one, within)),
    )


def _shares(one: ThreatVerdict, rows: Sequence[Row]) -> list[Share]:
    """Shares of identified records, one for each seed, for the attack that identifies most, among those on which the
    verdict rests. If another attack identifies more, for example one that failed its control experiments, the shares of
    this attack follow."""
    groups: dict[str, list[tuple[Row, Interval]]] = {}
    for row in rows:
        found = identified_share(row.recovered)
        if found is not None and without_options(row.attack) not in CONSTANT_ATTACKS:
            groups.setdefault(row.attack, []).append((row, found))
    means = {attack: sum(found.value for _, found in each) / len(each) for attack, each in groups.items()}
    counted = {one.attack, *one.against} if one.attack else set()
    best = max(counted & means.keys(), key=lambda attack: (means[attack], attack), default="")
    most = max(means, key=lambda attack: (means[attack], attack in counted), default="")
    chosen = dict.fromkeys(filter(None, (best, most)))
    return [_share(row, found, attack in counted) for attack in chosen for row, found in groups[attack]]


def _share(row: Row, found: Interval, counted: bool) -> Share:
    floors = [identified_share(floor) for name, floor in row.floors.items() if name != START]
    guess = max((floor.value for floor in floors if floor is not None), default=None)
    count = round(found.value * found.n, 6)  # a whole number up to rounding, except for ties
    parts = (
        f"{round(count, 1):.12g} of {found.n} {row.records} among {found.n} candidates by {row.attack}"
        f"{BEFORE * began(row)}, seed {row.seed}: {interval(found)}, {100 * found.confidence:g} % {found.method}",
        "" if guess is None else f"the best guess without the release reaches {guess:.3f}",
        "" if counted else "the verdict does not rest on this attack",
        *_reservations(row),
    )
    return Share(
        attack=row.attack,
        seed=row.seed,
        count=count,
        of=found.n,
        candidates=found.n,
        share=Interval(**{field.name: getattr(found, field.name) for field in fields(Interval)}),
        counted=counted,
        sentence="; ".join(filter(None, parts)),
    )


def _reservations(row: Row) -> list[str]:
    failed = [check for check in row.checks if check.decisive and not check.passed]
    told = [f"{'' if check.name in (CLAIM, DECLARATION) else 'its control failed: '}{check.detail}" for check in failed]
    return [*told, *filter(None, [row.doubt])]


def _answer(row: Row) -> Answer:
    said = []
    for one in (one for one in TOLD_APART if one.name in row.answers):
        value, title = row.answers[one.name], one.heading.rstrip(" ↑↓").partition(" →")[0]
        said.append(f"{title} {interval(value, one.digits)}, {100 * value.confidence:g} % {value.method}")
    return Answer(
        **row.model_dump(include={"defense", "attack", "seed"}),
        heading=label(row),
        answers=row.answers,
        sentence="; ".join(said),
        bound=row.empirical_bound.statement if row.empirical_bound else "",
        reservations=tuple(_reservations(row)),
    )


def _claims(rows: Sequence[Row]) -> list[Claim]:
    done = [row for row in rows if row.status == "done"] or rows  # other rows' claims may count passes that nobody sent
    groups = grouped((row for row in done if row.certificate), lambda row: repr(row.certificate)).values()
    failed = (check for row in rows for check in row.checks if check.name in (CLAIM, DECLARATION))
    against = tuple(dict.fromkeys(check.detail for check in failed if check.passed is False))
    unknown = Certificate(kind="nothing", statement="no row records what is claimed")
    return [_claim(group[0].certificate or unknown, group, against) for group in groups or [rows]]


def _claim(found: Certificate, rows: Sequence[Row], against: tuple[str, ...]) -> Claim:
    private = found.kind == "differential_privacy"
    epsilon = found.epsilon if private else None
    words: dict[ProofStanding, bool] = {
        "not recorded": rows[0].certificate is None,
        "no proof": not found.sound,
        "refuted": bool(against),
        "nothing": found.kind == "nothing",
        found.standing: True,
    }
    standing = next(word for word, earned in words.items() if earned)
    privacy = "no differential privacy is proven, and none is declared"
    if standing == "refuted":
        privacy = "refuted: what is declared contradicts what was measured, so no differential privacy is proven"
    if epsilon is not None:
        only = " of the labels alone" if found.covers == "labels" else ""
        least = "no lower bound is known"
        if found.lower is not None:  # the bound holds for the worst network, which need not be this one
            least = f"no proof from the clip and the noise alone gives less than ε = {found.lower!r}"
        remark = NO_USE if standing not in _FALLEN and all(row.remark for row in rows) else ""
        said = f"{standing}: ε = {epsilon!r} at δ = {found.delta!r}{only}"
        privacy = "; ".join(filter(None, (said, least, remark)))
    return Claim(
        heading=f"{rows[0].defense}: {standing}",
        defense=rows[0].defense,
        standing=standing,
        privacy=privacy,
        statement=found.statement,
        objections=(*filter(None, [found.objection]), *against),
        unit=f"one {found.unit}" if found.unit else "",
        adjacency=found.relation.replace("_", "-") if found.relation else "",
        composition=f"{found.method or 'method not recorded'} ({found.source})" if private else "",
        assumptions=found.assumptions,
        attacks=tuple(dict.fromkeys(row.attack for row in rows)),
        epsilon=epsilon,
        delta=found.delta,
    )


def _untried(defenses: Sequence[str], threats: Sequence[ThreatVerdict], verdict: Verdict) -> Iterator[Untried]:
    for one in threats:
        reason = one.sentence if one.outcome in _UNMEASURED and one.threat_model in THREAT_MODELS else ""
        if reason or one.untried:
            yield Untried(heading=f"{one.defense}: {threat_name(one.threat_model)}", reason=reason, attacks=one.untried)
    for defense in defenses:
        if defense not in {one.defense for one in threats}:
            yield Untried(heading=f"{defense}: all threat models", reason=UNRECOVERED, attacks=())
    for cell in verdict.cells:
        if cell.status != "done":
            reason = ": ".join(filter(None, (cell.status.replace("_", " "), cell.reason)))
            yield Untried(heading=f"{cell.defense} / {cell.attack}, seed {cell.seed}", reason=reason, attacks=())


def _requirements(
    concluded: Sequence[Conclusion], answers: Sequence[Answer], claims: Sequence[Claim]
) -> list[Requirement]:
    members = [one for one in answers if without_options(one.attack) == MEMBERSHIP]
    private = [one for one in claims if one.epsilon is not None and one.standing not in _FALLEN]
    rows = {
        ", objective": [f"{one.defense}: {one.models}" for one in concluded],
        ".4": [f"{one.defense}, of what crosses the cut: {one.privacy}" for one in private],
        ".5": ["; ".join((f"{one.heading}: {_beyond(one)}", one.sentence, *one.reservations)) for one in members],
    }
    return [
        Requirement(
            heading=f"C11.2{number}",
            coverage=COVERED if rows.get(number) else NOT_COVERED,
            asks=asks,
            rows=tuple(rows.get(number, ())),
        )
        for number, asks in C11_2.items()
    ]


def _beyond(one: Answer) -> str:
    auc = one.answers["auc"]
    return f"more than random guessing is {'' if auc.low > 0.5 or auc.high < 0.5 else 'not '}shown"
