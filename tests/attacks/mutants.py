"""Attacks that are broken on purpose: each must fail the positive control through a defense on which it is mounted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from privkit.attacks.base import Mounting, QueryResult, View
from privkit.attacks.goals.reconstruct import ImageObservation, Reconstruction
from privkit.attacks.inversion.adaptive import Adaptive
from privkit.attacks.inversion.black_box import BlackBox
from privkit.attacks.inversion.jigsaw_white_box import JigsawWhiteBox
from privkit.attacks.inversion.nearest_record import NearestRecord
from privkit.attacks.inversion.ridge import Ridge
from privkit.attacks.inversion.union import Union
from privkit.attacks.inversion.unmix import Unmix
from privkit.attacks.inversion.white_box import WhiteBox
from privkit.attacks.order.jigsaw import Jigsaw
from privkit.attacks.patches import patchify, unpatchify

Before = Callable[[ImageObservation], ImageObservation]
After = Callable[[ImageObservation, Reconstruction], Tensor]


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A registered attack with a fault in what it reads or in what it returns.

    Attributes:
        attack: the correct attack.
        before: function that puts the fault into the observation.
        after: function that puts the fault into the guessed images.
        as_given: whether control experiments use the attack itself, not its shorter version for controls.
    """

    attack: Any
    before: Before = lambda seen: seen
    after: After = lambda seen, found: found.images
    as_given: bool = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.attack, name)

    @property
    def mounting(self) -> Mounting[Any, Any]:
        """The correct attack's mounting; the shorter attack for controls gets the same fault."""
        honest: Mounting[Any, Any] = self.attack.mounting
        if self.as_given:
            return replace(honest, control=None)
        short = honest.control or (lambda steps: self.attack)
        return replace(honest, control=lambda steps: replace(self, attack=short(steps)))

    def run(self, observation: ImageObservation, generator: Generator, session: Any = None) -> Reconstruction:
        """Run the attack with the fault."""
        found = self.attack.run(self.before(observation), generator, session)
        return replace(found, images=self.after(observation, found).contiguous())


def in_views(fault: Callable[[View], View]) -> Before:
    """A fault in the attacked views; answers to queries have none."""
    return lambda seen: replace(seen, views=[fault(view) for view in seen.views])


def in_tokens(fault: Callable[[Tensor], Tensor]) -> Before:
    """A fault in the released numbers of the attacked views."""
    return in_views(lambda view: replace(view, smashed=fault(view.smashed)))


def in_weights(fault: Callable[[Tensor], Tensor]) -> Before:
    """A fault in the public weights of the attacked views."""
    return in_views(lambda view: view if view.weights is None else replace(view, weights=fault(view.weights)))


def in_images(fault: Callable[[Tensor], Tensor]) -> After:
    """A fault in the guesses."""
    return lambda seen, found: fault(found.images)


def _of_other_passes(passes: int) -> Before:
    """Combine the rows of one pass with the weights of another pass."""

    def fault(seen: ImageObservation) -> ImageObservation:
        rounds = len(seen.views) // passes
        later = [*seen.views[rounds:], *seen.views[:rounds]]
        pairs = zip(seen.views, later, strict=True)
        return replace(seen, views=[replace(one, smashed=other.smashed) for one, other in pairs])

    return fault


def _one_pass(passes: int) -> Before:
    """Replace every pass by the first pass."""
    return lambda seen: replace(seen, views=list(seen.views[: len(seen.views) // passes]) * passes)


def _other_rows(passes: int) -> Before:
    """Roll the rows of each message by the number of the pass, so that rows are linked with wrong records."""

    def fault(seen: ImageObservation) -> ImageObservation:
        rounds = len(seen.views) // passes
        views = [
            replace(view, smashed=view.smashed.roll(number // rounds, 0)) for number, view in enumerate(seen.views)
        ]
        return replace(seen, views=views)

    return fault


def _wrong_members(seen: ImageObservation) -> ImageObservation:
    """Combine each release of own images with the wrong own images."""
    assert seen.query is not None
    honest = seen.query

    def query(images: Tensor, draws: Generator) -> QueryResult:
        answer = honest(images, draws)
        return replace(answer, members=answer.members.roll(1, 0))

    return replace(seen, query=query)


def _side(seen: ImageObservation, found: Reconstruction) -> int:
    """Pixels of a patch's side."""
    assert found.permutation is not None
    pixels = seen.image_shape[1] * seen.image_shape[2]
    return round((pixels / found.permutation.source.shape[1]) ** 0.5)


def as_released(seen: ImageObservation, found: Reconstruction, times: int) -> Tensor:
    """Move patches from their guessed places by the guessed order: once gives the released order, twice the inverse."""
    assert found.permutation is not None
    side, source = _side(seen, found), found.permutation.source
    cells = patchify(found.images, side)
    n, t = source.shape
    first = torch.arange(n).unsqueeze(1) // seen.batch_size * seen.batch_size * t
    for _ in range(times):
        cells = cells.flatten(0, 1)[first + source]
    return unpatchify(cells, side, seen.image_shape)


def _patches_transposed(images: Tensor, side: int = 7) -> Tensor:
    shape = (images.shape[1], images.shape[2], images.shape[3])
    cells = patchify(images, side).unflatten(2, (-1, side, side)).transpose(3, 4).flatten(2)
    return unpatchify(cells, side, shape)


def _lessown_mean(seen: ImageObservation, found: Reconstruction) -> Tensor:
    assert seen.auxiliary is not None
    return (found.images - seen.auxiliary.mean(0)).clamp(0, 1)


def _mirrored_about_the_mean(seen: ImageObservation, found: Reconstruction) -> Tensor:
    assert seen.auxiliary is not None
    return (2 * seen.auxiliary.mean(0) - found.images).clamp(0, 1)


def _of_other_records(seen: ImageObservation, found: Reconstruction) -> Tensor:
    order = torch.randperm(len(found.images), generator=Generator().manual_seed(0))
    return found.images[order]


def _mean_of_a_round(seen: ImageObservation, found: Reconstruction) -> Tensor:
    rounds = found.images.unflatten(0, (-1, seen.batch_size))
    return rounds.mean(1, keepdim=True).expand_as(rounds).flatten(0, 1)


def own_mean(seen: ImageObservation, found: Reconstruction) -> Tensor:
    assert seen.auxiliary is not None
    return seen.auxiliary.mean(0).expand_as(found.images)


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A broken attack and where it is mounted."""

    attack: Broken
    defense: str


def _mutant(attack: Any, defense: str, before: Before | None = None, after: After | None = None) -> Mutant:
    faults: dict[str, Any] = {
        name: fault for name, fault in (("before", before), ("after", after)) if fault is not None
    }
    return Mutant(attack=Broken(attack=attack, **faults), defense=defense)


def mutants() -> dict[str, Mutant]:
    """Name of the fault -> the broken attack."""
    black, unmix, jigsaw, ridge = BlackBox(epochs=5), Unmix(epochs=5), Jigsaw(), Ridge()
    union, together = Union(epochs=10), Jigsaw(passes=8)
    return {
        "decoder that draws the mean": _mutant(black, "none", after=own_mean),
        "weights of members swapped": _mutant(unmix, "random_cutmix", in_weights(lambda w: w.flip(1))),
        "jigsaw that never reorders": _mutant(
            jigsaw, "patch_shuffle", after=lambda seen, found: as_released(seen, found, 1)
        ),
        "inverse order in place of the order": _mutant(
            jigsaw, "patch_shuffle", after=lambda seen, found: as_released(seen, found, 2)
        ),
        "seats rolled by one": _mutant(unmix, "random_cutmix", after=in_images(lambda x: x.roll(1, 0))),
        "weights of places reversed": _mutant(unmix, "random_cutmix", in_weights(lambda w: w.flip(2))),
        "weights ignored": _mutant(unmix, "random_cutmix", in_weights(lambda w: torch.full_like(w, 1 / w.shape[1]))),
        "rows of another pass": _mutant(unmix, "mixup", _of_other_passes(8)),
        "patches transposed": _mutant(jigsaw, "patch_shuffle", after=in_images(_patches_transposed)),
        "picture mirrored": _mutant(jigsaw, "batch_shuffle", after=in_images(lambda x: x.flip(3))),
        "rows of another image": _mutant(together, "batch_shuffle", after=in_images(lambda x: x.roll(1, 0))),
        "union of one pass": _mutant(union, "token_dropping", _one_pass(8)),
        "union that drops half of the tokens": _mutant(
            union, "token_dropping", in_tokens(lambda z: torch.cat([z[:, : z.shape[1] // 2]] * 2, 1)[:, : z.shape[1]])
        ),
        "channels reversed": _mutant(black, "none", in_tokens(lambda z: z.flip(2))),
        "tokens off by one place": _mutant(black, "scaling", in_tokens(lambda z: z.roll(1, 1))),
        "sign of the release": _mutant(black, "clip", in_tokens(lambda z: -z)),
        "guesses at other records": _mutant(black, "none", after=_of_other_records),
        "guesses of the wrong round": _mutant(
            black, "gaussian_noise", after=lambda seen, found: found.images.roll(seen.batch_size, 0)
        ),
        "one guess for all": _mutant(black, "none", after=in_images(lambda x: x[:1].expand_as(x))),
        "mean of a round's guesses": _mutant(black, "bounded", after=_mean_of_a_round),
        "brightness inverted": _mutant(black, "laplace_noise", after=in_images(lambda x: 1 - x)),
        "decoder that learned shuffled pairs": _mutant(black, "none", _wrong_members),
        "ridge without its center": _mutant(ridge, "blur", after=_lessown_mean),
        "ridge with the wrong sign": _mutant(ridge, "dp_mixsl", after=_mirrored_about_the_mean),
        "ridge that links wrong seats": _mutant(ridge, "dp_cutmixsl", in_weights(lambda w: w.flip(1))),
        "white box that never steps": Mutant(
            attack=Broken(attack=WhiteBox(epochs=0, start="mean"), as_given=True), defense="none"
        ),
        "white box of other rows": _mutant(WhiteBox(), "scaling", in_tokens(lambda z: z.roll(1, 0))),
        "order solved and not used": _mutant(
            JigsawWhiteBox(), "patch_shuffle", after=lambda seen, found: as_released(seen, found, 1)
        ),
        "adaptive passes of other rows": _mutant(Adaptive(epochs=5), "cutsmashed", _other_rows(8)),
        "the next record in place of the nearest": _mutant(
            NearestRecord(), "none", after=in_images(lambda x: x.roll(1, 0))
        ),
    }
