"""Who owns the class token: what crosses, what a shuffle may not lose, and that both ways are one network."""

from typing import Any

import pytest
import torch

from privkit.domains.images.domain import Images
from privkit.errors import UsageError
from privkit.models.pit import PIT_TINY, Pit
from privkit.models.t2t import T2T_VIT, T2tVit
from privkit.models.vit import Vit

SHAPE = (3, 32, 32)
IMAGES = Images(shape=SHAPE)
SPECS = [
    Vit(pool="token", cut="embedding"),
    Vit(pool="token", cut="block2"),
    T2tVit(width=48, depth=2, heads=2),
    T2tVit(width=48, depth=2, heads=2, cut="block1"),
]


def owned(spec: Any, owner: str) -> Any:
    from dataclasses import replace

    return replace(spec, class_token=owner)


@pytest.mark.parametrize("spec", SPECS)
def test_the_clients_class_token_is_token_zero(spec: Any) -> None:
    images = torch.rand(2, *SHAPE)
    servers = owned(spec, "server").build(IMAGES, 10, positions=True, seed=0)
    clients = owned(spec, "client").build(IMAGES, 10, positions=True, seed=0)
    assert (servers.class_token, clients.class_token) == ("server", "client")
    with torch.no_grad():
        without, with_token = servers.lower.eval()(images), clients.lower.eval()(images)
        assert with_token.shape[1] == without.shape[1] + 1
        assert clients.upper.eval()(with_token).shape == (2, 10)
        if spec.cut in ("embedding", "tokens"):  # no block ran: token 0 knows no image
            assert torch.equal(with_token[0, 0], with_token[1, 0])
            assert not torch.equal(with_token[0, 1], with_token[1, 1])
        # the server classifies by token 0 alone, whatever the order of the others
        order = torch.cat([torch.zeros(1, dtype=torch.int64), 1 + torch.randperm(with_token.shape[1] - 1)])
        logits = clients.upper(with_token)
        torch.testing.assert_close(clients.upper(with_token[:, order]), logits, atol=1e-5, rtol=0)
        assert (clients.upper(with_token.roll(1, 1)) - logits).abs().max() > 1e-4


def test_t2t_is_one_network_whoever_owns_the_class_token() -> None:
    spec, images = T2tVit(width=48, depth=2, heads=2), torch.rand(2, *SHAPE)
    found = []
    for owner in ("server", "client"):
        split = owned(spec, owner).build(IMAGES, 10, positions=True, seed=0)
        with torch.no_grad():
            found.append(split.upper.eval()(split.lower.eval()(images)))
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=0)


@pytest.mark.parametrize("spec", [*SPECS[:2], T2T_VIT])
def test_a_shuffle_refuses_the_clients_class_token(spec: Any) -> None:
    with pytest.raises(UsageError, match=r"could not find the class token again: take class_token=server"):
        owned(spec, "client").build(IMAGES, 10, positions=False, seed=0)
    assert owned(spec, "server").build(IMAGES, 10, positions=False, seed=0).class_token == "server"


def test_a_stage_of_pit_makes_the_class_token_the_clients() -> None:
    assert PIT_TINY.build(IMAGES, 10, positions=True, seed=0).class_token == "server"
    split = Pit(cut="stage1").build(IMAGES, 10, positions=True, seed=0)
    assert split.class_token == "client"
    assert split.lower(torch.zeros(1, *SHAPE)).shape == (1, 226, 64)
    with pytest.raises(UsageError, match="cut=embedding leaves it to the server"):
        Pit(cut="stage1").build(IMAGES, 10, positions=False, seed=0)


def test_no_class_token_without_its_pooling() -> None:
    with pytest.raises(ValueError, match="class_token=client needs pool=token"):
        Vit(class_token="client")
    assert Vit().build(IMAGES, 10, positions=True, seed=0).class_token == "none"
