"""FSHA must win where clients can be led, fail where the release holds nothing, and end honestly."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks import fsha as module
from privkit.attacks.base import AttackDiverged, Knowledge, NotApplicable, Reconstruction, View
from privkit.attacks.fsha import FSHA
from privkit.attacks.fsha_networks import build
from privkit.attacks.fsha_server import ByLabel, Server, range_of
from privkit.attacks.gan import Norm, between, gradient_penalty, kinked
from privkit.data.embedded import TinyDigits

POOL = TinyDigits().open(None, download=False, train_images=1_797).train
TAKEN = POOL.take(np.random.default_rng(0).permutation(len(POOL)))
PRIVATE, OWN, LABELS, OWN_LABELS = TAKEN.x[:1_000], TAKEN.x[1_000:], TAKEN.y[:1_000], TAKEN.y[1_000:]
VICTIMS = PRIVATE[:100]
FLOOR = (OWN.mean(0) - VICTIMS).square().mean().item()
BATCH = 32


class Small(nn.Module):
    """Two layers that are trained: convolutions to a 4×4 grid, or linear ones to a vector of 16."""

    def __init__(self, form: str = "maps") -> None:
        super().__init__()
        self.form = form
        layers: list[nn.Module] = [nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 4, 3, 1, 1)]
        if form == "vector":
            layers = [nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        released: Tensor = self.layers(x)
        return released.flatten(2).transpose(1, 2) if self.form == "tokens" else released


class Noise(nn.Module):
    """Releases that hold nothing of the images."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.draws = Generator().manual_seed(5)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * torch.randn(len(x), 4, 4, 4, generator=self.draws)


class Clients:
    """One client in training, batches by number of the round."""

    def __init__(self, lower: nn.Module, spoil: Callable[[int, Tensor], Tensor] = lambda done, x: x) -> None:
        self.lower, self.spoil, self.done = lower, spoil, 0
        self.optimizer = torch.optim.Adam(lower.parameters(), lr=2e-3)

    def round(self, answer: Callable[[View], Tensor]) -> None:
        rows = torch.randint(len(PRIVATE), (BATCH,), generator=Generator().manual_seed(self.done))
        release = self.spoil(self.done, self.lower(PRIVATE[rows]))
        gradient = answer(View(round=self.done, smashed=release.detach(), labels=LABELS[rows]))
        assert gradient.shape == release.shape
        self.optimizer.zero_grad()
        release.backward(gradient)
        self.optimizer.step()
        self.done += 1

    @torch.no_grad()
    def views(self) -> list[View]:
        return [View(round=i, smashed=self.lower(x)) for i, x in enumerate(VICTIMS.split(50))]

    def state_dict(self) -> dict[str, Any]:
        return {"lower": self.lower.state_dict(), "optimizer": self.optimizer.state_dict(), "done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.lower.load_state_dict(state["lower"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.done = state["done"]


class Memory:
    """A session that keeps what was saved last, and can be cut off."""

    def __init__(self, until: float = math.inf) -> None:
        self.kept: dict[str, Any] | None = None
        self.until, self.reports = until, list[tuple[int, int, float]]()

    def load(self) -> dict[str, Any] | None:
        return self.kept

    def save(self, state: dict[str, Any]) -> None:
        self.kept = state

    def report(self, done: int, total: int, value: float) -> None:
        self.reports.append((done, total, value))
        if done >= self.until:
            raise KeyboardInterrupt


def client(make: Callable[[], nn.Module] = Small, **options: Any) -> Clients:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Clients(make(), **options)


def known(clients: Clients | None, **changes: Any) -> Knowledge:
    own = Knowledge(
        image_shape=(1, 8, 8), batch_size=BATCH, auxiliary=OWN, auxiliary_labels=OWN_LABELS, clients=clients
    )
    return replace(own, **changes)


def attacked(attack: FSHA, clients: Clients, seed: int = 0, session: Memory | None = None, **changes: Any) -> Any:
    views = [replace(view, labels=torch.zeros(50, dtype=torch.int64)) for view in clients.views()]
    return attack.run(views, known(clients, **changes), Generator().manual_seed(seed), session)


def error(result: Reconstruction) -> float:
    return (result.images - VICTIMS).square().mean().item()


QUICK = FSHA(epochs=3, width=8, blocks=1, learning_rate=3e-3)
ONE = FSHA(epochs=1, width=2, blocks=1)


@pytest.fixture
def ten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten rounds an epoch, for what shows after a few."""
    monkeypatch.setattr(module, "ROUNDS_AN_EPOCH", 10)


def test_clients_that_can_be_led_give_their_images_away() -> None:
    result = attacked(QUICK, client())
    start = attacked(replace(QUICK, epochs=0), client())
    assert error(result) < 0.5 * FLOOR
    assert error(result) < 0.5 * error(start)
    assert result.images.shape == VICTIMS.shape
    assert 0 <= result.images.min() <= result.images.max() <= 1


def test_without_labels_it_wins_too() -> None:
    assert error(attacked(QUICK, client(), auxiliary_labels=None)) < 0.75 * FLOOR


def test_releases_of_noise_stay_at_the_floor() -> None:
    assert error(attacked(replace(QUICK, epochs=2), client(Noise))) > 0.9 * FLOOR


def test_the_zero_start_touches_no_client() -> None:
    clients = client()

    def never(answer: Any) -> None:
        raise AssertionError("a client was touched")

    clients.round = never  # type: ignore[method-assign]
    session = Memory()
    result = attacked(replace(QUICK, epochs=0), clients, session=session)
    assert result.curve == ()
    assert session.kept is None


@pytest.mark.usefixtures("ten")
def test_the_same_seed_gives_the_same_bits_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    first, second, other = (attacked(ONE, client(), seed) for seed in (0, 0, 1))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(first.images, second.images)
    assert first.curve == second.curve
    assert not torch.equal(first.images, other.images)


@pytest.mark.usefixtures("ten")
def test_a_killed_attack_goes_on_as_if_it_never_stopped() -> None:
    whole = attacked(replace(ONE, epochs=2), client())
    session = Memory(until=1)
    with pytest.raises(KeyboardInterrupt):
        attacked(replace(ONE, epochs=2), client(), session=session)
    session.until = math.inf
    resumed = attacked(replace(ONE, epochs=2), client(), session=session)
    assert torch.equal(whole.images, resumed.images)
    assert whole.curve == resumed.curve
    assert session.reports[-1] == (2, 2, whole.curve[-1])


@pytest.mark.usefixtures("ten")
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_diverging_round_is_named_and_the_last_good_state_is_kept(value: float) -> None:
    good, bad = Memory(), Memory()
    attacked(ONE, client(), session=good)
    clients = client(spoil=lambda done, x: x * value if done == 13 else x)
    with pytest.raises(AttackDiverged, match="in round 14; the weights after 10 rounds are kept"):
        attacked(replace(ONE, epochs=2), clients, session=bad)
    assert good.kept is not None
    assert bad.kept is not None
    assert len(bad.kept["curve"]) == 1
    assert clients.done == 10
    for name in ("pilot", "decoder", "critic"):
        for key, weight in good.kept[name].items():
            assert torch.equal(weight, bad.kept[name][key])
    for key, weight in good.kept["clients"]["lower"].items():
        assert torch.equal(weight, clients.lower.state_dict()[key])
        assert torch.equal(weight, bad.kept["clients"]["lower"][key])


@pytest.mark.usefixtures("ten")
def test_divergence_in_the_first_epoch_keeps_the_start() -> None:
    session, clients = Memory(), client(spoil=lambda done, x: x * math.nan)
    before = {key: weight.clone() for key, weight in clients.lower.state_dict().items()}
    with pytest.raises(AttackDiverged, match="round 1; the weights after 0 rounds"):
        attacked(ONE, clients, session=session)
    assert session.kept is not None
    assert session.kept["curve"] == []
    assert all(torch.equal(before[key], weight) for key, weight in clients.lower.state_dict().items())


def test_weights_that_are_not_finite_make_no_snapshot() -> None:
    server = Server(ONE._settings(), client().views()[0], known(client()), OWN, 0)
    server.examine()
    with torch.no_grad():
        next(server.networks.critic.parameters()).view(-1)[0] = math.nan
    with pytest.raises(AttackDiverged, match="weight"):
        server.examine()


def test_the_answer_is_the_gradient_of_the_critics_mean_score() -> None:
    clients = client()
    view = clients.views()[0]
    server = Server(ONE._settings(), view, known(clients), OWN, 0)
    critic = server.networks.critic
    released = view.smashed.clone().requires_grad_()
    critic(released).mean().backward()
    assert released.grad is not None
    answer = server.answer(view, Generator().manual_seed(0))
    torch.testing.assert_close(answer, released.grad)


def test_the_critics_loss_against_its_definition() -> None:
    clients = client()
    view = replace(clients.views()[0], labels=None)
    server = Server(ONE._settings(), view, known(clients), OWN, 0)
    critic, pilot = server.networks.critic, server.networks.pilot
    draws = Generator().manual_seed(4)
    rows = torch.randint(len(server.images), (50,), generator=draws)
    fake = pilot(server.images[rows]).detach()
    points = between(view.smashed, fake, draws).requires_grad_()
    (slope,) = torch.autograd.grad(critic(points).sum(), points, create_graph=True)
    loss = critic(fake).mean() - critic(view.smashed).mean() + 10 * (slope.flatten(1).norm(dim=1) - 1).square().mean()
    expected = torch.autograd.grad(loss, list(critic.parameters()), allow_unused=True)
    server.answer(view, Generator().manual_seed(4))
    for weight, gradient in zip(critic.parameters(), expected, strict=True):
        torch.testing.assert_close(weight.grad, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", [(3, 2, 4, 4), (3, 4, 6), (3, 5)])
@pytest.mark.parametrize("norm", ["full", "channel"])
def test_the_penalty_against_differences_of_the_critic(shape: tuple[int, ...], norm: Norm) -> None:
    draws = Generator().manual_seed(0)
    points = torch.randn(shape, generator=draws, dtype=torch.float64)
    weight = torch.randn(7, points[0].numel(), generator=draws, dtype=torch.float64)

    def critic(x: Tensor) -> Tensor:
        return torch.tanh(x.flatten(1) @ weight.T).sum(1)

    step, total, count = 1e-6, 0.0, 0
    for row in points:
        slope = torch.zeros_like(row)
        for place in itertools.product(*map(range, row.shape)):
            up, down = row.clone(), row.clone()
            up[place] += step
            down[place] -= step
            slope[place] = (critic(up[None]) - critic(down[None])).item() / (2 * step)
        if norm == "full":
            norms = [math.sqrt(sum(v * v for v in slope.flatten().tolist()))]
        elif row.ndim == 3:
            norms = [math.sqrt(sum(v * v for v in channel.flatten().tolist())) for channel in slope]
        elif row.ndim == 2:
            norms = [math.sqrt(sum(v * v for v in slope[:, d].tolist())) for d in range(row.shape[1])]
        else:
            norms = [abs(v) for v in slope.tolist()]
        total, count = total + sum((n - 1) ** 2 for n in norms), count + len(norms)
    assert gradient_penalty(critic, points, norm).item() == pytest.approx(total / count, rel=1e-6)


def test_the_cheap_kink_has_the_values_and_all_gradients_of_relu() -> None:
    x = torch.randn(50, generator=Generator().manual_seed(0), requires_grad=True)
    assert torch.equal(kinked(x), torch.relu(x))
    for f in (kinked, torch.relu):
        (slope,) = torch.autograd.grad(f(x).pow(3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(slope.sum(), x)
        torch.testing.assert_close(slope, 3 * x.detach().clamp_min(0) ** 2)
        torch.testing.assert_close(second, 6 * x.detach().clamp_min(0))


def test_points_lie_between() -> None:
    real, fake = torch.zeros(1_000, 2), torch.ones(1_000, 2)
    points = between(real, fake, Generator().manual_seed(0))
    assert torch.equal(points[:, 0], points[:, 1])
    assert points.mean().item() == pytest.approx(0.5, abs=0.03)


@pytest.mark.usefixtures("ten")
@pytest.mark.parametrize("form", ["maps", "tokens", "vector"])
def test_every_form_of_release(form: str) -> None:
    result = attacked(ONE, client(lambda: Small(form)))
    assert result.images.shape == VICTIMS.shape
    assert len(result.curve) == 1


@pytest.mark.parametrize(
    ("released", "image"),
    [
        ((64, 16, 16), (3, 32, 32)),
        ((128, 8, 8), (3, 32, 32)),
        ((256, 4, 4), (3, 32, 32)),
        ((8, 12, 12), (1, 28, 28)),
        ((5, 3, 3), (1, 25, 25)),
        ((6, 40, 40), (1, 28, 28)),
        ((4, 8, 12), (3, 16, 24)),
        ((49, 10), (1, 28, 28)),
        ((16, 10), (1, 28, 28)),
        ((256,), (3, 32, 32)),
        ((7,), (1, 28, 28)),
    ],
)
def test_networks_fit_any_cut(released: tuple[int, ...], image: tuple[int, int, int]) -> None:
    networks = build(released, image, 2, classes=3)
    made = networks.pilot(torch.rand(2, *image))
    assert made.shape == (2, *released)
    assert networks.decoder(made).shape == (2, *image)
    assert networks.critic(made, torch.tensor([-1, 2])).shape == (2,)
    assert networks.critic(made, torch.tensor([-1, 2]))[0] == networks.critic(made)[0]


def test_pilots_end_in_the_range_of_the_release() -> None:
    ends = {"relu": torch.rand(2, 4), "tanh": torch.rand(2, 4) - 0.5, "linear": 9 * torch.rand(2, 4) - 4}
    assert {name: range_of(values) for name, values in ends.items()} == {name: name for name in ends}
    made = build((4, 4, 4), (1, 8, 8), 2, "relu").pilot(torch.rand(9, 1, 8, 8))
    assert made.min() == 0


def test_images_are_drawn_by_label_and_any_for_a_class_that_the_server_lacks() -> None:
    labels = torch.tensor([2, 0, 2, 4, 0, 2])
    by_label = ByLabel(labels)
    told = torch.tensor([0, 2, 4, 1, 9]).repeat(200)
    rows, given = by_label.drawn(told, Generator().manual_seed(0))
    has = torch.isin(told, labels)
    assert torch.equal(labels[rows][has], told[has])
    assert torch.equal(given, torch.where(has, told, -1))
    assert rows[~has].unique().tolist() == list(range(6))
    assert rows[told == 2].unique().tolist() == [0, 2, 5]


def test_a_server_that_knows_of_the_noise_denoises() -> None:

    class Noised(Small):
        def forward(self, x: Tensor) -> Tensor:
            release = torch.tanh(super().forward(x))
            return release + 0.7 * torch.randn(release.shape, generator=Generator().manual_seed(len(x)))

    plain, aware = (error(attacked(replace(QUICK, noise=sigma, epochs=2), client(Noised))) for sigma in (0.0, 0.7))
    assert aware < plain


def test_masks_keep_what_they_should() -> None:
    server = Server(replace(ONE, keep=0.2, noise=1.0)._settings(), client().views()[0], known(client()), OWN, 0)
    sent = server._sent(torch.ones(100, 4, 4, 4), Generator().manual_seed(0))
    assert (sent != 0).float().mean().item() == pytest.approx(0.2, abs=0.02)
    assert sent[sent != 0].std().item() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"auxiliary": None}, "fsha needs auxiliary"),
        ({"clients": None}, "fsha needs clients"),
        ({"auxiliary": OWN.repeat(1, 3, 1, 1)}, r"auxiliary images are \[3, 8, 8\]"),
        ({"auxiliary": OWN[:40]}, "797 auxiliary labels for 40"),
        ({"auxiliary": OWN[:31], "auxiliary_labels": None}, "at least 32 auxiliary images, got 31"),
        ({"auxiliary": OWN[:1], "auxiliary_labels": None, "batch_size": 1}, "at least 2 auxiliary images, got 1"),
    ],
)
def test_knowledge_that_does_not_suffice(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(NotApplicable, match=says):
        ONE.run(client().views(), replace(known(client()), **changes), Generator())


@pytest.mark.parametrize(
    ("views", "says"),
    [
        ([View(round=0, smashed=torch.rand(4, 4, 4, 4), mixed=2)], "each released row holds 2 images"),
        ([View(round=0, smashed=torch.rand(4, 12, 5))], "12 tokens"),
        ([View(round=0, smashed=torch.rand(4, 5)), View(round=1, smashed=torch.rand(4, 6))], "views of one form"),
    ],
)
def test_views_that_cannot_be_attacked(views: list[View], says: str) -> None:
    with pytest.raises(NotApplicable, match=says):
        ONE.run(views, known(client()), Generator())


def test_rounds_that_are_not_what_was_seen_are_refused() -> None:
    clients = client()
    views = [View(round=0, smashed=torch.rand(4, 9, 4, 4))]
    with pytest.raises(NotApplicable, match=r"rounds of \[4, 4, 4\]"):
        ONE.run(views, known(clients), Generator())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("recipe", "best"),
        ("epochs", -1),
        ("penalty", "rows"),
        ("end", "sigmoid"),
        ("penalty_weight", 0.0),
        ("penalty_weight", math.inf),
        ("learning_rate", -1.0),
        ("critic_rate", math.nan),
        ("critic_steps", 0),
        ("width", 0),
        ("noise", -0.1),
        ("keep", 0.0),
        ("keep", 1.5),
    ],
)
def test_fields_are_checked(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field} must"):
        FSHA(**{field: value})


def test_the_released_recipe_is_the_authors() -> None:
    clients = client()
    view = replace(clients.views()[0], smashed=clients.views()[0].smashed.abs(), labels=LABELS[:50])
    server = Server(FSHA(recipe="released", width=2)._settings(), view, known(clients), OWN, 0)
    assert [group["lr"] for o in (server.on_images, server.on_critic) for group in o.param_groups] == [1e-5, 1e-4]
    assert (server.settings.penalty_weight, server.labels, module.EPOCHS["released"]) == (500.0, None, 100)
    assert not any(isinstance(layer, nn.ReLU) for layer in server.networks.pilot.modules())
