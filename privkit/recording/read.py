"""Reads a recording from its folder into memory; a recording whose tensors do not fit together is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import RealizedRatios
from privkit.accountants.spec.parts import EveryRound
from privkit.accountants.spec.records import from_json, to_json
from privkit.accountants.spec.secrets import ShuffledEpochs
from privkit.attacks.base import View
from privkit.domains.base import Batch, several
from privkit.domains.domain import Domain
from privkit.errors import DataError, shortened
from privkit.files.import_path import check_trusted, only
from privkit.files.sealed import digest
from privkit.recording.files import Files
from privkit.recording.networks import network
from privkit.recording.records import check_alike, check_recorded_labels, recorded_domain, records
from privkit.recording.schema import FILE, Description, Network, description, description_file
from privkit.recording.second_cut import OF_ROUND, second_cut

ROUND = ("smashed", "cut_gradient", "labels", "weights", "clients")
"""Tensors of one round, named `round_0.smashed` and so on; all but `smashed` are optional."""
_ROUND_NAME = re.compile(rf"round_(0|[1-9][0-9]{{0,8}})\.(?:{'|'.join((*ROUND, *OF_ROUND))})")
_MOST_SEATS = 1 << 26  # largest number of entries of `members`


@dataclass(frozen=True, kw_only=True, repr=False)
class Recording:
    """A recording of a training, read and checked."""

    description: Description  # the contents of `recording.json`
    views: tuple[View, ...]  # the data that crossed the cut, round after round and pass after pass
    own: Batch  # the adversary's own records, perhaps none
    own_labels: bool  # whether the adversary's records have labels
    truth: Batch  # the true records, perhaps none; their labels are 0 if only records are known
    labels: Tensor | None  # true labels of all records, int64 [M], or [M, L] of 0 and 1; None if they are not known
    # int64 [R·N, k]: the k true records mixed into each of N releases, for the R rounds of one pass; −1 if unknown
    members: Tensor
    mechanism: SplitMechanism | None  # the declared mechanism of one pass, for the certificate; or None
    files: Mapping[str, str]  # file -> SHA-256 of what was read
    folder: Path  # the recording's folder
    row_bytes: int  # bytes of one released row in the file; `views` hold its numbers as float32
    left_out: tuple[str, ...] = ()  # fields that an old recording's mechanism lacks; it then proves nothing
    trust: tuple[str, ...] = ()  # modules besides privkit from which the recording's segments and defense may be built
    # in a U-shape, the second cut of each round in `views`, with features as `smashed`; otherwise empty
    second: tuple[View, ...] = ()
    untrimmed: Recording | None = None  # the recording before it was cut to a budget; None if it was not cut

    def __repr__(self) -> str:
        """A one-line summary, which a notebook shows after `save`; it contains no private record."""
        records = f"{len(self.truth)} true and {len(self.own)} own {self.domain.records}"
        return f"Recording({self.description.name!r}, {len(self.views)} rounds, {records}, folder={str(self.folder)!r})"

    @property
    def whole(self) -> Recording:
        """The recording before it was reduced to a budget; this recording if it was not reduced."""
        return self.untrimmed or self

    @property
    def domain(self) -> Domain:
        """The domain of a private record."""
        return self.truth.domain

    @property
    def record(self) -> str:
        """The noun for one private record, such as "image"."""
        return self.domain.records.removesuffix("s")

    @property
    def several(self) -> bool:
        """Whether each record has several labels."""
        return several(self.own.y) or several(self.truth.y)

    @property
    def classes(self) -> int:
        """The number of classes or labels, ≥ 2: the declared number; if none is declared, the number of labels per
        record or, with one label per record, the largest label plus one."""
        labels = [known for known in (self.own.y, self.labels) if known is not None and len(known)]
        counts = [known.shape[1] if several(known) else int(known.max()) + 1 for known in labels]
        return self.description.classes or max([2, *counts])

    @property
    def round_rows(self) -> int:
        """Number of records in one round, over all clients."""
        return self.description.batch_size * self.description.clients

    def within(self, *, victims: int, own: int) -> Recording:
        """A smaller recording, with the first `own` of the adversary's records and the last rounds of each pass. A pass
        keeps as many rounds as have at most `victims` records together, but at least one round. The last rounds are
        kept because the recorded segments have the weights of the end of training."""
        each = self.pass_rounds
        kept = min(each, max(1, victims // self.round_rows))
        if kept == each and own >= len(self.own):
            return self
        members = self.members[-sum(len(view.smashed) for view in self.views[-kept:]) :]
        used = members[members >= 0].unique()
        place = torch.full((int(used.max()) + 1 if len(used) else 0,), -1).scatter(0, used, torch.arange(len(used)))
        return replace(
            self,
            untrimmed=self.whole,
            views=tuple(view for number, view in enumerate(self.views) if number % each >= each - kept),
            second=tuple(view for number, view in enumerate(self.second) if number % each >= each - kept),
            own=self.own[:own],
            truth=self.truth[used] if len(self.truth) else self.truth,
            labels=None if self.labels is None else self.labels[used],
            members=torch.where(members >= 0, place[members.clamp_min(0)], -1) if len(used) else members,
        )

    @property
    def pass_rounds(self) -> int:
        """Number of rounds in one pass over the records."""
        return len(self.views) // self.description.passes

    def last_passes(self, passes: int) -> tuple[View, ...]:
        """The rounds of the last `passes` passes over the records. The last pass comes first, because the recorded
        segments have the weights of the end of training."""
        ends = range(len(self.views), 0, -self.pass_rounds)[:passes]
        views = (view for end in ends for view in self.views[end - self.pass_rounds : end])
        return tuple(replace(view, round=number) for number, view in enumerate(views))

    def mechanism_of(self, passes: int) -> SplitMechanism | None:
        """The declared mechanism of one pass over the attacked records, extended to the passes that an attack reads.

        Each further pass adds the rounds of a pass if the unit is a client, and the releases of one record in a pass if
        the unit is a record. If each epoch uses the records in a shuffled order, each of these counts as an epoch. A
        mechanism that `covers_one_pass` is not extended.
        """
        if self.mechanism is None or passes == 1 or self.covers_one_pass:
            return self.mechanism
        rounds = self.description.rounds // self.description.passes
        each = rounds if self.mechanism.unit == "client" else self.whole.most_released or rounds
        return replace(self.mechanism, rounds=self.mechanism.rounds + (passes - 1) * each * self.mechanism.turn)

    @property
    def covers_one_pass(self) -> bool:
        """Whether the declared ε holds for one pass only: for records that are drawn anew in each round or epoch, while
        further passes send the records of the first one again, and for mixing ratios of a given number of rounds."""
        found = self.mechanism
        if found is None:
            return False
        part, ratio = found.participation, getattr(found.mixing, "ratio", None)
        known = isinstance(part, EveryRound) or (isinstance(part, ShuffledEpochs) and part.records is None)
        return not known or isinstance(ratio, RealizedRatios)

    def members_of(self, number: int) -> Tensor:
        """The true records mixed into each released row of round `number`, int64 [N, k]; −1 if unknown."""
        parts: Sequence[Tensor] = self.members.split([len(view.smashed) for view in self.views[: self.pass_rounds]])
        return parts[number % self.pass_rounds]

    @property
    def most_released(self) -> int | None:
        """How often one record is released in one pass; None if no true record is known. It is the larger of two
        counts. The first is the largest count by `truth.members`. The second counts equal records as one; it is the
        largest count that at least one record in ten reaches, since a dataset may contain a record twice."""
        known = self.members[self.members >= 0]
        if not len(known):
            return None
        alike = self._alike[known].bincount()
        return max(int(known.bincount().max()), _of_one_in_ten(alike))

    @property
    def rounds_of_one(self) -> int | None:
        """The largest r such that one record in ten is in at least r rounds of a pass; None if no record is known."""
        parts = [self.members_of(number) for number in range(self.pass_rounds)]
        seen = [self._alike[part[part >= 0]].unique() for part in parts]
        return _of_one_in_ten(torch.cat(seen).bincount()) if any(map(len, seen)) else None

    @cached_property
    def _alike(self) -> Tensor:
        """For each of M true records, the index of the first record that equals it, int64 [M]."""
        if not len(self.truth):
            return torch.arange(0 if self.labels is None else len(self.labels))
        first: dict[bytes, int] = {}
        return torch.tensor([first.setdefault(one.numpy().tobytes(), at) for at, one in enumerate(self.truth.x)])

    def lower(self) -> nn.Module | None:
        """Rebuild the clients' segment in the mode (training or evaluation) of its release; None if not recorded."""
        sent = self.description.replay
        return self._network(self.description.lower, training=sent is not None and sent.mode == "train")

    def upper(self) -> nn.Module | None:
        """Rebuild the server's segment; None if it was not recorded."""
        return self._network(self.description.upper)

    def _network(self, described: Network | None, *, training: bool = False) -> nn.Module | None:
        if described is None:
            return None
        with only(self.trust):
            files = Files(self.folder, self.files)
            return network(described, files, self.domain, trust=self.trust, training=training)


def _of_one_in_ten(counts: Tensor) -> int:
    """The largest count that at least a tenth of the positive counts reaches."""
    known = counts[counts > 0].sort(descending=True).values
    return int(known[len(known) // 10])


def read_recording(folder: Path, trust: Sequence[str] = ()) -> Recording:
    """Read and check a recording; raises `DataError` if it is invalid. Its segments are built later, but their files
    are checked here. Raises `Untrusted`, before any import, if a builder is neither in privkit nor in `trust`."""
    data = description_file(folder)
    described = description(data, folder / FILE)
    for segment in filter(None, [described.lower, described.upper]):
        if ":" in segment.builder:
            check_trusted("the builder", segment.builder, trust)
    files = Files(folder, described.files, every=described.schema_version > 1)
    tensors = files.tensors(described.tensors)
    here, domain = folder / described.tensors, recorded_domain(described, files)
    rest = (f"own.{domain.name}", "own.labels", f"truth.{domain.name}", "truth.labels", "truth.members")
    if strangers := sorted(name for name in tensors if name not in rest and not _of_round(name, described.rounds)):
        raise DataError(
            f"{here}: unknown tensor {shortened(strangers[0])}; {described.rounds} rounds of {domain.records} have "
            f"round_0.smashed to round_{described.rounds - 1}.smashed, beside {', '.join(rest)}"
        )
    for name, value in tensors.items():
        if not value.ndim:
            raise DataError(f"{here}: {name} is a single number; give a tensor with a row for each record")
        if value.is_floating_point() and not bool(value.float().isfinite().all()):
            raise DataError(f"{here}: {name} holds NaN or infinity, as float32; record a training that did not diverge")
    for segment in filter(None, [described.lower, described.upper]):
        for name in filter(None, [segment.weights, segment.program]):
            files.content(name)
    views = tuple(_view(described, number, tensors, here) for number in range(described.rounds))
    if any(view.smashed.shape[1:] != views[0].smashed.shape[1:] for view in views):
        raise DataError(f"{here}: rounds have smashed data of different shapes; record one form only")
    truth, labels = records(described, domain, tensors, "truth", here)
    own, own_labels = records(described, domain, tensors, "own", here)
    check_alike(tensors, here)
    mechanism, left_out = _mechanism(described, folder)
    recording = Recording(
        description=described,
        views=views,
        own=own,
        own_labels=own_labels is not None,
        truth=truth,
        labels=labels,
        members=torch.empty(0),
        mechanism=mechanism,
        left_out=left_out,
        second=second_cut(views, tensors, here),
        trust=tuple(trust),
        files=dict(sorted({**files.read, FILE: digest(data)}.items())),
        folder=folder,
        row_bytes=tensors[f"round_{described.rounds - 1}.smashed"][0].nbytes,
    )
    known = len(truth) or (0 if labels is None else len(labels))
    return replace(recording, members=_members(recording, tensors, known, here))


def _of_round(name: str, rounds: int) -> bool:
    found = _ROUND_NAME.fullmatch(name)
    return found is not None and int(found[1]) < rounds


def _view(described: Description, number: int, tensors: Mapping[str, Tensor], here: Path) -> View:
    given = {kind: tensors.get(f"round_{number}.{kind}") for kind in ROUND}
    smashed, rows = given["smashed"], described.batch_size * described.clients // described.mixed
    if smashed is None:
        raise DataError(f"{here}: tensor round_{number}.smashed is missing; rounds={described.rounds} need one each")
    if described.mixed == 1 and len(smashed) != rows:
        raise DataError(
            f"{here}: round_{number}.smashed has {len(smashed)} rows, and batch_size={described.batch_size} of "
            f"clients={described.clients} makes {rows}; leave out the incomplete last batch"
        )
    if len(smashed) * described.mixed < described.clients:
        raise DataError(
            f"{here}: round_{number}.smashed has {len(smashed)} rows of {described.mixed} records, too few for "
            f"{described.clients} clients; correct clients or mixed"
        )
    n, k = len(smashed), described.mixed
    rules: dict[str, tuple[str, Callable[[Tensor], bool]]] = {
        "smashed": (
            f"float [{n}, T, D], [{n}, C, H, W] or [{n}, D]",
            lambda t: t.is_floating_point() and 2 <= t.ndim <= 4 and t.numel() > 0,
        ),
        "cut_gradient": (f"float {list(smashed.shape)}", lambda t: t.is_floating_point() and t.shape == smashed.shape),
        "labels": (
            f"whole numbers [{n}], or [{n}, L] of 0 and 1, or float [{n}, L]",
            lambda t: len(t) == n and t.ndim in ((2,) if t.is_floating_point() else (1, 2)),
        ),
        "weights": (f"float [{n}, {k}, T]", lambda t: t.is_floating_point() and t.ndim == 3 and t.shape[:2] == (n, k)),
        "clients": (f"whole numbers [{n}, {k}]", lambda t: not t.is_floating_point() and t.shape == (n, k)),
    }
    for kind, (wanted, fits) in rules.items():
        if (value := given[kind]) is not None and not fits(value):
            raise DataError(f"{here}: round_{number}.{kind} must be {wanted}, got {value.dtype} {list(value.shape)}")
    if given["labels"] is not None and not given["labels"].is_floating_point():
        check_recorded_labels(given["labels"], described.classes, f"{here}: round_{number}.labels")
    return View(
        round=number,
        smashed=smashed.float(),
        mixed=described.mixed,
        weights=_single(given["weights"]),
        clients=_single(given["clients"]),
        cut_gradient=_single(given["cut_gradient"]),
        messages=described.messages,
        labels=_single(given["labels"]),
        whole=described.whole,
    )


def _single(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.float() if value.is_floating_point() else value.long()


def _members(recording: Recording, tensors: Mapping[str, Tensor], known: int, here: Path) -> Tensor:
    """The true records mixed into each release of one pass; without `truth.members`, release n holds record n."""
    described, given, nouns = recording.description, tensors.get("truth.members"), recording.domain.records
    seats = (sum(len(view.smashed) for view in recording.views) // described.passes, described.mixed)
    if seats[0] * seats[1] > _MOST_SEATS:
        raise DataError(
            f"{here}: {seats[0]} rows of {seats[1]} {nouns} (mixed) are more than {_MOST_SEATS:,}; record fewer rounds"
        )
    if given is None:
        if known and (described.mixed > 1 or known != seats[0]):
            raise DataError(
                f"{here}: {known} true {nouns} do not match {seats[0]} released rows of {described.mixed} each; "
                f"give truth.members, the number of the {recording.record} on each seat of each row"
            )
        return torch.arange(seats[0]).unsqueeze(1) if known else torch.full(seats, -1)
    if given.is_floating_point() or tuple(given.shape) not in (seats, seats[:1] if described.mixed == 1 else seats):
        raise DataError(
            f"{here}: truth.members must be whole numbers {list(seats)}, a row of one pass each, got {given.dtype} "
            f"{list(given.shape)}"
        )
    if not known:
        raise DataError(
            f"{here}: truth.members names true {nouns}, and there are none; add truth.{recording.domain.name} or "
            "truth.labels"
        )
    if len(given) and (int(given.min()) < -1 or int(given.max()) >= known):
        raise DataError(
            f"{here}: truth.members must lie in -1..{known - 1} for {known} true {nouns}, got "
            f"{int(given.min())}..{int(given.max())}"
        )
    return given.long().view(seats)


def _mechanism(described: Description, folder: Path) -> tuple[SplitMechanism | None, tuple[str, ...]]:
    """The declared mechanism or None, and the names of fields that a recording of an older version lacks."""
    if described.mechanism is None:
        return None, ()
    try:
        made = from_json(described.mechanism)
    except (ValueError, TypeError) as error:
        raise DataError(f"{folder}: mechanism: {error}; write it with privkit.Recorder.save(mechanism=…)") from None
    if not isinstance(made, SplitMechanism):
        raise DataError(
            f"{folder}: mechanism is a {type(made).__name__}; give a SplitMechanism, kind 'split_mechanism'"
        )
    missing = tuple(_missing(described.mechanism, to_json(made)))
    if missing and described.schema_version > 1:
        raise DataError(
            f"{folder}: mechanism leaves out {' and '.join(missing)}, and privkit takes no value for granted that "
            f"lowers ε; state {'it' if len(missing) == 1 else 'them'}, as privkit.Recorder.save(mechanism=…) does"
        )
    return made, missing


def _missing(given: Any, whole: Any, path: str = "") -> Iterator[str]:
    if isinstance(whole, dict) and isinstance(given, dict):
        for name, value in whole.items():
            if name not in given:
                yield path + name
            else:
                yield from _missing(given[name], value, f"{path}{name}.")
