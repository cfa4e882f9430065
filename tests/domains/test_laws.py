"""Laws of every domain: what it draws is valid, the truth is its own best guess, and what it refuses is said."""

import pytest
import torch
from torch import Generator

from privkit.domains import DATASETS, Batch, Domain, Images, Tables, Tokens
from privkit.errors import DataError, UsageError
from privkit.parts.registry import load

WORDS = Tokens(length=6, vocabulary=("", "?", "the", "cat", "sat"))
CARS = Tables(
    dense=("mpg", "weight"),
    ranges=((10.0, 50.0), (1000.0, 5000.0)),
    categorical=("cylinders", "made in"),
    values=(("4", "6", "8"), ("Europe", "Japan")),
)
EVERY: dict[str, Domain] = {"images": Images(shape=(3, 8, 8)), "tokens": WORDS, "tables": CARS}
BAD: dict[str, list[tuple[torch.Tensor, str]]] = {
    "images": [(torch.zeros(2, 3, 4, 4), r"\[3, 8, 8\] each"), (torch.full((2, 3, 8, 8), 2.0), "divide them by 255")],
    "tokens": [
        (torch.zeros(2, 6), r"int64 \[N, 6\]"),
        (torch.zeros(2, 5, dtype=torch.int64), r"int64 \[N, 6\]"),
        (torch.full((2, 6), 5), r"0\.\.4, got 5"),
        (torch.full((2, 6), -1), "got -1"),
    ],
    "tables": [
        (torch.zeros(2, 3), r"float32 \[N, 4\]"),
        (torch.tensor([[2.0, 0.0, 0.0, 0.0]]), r"in \[0, 1\]"),
        (torch.tensor([[float("nan"), 0.0, 0.0, 0.0]]), "missing"),
        (torch.tensor([[0.0, 0.0, 3.0, 0.0]]), "whole numbers from 0"),
        (torch.tensor([[0.0, 0.0, 0.5, 0.0]]), "whole numbers from 0"),
    ],
}


def draws(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


@pytest.fixture(params=EVERY)
def domain(request: pytest.FixtureRequest) -> Domain:
    return EVERY[request.param]


def test_what_a_domain_draws_is_valid(domain: Domain) -> None:
    for x in (domain.zeros(3), domain.random(3, draws()), domain.extremes(draws())):
        domain.check(x)
        assert x.shape[1:] == domain.shape
    assert torch.equal(domain.random(3, draws(1)), domain.random(3, draws(1)))


def test_constant_guesses_are_valid_records_and_worse_than_the_truth(domain: Domain) -> None:
    x = domain.random(40, draws())
    for guess in domain.guesses(x).values():
        domain.check(guess.unsqueeze(0))
        if domain.name == "images":  # their scores belong to the attacks
            continue
        floor, exact = domain.scores(x, guess.expand_as(x)), domain.scores(x, x)
        assert set(exact) <= set(domain.kind.directions)
        for name, values in exact.items():
            assert values.shape == (40,)
            best = 1.0 if domain.kind.directions[name] else 0.0
            assert (values == best).all()
            assert (floor[name] <= 1).all()
            assert (floor[name] != best).any()


def test_a_record_has_one_fingerprint_and_fits_its_own_domain(domain: Domain) -> None:
    x = domain.random(20, draws())
    assert domain.fingerprints(x) == domain.fingerprints(x.clone())
    assert len(set(domain.fingerprints(x))) == len({tuple(row.flatten().tolist()) for row in x})
    torch.testing.assert_close(domain.fit(x, domain), x)
    for other in EVERY.values():
        if other.name != domain.name:
            with pytest.raises(UsageError, match="auxiliary"):
                domain.fit(other.random(2, draws()), other)


def test_what_is_no_record_is_refused_in_a_sentence(domain: Domain) -> None:
    for x, why in BAD[domain.name]:
        with pytest.raises(DataError, match=why) as caught:
            Batch(x=x, y=torch.zeros(len(x), dtype=torch.int64), ids=torch.arange(len(x)), domain=domain)
        assert "\n" not in str(caught.value)


def test_a_batch_keeps_its_domain() -> None:
    x = WORDS.random(4, draws())
    batch = Batch(x=x, y=torch.arange(4), ids=torch.arange(4), domain=WORDS)
    assert batch[1:3].domain is WORDS
    assert batch.to(torch.device("cpu")).domain is WORDS
    assert batch[1:3].sha256() != batch[2:4].sha256()


def test_every_dataset_names_its_domain() -> None:
    assert {load(target).domain for target in DATASETS.values()} == set(EVERY)


def test_tokens_of_another_vocabulary_are_read_by_this_one() -> None:
    other = Tokens(length=4, vocabulary=("", "?", "sat", "dog"))
    assert WORDS.fit(torch.tensor([[2, 3, 1, 0]]), other).tolist() == [[4, 1, 1, 0, 0, 0]]


def test_rows_of_another_range_are_rescaled() -> None:
    other = Tables(dense=("mpg",), ranges=((0.0, 100.0),))
    own = Tables(dense=("mpg",), ranges=((0.0, 50.0),))
    assert own.fit(torch.tensor([[0.25], [0.75]]), other).tolist() == [[0.5], [1.0]]
    with pytest.raises(UsageError, match="must have the columns mpg"):
        own.fit(CARS.zeros(1), CARS)


def test_a_table_keeps_small_differences_of_large_numbers() -> None:
    """Seconds since 1970 lie close together in a wide range, and a range may exceed the largest float32."""
    rows = torch.linspace(0, 1, 1000).unsqueeze(1).expand(-1, 2)
    other = Tables(dense=("second", "energy"), ranges=((1.7e9, 1.7e9 + 1000), (0.0, 1e39)))
    own = Tables(dense=("second", "energy"), ranges=((1.7e9 - 1000, 1.7e9 + 1000), (-1e39, 1e39)))
    torch.testing.assert_close(own.fit(rows, other), (1 + rows) / 2)


def test_the_same_rows_and_texts_are_found_in_a_dataset_with_another_range_or_vocabulary() -> None:
    numbers = torch.rand(200, 30, generator=draws()).double().mul(90).add(10)  # from 10 to 100
    names = tuple(f"c{column}" for column in range(30))
    own, other = (Tables(dense=names, ranges=((low, 100.0),) * 30) for low in (10.0, -437.3))
    private, theirs = (((numbers - low) / (100 - low)).float() for low in (10.0, -437.3))
    theirs[100:, 29] = theirs[100:, 29] * 0.99  # these rows differ in one cell
    assert own.repeats(own.fit(theirs, other), private, other).tolist() == [True] * 100 + [False] * 100
    read = Tokens(length=4, vocabulary=("", "?", "sat", "?", "the"))  # without "cat"
    texts = torch.tensor([[2, 3, 4, 2, 4, 0], [4, 4, 4, 0, 0, 0]])  # the cat sat the sat, sat sat sat
    again = WORDS.fit(torch.tensor([[4, 1, 2, 4], [2, 2, 2, 0], [2, 2, 2, 2]]), read)
    assert WORDS.repeats(again, texts, read).tolist() == [True, True, False]


def test_dark_images_of_16_bits_are_told_apart_and_those_of_8_bits_by_their_8_bits() -> None:
    dark = torch.randint(200, (50, 1, 8, 8), generator=draws()) / 65535
    domain = Images.of(dark)
    assert len(set(domain.fingerprints(dark))) == 50
    assert not domain.repeats(dark[25:], dark[:25], domain).any()
    usual = torch.randint(256, (5, 1, 8, 8), generator=draws()) / 255
    assert domain.repeats((usual + 1e-4).clamp(0, 1), usual, domain).all()


def test_unknown_tokens_of_other_texts_stay_unknown_although_a_question_mark_is_a_token() -> None:
    own, other = (Tokens(length=3, vocabulary=("", "?", *words)) for words in (("a", "?"), ("b", "?", "a")))
    assert own.fit(torch.tensor([[1, 3, 4], [2, 1, 0]]), other).tolist() == [[1, 3, 2], [1, 1, 0]]


def test_scores_of_tokens() -> None:
    truth, guess = torch.tensor([[2, 3, 4, 0, 0, 0]]), torch.tensor([[3, 3, 4, 4, 0, 0]])
    found = {name: values.item() for name, values in WORDS.scores(truth, guess).items()}
    assert found["token_accuracy"] == pytest.approx(2 / 3)
    assert found["rouge_l"] == pytest.approx(2 * 2 / (3 + 4))  # "cat sat" in both, of 3 and 4 tokens
    assert found["exact"] == 0


def test_scores_of_a_table_count_cells_and_say_which_column_was_missed() -> None:
    truth, guess = torch.tensor([[0.5, 0.5, 1.0, 0.0]]), torch.tensor([[0.52, 0.9, 1.0, 1.0]])
    found = {name: values.item() for name, values in CARS.scores(truth, guess).items()}
    squares = (0.02**2 + 0.4**2) / 2
    assert found == {
        "cells": 0.5,
        "dense_error": pytest.approx(0.21),
        "dense_mse": pytest.approx(squares),
        "categories": 0.5,
    }
    errors = CARS.columns(truth, guess)
    assert errors == {"mpg": pytest.approx(0.02), "weight": pytest.approx(0.4), "cylinders": 0.0, "made in": 1.0}


def test_the_commonest_values_and_tokens_are_the_best_constant_guesses() -> None:
    """In columns with many zeros, and in texts of several lengths: no record is a better guess at the others."""
    rows = torch.rand(300, 4, generator=draws())
    rows[:, :2] *= rows[:, 2:] < 0.4
    own = Tables(dense=("a", "b", "c", "d"), ranges=((0.0, 1.0),) * 4)
    texts = WORDS.random(300, draws()) * (torch.arange(6) < torch.randint(1, 7, (300, 1), generator=draws(1)))
    for domain, x, name in ((own, rows, "commonest_values"), (WORDS, texts, "commonest_tokens")):
        first = domain.kind.measures[0].name

        def right(guess: torch.Tensor, domain: Domain = domain, x: torch.Tensor = x, first: str = first) -> float:
            return float(domain.scores(x, guess.expand_as(x))[first].mean())

        assert right(domain.guesses(x)[name]) >= max(right(one) for one in (*domain.guesses(x).values(), *x[:50]))


def test_floors_are_the_most_frequent_token_and_each_columns_mean_or_mode() -> None:
    x = torch.tensor([[2, 3, 0, 0, 0, 0], [2, 4, 2, 0, 0, 0], [3, 4, 2, 2, 0, 0]])
    floors = WORDS.guesses(x)
    assert floors["most_frequent_token"].tolist() == [2] * 6
    assert floors["most_frequent_by_place"].tolist()[:4] == [2, 4, 2, 2]
    rows = torch.tensor([[0.0, 1.0, 2.0, 1.0], [1.0, 1.0, 2.0, 0.0], [0.5, 1.0, 0.0, 1.0]])
    assert CARS.guesses(rows)["column_mean"].tolist() == [0.5, 1.0, 2.0, 1.0]
