"""Costs against arithmetic done by hand, and the memory meter against torch's profiler."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from privkit.domains.images.domain import Images
from privkit.metrics.cost import costs_of, peak_memory, sent_share
from privkit.models.convolutional import VGG16
from privkit.models.vit import VIT_BASE, VIT_MICRO, VIT_TINY6
from privkit.shared.costs import Costs

CPU = torch.device("cpu")
IMAGE = torch.zeros(1, 3, 2, 2)
LINEAR = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
CIFAR = torch.zeros(1, 3, 32, 32)


def test_a_linear_segment() -> None:
    cost = costs_of(LINEAR, IMAGE, trained=True)
    assert (cost.bytes_up, cost.bytes_down) == (5 * 4, 5 * 4)
    assert cost.client_macs == 12 * 5
    assert cost.client_training_macs == 2 * 12 * 5  # the gradient of the weights; nobody asks for the image's
    assert cost.client_parameters == 12 * 5 + 5
    assert (cost.bytes_up_model, cost.bytes_down_model, cost.bytes_seed) == (0, 0, 0)


def test_a_frozen_segment_gets_nothing_back_and_computes_forward_only() -> None:
    cost = costs_of(LINEAR, IMAGE, trained=False, averaged_every=1, seed_bytes=8)
    assert (cost.bytes_down, cost.bytes_up_model, cost.bytes_down_model) == (0, 0, 0)
    assert cost.client_training_macs == cost.client_macs == 12 * 5
    assert cost.a_round(4) == (4 * 20, 8)


def test_a_frozen_block_passes_the_gradient_on_but_learns_nothing() -> None:
    lower = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Linear(5, 7).requires_grad_(False))
    cost = costs_of(lower, IMAGE, trained=True, averaged_every=1)
    assert cost.client_macs == 12 * 5 + 5 * 7
    assert cost.client_training_macs == 2 * 12 * 5 + 2 * 5 * 7  # without the 5·7 of its own weights
    assert cost.bytes_up_model == (12 * 5 + 5) * 4


def test_a_companion_is_trained_and_sends_its_gradient_back() -> None:
    lower = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    alone = costs_of(lower, IMAGE, trained=True)
    cost = costs_of(lower, IMAGE, trained=True, companion=nn.Linear(5, 12))
    assert cost.client_macs == alone.client_macs
    assert cost.client_training_macs == 2 * 12 * 5 + 3 * 5 * 12
    assert cost.client_parameters == alone.client_parameters + 5 * 12 + 12
    assert cost.peak_memory > alone.peak_memory
    frozen = costs_of(lower, IMAGE, trained=False, companion=nn.Linear(5, 12))
    assert frozen.client_training_macs == 12 * 5 + 2 * 5 * 12


def test_a_transformer_block() -> None:
    lower = VIT_MICRO.build(Images(shape=(1, 28, 28)), 10, positions=True, seed=0).lower
    tokens, width, patch = 16, 96, 49
    block = tokens * width * (3 * width + width + 8 * width) + 2 * tokens * tokens * width
    cost = costs_of(lower, torch.zeros(1, 1, 28, 28), trained=True)
    embedding = tokens * patch * width
    assert cost.client_macs == embedding + block
    assert cost.client_training_macs == 2 * embedding + 3 * block
    assert cost.bytes_up == tokens * width * 4


@pytest.mark.parametrize("fused", [True, False])
def test_attention_counts_the_same_fused_or_not(fused: bool) -> None:
    class Attention(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q = x.flatten(2)
            if fused:
                return nn.functional.scaled_dot_product_attention(q, q, q)
            return (q @ q.transpose(1, 2)).softmax(-1) @ q

    assert costs_of(Attention(), torch.zeros(1, 5, 3, 2), trained=False).client_macs == 2 * 5 * 5 * 6


def test_a_fast_path_of_torch_cannot_hide_multiplications() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    cost = costs_of(nn.Sequential(nn.Flatten(2), layer), torch.zeros(1, 6, 2, 4), trained=False)
    assert cost.client_macs == 6 * 8 * (4 * 8 + 2 * 16) + 2 * 6 * 6 * 8
    assert torch.backends.mha.get_fastpath_enabled()


def test_payload_of_vit_tiny_on_cifar() -> None:
    lower = VIT_TINY6.build(Images(shape=(3, 32, 32)), 10, positions=True, seed=0).lower
    with torch.no_grad():
        tokens = lower(CIFAR).shape[1]
    assert tokens in (64, 65)  # with the class token, where the client owns it
    cost = costs_of(lower, CIFAR, trained=True, kept=0.5)
    assert cost.bytes_up == cost.bytes_down == tokens * 192 * 4 / 2
    assert cost.client_macs == 64 * (4 * 4 * 3) * 192


def test_payload_of_vgg_after_the_first_pooling() -> None:
    lower = VGG16.build(Images(shape=(3, 32, 32)), 10, positions=True, seed=0).lower
    cost = costs_of(lower, CIFAR, trained=True)
    assert cost.bytes_up == 64 * 16 * 16 * 4
    assert cost.client_macs == 32 * 32 * 9 * (3 * 64 + 64 * 64)


@pytest.mark.slow
def test_a_patch_embedding_of_vit_base() -> None:
    lower = replace(VIT_BASE, cut="embedding").build(Images(shape=(3, 224, 224)), 10, positions=True, seed=0).lower
    assert costs_of(lower, torch.zeros(1, 3, 224, 224), trained=False).client_macs == 196 * (16 * 16 * 3) * 768


@pytest.mark.parametrize(("gradient", "down"), [("unicast", 5.0), ("broadcast", 20.0), ("average", 20.0)])
def test_routing_decides_what_comes_back(gradient: Any, down: float) -> None:
    cost = costs_of(LINEAR, IMAGE, trained=True, kept=0.25, gradient=gradient, label_bytes=40, seed_bytes=8)
    assert (cost.bytes_up, cost.bytes_down) == (5.0 + 40, down)
    assert cost.a_round(3) == (3 * 45.0, 3 * down + 8)


def test_averaging_moves_weights_and_running_statistics() -> None:
    lower = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4))
    cost = costs_of(lower, IMAGE, trained=True, averaged_every=2)
    assert cost.bytes_up_model == cost.bytes_down_model == (3 * 4 + 4 * 4) * 4 / 2  # γ, β, mean, variance


def test_measuring_changes_nothing() -> None:
    lower = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Dropout(0.5)).train()
    before = {name: value.clone() for name, value in lower.state_dict().items()}
    state = torch.random.get_rng_state()
    costs_of(lower, torch.rand(1, 3, 2, 2, generator=torch.Generator().manual_seed(0)), trained=True, batch_size=4)
    assert all(torch.equal(value, before[name]) for name, value in lower.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in lower.parameters())
    assert lower.training
    assert torch.equal(torch.random.get_rng_state(), state)


def test_peak_memory_of_a_linear_segment_by_hand() -> None:
    images, weights, out = 100 * 12 * 4, (12 * 5 + 5) * 4, 100 * 5 * 4
    frozen = costs_of(LINEAR, IMAGE, trained=False, batch_size=100).peak_memory
    assert frozen == images + weights + out  # nothing comes back
    trained = costs_of(LINEAR, IMAGE, trained=True, batch_size=100).peak_memory
    assert trained == images + 4 * weights + 2 * out + 2 * 4  # gradient, two moments and their two step counters


def test_peak_memory_grows_by_the_images_and_their_activations() -> None:
    peaks = [costs_of(LINEAR, IMAGE, trained=True, batch_size=b).peak_memory for b in (100, 200, 300)]
    assert peaks[1] - peaks[0] == peaks[2] - peaks[1] == 100 * (12 + 5 + 5) * 4


def _step(module: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    def work() -> None:
        out = module(x)
        out.backward(torch.ones_like(out))
        module.zero_grad(set_to_none=True)

    return work


@pytest.mark.parametrize("cut", [0, 1])
def test_the_meter_sees_what_the_profiler_sees(cut: int) -> None:
    layers = [nn.Linear(1000, 500), nn.GELU(), nn.Linear(500, 200)]
    module, x = nn.Sequential(nn.Flatten(), *layers[: 1 + 2 * cut]), torch.rand(64, 1, 10, 100)
    resident = [*module.parameters(), x]
    work = _step(module, x)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    results = profiler.profiler.kineto_results  # type: ignore[union-attr]
    events = [(e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]"]
    allocated = torch.tensor([size for _, size in sorted(events, key=lambda event: event[0])]).cumsum(0)
    expected = int(allocated.max()) + sum(t.numel() * t.element_size() for t in resident)
    assert peak_memory(work, resident, CPU) == peak_memory(work, resident, CPU) == expected


@pytest.mark.parametrize("k", [2, 3, 5])
def test_exclusive_masks_send_one_kth_on_average(k: int) -> None:
    owner = torch.randint(k, (40, 64), generator=torch.Generator().manual_seed(k))
    share = nn.functional.one_hot(owner, k).transpose(1, 2).float()
    assert sent_share(share) == pytest.approx(1 / k, abs=1e-12)
    assert share.mean(-1).unique().numel() > 1  # though no client sends just that


def test_kept_share_of_mixup_is_all_and_of_an_empty_seat_nothing() -> None:
    assert sent_share(torch.full((3, 2, 1), 0.5)) == 1
    share = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [0.0, 0.0]]])  # a pair, and one left over
    present = torch.tensor([[True, True], [True, False]])
    assert sent_share(share, present) == pytest.approx(2 / 3)


def test_a_round_adds_up() -> None:
    cost = Costs(
        bytes_up=10,
        bytes_down=5,
        bytes_up_model=100,
        bytes_down_model=200,
        bytes_seed=8,
        client_macs=0,
        client_training_macs=0,
        client_parameters=0,
        peak_memory=0,
    )
    assert cost.a_round(3) == (130, 223)
