"""Label inference by gradient matching: which label explains the returned gradient?"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import Mounting, NamingAttack, NotApplicable, Scores, Session
from privkit.attacks.goals.labels import Epoch, LabelObservation, one_against_rest
from privkit.attacks.returned import returned_gradients
from privkit.constraints import Count, Whole


@dataclass(frozen=True, kw_only=True)
class GradientMatching(NamingAttack):
    """Compute a surrogate server's gradient for each label, and guess the label that explains the returned gradient.

    The guess is the label whose gradient at the cut is nearest to the gradient that the server returned to the client.

    Attributes:
        positive: the label, an integer ≥ 0, whose records get the highest scores.
        distance: "mse", as published, or "cosine" (1 − cosine), which does not depend on the gradient's scale.
        message: number ≥ 1 of images over which a loss is averaged; it scales the candidate gradients for "mse". None:
            all rows of a view.
        epoch: the attacked epoch of training: a number from 0, or from the end (−1 is the last); "pooled" for all
            together, "every" for each by itself.

    The surrogate is `LabelObservation.upper`, in evaluation mode. With the server's own weights the attack is exact. In
    UnSplit's setting, the surrogate has the same architecture and random weights; then the attack works only at a cut
    before the last layer, and the found labels can be a permutation of the true ones.

    Source: Erdoğan et al. 2022, "UnSplit", §3.3, who compare the gradient of one layer.
    """

    name: ClassVar[str] = "gradient_matching"
    needs: ClassVar[frozenset[str]] = frozenset({"upper"})
    mounting: ClassVar[Mounting[LabelObservation, Scores]] = Mounting()

    positive: Whole = 1
    distance: Literal["mse", "cosine"] = "mse"
    message: Count | None = None
    epoch: Epoch = "pooled"

    def run(self, observation: LabelObservation, generator: Generator, session: Session | None = None) -> Scores:
        distances, examples = self.distances(observation)
        return one_against_rest(-distances, self.positive, examples)

    def distances(self, observation: LabelObservation) -> tuple[Tensor, Tensor]:
        """Compare each row's returned gradient with the surrogate's gradient for each label.

        Returns the distances, float [N, L] for N rows and L ≥ 2 labels (smaller for likelier labels), and the indices
        of these rows among all released rows, int64 [N].
        """
        views, upper = observation.views, observation.upper
        if upper is None:
            raise NotApplicable("gradient_matching needs `upper`, the server's segment or a surrogate of it")
        received, numbers, examples = returned_gradients(self.name, views)
        if any(view.mixed > 1 for view in views):
            raise NotApplicable("gradient_matching tries one label per row, and mixed rows have several")
        upper = deepcopy(upper).eval().requires_grad_(False)
        parts = []
        for number in numbers.unique().tolist():
            view = views[number]
            candidates = label_gradients(upper, view.smashed) / (self.message or len(view.smashed))
            own = received[numbers == number]
            if self.distance == "cosine":
                parts.append(1 - nn.functional.cosine_similarity(candidates, own, dim=2).T)
            else:
                parts.append((candidates - own).square().mean(2).T)
        return torch.cat(parts), examples


def label_gradients(upper: nn.Module, smashed: Tensor, labels: Tensor | None = None) -> Tensor:
    """Compute the gradient of N records' cross-entropy at their smashed data (F numbers), for all L labels: [L, N, F].

    With `labels` [A, N], only these A labels of each record are tried, and the result is [A, N, F]. `upper` maps
    smashed data to logits [N, L ≥ 2], each record independently. One batched backward pass covers all labels, since the
    gradient at the logits is softmax minus one-hot.
    """
    weight = next(upper.parameters(), smashed)
    at = smashed.detach().to(weight.device).requires_grad_()
    try:
        with torch.enable_grad():
            logits = upper(at)
    except RuntimeError as reason:
        raise NotApplicable(f"the surrogate cannot take smashed data {list(smashed.shape)}: {reason}") from None
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise NotApplicable(f"the surrogate must give logits [N, L] with L >= 2, got {list(logits.shape)}")
    one_hot = torch.eye(logits.shape[1], device=at.device, dtype=logits.dtype)
    tried = one_hot.unsqueeze(1) if labels is None else one_hot[labels.to(at.device)]
    back = logits.detach().softmax(1).unsqueeze(0) - tried
    (gradients,) = torch.autograd.grad(logits, at, back, is_grads_batched=True)
    return gradients.flatten(2).to(smashed.device)
