"""The data that all attacks with one seed share: records, their clients, attacked records, and constant guesses."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from privkit.attacks.base import AnyAttack
from privkit.attacks.goals import goal_of
from privkit.attacks.memory import Memory
from privkit.audit.scoring import RecordScores, few, repeated, scored, summarise, unidentified
from privkit.domains.base import Batch, Pool, Pools, several
from privkit.domains.images.augment import check_colors
from privkit.domains.partition import ClientPartition, stratified
from privkit.domains.splits import Splits, left_out, part_sizes, spare, split, without
from privkit.domains.stand_in import stand_in
from privkit.errors import DataError, UsageError
from privkit.files.import_path import faults_of
from privkit.metrics.feature_names import check_channels
from privkit.metrics.perception import Perception
from privkit.parts.registry import Component
from privkit.recording.read import Recording
from privkit.reports.schema import Metrics
from privkit.settings.config import AuditConfig
from privkit.shared.measures import CLASS_MEAN, FLOORS, IDENTIFIED
from privkit.shared.own_records import OF_THE_DATASET
from privkit.shared.seeds import derive
from privkit.torch_utils.clock import clock


@dataclass(frozen=True, kw_only=True)
class SeedData:
    """Everything that all defenses and attacks with one seed share."""

    splits: Splits  # private, auxiliary and test records, on the device
    shares: ClientPartition  # the private records of each client
    victims: Batch  # the attacked records
    auxiliary: Batch  # the adversary's records
    dropped: int  # number of auxiliary records left out because they are private or attacked
    hashes: dict[str, str]  # part -> SHA-256 of its records
    warnings: tuple[str, ...] = ()  # sentences for the user, such as on images that look clipped or on left-out records
    labeled: bool = True  # whether the adversary's records have labels; a recording may lack them
    # added by `prepare`: the scores of constant guesses, one for each record (see `scored`), and their means
    guesses: dict[str, dict[str, RecordScores]] = field(default_factory=dict)
    floors: dict[str, dict[str, Metrics]] = field(default_factory=dict)
    perception: Perception = field(default_factory=Perception)  # networks and a user's own metrics that score guesses
    memory: Memory = field(default_factory=Memory)  # what attacks learned from the auxiliary records

    @property
    def own_images(self) -> Tensor | None:
        """The adversary's own records; None if a recording has none."""
        return self.auxiliary.x if len(self.auxiliary) else None

    @property
    def own_labels(self) -> Tensor | None:
        """Labels of the adversary's records; None if there are none, or several for each record."""
        known = self.labeled and len(self.auxiliary) and not several(self.auxiliary.y)
        return self.auxiliary.y if known else None

    def copied(self) -> SeedData:
        """Copy the records, for code that may change records in place; the copy's cache for attacks is empty."""
        shared = {id(self.splits.domain): self.splits.domain}  # never changes, and may be large
        records = {name: getattr(self, name) for name in ("splits", "shares", "victims", "auxiliary")}
        return replace(self, memory=Memory(), **deepcopy(records, shared))

    def changed(self, copy: SeedData) -> tuple[str, ...]:
        """Names of the records or labels of `copy` that differ from the originals."""
        groups = [{**data.splits.parts, "attacked": data.victims, "auxiliary": data.auxiliary} for data in (self, copy)]
        return tuple(
            f"the {name} {self.splits.domain.records if field == 'x' else 'labels'}"
            for name, batch in groups[0].items()
            for field in ("x", "y")
            if not torch.equal(getattr(batch, field), getattr(groups[1][name], field))
        )

    @property
    def counts(self) -> dict[str, int]:
        """Number of records of each part and, without a class-mean guess, the number of different labels of attacked
        records."""
        parts = {name: len(part) for name, part in self.splits.parts.items()}
        own = {"auxiliary": len(self.auxiliary), "auxiliary_dropped": self.dropped, "victims": len(self.victims)}
        unmet = self.labeled and len(self.victims) and CLASS_MEAN.name not in self.guesses
        return parts | own | ({"victim_labels": len(self.victims.y.unique(dim=0))} if unmet else {})


def read_records(config: AuditConfig, seed: int, device: torch.device) -> SeedData:
    """Open the data, split them, and choose the attacked records and the adversary's auxiliary records."""
    if config.recording is not None:
        return _recorded(config.recording, device)
    pools, other, _ = open_data(config)
    with faults_of(f"dataset {config.dataset.label}", config.dataset.spec):
        cpu = split(pools, **_wished(config), seed=seed)
    if config.training.fraction < 1:
        kept = stratified(cpu.private.y, config.training.fraction, derive(seed, "fraction"))
        cpu = replace(cpu, private=cpu.private[kept])
    moved: dict[str, Any] = {name: part.to(device) for name, part in cpu.parts.items()}
    splits = replace(cpu, **moved)
    protocol = config.protocol.spec
    shares = config.partition.spec.assign(cpu.private.y, protocol.clients, derive(seed, "partition"))
    victims = _victims(config, splits, shares)
    auxiliary, dropped, left = _auxiliary(config, splits, victims, pools, other, seed)
    sizes = {"private": len(splits.private), "auxiliary": len(auxiliary), "test": len(splits.test)}
    _check_sizes(config, splits.domain.records, **sizes)  # checked again, since too few records may remain
    hashes = splits.hashes()
    others = config.auxiliary not in OF_THE_DATASET
    if others or config.auxiliary == "candidates" or len(auxiliary) + dropped > len(splits.auxiliary):
        hashes[config.auxiliary if others else "auxiliary"] = auxiliary.sha256()
    return SeedData(
        splits=splits,
        shares=shares,
        victims=victims,
        auxiliary=auxiliary,
        dropped=dropped,
        hashes=hashes,
        warnings=(*filter(None, (*pools.notes, splits.domain.warning(splits.private.x), left)), *few(len(victims))),
    )


def _wished(config: AuditConfig) -> dict[str, int]:
    return {name: getattr(config.budget, name) for name in ("private", "auxiliary", "test", "validation")}


def prepare(config: AuditConfig, seed: int, device: torch.device, perception: Perception | None = None) -> SeedData:
    """Prepare what all defenses and attacks of one seed share: data, attacked records and scored constant guesses."""
    records = read_records(config, seed, device)
    splits, victims = records.splits, records.victims
    batch = config.protocol.spec.active * config.training.batch_size
    check_channels(config.features, splits.domain.shape[0])
    if perception is None:
        perception = Perception.of(config.features, device, config.own_metrics)
    if perception.recognizes:
        perception = perception.fitted(without(splits.auxiliary, victims), splits.classes, seed)
    missing = no_class_mean(config, records.auxiliary, victims, records.labeled)
    guesses = {
        name: scored(splits.domain, victims.x, guess, batch, perception, victims.y)
        for name, guess in floor_guesses(records.auxiliary, victims, classes=not missing, seed=seed).items()
    }
    uncounted = unidentified(splits.domain, victims.x) or repeated(splits.domain, victims.x)
    remarks = (uncounted, missing or _without(records.auxiliary, victims))
    return replace(
        records,
        warnings=(*records.warnings, *filter(None, remarks)),
        guesses=guesses,
        floors=chances({name: summarise(scores, perception) for name, scores in guesses.items()}, victims),
        perception=perception,
        memory=Memory(clock(device)),
    )


def floor_guesses(own: Batch, victims: Batch, *, classes: bool, seed: int = 0) -> dict[str, Tensor]:
    """Guesses that need no release, such as the mean image: name -> guesses [N, *shape] for N attacked records.

    If the adversary has no own records, only mid-grey images are returned. With `classes`, some guesses use each true
    label: the class mean, which is the mean of the adversary's own records with this label (for tokens and tables their
    commonest values), and for tokens and tables a random record with this label. `seed` draws random records.
    """
    domain = victims.domain
    if not len(victims):
        return {}
    constant = domain.guesses(own.x) if len(own) else domain.guesses(domain.zeros(1))
    found = {
        name: guess.to(victims.x.device).expand_as(victims.x).contiguous()
        for name, guess in constant.items()
        if len(own) or name == "mid_grey"
    }
    if not len(own):
        return found
    *_, best = found  # the mean of all own records, or their commonest values: the last of a domain's guesses
    guesses, everybody = {name: found[best].clone() for name in (CLASS_MEAN.name,) if classes}, torch.arange(len(own))
    drawn = {
        floor.name: floor.labels for floor in domain.kind.all_floors if floor.drawn and (classes or not floor.labels)
    }
    guesses |= {name: own.x[_picked(everybody, len(victims), seed, name)].to(victims.x.device) for name in drawn}
    for label in victims.y.unique() if classes else ():
        rows, there = (own.y == label).nonzero().flatten().cpu(), victims.y == label
        if not len(rows):
            continue
        guesses[CLASS_MEAN.name][there] = domain.guesses(own.x[rows])[best]
        for name in (name for name, labels in drawn.items() if labels):
            places = _picked(rows, int(there.sum()), seed, name, int(label))
            guesses[name][there] = own.x[places].to(victims.x.device)
    return found | guesses


def _picked(rows: Tensor, count: int, seed: int, *names: str | int) -> Tensor:
    """Draw `count` of the numbers `rows` at random, with repetition."""
    draws = Generator().manual_seed(derive(seed, "floor", *names))
    return rows[torch.randint(len(rows), (count,), generator=draws)]


def no_class_mean(config: AuditConfig, own: Batch, victims: Batch, labeled: bool) -> str:
    """A sentence that says why there is no class-mean guess; empty if there is one."""
    why = ""
    if not len(own) or not labeled:
        none = f"the adversary has no own {own.domain.records}"
        why = "the adversary's own records have no labels" if len(own) else none
    elif several(victims.y) or several(own.y):
        why = "records have several labels each"
    elif config.auxiliary not in OF_THE_DATASET:
        why = "the adversary's own records are of other classes"
    return why and f"no class mean ({why}): guesses are compared with constant ones alone"


def _without(own: Batch, victims: Batch) -> str:
    missing = sorted({*victims.y.tolist()} - {*own.y.tolist()})
    labels = ", ".join(map(str, missing))
    return labels and f"no own record has label {labels}: the class mean is there the mean of all own records"


def chances(floors: dict[str, dict[str, Metrics]], victims: Batch) -> dict[str, dict[str, Metrics]]:
    """Replace, in place, the interval of the share of identified records for guesses that do not use the release.

    The new upper limit holds for any such guess: of N records, a constant guess identifies one on average, and a guess
    for each class identifies one per class, since ties are broken at random. Random records identify at most as many on
    average, and this number replaces that of one draw.
    """
    for name, found in floors.items():
        if (own := found["unaligned"].get(IDENTIFIED.name)) is not None:
            floor = FLOORS.get(name)
            most = (len(victims.y.unique()) if floor and floor.labels else 1) / len(victims)
            how, value = "the most that such guesses reach", most if floor and floor.drawn else own.value
            bounded = replace(own, value=value, low=value, high=max(most, value), method=how)
            found["unaligned"][IDENTIFIED.name] = bounded
    return floors


def _recorded(recording: Recording, device: torch.device) -> SeedData:
    """The true images of a recording, if known, and the adversary's own images, without true ones; other parts are
    empty."""
    own = without(recording.own, recording.whole.truth)  # also without records of rounds that are not attacked
    left = left_out(dropped := len(recording.own) - len(own), recording.domain.records)
    none = recording.truth[:0]
    nobody = ClientPartition(rows=torch.zeros(1, 1, dtype=torch.int64), sizes=torch.ones(1, dtype=torch.int64))
    empty, clipped = none.to(device), recording.domain.warning(recording.truth.x)
    return SeedData(
        splits=Splits(private=empty, auxiliary=own.to(device), test=empty, classes=recording.classes),
        shares=nobody,
        victims=recording.truth.to(device),
        auxiliary=own.to(device),
        dropped=dropped,
        hashes=dict(recording.files),
        warnings=(*filter(None, (*recording.description.notes, clipped, left)), *few(len(recording.truth))),
        labeled=recording.own_labels,
    )


def _victims(config: AuditConfig, splits: Splits, shares: ClientPartition) -> Batch:
    """The attacked records, ordered by round, and within a round by client. If private records are attacked, each
    client sends only records of its own share."""
    senders, batch = config.protocol.spec.active, config.training.batch_size
    source = splits.private if config.attacked == "private" else splits.test
    if config.attacked == "private" and senders == 1 and int(shares.sizes.sum()) < len(source):
        held = torch.cat([shares.of(client) for client in range(len(shares.sizes))]).sort().values
        source = source[held.to(source.x.device)]  # without images that no client has
    rounds = min(config.budget.victims, len(source)) // (senders * batch)
    if config.attacked == "test" or senders == 1:
        return source[: rounds * senders * batch]
    rounds = max(1, min(rounds, int(shares.sizes.min()) // batch))
    rows = shares.rows[:, torch.arange(rounds * batch) % shares.rows.shape[1]]
    return source[rows.view(senders, rounds, batch).transpose(0, 1).flatten().to(source.x.device)]


def open_data(config: AuditConfig, *, stand_ins: bool = False) -> tuple[Pools, Pool | None, dict[str, int]]:
    """Open the private dataset and another dataset of the adversary (or None), and count the records of each part.

    Pictures are not decoded yet. With `stand_ins`, random records replace an official dataset if no data root is given.
    """
    budget, other = config.budget, None
    wished = budget.private + budget.auxiliary + budget.validation
    pools = _opened(config, config.dataset, stand_ins, wished)
    if pools.classes < 2:
        raise DataError(f"{config.dataset.label} has one class only, and telling classes apart is the task; add one")
    with faults_of(f"dataset {config.dataset.label}", config.dataset.spec):
        domain = pools.train.take(np.zeros(1, dtype=np.int64)).domain
    if domain.name == "images":  # for other records, `check_same_domain` refused augmentation
        check_colors(config.training.augment, domain.shape[0])
        check_channels(config.features, domain.shape[0])
    sizes = part_sizes(pools, **_wished(config))
    if config.auxiliary == "training":
        sizes["auxiliary"] = sizes["private"]
    elif config.other is not None:
        other = _opened(config, config.other, stand_ins, budget.auxiliary).train
        sizes["auxiliary"] = min(budget.auxiliary, len(other))
    _check_sizes(config, domain.records, **sizes)
    return pools, other, sizes


def _opened(config: AuditConfig, dataset: Component, stand_ins: bool, wished: int) -> Pools:
    with faults_of(f"dataset {dataset.label}", dataset.spec):
        found = stand_in(dataset.spec) if stand_ins and config.data_root is None else None
        return found or dataset.spec.open(config.data_root, download=config.download, train_images=wished)


def _check_sizes(
    config: AuditConfig, records: str, *, private: int, auxiliary: int, test: int, validation: int | None = None
) -> None:
    source, name = (private, "private") if config.attacked == "private" else (test, "test")
    attacked = f"attacked {records} (the smaller of victims={config.budget.victims} and {source} {name} ones)"
    most = {f"private {records}": private, f"test {records}": test, attacked: min(config.budget.victims, source)}
    if validation is not None:
        most[f"validation {records}"] = validation
    if all(_takes_controls(attack.spec) for attack in config.every_attack):  # otherwise some attacks need no controls
        most[f"a quarter of the {auxiliary} auxiliary {records}, which the control experiments take"] = auxiliary // 4
    what = min(most, key=lambda part: most[part])
    senders = config.protocol.spec.clients
    batch, works = config.training.batch_size, most[what] // senders
    if batch <= works:
        return
    if works < max(defense.spec.smallest_batch for defense in config.defenses):
        said = f"{most[what]} {what}"
        if what.startswith("a quarter"):
            said = f"{auxiliary} auxiliary {records}, of which the control experiments take a quarter,"
        raise UsageError(
            f"{said} are too few for any batch; raise the budget if the dataset has more {records}, or bring more"
        )
    whose = "" if senders == 1 else f" of each of {senders} clients"
    raise UsageError(f"batch_size={batch}{whose} is more than {most[what]}, {what}; use --training batch_size={works}")


def _takes_controls(attack: AnyAttack) -> bool:
    return bool(goal_of(attack).reads(attack)) and not attack.mounting.ignores_views


def _auxiliary(
    config: AuditConfig, splits: Splits, victims: Batch, pools: Pools, other: Pool | None, seed: int
) -> tuple[Batch, int, str]:
    """The adversary's own records, the number left out because they are private or attacked, and a sentence about the
    left-out records.

    If too few are left for the control experiments, other records of the dataset are added.
    """
    if config.auxiliary == "training":
        return splits.private, 0, ""
    pool, auxiliary, budget = pools.train, splits.auxiliary, config.budget
    if other is None:
        rest = spare(pools, **_wished(config), seed=seed)
    else:
        order = np.random.default_rng(derive(seed, "auxiliary")).permutation(len(other))
        pool, rest = other, order[budget.auxiliary :]
        auxiliary = other.take(order[: budget.auxiliary])

    def strange(drawn: Batch) -> Batch:
        fitted = _fitted(drawn, splits)
        return without(without(fitted, splits.private, drawn.domain), victims, drawn.domain)

    kept = strange(auxiliary)
    if not len(kept):
        raise DataError(f"every record of auxiliary={config.auxiliary} is a private or an attacked one; name another")
    dropped, controls = len(auxiliary) - len(kept), any(_takes_controls(attack.spec) for attack in config.every_attack)
    least = min(len(auxiliary), 4 * config.training.batch_size * config.protocol.spec.clients) if controls else 0
    while len(kept) < least and len(rest):
        count = least - len(kept)
        kept, rest = kept.joined(strange(pool.take(rest[:count]))), rest[count:]
    told = left_out(dropped, splits.domain.records, others=len(kept) + dropped - len(auxiliary))
    if config.auxiliary == "candidates":
        kept = kept.joined(victims)
        places = torch.randperm(len(kept), generator=Generator().manual_seed(derive(seed, "candidates")))
        kept = kept[places.to(kept.x.device)]
    return kept, dropped, told


def _fitted(batch: Batch, splits: Splits) -> Batch:
    fitted = replace(batch, x=splits.domain.fit(batch.x, batch.domain), domain=splits.domain)
    return fitted.to(splits.private.x.device)
