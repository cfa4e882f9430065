"""The one table of measures agrees with the domains that compute them and with the parts that it names."""

import pytest
import torch
from torch import Generator

from privkit.domains import Domain
from privkit.parts.registry import parse
from privkit.shared.measures import KINDS, MEASURES, Records, deciding, likeness, measure
from tests.domains.test_laws import EVERY


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_a_kind_of_record_names_measures_and_parts_that_exist(kind: Records) -> None:
    first = kind.measures[0]
    assert first.compared
    assert all(one.higher_is_closer is not None for one in (*kind.measures, *kind.perceived))
    assert measure(kind.likeness).higher_is_closer
    assert deciding(list(kind.directions)) == first.name
    assert likeness(list(kind.directions)) == kind.likeness
    assert any(floor.beaten for floor in kind.floors)
    assert parse("models", kind.model).spec.domain in (kind.name, "any")
    for attack in (kind.baseline, *kind.general):
        assert {kind.name, "any"} & set(parse("attacks", attack).spec.mounting.domains)


@pytest.mark.parametrize("domain", EVERY.values(), ids=list(EVERY))
def test_a_domain_computes_its_measures_and_its_floors_within_their_range(domain: Domain) -> None:
    records = domain.random(40, Generator().manual_seed(0))
    guesses = domain.guesses(records)
    assert set(guesses) == {floor.name for floor in domain.kind.floors if not floor.drawn}
    for guess in guesses.values():
        found = domain.scores(records, guess.expand(40, *guess.shape))
        assert set(found) == set(domain.kind.directions)
        for name, values in found.items():
            low, high = MEASURES[name].within
            assert (values >= low).all()
            assert (values <= high).all()


def test_an_arrow_points_to_what_a_defender_wishes() -> None:
    headings = {name: MEASURES[name].heading for name in ("mse", "psnr", "accuracy", "bits_left", "auc")}
    assert headings == {
        "mse": "MSE ↑",
        "psnr": "PSNR ↓",
        "accuracy": "accuracy ↑",
        "bits_left": "bits of the order left ↑",
        "auc": "AUC → .5",
    }
    assert measure("unheard_of").heading == "unheard_of"
    assert torch.isinf(torch.tensor(measure("unheard_of").within)).all()


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_the_note_below_a_table_explains_no_column_of_other_records(kind: Records) -> None:
    """Tables explained "exact", which texts have."""
    own = {measure.title for measure in kind.measures}
    others = {measure.title for other in KINDS.values() for measure in other.measures} - own
    assert [title for title in others if f"{title.capitalize()}:" in kind.note or f" {title} " in kind.note] == []
