"""The white box wins where it must, fails where it must, and orders, averages, separates and resumes."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.assign import hungarian, pair_costs, sinkhorn, take
from privkit.attacks.base import AttackDiverged, NotApplicable, Query, QueryResult, View
from privkit.attacks.fit import fit
from privkit.attacks.goals.reconstruct import ImageObservation, Reconstruction
from privkit.attacks.inversion.image_fit import ImageFit, Method, Problem
from privkit.attacks.inversion.known_lower import mix
from privkit.attacks.inversion.rounds import averaged
from privkit.attacks.inversion.white_box import WhiteBox
from privkit.attacks.order.place_model import PlaceModel, place_costs
from privkit.domains.images.embedded import Digits, TinyDigits
from tests.attacks.sessions import Killed, Session

BATCH = 10
Defend = Callable[[Tensor, Generator], Tensor]


@cache
def digits(spec: Any, count: int) -> Tensor:
    pool = spec.open(None, download=False, train_images=count).train
    images: Tensor = pool.take(np.random.default_rng(0).permutation(len(pool))[:count]).x
    return images


IMAGES = digits(TinyDigits(), 600)
VICTIMS, AUXILIARY = IMAGES[:20], IMAGES[20:]
FLOOR = (AUXILIARY.mean(0) - VICTIMS).square().mean().item()


class Cells(nn.Module):
    """Tokens [N, 16, p²]: the pixels of p×p patches, turned by a fixed matrix. No place is told from another."""

    def __init__(self, patch: int = 2) -> None:
        super().__init__()
        self.patch = patch
        turn = torch.randn(patch**2, patch**2, generator=Generator().manual_seed(2))
        self.turn = nn.Parameter(torch.linalg.qr(turn).Q)

    def forward(self, x: Tensor) -> Tensor:
        return x.unfold(2, self.patch, self.patch).unfold(3, self.patch, self.patch).reshape(len(x), 16, -1) @ self.turn


def drawn(*layers: Callable[[], nn.Module]) -> nn.Module:
    """A segment whose weights depend on nothing but the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(*[layer() for layer in layers])


def convolution() -> nn.Module:
    return drawn(lambda: nn.Conv2d(1, 6, 3), nn.Tanh)


def plain(smashed: Tensor, draws: Generator) -> Tensor:
    return smashed


def shuffled(smashed: Tensor, draws: Generator) -> Tensor:
    return take(smashed, torch.rand(smashed.shape[:2], generator=draws).argsort(1))


def noisy(smashed: Tensor, draws: Generator) -> Tensor:
    return smashed + 0.3 * torch.randn(smashed.shape, generator=draws)


def known(lower: nn.Module, defend: Defend | None = None, auxiliary: Tensor | None = AUXILIARY) -> ImageObservation:
    def query(images: Tensor, draws: Generator) -> QueryResult:
        assert defend is not None
        return QueryResult(
            view=View(round=0, smashed=defend(lower(images), draws)), members=torch.arange(len(images)).unsqueeze(1)
        )

    asked: Query | None = None if defend is None else query
    return ImageObservation(image_shape=(1, 8, 8), batch_size=BATCH, auxiliary=auxiliary, query=asked, lower=lower)


def views(lower: nn.Module, defend: Defend = plain, rounds: int = 1) -> list[View]:
    draws = Generator().manual_seed(9)
    with torch.no_grad():
        sent = [
            defend(lower(part), draws) for _ in range(rounds) for part in VICTIMS.split(BATCH if rounds == 1 else 20)
        ]
    return [View(round=i, smashed=smashed) for i, smashed in enumerate(sent)]


def run(attack: WhiteBox, lower: nn.Module, defend: Defend = plain, session: Any = None, **kept: Any) -> Reconstruction:
    knowledge = known(lower, defend, **kept)
    return attack.run(replace(knowledge, views=views(lower, defend)), Generator().manual_seed(0), session)


def error(result: Reconstruction) -> float:
    return (result.images - VICTIMS).square().mean().item()


QUICK = WhiteBox(epochs=2, total_variation=0.1, l2=0.0, order="known")


@pytest.mark.parametrize(
    "lower",
    [Cells(), nn.Flatten(), convolution(), drawn(nn.Flatten, lambda: nn.Linear(64, 80))],
    ids=["tokens", "identity", "maps", "vectors"],
)
def test_wins_on_every_form_of_release(lower: nn.Module) -> None:
    result = run(WhiteBox(), lower)
    assert error(result) < 0.02 * FLOOR
    assert result.converged


def test_knows_nothing_of_pure_noise() -> None:
    def noise(smashed: Tensor, draws: Generator) -> Tensor:
        return torch.randn(smashed.shape, generator=draws)

    assert error(run(WhiteBox(), nn.Flatten(), noise)) > 0.97 * FLOOR


@pytest.mark.parametrize("start", ["learned", "mean", "grey", "zero"])
def test_beats_its_own_start(start: Any) -> None:
    lower = drawn(lambda: nn.Conv2d(1, 4, 3), lambda: nn.MaxPool2d(2))
    attack = WhiteBox(epochs=2, start=start)
    assert error(run(attack, lower)) < 0.8 * error(run(replace(attack, epochs=0), lower))


def test_same_seed_same_bits_whatever_the_global_generator() -> None:
    attack = WhiteBox(epochs=1, restarts=2)
    state = torch.random.get_rng_state()
    first = run(attack, Cells(), shuffled)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.rand(3)
    again = run(attack, Cells(), shuffled)
    assert torch.equal(first.images, again.images)
    assert first.curve == again.curve


def test_the_client_is_left_as_it_was() -> None:
    lower = drawn(lambda: nn.Conv2d(1, 4, 3), lambda: nn.BatchNorm2d(4)).train()
    message = [View(round=0, smashed=torch.rand(3, 4, 6, 6))]
    before = [value.clone() for value in lower.state_dict().values()]
    QUICK.run(replace(known(lower, None), views=message), Generator())
    assert lower.training
    assert all(p.requires_grad and p.grad is None for p in lower.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, lower.state_dict().values(), strict=True))


def test_victims_do_not_help_each_other() -> None:
    """Rows are independent: how many are optimized at a time changes nothing but rounding."""
    lower = Cells()
    exact = replace(QUICK, total_variation=0.0)  # the kinks of total variation blow rounding up
    together, apart = run(exact, lower), run(replace(exact, parallel=7), lower)
    torch.testing.assert_close(together.images, apart.images, atol=1e-4, rtol=0)


def test_restarts_keep_the_smallest_objective() -> None:
    """A kinked segment has many minima; of four starts the best explains at least as much as the first alone."""
    lower = drawn(lambda: nn.Conv2d(1, 3, 3), nn.ReLU, lambda: nn.MaxPool2d(2))
    with torch.no_grad():
        smashed = lower(VICTIMS)
    knowledge = known(lower, None, None)
    unexplained = []
    for restarts in (1, 4):
        attack = WhiteBox(epochs=1, restarts=restarts, total_variation=0.0)
        guess = attack.run(
            replace(knowledge, views=[View(round=0, smashed=smashed)]), Generator().manual_seed(0)
        ).images
        with torch.no_grad():
            unexplained.append((lower(guess) - smashed).square().flatten(1).mean(1))
    assert (unexplained[1] <= unexplained[0] + 1e-6).all()
    assert unexplained[1].mean() < 0.9 * unexplained[0].mean()


def test_order_is_optimized_where_the_release_is_shuffled() -> None:
    """By itself it finds that a known order does not hold, and beats the mean image and other orders."""
    images = digits(Digits(), 5000)
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


def test_an_order_over_messages_is_tried_where_images_are_mixed() -> None:
    lower, saved = Told(), Session()
    attack = WhiteBox(epochs=2, total_variation=0.03, l2=0.0)
    found = run(attack, lower, dealt, saved)
    assert saved.state is not None
    assert saved.state["chosen"][0] == "batch"
    assert error(found) < 0.8 * error(run(replace(attack, order="shuffled"), lower, dealt))
    run(attack, lower, shuffled, saved := Session())
    assert saved.state is not None
    assert saved.state["chosen"][0] == "shuffled"


def test_priors_are_chosen_by_attacking_ones_own_images() -> None:
    lower = convolution()
    saved = Session()
    chosen = run(WhiteBox(), lower, noisy, saved)
    assert saved.state is not None
    assert saved.state["chosen"][1:] != [0.1, 0.0]
    assert error(chosen) < 0.9 * error(run(WhiteBox(total_variation=0.1, l2=0.0), lower, noisy))


@pytest.mark.parametrize("order", ["known", "shuffled"])
def test_rounds_of_the_same_victims_are_averaged(order: Any) -> None:
    def defend(smashed: Tensor, draws: Generator) -> Tensor:
        sent = noisy(smashed, draws)
        return sent if order == "known" else shuffled(sent, draws)

    lower, attack = Cells(), WhiteBox(epochs=2, order=order, total_variation=0.1, l2=0.3)
    rounds = views(lower, defend, rounds=8)
    one = attack.run(replace(known(lower, defend), views=rounds[:1]), Generator().manual_seed(0))
    eight = replace(attack, same_victims=True).run(
        replace(known(lower, defend), views=rounds), Generator().manual_seed(0)
    )
    assert len(eight.images) == 8 * len(VICTIMS)
    assert torch.equal(eight.images[:20], eight.images[140:])
    assert (eight.images[:20] - VICTIMS).square().mean() < 0.9 * error(one)


def test_averaging_undoes_orders_first() -> None:
    lower = Cells()
    rounds = views(lower, shuffled, rounds=3)
    torch.testing.assert_close(averaged(rounds, align=True).smashed, rounds[0].smashed)
    assert not torch.allclose(averaged(rounds).smashed, rounds[0].smashed, atol=0.05)


@pytest.mark.parametrize("cells", [1, 36])
def test_members_of_a_mixed_release_are_told_apart(cells: int) -> None:
    lower = drawn(lambda: nn.Conv2d(1, 6, 3))
    draws = Generator().manual_seed(3)
    share = torch.rand(10, 1, cells, generator=draws)
    share = (share > 0.5).float() if cells > 1 else share
    share = torch.cat([share, 1 - share], 1)
    with torch.no_grad():
        smashed = mix(lower(VICTIMS), 2, share)
        apart = lower(VICTIMS).unflatten(0, (10, 2))
    weights = share.view(10, 2, 1, 6, 6) if cells > 1 else share.view(10, 2, 1, 1, 1)
    torch.testing.assert_close(smashed, (apart * weights).sum(1))  # by hand
    view = View(round=0, smashed=smashed, mixed=2, weights=share)
    guess = WhiteBox().run(replace(known(lower, None), views=[view]), Generator().manual_seed(0))
    assert error(guess) < (0.9 if cells == 1 else 0.5) * FLOOR
    with pytest.raises(NotApplicable, match="hidden weights"):
        WhiteBox().run(replace(known(lower, None), views=[replace(view, weights=None)]), Generator())


def test_masked_releases_are_matched_where_they_are_seen() -> None:
    lower = Cells()
    share = (torch.rand(20, 1, 16, generator=Generator().manual_seed(4)) > 0.5).float()
    with torch.no_grad():
        view = View(round=0, smashed=lower(VICTIMS) * share.transpose(1, 2), weights=share)
    guess = WhiteBox(order="known").run(replace(known(lower, None), views=[view]), Generator().manual_seed(0))
    seen = share.view(20, 1, 4, 4).repeat_interleave(2, 2).repeat_interleave(2, 3).bool().expand_as(VICTIMS)
    assert (guess.images - VICTIMS)[seen].square().mean() < 0.05 * FLOOR


def test_the_released_recipe_stays_above_the_floor_on_the_split() -> None:
    """MNIST, a frozen random convolution to 8×12×12: known client, 200 steps of each recipe."""
    images = digits(Digits(), 5000)
    victims, auxiliary = images[:8], images[4000:]
    lower = drawn(lambda: nn.Conv2d(1, 8, 5), lambda: nn.MaxPool2d(2))
    with torch.no_grad():
        view = View(round=0, smashed=lower(victims))
    assert view.smashed.shape == (8, 8, 12, 12)
    knowledge = ImageObservation(image_shape=(1, 28, 28), batch_size=8, auxiliary=auxiliary, lower=lower)
    errors = {}
    for recipe in ("strong", "released"):
        attack = WhiteBox(recipe=recipe, epochs=2)  # type: ignore[arg-type]
        guess = attack.run(replace(knowledge, views=[view]), Generator().manual_seed(0)).images
        errors[recipe] = (guess - victims).square().mean().item()
    assert errors["strong"] < 0.002  # the floor, the mean image of the 4,000, is 0.0681
    assert errors["released"] > 0.0681


@pytest.mark.parametrize(("dies_after", "order"), [(1, "auto"), (2, "shuffled"), (3, "known"), (4, "known")])
def test_goes_on_after_a_kill_bit_for_bit(dies_after: int, order: Any) -> None:
    attack = WhiteBox(epochs=2, parallel=12, restarts=2, total_variation=0.1, l2=0.0, order=order)
    lower, killed = Cells(), Session(dies_after=dies_after)
    with pytest.raises(Killed):
        run(attack, lower, shuffled, killed)
    went_on = Session(state=killed.state)
    resumed, straight = run(attack, lower, shuffled, went_on), run(attack, lower, shuffled)
    assert torch.equal(resumed.images, straight.images)
    assert resumed.curve == straight.curve
    assert went_on.reports == [(done, 4) for done in range(dies_after + 1, 5)]


def test_not_applicable() -> None:
    lower = Cells()
    cases: list[tuple[str, WhiteBox, list[View], ImageObservation]] = [
        ("needs lower", WhiteBox(), views(lower), replace(known(lower), lower=None)),
        ("was released", WhiteBox(), [View(round=0, smashed=torch.rand(3, 9, 4))], known(lower)),
        ("same shape", WhiteBox(), views(lower), known(lower, None, torch.rand(30, 1, 9, 9))),
        ("cannot read images", WhiteBox(), views(lower), known(nn.Linear(7, 4), None)),
        ("nothing to attack", WhiteBox(), [View(round=0, smashed=torch.zeros(3, 16, 0))], known(lower)),
        ("is for tokens", WhiteBox(order="shuffled"), views(nn.Flatten()), known(nn.Flatten())),
    ]
    for match, attack, message, knowledge in cases:
        with pytest.raises(NotApplicable, match=match):
            attack.run(replace(knowledge, views=message), Generator())


def test_stops_where_the_objective_is_no_number() -> None:
    class Exploding(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1) * 1e30

    view = View(round=0, smashed=torch.rand(2, 64))
    with pytest.raises(AttackDiverged, match="the objective is nan after epoch 1"):
        WhiteBox(epochs=2).run(replace(known(Exploding(), None), views=[view]), Generator())


@pytest.mark.parametrize("order", ["known", "shuffled", "batch"])
def test_refuses_a_release_that_is_no_number(order: Any) -> None:
    view = View(round=0, smashed=torch.full((2, 16, 4), float("nan")))
    with pytest.raises(NotApplicable, match="NaN or infinity"):
        WhiteBox(epochs=2, order=order).run(replace(known(Cells(), None), views=[view]), Generator())


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
    whole = place_costs(seen, examples)
    monkeypatch.setattr("privkit.attacks.order.place_model.NUMBERS_AT_ONCE", 1_000)
    torch.testing.assert_close(place_costs(seen, examples), whole, rtol=1e-4, atol=1e-4)


def test_masked_rounds_of_the_same_victims_show_every_cell() -> None:
    lower, draws = Cells(), Generator().manual_seed(4)
    rounds = []
    for number in range(4):
        share = (torch.rand(20, 1, 16, generator=draws) > 0.5).float()
        with torch.no_grad():
            rounds.append(View(round=number, smashed=lower(VICTIMS) * share.transpose(1, 2), weights=share))
    found = averaged(rounds)
    assert found.weights is not None
    assert torch.equal(found.weights, torch.stack([x.weights for x in rounds if x.weights is not None]).amax(0))
    attack = WhiteBox(order="known", same_victims=True)
    guess = attack.run(replace(known(lower, None), views=rounds), Generator().manual_seed(0)).images[:20]
    plainly = attack.run(replace(known(lower, None), views=rounds[:1]), Generator().manual_seed(0)).images
    assert (guess - VICTIMS).square().mean() < 0.4 * (plainly - VICTIMS).square().mean()
    with pytest.raises(NotApplicable, match="in another order"):
        averaged(rounds, align=True)
    with pytest.raises(NotApplicable, match="unmixed"):
        averaged([replace(view, mixed=2) for view in rounds])


def test_bad_specifications() -> None:
    for bad in (
        {"recipe": "weak"},
        {"epochs": -1},
        {"start": "noise"},
        {"bounds": "box"},
        {"order": "sorted"},
        {"learning_rate": 0.0},
        {"learning_rate": float("nan")},
        {"total_variation": -1.0},
        {"l2": float("inf")},
        {"temperature": -1.0},
        {"restarts": 0},
        {"parallel": 0},
    ):
        with pytest.raises(ValueError, match="must be"):
            WhiteBox(**bad)  # type: ignore[arg-type]


def test_output_lies_in_the_unit_range() -> None:
    for bounds in ("sigmoid", "project", "none"):
        low, high = run(replace(QUICK, bounds=bounds), Cells(), noisy).images.aminmax()  # type: ignore[arg-type]
        assert low >= 0
        assert high <= 1


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
    costs = place_costs(seen, examples)
    torch.testing.assert_close(
        costs - costs.mean(2, keepdim=True), expected - expected.mean(2, keepdim=True), rtol=0.02, atol=0.05
    )
