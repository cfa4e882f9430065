"""Patch shuffling of a model that keeps its position embedding, as a pretrained one is deployed."""

import pytest
import torch

from privkit.audit.assembled import assemble
from privkit.defenses.patch_shuffle import PatchShuffle
from privkit.errors import UsageError
from privkit.parts.registry import parse
from privkit.settings.resolve import resolve
from tests.small import IMAGES, digits, generator

Y = torch.zeros(1, 4)


def test_the_server_needs_no_order_and_the_tokens_tell_it() -> None:
    """Blocks of a transformer treat all tokens alike, so accuracy is kept; a token in another place is another one."""
    images = digits(4).x
    moved = images.roll(2, 3)  # by one patch: every patch in another place
    for positions in ("keep", "drop"):
        config = resolve({"defense": f"patch_shuffle:positions={positions}", "dataset": "tiny_digits"})
        defense = config.defenses[-1].spec
        edge, upper, hidden = assemble(config, defense, IMAGES, 10, 0)
        with torch.no_grad():
            tokens, elsewhere = (edge.eval().lowers(x.unsqueeze(0))[0] for x in (images, moved))
            released = defense.apply(tokens.unsqueeze(0), Y, generator())[0].smashed[0]
            torch.testing.assert_close(upper.eval()(released), upper(tokens), atol=1e-5, rtol=1e-4)
        assert not torch.equal(released, tokens)
        assert hidden is (positions == "drop")
        same = torch.cdist(elsewhere, tokens).amin(2) < 1e-3
        assert bool(same.all()) is (positions == "drop")


def test_nothing_is_proven_and_nothing_else_changes() -> None:
    z = torch.rand(1, 4, 9, 3, generator=generator())
    kept, dropped = (PatchShuffle(positions=word).apply(z, Y, generator(1)) for word in ("keep", "drop"))
    assert torch.equal(kept[0].smashed, dropped[0].smashed)
    assert torch.equal(kept[1].order, dropped[1].order)
    assert dropped[1].certificate().kind == "permutation_count"
    assert kept[1].certificate().kind == "nothing"
    assert "and so reveals that place" in kept[1].certificate().statement
    chain = parse("defenses", "gaussian_noise:sigma=2,clip=5+patch_shuffle:positions=keep").spec
    assert chain.position_embedding
    _, receipt = chain.apply(z, Y, generator(1))
    assert receipt.certificate().kind == "differential_privacy"
    assert "orderings" not in str(receipt.certificate())


def test_is_refused_in_a_sentence() -> None:
    with pytest.raises(UsageError, match="positions should be 'drop' or 'keep', got 'maybe'"):
        resolve({"defense": "patch_shuffle:positions=maybe", "dataset": "tiny_digits"})
    model = "vit_micro:pool=token,class_token=client"
    config = resolve({"defense": "patch_shuffle:positions=keep", "model": model, "dataset": "tiny_digits"})
    with pytest.raises(UsageError, match="could not find the class token again: leave the class token to the server"):
        assemble(config, config.defenses[-1].spec, IMAGES, 10, 0)
