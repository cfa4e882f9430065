"""Costs against arithmetic done by hand."""

import torch
from torch import nn

from privkit.metrics.cost import measure
from privkit.models import VIT_MICRO


def test_a_linear_segment() -> None:
    cost = measure(nn.Sequential(nn.Flatten(), nn.Linear(12, 5)), torch.zeros(1, 3, 2, 2), trained=True)
    assert (cost.bytes_up, cost.bytes_down) == (5 * 4, 5 * 4)
    assert cost.client_macs == 12 * 5
    assert cost.client_parameters == 12 * 5 + 5


def test_a_frozen_segment_gets_nothing_back() -> None:
    assert measure(nn.Flatten(), torch.zeros(1, 1, 2, 2), trained=False).bytes_down == 0


def test_a_transformer_block() -> None:
    lower = VIT_MICRO.build((1, 28, 28), 10, positions=True, seed=0).lower
    tokens, width, patch = 16, 96, 49
    block = tokens * width * (3 * width + width + 8 * width) + 2 * tokens * tokens * width
    cost = measure(lower.eval(), torch.zeros(1, 1, 28, 28), trained=True)
    assert cost.client_macs == tokens * patch * width + block
    assert cost.bytes_up == tokens * width * 4
