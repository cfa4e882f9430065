"""UnSplit: inversion and model stealing by an adversary who knows the architecture alone, and owns no data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Generator, nn

from privkit.attacks.base import NotApplicable, Session
from privkit.attacks.fit import fit
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check, check_one_form
from privkit.attacks.inversion.budgeted import mounted
from privkit.attacks.inversion.known_lower import check_release
from privkit.attacks.inversion.rounds import chunks_of
from privkit.attacks.inversion.unsplit_training import Alternation, UnsplitRecipe, fresh
from privkit.attacks.search_space import Untuned
from privkit.constraints import Checked, Count, NonNegative, Positive, Whole
from privkit.torch_utils.seeded import seeded

_PHASE_STEPS = {"reduced": 25, "released": 100}
EPOCHS = {"reduced": 40, "released": 1_000}
_INPUT_RATES = {"reduced": 0.03, "released": 1e-3}
_L2 = {"reduced": 0.0, "released": 1.0}


@dataclass(frozen=True, kw_only=True)
class UnSplit(Checked):
    """Images and a clone of the lower segment, optimized in turn until the clone releases what was released.

    Attributes:
        recipe: "reduced" (25 + 25 steps, 40 epochs, images at 0.03, no L2: seconds on a CPU) or "released" (100 + 100
            steps, 1,000 epochs, images at 1e-3, L2 1, as the authors'). Fields that are None are the recipe's.
        epochs: alternations, ≥ 0 (0 is the start, mid-grey); in an audit, left out, half the budget's.
        learning_rate: of Adam on the images, > 0; the clone's is 1e-3.
        total_variation: weight ≥ 0 of the mean squared differences of neighbours beside the mean squared error.
        l2: weight ≥ 0 of the mean squared pixel.
        parallel: released rows in one step, ≥ 1; the clone takes its steps on each such part in turn.

    The adversary is given `lower` for its architecture: all its weights and running statistics are thrown away, and
    drawn anew by the attack's seed, before anything is computed. Buffers that are no statistics (the constants of a
    normalization) are architecture. Tokens are taken to come in order.

    The curve is the objective of the images after each alternation, the matching error being a share of the release's
    variance: no error of images, which this attack cannot know.

    Source: Erdoğan et al. 2022, "UnSplit", Algorithm 1, and the authors' settings.
    """

    name: ClassVar[str] = "unsplit"
    goal: ClassVar[str] = "reconstruct"
    needs: ClassVar[frozenset[str]] = frozenset({"lower"})
    uses: ClassVar[frozenset[str]] = frozenset()

    # Untuned: this adversary does not know the weights, so it has no release of its own images to try values on.
    recipe: Annotated[Literal["reduced", "released"], Untuned()] = "reduced"
    epochs: Whole | None = None
    learning_rate: Positive | None = None
    total_variation: Annotated[NonNegative, Untuned()] = 0.1
    l2: NonNegative | None = None
    parallel: Count = 256

    @property
    def mounting(self) -> ImageMounting:
        """Half the budget's epochs, since one costs twice what another attack's does."""
        return replace(
            mounted(self, 0.5), any_tokens=True, architecture_only=True, short_of_published=self._short_of_published()
        )

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        """Guess every image of every view with one clone.

        >>> from privkit.attacks.base import View
        >>> views = [View(round=0, smashed=torch.rand(3, 16))]
        >>> lower = nn.Sequential(nn.Flatten(), nn.Linear(16, 16))
        >>> observation = ImageObservation(views=views, image_shape=(1, 4, 4), batch_size=3, lower=lower)
        >>> UnSplit(epochs=1).run(observation, Generator().manual_seed(0)).images.shape
        torch.Size([3, 1, 4, 4])
        """
        return self.steal(observation, generator, session)[0]

    def steal(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> tuple[Reconstruction, nn.Module]:
        """What `run` gives, and with it the stolen segment: images [N, C, H, W] -> releases, in evaluation mode.

        It has the client's architecture and weights of the attack's own: true to the client in what it releases, as far
        as the recorded releases tell, and not in its weights.
        """
        views = observation.views
        check(self, observation)
        assert observation.lower is not None
        first = views[0]
        check_one_form(self, views)
        if first.mixed > 1 and any(v.weights is None for v in views):
            raise NotApplicable(f"each released row holds {first.mixed} images with hidden weights")
        device = first.smashed.device
        root = int(torch.randint(2**48, (1,), generator=generator))
        clone = fresh(observation.lower, root).to(device)
        with seeded(device, root):
            check_release(clone, first, observation.image_shape)
        recipe = UnsplitRecipe(
            steps=_PHASE_STEPS[self.recipe],
            learning_rate=self.learning_rate or _INPUT_RATES[self.recipe],
            total_variation=self.total_variation,
            l2=_L2[self.recipe] if self.l2 is None else self.l2,
        )
        training = Alternation(clone, chunks_of(views, self.parallel), observation.image_shape, recipe, root)
        epochs = EPOCHS[self.recipe] if self.epochs is None else self.epochs
        curve = fit(training, epochs, session, objective="unsplit: the objective")
        images = torch.cat([x.detach() for x in training.images]).clamp(0, 1)
        return Reconstruction(images=images, curve=curve), clone

    def _short_of_published(self) -> str:
        """What falls short of the authors' settings, as a sentence; empty if nothing does.

        >>> UnSplit(epochs=40).mounting.short_of_published
        '40 alternations of 25 + 25 steps, where the authors take 1,000 of 100 + 100: not the published strength'
        """
        epochs, steps = EPOCHS[self.recipe] if self.epochs is None else self.epochs, _PHASE_STEPS[self.recipe]
        most, long = EPOCHS["released"], _PHASE_STEPS["released"]
        if epochs >= most and steps >= long:
            return ""
        return (
            f"{epochs:,} alternations of {steps} + {steps} steps, where the authors take {most:,} of {long} + {long}: "
            "not the published strength"
        )
