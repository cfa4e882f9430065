"""Compares guesses with the truth: metrics, their intervals, and findings on whether an attack recovered anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, normalize

from privkit.attacks.escalate import Escalation
from privkit.attacks.goals import reconstruct
from privkit.attacks.scores.image import Values
from privkit.attacks.scores.nearest import found
from privkit.domains.domain import Domain
from privkit.errors import DataError, Misbehaved
from privkit.metrics.perception import Perception
from privkit.reports.columns import BY_PATTERN, CONVERGED, LEARNED, OWN_MATCH, START
from privkit.reports.schema import Check, Metric, Metrics, Row
from privkit.reports.seed_intervals import over_records
from privkit.reports.strongest import beats, finished_grade, metric_of
from privkit.shared.interval import Interval, clopper_pearson
from privkit.shared.measures import FLOORS, IDENTIFIED, OF_RECORDS, UNBOUNDED, measure
from privkit.shared.seeds import derive

FEW_RECORDS = 20  # number of attacked records below which a row says that its intervals may be too narrow

CLOSER = 0.99  # confidence of the interval that shows whether an attack is closer than a constant guess

_AT_ONCE = 256  # guesses that are compared with all attacked records at once
_NEAR = 0.01  # images nearer than this share of the mean distance of two images count as nearly equal
_ROUNDING = 1e-3  # how far a guess may lie outside its range: twice the rounding of half precision
_SHRUNK = 32  # larger images are shrunk to this many pixels per side before they are compared in several positions
_MOVED = 3  # number of pixels by which a guess that shows its image may be moved
_CONVERGENCE: dict[bool | None, str] = {
    True: "attack converged: the last doubling of its training lowered its own error by at most 5 %",
    False: "attack not converged: the last doubling of its training lowered its own error by more than 5 %",
    None: "convergence not judged: the attack did not double its training",
}
_NOT_LEARNED = "attack has not learned: it is no better than constant guesses"
_STILL = "attack not converged: it is no better than constant guesses, and its last doubling still helped"
_BEATEN = {name: floor.beaten for name, floor in FLOORS.items() if floor.beaten}
_BEATEN[START] = "the attack's own untrained start"
"""Name of a guess that needs no release -> its description in the sentence "better than …"."""

RecordScores = dict[str, Values]
"""Metric -> one value for each record."""


def check_guesses(attack: str, domain: Domain, guess: Tensor) -> None:
    """Raise `Misbehaved` if an attack's N guesses, [N, *domain.shape], are not valid records of the domain.

    Guesses on a wrong scale would otherwise look like a failed attack.

    >>> import torch
    >>> from privkit.domains.images.domain import Images
    >>> check_guesses("mine", Images(shape=(1, 2, 2)), torch.full((3, 1, 2, 2), 255.0))
    Traceback (most recent call last):
    privkit.errors.Misbehaved: the guesses of mine must lie in [0, 1], got 255 to 255; divide those in 0..255 by 255
    """
    if not len(guess):
        return
    if guess.is_complex() or not bool(guess.isfinite().all()):
        raise Misbehaved(f"the guesses of {attack} are not finite, real numbers; return numbers in range")
    if domain.name == "images":
        low, high = guess.min().item(), guess.max().item()
        if not guess.is_floating_point():
            raise Misbehaved(f"the guesses of {attack} must be floats in [0, 1], got {guess.dtype}")
        if low < -_ROUNDING or high > 1 + _ROUNDING:
            cure = "divide those in 0..255 by 255" if high > 2 else "map or clamp them to that range"
            raise Misbehaved(f"the guesses of {attack} must lie in [0, 1], got {low:g} to {high:g}; {cure}")
        return
    try:
        domain.check(guess)
    except DataError as error:
        raise Misbehaved(f"the guesses of {attack} are not {domain.records}: {error}") from None


def scored(
    domain: Domain,
    truth: Tensor,
    guess: Tensor,
    batch_size: int,
    perception: Perception | None = None,
    labels: Tensor | None = None,
) -> dict[str, RecordScores]:
    """Score N guesses against the N attacked records: alignment -> metric -> one value per record.

    "unaligned" compares them in their order. "matched" first assigns the guesses of each round of `batch_size` records
    to its records in the best way, which undoes a wrong order. A classifier in `perception` needs `labels`.
    """
    told = {} if unidentified(domain, truth) else {IDENTIFIED.name: identified(domain, truth, guess)}
    if domain.name != "images":
        found = {"unaligned": domain.scores(truth, guess) | told}
        if domain.kind.measures[0].higher_is_closer is not None:
            found["matched"] = domain.scores(truth, guess[assigned(domain, truth, guess, batch_size)])
        return found
    values = reconstruct.score(truth, guess, batch_size)
    if perception is not None and perception.labels:
        order = reconstruct.match(truth.cpu().numpy(), guess.cpu().numpy(), batch_size)
        values["unaligned"] |= perception.scores(truth, guess, labels)
        values["matched"] |= perception.scores(truth, guess[torch.from_numpy(order).to(guess.device)], labels)
    values["unaligned"] |= told
    return values


def assigned(domain: Domain, truth: Tensor, guess: Tensor, batch_size: int) -> NDArray[np.int64]:
    """The index of the guess for each record, int64 [N], after the best one-to-one assignment in each round.

    The assignment minimizes the total distance in the domain's first metric. Since it uses the true records, the scores
    of assigned guesses are an upper bound on the attack's success.

    Source: Kuhn 1955, computed by scipy `linear_sum_assignment`.
    """
    from scipy.optimize import linear_sum_assignment

    parts = [slice(start, start + batch_size) for start in range(0, len(truth), batch_size)]
    chosen = [linear_sum_assignment(domain.distances(guess[part], truth[part]).T)[1] + part.start for part in parts]
    return np.concatenate(chosen)


def matched_own(domain: Domain, truth: Tensor, own: Tensor, batch_size: int, seed: int) -> Values:
    """The first metric [N] of random records of the adversary, matched to the N attacked ones.

    A small record resembles some record of its round by chance, so matching makes even unrelated records look close.
    """
    places = np.random.default_rng(derive(seed, "matched own")).integers(0, len(own), len(truth))
    drawn = own[places.tolist()].to(truth.device)
    drawn = drawn[assigned(domain, truth, drawn, batch_size).tolist()]
    return domain.scores(truth, drawn)[domain.kind.measures[0].name]


def unidentified(domain: Domain, truth: Tensor) -> str:
    """A sentence that says why identification of attacked records cannot be measured; empty if it can."""
    first = domain.kind.measures[0]
    if first.higher_is_closer is None:
        return f"identified cannot be computed: {first.title} does not say which of two records is nearer to a guess"
    if len(truth) == 1:
        return "identified cannot be computed: one attacked record has no others to be told from; attack 2 or more"
    equal = f"identified cannot be computed: all {len(truth)} attacked {domain.records} are equal; attack others"
    return equal if len(truth) and bool((truth == truth[:1]).all()) else ""


def repeated(domain: Domain, truth: Tensor) -> str:
    """A sentence if some attacked records are equal, or (images) nearer than 1/100 of the mean distance; else empty.

    No guess can distinguish equal records, so each of k equal records is identified with probability at most 1/k.
    """
    times = Counter(record.tobytes() for record in truth.cpu().numpy()).values()
    count, most = sum(number for number in times if number > 1), len(times) / max(1, len(truth))
    equal = f"{count} of {len(truth)} attacked {domain.records} equal another one"
    if count:
        return f"{equal}: no attack identifies more than {most:.3f} of all"
    if domain.name != "images" or len(truth) < 2:
        return ""
    near, usual = 0, 2 * float(truth.double().var(0).mean())  # the mean distance of two images
    for part in _chunks(len(truth)):
        apart = domain.distances(truth[part], truth)
        apart[np.arange(len(apart)), np.arange(len(truth))[part]] = np.inf
        near += int((apart.min(1) < _NEAR * usual).sum())
    told = f"{near} of {len(truth)} attacked {domain.records} nearly equal another one"
    why = "a guess that shows one may be nearer to the other, so identified records are fewer than recovered ones"
    return f"{told}: {why}" if near else ""


def identified(domain: Domain, truth: Tensor, guess: Tensor) -> Values:
    """The probability [N] that each guess is closest to its own record among the N attacked ones (below 1 for ties)."""
    rows = np.arange(len(truth))
    return np.concatenate([found(domain.distances(guess[part], truth), rows[part]) for part in _chunks(len(truth))])


def _chunks(records: int) -> list[slice]:
    return [slice(start, start + _AT_ONCE) for start in range(0, records, _AT_ONCE)]


def identified_by_pattern(truth: Tensor, guess: Tensor, middle: Tensor) -> Values:
    """The probability [N] that each of N guesses correlates most with its own image among all (below 1 for ties).

    Unlike a distance, a correlation also recognizes a pale or inverted guess. All guesses are compared with the same
    sign, the sign that identifies more images. `middle` is a public mean image, [C, H, W], which is subtracted first.

    >>> import torch
    >>> images = torch.eye(4).view(4, 1, 2, 2)
    >>> identified_by_pattern(images, 0.5 - 0.01 * images, images.mean(0)).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    a, b = (normalize((images.double() - middle).flatten(1), dim=1) for images in (truth, guess))
    alike, rows = (b @ a.T).cpu().numpy(), np.arange(len(truth))
    return max((found(sign * alike, rows) for sign in (-1, 1)), key=lambda chances: float(chances.sum()))


def identified_when_moved(truth: Tensor, guess: Tensor, middle: Tensor) -> Values:
    """The probability [N] that each of N guesses, mirrored, rotated or shifted, correlates most with its own image.

    Images of more than 32 pixels per side are shrunk first. Each guess is compared with each image in the position with
    the largest correlation: mirrored or rotated (a symmetry of the square or rectangle), or shifted by at most three
    pixels along each axis, but not both.
    """
    if max(truth.shape[2:]) > _SHRUNK:
        truth, guess, middle = (adaptive_avg_pool2d(images, _SHRUNK) for images in (truth, guess, middle))
    turns = range(4) if truth.shape[2] == truth.shape[3] else (0, 2)
    flat = [guess.rot90(turn, (2, 3)) for turn in turns]
    by = range(-_MOVED, _MOVED + 1)
    moved = [guess.roll((down, right), (2, 3)) for down in by for right in by]
    placed = [*flat, *(one.flip(3) for one in flat), *moved]
    a = normalize((truth - middle).flatten(1), dim=1).T
    alike = a.new_full((len(guess), len(truth)), -1.0)
    for one in placed:
        alike = alike.maximum(normalize((one - middle).flatten(1), dim=1) @ a)
    return found(-alike.cpu().numpy(), np.arange(len(truth)))


def share(chances: Values) -> Metric:
    """The share of identified records with its binomial interval, from the probability [N] that each is identified.

    A tie of two records counts 1/2 for each; the interval rounds the sum outwards.

    >>> found = share(np.array([1.0, 0.5, 0.0, 0.0]))
    >>> found.value, round(found.low, 3), round(found.high, 3)
    (0.375, 0.006, 0.932)
    """
    exact = clopper_pearson(float(chances.sum()), len(chances))
    return Metric(**vars(exact), worst=float(chances.max()), higher_is_closer=True)


def mean_over(
    values: Values, *, higher_is_closer: bool, within: tuple[float, float] = UNBOUNDED, confidence: float = 0.95
) -> Metric:
    """The mean of N ≥ 1 values [N] with its interval (`over_records`), and the value of the closest guess.

    >>> found = mean_over(np.array([0.5, 0.7]), higher_is_closer=True, within=(0.0, 1.0))
    >>> round(found.low, 2), found.worst
    (0.01, 0.7)
    """
    closest = values.max() if higher_is_closer else values.min()
    found = over_records(values.tolist(), confidence, within)
    return Metric(**vars(found), worst=float(closest), higher_is_closer=higher_is_closer)


def few(records: int) -> tuple[str, ...]:
    """A warning if fewer than 20 records were attacked: intervals for skewed values then cover the mean too rarely."""
    told = (
        f"the intervals rest on {records} attacked records: if an attack recovers a few of them far better than the "
        f"others, they contain the mean in fewer than 8 of 10 cases; attack {FEW_RECORDS} or more by "
        "--budget …:victims=…"
    )
    return (told,) if records < FEW_RECORDS else ()


def summarise(scores: Mapping[str, RecordScores], perception: Perception | None = None) -> dict[str, Metrics]:
    """Means with intervals for every alignment of guesses and every metric; `perception` has a user's own metrics."""
    closer = directions(perception)
    return {
        alignment: {
            name: share(values)
            if name == IDENTIFIED.name
            else mean_over(values, higher_is_closer=closer[name], within=measure(name).within)
            for name, values in metrics.items()
        }
        for alignment, metrics in scores.items()
    }


def ahead(scores: RecordScores, guesses: Mapping[str, RecordScores], closer: Mapping[str, bool]) -> dict[str, Metrics]:
    """For each constant guess and metric, the mean difference by which an attack's `scores` are closer.

    A positive difference means that the attack is closer. Intervals have 99 % confidence, since a run makes many
    comparisons: for every attack, seed and budget.
    """
    return {
        guess: {
            name: mean_over((ours - own[name]) * (1 if closer[name] else -1), higher_is_closer=True, confidence=CLOSER)
            for name, ours in scores.items()
            if measure(name).compared
        }
        for guess, own in guesses.items()
    }


def directions(perception: Perception | None = None) -> dict[str, bool]:
    """Metric -> whether higher values are closer; `perception` supplies a user's own metrics."""
    declared = {name: bool(one.higher_is_closer) for name, one in OF_RECORDS.items()}
    return declared | (perception.directions if perception is not None else {})


def learned(accuracy: Interval, labels: Tensor, auc: Interval | None = None) -> Check:
    """Check that accuracy is significantly higher than the share of the most frequent of the test `labels` [N].

    If more than half of the records have the same label, a model that ranks records well may still predict this label
    for all records. So it also suffices that the AUC of its scores is significantly above 1/2.
    """
    most = labels.bincount().max().item() / len(labels)
    passed, than = accuracy.low > most, f"better than the most frequent label's share {most:.3f}"
    detail = f"accuracy {accuracy.value:.3f} is {than}"
    if not passed and most > 0.5 and auc is not None and auc.low > 0.5:
        detail = f"AUC {auc.value:.3f} [{auc.low:.3f}, {auc.high:.3f}] of the model's scores is better than chance"
        passed = True
    elif not passed:
        cure = "train longer, or weaken the defense"
        if accuracy.value > most:
            cure = f"train longer, weaken the defense, or test on more than {len(labels)} records"
        doubt = f"so it is not shown that the model learned its task; {cure}"
        detail = f"accuracy {accuracy.value:.3f} is not shown to be {than}, {doubt}"
    return Check(name=LEARNED, passed=passed, detail=detail, decisive=False)


def convergence(converged: bool | None, row: Row, went: Escalation) -> Check:
    """Check that more training would not help the attack. An attack no better than a constant guess does not pass.
    `converged` says whether the last time that the attack doubled its own training lowered its error by at most 5 %
    (None if the attack never doubled it); `went` has the gains of further doublings."""
    passed, detail = converged, _CONVERGENCE[converged]
    if finished_grade(row) == "nothing":
        learning = went.gains[-1] if went.gains else converged is False
        passed, detail = (False, _STILL if went.gains else detail) if learning else (None, _NOT_LEARNED)
    return Check(name=CONVERGED, passed=passed, detail=detail, decisive=False)


def own_match(matched: Values, own: Values, higher_is_closer: bool) -> tuple[Check, ...]:
    """A failed check if matched guesses are not significantly closer to the truth than the adversary's matched random
    records; otherwise empty. `matched` and `own` are [N], the domain's first metric for each attacked record."""
    gains = (matched - own) * (1 if higher_is_closer else -1)
    if mean_over(gains, higher_is_closer=True, confidence=CLOSER).low > 0:
        return ()
    detail = (
        "after matching, guesses are not shown to be closer than random records of the adversary: "
        f"{matched.mean():.3f} against {own.mean():.3f}"
    )
    return (Check(name=OWN_MATCH, passed=False, detail=detail, decisive=False),)


def by_pattern(chances: Values, labels: int, how: str = "with a wrong contrast or sign") -> tuple[Check, ...]:
    """A failed check if guesses identify more images by correlation than the images' labels alone allow; otherwise
    empty.

    `chances` [N] are the probabilities that each guess identifies its image, `labels` is the number of different labels
    of the attacked images (0 if unknown: no check), and `how` says how the guesses show the images.
    """
    if not labels or share(chances).low <= labels / len(chances):
        return ()
    detail = f"{chances.sum():.0f} of {len(chances)} images are identified by correlation: guesses show them {how}"
    return (Check(name=BY_PATTERN, passed=False, detail=detail, decisive=False),)


def cell_findings(converged: bool | None, row: Row, went: Escalation) -> tuple[Check, ...]:
    """Check whether one attack converged, and whether its guesses beat constant guesses and its untrained start.

    A failed check is a finding, not a fault of the run: this attack recovered nothing, but another attack may recover
    more.
    """
    checks, metric = [convergence(converged, row, went)], metric_of(row)
    for name in [floor for floor in _BEATEN if floor in row.floors]:
        ours, floor = row.recovered["unaligned"][metric], row.floors[name]["unaligned"][metric]
        passed = beats(row, name)
        than = f"{'' if passed else 'not shown to be '}better than {_BEATEN[name]}"
        detail = f"{than}: {measure(metric).spoken} {ours.value:.4f} against {floor.value:.4f}"
        checks.append(Check(name=f"beats_{name}", passed=passed, detail=detail, decisive=False))
    return tuple(checks)
