"""Laws of the models on token sequences and table rows, as `test_registered` has them for images."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Generator

from privkit.domains import Domain, Tables, Tokens
from privkit.errors import UsageError
from privkit.models import SplitModel
from privkit.models.imported import hides_places
from privkit.models.tables import DIFM, TABLE_MLP
from privkit.models.texts import LSTM, RNN, TEXT_MLP, TRANSFORMER_MICRO
from privkit.training import Stacked

WORDS = Tokens(length=5, vocabulary=("", "?", "a", "b", "c"))
CARS = Tables(
    dense=("x", "y"), ranges=((0, 1), (0, 1)), categorical=("kind", "color"), values=(("a", "b"), ("c", "d", "e"))
)
CASES: list[tuple[Any, Domain]] = [
    (TRANSFORMER_MICRO, WORDS),
    (TABLE_MLP, CARS),
    (LSTM, WORDS),
    (RNN, WORDS),
    (TEXT_MLP, WORDS),
    (DIFM, CARS),
]


def built(spec: Any, domain: Domain, **fields: Any) -> SplitModel:
    model: SplitModel = replace(spec, **fields).build(domain, 2, positions=True, seed=0)
    return model


@pytest.mark.parametrize(("spec", "domain"), CASES)
def test_a_cut_moves_weights_and_changes_no_function(spec: Any, domain: Domain) -> None:
    x, found, sizes = domain.random(4, Generator().manual_seed(0)), [], []
    x[0] = domain.zeros(1)[0]
    for cut in spec.cuts:
        model = built(spec, domain, cut=cut)
        with torch.no_grad():
            found.append(model.upper.eval()(model.lower.eval()(x)))
        sizes.append(sum(weight.numel() for weight in model.lower.parameters()))
    assert found[0].shape == (4, 2)
    assert all(torch.allclose(other, found[0], atol=1e-5) for other in found)
    assert sizes == sorted(set(sizes))


@pytest.mark.parametrize(("spec", "domain"), CASES)
def test_three_clients_in_one_call_equal_one_after_the_other(spec: Any, domain: Domain) -> None:
    lowers = Stacked(built(spec, domain).lower, 3)
    for weight in lowers.parameters():
        weight.data += 0.1 * torch.randn(weight.shape, generator=Generator().manual_seed(1))
    x = domain.random(6, Generator().manual_seed(2)).unflatten(0, (3, 2))
    lowers.settle(x)
    assert lowers.batched is (spec not in (LSTM, RNN))  # what torch cannot batch runs in a loop
    together = lowers(x)
    for client in range(3):
        torch.testing.assert_close(together[client], copy.deepcopy(lowers.copy(client))(x[client]), atol=1e-5, rtol=0)


def test_padding_has_no_content_and_no_place() -> None:
    model = built(TRANSFORMER_MICRO, WORDS, cut="embedding")
    tokens = model.lower(torch.tensor([[2, 3, 0, 0, 0]]))
    assert (tokens[0, 2:] == 0).all()
    assert (tokens[0, :2] != 0).any()


def test_the_tasks_of_accurate_sl_cut_where_its_table_1_says() -> None:
    """16 and 4,096 numbers of IMDB in 256 tokens, 256 of a name; weights counted by hand."""
    reviews = Tokens(length=256, vocabulary=("", "?", *map(str, range(98))))
    with torch.no_grad():
        assert built(TEXT_MLP, reviews).lower(reviews.zeros(2)).shape == (2, 16)
        assert built(TEXT_MLP, reviews, cut="embedding").lower(reviews.zeros(2)).shape == (2, 256, 16)
        assert built(LSTM, WORDS, embedding=64, width=256).lower(WORDS.zeros(2)).shape == (2, 256)
    halves = built(TEXT_MLP, reviews)
    counts = [sum(weight.numel() for weight in half.parameters()) for half in (halves.lower, halves.upper)]
    assert counts == [100 * 16 + 16 * 16 + 16, 2 * 16 + 2]


def test_a_recurrent_model_reads_a_text_the_same_wherever_its_padding_ends() -> None:
    short = replace(WORDS, length=3)
    longer, shorter = (LSTM.build(domain, 3, positions=True, seed=0).lower for domain in (WORDS, short))
    with torch.no_grad():
        far, near = longer(torch.tensor([[2, 3, 4, 0, 0]])), shorter(torch.tensor([[2, 3, 4]]))
        other = longer(torch.tensor([[2, 3, 3, 0, 0]]))
    assert (far - near).norm() < 0.3 * (far - other).norm()


def test_what_is_said_about_places_is_what_is_seen() -> None:
    for positions in (True, False):
        model = TRANSFORMER_MICRO.build(WORDS, 3, positions=positions, seed=0)
        assert model.hides_places is (not positions)
        assert hides_places(model.lower, WORDS) is model.hides_places
    for spec in (LSTM, TEXT_MLP):
        assert hides_places(built(spec, WORDS, cut="embedding").lower, WORDS) is True
    assert hides_places(TABLE_MLP.build(CARS, 3, positions=False, seed=0).lower, CARS) is None


@pytest.mark.parametrize(("field", "value"), [("width", 0), ("depth", 0), ("heads", 3), ("cut", "block9")])
def test_sizes_that_make_no_network_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        replace(TRANSFORMER_MICRO, **{field: value})


def test_a_recurrent_layer_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="kind must be one of lstm, gru, rnn, got 'mamba'"):
        replace(LSTM, kind="mamba")  # type: ignore[arg-type]


@torch.no_grad()
def test_difm_is_a_factorization_machine_of_fields_times_their_factors() -> None:
    """Every pair of fields, one by one, with the factors read off the network's parts."""
    model, rows = built(DIFM, CARS), CARS.random(3, Generator().manual_seed(0))
    fields = built(DIFM, CARS, cut="embedding").lower(rows)
    sent = model.lower(rows)
    factors = sent / fields
    torch.testing.assert_close(factors, factors[..., :1].expand_as(factors), atol=1e-4, rtol=0)
    assert factors[..., 0].std(0).min() > 0  # they depend on the row
    logits = model.upper(sent)
    for row, (nothing, click) in zip(sent, logits, strict=True):
        pairs = sum(row[i, 1:] @ row[j, 1:] for i in range(4) for j in range(i))
        assert nothing == 0
        assert float(click) == pytest.approx(float(row[:, 0].sum() + pairs), abs=1e-6)


@torch.no_grad()
def test_difm_gives_shuffled_fields_the_same_answer() -> None:
    rows, order = CARS.random(3, Generator().manual_seed(0)), torch.tensor([2, 0, 3, 1])
    for cut in ("vector", "factors"):
        model = replace(DIFM, cut=cut).build(CARS, 2, positions=False, seed=0)
        sent = model.lower(rows)
        torch.testing.assert_close(model.upper(sent[:, order]), model.upper(sent), atol=1e-6, rtol=0)
        assert model.hides_places is False  # each field has vectors of its own
    published = built(DIFM, CARS, cut="vector")  # whose server reads the factors by place
    sent = published.lower(rows)
    assert not torch.allclose(published.upper(sent[:, order]), published.upper(sent), atol=1e-6)


def test_difm_says_what_it_cannot_build() -> None:
    with pytest.raises(UsageError, match=r"difm tells two labels apart, and the dataset has 3; .*classes=\[0,1\]"):
        DIFM.build(CARS, 3, positions=True, seed=0)
    with pytest.raises(UsageError, match="use cut=vector or cut=factors"):
        replace(DIFM, cut="embedding").build(CARS, 2, positions=False, seed=0)
