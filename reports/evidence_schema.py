"""The fields of `evidence.json`. The HTML page is rendered from them, and shows a field under its title.

A field without a title is for programs: it holds, as a separate value, what the page says in a heading or a sentence.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from privkit.reports.conclusion import Conclusion
from privkit.reports.page import environment
from privkit.reports.schema import Frozen
from privkit.reports.threats import MEANING, Outcome
from privkit.shared.interval import Interval

ProofStanding = Literal["proven", "declared", "nothing", "refuted", "no proof", "not recorded"]
COVERED, NOT_COVERED = "rows below cover a part of it", "not covered by this run"
EDPB = (
    "EDPB Opinion 28/2024 (17 December 2024) asks how likely it is that personal data can be extracted from a model or "
    "obtained through queries. The shares below contribute to that assessment, but do not answer it."
)
NIST = (
    "The terms are those of NIST SP 800-226, Guidelines for Evaluating Differential Privacy Guarantees (March 2025, "
    "doi 10.6028/NIST.SP.800-226)."
)
AISVS = (
    "Membership-Inference and Model-Inversion Mitigation, in version 1.0 (2026) of the OWASP Artificial Intelligence "
    "Security Verification Standard (OWASP/AISVS on GitHub, 1.0/en/0x10-C11-Adversarial-Robustness.md)."
)
C11_2 = {
    ", objective": "an adversary learns little about membership of a record, and cannot reconstruct private data",
    ".1": "inferred sensitive attributes are not returned (level 1)",
    ".2": "limits on queries, per user and in total, fit the threat of extraction (level 1)",
    ".3": "outputs are calibrated, so that the model is less overconfident (level 2)",
    ".4": "sensitive data are trained on with differentially private optimization (level 2)",
    ".5": "simulated membership inference is no better than random guessing (level 3)",
}
"""End of a requirement's name -> the content of the requirement."""
MEMBERSHIP = "member_inference"  # the attack on membership of the training data
UNRECOVERED = "no attack on the records themselves gave a number"


class Audited(Frozen):
    """The subject of the run, its outcome, and its exit code."""

    data: str = Field(title="Data")
    network: str = Field(title="Network and protocol")
    defenses: tuple[str, ...] = Field(title="Defenses")
    state: str = Field(title="State of the run")
    gates: tuple[str, ...] = Field(title="Gates that were set")
    failures: tuple[str, ...] = Field(title="Checks and gates that failed")
    notes: tuple[str, ...] = Field(title="Notes on the rows")
    exit_code: int
    mixed: str = Field(title="Rows that were made in different ways")
    command: str = Field(title="Command")
    made: str = Field(title="Made")


class Share(Frozen):
    """The number of attacked records that one attack identified with one seed."""

    attack: str
    seed: int
    count: float  # number of identified records; a tie counts by its probability
    of: int  # number of attacked records
    candidates: int  # number of records among which each guess has to identify its own record
    share: Interval  # identified records divided by attacked records
    counted: bool  # whether the verdict rests on the attack
    sentence: str


class MeasuredDefense(Frozen):
    """The verdict on one defense under one threat model."""

    heading: str
    defense: str
    threat_model: str
    outcome: Outcome
    adversary: str = Field(title="The adversary")
    sentence: str = Field(title="Verdict")
    against: tuple[str, ...] = Field(title="Also mounted")
    identified: tuple[Share, ...] = Field(title="Identified records")


class Answer(Frozen):
    """The success of one attack at distinguishing labels, members or canaries (inserted records), with one seed."""

    heading: str
    defense: str
    attack: str
    seed: int
    answers: dict[str, Interval]
    sentence: str = Field(title="Measured")
    bound: str = Field(title="Empirical lower bound on ε")
    reservations: tuple[str, ...] = Field(title="Reservations")


class Claim(Frozen):
    """A claim about one defense. `epsilon` and `delta` are None if the claim is not about differential privacy."""

    heading: str
    defense: str
    standing: ProofStanding
    privacy: str = Field(title="Differential privacy")
    statement: str = Field(title="Statement")
    objections: tuple[str, ...] = Field(title="Contradicted by")
    unit: str = Field(title="Unit of privacy")
    adjacency: str = Field(title="Adjacency")
    composition: str = Field(title="Accounting and composition")
    assumptions: tuple[str, ...] = Field(title="Mechanism, and what is assumed or trusted")
    attacks: tuple[str, ...] = Field(title="Attacks whose rows carry the claim")
    epsilon: float | None
    delta: float | None


class Untried(Frozen):
    """Attacks and experiments without a number, with the reason."""

    heading: str
    reason: str = Field(title="Why")
    attacks: tuple[str, ...] = Field(title="Attacks not mounted")


class Requirement(Frozen):
    """One requirement of a standard, and the result rows that are evidence on it."""

    heading: str
    coverage: str = Field(title="Coverage")
    asks: str = Field(title="It asks, in our words")
    rows: tuple[str, ...] = Field(title="Rows")


class Origin(Frozen):
    """The provenance of some result rows: `made_of` maps "section key" to a hash, a version or the machine."""

    heading: str
    rows: tuple[str, ...] = Field(title="Rows")
    made_of: dict[str, str] = Field(title="Made of")


class Evidence(Frozen):
    """The content of `evidence.json`. `evidence_version` is raised whenever a field changes."""

    evidence_version: Literal[2] = 2
    run: str
    title: str
    audited: Audited = Field(title="What was audited")
    conclusions: tuple[Conclusion, ...]
    measured: tuple[MeasuredDefense, ...] = Field(
        title="Measured: are records recovered and identified?",
        description=f"{MEANING} A record is identified if the guess for it is nearer to this record than to any other "
        f"attacked record. {EDPB}",
    )
    answers: tuple[Answer, ...] = Field(
        title="Measured: labels, members and canaries",
        description="An AUC of .5 is chance; an AUC below .5 leaks as much as one above.",
    )
    claims: tuple[Claim, ...] = Field(
        title="Proven, declared, or nothing",
        description=f"Proven: privkit ran the mechanism itself. Declared: somebody else says what was run. {NIST}",
    )
    untried: tuple[Untried, ...] = Field(
        title="Not tried",
        description="Registered attacks that were not run, and cells without a number. Attacks that are not registered "
        "were not tried either.",
    )
    requirements: tuple[Requirement, ...] = Field(title="OWASP AISVS C11.2", description=AISVS)
    origins: tuple[Origin, ...] = Field(title="Data, code and versions")
    records: dict[str, str] = Field(title="Records of the run, SHA-256")
    limits: tuple[str, ...] = Field(title="What this document does not say")


def page(found: Evidence) -> str:
    """The evidence as one HTML page without scripts and external files."""
    shown = [(field.title, field.description, getattr(found, name)) for name, field in Evidence.model_fields.items()]
    sections = [section for section in shown if section[0]]
    return environment().get_template("evidence.html.j2").render(evidence=found, sections=sections, titled=titled)


def titled(one: Frozen) -> list[tuple[str, Any]]:
    """The non-empty fields of a record that the page shows, as pairs (title, value)."""
    shown = [(field.title, getattr(one, name)) for name, field in type(one).model_fields.items()]
    return [(title, value) for title, value in shown if title and value not in ("", (), {})]
