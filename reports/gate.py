"""A user's conditions on the results, for CI: "ssim<=0.4" fails the run if an attack reaches a larger SSIM."""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite

from privkit.reports.columns import BY_PATTERN, DECLARED, GATED, OF_DEFENSE, assumed, ends, gated, numbers
from privkit.reports.schema import Metric, Row
from privkit.reports.strongest import NOT_ATTACKED, Twins, falls, powerless, sound, undefended, undefended_rows
from privkit.shared.grouped import grouped
from privkit.shared.interval import Interval
from privkit.shared.measures import CONSTANT_ATTACKS, FLOORS, MEASURES, UNBOUNDED
from privkit.shared.threat_models import INCLUDES, THREAT_MODELS, ThreatModel, threat_name

_COMPARISONS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
_PATTERN = re.compile(r"^\s*(?:([a-z_ ]+?)\s*:\s*)?([a-z][a-z0-9_]*(?:@0?\.[0-9]+)?)\s*(<=|>=|<|>)\s*([0-9.eE+-]+)\s*$")

_GUESSED = "only a guess that needs no release gave this number; mount an attack"
EXEMPT = "named none, as the undefended model is, which gates do not judge: save the recording under another name"
"""The note of a recording's result row that no gate judges."""


class GateError(ValueError):
    """A condition that cannot be parsed; the message says what is allowed."""


@dataclass(frozen=True, kw_only=True)
class Gate:
    """A user's pass/fail condition on a number in every result row of a defense. A missing number or NaN does not meet
    the condition.

    A number with an interval is judged at the end that is worse for the defense: `ssim<=0.4` at the upper limit,
    `accuracy>=0.9` at the lower limit. An AUC counts by its distance from 1/2, on either side.

    A condition that limits recovery (ssim <= x, psnr <= x, mse >= x) has further requirements:

    * It must also hold for constant guesses, which need no release: an attack that does worse than these is no evidence
      for the defense. It must also hold for the untrained attack, since an adversary may stop before any training.
    * The condition is not met by an attack whose failure is no evidence for the defense. This is an attack
        - that failed its control experiment (a test with a known result);
        - that also fails on the undefended model, or whose undefended model is not shown to have learned its task;
        - whose guesses show the images with inverted sign or changed contrast, mirrored, turned or moved;
        - that ignored data which the server got, used a recorded segment that does not reproduce the release, or met a
          user's own defense that no control experiment can use (`Row.doubt`).
    * The condition is not met if only constant guesses gave the number.

    Attributes:
        column: name in `privkit.reports.columns.GATED`. "epsilon" is proven, "declared_epsilon" is a user's claim,
            "empirical_epsilon" is the lower bound from canaries (inserted records), "tpr" is the true positive rate at
            1 % false positives. Metrics of guesses compare guess n with record n (unaligned).
        comparison: one of <=, >=, <, >.
        bound: the number with which the column is compared, in the unit of the column.
        threat_model: the adversary whose possible attacks must meet the condition; None for any adversary. At least one
            number must come from an attack of exactly this model, or a weaker adversary must break the defense.

    >>> str(Gate.parse("weights: ssim <= .4"))
    'weights: ssim<=0.4'
    """

    column: str
    comparison: str
    bound: float
    threat_model: ThreatModel | None = None

    @classmethod
    def parse(cls, text: str) -> Gate:
        """Read a gate from a text such as "ssim<=0.4" or, with a threat model, "weights: ssim<=0.4".

        Raises:
            GateError: if `text` cannot be parsed, names an unknown column or threat model, or has a bound that lies
                outside the column's range.
        """
        match = _PATTERN.match(text)
        try:
            bound = float(match[4]) if match else None
        except ValueError:
            bound = None
        if match is None or bound is None or not isfinite(bound):
            raise GateError(
                f"cannot read the gate {text!r}; write column, comparison and number, such as ssim<=0.4, if need be "
                f"behind a threat model, such as weights: ssim<=0.4 (comparisons: {', '.join(_COMPARISONS)})"
            )
        model = _threat_model(text, match[1]) if match[1] else None
        gate = cls(threat_model=model, column=_known(text, match[2]), comparison=match[3], bound=bound)
        _must_be_in_range(gate)
        return gate

    @property
    def measure(self) -> str:
        """The name of the measure in the gate's column, without prefixes for the alignment or a suffix for the worst
        case.

        >>> Gate.parse("matched_ssim_worst<=0.4").measure
        'ssim'
        """
        column = gated(self.column) or self.column
        return column.removeprefix("unaligned_").removeprefix("matched_").removesuffix("_worst")

    def __str__(self) -> str:
        before = f"{self.threat_model}: " if self.threat_model else ""
        return f"{before}{self.column}{self.comparison}{self.bound!r}"

    def failures(self, rows: Sequence[Row]) -> list[str]:
        """A sentence for each finding on `rows` that does not meet the condition; see `findings`."""
        return [sentence for _, met, sentence in self.findings(rows) if not met]

    def findings(
        self, rows: Sequence[Row], pending: Collection[tuple[str, int]] = ()
    ) -> list[tuple[Row, bool | None, str]]:
        """Judge the result `rows` of each defense; returns triples (row, whether it meets the condition, a sentence).
        Rows of the undefended model are left out. If no row of a defense and seed has a number in the gate's column,
        these rows do not meet the condition. They are undecided (None) instead if (defense, seed) is in `pending`,
        since some attacks on this defense are unfinished."""
        defended, twins = (row for row in rows if not undefended(row.defense)), undefended_rows(rows)
        groups = grouped(defended, lambda row: (row.defense, row.seed))
        return [found for key, group in groups.items() for found in self._of_group(group, twins, waits=key in pending)]

    def _of_group(self, group: Sequence[Row], twins: Twins, *, waits: bool) -> list[tuple[Row, bool | None, str]]:
        """The findings on one defense with one seed. The findings are undecided if no row has the number and `waits` is
        true."""
        results: list[tuple[Row, bool | None, str]] = []
        wanted = f"the gate requires {self.comparison} {self.bound:g}"
        within = [row for row in group if self.threat_model is None or row.threat_model in INCLUDES[self.threat_model]]
        given = [row for row in within if self._values(row)[""] is not None]
        if self.threat_model and not any(row.threat_model == self.threat_model or falls(row) for row in given):
            told = f"no attack with {threat_name(self.threat_model)} gave {self.column}, {wanted}"
            first = group[0]
            results.append((first, None if waits else False, f"{first.defense}, seed {first.seed}: {told}"))
            within = given
        guessed = "" if any(row.attack not in CONSTANT_ATTACKS for row in given) else _GUESSED
        for row in within:
            values = self._values(row)
            unmounted = row.status == "not_applicable" and any(one.status == "done" for one in given)
            if unmounted or (given and row.status != "error" and values[""] is None):
                continue  # this attack gives other numbers, or is not applicable
            guess, met = next(((guess, met) for guess, v in values.items() if not (met := self._met(v))), ("", True))
            open_ = values[guess] is None and row.status != "error" and waits
            by = "" if self.column in OF_DEFENSE else f" / {row.attack}"
            sentence = (
                f"{row.defense}{by}, seed {row.seed}: {self.column} is {self._shown(values[guess])}"
                f"{assumed(self.column, [row])}{guess}{self._declared(row)}, {wanted}"
            )
            if not given and row.status != "error" and self.column not in OF_DEFENSE:
                sentence = f"{row.defense}, seed {row.seed}: no attack gave {self.column}, {wanted}"
            doubt = row.doubt or _no_evidence(row, twins) or guessed
            if met and doubt and self._bounds_recovery(row):
                met, sentence, open_ = False, f"{sentence}; but it is not shown: {doubt}", waits and doubt == guessed
            results.append((row, None if open_ else met, sentence))
        return results

    def _declared(self, row: Row) -> str:
        name = f"{DECLARED}{self.column.removeprefix('proven_')}"
        value = numbers(row).get(name)
        if value is None or name == self.column:
            return ""
        return f" (it is declared, not proven: {name} is {self._shown(value)})"

    def _met(self, value: Interval | float | None) -> bool:
        return value is not None and bool(_COMPARISONS[self.comparison](self._judged(value), self.bound))

    def _judged(self, value: Interval | float) -> float:
        """The end of a number's interval that is compared with the bound: the end that is worse for the defense."""
        _, low, high = ends(self.column, value)
        return high if self.comparison.startswith("<") else low

    def _shown(self, value: Interval | float | None) -> str:
        """A value as text for a finding's sentence; for an interval, with the end that is compared with the bound."""
        if value is None:
            return "not a number"
        middle, judged = ends(self.column, value)[0], self._judged(value)
        if not isinstance(value, Interval) or middle == judged:
            return _digits(middle)
        most = "most" if self.comparison.startswith("<") else "least"
        return f"{_digits(middle)} and at {most} {_digits(judged)} ({100 * value.confidence:g} % interval)"

    def _values(self, row: Row) -> dict[str, Interval | float | None]:
        """The numbers that must meet the condition: first the attack's number (or None), then those of other guesses.
        The keys say which guess a number belongs to, as a part of a sentence; the attack's key is empty."""
        found, column = numbers(row), gated(self.column) or self.column
        own = found.get(column)
        values: dict[str, Interval | float | None] = {"": own}
        renamed = found.get("cluster_accuracy")
        if column == "label_accuracy" and isinstance(renamed, Interval) and self.comparison.startswith("<"):
            values[" at least, after the best renaming of labels, which one known label of each gives away"] = (
                renamed.low
            )
        metric = found.get(column.removesuffix("_worst"))
        if isinstance(metric, Metric) and self._bounds_recovery(row):
            for name, floor in FLOORS.items():
                if not floor.labels and (value := found.get(f"floor_{name}_{column}")) is not None:
                    guess = f" for {floor.gate}, a guess that needs no release (the attack has {metric.value:.4f})"
                    values[guess] = value
            if (began := found.get(f"start_{column}")) is not None:
                values[f" before the attack's first step (the finished attack has {metric.value:.4f})"] = began
        return values

    def _bounds_recovery(self, row: Row) -> bool:
        """Whether the condition limits recovery, so that a failed attack would meet it."""
        metric = numbers(row).get((gated(self.column) or self.column).removesuffix("_worst"))
        return isinstance(metric, Metric) and self.comparison.startswith("<" if metric.higher_is_closer else ">")


def _digits(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 100 else f"{value:.6g}"


def must_agree(gates: Sequence[Gate]) -> None:
    """Raise `GateError` if two gates (pass/fail conditions) contradict each other, so that no number meets both."""
    for at_most in (one for one in gates if one.comparison.startswith("<")):
        for at_least in (one for one in gates if one.comparison.startswith(">")):
            models = {at_most.threat_model, at_least.threat_model} - {None}
            same = len(models) < 2 and gated(at_most.column) == gated(at_least.column)
            strict = len(at_most.comparison + at_least.comparison) < 4
            if same and (at_least.bound, strict) > (at_most.bound, False):
                raise GateError(
                    f"the gates {at_most} and {at_least} contradict each other: no number meets both; drop one, or "
                    "correct its bound"
                )


def _no_evidence(row: Row, twins: Twins) -> str:
    """Why an attack's failure is no evidence for the defense; empty if there is no such reason. The attack failed its
    control experiment, also fails on the undefended model (or this model is not shown to have learned its task), or
    shows the images with changed contrast, sign or position."""
    if not sound(row):
        return "the attack failed its control experiment"
    why = "" if falls(row) or row.attack in CONSTANT_ATTACKS else powerless(row, twins)
    shown = next((check.detail for check in row.checks if check.name == BY_PATTERN), "")
    return shown if why in ("", NOT_ATTACKED) else why


def _threat_model(gate: str, given: str) -> ThreatModel:
    for name in THREAT_MODELS:
        if given.replace(" ", "_") == name:
            return name
    near = get_close_matches(given, THREAT_MODELS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    allowed = ", ".join(THREAT_MODELS)
    raise GateError(f"cannot read the gate {gate!r}: no threat model is {given!r}{hint} (threat models: {allowed})")


def _known(gate: str, column: str) -> str:
    if gated(column) is not None:
        return column
    if column.startswith("tpr@"):
        if float(f"0{column[4:]}") == 0.01:
            return "tpr"
        raise GateError(f"gate {gate!r}: rows hold the true positive rate at 1 % false positives alone; write tpr")
    near = get_close_matches(column, GATED, n=3)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    raise GateError(
        f"cannot read the gate {gate!r}: no column is {column!r}{hint} (docs/how-to/gates.md lists all columns)"
    )


def _must_be_in_range(gate: Gate) -> None:
    """Raise `GateError` for a bound that all of a column's numbers meet or miss, such as a share in percent."""
    low, high = MEASURES[gate.measure].within if gate.measure in MEASURES else UNBOUNDED
    low = 0.5 if gate.column.startswith("auc") else low  # an AUC below 1/2 counts as 1 − AUC
    if not low <= gate.bound <= high or (gate.comparison, gate.bound) in (("<", low), (">", high)):
        percent = f", such as {gate.bound / 100:g} for {gate.bound:g} %" if high == 1 < gate.bound <= 100 else ""
        raise GateError(
            f"the gate {gate} decides nothing, since {gate.column} lies in {low:g} to {high:g}; write a bound in this "
            f"range{percent}"
        )
