"""Infers labels in a U-shaped split from the gradient at the second cut, if the adversary knows the last layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import Mounting, NamingAttack, NotApplicable, Scores, Session
from privkit.attacks.goals.labels import LabelObservation, one_against_rest
from privkit.attacks.returned import returned_gradients
from privkit.constraints import Whole
from privkit.torch_utils.out_of_memory import in_chunks

_NUMBERS = 2**22  # scores that are computed at once


@dataclass(frozen=True, kw_only=True)
class TailInversion(NamingAttack):
    """Infer labels in a U-shape by comparing the sent gradient with the known last layer's gradient for every label.

    In a U-shape, the server sends features to the clients, who hold the last layer and return the gradient. So the
    server knows the features h. If it also knows the last layer, p = softmax(Wh + b), it can compute the gradient Wᵀ(p
    − e_y) for each label y, where e_y is 1 for label y and 0 otherwise. The sent gradient's length depends on the
    weight of each record, which only the clients know. So the score of a label is the cosine between its gradient and
    the sent gradient; for the right label it is 1.

    The server uses the layer's weights before training. It knows them if the model is published; a randomly drawn layer
    is the client's secret. Clients train the layer in every round, so the attack works best in the first epoch.

    Attributes:
        on: "direction" of the gradient, or "line", the direction up to its sign, since defenses such as `max_norm` can
            reverse the sign. If there are only two labels, both have the same line.
        positive: the label, an integer ≥ 0, whose records get the highest scores.
        epoch: the attacked epoch of training, a number counted from 0.

    Raises:
        NotApplicable: by `run`, if the last layer is unknown or not linear.

    Source: privkit's own; the gradient: Zhao, Mopuri and Bilen 2020, "iDLG: improved deep leakage from gradients", Eq.
    3, who infer a label from the gradient's sign at the logits.

    >>> from privkit.attacks.goals.labels import observe
    >>> tail, rows, labels = nn.Linear(4, 9), torch.rand(30, 4), torch.arange(30) % 9
    >>> seen = observe(nn.Identity(), tail, rows, labels, batch_size=10)
    >>> known = LabelObservation(image_shape=(4,), batch_size=10, views=seen.views, tail=tail)
    >>> TailInversion().run(known, Generator()).of_labels.argmax(1).equal(labels)
    True
    """

    name: ClassVar[str] = "tail_inversion"
    needs: ClassVar[frozenset[str]] = frozenset({"tail"})
    mounting: ClassVar[Mounting[LabelObservation, Scores]] = Mounting()

    on: Literal["direction", "line"] = "direction"
    positive: Whole = 1
    epoch: Whole = 0

    @torch.no_grad()
    def run(self, observation: LabelObservation, generator: Generator, session: Session | None = None) -> Scores:
        gradients, _, examples = returned_gradients(self.name, observation.views)
        features = torch.cat([view.smashed.flatten(1).float() for view in observation.views])[examples]
        tail = observation.tail
        if not isinstance(tail, nn.Linear) or tail.in_features != features.shape[1]:
            found = "none" if tail is None else f"{tail}"
            raise NotApplicable(
                f"{self.name} needs the last layer, linear in {features.shape[1]} features of a row, and was given "
                f"{found}"
            )
        tail = tail.to(features.device)

        def cosines(part: slice) -> Tensor:
            mean = tail(features[part]).softmax(1) @ tail.weight
            along = (gradients[part] * mean).sum(1, keepdim=True) - gradients[part] @ tail.weight.T
            squares = mean.square().sum(1, keepdim=True) - 2 * mean @ tail.weight.T + tail.weight.square().sum(1)
            lengths = squares.clamp_min(1e-30).sqrt() * gradients[part].norm(dim=1, keepdim=True).clamp_min(1e-30)
            likeness: Tensor = along / lengths
            return likeness if self.on == "direction" else likeness.abs()

        of_labels = in_chunks(cosines, len(features), max(1, _NUMBERS // tail.out_features))
        return one_against_rest(of_labels, self.positive, examples)
