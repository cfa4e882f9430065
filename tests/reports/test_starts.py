"""What an attack began from counts where it gives away more than the finished attack."""

from dataclasses import replace

import pytest

from privkit.reports.columns import START
from privkit.reports.conclusion import conclusions
from privkit.reports.strongest import counted, finished_grade, grade
from privkit.reports.threats import threat_verdicts
from privkit.shared.certificate import Certificate
from tests.reports.made import metric
from tests.reports.test_evidence import claim, of
from tests.reports.test_evidence import counted as hits
from tests.reports.test_threats import REGISTERED, alone, attacked, judged


@pytest.mark.parametrize(
    ("before", "mse", "told"),
    [
        (0.72, 0.05, ", identified 0.72 [0.72, 0.72]; counted before its first step"),
        (0.72, 0.09, ", identified 0.56 [0.56, 0.56]; before its first step it identifies more, 0.72"),
        (0.5, 0.05, ", identified 0.56 [0.56, 0.56]"),
    ],
)
def test_a_start_that_gives_away_more_than_the_finished_attack_counts(before: float, mse: float, told: str) -> None:
    """It gives away records in the first case; in the second it identifies more, and is far from them."""
    row, start = attacked("white_box", "weights", 0.05), attacked("white_box", "weights", mse)
    found = {
        share: {**guesses.recovered["unaligned"], "identified": metric(share, share, share, worst=0.0, closer=True)}
        for share, guesses in ((0.56, row), (before, start))
    }
    shown = {"recovered": {"unaligned": found[0.56]}, "floors": {**row.floors, START: {"unaligned": found[before]}}}
    (sentence,) = (
        one.sentence for one in alone(row.model_copy(update=shown)).values() if one.threat_model == "weights"
    )
    assert sentence.startswith("falls to white_box: ")
    assert sentence.endswith(told)


def test_a_defense_falls_to_what_an_attack_began_from() -> None:
    """A recording that declared a shuffle and shuffled nothing: the start identified all, the finished attack few."""
    row = attacked("white_box", "weights", 0.09)
    start = {START: {"unaligned": attacked("white_box", "weights", 0.006, 0.775).recovered["unaligned"]}}
    floors = {**row.floors, **start}
    rows = [row.model_copy(update={"floors": floors, "seed": seed}) for seed in (0, 1)]
    assert [grade(rows[0]), finished_grade(rows[0])] == ["record", "nothing"]
    assert counted(counted(rows[0])) == counted(rows[0])
    found = judged(*rows)["weights"]
    assert found.outcome == "falls"
    assert "SSIM 0.775" in found.measured
    assert found.remarks[-1] == "counted before its first step, in 2 of 2 seeds"


def test_evidence_concludes_as_the_report_where_a_start_counts_and_unsent_passes_claim_nothing() -> None:
    certificate = Certificate(kind="differential_privacy", statement="", epsilon=8.0, delta=1e-5)
    row = hits("white_box", "weights", 0.09, 2, certificate=certificate)
    row = row.model_copy(update={"floors": {**row.floors, START: hits("white_box", "weights", 0.006, 40).recovered}})
    more = {"status": "not_applicable", "cell": "u", "certificate": replace(certificate, epsilon=20.0)}
    rows = [row, row.model_copy(update=more)]
    found = of(*rows)
    (told,) = conclusions(rows, threat_verdicts(rows, [], REGISTERED))
    assert found.conclusions[0].sentence == told.sentence
    for sentence in (told.sentence, *(one.identified[0].sentence for one in found.measured)):
        assert "white_box, before its first step" in sentence
    assert claim(found).epsilon == 8.0
