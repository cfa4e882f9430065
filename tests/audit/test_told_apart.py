"""Scores that tell two kinds apart: the direction of their rates."""

import torch

from privkit.attacks.base import Scores
from privkit.audit.goals.context import told_apart


def test_rates_are_those_of_the_direction_that_leaks_where_it_is_shown() -> None:
    """AUC .049 beside advantage .012 met `advantage<=.6` and `tpr<=.3`."""
    truth = torch.arange(400) % 4 == 0
    values = torch.randn(400, generator=torch.Generator().manual_seed(0)) - 3 * truth
    found, other = (told_apart(Scores(values=each, examples=torch.arange(400)), truth) for each in (values, -values))
    assert found["auc"].high < 0.1
    assert other["auc"].low > 0.9
    for name in ("tpr_at_1_percent", "advantage"):
        assert (found[name].value, found[name].low, found[name].high) == (
            other[name].value,
            other[name].low,
            other[name].high,
        )
        assert found[name].method.startswith(other[name].method + "; of the reversed scores")
    assert found["advantage"].value > 0.8


def test_without_a_leak_the_direction_is_no_free_guess() -> None:
    """The better of both directions would raise the mean advantage of scores that tell nothing."""
    draws, truth, turned = torch.Generator().manual_seed(0), torch.arange(60) % 2 == 0, 0
    for _ in range(100):
        found = told_apart(Scores(values=torch.randn(60, generator=draws), examples=torch.arange(60)), truth)
        turned += "reversed" in found["advantage"].method
        assert (found["auc"].high < 0.5) == ("reversed" in found["advantage"].method)
    assert turned <= 8
