"""A defense that holds says which gains its attacked records do not exclude."""

from math import inf

import pytest

from privkit.reports.columns import BY_PATTERN, OWN_MATCH
from privkit.reports.schema import Check
from tests.reports.made import metric
from tests.reports.test_threats import attacked, judged


@pytest.mark.parametrize(("high", "told"), [(0.014, "an error 20 % below"), (0.002, ""), (inf, "an error 100 % below")])
def test_a_defense_that_holds_says_what_gain_so_few_records_do_not_exclude(high: float, told: str) -> None:
    """Against a mean image of error .07; of one record nothing is excluded."""
    gain = {"mse": metric(0.0, -0.001, high, worst=0.01, closer=True)}
    row = attacked("black_box", "query", 0.07, ahead={"mean_image": gain, "class_mean": gain})
    found = judged(row)["query"]
    assert found.outcome == "holds"
    assert ("is not ruled out" in found.sentence) == bool(told)
    assert told in found.sentence


def test_guesses_that_match_as_own_records_do_are_not_called_recovered() -> None:
    row = attacked("unmix", "many_passes", 0.12)
    mean = row.floors["mean_image"]["unaligned"]
    matched = {"mse": metric(0.001, 0.0009, 0.0011, worst=0.001, closer=False)}
    floors = row.floors | {"mean_image": {"unaligned": mean, "matched": mean}}
    row = row.model_copy(update={"recovered": row.recovered | {"matched": matched}, "floors": floors})
    alike = Check(name=OWN_MATCH, passed=False, detail="", decisive=False)
    told = [judged(one)["many_passes"].sentence for one in (row, row.model_copy(update={"checks": (alike,)}))]
    assert ["not which is which" in sentence for sentence in told] == [True, False]


def test_images_that_correlation_identifies_are_named_although_the_defense_holds() -> None:
    row = attacked("unsplit", "passive", 0.12)
    shown = Check(name=BY_PATTERN, passed=False, detail="20 of 20 images are identified by correlation", decisive=False)
    told = [judged(one)["passive"].sentence for one in (row, row.model_copy(update={"checks": (shown,)}))]
    assert ["but 20 of 20 images are identified by correlation" in sentence for sentence in told] == [False, True]
