"""Which record a guess finds: ties count by chance, and a guess that does not look finds one record in all."""

import numpy as np
import pytest

from privkit.attacks.scores.nearest import found

DRAWS = np.random.default_rng(0)


@pytest.mark.parametrize("duplicates", [1, 2, 5])
def test_a_guess_that_does_not_look_finds_one_record_in_all_whatever_is_equal(duplicates: int) -> None:
    rows = np.repeat(DRAWS.random((20 // duplicates, 9)), duplicates, axis=0)
    constant = np.square(rows - DRAWS.random(9)).mean(1)
    assert found(np.tile(constant, (20, 1)), np.arange(20)).sum() == pytest.approx(1)


def test_of_equal_records_each_is_found_by_chance() -> None:
    rows = np.repeat(DRAWS.random((5, 9)), 2, axis=0)
    distances = np.square(rows[:, None] - rows).mean(2)
    assert found(distances, np.arange(10)).tolist() == [0.5] * 10
    rounded = distances + 1e-14 * DRAWS.normal(size=distances.shape)
    assert found(rounded, np.arange(10)).tolist() == [0.5] * 10


def test_a_guess_that_is_nearer_to_another_record_finds_none() -> None:
    assert found(np.array([[0.2, 0.1], [0.3, 0.1]]), np.arange(2)).tolist() == [0.0, 1.0]
