"""The tokens that a row holds are read as well as a line can read them, and noise tells nothing."""

from collections.abc import Callable
from itertools import combinations

import pytest
import torch
from torch import Generator, Tensor

from privkit.attacks.assign import cheapest_in_order
from privkit.attacks.base import NotApplicable, QueryResult, View
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.inversion import seen_tokens
from privkit.attacks.inversion.ridge import Ridge
from privkit.attacks.inversion.seen_tokens import SeenTokens
from tests.attacks.sessions import Killed, Session
from tests.small import SHAPE, digits

IMAGES = digits(800).x
OWN, PRIVATE, BATCH = IMAGES[:700], IMAGES[700:], 50
FLOOR = float((OWN.mean(0) - PRIVATE).square().mean())
TOKENS, WIDTH = 6, 8


def tokens_of(images: Tensor, seed: int, far: float = 0.0) -> Tensor:
    """Six tokens of eight numbers, each of which sees the whole image; `far` moves those of one place together."""
    draws = Generator().manual_seed(seed)
    weight = torch.randn(64, TOKENS, WIDTH, generator=draws) / 8
    return torch.einsum("np,ptd->ntd", images.flatten(1), weight) + far * torch.randn(TOKENS, WIDTH, generator=draws)


def kept(rows: int, count: int, draws: Generator) -> Tensor:
    return torch.rand(rows, TOKENS, generator=draws).argsort(1).argsort(1) < count


def observation(release: Callable[[Tensor, Generator], View], seed: int = 0, own: Tensor = OWN) -> ImageObservation:
    def query(images: Tensor, draws: Generator) -> QueryResult:
        return QueryResult(view=release(images, draws), members=torch.arange(len(images)).unsqueeze(1))

    draws = Generator().manual_seed(seed + 100)
    views = [release(part, draws) for part in PRIVATE.split(BATCH)]
    return ImageObservation(views=views, batch_size=BATCH, image_shape=SHAPE, auxiliary=own, query=query)


def masked(count: int, seed: int, noise: float = 0.0, signal: float = 1.0) -> Callable[[Tensor, Generator], View]:
    def release(images: Tensor, draws: Generator) -> View:
        clean = signal * tokens_of(images, seed)
        clean = clean + noise * torch.randn(clean.shape, generator=draws)
        return View(round=0, smashed=clean * kept(len(images), count, draws).unsqueeze(2))

    return release


def dropped(count: int, seed: int, far: float) -> Callable[[Tensor, Generator], View]:
    def release(images: Tensor, draws: Generator) -> View:
        there = kept(len(images), count, draws)
        return View(round=0, smashed=tokens_of(images, seed, far)[there].view(len(images), count, WIDTH), whole=False)

    return release


def error(attack: SeenTokens | Ridge, seen: ImageObservation) -> float:
    """Of the floor, the error of the mean image."""
    guess = attack.run(seen, Generator().manual_seed(0)).images
    return float((guess - PRIVATE).square().mean()) / FLOOR


def linear_optimum(seen: ImageObservation, seed: int) -> float:
    """The error, of the floor, of least squares for each row apart, by one who has all tokens of own images."""
    own, tokens = OWN.flatten(1), tokens_of(OWN, seed)
    rows = torch.cat([view.smashed for view in seen.views])
    guesses = []
    for row in rows:
        there = row.ne(0).any(1)
        known = torch.cat([tokens[:, there].flatten(1), torch.ones(len(own), 1)], 1).double()
        along = torch.linalg.lstsq(known, own.double()).solution
        guesses.append(torch.cat([row[there].flatten(), torch.ones(1)]).double() @ along)
    return float((torch.stack(guesses).clamp(0, 1) - PRIVATE.flatten(1)).square().mean()) / FLOOR


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_guesses_from_the_tokens_of_a_row_as_well_as_the_best_line(seed: int) -> None:
    seen = observation(masked(2, seed), seed)
    found = error(SeenTokens(), seen)
    assert found < 1.03 * linear_optimum(seen, seed)
    assert found < 0.9 * error(Ridge(epochs=0), seen)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_dropped_tokens_are_put_in_their_places(seed: int) -> None:
    known = error(SeenTokens(), observation(masked(3, seed), seed))
    assert error(SeenTokens(), observation(dropped(3, seed, far=2.0), seed)) < 1.1 * known


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("seed", [1, 0, 2])
def test_the_network_draws_better_than_the_line(seed: int) -> None:
    """By a tenth of the error (four seeds: .87 to .90 of it)."""
    seen = observation(masked(2, seed), seed)
    assert error(SeenTokens(), seen) < 0.95 * error(SeenTokens(epochs=0), seen)


def test_goes_on_after_a_kill_bit_for_bit() -> None:
    attack, seen = SeenTokens(repeats=4, epochs=3, width=64), observation(masked(3, 0))
    whole = attack.run(seen, Generator().manual_seed(0))
    for saved in (1, 3):  # 3 epochs are all
        session = Session(dies_after=saved)
        with pytest.raises(Killed):
            attack.run(seen, Generator().manual_seed(0), session)
        again = attack.run(seen, Generator().manual_seed(0), Session(state=session.state))
        assert torch.equal(again.images, whole.images)
        assert again.curve == whole.curve


def test_each_image_of_a_row_is_guessed_from_its_own_tokens() -> None:
    """Two images share a row by a public mask, also where it scales what it keeps."""

    def query(images: Tensor, draws: Generator) -> QueryResult:
        first = kept(len(images) // 2, 3, draws)
        weights = 0.5 * torch.stack([first, ~first], 1).float()
        rows = (tokens_of(images, 0).unflatten(0, (-1, 2)) * weights.unsqueeze(3)).sum(1)
        members = torch.arange(len(images)).view(-1, 2)
        return QueryResult(view=View(round=0, smashed=rows, mixed=2, weights=weights), members=members)

    draws = Generator().manual_seed(7)
    views = [query(part, draws).view for part in PRIVATE.split(BATCH)]
    mixed = ImageObservation(views=views, batch_size=BATCH, image_shape=SHAPE, auxiliary=OWN, query=query)
    assert error(SeenTokens(), mixed) < 1.1 * error(SeenTokens(), observation(masked(3, 0)))


def test_maps_are_read_position_by_position() -> None:
    def release(images: Tensor, draws: Generator) -> View:
        clean = tokens_of(images, 0).transpose(1, 2).unflatten(2, (2, 3))
        return View(round=0, smashed=clean * kept(len(images), 3, draws).view(-1, 1, 2, 3))

    assert error(SeenTokens(), observation(release)) < 1.1 * error(SeenTokens(), observation(masked(3, 0)))


def test_a_row_without_tokens_gets_the_mean_image() -> None:
    """The network sees a tenth fewer own images than the mean does."""
    seen = observation(masked(0, 0))
    assert error(SeenTokens(repeats=2, epochs=0), seen) == pytest.approx(1, abs=1e-5)
    assert error(SeenTokens(repeats=2), seen) == pytest.approx(1, abs=1e-3)


def test_a_constant_release_shows_the_mean_image() -> None:
    seen = observation(masked(3, 0, signal=0.0))
    assert error(SeenTokens(repeats=2, epochs=0), seen) == pytest.approx(1, abs=1e-5)
    assert error(SeenTokens(repeats=2), seen) == pytest.approx(1, abs=1e-3)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_pure_noise_shows_the_mean_image(seed: int) -> None:
    assert 0.95 < error(SeenTokens(), observation(masked(3, seed, noise=1.0, signal=0.0), seed)) < 1.1


def test_what_it_cannot_read_is_refused() -> None:
    def mixture(images: Tensor, draws: Generator) -> View:
        weights = torch.full((len(images), 2, 1), 0.5)
        return View(round=0, smashed=tokens_of(images, 0), mixed=2, weights=weights)

    def noisy(images: Tensor, draws: Generator) -> View:
        view = dropped(3, 0, 1.0)(images, draws)
        return View(round=0, smashed=view.smashed + torch.randn(view.smashed.shape, generator=draws), whole=False)

    def shuffled(images: Tensor, draws: Generator) -> View:
        view = dropped(3, 0, 1.0)(images, draws)
        return View(round=0, smashed=view.smashed[:, torch.randperm(3, generator=draws)], whole=False)

    def broken(images: Tensor, draws: Generator) -> View:
        attacked = any(torch.equal(images, part) for part in PRIVATE.split(BATCH))
        return View(round=0, smashed=tokens_of(images, 0) / float(attacked))

    def vectors(images: Tensor, draws: Generator) -> View:
        return View(round=0, smashed=tokens_of(images, 0).flatten(1))

    for release, why in (
        (mixture, "a sum of several images"),
        (noisy, "were new: noise was added"),
        (shuffled, "came in both orders"),
        (broken, "hold NaN"),
        (vectors, "releases are vectors"),
    ):
        with pytest.raises(NotApplicable, match=why):
            SeenTokens(repeats=2).run(observation(release), Generator().manual_seed(0))
    with pytest.raises(NotApplicable, match="at least 100 own images, got 99"):
        SeenTokens().run(observation(masked(3, 0), own=OWN[:99]), Generator().manual_seed(0))


@pytest.mark.parametrize("length", [1, 3, 5])
def test_places_in_order_are_the_cheapest_of_all(length: int) -> None:
    costs = torch.randn(20, length, 5, generator=Generator().manual_seed(length))
    every = torch.tensor(list(combinations(range(5), length)))
    totals = torch.stack([costs[:, torch.arange(length), places].sum(1) for places in every], 1)
    assert torch.equal(cheapest_in_order(costs), every[totals.argmin(1)])


def test_copies_are_sent_and_never_help_to_guess_their_own_image(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, fitted = list[Tensor](), list[Tensor]()
    fit = seen_tokens.Covariances.of

    def recorded(tokens: Tensor, images: Tensor, most: int) -> seen_tokens.Covariances:
        fitted.append(images)
        return fit(tokens, images, most)

    def release(images: Tensor, draws: Generator) -> View:
        sent.append(images)
        return masked(3, 0)(images, draws)

    monkeypatch.setattr(seen_tokens.Covariances, "of", recorded)
    monkeypatch.setattr(seen_tokens, "deformed", lambda images, draws: images.clone())
    own = OWN[:300]
    SeenTokens(copies=2, epochs=0).run(observation(release, own=own), Generator().manual_seed(0))
    assert len(torch.cat(sent[len(PRIVATE) // BATCH :]).flatten(1).unique(dim=0)) == len(own)
    assert [len(images) for images in fitted] == [3 * 225] * 4 + [3 * 300]
    assert all(len(images.unique(dim=0)) == 225 for images in fitted[:4])
