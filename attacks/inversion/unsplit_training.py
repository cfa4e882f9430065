"""UnSplit's training: images and a clone of the lower segment learn in turn until the clone releases the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from privkit.attacks.base import View
from privkit.attacks.inversion.known_lower import mixed_release
from privkit.torch_utils.seeded import seeded

_MODEL_RATE = 1e-3
_FRESH_STD = 0.02  # of parameters that no module knows how to draw: class tokens, position embeddings


@dataclass(frozen=True, kw_only=True)
class UnsplitRecipe:
    """How images and clone learn; the meaning and the ranges of all fields are `UnSplit`'s.

    Attributes:
        steps: on the images, and as many on the clone, in each alternation.
    """

    steps: int
    learning_rate: float
    total_variation: float
    l2: float


class Alternation:
    """Images and clone with their optimizers; satisfies `privkit.attacks.fit.Training`.

    Args:
        clone: of `fresh`, on the device of the release.
        parts: the released rows, as many in each as one step takes.
        image_shape: (C, H, W).
        recipe: of the steps.
        seed: of draws that the clone's modules make themselves.
    """

    def __init__(
        self, clone: nn.Module, parts: list[View], image_shape: tuple[int, int, int], recipe: UnsplitRecipe, seed: int
    ) -> None:
        self.clone, self._parts, self._recipe, self._seed = clone, parts, recipe, seed
        self._device = parts[0].smashed.device
        self._unit = torch.cat([p.smashed for p in parts]).var(correction=0).clamp_min(1e-12)
        self.images = [
            torch.full((len(p.smashed) * p.mixed, *image_shape), 0.5, device=self._device).requires_grad_()
            for p in parts
        ]
        self._on_images = torch.optim.Adam(self.images, lr=recipe.learning_rate, amsgrad=True)
        weights = list(clone.parameters())
        self._on_clone = torch.optim.Adam(weights, lr=_MODEL_RATE, amsgrad=True) if weights else None

    def epoch(self, number: int) -> float:
        """One alternation; the mean objective of the rows after it, with matching errors in the release's variance."""
        with seeded(self._device, self._seed + 1 + number):
            self._alternate()
            with torch.no_grad():
                values = [self._objective(p, x, self._unit) for p, x in zip(self._parts, self.images, strict=True)]
        return torch.cat(values).mean().item()

    def _alternate(self) -> None:
        """Steps on the images, the clone held still, then steps on the clone."""
        one = self._parts[0].smashed.new_ones(())
        self.clone.requires_grad_(False)
        for _ in range(self._recipe.steps):
            for part, x in zip(self._parts, self.images, strict=True):  # independent: parts only bound the memory
                (x.grad,) = torch.autograd.grad(self._objective(part, x, one).sum(), x)
            self._on_images.step()
        self.clone.requires_grad_(True)
        if self._on_clone is not None:
            for step in range(self._recipe.steps):
                number = step % len(self._parts)
                self._on_clone.zero_grad(set_to_none=True)
                error = self._error(self._parts[number], self.images[number].detach()).mean()
                error.backward()
                self._on_clone.step()

    def _objective(self, part: View, images: Tensor, unit: Tensor) -> Tensor:
        """Matching error of each row in `unit`, with the weighted priors of its images."""
        down, across = images.diff(dim=2).square(), images.diff(dim=3).square()
        prior = self._recipe.total_variation * (down.flatten(1).mean(1) + across.flatten(1).mean(1))
        prior = prior + self._recipe.l2 * images.square().flatten(1).mean(1)
        return self._error(part, images) / unit + prior.view(-1, part.mixed).mean(1)

    def _error(self, part: View, images: Tensor) -> Tensor:
        """Mean squared error of each released row."""
        return (mixed_release(self.clone(images), part.mixed, part.weights) - part.smashed).square().flatten(1).mean(1)

    def state_dict(self) -> dict[str, Any]:
        """Images, clone and optimizers."""
        return {
            "images": [x.detach() for x in self.images],
            "clone": self.clone.state_dict(),
            "on_images": self._on_images.state_dict(),
            "on_clone": None if self._on_clone is None else self._on_clone.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        with torch.no_grad():
            for x, kept in zip(self.images, state["images"], strict=True):
                x.copy_(kept)
        self.clone.load_state_dict(state["clone"])
        self._on_images.load_state_dict(state["on_images"])
        if self._on_clone is not None:
            self._on_clone.load_state_dict(state["on_clone"])


def fresh(lower: nn.Module, seed: int) -> nn.Module:
    """The architecture of a lower segment with weights of one's own: no number of the original's survives.

    Args:
        lower: the original, which is left as it was.
        seed: of the new weights.

    >>> torch.equal(fresh(nn.Linear(2, 2), 0).weight, fresh(nn.Linear(2, 2), 0).weight)
    True
    """
    clone = deepcopy(lower).cpu().eval()
    with torch.no_grad(), seeded(torch.device("cpu"), seed):
        for parameter in clone.parameters():
            parameter.normal_(std=_FRESH_STD)
        for reset in _initialisers(clone):
            reset()
    return clone


def _initialisers(module: nn.Module) -> Iterator[Callable[[], None]]:
    """The modules' own ways to draw their weights, by torch's convention."""
    for part in module.modules():
        for name in ("reset_parameters", "_reset_parameters"):
            if callable(getattr(part, name, None)):
                yield getattr(part, name)
                break
