"""Findings about one attack's result: did its training converge, and does it beat guesses that need no release?"""

from __future__ import annotations

from torch import Tensor

from privkit.attacks.escalate import Escalation
from privkit.attacks.scores.image import Values
from privkit.audit.scoring import CLOSER, mean_over, share
from privkit.reports.columns import BY_PATTERN, CONVERGED, LEARNED, OWN_MATCH, START
from privkit.reports.schema import Check, Row
from privkit.reports.strongest import beats, finished_grade, metric_of
from privkit.shared.interval import Interval
from privkit.shared.measures import FLOORS, measure

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
    `converged` says whether the last doubling of its own training lowered the attack's error by at most 5 % (None if it
    did not double); `went` has the gains of further doublings."""
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

    A failed check is a finding, not a fault of the run: this attack recovered nothing, but another may recover more.
    """
    checks, metric = [convergence(converged, row, went)], metric_of(row)
    for name in [floor for floor in _BEATEN if floor in row.floors]:
        ours, floor = row.recovered["unaligned"][metric], row.floors[name]["unaligned"][metric]
        passed = beats(row, name)
        than = f"{'' if passed else 'not shown to be '}better than {_BEATEN[name]}"
        detail = f"{than}: {measure(metric).spoken} {ours.value:.4f} against {floor.value:.4f}"
        checks.append(Check(name=f"beats_{name}", passed=passed, detail=detail, decisive=False))
    return tuple(checks)
