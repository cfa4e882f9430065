"""Stacked copies are the copies: evaluated, trained and averaged as if each were alone."""

import pytest
import torch
from torch import Tensor, nn

import privkit.laws.models as laws
from privkit.training import Stacked


def small() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.Flatten(), nn.Linear(4 * 36, 5))


def different(copies: int) -> Stacked:
    """Copies with weights of their own."""
    stacked = Stacked(small(), copies)
    draws = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in stacked.parameters():
            weight.add_(torch.randn(weight.shape, generator=draws), alpha=0.1)
    return stacked


@pytest.mark.parametrize("training", [True, False])
def test_every_copy_sees_its_own_batch(training: bool) -> None:
    stacked = different(3).train(training)
    alone = [stacked.copy(i).train(training) for i in range(3)]
    x = torch.rand(3, 6, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(stacked(x), torch.stack([one(x[i]) for i, one in enumerate(alone)]))
    for name, running in stacked.module.named_buffers():  # the running statistics moved alike
        torch.testing.assert_close(running, torch.stack([one.get_buffer(name) for one in alone]))


def test_one_copy_is_the_module_bit_for_bit() -> None:
    module, x = small(), torch.rand(1, 6, 1, 8, 8)
    stacked = Stacked(module, 1)
    ours, theirs = stacked(x)[0], module(x[0])
    assert torch.equal(ours, theirs)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    for mine, plain in zip(stacked.parameters(), module.parameters(), strict=True):
        assert mine.grad is not None
        assert plain.grad is not None
        assert torch.equal(mine.grad[0], plain.grad)


def test_adamw_on_the_stack_is_adamw_on_each() -> None:
    stacked = different(3).eval()  # batch norm would give the bias before it a gradient of pure rounding
    alone = [stacked.copy(i).eval() for i in range(3)]
    modules: list[nn.Module] = [stacked, *alone]
    optimizers = [torch.optim.AdamW(module.parameters(), lr=1e-2, weight_decay=0.1) for module in modules]
    draws = torch.Generator().manual_seed(3)
    for _ in range(4):
        x = torch.rand(3, 6, 1, 8, 8, generator=draws)
        for optimizer in optimizers:
            optimizer.zero_grad()
        stacked(x).square().mean((1, 2)).sum().backward()
        for i, one in enumerate(alone):
            one(x[i]).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    for name, stack in stacked.module.named_parameters():
        torch.testing.assert_close(stack, torch.stack([one.get_parameter(name) for one in alone]), atol=1e-5, rtol=1e-4)


def test_rows_pick_copies_with_repetition() -> None:
    stacked = different(3).eval()
    x = torch.rand(2, 4, 1, 8, 8)
    torch.testing.assert_close(
        stacked(x, torch.tensor([2, 2])), torch.stack([stacked.copy(2).eval()(x[0]), stacked.copy(2).eval()(x[1])])
    )


def test_the_average_is_weighted_and_counters_stay() -> None:
    stacked = different(3)
    stacked(torch.rand(3, 6, 1, 8, 8))
    before = {name: value.clone() for name, value in stacked.module.state_dict().items()}
    weights = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    stacked.average(weights)
    for name, value in stacked.module.state_dict().items():
        old = before[name]
        if not old.is_floating_point():
            assert torch.equal(value, old)
            continue
        mean = 0.5 * old[0] + 0.25 * old[1] + 0.25 * old[2]
        torch.testing.assert_close(value, mean.expand_as(value))


def test_dropout_differs_between_copies() -> None:
    x = torch.ones(4, 2, 100)
    dropped = Stacked(nn.Dropout(), 4)(x)
    assert not torch.equal(dropped[0], dropped[1])


def test_attention_in_the_segment() -> None:
    from timm.models.vision_transformer import Block

    stacked = Stacked(Block(32, 2), 3).eval()
    x = torch.rand(3, 2, 5, 32)

    def one(i: int) -> Tensor:
        return stacked.copy(i).eval()(x[i])  # type: ignore[no-any-return]

    torch.testing.assert_close(stacked(x), torch.stack([one(i) for i in range(3)]))


def test_what_is_frozen_stays_frozen() -> None:
    module = small()
    module[0].requires_grad_(False)  # type: ignore[index]
    assert [p.requires_grad for p in Stacked(module, 2).parameters()] == [p.requires_grad for p in module.parameters()]


@pytest.mark.parametrize("copies", [1, 3])
def test_layers_that_share_a_weight_share_it_in_every_copy(copies: int) -> None:
    first, last = nn.Linear(5, 5), nn.Linear(5, 5)
    last.weight = first.weight
    module = nn.Sequential(first, nn.Tanh(), last)
    stacked = Stacked(module, copies)
    assert sum(weight.numel() for weight in stacked.parameters()) == copies * (25 + 5 + 5)
    optimizer = torch.optim.SGD(stacked.parameters(), lr=0.1)
    x = torch.rand(copies, 6, 5, generator=torch.Generator().manual_seed(0))
    stacked(x).square().sum().backward()
    optimizer.step()
    alone = [stacked.copy(number) for number in range(copies)]
    for one in alone:
        assert one.get_parameter("2.weight") is one.get_parameter("0.weight")
        assert not torch.equal(one.get_parameter("0.weight"), first.weight)
    torch.testing.assert_close(stacked(x), torch.stack([one(part) for one, part in zip(alone, x, strict=True)]))
    together, _, _ = laws.stacked(alone, x)
    torch.testing.assert_close(together, stacked(x))
    with stacked.records() as weights:
        stacked(x).square().sum().backward()
    assert set(weights) == {"0.weight", "0.bias", "2.bias"}
