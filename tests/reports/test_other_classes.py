"""Verdicts beside own records of other classes, which leave no class mean to compare guesses with."""

from dataclasses import replace

import pytest

from tests.reports.made import metric
from tests.reports.test_threats import attacked, judged


@pytest.mark.parametrize(("labels", "outcome"), [({"victim_labels": 10}, "falls"), ({"victim_labels": 30}, "holds")])
def test_sharp_guesses_beside_own_records_of_other_classes_give_records_away_as_well(
    labels: dict[str, int], outcome: str
) -> None:
    """A guess by the label identifies one record of each label at most; the last case is short of that."""
    row = attacked("jigsaw", "query", 0.09, counts=labels)
    del row.floors["class_mean"]
    row.recovered["unaligned"]["identified"] = replace(metric(0.3, 0.21, 0.4, worst=1, closer=True), n=100)
    row.floors["mean_image"]["unaligned"]["identified"] = metric(0.01, 0.01, 0.01, worst=1, closer=True)
    assert judged(row)["query"].outcome == outcome
