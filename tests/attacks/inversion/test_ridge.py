"""Ridge inversion reads what is linear at once, learns nothing from noise, and is judged on images left out."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge as Reference
from torch import Generator

from privkit.attacks.base import NotApplicable
from privkit.attacks.goals.reconstruct import ImageObservation, Reconstruction
from privkit.attacks.goals.reconstruct_controls import controls
from privkit.attacks.inversion.ridge import FOLDS, PENALTIES, Ridge, as_numbers, cross_fitted
from privkit.audit.scoring import identified
from privkit.defenses.base import Defense
from privkit.defenses.dp_cutmixsl import DpCutMixSl, DpMixSl
from privkit.defenses.noise import GaussianNoise
from privkit.defenses.none import NoDefense
from privkit.defenses.split_parts import SplitParts
from privkit.domains.tables.domain import Tables
from privkit.wire.channel import black_box_query, record_rounds
from tests.attacks.inversion.mixing import BATCH, FLOOR, VICTIMS, clients, passes, seen
from tests.attacks.sessions import Killed, Session
from tests.attacks.victims import answering
from tests.small import SHAPE, built, digits, random_images

DRAWS = np.random.default_rng(0)
ROWS, TARGETS, OTHER = (torch.as_tensor(DRAWS.normal(size=size)) for size in ((90, 7), (90, 3), (5, 7)))
FOLD = torch.arange(90) % FOLDS


def run(defense: Defense, attack: Ridge, session: Any = None) -> Reconstruction:
    edge = clients(defense)
    return attack.run(seen(edge, passes(edge, attack.passes)), Generator().manual_seed(0), session)


def error(defense: Defense, result: Reconstruction) -> float:
    members = record_rounds(clients(defense), VICTIMS, batch_size=BATCH, seed=1).members
    return (result.images - VICTIMS.x[members])[members >= 0].square().mean().item()


@pytest.mark.parametrize("numbers", [7, 80], ids=["more rows", "more numbers"])
def test_the_regression_is_the_librarys_with_the_penalty_that_guesses_best(numbers: int) -> None:
    draws = np.random.default_rng(numbers)
    rows, new = draws.normal(size=(90, numbers)), draws.normal(size=(5, numbers))
    wrong = {}
    for penalty in PENALTIES:
        own, other = np.empty((90, 3)), []
        for fold in range(FOLDS):
            out = FOLD.numpy() == fold
            rest = rows[~out]
            alpha = penalty * ((rest - rest.mean(0)) ** 2).sum()
            fit = Reference(alpha=alpha).fit(rest, TARGETS.numpy()[~out])
            own[out] = fit.predict(rows[out])
            other.append(fit.predict(new))
        wrong[((own - TARGETS.numpy()) ** 2).mean()] = own, np.mean(other, 0)
    fitted = cross_fitted(torch.as_tensor(rows), TARGETS, FOLD, torch.as_tensor(new))
    own, other_mean = wrong[min(wrong)]
    assert fitted.error == pytest.approx(min(wrong))
    np.testing.assert_allclose(fitted.own, own, atol=1e-8)
    np.testing.assert_allclose(fitted.other, other_mean, atol=1e-8)


CARS = Tables(dense=("x",), ranges=((0, 1),), categorical=("kind", "color"), values=(("a", "b"), ("c", "d", "e")))
CODE = torch.randn(6, 9, generator=Generator().manual_seed(3))


def test_reads_every_cell_of_table_rows_from_a_linear_release() -> None:
    def released(rows: torch.Tensor, draws: Generator) -> torch.Tensor:
        return as_numbers(rows, CARS.column_sizes) @ CODE

    records, query = CARS.random(150, Generator().manual_seed(0)), answering(released)
    private, own = records[:30], records[30:]
    views = [query(private, Generator()).view]
    known: dict[str, Any] = {"image_shape": (3,), "columns": CARS.column_sizes, "batch_size": 30, "views": views}
    seen = ImageObservation(auxiliary=own, query=query, **known)
    torch.testing.assert_close(Ridge(epochs=0).run(seen, Generator()).images, private, atol=1e-3, rtol=0)
    assert [control.passed for control in controls(Ridge(), seen, 0)] == [True, True]
    many = replace(seen, columns=(0, 10**6, 3))
    with pytest.raises(NotApplicable, match=r"ridge regresses 1,000,004 numbers.*takes too much memory: take black"):
        Ridge().run(many, Generator())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_reads_an_image_that_stands_in_the_small_components_of_a_release(seed: int) -> None:
    """450 loud numbers hold noise alone; a regression on the 400 largest components would see nothing else."""
    images = random_images(1_000, 10, seed=seed).x
    turn = torch.randn(64, 100, generator=Generator().manual_seed(seed)) / 8

    def released(part: torch.Tensor, draws: Generator) -> torch.Tensor:
        loud = 10 * torch.randn(len(part), 450, generator=draws)
        return torch.cat([loud, 0.1 * part.flatten(1) @ turn], 1)

    query = answering(released)
    views = [query(images[:100], Generator().manual_seed(seed)).view]
    seen = ImageObservation(image_shape=SHAPE, batch_size=100, auxiliary=images[100:], query=query, views=views)
    wrong = [
        (attack.run(seen, Generator().manual_seed(seed)).images - images[:100]).square().mean()
        for attack in (Ridge(epochs=0), Ridge(epochs=0, components=400))
    ]
    floor = (images[100:].mean(0) - images[:100]).square().mean()
    assert wrong[0] < 0.5 * floor
    assert wrong[1] > 0.9 * floor


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_one_part_of_channels_gives_the_image_and_one_part_of_places_its_own_pixels(seed: int) -> None:
    """Pixels are independent here, so that nobody can guess the other places better than by the mean."""
    own, private = (random_images(400, 10, seed=10 * seed + number).x for number in (1, 2))
    wrong = {}
    for by in ("channels", "places"):
        edge, _ = built(SplitParts(parts=4, by=by), seed=seed)  # type: ignore[arg-type]
        edge.held = ("part_1",)
        query = black_box_query(edge)
        views = [query(private[:100], Generator()).view]
        asked = ImageObservation(views=views, batch_size=100, image_shape=SHAPE, auxiliary=own, query=query)
        guess = Ridge(repeats=1, epochs=0).run(asked, Generator().manual_seed(seed)).images
        wrong[by] = (guess - private[:100]).square().mean((0, 1, 3)).view(4, 2).mean(1)  # of each row of patches
    floor = (own.mean(0) - private[:100]).square().mean()
    assert wrong["channels"].max() < 0.01 * floor
    assert wrong["places"][0] < 0.01 * floor
    assert wrong["places"][1:].min() > 0.9 * floor


def test_a_guess_at_an_own_record_knows_nothing_of_it() -> None:
    lied = torch.where((FOLD == 1).unsqueeze(1), TARGETS + 100, TARGETS)
    true, false = (cross_fitted(ROWS, targets, FOLD, OTHER).own[FOLD == 1] for targets in (TARGETS, lied))
    assert (true - false).abs().max() < 50  # with its own targets, it would follow them


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("defense", "attack"),
    [
        (NoDefense(), Ridge(epochs=0)),
        (DpMixSl(sigma=0.05, sigma_labels=None, bound=None), Ridge(passes=8, epochs=0, components=100)),
        (DpCutMixSl(sigma=0.05, sigma_labels=None, bound=None), Ridge(passes=8, epochs=0, components=100)),
    ],
    ids=["none", "dp_mixsl", "dp_cutmixsl"],
)
def test_wins_on_an_undefended_edge_and_on_mixed_rows_of_several_passes(defense: Defense, attack: Ridge) -> None:
    assert error(defense, run(defense, attack)) < 0.4 * FLOOR


def test_is_at_the_floor_on_noise() -> None:
    defense = GaussianNoise(sigma=300, clip=None)
    assert error(defense, run(defense, Ridge(epochs=2))) > 0.95 * FLOOR


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("bend", "helps"), [(torch.relu, True), (torch.clone, False)], ids=["bent", "linear"])
def test_the_network_draws_what_no_line_gives_and_spoils_nothing_where_a_line_gives_all(bend: Any, helps: bool) -> None:
    images = digits(1_640).x
    victims, own = images[:40], images[40:]
    turn = torch.randn(64, 48 if helps else 96, generator=Generator().manual_seed(0)) / 4
    query = answering(lambda images, draws: bend((images - 0.5).flatten(1) @ turn))
    views = [query(victims, Generator()).view]
    observation = ImageObservation(image_shape=(1, 8, 8), batch_size=20, auxiliary=own, query=query, views=views)
    alone, refined = (
        Ridge(epochs=epochs, repeats=1, width=256).run(observation, Generator().manual_seed(0)) for epochs in (0, 12)
    )
    errors = [(guess.images - victims).square().mean() for guess in (alone, refined)]
    assert refined.curve[0] == alone.curve[0]
    assert (errors[1] < 0.98 * errors[0]) if helps else (errors[1] < 1.02 * errors[0] + 1e-4)
    assert "of the network's correction was applied" in refined.note


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_contrast_identifies_more_images_behind_a_loss_that_leaves_guesses_pale(seed: int) -> None:
    images = digits(1_700)
    turn = torch.randn(64, 5, generator=Generator().manual_seed(seed)) / 8
    query = answering(lambda part, draws: (part - 0.5).flatten(1) @ turn)
    victims, own = images.x.roll(100 * seed, 0).split([100, 1_600])
    views = [query(victims, Generator()).view]
    seen = ImageObservation(image_shape=(1, 8, 8), batch_size=100, auxiliary=own, query=query, views=views)
    found = [
        identified(
            images.domain,
            victims,
            Ridge(repeats=1, width=256, epochs=30, contrast=contrast).run(seen, Generator().manual_seed(seed)).images,
        ).mean()
        for contrast in (0.0, 1.0)
    ]
    assert found[1] > found[0] + 0.05, found


def test_goes_on_after_a_kill_bit_for_bit() -> None:
    attack = Ridge(epochs=4, width=64)
    whole = run(NoDefense(), attack)
    session = Session(dies_after=2)
    with pytest.raises(Killed):
        run(NoDefense(), attack, session)
    resumed = run(NoDefense(), attack, Session(state=session.state))
    assert torch.equal(resumed.images, whole.images)
    assert resumed.curve == whole.curve
    session = Session(dies_after=4)  # behind the last epoch
    with pytest.raises(Killed):
        run(NoDefense(), attack, session)
    assert torch.equal(run(NoDefense(), attack, Session(state=session.state)).images, whole.images)


def test_few_own_images_are_refused() -> None:
    edge = clients(NoDefense())
    observation = seen(edge, passes(edge, 1))
    assert observation.auxiliary is not None
    few = type(observation)(**{**vars(observation), "auxiliary": observation.auxiliary[:50]})
    with pytest.raises(NotApplicable, match="it needs at least 60, got 50"):
        Ridge().run(few, Generator())
