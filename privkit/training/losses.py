"""The server's loss: one value for each record, from one or several outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from privkit.attacks.scores.tokens import PADDING
from privkit.training.stacked import Stacked

Outputs = Any
"""The output of an upper segment: a tensor [N, L], or a tuple, list or dictionary of tensors [N, ...]."""


class OwnLoss(Protocol):
    """An upper segment with a loss of its own, for example over several heads. Its `forward` may return a tuple, list
    or dictionary of tensors. The first tensor holds the class scores, from which accuracy, MCC and AUC are computed.
    """

    def loss(self, outputs: Outputs, labels: Tensor) -> Tensor:
        """The loss of each of N records, [N].

        Args:
            outputs: the output of `forward` for these records.
            labels: class numbers, int64 [N]; or float [N, L] if each record has L labels, or if a defense mixed or
                noised labels of L classes; or texts as float token ids [N, T], if the model predicts texts.
        """


def multi_label(logits: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy [N] of logits [N, L], mean over labels; labels are float [N, L], or one int64 label [N]."""
    targets = labels if labels.ndim == 2 else one_hot(labels, logits.shape[-1])
    return binary_cross_entropy_with_logits(logits.float(), targets.float(), reduction="none").mean(1)


def next_tokens(texts: Tensor) -> Tensor:
    """For each token in texts [..., T], the token that follows it; padding for the last token."""
    return torch.cat([texts[..., 1:], torch.full_like(texts[..., :1], PADDING)], -1)


def next_token(logits: Tensor, texts: Tensor) -> Tensor:
    """Cross-entropy loss [N] of N texts [N, T], in which each token is predicted from the tokens before it.

    `logits` [N, T, words] score, after each token, the candidates for the next token. The loss is a mean over a text's
    tokens, and 0 for a text of one token.

    Source: Radford et al. 2018, "Improving language understanding by generative pre-training", Eq. 1; here it is
    averaged over a text instead of summed, so that texts have equal weight.
    """
    following = next_tokens(texts.long())
    losses = cross_entropy(logits.float().transpose(1, 2), following, ignore_index=PADDING, reduction="none")
    return losses.sum(1) / (following != PADDING).sum(1).clamp_min(1)


def with_loss(upper: nn.Module, name: str) -> nn.Module:
    """Give the upper segment the loss `name`, in place, unless it has a loss of its own; returns the segment."""
    if name == "multi_label" and own_loss(upper) is None:
        upper.loss = multi_label  # type: ignore[assignment]
    return upper


def own_loss(upper: nn.Module) -> Callable[[Outputs, Tensor], Tensor] | None:
    """The loss that an upper segment defines, also inside an adapter or a stack; None if it uses cross-entropy."""
    if callable(own := getattr(upper, "loss", None)):
        return own  # type: ignore[no-any-return]
    if isinstance(upper, nn.Sequential) and len(upper):
        return own_loss(upper[-1])
    return own_loss(upper.module) if isinstance(upper, Stacked) else None


def class_scores(outputs: Outputs) -> Tensor:
    """The class scores in an upper segment's output: the output itself, or the first of its tensors."""
    if isinstance(outputs, Mapping):
        outputs = list(outputs.values())
    first: Tensor = outputs[0] if isinstance(outputs, tuple | list) else outputs
    return first


def message_losses(outputs: Outputs, labels: Tensor, own: Callable[[Outputs, Tensor], Tensor] | None = None) -> Tensor:
    """The loss of each of M messages (batches of B records), [M]: the mean of the losses of its records.

    `labels` are class numbers [M, B]; mixed or several labels [M, B, L]; or texts [M, B, T]. Several labels and texts
    need the upper segment's `own` loss, one value per record; without it, the loss is cross-entropy.
    """
    rows = labels.flatten(0, 1)
    if own is not None:
        losses = own(outputs, rows if rows.ndim == 1 else rows.float()).float()
        if losses.shape != rows.shape[:1]:
            raise ValueError(
                f"the upper segment's loss must give one value per record, shape {[len(rows)]}, "
                f"got {list(losses.shape)}"
            )
        return losses.view(len(labels), -1).mean(1)
    logits = class_scores(outputs).float()
    if len(labels) == 1:
        return cross_entropy(logits, rows).unsqueeze(0)
    return cross_entropy(logits, rows, reduction="none").view(len(labels), -1).mean(1)
