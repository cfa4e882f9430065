"""What an adversary with the clients' code knows of a user's own stage is what the stage does, and not what it says."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Generator, Tensor

from privkit.defenses.base import Defense, OnSmashed
from privkit.defenses.receipts import Nothing
from privkit.training import Clients
from tests.small import built, generator


@dataclass(frozen=True, kw_only=True)
class Mirror(OnSmashed[Nothing]):
    """−3z, and noise: no author's word on what is public, as in docs/how-to/own-parts.md."""

    name: ClassVar[str] = "mirror"
    noise_fields: ClassVar[tuple[str, ...]] = ("sigma",)
    effects: ClassVar[Any] = frozenset({"maps", "noises"})
    sigma: float = 1.0

    def defended(self, smashed: Tensor, generator: Generator) -> tuple[Tensor, Nothing]:
        noise = torch.randn(smashed.shape, generator=generator)
        return -3 * smashed + self.sigma * noise, Nothing(reason="mirrored")


class Silent(Mirror):
    """Declares nothing, and says that nothing is public."""

    noise_fields = ()
    effects = None

    def defended(self, smashed: Tensor, generator: Generator) -> tuple[Tensor, Nothing]:
        return -3 * smashed, Nothing(reason="mirrored")

    def public_transform(self, smashed: Tensor) -> Tensor:
        return 0 * smashed


class Turning(Mirror):
    """Turns tokens at random, which no fixed function does: its author's word counts."""

    noise_fields = ()
    effects = frozenset({"permutes"})

    def defended(self, smashed: Tensor, generator: Generator) -> tuple[Tensor, Nothing]:
        return 2 * smashed[:, :, torch.randperm(smashed.shape[2], generator=generator)], Nothing(reason="turned")

    def public_transform(self, smashed: Tensor) -> Tensor:
        return 2 * smashed


def known(defense: Defense) -> tuple[Clients, Tensor, Tensor]:
    """Clients, their images, and what a white box computes of these."""
    edge, _ = built(defense)
    images = torch.rand(5, 1, 8, 8, generator=generator())
    with torch.no_grad():
        return edge.eval(), images, edge.client(0)(images)


@pytest.mark.parametrize("defense", [Mirror(), Silent(), Turning()], ids=lambda one: one.name + type(one).__name__)
def test_a_white_box_knows_what_a_stage_of_ones_own_does(defense: Defense) -> None:
    edge, images, found = known(defense)
    with torch.no_grad():
        smashed = edge.lowers(images.unsqueeze(0))[0]
    torch.testing.assert_close(found, (2 if isinstance(defense, Turning) else -3) * smashed)


def test_a_client_knows_what_happens_behind_its_lower_segment() -> None:
    """The gradient that comes back to the segment has passed the defense, too."""
    edge, images, found = known(Mirror())
    with torch.no_grad():
        inner = edge.behind_lower(torch.nn.Flatten())(edge.lowers(images.unsqueeze(0))[0])
    assert torch.equal(inner, found.flatten(1))


def test_it_is_differentiable_and_draws_nothing_from_the_global_generator() -> None:
    edge, images, _ = known(Mirror())
    state = torch.random.get_rng_state()
    images.requires_grad_()
    edge.client(0)(images).sum().backward()
    assert images.grad is not None
    assert bool((images.grad != 0).any())
    assert torch.equal(torch.random.get_rng_state(), state)
