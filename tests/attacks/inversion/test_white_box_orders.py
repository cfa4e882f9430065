"""The white box on shuffled releases."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.assign import hungarian, pair_costs, sinkhorn, take
from privkit.attacks.base import View
from privkit.attacks.fit import fit
from privkit.attacks.inversion import white_box
from privkit.attacks.inversion.image_fit import ImageFit, Method, PlaceModel, Problem
from privkit.attacks.inversion.rounds import averaged
from privkit.attacks.inversion.white_box import WhiteBox
from privkit.domains.images.embedded import Digits
from tests.attacks.inversion.cells import (
    AUXILIARY,
    BATCH,
    FLOOR,
    VICTIMS,
    Cells,
    error,
    known,
    plain,
    run,
    shuffled,
    views,
)
from tests.attacks.sessions import Session
from tests.small import digits


@pytest.mark.slow
def test_order_is_optimized_where_the_release_is_shuffled() -> None:
    """By itself it finds that a known order does not hold, and beats the mean image and other orders."""
    images = digits(5000, Digits()).x
    victims, auxiliary = images[:12], images[4000:]
    lower, draws = Cells(7), Generator().manual_seed(9)
    with torch.no_grad():
        view = View(round=0, smashed=shuffled(lower(victims), draws))
    knowledge = replace(known(lower, shuffled, auxiliary), image_shape=(1, 28, 28))
    errors = {}
    for order in ("auto", "known", "guessed"):
        attack = WhiteBox(epochs=1, total_variation=0.1, l2=0.0, order=order)  # type: ignore[arg-type]
        guess = attack.run(replace(knowledge, views=[view]), Generator().manual_seed(0)).images
        errors[order] = (guess - victims).square().mean().item()
    assert errors["auto"] < 0.8 * (auxiliary.mean(0) - victims).square().mean()
    assert errors["auto"] < 0.5 * min(errors["known"], errors["guessed"])


def test_an_order_that_was_kept_is_taken_as_known() -> None:
    saved = Session()
    run(WhiteBox(epochs=1, total_variation=0.1, l2=0.0), Cells(), plain, saved)
    assert saved.state is not None
    assert saved.state["chosen"][0] == "known"


def test_a_place_that_tokens_betray_is_found_without_auxiliary_images() -> None:
    """With position embeddings, matching alone puts most tokens back."""

    class Placed(Cells):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + torch.arange(16.0).view(16, 1)

    lower = Placed()
    attack = WhiteBox(order="shuffled", total_variation=0.0)
    draws = Generator().manual_seed(9)
    with torch.no_grad():
        view = View(round=0, smashed=shuffled(lower(VICTIMS), draws))
    guess = attack.run(replace(known(lower, None, None), views=[view]), Generator().manual_seed(0)).images
    assert (guess - VICTIMS).square().mean() < 0.2 * FLOOR


def test_a_whole_batch_can_be_put_in_order_where_tokens_betray_image_and_place() -> None:
    start = VICTIMS[:4] * 0.9 + 0.05
    lower = Cells()
    with torch.no_grad():
        tokens = lower(VICTIMS[:4])
    order = torch.randperm(64, generator=Generator().manual_seed(1))
    released = tokens.view(64, 4)[order].view(4, 16, 4)
    method = Method(epochs=1, learning_rate=0.3, decay=True, bounds="sigmoid", temperature=0.0, order="batch")
    problem = Problem(smashed=released, start=start, unit=released.var(), group=4)
    training = ImageFit(lower, problem, method, (0.0, 0.0), 0)
    fit(training, method.epochs)
    images, _ = training.guess()
    assert (images - VICTIMS[:4]).square().mean() < 0.1 * (start - VICTIMS[:4]).square().mean() + 1e-3


class Told(Cells):
    """Every token tells its place and, loudly, the brightness of its image."""

    def forward(self, x: Tensor) -> Tensor:
        places = 3 * torch.randn(16, 4, generator=Generator().manual_seed(5))
        return torch.cat([super().forward(x) + places, 30 * x.mean((1, 2, 3)).view(-1, 1, 1).expand(-1, 16, 1)], 2)


def dealt(smashed: Tensor, draws: Generator) -> Tensor:
    """Batch shuffling of one message with keep=.5."""
    b, t, d = smashed.shape
    rows = torch.rand(b, t, generator=draws).argsort(1) + t * torch.arange(b).unsqueeze(1)
    pool = rows[:, t // 2 :].flatten()
    rows = torch.cat([rows[:, : t // 2], pool[torch.randperm(len(pool), generator=draws)].view(b, -1)], 1)
    return smashed.reshape(b * t, d)[rows.gather(1, torch.rand(b, t, generator=draws).argsort(1))]


def test_messages_of_a_view_are_put_in_order_apart() -> None:
    attack = WhiteBox(epochs=1, order="batch", total_variation=0.0, l2=0.0)
    two, knowledge = views(Told(), dealt), known(Told(), None)
    apart = attack.run(replace(knowledge, views=two), Generator().manual_seed(0)).images
    one = View(round=0, smashed=torch.cat([view.smashed for view in two]), messages=2)
    together = attack.run(replace(knowledge, views=[one]), Generator().manual_seed(0)).images
    torch.testing.assert_close(together, apart, atol=1e-3, rtol=0)
    mixed = attack.run(replace(knowledge, views=[replace(one, messages=1)]), Generator().manual_seed(0)).images
    assert (mixed - apart).abs().mean() > 0.01


@pytest.mark.slow
def test_an_order_over_messages_is_tried_where_images_are_mixed() -> None:
    lower, saved = Told(), Session()
    attack = WhiteBox(epochs=2, total_variation=0.03, l2=0.0)
    found = run(attack, lower, dealt, saved)
    assert saved.state is not None
    assert saved.state["chosen"][0] == "batch"
    errors = {"batch": error(found), "shuffled": error(run(replace(attack, order="shuffled"), lower, dealt))}
    for order, seed in product(errors, (1, 2)):
        seen = replace(known(lower, dealt), views=views(lower, dealt, seed=seed))
        named = replace(attack, order=order)  # type: ignore[arg-type]
        errors[order] += error(named.run(seen, Generator().manual_seed(seed)))
    assert errors["batch"] < 0.8 * errors["shuffled"]
    run(attack, lower, shuffled, saved := Session())
    assert saved.state is not None
    assert saved.state["chosen"][0] == "shuffled"


@pytest.mark.parametrize("best", ["known", "shuffled", "batch"])
def test_the_order_that_draws_own_images_best_is_taken(best: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Drawn:
        """In place of the fit: grey by the best order, and far off by the others."""

        def __init__(self, lower: nn.Module, problem: Any, method: Any, *rest: Any) -> None:
            self.images = torch.full_like(problem.start, 0.5 if method.order == best else 9.0)

        def epoch(self, number: int) -> float:
            return 0.0

        def state_dict(self) -> dict[str, Any]:
            return {}

        rest = state_dict

        def guess(self) -> tuple[Tensor, Tensor]:
            return self.images, torch.zeros(len(self.images))

    monkeypatch.setattr(white_box, "ImageFit", Drawn)
    monkeypatch.setattr(white_box, "_mixes_images", lambda *given: True)
    saved = Session()
    run(WhiteBox(), Cells(), shuffled, saved)
    assert saved.state["chosen"][0] == best


def test_averaging_undoes_orders_first() -> None:
    lower = Cells()
    rounds = views(lower, shuffled, rounds=3)
    torch.testing.assert_close(averaged(rounds, align=True).smashed, rounds[0].smashed)
    assert not torch.allclose(averaged(rounds).smashed, rounds[0].smashed, atol=0.05)


def test_places_are_learned_once_for_all_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """And some tokens at a time, with the same costs."""
    learned: list[int] = []
    fitted = PlaceModel.fit

    def fit(examples: Tensor) -> PlaceModel:
        learned.append(len(examples))
        return fitted(examples)

    monkeypatch.setattr(PlaceModel, "fit", fit)
    run(WhiteBox(order="shuffled", epochs=0, parallel=4), Cells())
    assert learned == [len(AUXILIARY) - BATCH]


def test_costs_of_places_do_not_depend_on_how_many_are_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = Generator().manual_seed(0)
    examples, seen = torch.randn(50, 9, 12, generator=draws), torch.randn(30, 9, 12, generator=draws)
    whole = PlaceModel.fit(examples).costs(seen)
    monkeypatch.setattr("privkit.attacks.inversion.image_fit.PLACE_NUMBERS", 1_000)
    torch.testing.assert_close(PlaceModel.fit(examples).costs(seen), whole, rtol=1e-4, atol=1e-4)


def test_plans_are_doubly_stochastic_and_sharpen_to_the_assignment() -> None:
    costs = torch.rand(5, 7, 7, generator=Generator().manual_seed(1))
    plan = sinkhorn(-costs / 0.3, 200).exp()
    torch.testing.assert_close(plan.sum(1), torch.ones(5, 7))
    torch.testing.assert_close(plan.sum(2), torch.ones(5, 7))
    assert torch.equal(sinkhorn(-costs / 1e-3, 2000).argmax(1), hungarian(costs))


def test_assignments_undo_an_order() -> None:
    tokens = torch.rand(3, 9, 4, generator=Generator().manual_seed(1))
    mixed_up = shuffled(tokens, Generator().manual_seed(2))
    assert torch.equal(take(mixed_up, hungarian(pair_costs(mixed_up, tokens))), tokens)


def test_places_are_scored_by_the_gaussian_likelihood() -> None:
    """In two channels and without shrinkage to speak of, differences over places equal torch's own densities."""
    draws = Generator().manual_seed(1)
    scale = torch.tensor([[1.0, 0.2], [0.5, 2.0], [1.5, 1.0]])
    examples = torch.randn(4000, 3, 2, generator=draws) * scale + torch.tensor([[0.0, 3.0], [4.0, 0.0], [-3.0, 1.0]])
    seen = torch.randn(5, 3, 2, generator=draws)
    covariance = torch.stack([torch.cov(examples[:, t].T, correction=0) for t in range(3)])
    shrunk = 0.9 * covariance + 0.1 * covariance.mean(0)
    densities = torch.distributions.MultivariateNormal(examples.mean(0), shrunk)
    expected = -densities.log_prob(seen.unsqueeze(2))
    costs = PlaceModel.fit(examples).costs(seen)
    torch.testing.assert_close(
        costs - costs.mean(2, keepdim=True), expected - expected.mean(2, keepdim=True), rtol=0.02, atol=0.05
    )
