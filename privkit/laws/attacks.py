"""Laws of an attack: it wins where winning is easy, learns nothing from noise, and sees only what it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from privkit.attacks.base import AnyAttack, Mounting, NotApplicable, Session
from privkit.attacks.declaration import check_declared
from privkit.attacks.goals import distinguish, labels, membership, reconstruct, reconstruct_controls
from privkit.attacks.goals.control import Control
from privkit.domains.images.embedded import Digits
from privkit.errors import one_line

AUXILIARY, VICTIMS, BATCH, PATCH = 400, 40, 20, 7
_TRUTH_HELD = frozenset({"auxiliary", "auxiliary_labels", "query", "lower"})
"""What an adversary holds where the private images behind its views are replaced."""


class Watched:
    """An attack whose outputs are kept, also where it stands in for itself in control experiments."""

    def __init__(self, attack: Any, outputs: list[Tensor]) -> None:
        self._attack, self._outputs = attack, outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._attack, name)

    @property
    def mounting(self) -> Mounting[Any, Any]:
        """The attack's own, whose stand-in is watched, too."""
        mounting: Mounting[Any, Any] = self._attack.mounting
        control = mounting.control
        if control is None:
            return mounting
        return replace(mounting, control=lambda steps: Watched(control(steps), self._outputs))

    def run(self, observation: Any, generator: Generator, session: Session | None = None) -> Any:
        """Run it; see `Attack.run`."""
        output = self._attack.run(observation, generator, session)
        self._outputs.append(_numbers(output))
        return output


class Mounted:
    """An attack in its control experiments, which are done when a law asks for them.

    Args:
        attack: its specification.
    """

    def __init__(self, attack: AnyAttack) -> None:
        self.attack: Any = attack

    @cached_property
    def tried(self) -> tuple[tuple[Control, ...], list[Tensor], bool]:
        """Both controls, the outputs in them, and whether torch's global generator stayed as it was."""
        state, outputs = torch.random.get_rng_state(), list[Tensor]()
        watched: Any = Watched(self.attack, outputs)
        if self.attack.goal == "reconstruct":
            controls = reconstruct_controls.controls(watched, observed(images())[0], 0)
        else:
            controls = {
                "labels": labels.controls,
                "membership": membership.controls,
                "distinguish": distinguish.controls,
            }[self.attack.goal](watched, 0)
        return controls, outputs, torch.equal(torch.random.get_rng_state(), state)

    def control(self, place: int) -> str:
        """How one of the controls failed; empty if it did not."""
        control = self.tried[0][place]
        return "" if control.passed else control.detail


def _numbers(output: Any) -> Tensor:
    """What an attack gave back: images or scores."""
    numbers: Tensor = output.images if hasattr(output, "images") else output.values
    return numbers.clone()


@cache
def images() -> tuple[Tensor, Tensor]:
    """Digits [N, 1, 28, 28] and their labels, those of the victims last."""
    count = AUXILIARY + VICTIMS
    pool = Digits().open(None, download=False, train_images=count).train
    batch = pool.take(np.random.default_rng(0).permutation(len(pool))[:count])
    return batch.x, batch.y


def observed(given: tuple[Tensor, Tensor]) -> tuple[reconstruct.ImageObservation, Tensor]:
    """What a server sees of patches that clients send as they are; and the private images, whose views are copies."""
    x, y = given
    private = x[AUXILIARY:].clone()
    tokens = reconstruct_controls.plain(torch.zeros(1, (x.shape[2] // PATCH) ** 2, PATCH**2), tuple(x.shape[1:]))
    observation = reconstruct.observe(tokens, private, batch_size=BATCH, auxiliary=x[:AUXILIARY], known=True)
    views = [replace(view, smashed=view.smashed.clone()) for view in observation.views]
    return replace(observation, views=views, auxiliary_labels=y[:AUXILIARY]), private


def declares_what_it_needs(mounted: Mounted) -> str:
    """It declares goal, needs, uses and mounting."""
    try:
        check_declared(mounted.attack)
    except TypeError as error:
        return str(error)
    return ""


def same_seed_same_bits(mounted: Mounted) -> str:
    """Two runs give the same bits, and torch's global generator stays as it was."""
    _, outputs, untouched = mounted.tried
    _, again, _ = Mounted(mounted.attack).tried
    if not untouched:
        return "it draws from torch's global generator; take the generator that is given"
    if len(outputs) == len(again) and all(torch.equal(a, b) for a, b in zip(outputs, again, strict=True)):
        return ""
    return "the same generator gives other bits; draw from it, and from nothing else"


def sees_no_truth(mounted: Mounted) -> str:
    """Other private images behind the same views change no bit."""
    attack = mounted.attack
    if attack.goal != "reconstruct" or not attack.needs <= _TRUTH_HELD:
        return ""
    short = reconstruct_controls.shortened(attack, AUXILIARY, BATCH)
    outputs = []
    for place in range(2):
        observation, private = observed(images())
        if place:
            private.copy_(torch.rand(private.shape, generator=Generator().manual_seed(0)))
        try:
            outputs.append(_numbers(short.run(observation, Generator().manual_seed(0))))
        except NotApplicable as reason:
            return f"it cannot be mounted on images of its own kind: {one_line(reason)}"
    return "" if torch.equal(*outputs) else "other private images behind the same views change its guess: it saw them"


LAWS: dict[str, Callable[[Mounted], str]] = {
    "it declares what it needs": declares_what_it_needs,
    "it wins on its control": lambda mounted: mounted.control(0),
    "it fails on noise": lambda mounted: mounted.control(1),
    "same seed, same bits": same_seed_same_bits,
    "it sees no truth": sees_no_truth,
}
