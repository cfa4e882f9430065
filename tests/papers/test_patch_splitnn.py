"""Every row of Patch SplitNN's tables 5 to 7 is one of its experiments with another model."""

import re

import pytest

from privkit.models.patch_splitnn import PatchSplitNN
from privkit.papers import paper
from privkit.papers.coverage import coverage
from privkit.papers.presets import preset_settings
from privkit.parts.registry import parse
from privkit.settings.resolve import resolve

SIDES = {"Table 5": 32, "Table 6": 32, "Table 7": 96}


@pytest.mark.parametrize("table", SIDES)
def test_every_row_of_a_table_has_the_model_that_it_names(table: str) -> None:
    entries = [entry for entry in coverage("patch_splitnn").entries if entry.table == table]
    models = {entry.rows: parse("models", entry.settings["model"]) for entry in entries}
    assert len(entries) == len({model.label for model in models.values()}) == 33
    for row, model in models.items():
        if isinstance(spec := model.spec, PatchSplitNN):
            patch, stride, count = map(int, re.findall(r"\d+", row.split("SplitNN")[1]))
            assert (spec.patch, spec.stride, spec.models) == (patch, stride, count)
            assert (spec.adaptation == "shared") == ("SplitNN+" in row)
            assert count in (1, spec.grid(SIDES[table], SIDES[table]) ** 2)
        else:
            assert (row.split(", ")[1], model.name) == ("ResNet18", "resnet18")


@pytest.mark.parametrize("figure", ["figure_5", "figure_6", "figure_7"])
def test_every_rate_of_dropping_can_be_audited(figure: str) -> None:
    settings = preset_settings(paper("patch_splitnn").folder / "experiments" / f"{figure}.toml")
    for rate in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7):
        spec = resolve(settings | {"model": re.sub(r"drop=[\d.]+", f"drop={rate}", settings["model"])}).model.spec
        assert isinstance(spec, PatchSplitNN)
        assert spec.drop == rate
