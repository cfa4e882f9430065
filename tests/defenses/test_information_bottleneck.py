"""The information bottleneck against its law: the noise, the divergence, and what a clip in front of it earns."""

from dataclasses import replace

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from privkit.defenses.base import Defense
from privkit.defenses.chain import Chain
from privkit.defenses.clip import Clip
from privkit.defenses.dp_cutmixsl import DpSl
from privkit.defenses.information_bottleneck import InformationBottleneck
from privkit.defenses.noise import GaussianNoise, LaplaceNoise
from privkit.defenses.rules import check_chain
from privkit.parts.registry import parse
from tests.small import generator

WEIGHT = 0.5


def smashed(*shape: int) -> Tensor:
    return 2 * torch.randn(*shape, generator=generator(), dtype=torch.float64)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.5])
def test_what_is_added_is_normal_with_standard_deviation_sigma(sigma: float) -> None:
    h = smashed(2, 50, 40)
    release, _ = InformationBottleneck(sigma=sigma).apply(h, torch.zeros(2, 50), generator(1))
    noise = (release.smashed - h).flatten()
    assert stats.kstest(noise.numpy(), stats.norm(scale=sigma).cdf).pvalue > 0.01
    other, _ = InformationBottleneck(sigma=sigma).apply(h, torch.zeros(2, 50), generator(2))
    assert abs(torch.corrcoef(torch.stack([noise, (other.smashed - h).flatten()]))[0, 1]) < 0.1


@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("shape", [(2, 5, 7), (2, 5, 3, 4), (2, 5, 2, 3, 3)], ids=str)
def test_the_penalty_is_the_mean_divergence_from_a_standard_normal(sigma: float, shape: tuple[int, ...]) -> None:
    h = smashed(*shape).requires_grad_()
    sent = Normal(h, torch.full_like(h, sigma))
    every = kl_divergence(sent, Normal(torch.zeros_like(h), torch.ones_like(h)))
    found = InformationBottleneck(weight=WEIGHT, sigma=sigma).penalty(torch.zeros(()), h, None)
    torch.testing.assert_close(found, WEIGHT * every.flatten(2).sum(2).mean(1))
    found.sum().backward()
    torch.testing.assert_close(h.grad, WEIGHT * h.detach() / shape[1])


def test_the_divergence_bounds_the_information() -> None:
    """Two records are sent as ±m; what a release tells of the record, by quadrature, is below the divergence."""
    for mean, sigma in ((0.2, 1.0), (1.0, 0.5), (3.0, 1.0)):
        z = torch.linspace(-12, 12, 20_001, dtype=torch.float64)
        each = [Normal(sign * mean, sigma).log_prob(z) for sign in (1.0, -1.0)]
        mixed = torch.logaddexp(*each) - torch.tensor(2.0).log()
        information = sum(torch.trapezoid(one.exp() * (one - mixed), z).item() for one in each) / 2
        h = torch.tensor([[[mean], [-mean]]], dtype=torch.float64)
        assert 0 < information < InformationBottleneck(weight=1, sigma=sigma).penalty(h, h, None).item()


def test_descending_it_sends_less() -> None:
    lower, images = nn.Linear(6, 4), torch.rand(1, 30, 6, generator=generator())
    optimizer, defense = torch.optim.Adam(lower.parameters(), lr=0.05), InformationBottleneck(weight=1.0)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = defense.penalty(images, lower(images), None).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.05 * losses[0]


def test_nothing_is_proven_without_a_clip_and_the_noise_is_charged_behind_one() -> None:
    h, labels = smashed(1, 4, 6), torch.zeros(1, 4)
    bottleneck = InformationBottleneck(sigma=4.0)
    alone = bottleneck.apply(h, labels, generator())[1].certificate()
    assert alone.kind == "nothing"
    claims = [
        defense.apply(h, labels, generator())[1].certificate()
        for defense in (
            GaussianNoise(sigma=4.0, clip=1.0),
            InformationBottleneck(sigma=4.0, clip=1.0),
            Chain(stages=(Clip(bound=1.0), bottleneck)),
        )
    ]
    assert claims[0].kind == "differential_privacy"
    assert claims[0].epsilon == claims[1].epsilon == claims[2].epsilon


def test_it_stands_where_other_noise_of_each_coordinate_stands() -> None:
    for behind in ("batch_shuffle", "clip:bound=1.0"):
        check_chain([parse("defenses", behind).spec, InformationBottleneck()])
    with pytest.raises(ValueError, match="both add noise to the smashed data"):
        check_chain([InformationBottleneck(), GaussianNoise()])
    with pytest.raises(ValueError, match="clip after information_bottleneck does not bound what the noise hides"):
        check_chain([InformationBottleneck(), Clip(bound=1.0)])


@pytest.mark.parametrize("size", [1e-30, 1e30])
@pytest.mark.parametrize("kind", [GaussianNoise, LaplaceNoise, InformationBottleneck, DpSl])
def test_the_smallest_and_largest_settings_work(kind: type[Defense], size: float) -> None:
    """A clip beyond float32 stopped the run after the training, and the square of a tiny σ had no logarithm."""
    bound = "bound" if kind is DpSl else "clip"
    scale = min(size, 1e15) if kind is InformationBottleneck else size
    defense = kind(**{kind.noise_fields[0]: scale, bound: size})  # type: ignore[arg-type]
    z, y = torch.rand(1, 50, 6, generator=generator()), torch.eye(2)[[0] * 50].unsqueeze(0)
    release, receipt = defense.apply(z, y, generator())
    penalty = defense.penalty(z, z, None)
    assert release.smashed.isfinite().all()
    assert penalty is None or penalty.isfinite()
    assert receipt.certificate().epsilon > 0


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"sigma must be a finite number >= 1e-30 and <= 1e\+15, got 0"):
        InformationBottleneck(sigma=0)
    with pytest.raises(ValueError, match="weight must be a finite number >= 0, got -1"):
        replace(InformationBottleneck(), weight=-1)
