"""Judges effects that the paper on accurate split learning publishes, with and without a bug of the released code.

The released code writes noise into the output of a tanh, whose derivative is then wrong (`defenses.noise.overwritten`).
Every effect is judged on two audits, with this bug (`noise_in_place=true`) and without it. In both audits, masks and
scales return the gradient of the released code (`defenses.denoising.Variant`). A third audit uses the exact derivative,
as in the paper's theory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from privkit.papers.accurate_sl.table_11 import row_of
from privkit.papers.contract import ClaimVerdict, ComparedClaim
from privkit.papers.values import paper_toml, printed
from privkit.shared.grouped import grouped
from privkit.shared.interval import Interval

_CONFIDENCE = 0.95
_DEFAULT = 0.7  # σ or b of a noise without a given scale
_NOISES = ("gaussian_noise:", "laplace_noise:")

_Verdict = Literal["survives", "mostly vanishes", "vanishes", "reversed", "undecided", "not run"]
_Run = tuple[str, str]  # name of an experiment, and the text of a defense in its result rows


@dataclass(frozen=True, kw_only=True)
class PublishedEffect:
    """A published statement that one run is more accurate than another."""

    claim: str  # the statement, with its table
    better: _Run  # the run that is more accurate by the statement, written without the fault (the bug)
    worse: _Run  # the run that is less accurate
    # (table, row, column) of both printed accuracies; empty if the table prints "diverge" for one
    numbers: Sequence[tuple[str, str, str]] = ()
    no_fault: str = ""  # a clause why the fault cannot act on this network; empty if the fault changes the gradient

    @property
    def published(self) -> float | None:
        """The printed difference of the accuracies, in [−1, 1]; None if the paper does not print both accuracies."""
        if not self.numbers:
            return None
        better, worse = (printed("accurate_sl", *number) for number in self.numbers)
        return (better - worse) / 100


@dataclass(frozen=True, kw_only=True)
class _JudgedEffect:
    effect: PublishedEffect  # the published statement
    # difference in accuracy (better − worse) over common seeds, with the fault; None below two common seeds, or if the
    # fault cannot act
    released: Interval | None
    sound: Interval | None  # the difference without the fault; None below two common seeds
    # the difference without the fault and with the exact derivative of mask or scale; None if it was not run
    exact: Interval | None
    # "survives" if the interval without the fault lies above 0, "reversed" if below. "mostly vanishes" if it lies above
    # 0, but the difference with the fault is significantly more than twice as large. "vanishes" if it contains 0, but
    # two others lie above 0: of the difference with the fault, and of this difference minus the one without the fault.
    # "undecided" otherwise; "not run" below two common seeds.
    verdict: _Verdict
    length: str = ""  # the runs' training steps and the epoch that was kept; "" if the rows do not say


def with_fault(defense: str) -> str:
    """Change a defense's text so that noise is written in place, as by the bug in the paper's released code."""
    stages = defense.split("+")
    return "+".join(f"{stage},noise_in_place=true" if stage.startswith(_NOISES) else stage for stage in stages)


def _with_derivative(defense: str) -> str:
    """Change a defense's text so that masks and scales return their exact derivative, not the released code's gradient.

    >>> _with_derivative("gaussian_noise+masking:variant=straight_through,at_inference=false")
    'gaussian_noise+masking:at_inference=false'
    >>> _with_derivative("gaussian_noise+scaling:factor=0.1,variant=undone")
    'gaussian_noise+scaling:factor=0.1'
    """
    return re.sub(r",variant=\w+|(?<=:)variant=\w+,", "", defense)


def bounds_of(experiment: str, defense: str) -> dict[str, float]:
    """The ε of one release with a defense's noise, at the δ of the paper's Table 11: "published_epsilon" as printed
    there, and "sound_epsilon" exactly. The result is empty if the table has no row for the experiment."""
    for stage in defense.split("+"):
        law, _, options = stage.partition("_noise:")
        given = dict(option.split("=") for option in options.split(",") if option)
        if law in ("gaussian", "laplace"):
            scale = float(given.get("sigma", given.get("scale", _DEFAULT)))
            row = row_of(paper_toml("effects.toml", "accurate_sl")["table_11"].get(experiment, ""), law, scale)
            if row is None:
                return {}
            return {"published_epsilon": row.epsilon, "sound_epsilon": row.certificate.quantities["exact_epsilon"]}
    return {}


@cache
def effects() -> tuple[PublishedEffect, ...]:
    """Load the published effects (differences in accuracy between two runs) from `effects.toml`."""
    return tuple(
        PublishedEffect(
            claim=entry["claim"],
            better=tuple(entry["better"]),
            worse=tuple(entry["worse"]),
            numbers=tuple(tuple(number) for number in entry.get("numbers", ())),
            no_fault=entry.get("no_fault", ""),
        )
        for entry in paper_toml("effects.toml", "accurate_sl")["effect"]
    )


def needed_runs(claims: Sequence[str] = ("*",)) -> set[_Run]:
    """The runs (experiment, defense) that the effects need: with and without the released code's bug, and with the
    exact derivative. Only effects count whose claim matches one of the patterns in `claims`, with * for any text."""
    named = [effect for effect in effects() if any(fnmatchcase(effect.claim, pattern) for pattern in claims)]
    runs = {run for effect in named for run in (effect.better, effect.worse)}
    acts = {run for effect in named if not effect.no_fault for run in (effect.better, effect.worse)}
    faulty = {(experiment, with_fault(defense)) for experiment, defense in acts}
    return runs | faulty | {(experiment, _with_derivative(defense)) for experiment, defense in runs}


def shipped_rows() -> list[dict[str, Any]]:
    """The result rows of `python benchmarks/run.py denoising` that ship with the package."""
    text = (files("privkit.papers.accurate_sl") / "measured.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def accuracies(rows: Iterable[Mapping[str, Any]]) -> dict[_Run, dict[int, float]]:
    """The accuracy on test images without noise, in [0, 1], by run and then by seed."""
    found: dict[_Run, dict[int, float]] = {}
    for row in rows:
        found.setdefault((row["experiment"], row["defense"]), {})[row["seed"]] = row["accuracy"]
    return found


def effect_verdict(effect: PublishedEffect, found: Mapping[_Run, Mapping[int, float]]) -> _JudgedEffect:
    """Judge an effect by the differences in accuracy between runs with equal seeds; `found` is from `accuracies`."""
    released, sound, exact = (_gaps(effect, found, change) for change in (with_fault, str, _with_derivative))
    common = sorted(sound if effect.no_fault else set(released) & set(sound))
    if len(common) < 2:
        return _JudgedEffect(effect=effect, released=None, sound=None, exact=None, verdict="not run")
    without_it = _interval(sound[seed] for seed in common)
    with_it = None if effect.no_fault else _interval(released[seed] for seed in common)
    verdict: _Verdict = "undecided"
    if without_it.low > 0:
        mostly = with_it and _interval(released[seed] - 2 * sound[seed] for seed in common).low > 0
        verdict = "mostly vanishes" if mostly else "survives"
    elif without_it.high < 0:
        verdict = "reversed"
    elif with_it and with_it.low > 0 and _interval(released[seed] - sound[seed] for seed in common).low > 0:
        verdict = "vanishes"
    beside = _interval(exact.values()) if len(exact) > 1 and exact != sound else None
    return _JudgedEffect(effect=effect, released=with_it, sound=without_it, exact=beside, verdict=verdict)


def _gaps(
    effect: PublishedEffect, found: Mapping[_Run, Mapping[int, float]], change: Callable[[str], str]
) -> dict[int, float]:
    """The better run's accuracy minus the worse run's, by seed. The runs are found by their defenses' texts; `change`
    maps a text of the paper to the one that is looked up."""
    better, worse = (
        found.get((experiment, change(defense)), {}) for experiment, defense in (effect.better, effect.worse)
    )
    return {seed: better[seed] - worse[seed] for seed in sorted(set(better) & set(worse))}


def judged(rows: Iterable[Mapping[str, Any]] | None = None) -> tuple[_JudgedEffect, ...]:
    """The verdict on each published effect, from result rows; None uses the rows that ship with the package. Only runs
    of equal length are compared: the length with the most seeds or, on a tie, the longest."""
    given = shipped_rows() if rows is None else rows
    by_length = grouped(given, lambda row: (row.get("steps", 0), row.get("kept", "")))
    longest_first = sorted(by_length, reverse=True) or [(0, "")]
    found = {length: accuracies(by_length.get(length, ())) for length in longest_first}

    def at_its_longest(effect: PublishedEffect) -> _JudgedEffect:
        ran = [
            replace(effect_verdict(effect, found[steps, kept]), length=f"{steps} steps, {_KEPT[kept]}" if steps else "")
            for steps, kept in longest_first
        ]
        most = max(ran, key=lambda one: one.sound.n if one.sound else 0)  # the longest on a tie
        return most if most.sound else replace(most, length="")

    return tuple(at_its_longest(effect) for effect in effects())


_KEPT = {"": "", "last": "last epoch", "best_test": "best test accuracy"}  # name of the kept epoch -> words


def comparisons(rows: Iterable[Mapping[str, Any]] | None = None) -> Iterator[ComparedClaim]:
    """Yield the measured effects as claims of the paper compared with our results; arguments as in `judged`."""
    verdicts: dict[_Verdict, ClaimVerdict] = {"survives": "sign agrees", "undecided": "unproven"}
    for one in judged(rows):
        if one.sound is None:
            continue
        printed_gap, verdict = one.effect.published, verdicts.get(one.verdict, "differs")
        if one.verdict == "survives" and printed_gap and one.sound.low <= printed_gap <= one.sound.high:
            verdict = "reproduced"
        gaps = f"{shown(one.sound)}; {with_it(one)}"
        gaps = f"{gaps} ({one.length})" if one.length else gaps
        if one.exact is not None:
            gaps += f"; with the derivative {shown(one.exact)}"
        yield ComparedClaim(
            claim=one.effect.claim,
            published=printed_gap,
            ours=round(one.sound.value, 4),
            quantity="difference in accuracy, reduced size",
            verdict=verdict,
            why=f"{'' if one.verdict.endswith('s') else 'is '}{one.verdict} without the released fault: {gaps}",
            basis="reduced",
        )


def with_it(one: _JudgedEffect) -> str:
    """The difference in accuracy with the released code's bug as text, or the reason why the bug has no effect."""
    return f"with the fault {shown(one.released)}" if one.released else f"the fault cannot act: {one.effect.no_fault}"


def shown(interval: Interval) -> str:
    """The value and the limits of an interval as text, such as "+0.012 [+0.003, +0.021]"."""
    return f"{interval.value:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"


def _interval(values: Iterable[float]) -> Interval:
    from privkit.reports.seed_intervals import over_values

    return over_values(list(values), _CONFIDENCE)
