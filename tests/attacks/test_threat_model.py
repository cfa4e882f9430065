"""The threat model of an attack follows from what it is given."""

import pytest

from privkit.attacks import ATTACKS
from privkit.attacks.base import known_to, threat_model
from privkit.attacks.inversion.white_box import WhiteBox
from privkit.attacks.order.jigsaw import Jigsaw
from privkit.parts.registry import parse

MODELS = {
    "query": "black_box drag_reorder fingerprints jigsaw member_inference mixture_posterior nearest_record "
    "posterior_mean ridge sara seen_tokens token_decoder vocabulary field_order:source=query",
    "weights": "field_order jigsaw_white_box model_completion token_search white_box vocabulary:source=lower",
    "many_passes": "adaptive adaptive:passes=2 union unmix jigsaw:passes=8 mixture_posterior:passes=8 ridge:passes=8",
    "weights_and_many_passes": "white_box:passes=8",
    "passive": "exploit fora gradient_matching label_leak mean_image mid_grey pcat release_clustering sdar "
    "tail_inversion unsplit",
    "malicious": "canaries fsha",
}
OF = {attack: model for model, attacks in MODELS.items() for attack in attacks.split()}


def test_every_attack_is_named_here() -> None:
    assert set(ATTACKS) <= {name.partition(":")[0] for name in OF}


@pytest.mark.parametrize("name", OF)
def test_what_an_attack_is_given_says_its_threat_model(name: str) -> None:
    assert threat_model(parse("attacks", name).spec) == OF[name]


def test_what_an_adversary_really_has_counts() -> None:
    """An attack that only uses queries is passive where there are none, and a white box with them knows weights."""
    assert threat_model(Jigsaw(), {"auxiliary"}) == "passive"
    assert threat_model(Jigsaw(), {"auxiliary", "lower"}) == "weights"
    assert threat_model(WhiteBox(), known_to(WhiteBox())) == threat_model(WhiteBox(), {"lower"}) == "weights"
