"""A backward pass comes before any pretended device: autograd then starts no threads, and later tests may fork."""

import torch

torch.ones(1, requires_grad=True).sum().backward()
