"""Tests a recording's declared mechanism against its data: which claims the data refute, and which stay untested."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod, sqrt
from typing import TYPE_CHECKING

import torch
from scipy.special import betainc, betaincc
from torch import Generator, Tensor

from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import FixedCounts, FixedRatio
from privkit.accountants.spec.parts import WithoutReplacement
from privkit.accountants.spec.secrets import RandomAllocation
from privkit.accountants.spec.sensitivity import Ball, BoxLabels, Categories, Clamp, Known, OneHot, PatchBall
from privkit.defenses.residual import LEVEL, ROUNDED, Law, refuted_by, times_declared
from privkit.domains.base import several
from privkit.errors import one_line
from privkit.recording.clipped import beyond, clipped_to, declared_noise_scale, followed_out, law_of
from privkit.recording.replay import Ask, Replay, carried, replay_round, rounds_to_replay

if TYPE_CHECKING:
    from privkit.recording.read import Recording

_NUMBERS, _LONGEST = 2**18, 2**14
"""Largest count of tested numbers in all releases together, and in one release; of more, a random part is tested."""
_LARGER = 1.5  # a difference above this multiple of the declared noise does not count as noise


@dataclass(kw_only=True)
class Compared:
    """The results of comparing a declaration with data: claims that are refuted, checked, or not checked."""

    refuted: list[str] = field(default_factory=list)  # sentences that begin "the recording declares …, but …"
    checked: list[str] = field(default_factory=list)  # compared declarations that are not refuted
    unchecked: list[str] = field(default_factory=list)  # declarations that could not be compared, each with its reason

    @property
    def sentence(self) -> str:
        """A sentence that names the checked and the unchecked claims."""
        told = (("checked", self.checked), ("not checked", self.unchecked))
        return "; ".join(f"{name}: {', '.join(what)}" for name, what in told if what)

    def hold(self, what: str, refutation: str) -> None:
        """Add the outcome of a test of `what`. `refutation` completes "the recording declares …"; "" if not refuted."""
        if refutation:
            self.refuted.append(f"the recording declares {refutation}")
        else:
            self.checked.append(what)


def compare_data(recording: Recording, ask: Ask | None, why: str = "", *, plain: bool = True) -> Compared:
    """Test which declarations of a recording's mechanism (clipping, noise, …) its tensors refute.

    The result also lists checked declarations, and unchecked ones, such as those without a trace in the release (a
    frozen lower model). Each group of tests refutes a correct recording with probability at most 10⁻⁶
    (`residual.LEVEL`). `ask` maps records to the clients' output before the noise; None if unknown, for the reason
    `why`. `plain` is False if a recorded defense adds noise to images, or changes the noisy data; then the noise is not
    tested.
    """
    mechanism, found = recording.mechanism, Compared()
    assert mechanism is not None
    _counts(recording, mechanism, found)
    _sampling(recording, mechanism, found)
    _mixing(recording, mechanism, found)
    rounds: dict[int, Replay] = {}
    if ask is not None:
        for number in rounds_to_replay(recording):
            try:
                rounds[number] = replay_round(recording, number, ask)
            except ValueError as reason:
                why = str(reason)
    if mechanism.unit == "record" and recording.round_rows > 1:
        _apart(recording, ask, why, found)
    if plain:
        _form(recording, mechanism, found)
        _noise(recording, mechanism, rounds, why, found)
    else:
        found.unchecked.append(f"dimensions and noise ({why})")
    _labels(recording, mechanism, found)
    if mechanism.lower_model == "frozen":
        found.unchecked.append("whether the lower model was frozen")
    elif not isinstance(mechanism.lower_model, str):
        found.unchecked.append("the noise of the lower model's updates")
    if mechanism.random_masks:
        found.unchecked.append("whether masks were random")
    if isinstance(mechanism.smashed, Known):
        found.unchecked.append("what bounds the sensitivity")
    found.unchecked = list(dict.fromkeys(found.unchecked))
    return found


def _counts(recording: Recording, mechanism: SplitMechanism, found: Compared) -> None:
    """Test the declared numbers of rounds and releases against the numbers for one record (or client) in the file."""
    described, rounds = recording.description, recording.pass_rounds
    often = recording.most_released
    if mechanism.unit == "client" or mechanism.participation.rate < 1:
        watched = (described.watched or 0) // described.passes  # the recorder kept only the last rounds
        seen = f"the recorder saw {watched}" if watched > rounds else f"the file holds {rounds} of one pass"
        less = mechanism.rounds < max(rounds, watched)
        found.hold("rounds", f"rounds = {mechanism.rounds}, but {seen}" if less else "")
    elif often is None:
        found.unchecked.append(f"how often a record is released (no true {recording.record} was recorded)")
    else:
        said = f"rounds = {mechanism.turns}, which count the releases of a record, but the file holds {often} of one"
        found.hold("releases of a record", said if mechanism.turns < often else "")
    if mechanism.unit == "client":
        sent = f"{described.batch_size} {recording.domain.records}"
        said = f"releases = {mechanism.releases}, but a client sends {sent} in a round"
        found.hold("releases of a round", said if mechanism.releases < described.batch_size else "")
        if mechanism.turn > 1 and (most := recording.rounds_of_one) is not None:
            said = f"that a client takes part in {mechanism.turns} rounds, but one of its records is in {most}"
            found.hold("rounds of a client", said if mechanism.turns < most else "")


def _sampling(recording: Recording, mechanism: SplitMechanism, found: Compared) -> None:
    """Test whether each round has at most as many records (or clients) as the declared subsampling assumes."""
    part, described = mechanism.participation, recording.description
    if part.rate == 1:
        return
    senders = described.clients * (described.batch_size if mechanism.unit == "record" else 1)
    if isinstance(part, WithoutReplacement):
        said = f"that {part.chosen} of {part.clients} {mechanism.unit}s take part in a round, but {senders} do"
        found.hold("how many take part in a round", said if senders > part.chosen else "")
    most = recording.rounds_of_one
    if most is None:
        found.unchecked.append(f"how often one takes part (no true {recording.record} was recorded)")
        return
    rounds = recording.pass_rounds
    if isinstance(part, RandomAllocation):
        epochs = -(-rounds // part.epoch_rounds) + 1  # rounds in the file may begin and end within an epoch
        unlikely = most > epochs * part.participations
    else:
        unlikely = float(betainc(most, rounds - most + 1, part.rate)) * rounds * described.batch_size < LEVEL
    said = f"that a {mechanism.unit} takes part in a round with probability {part.rate:.3g}"
    found.hold("how often one takes part", f"{said}, but some are in {most} of {rounds} rounds" if unlikely else "")
    found.unchecked.append("whether participation was secret")


def _mixing(recording: Recording, mechanism: SplitMechanism, found: Compared) -> None:
    """Test whether the number of mixed clients and their shares agree with the declared mechanism."""
    group, mixed = mechanism.mixing.group, recording.description.mixed
    if group == 1:
        return
    said = f"that {group} clients are mixed, but a row holds {mixed} (mixed)"
    found.hold("how many are mixed", said if group > mixed else "")
    shares = [view.weights for view in recording.views if view.weights is not None]
    ratio = getattr(mechanism.mixing, "ratio", None)
    if len(shares) < len(recording.views) or not isinstance(ratio, FixedRatio | FixedCounts):
        found.unchecked.append("the shares of mixed clients")
        return
    most = max(ratio.ratios) if isinstance(ratio, FixedRatio) else max(ratio.counts) / sum(ratio.counts)
    largest = max(float(one.mean(2).max()) for one in shares)
    rounded = 1 / shares[0].shape[2] if shares[0].shape[2] > 1 else 0.0  # ⌈λN⌉ of N positions
    said = f"shares of {most:.3g} at most, but a client has {largest:.3g} of a row"
    found.hold("the shares of mixed clients", said if largest > most + rounded + 1e-3 else "")


def _apart(recording: Recording, ask: Ask | None, why: str, found: Compared) -> None:
    """Test whether a record affects other records' outputs in the lower segment, in a batch of the recorded size."""
    sent, seats = recording.description.replay, recording.members_of(-1)[:, 0]
    what = f"that records do not meet in the lower segment in {'eval' if sent is None else sent.mode} mode"
    known = len(recording.truth) and bool((seats >= 0).all())
    x = recording.truth.x[seats] if known else recording.own.x[: len(seats)]
    if ask is None or len(x) < len(seats):
        found.unchecked.append(f"{what} ({why or f'too few {recording.domain.records} were recorded'})")
        return
    try:
        replaced, moved = carried(ask, x)
    except (ValueError, RuntimeError) as reason:
        found.unchecked.append(f"{what} ({one_line(reason)})")
        return
    said = f"noise that hides one record, but {replaced} records moved {moved} rows of a batch in the lower segment"
    found.hold(what, f"{said}; use layers that treat each alone, such as layer normalization" if moved else "")


def _form(recording: Recording, mechanism: SplitMechanism, found: Compared) -> None:
    shape, clip = recording.views[0].smashed.shape[1:], mechanism.smashed
    field = {PatchBall: "patches", Clamp: "dimensions", BoxLabels: "classes", Categories: "answers"}.get(type(clip), "")
    if not field or (field == "patches" and len(shape) != 2):
        return
    seen, what = (shape[0], "tokens") if field == "patches" else (prod(shape), "numbers")
    declared = getattr(clip, field)
    found.hold(field, f"{field} = {declared}, but a row has {seen} {what}" if declared < seen else "")


def _noise(
    recording: Recording, mechanism: SplitMechanism, rounds: dict[int, Replay], why: str, found: Compared
) -> None:
    """Test whether releases have the declared noise around data in the clip set."""
    clip, noise = mechanism.smashed, mechanism.noise
    if isinstance(clip, Categories):
        _answers(recording, clip, noise.smashed, rounds, why, found)
        return
    if noise.site == "client" and any(view.mixed > 1 and view.weights is None for view in recording.views):
        found.unchecked.append("the noise (clients add it before mixing, and their shares were not recorded)")
        return
    law = law_of(mechanism)
    if not isinstance(clip, Known):
        what = "radius" if isinstance(clip, Ball | PatchBall) else "range"
        found.hold(f"the {what} of releases", beyond(recording, mechanism))
    released, scales = _drawn_rows(recording, mechanism)
    declares = f"{law.capitalize()} noise of {'σ' if law == 'gaussian' else 'b'} = {noise.smashed:g}, but "
    if refutation := _alone(released, scales, law):
        found.hold("", declares + refutation)
        return
    if not rounds:
        found.checked.append("that releases vary as much as the noise")
        found.unchecked.append(f"what the noise was added to ({why})")
        return
    refutation, times, numbers = _replayed(recording, mechanism, rounds, found)
    if times > _LARGER and not refutation:
        found.unchecked.append(f"the noise (releases are {times:.3g} times as far from the replay as it would be)")
        return
    found.hold("that there is as much noise", declares + refutation if refutation else "")
    if not refutation:  # a larger difference says nothing of the law
        alike = times < 1 + ROUNDED + 3 / sqrt(2 * numbers)
        (found.checked if alike else found.unchecked).append("the law of the noise")


def _alone(released: Tensor, scales: Tensor, law: Law) -> str:
    """A sentence if releases vary around the mean of other releases by less than the declared noise; else empty."""
    order = torch.randperm(len(released), generator=Generator().manual_seed(0))
    halves = order.chunk(2) if len(order) >= 8 else (order,)
    for number, own in enumerate(halves):
        about = released[halves[1 - number]].mean(0) if len(halves) > 1 else torch.zeros(())
        if refutation := refuted_by(about, released[own], law=law, scale=scales[own], level=LEVEL / 4):
            return refutation
    return ""


def _replayed(
    recording: Recording, mechanism: SplitMechanism, rounds: dict[int, Replay], found: Compared
) -> tuple[str, float, int]:
    """Test whether the release minus its replay (the same records sent again without noise) is the declared noise.

    Returns a sentence if it is not, otherwise "". For the last round, also returns the ratio of the difference's size
    to the noise, and the count of compared numbers.
    """
    clip, law, outside = mechanism.smashed, law_of(mechanism), ""
    every = []
    for number, one in rounds.items():
        clean, scale = one.clean, declared_noise_scale(recording.views[number].weights, one.released, mechanism)
        inside = None if recording.description.mixed > 1 else clipped_to(clip, clean)
        if inside is not None:
            outside = outside or followed_out(one, inside, scale, mechanism)
            clean = inside
        every.append((*_part(one.released, scale), _part(clean, scale)[0]))
    if not isinstance(clip, Known) and recording.description.mixed == 1:
        found.hold(f"that lower(truth) lies in its {clip.kind}", outside)
    released, scales, clean = (torch.cat(parts) for parts in zip(*every, strict=True))
    most = max(8, _NUMBERS // released.shape[1])
    drawn = torch.randperm(len(released), generator=Generator().manual_seed(0))[:most]
    refutation = refuted_by(clean[drawn], released[drawn], law=law, scale=scales[drawn], level=LEVEL / 4)
    last, scales, clean = (part[:most] for part in every[-1])
    same = bool((scales == scales[0, 0]).all())
    blur = list(rounds.values())[-1].blur if same else 0.0
    one_scale = float(scales[0, 0]) if same else scales
    refutation = refutation or refuted_by(clean, last, law=law, scale=one_scale, level=LEVEL / 4, blur=blur)
    times = times_declared(clean, last, law=law, scale=one_scale)
    if blur and law == "gaussian":
        times /= sqrt(1 + (blur / float(one_scale)) ** 2)
    return refutation, times, last.numel()


def _answers(
    recording: Recording, clip: Categories, flip: float, rounds: dict[int, Replay], why: str, found: Compared
) -> None:
    """Test whether released answers are categories, and are replaced at the declared rate."""
    released = torch.cat([view.smashed for view in recording.views])
    fits = bool(((released == released.round()) & (released >= 0) & (released < clip.classes)).all())
    said = f"{clip.classes} categories, but other numbers were released"
    found.hold("that answers are categories", "" if fits else said)
    if not rounds or not fits or any(one.spread for one in rounds.values()):
        found.unchecked.append(f"how many answers were replaced ({why or 'the lower segment draws'})")
        return
    differ = sum(int((one.released != one.clean).sum()) for one in rounds.values())
    total, rate = sum(one.released.numel() for one in rounds.values()), flip * (1 - 1 / clip.classes)
    less = differ < 0.98 * rate * total and float(betaincc(differ + 1, total - differ, rate)) < LEVEL
    said = f"that an answer is another one with probability {rate:.3g}, but {differ} of {total} are"
    found.hold("how many answers were replaced", said if less else "")


def _labels(recording: Recording, mechanism: SplitMechanism, found: Compared) -> None:
    """Test whether released labels lie in their declared range and have their declared noise."""
    sent = [view.labels for view in recording.views if view.labels is not None]
    if mechanism.labels is None or mechanism.noise.labels is None:
        return
    if several(recording.truth.y):
        most, one = int(recording.truth.y.sum(1).max()), isinstance(mechanism.labels, OneHot)
        found.hold("the range of labels", f"one-hot labels, but a record has {most}" if one and most > 1 else "")
    elif recording.several:
        found.unchecked.append("the range of several labels per record")
    if not sent:
        found.unchecked.append("the noise of labels (none were recorded)")
        return
    labels = torch.cat(sent)
    said = f"noise of {mechanism.noise.labels:g} on labels, but "
    if not labels.is_floating_point():
        found.hold("the noise of labels", f"{said}whole numbers were sent")
        return
    scales = torch.full_like(labels, mechanism.noise.labels, dtype=torch.float64)
    if mechanism.noise.site == "client" and recording.description.mixed > 1:
        scales = scales / sqrt(recording.description.mixed)  # the least noise after mixing: with equal shares
    law = law_of(mechanism)
    refutation = _alone(labels, scales, law)
    seats = recording.members.repeat(recording.description.passes, 1)
    if recording.labels is not None and seats.shape[1] == 1 and bool((seats >= 0).all()):
        true = recording.labels[seats[:, 0]]
        clean = true if several(true) else true.unsqueeze(1) == torch.arange(labels.shape[1])
        refutation = refutation or refuted_by(clean.float(), labels, law=law, scale=scales, level=LEVEL / 4)
    found.hold("the noise of labels", said + refutation if refutation else "")


def _part(rows: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Flatten releases and their scales to vectors; very long ones keep random coordinates, the same in all rounds."""
    flat, scales = rows.flatten(1), scale.flatten(1)
    if flat.shape[1] > _LONGEST:
        places = torch.randperm(flat.shape[1], generator=Generator().manual_seed(1))[:_LONGEST]
        flat, scales = flat[:, places], scales[:, places]
    return flat, scales


def _drawn_rows(recording: Recording, mechanism: SplitMechanism) -> tuple[Tensor, Tensor]:
    """Draw random releases from all rounds with their noise scales, enough for both halves of a test."""
    views = recording.views
    sizes = [len(view.smashed) for view in views]
    width = min(_LONGEST, views[0].smashed[0].numel())
    drawn = torch.randperm(sum(sizes), generator=Generator().manual_seed(2))[: 2 * max(8, _NUMBERS // width)]
    taken = torch.zeros(sum(sizes), dtype=torch.bool).index_fill(0, drawn, value=True).split(sizes)
    parts = [
        _part(sent, declared_noise_scale(None if view.weights is None else view.weights[rows], sent, mechanism))
        for view, rows in zip(views, taken, strict=True)
        if len(sent := view.smashed[rows])
    ]
    released, scales = (torch.cat(part) for part in zip(*parts, strict=True))
    return released, scales
