"""SDAR makes no query: what it knows are the server's own segment, what was recorded, and images of its own."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import AttackDiverged, NotApplicable, View
from privkit.attacks.inversion.sdar import SDAR, SDARTraining
from privkit.attacks.inversion.simulator_training import AttackData
from tests.attacks.inversion.passive import FLOOR, case, check_gradients, error, run, split, trained
from tests.attacks.sessions import Killed, Session

QUICK = SDAR(epochs=2, width=4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["maps", "tokens", "vectors"])
def test_wins_where_labels_and_the_server_tell_of_the_client(kind: str) -> None:
    """A third below the mean image, without a query and without the architecture; its untrained start is above it."""
    views, knowledge = case(kind, own=897)
    won = run(SDAR(epochs=14), views, knowledge)
    assert error(won) < 0.67 * FLOOR
    assert error(run(SDAR(epochs=0), views, knowledge)) > FLOOR
    assert won.curve[-1] < 0.5 * won.curve[0]


@pytest.mark.slow
def test_noise_tells_nothing() -> None:
    """Releases that hold no image: no better than the mean image, at best a class's mean."""
    views, knowledge = case(own=897)
    noise = [
        replace(v, smashed=torch.rand(v.smashed.shape, generator=Generator().manual_seed(i)))
        for i, v in enumerate(views)
    ]
    unlabeled = [replace(v, labels=None) for v in noise]
    assert error(run(SDAR(epochs=6, width=8), unlabeled, knowledge)) > 0.97 * FLOOR


@pytest.mark.slow
def test_a_defense_whose_law_is_known_is_imitated() -> None:
    """A simulator that is as noisy as the clients teaches the decoder to look through the noise."""
    views, knowledge = case(own=800)
    scale = torch.cat([view.smashed for view in views]).std()

    def noise(smashed: Tensor, draws: Generator) -> Tensor:
        assert len(smashed) % knowledge.batch_size == 0  # a defense works on whole rounds
        return smashed + scale * torch.randn(smashed.shape, generator=draws)

    draws = Generator().manual_seed(3)
    loud = [replace(v, smashed=v.smashed + scale * torch.randn(v.smashed.shape, generator=draws)) for v in views]
    unaware, aware = (
        error(run(SDAR(epochs=12), loud, told)) for told in (knowledge, replace(knowledge, imitate=noise))
    )
    assert aware < 0.85 * unaware


def test_the_client_is_not_read() -> None:
    """A known architecture with any weights gives the same bits; without it the segment is not needed at all."""
    views, knowledge = case()
    lower = trained("maps")[0]
    poisoned = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)).requires_grad_(False)
    for parameter in poisoned.parameters():
        parameter.fill_(float("nan"))
    known = replace(QUICK, simulator="known")
    assert torch.equal(
        run(known, views, replace(knowledge, lower=lower)).images,
        run(known, views, replace(knowledge, lower=poisoned)).images,
    )
    assert torch.equal(
        run(QUICK, views, replace(knowledge, lower=poisoned)).images, run(QUICK, views, knowledge).images
    )


@pytest.mark.slow
def test_a_client_without_weights_is_simulated_exactly() -> None:
    views, knowledge = case("vectors", own=897)
    upper = nn.Linear(64, 10).requires_grad_(False)
    raw = [replace(v, smashed=split()[0][i * 200 : (i + 1) * 200].flatten(1)) for i, v in enumerate(views)]
    found = run(SDAR(epochs=6, width=8, simulator="known"), raw, replace(knowledge, upper=upper, lower=nn.Flatten()))
    assert error(found) < 0.67 * FLOOR


def test_labels_on_the_wire_are_used_and_soft_ones_are_not() -> None:
    views, knowledge = case()
    told, silent = run(QUICK, views, knowledge), run(QUICK, [replace(v, labels=None) for v in views], knowledge)
    soft = [replace(v, labels=torch.rand(len(v.smashed), 10)) for v in views]
    assert not torch.equal(told.images, silent.images)
    assert torch.equal(run(QUICK, soft, knowledge).images, silent.images)


def test_deterministic_by_generator_and_the_others_are_left_alone() -> None:
    views, knowledge = case()
    assert knowledge.upper is not None
    state, weights = torch.random.get_rng_state(), [p.clone() for p in knowledge.upper.parameters()]
    first, second = run(QUICK, views, knowledge), run(QUICK, views, knowledge)
    assert torch.equal(first.images, second.images)
    assert first.curve == second.curve
    assert not torch.equal(run(QUICK, views, knowledge, seed=1).images, first.images)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(weights, knowledge.upper.parameters(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("attack", [replace(QUICK, epochs=3, flip=0.2), replace(QUICK, epochs=3, simulator="known")])
def test_goes_on_after_a_kill_bit_for_bit(attack: SDAR) -> None:
    views, knowledge = case()
    knowledge, killed = replace(knowledge, lower=trained("maps")[0]), Session(dies_after=1)
    with pytest.raises(Killed):
        run(attack, views, knowledge, killed)
    torch.rand(5)
    resumed, straight = run(attack, views, knowledge, Session(state=killed.state)), run(attack, views, knowledge)
    assert torch.equal(resumed.images, straight.images)
    assert resumed.curve == straight.curve


def test_a_divergence_stops_it_with_the_last_good_state_kept() -> None:
    views, knowledge = case()
    session = Session()
    run(replace(QUICK, epochs=1), views, knowledge, session)
    spoiled = replace(knowledge, imitate=lambda sent, draws: sent * float("nan"))
    with pytest.raises(AttackDiverged, match="nan"):
        run(QUICK, views, spoiled, session)
    assert len(session.state["curve"]) == 1
    assert all(w.isfinite().all() for part in session.state["training"]["weights"].values() for w in part.values())
    with pytest.raises(AttackDiverged):
        run(replace(QUICK, learning_rate=1e30), *case())


@pytest.mark.parametrize("told", [True, False], ids=["labels", "no labels"])
def test_a_step_gives_every_part_the_gradient_of_its_own_loss_at_the_weights_before_it(told: bool) -> None:
    """One pass through a discriminator serves it and its opponent; here each loss is written out and differentiated."""
    views, knowledge = case("tokens")
    views = views if told else [replace(v, labels=None) for v in views]
    training = SDARTraining(
        SDAR(width=4, lambda1=0.3, lambda2=0.5), AttackData.of(SDAR(), replace(knowledge, views=views)), 0
    )
    images, labels, rows = knowledge.auxiliary, knowledge.auxiliary_labels, views[0].smashed[:8]
    assert images is not None
    assert labels is not None
    images, labels, theirs = images[:8], labels[:8], split()[1][:8] if told else None
    p = deepcopy(training.parts)
    made, upper = p["simulator"](images), training.given.upper
    assert upper is not None
    decoder = deepcopy(training)
    drawn, own = decoder._decode(rows, theirs), decoder._decode(made.detach(), labels)
    sure = nn.functional.softplus
    losses = {
        "simulator": nn.functional.cross_entropy(upper(made), labels) + 0.3 * sure(-p["releases"](made, labels)).mean(),
        "releases": sure(-p["releases"](rows, theirs)).mean() + sure(p["releases"](made.detach(), labels)).mean(),
        "decoder": nn.functional.mse_loss(own, images) + 0.5 * sure(-p["images"](drawn, theirs)).mean(),
        "images": sure(-p["images"](images, labels)).mean() + sure(p["images"](drawn.detach(), theirs)).mean(),
    }
    total = training._step(images, labels, rows, theirs, Generator())
    torch.testing.assert_close(total, sum(losses.values()).detach())  # type: ignore[union-attr]
    check_gradients(training, losses, {**p, "decoder": decoder.parts["decoder"]}, rtol=1e-4)


def test_it_says_what_falls_short_of_the_authors() -> None:
    assert SDAR(epochs=10).mounting.short_of_published.startswith(
        "10 epochs on the recorded releases of trained clients, where"
    )


def test_not_applicable() -> None:
    views, knowledge = case()
    few = replace(knowledge, auxiliary=split()[2][:9], auxiliary_labels=split()[3][:9])
    for lacking in ("auxiliary", "auxiliary_labels", "upper"):
        with pytest.raises(NotApplicable, match=f"sdar needs {lacking}, "):
            run(QUICK, views, replace(knowledge, **{lacking: None}))  # type: ignore[arg-type]
    refusals = {
        "sdar needs lower": (replace(QUICK, simulator="known"), views, knowledge),
        "adversary does not know which": (QUICK, [replace(views[0], mixed=2)], knowledge),
        "views of one form": (QUICK, [views[0], View(round=1, smashed=torch.rand(2, 8, 5, 5))], knowledge),
        "bring auxiliary data": (QUICK, views, replace(knowledge, image_shape=(3, 8, 8))),
        "there are 5 auxiliary labels for 160": (QUICK, views, replace(knowledge, auxiliary_labels=split()[3][:5])),
        "whole-number label": (QUICK, views, replace(knowledge, auxiliary_labels=split()[3][:160].float())),
        "it needs 10, got 9": (QUICK, views, few),
        "labels run from 0 to 10": (QUICK, [replace(views[0], labels=torch.arange(200) % 11)], knowledge),
        "labels run from 1 to 10": (QUICK, views, replace(knowledge, auxiliary_labels=split()[3][:160] + 1)),
        "does not read rows": (QUICK, [View(round=0, smashed=torch.rand(4, 8, 5, 5))], knowledge),
        "a classifier of two": (QUICK, views, replace(knowledge, upper=nn.Flatten(0))),
        "was released": (replace(QUICK, simulator="known"), views, replace(knowledge, lower=nn.Flatten())),
    }
    for message, (attack, seen, knows) in refusals.items():
        with pytest.raises(NotApplicable, match=message):
            run(attack, seen, knows)
    line = View(round=0, smashed=torch.rand(4, 15, 3))
    upper = nn.Sequential(nn.Flatten(), nn.Linear(45, 10))
    with pytest.raises(NotApplicable, match="square grid"):
        run(QUICK, [line], replace(knowledge, upper=upper))


def test_bad_specifications() -> None:
    for bad in (
        {"epochs": -1},
        {"simulator": "copy"},
        {"learning_rate": 0.0},
        {"discriminator_rate": float("inf")},
        {"lambda1": -0.1},
        {"lambda2": float("nan")},
        {"width": 0},
        {"batch": 1},
        {"flip": 1.0},
    ):
        with pytest.raises(ValueError, match="must be"):
            SDAR(**bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="budget's"):
        run(SDAR(), *case())
