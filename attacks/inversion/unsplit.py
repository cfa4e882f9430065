"""UnSplit: inversion and model stealing by an adversary who knows only the architecture and owns no data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import ReconstructingAttack, Session, View, given
from privkit.attacks.fit import Resumable, fit
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check_forms
from privkit.attacks.inversion.budgeted import mounted
from privkit.attacks.inversion.known_lower import check_release, fresh, mixed_release
from privkit.attacks.inversion.mixed_releases import check_public
from privkit.attacks.inversion.rounds import chunks_of
from privkit.attacks.search_space import Untuned
from privkit.constraints import Count, NonNegative, Positive, Whole
from privkit.torch_utils.seeded import seeded

_PHASE_STEPS = {"reduced": 25, "released": 100}
_EPOCHS = {"reduced": 40, "released": 1_000}
_INPUT_RATES = {"reduced": 0.03, "released": 1e-3}
_L2 = {"reduced": 0.0, "released": 1.0}
_MODEL_RATE = 1e-3


@dataclass(frozen=True, kw_only=True)
class UnSplit(ReconstructingAttack):
    """Optimize images and a clone of the lower segment, in turn, until the clone maps the images to the releases.

    The lower segment is the clients' part of the network; a release is the defended output that clients send.

    Attributes:
        recipe: default values of the options that are None. "reduced" takes seconds on a CPU: 25 + 25 steps in each of
            40 epochs, learning rate 0.03 for images, no L2. "released" has the authors' values: 100 + 100 steps, 1,000
            epochs, learning rate 1e-3, L2 weight 1.
        epochs: number ≥ 0 of epochs, each with steps on the images and then on the clone; 0 returns mid-grey images.
            With None, an audit takes half of its budget of epochs, and `run` takes the number of `recipe`.
        learning_rate: learning rate > 0 of Adam on the images; the clone's rate is 1e-3.
        total_variation: weight ≥ 0 of the mean squared differences of neighbouring pixels, relative to the mean squared
            error.
        l2: weight ≥ 0 of the mean squared pixel value.
        parallel: number ≥ 1 of released rows per step. More rows are split into parts of this size, on which the clone
            is trained in turn.

    The adversary uses only the architecture of `lower`: the clone starts with random weights and statistics from the
    attack's seed. Constants of a normalization belong to the architecture. Tokens are assumed to be in order.

    The result's `curve` is the objective of the images after each epoch, with the matching error as a share of the
    release's variance. The curve does not show the error of the images.

    Source: Erdoğan et al. 2022, "UnSplit", Algorithm 1, and the authors' settings.
    """

    name: ClassVar[str] = "unsplit"
    needs: ClassVar[frozenset[str]] = frozenset({"lower"})

    # Untuned: this adversary does not know the weights, so it has no release of its own images to try values on.
    recipe: Annotated[Literal["reduced", "released"], Untuned()] = "reduced"
    epochs: Whole | None = None
    learning_rate: Positive | None = None
    total_variation: Annotated[NonNegative, Untuned()] = 0.1
    l2: NonNegative | None = None
    parallel: Count = 256

    @property
    def mounting(self) -> ImageMounting:
        return replace(
            mounted(self, 0.5),  # an epoch costs twice as much as in other attacks
            any_tokens=True,
            architecture_only=True,
            short_of_published=self._short_of_published(),
        )

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        return self.steal(observation, generator, session)[0]

    def steal(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> tuple[Reconstruction, nn.Module]:
        """Run the attack. Returns the guesses, and the clone of the lower segment in evaluation mode."""
        views = observation.views
        check_forms(self, observation)
        first = views[0]
        check_public(views)
        device = first.smashed.device
        root = int(torch.randint(2**48, (1,), generator=generator))
        clone = fresh(given(observation.lower), root).to(device)
        with seeded(device, root):
            check_release(clone, first, observation.image_shape)
        recipe = UnsplitRecipe(
            steps=_PHASE_STEPS[self.recipe],
            learning_rate=self.learning_rate or _INPUT_RATES[self.recipe],
            total_variation=self.total_variation,
            l2=_L2[self.recipe] if self.l2 is None else self.l2,
        )
        training = Alternation(clone, chunks_of(views, self.parallel), observation.image_shape, recipe, root)
        epochs = _EPOCHS[self.recipe] if self.epochs is None else self.epochs
        curve = fit(training, epochs, session, objective="unsplit: the objective")
        images = torch.cat([x.detach() for x in training.images]).clamp(0, 1)
        return Reconstruction(images=images, curve=curve), clone

    def _short_of_published(self) -> str:
        epochs, steps = _EPOCHS[self.recipe] if self.epochs is None else self.epochs, _PHASE_STEPS[self.recipe]
        most, long = _EPOCHS["released"], _PHASE_STEPS["released"]
        if epochs >= most and steps >= long:
            return ""
        return (
            f"{epochs:,} alternations of {steps} + {steps} steps, where the authors take {most:,} of {long} + {long}: "
            "not the published strength"
        )


@dataclass(frozen=True, kw_only=True)
class UnsplitRecipe:
    """Settings of an alternation: `steps` steps on the images, then `steps` on the clone; see `UnSplit`."""

    steps: int
    learning_rate: float
    total_variation: float
    l2: float


class Alternation(Resumable):
    """Optimization of images and a clone of the lower segment, in turn; satisfies `privkit.attacks.fit.Training`.

    Each of `parts` holds the rows of one step; `seed` is the seed of random draws in the clone, for example in dropout.
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
        """Do one alternation; return the rows' mean objective, with errors divided by the release's variance."""
        with seeded(self._device, self._seed + 1 + number):
            self._alternate()
            with torch.no_grad():
                values = [self._objective(p, x, self._unit) for p, x in zip(self._parts, self.images, strict=True)]
        return torch.cat(values).mean().item()

    def _alternate(self) -> None:
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
        """Matching error of each row, divided by `unit`, plus the weighted priors of its images."""
        down, across = images.diff(dim=2).square(), images.diff(dim=3).square()
        prior = self._recipe.total_variation * (down.flatten(1).mean(1) + across.flatten(1).mean(1))
        prior = prior + self._recipe.l2 * images.square().flatten(1).mean(1)
        return self._error(part, images) / unit + prior.view(-1, part.mixed).mean(1)

    def _error(self, part: View, images: Tensor) -> Tensor:
        return (mixed_release(self.clone(images), part.mixed, part.weights) - part.smashed).square().flatten(1).mean(1)

    def stateful(self) -> dict[str, Any]:
        optimizers = {"on_images": self._on_images, "on_clone": self._on_clone}
        return {"images": self.images, "clone": self.clone, **optimizers}
