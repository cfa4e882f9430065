"""What own tokens show of those of others."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Generator

from privkit.attacks.base import NotApplicable
from privkit.attacks.order.jigsaw import Jigsaw
from privkit.attacks.order.own_tokens import kept_share
from privkit.attacks.order.token_contents import match_own_tokens
from tests.attacks.order.puzzles import AUXILIARY, BATCH, T, guess, pixels, projected, run, scene, shuffled


def test_what_own_tokens_show_does_not_depend_on_whether_it_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do the ridge regression and the matching of own tokens on how much is looked at at once."""
    views, _, knowledge = scene(projected, keep=0.4)
    attack = Jigsaw(epochs=1, kicks=2)
    whole = run(attack, views, knowledge)
    monkeypatch.setattr("privkit.attacks.order.piece_solver.TABLE_NUMBERS", 0)
    monkeypatch.setattr("privkit.attacks.order.token_contents.NUMBERS_AT_ONCE", 1_000)
    part = run(attack, views, knowledge)
    assert (guess(part) == guess(whole)).double().mean() > 0.9
    same = (guess(part) == guess(whole)).view(2, -1).all(1).repeat_interleave(BATCH)
    torch.testing.assert_close(part.images[same], whole.images[same], rtol=1e-3, atol=1e-3)


def test_holds_no_more_own_tokens_than_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    views, _, knowledge = scene()
    monkeypatch.setattr("privkit.attacks.order.own_tokens.OWN_NUMBERS", 50 * T * (192 + 192))
    few, all_ = (
        run(Jigsaw(epochs=1, kicks=1), views, replace(knowledge, auxiliary=x)) for x in (AUXILIARY[:50], AUXILIARY)
    )
    assert torch.equal(few.images, all_.images)
    monkeypatch.setattr("privkit.attacks.order.own_tokens.MATCHED_TOKENS", BATCH * T - 1)
    with pytest.raises(NotApplicable, match="may be 79, but a message has 80"):
        run(Jigsaw(epochs=0), views, knowledge)


@pytest.mark.parametrize("keep", [1.0, 0.4])
def test_tokens_that_are_all_alike_do_not_look_mixed(keep: float) -> None:
    """Half of each image's patches are black: only the others can tell whether tokens leave their rows."""
    dark = torch.rand(110, 1, 4, 4, generator=Generator().manual_seed(5)) < 0.5
    images, found = AUXILIARY * dark.repeat_interleave(8, 2).repeat_interleave(8, 3), []
    for seed in range(4):
        draws = Generator().manual_seed(seed)
        released = torch.stack([shuffled(part, draws, pixels, keep)[0] for part in images.split(BATCH)])
        _, share, _ = match_own_tokens(released, pixels(images).unflatten(0, (-1, BATCH)))
        found.append(kept_share(share, BATCH))
    assert sum(found) / 4 == pytest.approx(int(keep * T) / T, abs=0.05)


@pytest.mark.parametrize(("keep", "lower"), [(1.0, pixels), (0.4, pixels), (0.4, projected)])
def test_own_tokens_are_found_again(keep: float, lower: Any) -> None:
    draws = Generator().manual_seed(4)
    messages = AUXILIARY.split(BATCH)
    released = torch.stack([shuffled(part, draws, lower, keep)[0] for part in messages])
    own, share, _ = match_own_tokens(released, pixels(AUXILIARY).unflatten(0, (-1, BATCH)))
    same = (own - lower(AUXILIARY).unflatten(0, (-1, BATCH))).abs().amax(3) < 1e-4
    assert same.double().mean() > 0.97
    assert kept_share(share, BATCH) == pytest.approx(int(keep * T) / T, abs=0.05)
