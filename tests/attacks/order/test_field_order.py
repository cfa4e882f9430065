"""Shuffled fields go back to their columns where each column has vectors of its own, and not behind noise."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Generator, Tensor

from privkit.attacks.base import NotApplicable, Query, QueryResult, View
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.goals.reconstruct_controls import controls
from privkit.attacks.inversion.black_box import BlackBox
from privkit.attacks.inversion.decoders.cells import CellDecoder
from privkit.attacks.inversion.ridge import Ridge
from privkit.attacks.order.field_order import FieldOrder, asked_fields
from privkit.defenses.patch_shuffle import PatchShuffle
from privkit.domains.tables.domain import Tables
from privkit.models.tables import DIFM

CARS = Tables(
    dense=("x", "y"), ranges=((0, 1), (0, 1)), categorical=("kind", "color"), values=(("a", "b"), ("c", "d", "e"))
)
LOWER = DIFM.build(CARS, 2, positions=False, seed=0).lower.requires_grad_(False)
OWN, VICTIMS = (CARS.random(count, Generator().manual_seed(count)) for count in (200, 20))


def observed(smashed: Tensor) -> ImageObservation:
    return ImageObservation(
        image_shape=(4,),  # type: ignore[arg-type]
        columns=CARS.column_sizes,
        batch_size=10,
        views=[View(round=number, smashed=part) for number, part in enumerate(smashed.split(10))],
        auxiliary=OWN,
        lower=LOWER,
    )


@pytest.mark.parametrize("by", ["mean", "token"])
def test_a_shuffle_of_fields_is_undone(by: Literal["mean", "token"]) -> None:
    release, receipt = PatchShuffle().apply(LOWER(VICTIMS).view(2, 10, 4, -1), torch.zeros(2, 10), Generator())
    found = FieldOrder(by=by).run(observed(release.smashed.flatten(0, 1)), Generator())
    assert found.permutation is not None
    truth = (receipt.permutation % 4).view(20, 4)
    assert (found.permutation.source % 4 == truth).double().mean() > {"mean": 0.6, "token": 0.85}[by]
    assert (found.permutation.source // 4 == torch.arange(10).repeat(2).unsqueeze(1)).all()
    scores = CARS.scores(VICTIMS, found.images)
    assert scores["categories"].mean() > {"mean": 0.7, "token": 0.9}[by]
    noise = FieldOrder(by=by).run(observed(torch.randn(80, 4, 5, generator=Generator().manual_seed(1))), Generator())
    assert noise.permutation is not None
    assert (noise.permutation.source % 4 == truth.repeat(4, 1)).double().mean() < 0.5


def shuffled_by(lower: Callable[[Tensor], Tensor]) -> Query:
    def query(rows: Tensor, draws: Generator) -> QueryResult:
        release, _ = PatchShuffle().apply(lower(rows).unsqueeze(0), torch.zeros(1, len(rows)), draws)
        members = torch.arange(len(rows)).unsqueeze(1)
        return QueryResult(view=View(round=0, smashed=release.smashed.squeeze(0)), members=members)

    return query


def test_queries_alone_undo_a_shuffle() -> None:
    query = shuffled_by(LOWER)
    seen = observed(torch.cat([query(part, Generator()).view.smashed for part in VICTIMS.split(10)]))
    asked = FieldOrder(source="query").run(replace(seen, lower=None, query=query), Generator()).images
    assert ((asked_fields(OWN, query, 10, Generator()) - LOWER(OWN)).norm(dim=2) < 1e-6).double().mean() > 0.6
    assert CARS.scores(VICTIMS, asked)["categories"].mean() > 0.8
    assert [control.passed for control in controls(FieldOrder(source="query"), seen, 0)] == [True, True]
    with pytest.raises(NotApplicable, match="field_order needs query, which this adversary does not have"):
        FieldOrder(source="query").run(seen, Generator())


def test_a_regression_on_ordered_fields_reads_numbers_that_no_own_record_has() -> None:
    slope, shift = torch.randn(2, 4, 3, generator=Generator().manual_seed(4))
    query = shuffled_by(lambda rows: rows.unsqueeze(2) * slope + 3 * shift)
    own, victims = (torch.rand(count, 4, generator=Generator().manual_seed(count)) for count in (60, 20))
    seen = observed(torch.cat([query(part, Generator()).view.smashed for part in victims.split(10)]))
    seen = replace(seen, query=query, auxiliary=own, columns=(0,) * 4)
    attacks = Ridge(order="recognized"), FieldOrder(source="query"), Ridge()
    ordered, looked_up, released = (
        (attack.run(seen, Generator().manual_seed(0)).images - victims).abs().mean() for attack in attacks
    )
    assert ordered < 0.3 * looked_up < 0.3 * released


def test_its_controls_pass_and_what_has_no_token_a_column_is_refused() -> None:
    assert [control.passed for control in controls(FieldOrder(), observed(LOWER(VICTIMS)), 0)] == [True, True]
    with pytest.raises(NotApplicable, match="each of the 4 columns, but a row's release is one vector: use"):
        FieldOrder().run(observed(LOWER(VICTIMS).flatten(1)), Generator())


@pytest.mark.slow
@torch.no_grad()
def test_a_decoder_of_cells_starts_at_what_is_frequent_and_learns() -> None:
    torch.manual_seed(0)
    tokens = LOWER(OWN)
    decoder = CellDecoder(tokens[:10], OWN, CARS.column_sizes)
    start = decoder.guess(tokens)
    torch.testing.assert_close(start[:, :2], OWN[:, :2].mean(0).expand(200, 2), atol=0.02, rtol=0)
    assert (start[:, 2:] == OWN[:, 2:].mode(0).values).all()
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=decoder.learning_rate)
    for _ in range(60):
        optimizer.zero_grad()
        with torch.enable_grad():
            decoder.objective(tokens, OWN).backward()
        optimizer.step()
    before, after = (CARS.scores(VICTIMS, guess) for guess in (start[:20], decoder.guess(LOWER(VICTIMS))))
    assert after["dense_mse"].mean() < 0.5 * before["dense_mse"].mean()
    assert after["categories"].mean() > 0.8


@pytest.mark.slow
def test_black_box_reads_long_tailed_counts_whose_first_message_shows_no_tail() -> None:
    counts = Tables(
        dense=tuple("abcdef"),
        ranges=((0, 1),) * 6,
        categorical=tuple("ghijklmnop"),
        values=(tuple(map(str, range(60))),) * 10,
    )
    own = counts.random(120, Generator().manual_seed(0))
    own[:, :6] = own[:, :6].pow(20)
    seen = ImageObservation(
        image_shape=(16,),  # type: ignore[arg-type]
        columns=counts.column_sizes,
        batch_size=5,
        views=[View(round=0, smashed=torch.zeros(5, 16, 5))],
        auxiliary=own,
    )
    assert [control.passed for control in controls(BlackBox(), seen, 0)] == [True, True]


def test_options_of_images_are_refused_on_table_rows() -> None:
    seen = observed(LOWER(VICTIMS))
    query = lambda rows, draws: None  # noqa: E731 — never asked
    with pytest.raises(NotApplicable, match="decoder of black_box are for images: leave them out for table rows"):
        BlackBox(decoder="unet", epochs=1).run(
            ImageObservation(**{**vars(seen), "query": query}), Generator().manual_seed(0)
        )
