"""`privkit describe`: every option of every part with its meaning."""

import json

import pytest
from typer.testing import CliRunner

from privkit.cli.app import app
from privkit.errors import UsageError
from privkit.parts.entries import part_entries
from privkit.parts.registry import PART_TABLES

runner = CliRunner()


@pytest.mark.parametrize("kind", PART_TABLES)
def test_every_option_has_a_meaning(kind: str) -> None:
    for entry in part_entries(kind):
        assert {name for name in entry["options"] if not entry["meaning"].get(name)} == set(), entry["name"]


def test_a_part_in_words() -> None:
    done = runner.invoke(app, ["describe", "batch_shuffle"])
    text = " ".join(done.stdout.split())
    assert "batch_shuffle (defenses) Exchanges tokens among the images of a batch at random" in text
    assert "keep=0.4: a finite number >= 0 and <= 1 k in [0, 1]; each image keeps ⌊k·N⌋ of its N tokens." in text
    assert "Source: Yao et al." in text
    assert "batch_shuffle (accountants)" in text
    (defense, _) = json.loads(runner.invoke(app, ["describe", "batch_shuffle", "--json"]).stdout)
    assert (defense["kind"], defense["options"]["keep"]) == ("defenses", 0.4)
    assert defense["meaning"]["keep"].startswith("k in [0, 1]")


def test_a_part_of_ones_own_in_words() -> None:
    text = runner.invoke(app, ["describe", "privkit.templates.defense:Template"]).stdout
    assert "bound=1.0: a finite number > 0\n      c > 0, the largest magnitude that is released." in text


def test_an_unknown_part_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match=r"did you mean batch_shuffle, patch_shuffle\? \(privkit list lists all\)$"):
        runner.invoke(app, ["describe", "batch_shufle"], catch_exceptions=False)


def test_names_that_hold_the_unknown_one_are_near() -> None:
    with pytest.raises(UsageError) as refused:
        runner.invoke(app, ["describe", "cutmix"], catch_exceptions=False)
    for name in ("cutmixsl", "dp_cutmixsl", "random_cutmix", "shuffled_cutmix"):
        assert name in str(refused.value)
    assert len(str(refused.value)) < 200
