"""Max-norm: the expected norm of every gradient is the longest one's, and its direction stays."""

import pytest
import torch

from privkit.defenses.max_norm import MaxNorm
from tests.small import generator


@pytest.mark.slow
def test_the_expected_square_norm_is_that_of_the_longest_gradient_of_the_message() -> None:
    lengths = torch.tensor([[0.1, 1.0, 3.0], [2.0, 0.5, 1.0]], dtype=torch.float64)
    g = torch.nn.functional.normalize(
        torch.randn(2, 3, 4, 5, dtype=torch.float64, generator=generator()).flatten(2), dim=2
    )
    g = (g * lengths.unsqueeze(2)).view(2, 3, 4, 5)
    draws = generator(1)
    sent = torch.stack([MaxNorm().on_gradient(g, draws) for _ in range(20_000)])
    squares = sent.flatten(3).square().sum(3)
    longest = lengths.amax(1, keepdim=True).square().expand(2, 3)
    error = 5 * squares.std(0) / 20_000**0.5 + 1e-9
    assert ((squares.mean(0) - longest).abs() <= error).all()
    torch.testing.assert_close(sent[:, 0, 2], g[0, 2].expand_as(sent[:, 0, 2]))  # the longest stays as it is
    cosine = torch.nn.functional.cosine_similarity(sent.flatten(3), g.flatten(2).expand(20_000, 2, 3, 20), dim=3)
    torch.testing.assert_close(cosine.abs(), torch.ones_like(cosine))
    torch.testing.assert_close(sent.mean(0), g, rtol=0, atol=0.1)  # unbiased


def test_zero_gradients_stay_and_a_message_of_zeros_is_no_division_by_zero() -> None:
    g = torch.zeros(1, 3, 4)
    assert MaxNorm().on_gradient(g, generator()).equal(g)
    g[0, 0] = 1
    assert MaxNorm().on_gradient(g, generator()).equal(g)


def test_of_two_classes_norms_tell_less_and_of_several_the_line_tells_all() -> None:
    """A gradient is its class's direction times a length, which is long where the class is rare."""
    from sklearn.metrics import roc_auc_score

    draws = generator(2)
    labels = torch.arange(2000) % 10
    rare = labels == 0
    size = torch.where(rare, 9.0, 1.0) * (0.5 + torch.rand(2000, generator=draws))
    directions = torch.linalg.qr(torch.randn(16, 16, generator=draws)).Q[:10]
    g = size.unsqueeze(1) * (directions[labels] + 0.05 * torch.randn(2000, 16, generator=draws))
    sent = MaxNorm().on_gradient(g.view(20, 100, 16), draws).view(2000, 16)
    assert roc_auc_score(rare, g.norm(dim=1)) > 0.99
    assert roc_auc_score(rare, sent.norm(dim=1)) < 0.8
    named = (sent @ directions.T).abs().argmax(1)
    assert (named == labels).float().mean() > 0.99
