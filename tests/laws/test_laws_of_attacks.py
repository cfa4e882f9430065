"""The laws of attacks: each of them finds an attack that breaks it."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch.nn.parameter import is_lazy

from privkit.attacks.goals.reconstruct import Reconstruction
from privkit.laws import attacks
from privkit.laws.parts import laws
from privkit.templates import attack


class Peeking(attack.Template):
    """It remembers the images that a client sent."""

    def run(self, observation: Any, generator: Any, session: Any = None) -> Reconstruction:
        import gc

        seen = [
            one
            for one in gc.get_objects()
            if issubclass(type(one), torch.Tensor)
            and not is_lazy(one)  # another test's network without a shape yet
            and one.shape == (attacks.VICTIMS, 1, 28, 28)
        ]
        return Reconstruction(images=seen[-1].clone())


class Dice(attack.Template):
    """It draws from the global generator."""

    def run(self, observation: Any, generator: Any, session: Any = None) -> Reconstruction:
        guess = super().run(observation, generator).images
        return Reconstruction(images=(guess + 0.01 * torch.rand(guess.shape)).clamp(0, 1))


class Idle(attack.Template):
    """It guesses grey."""

    def run(self, observation: Any, generator: Any, session: Any = None) -> Reconstruction:
        return Reconstruction(images=0 * super().run(observation, generator).images + 0.5)


class InPlace(attack.Template):
    """It centers the images that it is given where they lie."""

    def run(self, observation: Any, generator: Any, session: Any = None) -> Reconstruction:
        guess = super().run(observation, generator)
        observation.auxiliary.mul_(2).sub_(1)
        return guess


class Bytes(attack.Template):
    """It guesses bytes."""

    def run(self, observation: Any, generator: Any, session: Any = None) -> Reconstruction:
        return Reconstruction(images=255 * super().run(observation, generator).images)


class NotANumber(attack.Template):
    """Its first guess is NaN, always in the same place."""

    def run(self, observation: Any, generator: Any, session: Any = None) -> Reconstruction:
        images = super().run(observation, generator).images.clone()
        images[0] = float("nan")
        return Reconstruction(images=images)


@dataclass(frozen=True, kw_only=True)
class Wrong(attack.Template):
    """It returns what nobody can score.

    Attributes:
        way: how.
    """

    way: str = "nothing"

    def run(self, observation: Any, generator: Any, session: Any = None) -> Any:
        images = super().run(observation, generator).images
        if self.way == "raises":
            raise KeyError("oops")
        wrong = {"bare": images, "fewer": Reconstruction(images=images[1:])}
        return wrong.get(self.way, Reconstruction(images=images[..., :-1]) if self.way == "narrow" else None)


class Undeclared(attack.Template):
    """It wants what nobody holds."""

    needs: ClassVar[frozenset[str]] = frozenset({"truth"})


@pytest.mark.parametrize(
    ("lie", "law"),
    [
        (Undeclared, "it declares what it needs"),
        (Idle, "it wins on its control"),
        (Dice, "same seed, same bits"),
        (Peeking, "it sees no truth"),
        (InPlace, "it does not change its inputs"),
        (Bytes, "its guesses are in range"),
    ],
)
def test_attacks_that_break_a_law(lie: type[attack.Template], law: str) -> None:
    assert attacks.LAWS[law](attacks.Mounted(lie()))


def test_a_guess_of_nan_is_called_so_and_is_no_other_fault() -> None:
    mounted = attacks.Mounted(NotANumber())
    told = {law: broken(mounted) for law, broken in attacks.LAWS.items()}
    assert "a guess is not finite" in told["it wins on its control"]
    assert "are not finite" in told["its guesses are in range"]
    for law in ("same seed, same bits", "it does not change its inputs", "it sees no truth"):
        assert told[law] == ""


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("nothing", "images [100, 1, 28, 28], got NoneType"),
        ("bare", "images [100, 1, 28, 28], got [100, 1, 28, 28]"),
        ("fewer", "images [100, 1, 28, 28], got images [99, 1, 28, 28]"),
        ("narrow", "images [100, 1, 28, 28], got images [100, 1, 28, 27]"),
        ("raises", "it raised KeyError: 'oops'"),
    ],
)
def test_what_an_attack_must_return_is_said_once(way: str, said: str) -> None:
    told = dict(laws(f"{__name__}:Wrong:way={way}", "attacks"))
    assert said in told["it wins on its control"]
    assert way == "raises" or told["it wins on its control"].startswith("template must return a Reconstruction")
    for law in ("it fails on noise", "same seed, same bits", "its guesses are in range"):
        assert told[law] == 'not decided, as "it wins on its control" ended in the same error'


def test_an_attack_that_writes_into_its_images_spoils_none_of_the_next() -> None:
    before = attacks.images()[0].clone()
    assert attacks.Mounted(InPlace()).tried
    assert torch.equal(attacks.images()[0], before)
