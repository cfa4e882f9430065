"""Bounded cuts, scaling and masking: gradients that are the derivative, declared others, and estimated settings."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privkit.defenses.base import Defense
from privkit.defenses.chain import Chain
from privkit.defenses.clip import Bounded
from privkit.defenses.denoising import Denoiser, Denoising, Masking, Scaling, best_keep, best_scale
from privkit.defenses.noise import GaussianNoise, LaplaceNoise
from privkit.domains.images.domain import Images
from privkit.errors import UsageError
from privkit.papers.accurate_sl import denoising as theory
from privkit.parts.registry import parse
from privkit.training import Clients, TrainingSpec, evaluate, train
from privkit.training.round import split_round
from tests.papers.layers import layer_at
from tests.small import SHAPE, digits, generator

WIDTH = 6


class Halves(nn.Module):
    """Two linear layers in double precision, cut between them without a bound."""

    @staticmethod
    def build(defense: Defense, *, upper: nn.Module | None = None) -> tuple[Clients, nn.Module]:
        torch.manual_seed(0)
        lower = nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH))
        edge = Clients.build(lower, defense, Images(shape=SHAPE), classes=10, seed=0)
        return edge, edge.fitted(upper or nn.Linear(WIDTH, 10), Images(shape=SHAPE), 0)


def chain(text: str) -> Defense:
    spec: Defense = parse("defenses", text).spec
    return spec


def gradients(text: str) -> tuple[Tensor, Tensor, Tensor]:
    """After one round: at the cut, of the server's first layer, and of the client's layer."""
    edge, upper = Halves.build(chain(text))
    data = digits(8)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        split_round(edge, upper, data.x.unsqueeze(0), data.y.unsqueeze(0), generator(5))
    server = next(layer for layer in upper.modules() if isinstance(layer, nn.Linear))
    client = edge.lowers.module.get_parameter("1.weight")
    assert server.weight.grad is not None
    assert server.bias.grad is not None
    assert client.grad is not None
    return server.bias.grad, server.weight.grad, client.grad


@pytest.mark.parametrize(
    "text",
    [
        "bounded+gaussian_noise:sigma=.7+masking:keep=.5@server+scaling:factor=.3@server",
        "bounded+laplace_noise:scale=.3+scaling:factor=2@client+masking:keep=.5@client",
        "bounded:bound=cut+gaussian_noise:clip=none",
    ],
)
def test_the_chain_has_the_derivative(text: str) -> None:
    spec = chain(text)
    z = (0.4 * torch.randn(1, 2, 5, generator=generator(), dtype=torch.float64)).requires_grad_()

    def released(values: Tensor) -> Tensor:
        return spec.apply(values, torch.zeros(1, 2), generator(1))[0].smashed

    assert torch.autograd.gradcheck(released, (z,))


@pytest.mark.parametrize("text", ["scaling:factor=.3,variant=logits", "masking:keep=.5,variant=logits"])
def test_a_stage_on_logits_has_the_derivative(text: str) -> None:
    head = chain(text).head()
    assert head is not None

    def changed(values: Tensor) -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            out: Tensor = head.train()(values)
        return out

    logits = torch.randn(3, 4, generator=generator(), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(changed, (logits,))
    assert not torch.equal(changed(logits), logits)


@pytest.mark.parametrize("stage", [Scaling(factor=0.3), Masking(keep=0.5)])
@pytest.mark.parametrize("variant", ["straight_through", "straight_through_logits"])
def test_straight_through_has_the_values_and_the_gradient_of_no_stage(stage: Any, variant: Any) -> None:
    twin = type(stage)(**{stage.setting: getattr(stage, stage.setting), "variant": variant})
    z = torch.randn(2, 3, 4, generator=generator(), requires_grad=True)
    made = twin.applied(z, generator(1))
    assert torch.equal(made, stage.applied(z, generator(1)))
    (gradient,) = torch.autograd.grad(made.sum(), z)
    assert torch.equal(gradient, torch.ones_like(z))
    assert stage.remarks == ()
    assert "released" in twin.remarks[0]


def test_scaling_that_is_undone_trains_the_servers_first_layer_on_unscaled_numbers() -> None:
    bias, weight, client = gradients("gaussian_noise+scaling:factor=.25,variant=undone")
    same = gradients("gaussian_noise+scaling:factor=.25,variant=straight_through")
    exact = gradients("gaussian_noise+scaling:factor=.25")
    assert torch.equal(bias, same[0])
    assert torch.equal(client, same[2])
    torch.testing.assert_close(weight, same[1] / 0.25)
    torch.testing.assert_close(client, exact[2] / 0.25)


def test_a_scale_of_logits_is_the_scale_of_the_servers_last_layer() -> None:
    bias, weight, client = gradients("gaussian_noise+scaling:factor=.25,variant=straight_through_logits")
    exact = gradients("gaussian_noise+scaling:factor=.25,variant=logits")
    for straight, true in zip((bias, weight, client), exact, strict=True):
        torch.testing.assert_close(straight, true / 0.25)


def test_the_fault_may_stand_behind_a_tanh_and_the_row_hears_of_it() -> None:
    z = torch.randn(1, 2, 5, generator=generator(), dtype=torch.float64, requires_grad=True)
    faulty, right = (chain(f"bounded+gaussian_noise:sigma=.7{flag}+scaling") for flag in (",noise_in_place=true", ""))
    made = [spec.apply(z, torch.zeros(1, 2), generator(1))[0].smashed for spec in (faulty, right)]
    assert torch.equal(*made)
    wrong, true = (torch.autograd.grad(each.sum(), z)[0] for each in made)
    assert (wrong < 0).any()
    assert (true > 0).all()
    assert "fault" in faulty.remarks[0]
    assert right.remarks == ()


def test_a_tanh_proves_what_a_clip_to_one_proves() -> None:
    z, y = 3 * torch.randn(1, 2, 5, generator=generator()), torch.zeros(1, 2)
    found = [
        chain(text).apply(z, y, generator())[1].certificate().epsilon
        for text in ("bounded+gaussian_noise:sigma=4,clip=none", "gaussian_noise:sigma=4,clip=1")
    ]
    assert found[0] == found[1] < float("inf")
    assert torch.equal(Bounded().public_transform(z), z.tanh())
    assert chain("gaussian_noise:clip=none").apply(z, y, generator())[1].certificate().kind == "nothing"


# Estimated settings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", [nn.Linear(12, 7), nn.Conv2d(3, 5, 2)], ids=["linear", "convolution"])
@pytest.mark.parametrize("noise", [GaussianNoise(sigma=0.5), LaplaceNoise(scale=0.4)], ids=lambda noise: noise.name)
def test_estimates_of_the_server_are_those_of_the_theory(layer: nn.Module, noise: Any) -> None:
    torch.manual_seed(1)
    with torch.no_grad():
        layer.get_parameter("weight").add_(0.1)  # A above B, so that p* is neither 0 nor 1
    x = torch.rand(12)
    shape = (12,) if isinstance(layer, nn.Linear) else (3, 2, 2)
    upper = nn.Sequential(nn.Flatten() if isinstance(layer, nn.Linear) else nn.Identity(), layer)
    for stage in (Scaling(factor="auto"), Masking(keep="auto")):
        denoiser = Denoiser(stage, noise.variance, upper).train()
        for number in range(40):
            many = x.expand(1, 500, 12)
            noisy = noise.apply(many, torch.zeros(1, 500), generator(number))[0].smashed
            denoiser(noisy.view(500, *shape))
        weight = layer.get_parameter("weight").detach().flatten(1).double().numpy()
        truth = layer_at(weight, x.double().numpy())
        law = theory.CutNoise(
            law="gaussian" if isinstance(noise, GaussianNoise) else "laplace", scale=noise_scale(noise)
        )
        best = theory.least_mse_scale(truth, law) if stage.setting == "factor" else theory.least_mse_keep(truth, law)
        assert denoiser.setting == pytest.approx(best, abs=0.02)


def noise_scale(noise: Any) -> float:
    return float(noise.sigma if isinstance(noise, GaussianNoise) else noise.scale)


def test_the_best_settings_are_those_of_the_theory_for_any_layer() -> None:
    draws = torch.rand(200, 4, generator=generator()).tolist()
    for signal, diagonal, weight, sigma in draws:
        layer = theory.LinearLayer(signal=signal, diagonal=diagonal, weight=weight)
        noise = theory.CutNoise(law="gaussian", scale=2 * sigma)
        spread = noise.variance * weight
        assert best_scale(signal, spread) == pytest.approx(theory.least_mse_scale(layer, noise))
        assert best_keep(signal, diagonal, spread) == pytest.approx(theory.least_mse_keep(layer, noise))


def test_an_estimated_setting_is_trained_kept_and_left_out_of_noise_free_tests() -> None:
    edge, upper = Halves.build(chain("bounded+gaussian_noise:sigma=2+scaling:factor=auto"))
    (denoiser,) = (part for part in upper.modules() if isinstance(part, Denoiser))
    data = digits(100)
    train(edge, upper, data, TrainingSpec(batch_size=20), epochs=2, seed=0)
    learned = denoiser.setting
    assert 1e-3 < learned < 0.7
    assert f"{learned:.3g}" in denoiser.remark
    assert {"0.sums", "0.rounds"} < set(upper.state_dict())
    free = evaluate(edge, upper, data, batch_size=20, seed=0, noise_free=True)
    plain = nn.Sequential(edge.lowers.copy(0), nn.Tanh(), upper.get_submodule("1")).eval()
    assert free.accuracy.value == (plain(data.x).argmax(1) == data.y).double().mean().item()
    assert denoiser.setting == learned
    assert not denoiser.off


# Bad input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("scaling:factor=0", "factor must be a finite number >= 1e-30"),
        ("masking:keep=1.5", "keep must be a finite number >= 0 and <= 1, or auto, got 1.5"),
        ("masking:variant=undone", "a mask has none"),
        ("scaling:variant=logits@client", "variant=logits is a step of the server, got place=client"),
        ("scaling:factor=auto,variant=undone", "variant exact or straight_through"),
        ("scaling:variant=undone+gaussian_noise@server", "put it behind all other stages"),
        ("bounded:bound=relu", "bound"),
    ],
)
def test_what_a_stage_cannot_do_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse("defenses", text)


def test_a_cut_that_is_called_bounded_and_is_not_stops_the_run() -> None:
    edge, upper = Halves.build(Bounded(bound="cut"))
    with torch.no_grad():
        edge.lowers.module.get_parameter("1.weight").mul_(100)
    with pytest.raises(UsageError, match=r"lie in \[-1, 1\], but one number has size .*; use bound=tanh"):
        train(edge, upper, digits(20), TrainingSpec(batch_size=20), epochs=1, seed=0)


def test_an_estimate_needs_noise_before_it_and_a_linear_layer_behind_it() -> None:
    with pytest.raises(UsageError, match="scaling:factor=auto needs the variance of the noise; put it directly behind"):
        Halves.build(Scaling(factor="auto"))
    with pytest.raises(UsageError, match="masking:keep=auto needs a server's segment that begins with a linear layer"):
        Halves.build(
            Chain(stages=(GaussianNoise(), Masking(keep="auto"))), upper=nn.Sequential(nn.ReLU(), nn.Linear(WIDTH, 10))
        )


def test_a_stage_on_logits_needs_one_output_and_no_loss_of_its_own() -> None:
    class Own(nn.Linear):
        def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
            return outputs.sum(1)

    stage = Scaling(variant="logits")
    with pytest.raises(UsageError, match="a loss of its own; use variant=exact"):
        Halves.build(stage, upper=Own(WIDTH, 10))
    head = stage.head()
    assert head is not None
    with pytest.raises(UsageError, match="one output, got several"):
        head((torch.zeros(1, 2), torch.zeros(1, 2)))
    assert isinstance(stage, Denoising)
