"""NoPeek: distance correlation against a slow reference, its law, and its gradient where square roots have none."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor

from privkit.defenses.nopeek import NoPeek, distance_correlation


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=Generator().manual_seed(seed))


def slow(x: np.ndarray, y: np.ndarray) -> float:
    """Definition 4 of Székely, Rizzo and Bakirov, written out."""
    n = len(x)
    matrices = []
    for sample in (x, y):
        a = np.array([[np.sqrt(((u - v) ** 2).sum()) for v in sample] for u in sample])
        rows, grand = a.mean(1), a.mean()
        matrices.append([[a[k, l] - rows[k] - rows[l] + grand for l in range(n)] for k in range(n)])  # noqa: E741
    a, b = np.array(matrices[0]), np.array(matrices[1])
    covariance, first, second = (a * b).sum() / n**2, (a * a).sum() / n**2, (b * b).sum() / n**2
    return float(np.sqrt(covariance / np.sqrt(first * second)))


@given(n=st.integers(2, 9), p=st.integers(1, 5), q=st.integers(1, 5), seed=st.integers(0, 10**6))
def test_equals_the_definition(n: int, p: int, q: int, seed: int) -> None:
    x, y = normal(3, n, p, seed=seed), normal(3, n, q, seed=seed + 1)
    y[1] += x[1, :, :1].square()  # one message where they do depend on each other
    found = distance_correlation(x, y)
    assert found.tolist() == pytest.approx([slow(a.numpy(), b.numpy()) for a, b in zip(x, y, strict=True)], abs=1e-9)
    assert ((found >= 0) & (found <= 1 + 1e-12)).all()


def test_float32_has_six_digits_far_from_the_origin() -> None:
    x, y = normal(2, 50, 700), normal(2, 50, 300, seed=1)
    exact = distance_correlation(x + 100, y - 100)
    for shift, rtol in ((0, 2e-6), (100, 1e-4)):
        found = distance_correlation((x + shift).float(), (y - shift).float())
        torch.testing.assert_close(found.double(), exact, rtol=rtol, atol=0)


def test_is_one_for_rotated_scaled_and_moved_copies_and_small_for_strangers() -> None:
    x = normal(1, 400, 4)
    rotation = torch.linalg.qr(normal(4, 4, seed=3)).Q
    assert distance_correlation(x, 1e-3 * x @ rotation + 7).item() == pytest.approx(1)
    assert distance_correlation(x[:, :, :1], normal(1, 400, 1, seed=5)).item() < 0.15
    assert distance_correlation(x[:, :, :1], x[:, :, :1].square()).item() > 0.4  # no linear correlation there


@pytest.mark.parametrize("value", [0.0, 0.1, 123456.7])
def test_a_constant_has_none_and_a_finite_gradient(value: float) -> None:
    for dtype in (torch.float32, torch.float64):
        y = torch.full((1, 6, 3), value, dtype=dtype, requires_grad=True)
        found = distance_correlation(normal(1, 6, 2).to(dtype), y)
        found.sum().backward()
        assert found.item() == 0
        assert y.grad is not None
        assert y.grad.isfinite().all()


def test_coinciding_images_have_a_finite_gradient() -> None:
    x = normal(1, 6, 4)
    y = x.clone()
    y[:, 3] = y[:, 0]
    y.requires_grad_()
    distance_correlation(x, y).sum().backward()
    assert y.grad is not None
    assert y.grad.isfinite().all()
    assert y.grad.abs().sum() > 0


def test_penalty_is_weighted_per_message_and_its_gradient_is_the_derivative() -> None:
    images, smashed = normal(2, 5, 1, 4, 4).sigmoid(), normal(2, 5, 3, 2, seed=1).requires_grad_()
    found = NoPeek(weight=2.5).penalty(images, smashed, None)
    pairs = zip(images.flatten(2).numpy(), smashed.detach().flatten(2).numpy(), strict=True)
    assert found.tolist() == pytest.approx([2.5 * slow(x, z) for x, z in pairs])
    assert torch.autograd.gradcheck(lambda z: NoPeek(weight=2.5).penalty(images, z, None), (smashed,))


def test_descending_it_decorrelates() -> None:
    images = normal(1, 30, 1, 3, 3)
    smashed = (images.flatten(2) + 0.1 * normal(1, 30, 9, seed=1)).requires_grad_()
    optimizer = torch.optim.Adam([smashed], lr=0.1)
    before = NoPeek().penalty(images, smashed, None)
    for _ in range(50):
        optimizer.zero_grad()
        loss = NoPeek().penalty(images, smashed, None)
        loss.sum().backward()
        optimizer.step()
    assert before.item() > 0.9
    assert loss.item() < 0.5


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch of one has no distances"):
        NoPeek().penalty(torch.zeros(2, 1, 1, 4, 4), torch.zeros(2, 1, 3), None)
    with pytest.raises(ValueError, match="weight must be a finite number >= 0, got -1"):
        NoPeek(weight=-1)
