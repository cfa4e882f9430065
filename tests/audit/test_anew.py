"""Noise of a user's own stage that is the same in each round is refused, since anybody can subtract it."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Any, ClassVar

import pytest
import torch
from torch import Generator, Tensor

from privkit.audit.standing import must_draw_anew
from privkit.defenses.base import OnSmashed
from privkit.defenses.noise import GaussianNoise
from privkit.defenses.receipts import Nothing
from privkit.errors import Misbehaved
from privkit.templates.defense import Template


@dataclass(frozen=True, kw_only=True)
class Drawn(OnSmashed[Nothing]):
    """Noise from the generator that it is given."""

    name: ClassVar[str] = "drawn"
    effects: ClassVar[Any] = frozenset({"noises"})
    noise_fields: ClassVar[tuple[str, ...]] = ("sigma",)
    sigma: float = 2.0

    def source(self, smashed: Tensor, generator: Generator) -> Generator:
        return generator

    def defended(self, smashed: Tensor, generator: Generator) -> tuple[Tensor, Nothing]:
        noise = torch.randn(smashed.shape, generator=self.source(smashed, generator), dtype=smashed.dtype)
        return smashed + self.sigma * noise, Nothing(reason="noise; no differential privacy")


class Seeded(Drawn):
    """A seed of its own, as an author writes it to get the same numbers again."""

    def source(self, smashed: Tensor, generator: Generator) -> Generator:
        return Generator().manual_seed(0)


class OfTheRecords(Drawn):
    """Noise that follows from what it hides."""

    def source(self, smashed: Tensor, generator: Generator) -> Generator:
        return Generator().manual_seed(int.from_bytes(sha256(smashed.detach().numpy().tobytes()).digest()[:4], "big"))


class ByRatio(Drawn):
    """Its field is a ratio of signal to noise."""

    def defended(self, smashed: Tensor, generator: Generator) -> tuple[Tensor, Nothing]:
        noise, receipt = super().defended(0 * smashed, generator)
        return smashed + noise / self.sigma**2, receipt


class RatioAndMask(ByRatio):
    """It also masks coordinates at random."""

    effects: ClassVar[Any] = frozenset({"noises", "masks"})

    def defended(self, smashed: Tensor, generator: Generator) -> tuple[Tensor, Nothing]:
        return super().defended(smashed * torch.rand(smashed.shape, generator=generator).round(), generator)


class NoiseAndMask(Drawn):
    """The noise is proportional to its field, and a random mask stays without noise."""

    effects: ClassVar[Any] = frozenset({"noises", "masks"})

    def defended(self, smashed: Tensor, generator: Generator) -> tuple[Tensor, Nothing]:
        return super().defended(smashed * torch.rand(smashed.shape, generator=generator).round(), generator)


@pytest.mark.parametrize("stage", [ByRatio(), RatioAndMask()], ids=lambda one: type(one).__name__)
def test_noise_that_its_fields_do_not_switch_off_is_refused(stage: Drawn) -> None:
    with pytest.raises(Misbehaved, match="noise_fields must be fields that are proportional to the noise"):
        must_draw_anew((stage,), (16, 4), (1, 8, 8))


@pytest.mark.parametrize("stage", [Seeded(), OfTheRecords()], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("behind", [(), (GaussianNoise(),)], ids=("alone", "in a chain"))
def test_noise_that_is_the_same_in_each_round_is_refused(stage: Drawn, behind: Any) -> None:
    with pytest.raises(Misbehaved, match="adds the same noise in each round"):
        must_draw_anew((stage, *behind), (16, 4), (1, 8, 8))


@pytest.mark.parametrize("stage", [Drawn(), Seeded(sigma=0.0), Template(), NoiseAndMask(), GaussianNoise()], ids=repr)
def test_fresh_noise_no_noise_and_fixed_functions_pass(stage: Any) -> None:
    must_draw_anew((stage,), (16, 4), (1, 8, 8))
