"""The verdict on a run: finished experiments, met checks and conditions (gates), and the exit code."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from pydantic import Field

from privkit.reports.columns import CLAIM, DECLARATION, LEARNED
from privkit.reports.gate import EXEMPT, Gate
from privkit.reports.schema import Check, Frozen, PlannedCell, Row
from privkit.reports.strongest import unneeded
from privkit.shared.grouped import grouped

_NAMED = {"defense", "attack", "seed", "cell"}  # fields that name a row or a cell


class Judgement(Frozen):
    """The result of one check: on one result row, on one defended model, or on the whole run.

    Attributes:
        kind: "control" (an attack's control experiment), "claim" (a claimed ε against canaries, or a declared mechanism
            against the data), "number" (whether any attack gave a number) or "gate" (a user's condition).
        name: name of the check; for a gate, its text.
        defense: the checked defense, as in `Row`; empty if the check is on the whole run.
        attack: the attack; empty if the check is not on a single row.
        seed: the seed; None if the check is on the whole run.
        cell: id of the checked row; empty if the check is not on a single row.
        met: whether the result meets the check; None if unfinished cells may still decide it. An undecided control
            experiment or claim counts as not met.
        sentence: the finding in one sentence.
    """

    kind: Literal["control", "claim", "number", "gate"]
    name: str
    defense: str = ""
    attack: str = ""
    seed: int | None = None
    cell: str = ""
    met: bool | None
    sentence: str


class CellState(Frozen):
    """A planned cell (defense, attack and seed) with its state: `status` is as in `Row`, or "missing" if there is no
    result yet, or "not_needed" if there will be none. `reason` says why there is no result or no number; else it is
    empty."""

    cell: str
    defense: str
    attack: str
    seed: int
    status: Literal["done", "not_applicable", "error", "missing", "not_needed"]
    reason: str = ""


class Verdict(Frozen):
    """The verdict on a run, which is the content of `verdict.json`; report, tables and exit code follow from it.

    Attributes:
        schema_version: version of the schema of results, `SCHEMA_VERSION`.
        run: fingerprint of the run's configuration.
        outcome: the first that applies: "unfinished" (cells are missing), "errored" (a cell ended in an error),
            "failed" (a check is not met), "empty" (the numbers show nothing about any defense) or "clean".
        exit_code: 3 if the run is unfinished or errored, otherwise 1 if a check is not met, otherwise 0.
        sentence: the outcome with the numbers of finished cells, met checks and met gates.
        failures: the sentences of the checks that are not met, without repetitions.
        cells: all planned cells, in the order of the plan.
        gates: the user's conditions as text.
        checks: the judgements on decisive checks, on the presence of numbers, and on gates.
        files: path in the run's folder -> SHA-256, for each file of the report; empty if no report was written.
    """

    schema_version: Literal[9] = 9
    run: str
    outcome: Literal["clean", "failed", "errored", "unfinished", "empty"]
    exit_code: Literal[0, 1, 3]
    sentence: str
    failures: tuple[str, ...]
    cells: tuple[CellState, ...]
    gates: tuple[str, ...]
    checks: tuple[Judgement, ...]
    files: dict[str, str] = Field(default_factory=dict)

    @property
    def decided(self) -> Verdict:
        """The verdict without the report's files and without sentences, whose wording may differ between versions."""
        checks = tuple(check.model_copy(update={"sentence": ""}) for check in self.checks)
        return self.model_copy(update={"sentence": "", "failures": (), "checks": checks, "files": {}})


def judge(
    planned: Sequence[PlannedCell],
    rows: Sequence[Row],
    conditions: Sequence[Gate],
    *,
    run: str,
    silent: Collection[str] = (),
    trains: bool = True,
) -> Verdict:
    """Judge a run's results by its plan, its checks and the user's conditions.

    Args:
        planned: the cells to compute (one attack on one defense with one seed each).
        rows: the results of finished cells.
        conditions: the user's pass/fail conditions (gates).
        run: fingerprint of the run.
        silent: names of protocols under which clients train alone and send nothing, so attacks cannot give numbers.
        trains: whether the run trains long enough for its models to learn something.
    """
    known = {row.cell: row for row in rows}
    cells = [_state(cell, known) for cell in planned]
    pending = {(cell.defense, cell.seed) for cell in cells if cell.status == "missing"}
    tests = sum(check.name == CLAIM and check.decisive for row in rows for check in row.checks)
    checks = [_decisive(row, check, tests) for row in rows for check in row.checks if check.decisive]
    checks += _numbers([row for row in rows if row.protocol.partition(":")[0] not in silent], pending)
    checks += [check for condition in conditions for check in _gates(condition, rows, pending)]
    nothing = "" if pending else _nothing(rows)
    if nothing not in ("", _NO_NUMBER) and trains:
        checks.append(Judgement(kind="number", name="some_model_learned", met=False, sentence=nothing))
    failures = tuple(dict.fromkeys(check.sentence for check in checks if check.met is False))
    missing, errored = (sum(cell.status == status for cell in cells) for status in ("missing", "error"))
    outcome: Literal["clean", "failed", "errored", "unfinished", "empty"] = (
        "unfinished" if missing else "errored" if errored else "failed" if failures else "empty" if nothing else "clean"
    )
    return Verdict(
        run=run,
        outcome=outcome,
        exit_code=3 if missing or errored else 1 if failures else 0,
        sentence="; ".join(filter(None, (f"{outcome}: {_told(cells, checks)}", nothing))),
        failures=failures,
        cells=tuple(cells),
        gates=tuple(str(condition) for condition in conditions),
        checks=tuple(checks),
    )


def _state(cell: PlannedCell, rows: Mapping[str, Row]) -> CellState:
    row, why = rows.get(cell.cell), unneeded(cell.twin_of, rows)
    status, reason = (row.status, row.reason) if row else ("not_needed" if why else "missing", why)
    return CellState.model_validate(cell.model_dump(include=_NAMED) | {"status": status, "reason": reason})


def _decisive(row: Row, check: Check, tests: int) -> Judgement:
    """The judgement on a row's decisive check; an undecided check counts as not met. Each of the run's `tests` of a
    claim by canaries may err by chance, so the sentence on a failure states their number."""
    kind = "claim" if check.name in (CLAIM, DECLARATION) else "control"
    found = {"kind": kind, "name": check.name, "met": check.passed is True}
    by = "" if check.name == DECLARATION else f" / {row.attack}"  # a declaration is the same under each attack
    sentence = f"{row.defense}{by}: {check.detail}"
    if check.name == CLAIM and check.passed is False and tests > 1 and row.empirical_bound is not None:
        chance = 100 * (1 - row.empirical_bound.confidence**tests)
        sentence += (
            f"; {tests} rows of this run test a claim, so one of them fails by chance in up to {chance:.0f} % of runs "
            "whose claims are true: repeat it with other seeds"
        )
    return Judgement.model_validate(found | row.model_dump(include=_NAMED) | {"sentence": sentence})


def _numbers(rows: Sequence[Row], pending: set[tuple[str, int]]) -> list[Judgement]:
    """For every model, whether any attack was applicable; if none was, the leakage of the model is unknown."""
    checks = []
    for (defense, seed), group in grouped(rows, lambda row: (row.defense, row.seed)).items():
        nothing = all(row.status == "not_applicable" for row in group)
        reasons = "; ".join(f"{row.attack}: {row.reason}" for row in group)
        told = f"no attack gave a number ({reasons})" if nothing else "an attack gave a number, or failed"
        met = None if nothing and (defense, seed) in pending else not nothing
        about = {"kind": "number", "name": "some_attack_gave_a_number", "defense": defense, "seed": seed}
        checks.append(Judgement.model_validate(about | {"met": met, "sentence": f"{defense}, seed {seed}: {told}"}))
    return checks


_NO_NUMBER = "no attack was applicable, so that nothing is known of any defense"


def _nothing(rows: Sequence[Row]) -> str:
    if rows and all(row.status == "not_applicable" for row in rows):
        return _NO_NUMBER
    learned = [check.passed for row in rows for check in row.checks if check.name == LEARNED]
    nothing = "no model is shown to have learned its task, so no defense is shown to hold"
    return nothing if learned and not any(learned) else ""


def _gates(condition: Gate, rows: Sequence[Row], pending: set[tuple[str, int]]) -> list[Judgement]:
    results = condition.findings(rows, pending)
    if not results:
        named = f" ({EXEMPT})" if any(EXEMPT in row.notes for row in rows) else ""
        sentence = f"{condition}: no defended cell has a number{' yet' if pending else ''}{named}"
        return [Judgement(kind="gate", name=str(condition), met=None if pending else False, sentence=sentence)]
    about = {"kind": "gate", "name": str(condition)}
    return [
        Judgement.model_validate(about | row.model_dump(include=_NAMED) | {"met": met, "sentence": sentence})
        for row, met, sentence in results
    ]


def _told(cells: Sequence[CellState], checks: Sequence[Judgement]) -> str:
    cells = [cell for cell in cells if cell.status != "not_needed"]
    missing = [cell for cell in cells if cell.status == "missing"]
    errored = [cell for cell in cells if cell.status == "error"]
    told = [f"{len(cells) - len(missing) - len(errored)} of {len(cells)} cells finished"]
    if errored:
        told.append(f"{len(errored)} errored ({_names(errored)})")
    if missing:
        told.append(f"{len(missing)} missing ({_names(missing)}); repeat the run's command to go on")
    gates: dict[str, list[bool | None]] = {}  # the results of each gate
    for check in checks:
        if check.kind == "gate":
            gates.setdefault(check.name, []).append(check.met)
    whole = [False if False in met else None if None in met else True for met in gates.values()]
    for held, name in (([check.met for check in checks if check.kind != "gate"], "decisive checks"), (whole, "gates")):
        if held:
            rest = [f", {held.count(met)} {word}" for met, word in ((False, "failed"), (None, "open")) if met in held]
            told.append(f"{held.count(True)} of {len(held)} {name} met{''.join(rest)}")
    return "; ".join(told)


def _names(cells: Sequence[CellState]) -> str:
    names = [f"{cell.defense} / {cell.attack}, seed {cell.seed}" for cell in cells[:3]]
    return "; ".join(names) + (f"; and {len(cells) - 3} more" if len(cells) > 3 else "")
