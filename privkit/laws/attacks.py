"""Laws of an attack: it succeeds on easy data, recovers nothing from noise, and uses only its observation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import AnyAttack, Mounting, NotApplicable, Session
from privkit.attacks.declaration import check_declared
from privkit.attacks.goals import goal_of, reconstruct
from privkit.attacks.goals.control import Control
from privkit.attacks.goals.control_cast import as_control
from privkit.attacks.goals.identity import identity_lower
from privkit.attacks.outputs import guesses_of
from privkit.audit.scoring import check_guesses
from privkit.domains.images.domain import Images
from privkit.domains.images.embedded import Digits
from privkit.errors import Misbehaved, one_line
from privkit.torch_utils.same import same

AUXILIARY, VICTIMS, BATCH_SIZE, PATCH = 400, 40, 20, 7
_TRUTH_HELD = frozenset({"auxiliary", "auxiliary_labels", "query", "lower"})
"""Inputs that the law "it sees no truth" can give to an attack, besides the releases; see `Attack.needs`."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of an attack.

    Attributes:
        output: the numbers of its output; empty for an output without numbers.
        untouched: whether torch's global generator stayed unchanged.
        edited: name of the first input tensor that the attack changed in place; empty if none.
    """

    output: Tensor
    untouched: bool
    edited: str = ""


class _Watched:
    """An attack whose runs are recorded. The attack that replaces it in control experiments is recorded, too."""

    def __init__(self, attack: Any, runs: list[Run]) -> None:
        self._attack, self._runs = attack, runs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._attack, name)

    @property
    def mounting(self) -> Mounting[Any, Any]:
        mounting: Mounting[Any, Any] = self._attack.mounting
        control = mounting.control
        if control is None:
            return mounting
        return replace(mounting, control=lambda steps: _Watched(control(steps), self._runs))

    def run(self, observation: Any, generator: Generator, session: Session | None = None) -> Any:
        state, given = torch.random.get_rng_state(), _tensors(observation)
        before = {name: tensor.detach().clone() for name, tensor in given.items()}
        output = self._attack.run(observation, generator, session)
        untouched = torch.equal(torch.random.get_rng_state(), state)
        edited = next((name for name, tensor in given.items() if not same(tensor, before[name])), "")
        self._runs.append(Run(output=_numbers(output), untouched=untouched, edited=edited))
        return output


class Mounted:
    """An attack with its control experiments (on easy data and on noise), which run when a law first needs them."""

    def __init__(self, attack: AnyAttack) -> None:
        self.attack: Any = attack

    @cached_property
    def tried(self) -> tuple[tuple[Control, ...], list[Run]]:
        """The outcomes of the control experiments (on easy data, on noise), and the attack's runs in them."""
        runs: list[Run] = []
        watched: Any = _Watched(self.attack, runs)
        return goal_of(self.attack).controls(watched, 0, _observed(images())[0]), runs

    def control(self, place: int) -> str:
        """Why control experiment `place` (0: easy data, 1: noise) failed, in a sentence; empty if it passed."""
        control = self.tried[0][place]
        return "" if control.passed else control.detail


def _tensors(observation: Any) -> dict[str, Tensor]:
    held = {name: value for name, value in vars(observation).items() if name != "views"}
    for number, view in enumerate(observation.views):
        held |= {f"views[{number}].{name}": value for name, value in vars(view).items()}
    for name, value in list(held.items()):
        if isinstance(value, nn.Module):
            held |= {f"{name}.{weight}": one.data for weight, one in value.named_parameters()}
    return {name: value for name, value in held.items() if isinstance(value, Tensor)}


def _numbers(output: Any) -> Tensor:
    numbers = getattr(output, "images", getattr(output, "values", None))
    return numbers.clone() if isinstance(numbers, Tensor) else torch.empty(0)


@cache
def images() -> tuple[Tensor, Tensor]:
    """Load `AUXILIARY` + `VICTIMS` digits [N, 1, 28, 28] and their labels [N]; the last `VICTIMS` are attacked."""
    count = AUXILIARY + VICTIMS
    pool = Digits().open(None, download=False, train_images=count).train
    batch = pool.take(np.random.default_rng(0).permutation(len(pool))[:count])
    return batch.x, batch.y


def _observed(given: tuple[Tensor, Tensor]) -> tuple[reconstruct.ImageObservation, Tensor]:
    """Build a server's observation of images whose patches are released unchanged; also return the private images."""
    x, y = (tensor.clone() for tensor in given)
    private = x[AUXILIARY:]
    tokens = identity_lower(torch.zeros(1, (x.shape[2] // PATCH) ** 2, PATCH**2), tuple(x.shape[1:]))
    observation = reconstruct.observe(tokens, private, batch_size=BATCH_SIZE, auxiliary=x[:AUXILIARY], known=True)
    views = [replace(view, smashed=view.smashed.clone()) for view in observation.views]
    return replace(observation, views=views, auxiliary_labels=y[:AUXILIARY]), private


def _declares_what_it_needs(mounted: Mounted) -> str:
    try:
        check_declared(mounted.attack)
    except TypeError as error:
        return str(error)
    return ""


def _same_seed_same_bits(mounted: Mounted) -> str:
    runs, again = mounted.tried[1], Mounted(mounted.attack).tried[1]
    if not all(run.untouched for run in runs):
        return "it draws from torch's global generator; take the generator that is given"
    if len(runs) == len(again) and all(same(a.output, b.output) for a, b in zip(runs, again, strict=True)):
        return ""
    return "the same generator gives other bits; draw from it, and from nothing else"


def _leaves_what_it_is_given(mounted: Mounted) -> str:
    edited = next((run.edited for run in mounted.tried[1] if run.edited), "")
    return f"it changes {edited} in place; compute on a copy, such as {edited}.clone()" if edited else ""


def _guesses_are_in_range(mounted: Mounted) -> str:
    for run in mounted.tried[1] if goal_of(mounted.attack).reads(mounted.attack) else ():
        try:
            check_guesses(mounted.attack.name, Images(shape=_shape(run.output)), run.output)
        except Misbehaved as error:
            return str(error)
    return ""


def _shape(images: Tensor) -> tuple[int, int, int]:
    _, channels, height, width = images.shape
    return channels, height, width


def _sees_no_truth(mounted: Mounted) -> str:
    attack = mounted.attack
    if not goal_of(attack).reads(attack) or not attack.needs <= _TRUTH_HELD:
        return ""
    short = as_control(attack, AUXILIARY, BATCH_SIZE)
    outputs = []
    for place in range(2):
        observation, private = _observed(images())
        if place:
            private.copy_(torch.rand(private.shape, generator=Generator().manual_seed(0)))
        try:
            found = short.run(observation, Generator().manual_seed(0))
            outputs.append(guesses_of(attack, found, VICTIMS, observation.image_shape).images)
        except NotApplicable as reason:
            return f"it cannot be mounted on images of its own kind: {one_line(reason)}"
    if same(*outputs):
        return ""
    return "its guess changes if the private images behind the same views are replaced: it saw them"


LAWS: dict[str, Callable[[Mounted], str]] = {
    "it declares what it needs": _declares_what_it_needs,
    "it wins on its control": lambda mounted: mounted.control(0),
    "it fails on noise": lambda mounted: mounted.control(1),
    "same seed, same bits": _same_seed_same_bits,
    "it does not change its inputs": _leaves_what_it_is_given,
    "its guesses are in range": _guesses_are_in_range,
    "it sees no truth": _sees_no_truth,
}
