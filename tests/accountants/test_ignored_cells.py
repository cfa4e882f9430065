"""No cell of a parameter table is silently ignored: it changes the mechanism, or it is refused with what to do."""

from typing import Any

import pytest

from privkit.accountants import table
from privkit.accountants.columns import BY_NAME
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.cli.budgets import budgets

PLAIN: dict[str, Any] = {"mechanism": "gaussian", "sigma": 1, "sensitivity": 1}
MIXED: dict[str, Any] = {"mechanism": "dp_mixsl", "sigma": 1, "dimensions": 10, "clip_high": 1, "group": 2}
DRAWN = MIXED | {"ratio": "dirichlet", "concentration": 2}
ANSWERED: dict[str, Any] = {"mechanism": "randomized_response", "noise_parameter": 0.5, "classes": 4}
MASKED: dict[str, Any] = {"mechanism": "hidden_mask", "sigma": 1, "clip_patch": 1, "patches": 4, "kept": 2}
COINS = {"relation": "add_or_remove_one", "rounds": 4}
BASES: list[dict[str, Any]] = [
    PLAIN,
    PLAIN | {"labels": "box", "classes": 3, "unit": "client"},
    PLAIN | {"mechanism": "laplace"},
    PLAIN | {"sampling": "without_replacement", "group": 2, "clients": 10},
    PLAIN | COINS | {"sampling": "poisson", "rate": 0.1},
    PLAIN | COINS | {"sampling": "random_allocation", "epoch_rounds": 2},
    PLAIN | COINS | {"sampling": "shuffled_epochs", "epoch_rounds": 2},
    PLAIN | {"sampling": "shuffled_epochs", "epoch_rounds": 2},
    {"mechanism": "gaussian", "sigma": 1, "clip_norm": 1},
    {"mechanism": "dp_sl", "sigma": 1, "dimensions": 4, "clip_high": 1},
    MASKED,
    MIXED,
    DRAWN,
    DRAWN | {"mechanism": "dp_cutmixsl", "patches": 10},
    MIXED | {"ratio": "fixed", "ratios": ".5;.5"},
    MIXED | {"mechanism": "dp_cutmixsl", "patches": 10, "ratio": "counts", "counts": "4;6"},
    ANSWERED,
]
OTHER = {
    "sigma": 3, "noise_parameter": 0.3, "sigma_labels": 3, "sensitivity": 3,
    "dimensions": 7, "clip_low": -3, "clip_high": 3, "clip_norm": 3, "clip_patch": 3, "labels": "one_hot",
    "classes": 7, "group": 3, "clients": 20, "sampling": "shuffled_epochs", "participations": 2, "epoch_rounds": 1,
    "rate": 0.3, "rounds": 8, "releases": 3, "relation": "add_or_remove_one", "unit": "client",
    "lower_model": "trained", "records": 30, "ratio": "dirichlet_counts", "ratios": ".3;.7", "counts": "3;7",
    "concentration": 3, "drawn": "once", "patches": 5, "kept": 3, "noise_site": "client", "colluding": "yes",
}  # fmt: skip
"""A value of each column that is not its default."""


def outcome(base: dict[str, Any], column: str) -> SplitMechanism | str:
    """The mechanism with another value of a column, or why it is refused."""
    try:
        return table.mechanism_of(base | {column: OTHER[column]})
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("column", [name for name in BY_NAME if name not in ("name", "mechanism", "source", "delta")])
def test_a_cell_changes_the_mechanism_or_is_refused(column: str) -> None:
    outcomes = [(base, outcome(base, column)) for base in BASES if base.get(column) != OTHER[column]]
    taken = [(base, found) for base, found in outcomes if isinstance(found, SplitMechanism)]
    assert taken
    for base, found in taken:
        assert found != table.mechanism_of(base), base
    told = f"{column} would be ignored, as it belongs to {BY_NAME[column].belongs}: leave {column} empty, or give"
    refused = [(base, found) for base, found in outcomes if isinstance(found, str) and column not in base]
    for base, sentence in refused:
        assert sentence.startswith(told) or "would be ignored" not in sentence, base


@pytest.mark.parametrize(
    ("cells", "sentence"),
    [
        (PLAIN | {"sigma_labels": 1}, "sigma_labels would be ignored, as it belongs to labels = one_hot or box"),
        (PLAIN | {"rate": 0.01}, "rate would be ignored, as it belongs to sampling = poisson"),
        (PLAIN | {"group": 5, "clients": 100}, "group would be ignored, as it belongs to mechanism = dp_mixsl or"),
        (PLAIN | {"dimensions": 3}, "dimensions would be ignored, as it belongs to clip_high"),
        (MIXED | {"group": 7, "ratios": ".5;.5"}, "ratios would be ignored, as it belongs to ratio = fixed"),
        (MASKED | {"noise_site": "client"}, "noise_site would be ignored"),
        (MASKED | {"colluding": "yes"}, "colluding would be ignored"),
    ],
)
def test_an_ignored_cell_is_told_where_it_belongs(cells: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        table.mechanism_of(cells)


@pytest.mark.parametrize("cells", [{"noise_site": "client"}, {"colluding": "yes"}])
def test_what_belongs_to_mixing_is_said_to_have_no_effect_without_it(cells: dict[str, Any]) -> None:
    ((name, value),) = cells.items()
    for base in BASES[:3]:
        (said,) = table.without_effect(table.mechanism_of(base | cells))
        assert said.startswith(f"{name} = {value} has no effect, as nothing is mixed")
    (row, _), *_ = budgets(table.read([PLAIN | cells], 1e-5), tight=False, compare=False)
    assert row.notes == table.without_effect(table.mechanism_of(PLAIN | cells))
    assert not table.without_effect(table.mechanism_of(MIXED | cells))
    drawn = PLAIN | {"sampling": "without_replacement", "group": 2, "clients": 10, "colluding": "yes"}
    assert not table.without_effect(table.mechanism_of(drawn))


def test_defaults_may_be_written_out() -> None:
    written = PLAIN | {"clip_low": 0, "participations": 1, "ratio": "equal", "drawn": "every_round", "colluding": "no"}
    assert table.mechanism_of(written) == table.mechanism_of(PLAIN)


def test_the_start_of_a_search_may_mean_nothing() -> None:
    assert table.mechanism_of(ANSWERED, {"sigma": 1}) == table.mechanism_of(ANSWERED)
    assert table.mechanism_of({"mechanism": "gaussian", "sensitivity": 1}, {"sigma": 3}).noise.smashed == 3


@pytest.mark.parametrize(
    ("cells", "sentence"),
    [
        (ANSWERED | {"sampling": "poisson", "rate": 0.1}, "leave out both"),
        (ANSWERED | {"labels": "one_hot"}, "leave out the labels"),
        (PLAIN | {"mechanism": "laplace", "sampling": "poisson", "rate": 0.1}, "use Gaussian noise with Poisson"),
        (MASKED | {"sampling": "poisson", "rate": 0.1}, "use every_round"),
    ],
)
def test_advice_is_not_refused_in_turn(cells: dict[str, Any], sentence: str) -> None:
    """Each was told to use add_or_remove_one, or to give noise of labels, and was refused with it."""
    with pytest.raises(ValueError, match=sentence):
        table.mechanism_of(cells)
