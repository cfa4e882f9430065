"""Plausible mistakes of a user's own stage are found by measurements, and honest stages pass."""

from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Generator, Tensor

from privkit.accountants.spec.parts import UNMIXED, Noise
from privkit.accountants.spec.sensitivity import Ball, Clamp
from privkit.defenses import noise
from privkit.defenses.base import ONE_RELEASE, Defense, Release
from privkit.defenses.chain import Chain
from privkit.defenses.charge import Noised
from privkit.defenses.compile import StageReceipt, compiled
from privkit.defenses.measured import contradiction
from privkit.defenses.noise import GaussianNoise
from privkit.defenses.patch_shuffle import PatchShuffle
from privkit.defenses.receipts import Nothing, Permuted
from privkit.parts.registry import parse
from tests.small import generator


def stage(made: Any, **fields: Any) -> Defense:
    """A stage whose release and receipt are made by a function of (smashed, labels, generator)."""

    class Made(Defense):
        name: ClassVar[str] = "made"
        effects: ClassVar[Any] = fields.get("effects", frozenset({"noises"}))
        over_batch: ClassVar[bool] = False
        level = fields.get("level", "smashed")

        def apply(self, smashed: Tensor, labels: Tensor, generator: Generator, present: Tensor | None = None) -> Any:
            return made(smashed, labels, generator)

    return Made()


def noisy(z: Tensor, generator: Generator, receipt: Any = None, added: Tensor | None = None, **fields: Any) -> Any:
    """A ball of radius 1 with Gaussian noise of scale 1, or what is given instead."""
    drawn = torch.randn(z.shape, generator=generator, dtype=z.dtype) if added is None else added
    receipt = receipt or Noised(clip=Ball(radius=1.0), noise=Noise(smashed=1.0), mixing=UNMIXED)
    return Release(smashed=z + drawn, labels=fields.get("labels", torch.zeros(z.shape[:2])), weights=None), receipt


def drawn(z: Tensor, generator: Generator, *shape: int) -> Tensor:
    return torch.randn(shape or z.shape, generator=generator, dtype=z.dtype)


def ball(z: Tensor) -> Tensor:
    return noise.shrink(z, 1.0)


def zero_sum(z: Tensor, g: Generator) -> Tensor:
    n = drawn(z, g)
    return (n - n.mean(1, keepdim=True)) * (z.shape[1] / (z.shape[1] - 1)) ** 0.5


def prototypes(z: Tensor, y: Tensor) -> Tensor:
    same = (y.unsqueeze(2) == y.unsqueeze(1)).to(z.dtype)
    return torch.einsum("mij,mj...->mi...", same, z) / 1.5


LAPLACE = Noised(
    clip=Clamp(low=-1 / 64, high=1 / 64, dimensions=64), noise=Noise(law="laplace", smashed=1.0), mixing=UNMIXED
)


MISTAKES: dict[str, tuple[Any, str]] = {
    "noise that all records share": (
        lambda z, y, g: noisy(ball(z), g, added=drawn(z, g, len(z), 1, *z.shape[2:]).expand_as(z), labels=y),
        "quietest direction",
    ),
    "noise that sums to zero over the batch": (
        lambda z, y, g: noisy(ball(z), g, added=zero_sum(z, g), labels=y),
        "quietest direction",
    ),
    "noise of opposite signs": (
        lambda z, y, g: noisy(ball(z), g, added=torch.cat([h := drawn(z[:, :2], g), -h], 1)[:, : z.shape[1]], labels=y),
        "quietest direction",
    ),
    "clamped noise": (
        lambda z, y, g: noisy(ball(z), g, added=drawn(z, g).clamp(-3, 3), labels=y),
        "the noise of made is not what its receipt says",
    ),
    "rounded noise": (lambda z, y, g: noisy(ball(z), g, added=(100 * drawn(z, g)).round() / 100, labels=y), "repeat"),
    "no noise on some records": (
        lambda z, y, g: noisy(
            ball(z), g, added=drawn(z, g) * (torch.rand(*z.shape[:2], 1, 1, generator=g) > 0.05), labels=y
        ),
        "the noise of made is not what its receipt says",
    ),
    "noise in evaluation alone": (
        lambda z, y, g: noisy(ball(z), g, added=drawn(z, g) * (not z.requires_grad), labels=y),
        "the noise of made is not what its receipt says",
    ),
    "the last record as reference": (
        lambda z, y, g: noisy(ball(z) - ball(z)[:, -1:], g, labels=y),
        "changes other rows",
    ),
    "labels made of the data": (
        lambda z, y, g: noisy(ball(z), g, labels=(z.flatten(2).sum(2) > 0).long()),
        "makes labels from the smashed data",
    ),
    "a Laplace charge that is true of the sum alone": (
        lambda z, y, g: noisy(
            z / z.flatten(2).abs().sum(2).clamp_min(1).view(*z.shape[:2], *[1] * (z.ndim - 2)),
            g,
            LAPLACE,
            noise.laplace(0 * z, 1.0, g),
            labels=y,
        ),
        "of one number of at most 0.03125",
    ),
    "a chain inside": (
        lambda z, y, g: (
            replace(
                (made := Chain(stages=(parse("defenses", "clip").spec, GaussianNoise())).apply(z, y, g))[0],
                smashed=made[0].smashed + z,
            ),
            made[1],
        ),
        "makes its own certificate (ChainReceipt)",
    ),
}


@pytest.mark.slow(but=4)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_plausible_mistakes_are_found(mistake: str) -> None:
    made, said = MISTAKES[mistake]
    assert said in contradiction((stage(made),))


@pytest.mark.parametrize("effects", [frozenset({"noises"}), None])
def test_class_means_are_found_where_labels_meet(effects: Any) -> None:
    own = stage(lambda z, y, g: noisy(prototypes(ball(z), y), g, labels=y), effects=effects)
    assert contradiction((own,)) != ""


def test_a_row_that_sums_a_clients_records_is_charged_too_little_for_a_client() -> None:
    """One record moves it by 2, and all records of a message by 2·B, where a client is charged for 2·√B."""

    def summed(z: Tensor, y: Tensor, g: Generator) -> Any:
        total = torch.cat([ball(z).sum(1, keepdim=True), 0 * z[:, 1:]], 1)
        return noisy(total, g, labels=y)

    assert "is charged for a change of at most 2 when one record is replaced" in contradiction(
        (stage(summed, effects=None),)
    )


@pytest.mark.parametrize(
    "order",
    [
        lambda g: (torch.arange(16) + torch.randint(16, (1,), generator=g)) % 16,
        lambda g: (torch.randperm(4, generator=g).view(4, 1) * 4 + torch.randperm(4, generator=g)).flatten(),
    ],
    ids=["rolled", "rows and columns"],
)
def test_a_shuffle_of_few_orders_is_found(order: Any) -> None:
    def few(z: Tensor, y: Tensor, g: Generator) -> Any:
        m, b, t, _ = z.shape
        own = torch.stack([order(g) for _ in range(m * b)]) + t * torch.arange(m * b).unsqueeze(1)
        source = own.view(m, b, t)
        return Release(smashed=z.flatten(0, 2)[source], labels=y), Permuted(source=source)

    assert "all orders equally often" in contradiction((stage(few, effects=frozenset({"permutes"})),))


def test_a_map_that_marks_places_takes_the_count_of_a_later_shuffle_away() -> None:
    def marked(z: Tensor, y: Tensor, g: Generator) -> Any:
        return Release(smashed=z + torch.arange(z.shape[2]).view(-1, 1), labels=y), Nothing(reason="a test")

    with pytest.raises(ValueError, match="treats the places of tokens differently"):
        Chain(stages=(stage(marked, effects=frozenset({"maps"})), PatchShuffle()))


def test_a_bound_of_images_does_not_hold_behind_the_lower_segment() -> None:
    def clipped(z: Tensor, y: Tensor, g: Generator) -> Any:
        clip = Clamp(low=-0.1, high=0.1, dimensions=z[0, 0].numel())
        return Release(smashed=z.clamp(-0.1, 0.1), labels=y), Nothing(reason="a test", bound=clip)

    images = stage(clipped, effects=frozenset({"clips"}), level="input")
    steps = (
        StageReceipt(stage=images, receipt=images.apply(torch.rand(1, 2, 3, 8, 8), torch.zeros(1, 2), generator())[1]),
    )
    last = GaussianNoise(clip=None)
    receipt = last.apply(torch.rand(1, 2, 16, 4), torch.zeros(1, 2), generator())[1]
    assert compiled((*steps, StageReceipt(stage=last, receipt=receipt)), ONE_RELEASE).kind == "nothing"


@pytest.mark.parametrize("allowed", [lambda z: bool((z.abs() <= 1).all()), lambda z: bool((z >= 0).all())])
def test_a_stage_that_checks_its_data_is_measured_on_those_that_it_takes(allowed: Any) -> None:
    def checked(z: Tensor, y: Tensor, g: Generator) -> Any:
        if not allowed(z):
            raise ValueError("cut behind a bounded layer")
        clip = Clamp(low=-1, high=1, dimensions=z[0, 0].numel())
        return noisy(z.clamp(-1, 1), g, Noised(clip=clip, noise=Noise(smashed=1.0), mixing=UNMIXED), labels=y)

    assert contradiction((stage(checked),)) == ""
