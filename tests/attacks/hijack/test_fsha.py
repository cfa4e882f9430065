"""FSHA must win where clients can be led, fail where the release holds nothing, and end honestly."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import AttackDiverged, NotApplicable, View
from privkit.attacks.hijack.fsha import FSHA
from tests.attacks.sessions import Killed, Session


class Noise(nn.Module):
    """Releases that hold nothing of the images."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.draws = Generator().manual_seed(5)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * torch.randn(len(x), 4, 4, 4, generator=self.draws)


@pytest.mark.slow
def test_clients_that_can_be_led_give_their_images_away(hijack: Any) -> None:
    attack = replace(hijack.quick, width=16)
    result = hijack.attacked(attack, hijack.client())
    start = hijack.attacked(replace(attack, epochs=0), hijack.client())
    assert hijack.error(result) < 0.5 * hijack.floor
    assert hijack.error(result) < 0.5 * hijack.error(start)
    assert result.images.shape == hijack.victims.shape
    assert torch.equal(result.images, result.images.clamp(0, 1))


@pytest.mark.slow
def test_without_labels_it_wins_too(hijack: Any) -> None:
    unlabeled = [hijack.attacked(hijack.quick, hijack.client(), seed, auxiliary_labels=None) for seed in range(4)]
    assert sum(map(hijack.error, unlabeled)) / 4 < 0.75 * hijack.floor


@pytest.mark.slow
def test_releases_of_noise_stay_at_the_floor(hijack: Any) -> None:
    assert hijack.error(hijack.attacked(replace(hijack.quick, epochs=2), hijack.client(Noise))) > 0.9 * hijack.floor


def test_the_zero_start_touches_no_client(hijack: Any) -> None:
    clients = hijack.client()

    def never(answer: Any) -> None:
        raise AssertionError("a client was touched")

    clients.round = never  # type: ignore[method-assign]
    session = Session()
    result = hijack.attacked(replace(hijack.quick, epochs=0), clients, session=session)
    assert result.curve == ()
    assert session.state is None


@pytest.mark.usefixtures("ten")
def test_the_same_seed_gives_the_same_bits_and_leaves_the_global_generator_alone(hijack: Any) -> None:
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    first, second, other = (hijack.attacked(hijack.one, hijack.client(), seed) for seed in (0, 0, 1))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(first.images, second.images)
    assert first.curve == second.curve
    assert not torch.equal(first.images, other.images)


@pytest.mark.usefixtures("ten")
def test_a_killed_attack_goes_on_as_if_it_never_stopped(hijack: Any) -> None:
    whole = hijack.attacked(replace(hijack.one, epochs=2), hijack.client())
    session = Session(dies_after=1)
    with pytest.raises(Killed):
        hijack.attacked(replace(hijack.one, epochs=2), hijack.client(), session=session)
    session.dies_after = None
    resumed = hijack.attacked(replace(hijack.one, epochs=2), hijack.client(), session=session)
    assert torch.equal(whole.images, resumed.images)
    assert whole.curve == resumed.curve
    assert session.reports[-1] == (2, 2, whole.curve[-1])


@pytest.mark.usefixtures("ten")
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_diverging_round_is_named_and_the_last_good_state_is_kept(hijack: Any, value: float) -> None:
    good, bad = Session(), Session()
    hijack.attacked(hijack.one, hijack.client(), session=good)
    clients = hijack.client(spoil=lambda done, x: x * value if done == 13 else x)
    with pytest.raises(AttackDiverged, match="in round 14; the weights after 10 rounds are kept"):
        hijack.attacked(replace(hijack.one, epochs=2), clients, session=bad)
    assert good.state is not None
    assert bad.state is not None
    assert len(bad.state["curve"]) == 1
    assert clients.done == 10
    for name in ("pilot", "decoder", "discriminator"):
        for key, weight in good.state["training"][name].items():
            assert torch.equal(weight, bad.state["training"][name][key])
    for key, weight in good.state["training"]["clients"]["lower"].items():
        assert torch.equal(weight, clients.lower.state_dict()[key])
        assert torch.equal(weight, bad.state["training"]["clients"]["lower"][key])


@pytest.mark.usefixtures("ten")
def test_divergence_in_the_first_epoch_keeps_the_start(hijack: Any) -> None:
    session, clients = Session(), hijack.client(spoil=lambda done, x: x * math.nan)
    before = {key: weight.clone() for key, weight in clients.lower.state_dict().items()}
    with pytest.raises(AttackDiverged, match="round 1; the weights after 0 rounds"):
        hijack.attacked(hijack.one, clients, session=session)
    assert session.state is not None
    assert session.state["curve"] == []
    assert all(torch.equal(before[key], weight) for key, weight in clients.lower.state_dict().items())


@pytest.mark.usefixtures("ten")
def test_clients_that_break_after_the_last_answer_make_no_snapshot(hijack: Any) -> None:
    """The server's own numbers are still finite then; the next attack would start from clients that are not."""
    session, clients = Session(), hijack.client()
    step = clients.optimizer.step

    def breaking() -> None:
        step()
        if clients.done == 19:
            next(clients.lower.parameters()).data.fill_(math.nan)

    clients.optimizer.step = breaking
    with pytest.raises(AttackDiverged, match="what the clients release is not finite after round 20"):
        hijack.attacked(replace(hijack.one, epochs=3), clients, session=session)
    assert clients.done == 10
    assert len(session.state["curve"]) == 1
    assert all(bool(weight.isfinite().all()) for weight in clients.lower.parameters())
    assert all(bool(weight.isfinite().all()) for weight in session.state["training"]["clients"]["lower"].values())


@pytest.mark.usefixtures("ten")
@pytest.mark.parametrize("form", ["maps", "tokens", "vector"])
def test_every_form_of_release(hijack: Any, form: str) -> None:
    result = hijack.attacked(hijack.one, hijack.client(lambda: hijack.small(form)))
    assert result.images.shape == hijack.victims.shape
    assert len(result.curve) == 1


@pytest.mark.slow
def test_a_server_that_knows_of_the_noise_denoises(hijack: Any) -> None:
    """Gaussian noise of deviation .7 behind a tanh, done by the clients and imitated by the server."""

    def noised(smashed: Tensor, draws: Generator) -> Tensor:
        return smashed + 0.7 * torch.randn(smashed.shape, generator=draws)

    class Noised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = (nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 1, 1), nn.Tanh())
            self.lower, self.draws = nn.Sequential(*layers), Generator().manual_seed(5)

        def forward(self, x: Tensor) -> Tensor:
            return noised(self.lower(x), self.draws)

    attack = replace(hijack.quick, epochs=2)
    unaware = hijack.error(hijack.attacked(attack, hijack.client(Noised)))
    aware = hijack.error(hijack.attacked(attack, hijack.client(Noised), imitate=noised))
    assert unaware > hijack.floor
    assert aware < 0.8 * hijack.floor


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"auxiliary": None}, "fsha needs auxiliary"),
        ({"clients": None}, "fsha needs clients"),
        ({"auxiliary": torch.rand(797, 3, 8, 8)}, r"auxiliary images are \[3, 8, 8\]"),
        ({"auxiliary": torch.rand(40, 1, 8, 8)}, "797 auxiliary labels for 40"),
        ({"auxiliary": torch.rand(31, 1, 8, 8), "auxiliary_labels": None}, "at least 32 auxiliary images, got 31"),
        (
            {"auxiliary": torch.rand(1, 1, 8, 8), "auxiliary_labels": None, "batch_size": 1},
            "at least 2 auxiliary images, got 1",
        ),
    ],
)
def test_knowledge_that_does_not_suffice(hijack: Any, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(NotApplicable, match=says):
        hijack.one.run(replace(hijack.known(hijack.client()), **changes, views=hijack.client().views()), Generator())


@pytest.mark.parametrize(
    ("views", "says"),
    [
        ([View(round=0, smashed=torch.rand(4, 4, 4, 4), mixed=2)], "each row holds 2 images, and the adversary"),
        ([View(round=0, smashed=torch.rand(4, 12, 5))], "12 tokens"),
        ([View(round=0, smashed=torch.rand(4, 5)), View(round=1, smashed=torch.rand(4, 6))], "views of one form"),
    ],
)
def test_views_that_cannot_be_attacked(hijack: Any, views: list[View], says: str) -> None:
    with pytest.raises(NotApplicable, match=says):
        hijack.one.run(replace(hijack.known(hijack.client()), views=views), Generator())


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
        ("discriminator_rate", math.nan),
        ("discriminator_steps", 0),
        ("width", 0),
        ("noise", -0.1),
        ("keep", 0.0),
        ("keep", 1.5),
    ],
)
def test_fields_are_checked(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field} must"):
        FSHA(**{field: value})


@pytest.mark.parametrize(
    ("attack", "says"),
    [
        (FSHA(), "500 rounds at width 16 with 2 blocks"),
        (FSHA(epochs=100, width=64), "10,000 rounds at width 64 with 2 blocks"),
        (FSHA(recipe="released", epochs=99), "9,900 rounds at width 64 with 6 blocks"),
        (FSHA(recipe="released"), ""),
        (FSHA(epochs=100, width=64, blocks=6), ""),
    ],
)
def test_it_says_what_falls_short_of_the_authors(attack: FSHA, says: str) -> None:
    assert attack.mounting.short_of_published.startswith(says)
    assert bool(attack.mounting.short_of_published) == bool(says)
