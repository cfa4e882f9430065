"""The registry of measured settings of defenses, and the place of a run's settings among them."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from math import inf
from pathlib import Path

from privkit.reports.columns import START, flat_csv
from privkit.reports.schema import Frozen, Metric, Row
from privkit.reports.seed_intervals import over_intervals
from privkit.reports.strongest import identified_share, sound, undefended
from privkit.reports.tables import UNKNOWN, Table, claim_text, interval
from privkit.reports.threats import STRONGER, Outcome, ThreatVerdict
from privkit.shared.grouped import grouped
from privkit.shared.interval import Interval, clopper_pearson
from privkit.shared.measures import CONSTANT_ATTACKS, UNIT, likeness
from privkit.shared.threat_models import INCLUDES, THREAT_MODELS, ThreatModel, threat_name

REGISTRY = Path(__file__).with_suffix(".csv")
"""File with a line for each setting, adversary and seed, as `python benchmarks/run.py registry` measured it."""
REGISTRY_NOTE = (
    "Identified: share of the attacked records whose guess is nearer to them than to any other attacked one, under the "
    "mounted attack that identifies most. Places are by means over seeds. Two shares whose intervals overlap may have "
    "either order. At least as good: no less accurate, and no more identified."
)


class Entry(Frozen):
    """The measured result of one setting (a defense with its options) against one adversary, with one seed."""

    dataset: str  # the dataset whose records were attacked
    model: str  # the network
    defense: str  # the defense, with the options that differ from their defaults
    threat_model: ThreatModel  # the adversary
    seed: int  # the run's seed
    # the verdict with this seed; also "not_shown" if the defense withstands, but a known stronger attack is not mounted
    outcome: Outcome
    attack: str  # the attack that identifies most records, among the attacks on which the verdict rests
    victims: int  # number of attacked records
    identified: float  # share of the attacked records that `attack` identifies, in [0, 1]
    chance: float  # the largest share that a guess without the release identifies
    # share that the same attack identifies on the undefended model; the strongest attack's share if the same attack
    # was not run there; None if the undefended model was not attacked
    undefended: float | None
    likeness: float | None  # SSIM of images, or the measure of likeness of other records; None without a value
    accuracy: float  # accuracy of the task
    bare_accuracy: float | None  # accuracy of the undefended model; None if it was not trained
    claim: str  # the proven or declared claim, as in a table's cell
    # bytes per record in both directions, divided by those of the undefended model; None if not counted
    traffic: float | None
    own: int  # number of the adversary's own records
    queries: int  # number of rounds in which the attack sent its own records
    seconds: float  # the attack's seconds on the CPU
    commit: str  # privkit's commit, or "unknown"


class MeasuredSetting(Frozen):
    """The result of one setting of a defense against one adversary, over seeds. Numbers are means over seeds; the share
    of identified records has an interval."""

    dataset: str
    model: str
    defense: str
    threat_model: ThreatModel
    seeds: tuple[int, ...]
    outcomes: tuple[Outcome, ...]  # the verdict of each seed
    attack: str  # the attack that identifies most records
    victims: int  # number of attacked records
    own: int  # number of the adversary's own records
    identified: Interval  # share of the attacked records that the strongest attack identifies, in [0, 1]
    chance: float  # the largest share that a guess without the release identifies
    accuracy: float  # accuracy of the task
    bare_accuracy: float | None  # accuracy of the undefended model; None if it was not trained
    claim: str  # the proven or declared claim
    traffic: float | None  # bytes per record in both directions, divided by the undefended model's; None if not counted

    @property
    def named(self) -> str:
        """The setting with its share of identified records and its accuracy, as a part of a sentence."""
        return f"{self.defense} (identified {self.identified.value:.2f}, accuracy {self.accuracy:.2f})"


class RegistryPlace(Frozen):
    """The rank of a user's setting among the registered settings with the same dataset and adversary."""

    setting: MeasuredSetting  # the user's setting
    peers: int  # number of other registered settings with the same dataset, adversary and number of attacked records
    # the registered setting with the next larger share of identified records; None if there is none, or if it is not
    # shown that the user's setting withstands
    more: MeasuredSetting | None
    less: MeasuredSetting | None  # the registered setting with the next smaller or equal share; None if there is none
    better: tuple[MeasuredSetting, ...]  # registered settings that dominate the user's, the smallest share first
    registered: MeasuredSetting | None  # the registry's measurement of the same setting
    mounted: tuple[str, ...] = ()  # the attacks that this adversary could mount and that gave sound numbers
    # whether one of these attacks needs exactly this adversary; if a weaker adversary could mount them all, the setting
    # gets no place
    tried: bool = True
    failed: tuple[str, ...] = ()  # attacks that need exactly this adversary, gave numbers, and failed their controls
    named: int = 0  # number of attacks on which the measurements of the other settings rest

    @property
    def untried(self) -> str:
        """Why the setting has no place, in a few words; only for a setting without one."""
        control = "its control" if len(self.failed) == 1 else "their controls"
        return f"no sound attack ({', '.join(self.failed)} failed {control})" if self.failed else "not tried here"

    @property
    def sentence(self) -> str:
        """The setting's place among the registered settings, in words."""
        who, rest = threat_name(self.setting.threat_model), f"the registry's rows on {self.named}"
        if not self.tried:
            return f"{who}: {self.untried} on {self.setting.defense}; {rest} attack{'s' * (self.named != 1)}"
        basis = f"; this place rests on {len(self.mounted)} attack{'s' * (len(self.mounted) != 1)}, {rest}"
        if "not_shown" in self.setting.outcomes:
            least = f"gives away no less than {self.less.named}, and " if self.less else ""
            where = f"{least}is not shown to give away less than any other"
        elif self.more and self.less:
            where = f"lies between {self.more.named} and {self.less.named}"
        elif self.more:
            where = f"gives away no more than any other; the next is {self.more.named}"
        else:
            where = f"gives away no less than any other; the next is {self.less.named if self.less else UNKNOWN}"
        ahead = (
            f"; at least as accurate and no more identified: {', '.join(one.defense for one in self.better[:3])}"
            if self.better
            else ""
        )
        return f"{who}: {self.setting.named} {where}{ahead}{basis}"


def entries(rows: Sequence[Row], verdicts: Sequence[ThreatVerdict]) -> list[Entry]:
    """The results of a run, one entry for each defended setting, adversary and seed. A verdict gives no entry if it
    names no attack, or if no attack behind it has both an accuracy and a share of identified records."""
    bare = [row for row in rows if undefended(row.defense) and row.status == "done"]
    made = []
    for model, one in ((model, one) for one in verdicts for model in THREAT_MODELS if model == one.threat_model):
        if undefended(one.defense) or not one.attack:
            continue
        within = [row for row in rows if row.defense == one.defense and row.threat_model in INCLUDES[model]]
        counted = [row for row in within if row.attack in (one.attack, *one.against) and row.accuracy]
        found = [(share, row) for row in counted if (share := identified_share(row.recovered))]
        if found:
            share, row = max(found, key=lambda pair: (pair[0].value, pair[1].attack == one.attack))
            made.append(_entry(model, one, share, row, [twin for twin in bare if twin.protocol == row.protocol]))
    return made


def _entry(model: ThreatModel, verdict: ThreatVerdict, share: Metric, row: Row, bare: Sequence[Row]) -> Entry:
    twins = [(twin, found) for twin in bare if (found := identified_share(twin.recovered))]
    same = [found.value for twin, found in twins if twin.attack == row.attack]
    own, undefended_row = row.recovered["unaligned"], next(iter(bare), None)
    name, floors = likeness(list(own)), [identified_share(floor) for key, floor in row.floors.items() if key != START]
    sent = [one.costs.bytes_up + one.costs.bytes_down for one in (row, undefended_row) if one and one.costs]
    weak = any(remark.startswith(STRONGER) for remark in verdict.remarks)
    assert row.accuracy is not None
    return Entry(
        **{name: getattr(row, name) for name in ("dataset", "model", "defense", "seed")},
        threat_model=model,
        outcome="not_shown" if weak and verdict.outcome in ("holds", "class") else verdict.outcome,
        attack=row.attack,
        victims=share.n,
        identified=share.value,
        chance=max((one.value for one in floors if one), default=1 / share.n),
        undefended=max(same or [found.value for _, found in twins], default=None),
        likeness=round(own[name].value, 4) if name else None,
        accuracy=row.accuracy.value,
        bare_accuracy=undefended_row.accuracy.value if undefended_row and undefended_row.accuracy else None,
        claim=claim_text(row),
        traffic=round(sent[0] / sent[1], 4) if len(sent) == 2 else None,
        own=row.counts.get("auxiliary", 0),
        queries=row.queries or 0,
        seconds=round(row.seconds.attack, 1) if row.seconds else 0.0,
        commit=row.provenance.noted.get("commit", "unknown"),
    )


def registry_csv(found: Iterable[Entry]) -> str:
    """CSV with one line per entry, sorted by dataset, defense, adversary and seed."""
    models = list(THREAT_MODELS)
    ordered = sorted(found, key=lambda one: (one.dataset, one.defense, models.index(one.threat_model), one.seed))
    return flat_csv([{key: "" if value is None else value for key, value in one} for one in ordered])


def read_registry(path: Path = REGISTRY) -> list[Entry]:
    """Read the entries of a registry's file; empty if there is no such file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as lines:
        return [
            Entry.model_validate({key: value or None for key, value in row.items()}) for row in csv.DictReader(lines)
        ]


def settings(found: Iterable[Entry]) -> list[MeasuredSetting]:
    """The registered settings, each summarized over its seeds; the setting with the most identified records comes
    first. Seeds with fewer attacked records than another seed are left out, since their shares are not comparable."""
    groups = grouped(found, lambda one: (one.dataset, one.defense, one.threat_model))
    return sorted((_setting(each) for each in groups.values()), key=lambda one: (-one.identified.value, one.defense))


def _setting(each: Sequence[Entry]) -> MeasuredSetting:
    victims = max(one.victims for one in each)
    each = sorted((one for one in each if one.victims == victims), key=lambda one: one.seed)
    own = [clopper_pearson(round(one.identified * victims, 6), victims) for one in each]
    found = over_intervals(own, 0.95, UNIT) if len(own) > 1 else own[0]
    kept = {name: getattr(each[0], name) for name in ("dataset", "model", "defense", "threat_model", "own")}
    kept["claim"] = min((one.claim for one in each), key=_strength)
    means = {
        name: _mean([getattr(one, name) for one in each]) for name in ("accuracy", "bare_accuracy", "traffic", "chance")
    }
    by_seed = {"seeds": tuple(one.seed for one in each), "outcomes": tuple(one.outcome for one in each)}
    most = {"attack": max(each, key=lambda one: one.identified).attack, "victims": victims, "identified": found}
    return MeasuredSetting.model_validate(kept | means | by_seed | most)


def _strength(claim: str) -> float:
    """Larger for a stronger claim, as `claim_text` writes it: more orders or a smaller ε."""
    if (found := re.search(r"10\^(\d+)|ε=(\S+)", claim)) is None:
        return -inf
    orders, epsilon = found.groups()
    return float(orders) if orders else -float(epsilon)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def dominates(one: MeasuredSetting, other: MeasuredSetting) -> bool:
    """Whether a setting is at least as good as another in accuracy and identified records, and better in one."""
    gains = (one.accuracy - other.accuracy, other.identified.value - one.identified.value)
    return min(gains) >= 0 and max(gains) > 0


def _mounted_by(rows: Sequence[Row], defense: str, model: ThreatModel) -> tuple[tuple[str, ...], bool, tuple[str, ...]]:
    """Attacks within a threat model that passed their controls, whether one of them needs exactly this threat model,
    and the attacks that need exactly this threat model and failed their controls."""
    found = [row for row in rows if row.defense == defense and identified_share(row.recovered)]
    within = [row for row in found if row.threat_model in INCLUDES[model] and row.attack not in CONSTANT_ATTACKS]
    passed = [row for row in within if sound(row)]
    failed = dict.fromkeys(row.attack for row in within if row.threat_model == model and not sound(row))
    exactly = any(row.threat_model == model for row in passed)
    return tuple(dict.fromkeys(row.attack for row in passed)), exactly, tuple(failed)


def registry_places(
    own: Iterable[MeasuredSetting], registered: Sequence[MeasuredSetting], rows: Sequence[Row] | None = None
) -> list[RegistryPlace]:
    """Rank each setting in `own` (the user's) among its peers; a setting without a peer gets no place. Peers are other
    registered settings with the same dataset, adversary and number of attacked records. The result rows `rows` say
    which attacks the user's run mounted; without them, only the attack of each setting counts."""
    made, models = [], list(THREAT_MODELS)
    for one in sorted(own, key=lambda one: (one.defense, models.index(one.threat_model))):
        same = [
            other
            for other in registered
            if (other.dataset, other.threat_model, other.victims) == (one.dataset, one.threat_model, one.victims)
        ]
        peers = [other for other in same if other.defense != one.defense]
        if not peers:
            continue
        share, unsure = one.identified.value, "not_shown" in one.outcomes
        found = ((one.attack,), True, ()) if rows is None else _mounted_by(rows, one.defense, one.threat_model)
        attacks, tried, failed = found
        ranked = peers if tried else []
        made.append(
            RegistryPlace(
                setting=one,
                peers=len(peers),
                more=min((p for p in ranked if p.identified.value > share and not unsure), key=_share, default=None),
                less=max((p for p in ranked if p.identified.value <= share), key=_share, default=None),
                better=tuple(sorted((p for p in ranked if dominates(p, one)), key=_share)),
                mounted=attacks,
                tried=tried,
                failed=failed,
                named=len({p.attack for p in peers}),
                registered=next((other for other in same if other.defense == one.defense), None),
            )
        )
    return made


def place_differences(places: Sequence[RegistryPlace], registered: Sequence[MeasuredSetting]) -> list[str]:
    """Sentences on differences from the registered runs, in the network and the number of the adversary's records."""
    told = []
    for name, what in (("model", "network"), ("own", "number of own records")):
        mine = {getattr(one.setting, name) for one in places}
        theirs = {
            getattr(other, name) for one in places for other in registered if other.dataset == one.setting.dataset
        }
        if others := sorted(map(str, mine - theirs)):
            told.append(
                f"{what}: {', '.join(others)} here, {', '.join(sorted(map(str, theirs)))} in the registry, so part of "
                "the difference may be due to that"
            )
    return told


def _share(setting: MeasuredSetting) -> float:
    return setting.identified.value


def place_table(places: Sequence[RegistryPlace]) -> Table:
    """A table with one line for each setting and adversary."""
    lines = [
        (
            one.setting.defense,
            threat_name(one.setting.threat_model),
            one.setting.attack if one.tried else one.untried,
            interval(one.setting.identified, 2) if one.tried else UNKNOWN,
            f"{one.setting.accuracy:.2f}",
            one.more.named if one.more else UNKNOWN,
            one.less.named if one.less else UNKNOWN,
            f"{len(one.better)} of {one.peers}" if one.tried else UNKNOWN,
            interval(one.registered.identified, 2) if one.registered else UNKNOWN,
        )
        for one in places
    ]
    headers = (
        *("defense", "adversary", "attack", "identified ↓", "accuracy ↑", "next that gives away more"),
        *("next that gives away no more", "at least as good", "this setting in the registry"),
    )
    return Table(headers=headers, rows=tuple(lines))
