"""The nearest own record wins where releases are told apart, and learns nothing from noise."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import NotApplicable, Query, QueryResult, View
from privkit.attacks.goals.reconstruct import ImageObservation, Reconstruction
from privkit.attacks.goals.reconstruct_controls import controls
from privkit.attacks.inversion.nearest_record import NearestRecord, _sharper
from privkit.domains.images.embedded import TinyDigits
from privkit.domains.tokens.domain import Tokens

Release = Callable[[Tensor, Generator], View]
WORDS = Tokens(length=6, vocabulary=("", "?", *"abcdefgh"))


def answering(release: Release, order: list[int] | None = None) -> Query:
    """A query whose answer has its rows in another order, if one is given."""

    def query(records: Tensor, draws: Generator) -> QueryResult:
        view = release(records, draws)
        members = torch.arange(len(records)) if order is None else torch.tensor(order)
        return QueryResult(view=replace(view, smashed=view.smashed[members]), members=members.unsqueeze(1))

    return query


def guess(victims: Tensor, own: Tensor, release: Release, query: Query | None = None) -> Reconstruction:
    draws = Generator().manual_seed(5)
    observation = ImageObservation(
        image_shape=tuple(own.shape[1:]),  # type: ignore[arg-type]
        batch_size=4,
        views=[release(part, draws) for part in victims.split(4)],
        auxiliary=own,
        query=query or answering(release),
    )
    return NearestRecord().run(observation, Generator().manual_seed(0))


def digits() -> tuple[Tensor, Tensor]:
    pool = TinyDigits().open(None, download=False, train_images=220).train
    images = pool.take(np.arange(220)).x
    return images[:20], images[20:]


def flat(records: Tensor, draws: Generator) -> View:
    return View(round=0, smashed=records.flatten(1).float())


def masked(records: Tensor, draws: Generator) -> View:
    """Half of the numbers are taken away by public coins, and the rest doubled."""
    numbers = records.flatten(1).float().unsqueeze(2)
    weights = 2.0 * (torch.rand(len(records), 1, numbers.shape[1], generator=draws) < 0.5)
    return View(round=0, smashed=numbers * weights.transpose(1, 2), weights=weights)


def noise(records: Tensor, draws: Generator) -> View:
    return View(round=0, smashed=torch.randn(len(records), 64, generator=draws))


def test_an_own_record_is_found_again_and_others_are_close() -> None:
    victims, own = digits()
    among = torch.cat([own, victims])
    assert torch.equal(guess(victims, among, flat).images, victims)
    assert torch.equal(guess(victims, among, flat, answering(flat, order=[2, 0, 3, 1])).images, victims)
    mean = (own.mean(0) - victims).square().mean()
    assert (guess(victims, own, flat).images - victims).square().mean() < 0.8 * mean
    assert (guess(victims, own, noise).images - victims).square().mean() > mean


def test_passes_and_repeats_link_records_behind_noise() -> None:
    """One pass is confused with other records, and the mean of 16 is not."""
    victims, own = digits()
    draws, among = Generator().manual_seed(5), torch.cat([own, victims])

    def noisy(records: Tensor, draws: Generator) -> View:
        return View(round=0, smashed=records.flatten(1) + torch.randn(len(records), 64, generator=draws))

    seen = ImageObservation(
        image_shape=tuple(own.shape[1:]),  # type: ignore[arg-type]
        batch_size=4,
        views=[noisy(part, draws) for _ in range(16) for part in victims.split(4)],
        auxiliary=among,
        query=answering(noisy),
    )

    def linked(passes: int) -> float:
        views = seen.views[: passes * 5]
        attack = NearestRecord(repeats=100, passes=passes)
        found = attack.run(replace(seen, views=views), Generator().manual_seed(0)).images
        return float((found == victims).flatten(1).all(1).float().mean())

    assert linked(1) <= 0.5  # four other seeds: .10 to .25, and .85 to .95
    assert linked(16) >= 0.65


@pytest.mark.parametrize(("noise", "power"), [("normal", 2.0), ("laplace", 1.0)])
def test_differences_are_summed_as_the_noise_asks(noise: str, power: float) -> None:
    """80 own records that are random signs: of one release each, the best power finds more again."""
    own = torch.randn(80, 400, generator=Generator().manual_seed(1)).sign() * 0.25

    def noisy(records: Tensor, draws: Generator) -> View:
        uniform = torch.rand(records.shape, generator=draws).clamp(1e-6, 1 - 1e-6) - 0.5
        heavy = -uniform.sign() * (1 - 2 * uniform.abs()).log()
        added = torch.randn(records.shape, generator=draws) * 1.5 if noise == "normal" else heavy
        return View(round=0, smashed=records + added)

    assert _sharper(answering(noisy), own, own, 1, Generator().manual_seed(2)) == power


def test_public_masks_are_left_out_of_the_distance() -> None:
    victims, own = digits()
    assert torch.equal(guess(victims, torch.cat([own, victims]), masked).images, victims)


def test_a_sequence_is_put_together_from_the_tokens_of_many() -> None:
    victims, own = (WORDS.random(n, Generator().manual_seed(n)) for n in (8, 40))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        embedding = nn.Embedding(10, 5).requires_grad_(False)

    def by_token(ids: Tensor, draws: Generator) -> View:
        return View(round=0, smashed=embedding(ids))

    assert torch.equal(guess(victims, own, by_token).images, victims)
    assert not (victims.unsqueeze(1) == own).all(2).any()  # none of them is an own record


@pytest.mark.parametrize("form", [(6, 5), (7,)])
def test_controls_on_token_sequences(form: tuple[int, ...]) -> None:
    own = WORDS.random(60, Generator().manual_seed(0))
    seen = ImageObservation(
        image_shape=(6,),  # type: ignore[arg-type]
        batch_size=5,
        views=[View(round=0, smashed=torch.zeros(5, *form))],
        auxiliary=own,
    )
    found = controls(NearestRecord(), seen, 0)
    assert [control.passed for control in found] == [True, True]
    assert "the mean record" in found[0].detail


def test_it_says_what_it_lacks() -> None:
    victims, own = digits()
    with pytest.raises(NotApplicable, match="nearest_record sends 4 own records per round, got 3"):
        guess(victims, own[:3], flat)

    def pairs(records: Tensor, draws: Generator) -> View:
        return replace(flat(records, draws), mixed=2)

    with pytest.raises(NotApplicable, match="each released row holds 2 images"):
        guess(victims, own, pairs)
    with pytest.raises(ValueError, match="repeats must be a whole number >= 1"):
        NearestRecord(repeats=0)
