"""Summarizes a paper's claims in words, from the verdicts: which hold, which fail, and which are open."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from privkit.papers import paper
from privkit.papers.contract import Basis, ComparedClaim
from privkit.papers.coverage import coverage
from privkit.papers.orderings import needed, on_other_data, on_record

_BY: dict[Basis, str] = {"formula": "by formula: ", "print": "by the paper's own printed numbers: "}
_OPEN: dict[Basis, str] = {"formula": "no proof covers ", "print": "the paper's own printed numbers do not decide "}


def three_sentences(name: str) -> tuple[str, ...]:
    """Three sentences about a paper's claims: which of them hold, which fail, and which are undecided."""
    return tuple(f"{lead}: {'; '.join(parts)}." for lead, parts in findings(name).items())


def findings(name: str) -> dict[str, list[str]]:
    """The parts of three sentences on a paper, by their beginning "What holds", "What fails" or "What is open"."""
    compared = paper(name).comparisons()
    ran: list[tuple[str, str]] = [(one.claim, one.verdict) for one in compared if one.basis == "reduced"]
    ran += [(one.ordering.claim, one.verdict) for one in on_record(name)]
    numbers = {state: 0 for state in ("run", "reduced", "proxy", "configured")}
    for one in coverage(name).covered():
        if one.state in numbers:
            numbers[one.state] += len(one.values)
    shown, other, undecided, unjudged = (
        [claim for claim, verdict in ran if verdict in verdicts]
        for verdicts in (
            ("agrees", "ordering agrees", "reproduced", "sign agrees"),
            ("reversed", "differs"),
            ("undecided", "unproven"),
            ("at the floor", "not run"),
        )
    )
    own, listed = f"in our runs at reduced size{_data(name)},", "; ".join(other)
    lost = "vanishes, at least mostly, or has" if len(other) == 1 else "vanish, at least mostly, or have"
    told = {
        "What holds": [
            *_stated(compared, _BY, "holds", "reproduced"),
            f"{own} {len(shown)} of {len(ran)} differences {'has' if len(shown) == 1 else 'have'} the published sign"
            * bool(shown),
        ],
        "What fails": [
            *_stated(compared, _BY, "fails", "differs"),
            f"{own} {len(other)} of {len(ran)} differences {lost} the opposite sign (the paper claims, about accuracy "
            f"unless another quantity is named: {listed})" * bool(other),
        ],
        "What is open": [
            *_stated(compared, _OPEN, "unproven"),
            f"our runs do not decide the sign of {len(undecided)} of {len(ran)} differences" * bool(undecided),
            f"{len(unjudged)} of {len(ran)} differences could not be judged, since a method was not run or no attack "
            "recovers anything" * bool(unjudged),
            f"of the paper's printed numbers, we measured {numbers['run'] or 'none'} in its setting, "
            f"{numbers['reduced'] or 'none'} at reduced size and {numbers['proxy'] or 'none'} on other data; "
            f"{numbers['configured']} other numbers were not measured yet",
        ],
    }
    return {lead: list(filter(None, parts)) or ["nothing that was shown here"] for lead, parts in told.items()}


def _data(name: str) -> str:
    return " on digits instead of the paper's data" * any(on_other_data(method) for method, _ in needed(name))


def _stated(compared: Sequence[ComparedClaim], words: Mapping[Basis, str], *verdicts: str) -> Iterator[str]:
    """For each kind of check in `words`, yield a text that lists where the paper makes the claims with a verdict in
    `verdicts`. "Table 11 (2 of 24)" means that 24 claims of Table 11 were checked in this way, and 2 have such a
    verdict."""
    for basis, by in words.items():
        of_basis = [one for one in compared if one.basis == basis]
        places = dict.fromkeys(_place(one.claim) for one in of_basis if one.verdict in verdicts)
        shown = []
        for place in places:
            of_place = [one for one in of_basis if _place(one.claim) == place]
            count = sum(one.verdict in verdicts for one in of_place)
            shown.append(place if len(of_place) == 1 else f"{place} ({count} of {len(of_place)})")
        if shown:
            yield by + ", ".join(shown)


def _place(claim: str) -> str:
    """The place of a claim in the paper: "Table 11: CNN on MNIST, …" -> "Table 11"."""
    return re.split("[:,]", claim, maxsplit=1)[0]
