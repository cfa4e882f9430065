"""Places of all tokens of an image at once."""

from dataclasses import replace

import torch
from torch import Generator

from privkit.attacks.base import NoSession
from privkit.attacks.order.jigsaw import Jigsaw
from privkit.attacks.order.piece_network import JointPlaces
from privkit.attacks.order.piece_solver import TokenDecoder
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


def test_wins_where_a_token_tells_its_place() -> None:
    observation, truth = seen(patchify(VICTIMS, 4))
    found = Jigsaw(pairs="joint", epochs=10, kicks=5).run(observation, Generator().manual_seed(0))
    assert direct_accuracy(guess(found), truth, batch=BATCH).mean() > 0.95


def test_tokens_that_look_alike_share_their_targets() -> None:
    images = AUXILIARY[:40].clone()
    images[0] = 0
    tokens = pixels(images)
    decoder = TokenDecoder.fitted(tokens, tokens, Geometry.of(tokens, (3, 32, 32)))
    targets = decoder.twins(decoder.features(tokens))
    torch.testing.assert_close(targets.sum(2), torch.ones(40, 16))
    torch.testing.assert_close(targets[0], torch.full((16, 16), 1 / 16), atol=0.01, rtol=0)
    assert (targets[1:].argmax(2) == torch.arange(16)).float().mean() > 0.9


def test_strangers_in_a_row_are_scored_token_by_token() -> None:
    views, _, knowledge = scene(keep=0.4)
    alone, joint = (run(Jigsaw(pairs=pairs, epochs=1, kicks=2), views, knowledge) for pairs in ("learned", "joint"))
    assert torch.equal(guess(alone), guess(joint))


def test_the_reading_that_draws_held_out_images_better_is_taken() -> None:
    """A hundred pictures are too few for the joint one, which overfits."""
    views, _, knowledge = scene()
    attack = Jigsaw(pairs="auto", epochs=3, kicks=2)
    solver, state = attack.learn(replace(knowledge, views=views), Generator().manual_seed(0), NoSession())
    assert solver.network is not None
    assert not isinstance(solver.network.places, JointPlaces)
    assert {"places", "joint"} <= set(state)
