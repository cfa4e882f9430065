"""Adversarial training: one backward pass descends for the attacker and ascends for the client, within bounds."""

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.defenses.adversarial import Adversarial, SimulatedAttacker


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=Generator().manual_seed(seed))


def attacker_like(images: Tensor, smashed: Tensor) -> nn.Module:
    """An attacker that is close to the images already, and depends on the smashed data."""

    class Near(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(0.01 * uniform(smashed[0, 0].numel(), images[0, 0].numel(), seed=7))

        def forward(self, z: Tensor) -> Tensor:
            return images.flatten(0, 1) + (z.flatten(1) @ self.weight).view(-1, *images.shape[2:])

    return Near()


def test_both_sides_of_equation_9_come_from_one_backward_pass() -> None:
    images, smashed = uniform(2, 4, 1, 4, 4), uniform(2, 4, 3, 2, seed=1).requires_grad_()
    attacker = attacker_like(images, smashed)

    def error(z: Tensor) -> Tensor:  # the attacker's loss, written out
        guess = attacker(z.flatten(0, 1)).view_as(images)
        return torch.stack([nn.functional.mse_loss(guess[m], images[m]) for m in range(2)])

    for strength in (1.0, 0.3, 0.0):
        defense = Adversarial(strength=strength)
        found = defense.penalty(images, smashed, attacker)
        torch.testing.assert_close(found, error(smashed).float().double(), rtol=1e-5, atol=0)
        z_grad, w_grad = torch.autograd.grad(found.sum(), [smashed, *attacker.parameters()])
        z_true, w_true = torch.autograd.grad(error(smashed).sum(), [smashed, *attacker.parameters()])
        torch.testing.assert_close(w_grad, w_true, rtol=1e-5, atol=1e-12)
        torch.testing.assert_close(z_grad, -strength * z_true, rtol=1e-5, atol=1e-12)
        assert z_true.abs().sum() > 0


def test_the_reversal_reaches_nobody_elses_gradient() -> None:
    images, smashed = uniform(1, 4, 1, 4, 4), uniform(1, 4, 3, 2, seed=1).requires_grad_()
    attacker = attacker_like(images, smashed)
    alone = torch.autograd.grad(Adversarial().penalty(images, smashed, attacker).sum(), smashed)[0]
    task = smashed.square().sum()
    both = torch.autograd.grad(Adversarial().penalty(images, smashed, attacker).sum() + task, smashed)[0]
    torch.testing.assert_close(both, alone + 2 * smashed.detach())


def test_an_attacker_below_the_floor_is_not_pushed_further() -> None:
    """The mean image of a message is the floor; each image's push is its own."""
    images, smashed = uniform(1, 4, 1, 4, 4), uniform(1, 4, 3, 2, seed=1).requires_grad_()
    near = attacker_like(images, smashed)

    class Half(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return near(z) + torch.tensor([0.0, 0.0, 9.0, 9.0]).view(4, 1, 1, 1)

    gradient = torch.autograd.grad(Adversarial().penalty(images, smashed, Half()).sum(), smashed)[0][0]
    assert (gradient[:2].flatten(1).abs().sum(1) > 0).all()
    assert (gradient[2:] == 0).all()


def test_frozen_smashed_data_train_the_attacker_alone() -> None:
    images, smashed = torch.rand(2, 4, 1, 8, 8), torch.rand(2, 4, 16, 3)
    companion = Adversarial().companion((16, 3), (1, 8, 8), 0)
    Adversarial().penalty(images, smashed, companion).sum().backward()
    assert all(p.grad is not None and bool((p.grad != 0).any()) for p in companion.parameters())


@pytest.mark.parametrize("shape", [(16, 6), (6, 4, 4), (7,), (5, 6), (6, 3, 5), (4, 32, 32), (1, 9)])
@pytest.mark.parametrize("image", [(3, 8, 8), (1, 28, 28)])
def test_the_attacker_draws_images_from_any_smashed_data(shape: tuple[int, ...], image: tuple[int, int, int]) -> None:
    network = SimulatedAttacker(shape, image, 8)
    assert network(torch.rand(3, *shape)).shape == (3, *image)
    assert network(1e4 * torch.rand(3, *shape)).isfinite().all()


@pytest.mark.parametrize("shape", [(16, 6), (6, 4, 4), (7,)])
def test_larger_smashed_data_gain_the_client_nothing(shape: tuple[int, ...]) -> None:
    network, z = SimulatedAttacker(shape, (3, 8, 8), 8), 10 + torch.randn(3, *shape)
    torch.testing.assert_close(network(100 * z), network(z), rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_the_attacker_learns_to_invert_and_the_client_learns_to_resist() -> None:
    """Alone, the attacker beats the mean image by far; a client that ascends keeps it near; and nothing runs away."""
    images = torch.rand(1, 32, 1, 8, 8, generator=Generator().manual_seed(0))
    cells = images.unfold(3, 2, 2).unfold(4, 2, 2).reshape(1, 32, 16, 4)
    floor = (images - images.mean(1, keepdim=True)).square().mean().item()
    ends = {}
    for strength in (0.0, 1.0):
        defense = Adversarial(strength=strength, width=16)
        companion = defense.companion((16, 4), (1, 8, 8), 0)
        lower = nn.Linear(4, 4)
        nn.init.eye_(lower.weight)
        nn.init.zeros_(lower.bias)
        attack = torch.optim.Adam(companion.parameters(), lr=1e-2)
        client = torch.optim.Adam(lower.parameters(), lr=1e-2)
        errors = []
        for _ in range(200):
            attack.zero_grad()
            client.zero_grad()
            loss = defense.penalty(images, lower(cells), companion)
            loss.sum().backward()
            attack.step()
            client.step()
            errors.append(loss.item())
        ends[strength] = sum(errors[-50:]) / 50
        assert max(errors[50:]) < 3 * floor
    assert ends[0.0] < 0.3 * floor
    assert ends[1.0] > 2 * ends[0.0]


def test_companions_are_seeded_and_bad_input_is_refused() -> None:
    one, other = (Adversarial().companion((16, 3), (1, 8, 8), seed) for seed in (0, 1))
    weights = [list(network.parameters())[2] for network in (one, other)]
    assert not torch.equal(*weights)
    with pytest.raises(ValueError, match="pass what companion"):
        Adversarial().penalty(torch.zeros(1, 2, 1, 4, 4), torch.zeros(1, 2, 4, 3), None)
    with pytest.raises(ValueError, match="one image is its own mean"):
        Adversarial().penalty(torch.zeros(1, 1, 1, 4, 4), torch.zeros(1, 1, 4, 3), one)
    with pytest.raises(ValueError, match="strength must be a finite number >= 0"):
        Adversarial(strength=float("nan"))
    with pytest.raises(ValueError, match="width must be a whole number >= 1"):
        Adversarial(width=0)
    certificate = Adversarial().apply(torch.zeros(1, 2, 3), torch.zeros(1, 2), Generator())[1].certificate()
    assert certificate.kind == "nothing"
    assert "saddle point" in certificate.statement
