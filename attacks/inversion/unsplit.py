"""UnSplit: inversion and model stealing by an adversary who knows the architecture alone, and owns no data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar, Literal

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import (
    AttackDiverged,
    Knowledge,
    NoSession,
    NotApplicable,
    Reconstruction,
    Session,
    View,
    missing,
)
from privkit.attacks.inversion.known_lower import check_release, mix
from privkit.attacks.inversion.rounds import chunks_of
from privkit.attacks.last_good import keep
from privkit.torch_utils.seeded import seeded

PHASE_STEPS = {"reduced": 25, "released": 100}
EPOCHS = {"reduced": 40, "released": 1_000}
INPUT_RATES = {"reduced": 0.03, "released": 1e-3}
MODEL_RATE = 1e-3
L2 = {"reduced": 0.0, "released": 1.0}
FRESH_STD = 0.02  # of parameters that no module knows how to draw: class tokens, position embeddings


@dataclass(frozen=True, kw_only=True)
class UnSplit:
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
    budgeted: ClassVar[float] = 0.5  # an epoch costs twice and more what another attack's does
    needs: ClassVar[frozenset[str]] = frozenset({"lower"})

    recipe: Literal["reduced", "released"] = "reduced"
    epochs: int | None = None
    learning_rate: float | None = None
    total_variation: float = 0.1
    l2: float | None = None
    parallel: int = 256

    def __post_init__(self) -> None:
        if self.recipe not in EPOCHS:
            raise ValueError(f"recipe must be one of {', '.join(EPOCHS)}, got {self.recipe!r}")
        if self.epochs is not None and self.epochs < 0:
            raise ValueError(f"epochs must be a whole number >= 0, or left out for the recipe's, got {self.epochs}")
        if self.learning_rate is not None and not (isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ValueError(f"learning_rate must be a finite number > 0, got {self.learning_rate}")
        for name in ("total_variation", "l2"):
            weight = getattr(self, name)
            if weight is not None and not (isfinite(weight) and weight >= 0):
                raise ValueError(f"{name} must be a finite number >= 0, got {weight}")
        if self.parallel < 1:
            raise ValueError(f"parallel must be a whole number >= 1, got {self.parallel}")

    def run(
        self, views: Sequence[View], knowledge: Knowledge, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        """Guess every image of every view with one clone.

        Args:
            views: the recorded messages, all of one form.
            knowledge: needs `lower`, of which the architecture is used.
            generator: a CPU generator, the only source of randomness.
            session: where to save after each alternation and to report progress.

        Raises:
            NotApplicable: without the architecture, if it does not give what was released, or for mixed images whose
                weights are hidden.
            AttackDiverged: if the objective is not finite.

        >>> views = [View(round=0, smashed=torch.rand(3, 16))]
        >>> lower = nn.Sequential(nn.Flatten(), nn.Linear(16, 16))
        >>> knowledge = Knowledge(image_shape=(1, 4, 4), batch_size=3, lower=lower)
        >>> UnSplit(epochs=1).run(views, knowledge, Generator().manual_seed(0)).images.shape
        torch.Size([3, 1, 4, 4])
        """
        return self.steal(views, knowledge, generator, session)[0]

    def steal(
        self, views: Sequence[View], knowledge: Knowledge, generator: Generator, session: Session | None = None
    ) -> tuple[Reconstruction, nn.Module]:
        """What `run` gives, and with it the stolen segment: images [N, C, H, W] -> releases, in evaluation mode.

        It has the client's architecture and weights of the attack's own: true to the client in what it releases, as far
        as the recorded releases tell, and not in its weights.
        """
        lacking = missing(self, knowledge)
        if lacking or knowledge.lower is None:
            raise NotApplicable(f"unsplit needs {' and '.join(lacking)}, which this adversary does not have")
        first, session = views[0], session or NoSession()
        if any(v.smashed.shape[1:] != first.smashed.shape[1:] or v.mixed != first.mixed for v in views):
            raise NotApplicable("unsplit needs views of one form: attack views of different forms one by one")
        if first.mixed > 1 and any(v.weights is None for v in views):
            raise NotApplicable(f"each released row holds {first.mixed} images with hidden weights")
        device = first.smashed.device
        root = int(torch.randint(2**48, (1,), generator=generator))
        clone = fresh(knowledge.lower, root).to(device)
        with seeded(device, root):
            check_release(clone, first, knowledge.image_shape)
        parts = chunks_of(views, self.parallel)
        unit = torch.cat([p.smashed for p in parts]).var(correction=0).clamp_min(1e-12)
        inputs = [
            torch.full((len(p.smashed) * p.mixed, *knowledge.image_shape), 0.5, device=device).requires_grad_()
            for p in parts
        ]
        rate = self.learning_rate or INPUT_RATES[self.recipe]
        on_images = torch.optim.Adam(inputs, lr=rate, amsgrad=True)
        weights = list(clone.parameters())
        on_clone = torch.optim.Adam(weights, lr=MODEL_RATE, amsgrad=True) if weights else None

        curve: list[float] = []
        good = session.load()
        if good is not None:
            curve = _restore(deepcopy(good), inputs, clone, on_images, on_clone)
        epochs = EPOCHS[self.recipe] if self.epochs is None else self.epochs
        for epoch in range(len(curve), epochs):
            with seeded(device, root + 1 + epoch):
                self._alternate(clone, parts, inputs, on_images, on_clone)
                with torch.no_grad():
                    values = [self._objective(clone, p, x, unit) for p, x in zip(parts, inputs, strict=True)]
            value = torch.cat(values).mean().item()
            if not isfinite(value):
                if good is not None:
                    keep(session, good)
                raise AttackDiverged(f"unsplit: the objective is {value} after {epoch + 1} alternations")
            curve.append(value)
            state = {
                "inputs": [x.detach() for x in inputs],
                "clone": clone.state_dict(),
                "on_images": on_images.state_dict(),
                "on_clone": None if on_clone is None else on_clone.state_dict(),
                "curve": curve,
            }
            good = deepcopy(state)
            session.save(good)
            session.report(epoch + 1, epochs, value)
        guesses = torch.cat([x.detach() for x in inputs]).clamp(0, 1)
        return Reconstruction(images=guesses, curve=tuple(curve)), clone

    @property
    def short_of_published(self) -> str:
        """What falls short of the authors' settings, as a sentence; empty where nothing does.

        >>> UnSplit(epochs=40).short_of_published
        '40 alternations of 25 + 25 steps, where the authors take 1,000 of 100 + 100: not the published strength'
        """
        epochs, steps = EPOCHS[self.recipe] if self.epochs is None else self.epochs, PHASE_STEPS[self.recipe]
        most, long = EPOCHS["released"], PHASE_STEPS["released"]
        if epochs >= most and steps >= long:
            return ""
        return (
            f"{epochs:,} alternations of {steps} + {steps} steps, where the authors take {most:,} of {long} + {long}: "
            "not the published strength"
        )

    def _alternate(
        self, clone: nn.Module, parts: list[View], inputs: list[Tensor], on_images: Any, on_clone: Any
    ) -> None:
        """Steps on the images, the clone held still, then steps on the clone."""
        steps, one = PHASE_STEPS[self.recipe], parts[0].smashed.new_ones(())
        clone.requires_grad_(False)
        for _ in range(steps):
            for part, x in zip(parts, inputs, strict=True):  # independent images: parts only bound the memory
                (x.grad,) = torch.autograd.grad(self._objective(clone, part, x, one).sum(), x)
            on_images.step()
        clone.requires_grad_(True)
        if on_clone is not None:
            for step in range(steps):
                part, x = parts[step % len(parts)], inputs[step % len(parts)].detach()
                on_clone.zero_grad(set_to_none=True)
                _error(clone, part, x).mean().backward()
                on_clone.step()

    def _objective(self, clone: nn.Module, part: View, images: Tensor, unit: Tensor) -> Tensor:
        """Matching error of each row in `unit`, with the weighted priors of its images."""
        down, across = images.diff(dim=2).square(), images.diff(dim=3).square()
        prior = self.total_variation * (down.flatten(1).mean(1) + across.flatten(1).mean(1))
        prior = prior + (L2[self.recipe] if self.l2 is None else self.l2) * images.square().flatten(1).mean(1)
        return _error(clone, part, images) / unit + prior.view(-1, part.mixed).mean(1)


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
            parameter.normal_(std=FRESH_STD)
        for reset in _initialisers(clone):
            reset()
    return clone


def _initialisers(module: nn.Module) -> Iterator[Any]:
    """The modules' own ways to draw their weights, by torch's convention."""
    for part in module.modules():
        for name in ("reset_parameters", "_reset_parameters"):
            if callable(getattr(part, name, None)):
                yield getattr(part, name)
                break


def _error(clone: nn.Module, part: View, images: Tensor) -> Tensor:
    """Mean squared error of each released row."""
    return (mix(clone(images), part.mixed, part.weights) - part.smashed).square().flatten(1).mean(1)


def _restore(
    saved: dict[str, Any], inputs: list[Tensor], clone: nn.Module, on_images: Any, on_clone: Any
) -> list[float]:
    """Put a saved state back; the curve so far."""
    with torch.no_grad():
        for x, kept in zip(inputs, saved["inputs"], strict=True):
            x.copy_(kept)
    clone.load_state_dict(saved["clone"])
    on_images.load_state_dict(saved["on_images"])
    if on_clone is not None:
        on_clone.load_state_dict(saved["on_clone"])
    return list(saved["curve"])
