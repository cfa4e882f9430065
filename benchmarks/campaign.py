"""Test privkit's bounds on random mechanisms against an oracle (independent computation) that shares no code with it.

    python benchmarks/campaign.py --seed 1 --count 10000 --rows FOLDER/rows.jsonl --record

Each mechanism is determined by (seed, index); `--show INDEX` computes one again and prints everything. A stopped
campaign continues, since rows in the file are not computed again. `--record` appends a summary to
`benchmarks/results/campaign.jsonl`. The exit code is 1 if there is a violation:

* an upper bound below, or a lower bound above, the privacy loss of a pair of neighboring datasets (`campaign_answers`);
* a published claim that is wrongly called sound;
* two answers that contradict each other;
* an exception that is not a refusal with a reason.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from datetime import date
from math import inf, log
from pathlib import Path
from time import process_time
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")  # before numpy is loaded
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np  # noqa: E402
from campaign_answers import log_delta, renyi_curve, together, truth  # noqa: E402
from campaign_draw import Draw, Question, features  # noqa: E402
from cells import append  # noqa: E402

from privkit.accountants import answer, calibration, ledger  # noqa: E402
from privkit.accountants.spec import records  # noqa: E402
from privkit.accountants.spec.mechanism import SplitMechanism  # noqa: E402
from privkit.accountants.wording import library_versions  # noqa: E402
from privkit.papers.as_published import as_published  # noqa: E402
from privkit.run.provenance import circumstances  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "campaign.jsonl"
CLOSE = 1e-6
"""Relative tolerance of the comparisons, for rounding errors."""


def _shows(spec: dict[str, Any]) -> bool:
    """Whether the server or another client may learn in which rounds a client takes part."""
    return bool(spec["mixing"].get("colluding")) or spec["lower_model"] != "frozen"


def _drawn(spec: dict[str, Any]) -> bool:
    """Whether each round draws only some of the clients."""
    taking = spec["participation"]
    return taking["kind"] == "without_replacement" and taking["chosen"] < taking["clients"]


def _seated(spec: dict[str, Any]) -> bool:
    """Whether clients take seats (places in the mixture) with unequal ratios at random, and the noise is Gaussian."""
    ratio = spec["mixing"].get("ratio", {})
    if spec["participation"]["kind"] != "without_replacement" or spec["noise"]["law"] != "gaussian":
        return False
    return ratio.get("kind") in ("fixed", "counts") and len(set(ratio.get("ratios") or ratio["counts"])) > 1


SAID = (
    (lambda s: s["participation"]["kind"] == "poisson" and not _shows(s), "secret coin"),
    (lambda s: _drawn(s) and not _shows(s), "secretly"),
    (_seated, "take seats (places in the mixture) uniformly at random"),
    (lambda s: isinstance(s["lower_model"], dict), "updates"),
    (lambda s: s["mixing"].get("ratio", {}).get("published") is False, "hidden"),
    (lambda s: s["mixing"].get("ratio", {}).get("kind") == "realized", "realized"),
    (lambda s: s["mixing"].get("ratio", {}).get("drawn") == "once", "drawn once"),
    (lambda s: s["mixing"].get("ratio", {}).get("drawn") == "every_round", "afresh"),
    (lambda s: s["mixing"].get("colluding") and s["noise"]["site"] == "client", "collude"),
    (lambda s: s["lower_model"] == "frozen", "frozen"),
    (lambda s: s["relation"] == "add_or_remove_one", "absent"),
    (lambda s: s["participation"]["kind"] == "random_allocation", "of every"),
    (lambda s: s["participation"]["kind"] == "shuffled_epochs", "nothing is credited to the shuffle"),
    (lambda s: s["mixing"]["kind"] == "hidden_mask", "mask"),
)
"""(condition, words): if a specification meets the condition, its certificate's assumptions must contain the words."""


class Verdict:
    """The comparisons that were made for one specification, and the violations among them."""

    def __init__(self) -> None:
        self.checked: Counter[str] = Counter()
        self.violations: list[dict[str, Any]] = []
        self.tight: float | None = None
        self.refused = ""

    def hold(self, check: str, holds: bool, **numbers: object) -> None:
        """Count the comparison `check`; if it does not hold, record a violation with these numbers."""
        self.checked[check] += 1
        if not holds:
            self.violations.append({"check": check, **numbers})


def judge(question: Question) -> Verdict:
    """Compare privkit's answers about one specification with the oracle's."""
    verdict = Verdict()
    try:
        mechanism = records.from_json(question.spec)
    except ValueError as refusal:
        verdict.refused = str(refusal)
        return verdict
    try:
        _epsilon(question, mechanism, verdict)
        _published(question, mechanism, verdict)
        _round_trip(question, mechanism, verdict)
        _renyi(question, mechanism, verdict)
        extra = {"none": lambda *_: None, "monotone": _monotone, "ledger": _ledger, "calibrate": _calibrate}
        extra[question.extra](question, mechanism, verdict)
    except ValueError as refusal:
        if "math domain" in str(refusal):
            verdict.hold("no exception", False, fault=str(refusal))
        verdict.refused = str(refusal)
    except Exception as fault:
        verdict.hold("no exception", False, fault=f"{type(fault).__name__}: {fault}")
    return verdict


def _epsilon(question: Question, mechanism: SplitMechanism, verdict: Verdict) -> None:
    """Compare privkit's ε at δ, and its δ at ε, with the oracle's worst world (pair of datasets)."""
    spec, delta = question.spec, question.delta
    certificate = answer.epsilon(mechanism, delta, tight=question.deep)
    true = truth(spec, delta, question.deep, most=certificate.lower is not None)
    allowed = true.low * (1 - CLOSE) - 1e-9
    verdict.hold(
        "epsilon",
        certificate.epsilon >= allowed,
        claimed=certificate.epsilon,
        true=true.low,
        world=true.world,
        by=certificate.method,
    )
    if certificate.lower is not None and certificate.sound:
        most = true.high * (1 + CLOSE) + 1e-9
        verdict.hold(
            "lower",
            certificate.lower <= most,
            claimed=certificate.lower,
            true=true.high,
            world=true.world,
            by=certificate.method,
        )
    if true.low > 1e-6 and certificate.epsilon < inf:
        verdict.tight = certificate.epsilon / true.low
    said = " ".join(certificate.assumptions)
    for applies, word in SAID:
        if applies(spec) and certificate.kind == "differential_privacy":
            verdict.hold("wording", word in said, missing=word)
    at, least = (true.low, log(delta)) if true.deep else (question.epsilon, log_delta(spec, question.epsilon))
    back = answer.delta(mechanism, at, tight=question.deep)
    proven = 0.0 if back.delta is None else log(back.delta) if back.delta > 0 else -inf
    if at > 0:
        near = least - CLOSE * (1 + abs(least)) if least > -700 else -inf
        verdict.hold("delta", proven >= near, at=at, claimed=proven, true=least, world=true.world, by=back.method)
    if (
        0 < certificate.epsilon < inf and certificate.lower == certificate.epsilon
    ):  # ε is exact, so δ at this ε must be the given δ
        ask = lambda e: answer.delta(mechanism, e, tight=question.deep).delta or 0.0  # noqa: E731
        above, below = ask(certificate.epsilon * (1 - 1e-9)), ask(certificate.epsilon * (1 + 1e-9))
        inverse = below * (1 - 1e-5) <= delta <= above * (1 + 1e-5)
        verdict.hold("inverse", inverse, at=certificate.epsilon, delta=delta, below=below, above=above)


def _published(question: Question, mechanism: SplitMechanism, verdict: Verdict) -> None:
    """Check a published ε: if privkit calls it sound, it is at least the oracle's; otherwise, privkit says why not."""
    try:
        certificate = as_published(mechanism, question.delta)
    except ValueError:
        verdict.checked["published, refused"] += 1
        return
    if certificate.sound:
        true = truth(question.spec, question.delta, question.deep)
        verdict.hold(
            "published",
            certificate.epsilon >= true.low * (1 - CLOSE) - 1e-9,
            claimed=certificate.epsilon,
            true=true.low,
            by=certificate.method,
        )
    else:
        verdict.hold("published, objection", bool(certificate.objection))


def _round_trip(question: Question, mechanism: SplitMechanism, verdict: Verdict) -> None:
    """Check that a mechanism does not change if it is written to JSON and read again."""
    text = json.dumps(records.to_json(mechanism))
    verdict.hold("round trip", records.from_json(json.loads(text)) == mechanism, spec=text)


def _renyi(question: Question, mechanism: SplitMechanism, verdict: Verdict) -> None:
    """Check that privkit's Rényi curve is not below the divergence of any of the oracle's pairs of datasets."""
    least = renyi_curve(question.spec, np.array(question.orders))
    curve = np.array(answer.rdp(mechanism, question.orders).values)
    digits = 1e-12 + mechanism.rounds * np.finfo(float).eps  # the oracle's rounding error
    for order, claimed, true in zip(question.orders, curve.tolist(), least.tolist(), strict=True):
        verdict.hold("renyi", claimed >= true * (1 - CLOSE) - digits, order=order, claimed=claimed, true=true)


def _monotone(question: Question, mechanism: SplitMechanism, verdict: Verdict) -> None:
    """Check that ε grows with rounds, and falls with noise and with δ.

    Fast answers use different grids, so if two of them contradict this, the tight answer decides.
    """

    def falls(one: tuple[SplitMechanism, float], other: tuple[SplitMechanism, float], check: str) -> None:
        most = answer.epsilon(*other, tight=False).epsilon * (1 + CLOSE) + 1e-9
        least = next((e for t in (False, True) if (e := answer.epsilon(*one, tight=t).epsilon) <= most), None)
        verdict.hold(check, least is not None, most=most)

    delta, noise, more = question.delta, mechanism.noise, 1.1
    labels = None if noise.labels is None else noise.labels * more
    quieter = replace(mechanism, noise=replace(noise, smashed=noise.smashed * more, labels=labels))
    falls((quieter, delta), (mechanism, delta), "falls with noise")
    falls((mechanism, (1 + delta) / 2), (mechanism, delta), "falls with delta")
    if question.spec["mixing"].get("ratio", {}).get("kind") != "realized":
        falls((mechanism, delta), (replace(mechanism, rounds=2 * mechanism.rounds), delta), "grows with rounds")


def _ledger(question: Question, mechanism: SplitMechanism, verdict: Verdict) -> None:
    """Check that a ledger's ε grows with a second charge, and is at least the oracle's ε of all charges."""
    delta, deep = question.delta, question.deep
    true = truth(question.spec, delta, False).low
    try:
        other = records.from_json(question.other)
    except ValueError:
        other = mechanism
    both = together(question.spec, records.to_json(other), delta, deep)
    with tempfile.TemporaryDirectory() as folder, ledger.Ledger(Path(folder) / "ledger.jsonl", tight=deep) as book:
        book.charge(mechanism)
        once = book.epsilon(delta)
        book.charge(other)
        twice = book.epsilon(delta)
    verdict.hold("ledger", once.epsilon >= true * (1 - CLOSE) - 1e-9, claimed=once.epsilon, true=true)
    verdict.hold(
        "ledger, grows", twice.epsilon >= once.epsilon * (1 - 1e-3) - 1e-9, once=once.epsilon, twice=twice.epsilon
    )
    verdict.hold(
        "ledger, both", twice.epsilon >= both * (1 - CLOSE) - 1e-9, claimed=twice.epsilon, true=both, by=twice.method
    )


def _calibrate(question: Question, mechanism: SplitMechanism, verdict: Verdict) -> None:
    """Check that a mechanism calibrated to a target ε does not exceed it, by privkit's and by the oracle's ε."""
    target = min(max(question.epsilon, 0.1), 20.0)
    parameter = (
        "sigma"
        if question.spec["mixing"].get("ratio", {}).get("kind") == "realized" or question.delta > 1e-3
        else "rounds"
    )
    try:
        solved = calibration.calibrate(mechanism, parameter, epsilon=target, delta=question.delta, tight=False)
    except ValueError:
        verdict.checked["calibrate, refused"] += 1
        return
    spec = records.to_json(solved.mechanism)
    true = truth(spec, question.delta, False).low
    verdict.hold("calibrate", true <= target * (1 + CLOSE), target=target, true=true, parameter=parameter)
    verdict.hold(
        "calibrate, certificate", solved.certificate.epsilon <= target * (1 + CLOSE), got=solved.certificate.epsilon
    )


def row(seed: int, index: int) -> dict[str, Any]:
    """The verdict on the specification (seed, index), as a row of the file."""
    start, question = process_time(), Draw(seed, index).question()
    verdict = judge(question)
    return {
        "seed": seed,
        "index": index,
        "kind": features(question.spec),
        "deep": question.deep,
        "checked": dict(verdict.checked),
        "violations": verdict.violations,
        "refused": verdict.refused,
        "tight": verdict.tight,
        "seconds": round(process_time() - start, 3),
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Numbers of specifications and comparisons, and quantiles of the proven ε divided by the oracle's lower bound."""
    checked, violations = Counter[str](), Counter[str]()
    for one in rows:
        checked.update(one["checked"])
        violations.update(violation["check"] for violation in one["violations"])
    refused = [one for one in rows if one["refused"]]
    by_mixing = Counter(one["kind"].split()[0] for one in rows if not one["refused"])
    ratios = {
        name: [one["tight"] for one in rows if one["tight"] and one["deep"] == deep]
        for name, deep in (("deep", True), ("fast", False))
    }
    shares = (0.01, 0.25, 0.5, 0.75, 0.99)
    return {
        "specifications": len(rows),
        "answered": len(rows) - len(refused),
        "refused": len(refused),
        "answered by mixing": dict(by_mixing),
        "comparisons": dict(sorted(checked.items())),
        "with violations": sum(bool(one["violations"]) for one in rows),
        "violations": dict(violations),
        "claimed over true": {
            name: {f"{share:.0%}": round(float(np.quantile(values, share)), 4) for share in shares}
            for name, values in ratios.items()
            if values
        },
        "cpu seconds": round(sum(one["seconds"] for one in rows)),
    }


def environment(seed: int) -> dict[str, Any]:
    """Date, seed, commit, machine and library versions of the campaign."""
    noted = circumstances("cpu", 1).noted
    return {
        "date": date.today().isoformat(),
        "seed": seed,
        "commit": noted["commit"][:9],
        "machine": f"{os.cpu_count()} cores, {noted['processor']}, shared; one thread",
        "python": platform.python_version(),
        "versions": library_versions(),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="index of the first specification")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--rows", type=Path, help="file with one line per specification; these are not computed again")
    parser.add_argument("--record", action="store_true", help=f"append the summary to {RESULTS.name}")
    parser.add_argument("--note", default="", help="text to add to the summary")
    parser.add_argument("--show", type=int, metavar="INDEX", help="check only this specification and print everything")
    options = parser.parse_args(arguments)
    if options.show is not None:
        question = Draw(options.seed, options.show).question()
        print(json.dumps(question.spec, ensure_ascii=False))
        print(f"delta={question.delta!r} epsilon={question.epsilon!r} orders={question.orders} deep={question.deep}")
        record = row(options.seed, options.show)
        print(json.dumps(record, ensure_ascii=False, indent=1))
        return int(bool(record["violations"]))
    rows = _resumed(options.rows, options.seed)
    wanted = range(options.first, options.first + options.count)
    for index in wanted:
        if index not in rows:
            rows[index] = row(options.seed, index)
            if options.rows is not None:
                append(options.rows, rows[index])
    record = summary([rows[index] for index in wanted])
    if options.record:
        append(RESULTS, environment(options.seed) | {"note": options.note} | record)
    print(json.dumps(record, ensure_ascii=False, indent=1))
    for index in wanted:
        for violation in rows[index]["violations"]:
            print(f"{index} [{rows[index]['kind']}] {json.dumps(violation, ensure_ascii=False)}")
    return int(record["with violations"] > 0)


def _resumed(path: Path | None, seed: int) -> dict[int, dict[str, Any]]:
    """Index -> row of this seed in the file. A last line that is incomplete is left out, so it is computed again."""
    answers: dict[int, dict[str, Any]] = {}
    if path is None:
        return answers
    path.parent.mkdir(parents=True, exist_ok=True)
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            one = json.loads(line)
        except json.JSONDecodeError:
            continue
        if one["seed"] == seed:
            answers[one["index"]] = one
    return answers


if __name__ == "__main__":
    sys.exit(main())
