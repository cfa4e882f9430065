"""Checks whether a recording's data agree with the declared mechanism, and its release with the lower segment."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from math import log

import torch
from torch import Generator, Tensor, nn

from privkit.accountants.shuffles.permutations import kept_tokens
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.audit.assembled import empty_round
from privkit.defenses.base import Defense, Receipt
from privkit.defenses.batch_shuffle import BatchShuffle
from privkit.defenses.chain import stages_of
from privkit.defenses.charge import Noised
from privkit.defenses.compile import ChainReceipt, sites_of
from privkit.defenses.patch_shuffle import PatchShuffle
from privkit.defenses.residual import LEVEL
from privkit.errors import one_line
from privkit.files.import_path import Untrusted, only
from privkit.parts.registry import parse
from privkit.recording.declared import Compared, compare_data
from privkit.recording.read import Recording
from privkit.recording.replay import FAR, Ask, replay_round, rounds_to_replay, variance_of
from privkit.torch_utils.seeded import seeded
from privkit.training import Clients, SplitProtocol
from privkit.wire.channel import seen_alone, shared_lower

_BUILDER = "privkit.audit.export:clients"
_SEEN = frozenset({"trains", "maps", "scales", "clips", "noises", "mixes", "answers"})
"""Effects that stages may have if a replay without noise is to be compared with the release."""
_KEPT: dict[object, Declared] = {}  # the results of at most one recording


@dataclass(frozen=True, kw_only=True)
class Declared:
    """The results of comparing a recording's data with its declarations."""

    recording: Recording
    compared: Compared  # result of comparing the declared mechanism with the data
    distances: Mapping[int, float]  # round -> relative distance of the round's release from the lower segment's output
    unsent: str  # why a distance is unknown; empty without a lower segment
    # variance in the last round / expected variance, if clearly below 1 (`Replay.quieter`)
    quieter: float | None = None

    @property
    def distance(self) -> float | None:
        """The distance of the last round's release from its replay, relative to the release's norm; None if unknown."""
        return self.distances.get(len(self.recording.views) - 1)

    @property
    def own(self) -> bool:
        """Whether `privkit record` wrote the recording."""
        lower = self.recording.description.lower
        return lower is not None and lower.builder == _BUILDER

    @property
    def _unmixed(self) -> bool:
        """Whether releases are mixed with unrecorded weights, while the recorded lower segment does not mix."""
        described = self.recording.description
        hidden = any(view.mixed > 1 and view.weights is None for view in self.recording.views)
        return hidden and described.lower is not None and not self.own and not described.defense

    def doubt(self, passes: int) -> str:
        """A sentence if the recorded lower segment does not reproduce the releases of the last `passes` passes over the
        records; else empty. If there is a sentence, the failure of an attack that uses or queries this segment is no
        evidence.
        """
        if self.quieter is not None:
            return (
                f"the recorded lower segment adds more noise than the release has: the last round's variance is only "
                f"{self.quieter:.2f} of the variance of its answers; record the segment with the release's own noise"
            )
        if self._unmixed:
            return (
                "the release is mixed by weights that were not recorded, and the recorded lower segment answers "
                "without mixing; record the weights and clients of each round, or name the defense"
            )
        described, rounds = self.recording.description, len(self.recording.views)
        first, last = rounds - rounds // described.passes * min(passes, described.passes), self.distance or 0.0
        read = {number: distance for number, distance in self.distances.items() if number >= first}
        far = max(read, key=lambda number: read[number], default=first)
        if read.get(far, 0.0) <= FAR:
            return ""
        which, cure = "the last round", ""
        if last <= FAR:
            which = f"round {far - first + 1} of the {rounds - first} attacked ones"
            cure = ": its weights changed while rounds were recorded, so record fewer, or after the last step"
        mode = "eval" if described.replay is None else described.replay.mode
        return (
            f"the recorded lower segment does not reproduce the release: {which}, sent again in {mode} mode, differs "
            f"by {read[far] if cure else last:.2f} of its size (more than {FAR:g}), and no declared noise explains "
            f"this; record the segment with its defense, in the mode and with the weights of that round{cure}"
        )


def declared_by(recording: Recording) -> Declared:
    """Compare a recording's declarations with its data. The result is kept, so that a run computes it once."""
    key = (str(recording.folder), tuple(sorted(recording.files.items())), recording.trust, len(recording.views))
    if key not in _KEPT:
        with seeded(torch.device("cpu"), 0):  # a builder may draw random numbers
            found = _compared(recording)
        _KEPT.clear()
        _KEPT[key] = found
    return _KEPT[key]


def defended(lower: nn.Module, recording: Recording, protocol: SplitProtocol, seed: int) -> nn.Module:
    """Join the recorded lower segment with the defense that the recording names; the segment alone if it names none."""
    described, domain = recording.description, recording.domain
    if not described.defense or isinstance(lower, Clients):
        return lower
    with only(recording.trust):
        defense = parse("defenses", described.defense).spec
    return Clients.build(lower.cpu(), defense, domain, classes=recording.classes, seed=seed, protocol=protocol)


@dataclass(frozen=True, kw_only=True)
class _Clients:
    """What the audit knows about the clients that made the recorded releases."""

    ask: Ask | None = None  # a function: images -> the clients' output before noise; None if unknown
    why: str = ""  # why `ask` is unknown
    plain: bool = True  # whether noise is added directly to the released data, with no later step
    weaker: str = ""  # how the declared mechanism claims more protection than the defense gives; else empty
    unmoved: str = ""  # a sentence if a shuffle was declared, but tokens stayed in place; else empty
    # variance of the recorded defense's noise; None if only the declared mechanism gives it
    variance: float | None = None


def _compared(recording: Recording) -> Declared:
    known, mechanism = _clients(recording), recording.mechanism
    ask, why, quieter = known.ask, known.why, None
    distances = dict[int, float]()
    variance = variance_of(mechanism) if known.variance is None else known.variance
    for number in range(len(recording.views)):
        if ask is None:
            break
        try:
            sent = replay_round(recording, number, ask)
            distances[number], quieter = sent.distance(variance), sent.quieter(known.variance or 0.0)
        except ValueError as reason:
            quieter, why = None, str(reason)
        except Exception as error:
            ask, why = None, f"the lower segment fails: {one_line(error)}"
    compared = Compared()
    if mechanism is not None and not recording.left_out:
        compared = compare_data(recording.whole, ask, why, plain=known.plain)
    compared.refuted += filter(None, [known.weaker, known.unmoved])
    unknown = len(distances) < len(recording.views) and recording.description.lower is not None
    unsent = why if unknown and not known.unmoved else ""
    return Declared(recording=recording, compared=compared, distances=distances, unsent=unsent, quieter=quieter)


def _clients(recording: Recording) -> _Clients:
    described = recording.description
    try:
        lower = recording.lower()
        if lower is None:
            return _Clients(why="no lower segment was recorded")
        edge = defended(lower, recording, SplitProtocol(clients=described.clients), 0)
        if not isinstance(edge, Clients):
            return _Clients(ask=edge)
        plain = shared_lower(edge) if isinstance(lower, Clients) else lower.cpu()
        moved_nothing = _unmoved(recording, deepcopy(plain), stages_of(edge.defense)) if plain else ""
        return replace(_of_privkit(edge.eval(), recording), unmoved=moved_nothing)
    except Untrusted:
        raise
    except Exception as error:  # an attack that needs this code reports its error again
        return _Clients(why=f"the lower segment fails: {one_line(error)}", plain=not described.defense)


def _of_privkit(edge: Clients, recording: Recording) -> _Clients:
    stages = stages_of(edge.defense)
    sites, noisy = sites_of(stages), [stage for stage in stages if "noises" in _effects(stage)]
    behind = [stage for stage in sites.smashed if stage.effects != frozenset({"trains"})]
    alone = len(noisy) == 1 and not sites.images and behind[-1:] == noisy
    plain = edge.block is None and (alone or not noisy)
    with torch.no_grad():
        empty = empty_round(recording.domain, edge.lowers.copies, edge.defense.smallest_batch)
        receipt = edge.release(*empty, Generator().manual_seed(0)).receipt
    weaker = "" if recording.mechanism is None else _weaker(recording.mechanism, receipt, edge.defense.name, plain)
    known = _Clients(plain=plain, weaker=weaker, variance=_variance(receipt))
    seen = all(_effects(stage) <= _SEEN for stage in sites.smashed)
    if not (plain and seen) or sites.images or any(_effects(stage) & {"mixes", "noises"} for stage in sites.server):
        return replace(known, why=f"the recording does not show what {edge.defense.name} made of the records")
    if edge.defense.group == 1:
        return replace(known, ask=seen_alone(edge, recording.round_rows))
    shared = shared_lower(edge)
    return replace(known, ask=shared, why="" if shared else "each client has a lower segment of its own")


def _effects(stage: Defense) -> frozenset[str]:
    return frozenset({"unknown"}) if stage.effects is None else frozenset(stage.effects)


def _variance(receipt: Receipt) -> float:
    parts = [step.receipt for step in receipt.steps] if isinstance(receipt, ChainReceipt) else [receipt]
    noises = [part.noise for part in parts if isinstance(part, Noised) and part.covers == "release"]
    return sum(noise.distribution.variance_factor * noise.smashed**2 for noise in noises)


def _weaker(declared: SplitMechanism, receipt: Receipt, name: str, plain: bool) -> str:
    """A sentence if the declared mechanism claims more protection than the recorded defense gives; else empty."""
    real = receipt.mechanism()
    if real is None:
        return ""
    said, norm = "the recording declares ", real.noise.distribution.norm
    for what in ("smashed", "labels"):
        mine, its = getattr(declared.noise, what), getattr(real.noise, what)
        if mine is not None and (declared.noise.law != real.noise.law or its is None or mine > its * (1 + 1e-9)):
            found = "none" if its is None else f"{real.noise.law} noise of {its:g}"
            return f"{said}{declared.noise.law} noise of {mine:g} on {what}, but its defense {name} adds {found}"
    if declared.mixing.group > real.mixing.group:
        return f"{said}that {declared.mixing.group} clients are mixed, but its defense {name} mixes {real.mixing.group}"
    if plain:  # then `compare_data` tests the clipping
        return ""
    mine, its = (one.smashed.sensitivity("replace_one", norm) for one in (declared, real))
    return f"{said}a sensitivity of {mine:.4g}, but its defense {name} has {its:.4g}" if mine < its * (1 - 1e-9) else ""


def _unmoved(recording: Recording, lower: nn.Module, stages: tuple[Defense, ...]) -> str:
    """A sentence if the recording declares a shuffle of tokens, but too many tokens stayed in place; otherwise empty.

    A token is in place if the nearest of the lower segment's output tokens for its record has the same position. A
    shuffle leaves one of T tokens in place on average. By a Poisson bound, a correct recording is refuted with
    probability at most 10⁻⁶ (`residual.LEVEL`). If at least half of the tokens moved, nothing is refuted, since a class
    token can stay in place.
    """
    shuffle = next((stage for stage in stages if isinstance(stage, PatchShuffle | BatchShuffle)), None)
    if shuffle is None or recording.description.mixed > 1 or recording.views[0].smashed.ndim != 3:
        return ""
    stayed = told = rows = tokens = 0
    for number in rounds_to_replay(recording):
        try:
            one = replay_round(recording, number, lower)
            clean = one.clean
            for stage in sites_of(stages).smashed:
                clean = stage.public_transform(clean)
            stayed += _in_place(clean, one.released)
            told += _in_place(clean, clean)
        except Exception:  # a user's own segment may raise anything; the row says why the release cannot be made again
            return ""
        rows, tokens = rows + len(one.released), one.released.shape[1]
    kept, mean = _left(shuffle, tokens)
    if 2 * stayed <= told or not _unlikely(stayed - kept * rows, mean * rows):
        return ""
    return (
        f"the recording declares {shuffle.name}, but {stayed} of {told} different tokens in {rows} rows are still in "
        f"their places; on average, this shuffle leaves {(kept + mean) * rows} there"
    )


def _in_place(clean: Tensor, released: Tensor) -> int:
    """Count the N·T released tokens [N, T, D] whose nearest clean token of the same record has the same position.

    >>> tokens = torch.eye(4).repeat(2, 1, 1)
    >>> _in_place(tokens, tokens), _in_place(tokens, tokens.roll(1, 1))
    (8, 0)
    """
    apart = torch.cdist(released.float(), clean.float(), compute_mode="donot_use_mm_for_euclid_dist")
    return int((apart.argmin(2) == torch.arange(clean.shape[1], device=clean.device)).sum())


def _left(shuffle: PatchShuffle | BatchShuffle, tokens: int) -> tuple[int, int]:
    """How many of a record's tokens a shuffle leaves in place by design, and an upper limit for the mean number of
    other tokens that stay by chance."""
    if isinstance(shuffle, PatchShuffle) or shuffle.variant == "final_shuffle":
        return 0, 1
    kept = kept_tokens(tokens, shuffle.keep)
    # 2: on average one of the kept tokens and one of the others
    return (kept, 1) if shuffle.variant == "kept_in_place" else (0, 2)


def _unlikely(stayed: int, mean: int) -> bool:
    """Whether a Poisson variable with this mean reaches `stayed` with probability at most 10⁻⁶, by Chernoff's bound.

    >>> _unlikely(3200, 50), _unlikely(60, 50), _unlikely(0, 1)
    (True, False, False)
    """
    return stayed > mean and stayed - mean + stayed * log(mean / stayed) < log(LEVEL)
