"""The client: lower segment, defense and, where the defense asks for it, the paper's frozen block."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from privkit.defenses.base import Defense, Receipt, Release, require_tokens
from privkit.training.seeded import seeded


def frozen_block(dim: int, seed: int) -> nn.Module:
    """The extra transformer block that runs at the edge after the shuffle; its weights are public and never trained.

    T2T-ViT's block: MLP ratio 3, heads of 64 channels (at least one head).

    Args:
        dim: token size.
        seed: of the weights.

    Source: Yao et al., patch shuffling, §IV-B ("the model weights of the additional transformer block are fixed").
    """
    from timm.models.vision_transformer import Block

    heads = max(h for h in range(1, max(1, dim // 64) + 1) if dim % h == 0)
    with seeded(torch.device("cpu"), seed):
        return Block(dim, heads, mlp_ratio=3.0, qkv_bias=True).requires_grad_(False)


class Client(nn.Module):
    """Everything at the edge. Its `forward` is the undefended path, for counting costs; `release` is the real one.

    Args:
        lower: the lower segment.
        defense: applied to its output.
        block: the frozen block, or None.
    """

    def __init__(self, lower: nn.Module, defense: Defense, block: nn.Module | None = None) -> None:
        super().__init__()
        self.lower, self.block, self.defense = lower, block, defense

    @classmethod
    def build(cls, lower: nn.Module, defense: Defense, image_shape: tuple[int, int, int], seed: int) -> Client:
        """Add the frozen block, if the defense asks for it.

        Raises:
            ValueError: if the lower segment gives no tokens for it to run on.
        """
        if not defense.frozen_block:
            return cls(lower, defense)
        training = lower.training
        with torch.no_grad():  # in eval mode, so that a look at the shape draws nothing and moves no running mean
            _, _, dim = require_tokens("frozen_block", lower.eval()(torch.zeros(1, *image_shape)))
        lower.train(training)
        return cls(lower, defense, frozen_block(dim, seed))

    def forward(self, images: Tensor) -> Tensor:
        """Images to smashed data, without the defense."""
        smashed = self.lower(images)
        return smashed if self.block is None else self.block(smashed)

    def release(self, images: Tensor, labels: Tensor, generator: Generator) -> tuple[Release, Receipt]:
        """What leaves the client for one batch, differentiable in the lower segment's weights."""
        release, receipt = self.defense.apply(self.lower(images), labels, generator)
        if self.block is not None:
            release = Release(smashed=self.block(release.smashed), labels=release.labels)
        return release, receipt
