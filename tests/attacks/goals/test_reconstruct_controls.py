"""The controls themselves: an attack that learns nothing fails the first, one that knows the truth the second."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest
import torch
from torch import Generator, Tensor

from privkit.attacks.base import Mounting, NotApplicable, Session, View
from privkit.attacks.goals.identity import identity_lower
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction
from privkit.attacks.goals.reconstruct_controls import _probe, controls
from privkit.attacks.inversion.black_box import BlackBox
from privkit.attacks.inversion.white_box import WhiteBox
from privkit.domains.images.embedded import TinyDigits


def digits(count: int) -> tuple[Tensor, Tensor]:
    pool = TinyDigits().open(None, download=False, train_images=count).train
    some = pool.take(torch.arange(count).numpy())
    return some.x, some.y


def observed(images: Tensor, labels: Tensor, release: Tensor) -> ImageObservation:
    return ImageObservation(
        image_shape=(1, 8, 8),
        batch_size=10,
        views=[View(round=0, smashed=release)],
        auxiliary=images,
        auxiliary_labels=labels,
    )


@dataclass(frozen=True)
class Fixed:
    """Guesses what it is told, whatever is released: the same image, or the truth."""

    guess: Tensor
    name: ClassVar[str] = "fixed"
    goal: ClassVar[str] = "reconstruct"
    needs: ClassVar[frozenset[str]] = frozenset()
    uses: ClassVar[frozenset[str]] = frozenset()
    mounting: ClassVar[ImageMounting] = Mounting()

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        rows = sum(len(view.smashed) for view in observation.views)
        return Reconstruction(images=self.guess.expand(rows, -1, -1, -1))


def test_controls_tell_the_deaf_and_the_all_knowing() -> None:
    x, y = digits(200)
    release = torch.zeros(1, 16, 7)
    deaf = controls(Fixed(x[:100].mean(0, keepdim=True)), observed(x, y, release), 0)
    assert [check.passed for check in deaf] == [False, True]
    knowing = controls(Fixed(x[-50:]), observed(x, y, release), 0)
    assert [check.passed for check in knowing] == [True, False]


@dataclass(frozen=True)
class Watching(Fixed):
    """Keeps what it is given."""

    uses: ClassVar[frozenset[str]] = frozenset({"auxiliary", "auxiliary_labels"})
    given: list[ImageObservation] = field(default_factory=list)

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        self.given.append(observation)
        return super().run(observation, generator, session)


def test_images_that_play_the_victim_are_not_among_those_that_the_attack_has() -> None:
    x, y = torch.rand(80, 1, 8, 8, generator=Generator().manual_seed(0)), torch.arange(80) % 10
    attack = Watching(x[:1])
    controls(attack, observed(x, y, torch.zeros(1, 64)), 0)
    assert len(attack.given) == 2
    for seen in attack.given:
        assert seen.auxiliary is not None
        assert seen.auxiliary_labels is not None
        assert torch.equal(seen.auxiliary, x[:60])
        assert torch.equal(seen.auxiliary_labels, y[:60])
    assert torch.equal(torch.cat([view.smashed for view in attack.given[0].views]), x[60:].flatten(1))


@pytest.mark.slow
@pytest.mark.parametrize("form", [(16, 5, 5), (9,), (17, 6)])
def test_forms_that_are_no_grid_of_patches_are_controlled_as_well(form: tuple[int, ...]) -> None:
    """An attack that reads maps, vectors or a class token must not be stopped by its controls."""
    x, y = digits(200)
    release = torch.randn(1, *form)
    gates = controls(WhiteBox(epochs=1), observed(x, y, release), 0)
    assert [check.passed for check in gates] == [True, True], gates
    if release.ndim == 4:
        gates = controls(BlackBox(decoder="autoencoder", epochs=1), observed(x, y, release), 0)
        assert [check.passed for check in gates] == [True, True], gates


def test_the_image_in_the_form_of_a_release() -> None:
    x = torch.rand(2, 3, 8, 8)
    assert identity_lower(torch.zeros(1, 12), (3, 8, 8))(x).shape == (2, 192)
    assert identity_lower(torch.zeros(1, 16, 5, 5), (3, 8, 8))(x).shape == (2, 3, 8, 8)
    assert identity_lower(torch.zeros(1, 17, 6), (3, 8, 8))(x).shape == (2, 16, 12)
    assert identity_lower(torch.zeros(1, 4, 6), (3, 8, 8))(x).shape == (2, 4, 48)


def test_the_probe_needs_no_more_memory_than_images_squared() -> None:
    rows = torch.rand(30, 200_000, generator=Generator().manual_seed(0))
    labels = torch.arange(30) % 3
    assert _probe(rows, labels)(rows).argmax(1).tolist() == labels.tolist()


def test_controls_say_what_they_lack() -> None:
    x, y = digits(20)
    with pytest.raises(NotApplicable, match="at least 40 auxiliary images, got 20"):
        controls(WhiteBox(epochs=1), observed(x, y, torch.zeros(1, 9)), 0)
    with pytest.raises(NotApplicable, match="a view whose form"):
        controls(WhiteBox(epochs=1), replace(observed(x, y, torch.zeros(1, 9)), views=[]), 0)
