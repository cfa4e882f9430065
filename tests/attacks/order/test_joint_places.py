"""Places of all tokens of an image at once."""

from dataclasses import replace

import pytest
import torch
from torch import Generator

from privkit.attacks.base import NoSession
from privkit.attacks.order import jigsaw
from privkit.attacks.order.jigsaw import Jigsaw
from privkit.attacks.order.piece_network import JointPlaces, PieceNetwork, Together
from privkit.attacks.order.piece_solver import PieceDecoder
from privkit.attacks.patches import Geometry, patchify
from privkit.attacks.scores.order import direct_accuracy
from tests.attacks.order.puzzles import AUXILIARY, BATCH, guess, pixels, run, scene
from tests.attacks.order.test_position_predictor import VICTIMS, seen


def test_tokens_share_no_place_and_their_order_does_not_matter() -> None:
    torch.manual_seed(0)
    network = JointPlaces(6, 9, 8).eval()
    pieces = torch.randn(2, 9, 6)
    order = torch.randperm(9)
    places = network(pieces).exp()
    torch.testing.assert_close(places.sum(1), torch.ones(2, 9))
    torch.testing.assert_close(network(pieces[:, order]).exp(), places[:, order])
    other = pieces.clone()
    other[:, 0] += 1  # one token moves, and with it the places of all others
    assert (network(other).exp() - places)[:, 1:].abs().max() > 1e-4


@pytest.mark.slow
def test_wins_where_a_token_tells_its_place() -> None:
    observation, truth = seen(patchify(VICTIMS, 4))
    found = Jigsaw(pairs="joint", epochs=10, kicks=5).run(observation, Generator().manual_seed(0))
    assert direct_accuracy(guess(found), truth, batch=BATCH).mean() > 0.95


def test_tokens_that_look_alike_share_their_targets() -> None:
    images = AUXILIARY[:40].clone()
    images[0] = 0
    tokens = pixels(images)
    decoder = PieceDecoder.fitted(tokens, tokens, Geometry.of(tokens, (3, 32, 32)))
    targets = decoder.twins(decoder.features(tokens))
    torch.testing.assert_close(targets.sum(2), torch.ones(40, 16))
    torch.testing.assert_close(targets[0], torch.full((16, 16), 1 / 16), atol=0.01, rtol=0)
    assert (targets[1:].argmax(2) == torch.arange(16)).float().mean() > 0.9


def test_with_strangers_in_a_row_auto_scores_token_by_token() -> None:
    """Held-out images have none, and so do not show whether strangers mislead the joint reading."""
    views, _, knowledge = scene(keep=0.4)
    knowledge = replace(knowledge, auxiliary=AUXILIARY[:30])
    alone, auto, joint = (
        run(Jigsaw(pairs=pairs, epochs=1, kicks=2), views, knowledge) for pairs in ("learned", "auto", "joint")
    )
    assert torch.equal(guess(alone), guess(auto))
    assert not torch.equal(guess(alone), guess(joint))


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("best", [1, 2, 0])
def test_the_reading_that_draws_held_out_images_best_is_taken(best: int, monkeypatch: pytest.MonkeyPatch) -> None:
    views, _, knowledge = scene()
    errors = iter(0.0 if number == best else 1.0 for number in range(3))
    monkeypatch.setattr(jigsaw, "_solver_error", lambda *_: next(errors))
    attack = Jigsaw(pairs="auto", epochs=1, kicks=2)
    solver, state, _ = attack.learn(
        replace(knowledge, views=views, auxiliary=AUXILIARY[:30]), Generator().manual_seed(0), NoSession()
    )
    assert {"places", "joint"} <= set(state)
    network = solver.network
    assert network is not None
    if isinstance(network, Together):
        assert best == 2
    else:
        assert isinstance(network.places, JointPlaces) == (best == 1)


def test_own_images_are_drawn_better_by_a_network_that_learned() -> None:
    views, _, knowledge = scene()
    errors = []
    for epochs in (0, 32):
        attack = Jigsaw(epochs=epochs, kicks=0)
        solver, _, _ = attack.learn(replace(knowledge, views=views), Generator().manual_seed(0), NoSession())
        errors.append(jigsaw._solver_error(pixels(AUXILIARY), pixels(AUXILIARY), solver))
    assert errors[1] < 0.8 * errors[0]


def test_two_readings_together_have_their_mean_scores() -> None:
    torch.manual_seed(0)
    networks = [PieceNetwork(6, 9, 8, joint) for joint in (False, True)]
    pieces, edges = torch.randn(2, 9, 6), torch.rand(2, 2, 9, 9)
    (alone, sides), (joint, others) = (network(pieces, edges) for network in networks)
    places, pairs = Together(networks)(pieces, edges)
    torch.testing.assert_close(places, (alone.log_softmax(2) + joint.log_softmax(2)) / 2)
    torch.testing.assert_close(pairs, (sides + others) / 2)
