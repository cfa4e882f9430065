"""Rules on the order of defense stages; they refuse orders whose privacy claim would be false or is not derived."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product

from privkit.accountants.spec.sensitivity import Clamp
from privkit.defenses.base import Defense, Effect, is_own, stages_with
from privkit.defenses.charge import Noised
from privkit.defenses.compile import noised_by_clients
from privkit.defenses.measured import contradiction
from privkit.defenses.own_receipts import receipt_of_trial
from privkit.defenses.receipts import Nothing

_PLACES = ("client", "mixer", "server")
_OF_COORDINATES = (frozenset({"clips"}), frozenset({"noises"}), frozenset({"noises", "mixes"}))
"""Effects, besides "trains", of a stage that may treat each coordinate separately."""


def check_chain(stages: Sequence[Defense]) -> None:
    """Raise a `ValueError` if these defense stages cannot form a chain, or if no certificate is derived for it."""
    for reason in _reasons(stages):
        raise ValueError(reason)


def _reasons(stages: Sequence[Defense]) -> Iterator[str]:
    if len(stages) < 2:
        yield "a chain needs at least two stages; name a single defense by itself"
    yield from _run(stages)
    yield from _once(stages)
    yield from _claims(stages)
    if any(is_own(stage) for stage in stages) and (found := contradiction(stages)):
        yield found


def _run(stages: Sequence[Defense]) -> Iterator[str]:
    for number, stage in enumerate(stages):
        if stage.name == "none":
            yield "none is the absence of a defense; leave it out of the chain"
        if stage.effects is None:
            yield f"{stage.name} declares no `effects`, so no claim of a chain with it can be checked; use it alone"
        if getattr(stage, "noise_in_place", False) and any(other.name != "bounded" for other in stages[:number]):
            yield (
                f"{stage.name}:noise_in_place=true falsifies the gradient of the stages before it; put it first, or "
                "behind bounded alone"
            )
        if getattr(stage, "variant", "") == "undone" and not all(other.denoises for other in stages[number:]):
            yield f"{stage.name}:variant=undone restores what the server computed with; put it behind all other stages"
    for first, second in pairwise(stages):
        if _PLACES.index(second.place) < _PLACES.index(first.place):
            yield (
                f"{second.name} runs at the {second.place}, but {first.name} before it runs at the {first.place}; "
                f"messages go from client to mixer to server: change the order, or the place ({second.name}@…)"
            )
        if second.level == "input" != first.level:
            yield f"{second.name} takes images, but {first.name} before it takes smashed data; put it first"
        if second.place == "server" == first.place and noised_by_clients(second):
            yield f"{second.name}@server:site=client begins at the clients, so no stage at the server can precede it"


def _once(stages: Sequence[Defense]) -> Iterator[str]:
    twice: dict[Effect, str] = {
        "permutes": "permute tokens: the orders of two shuffles are not counted; use one of them",
        "mixes": "mix clients, and a round has one set of groups; use one of them",
        "answers": "change the gradient that goes back: no ε was derived for two of them; use one of them",
        "splits": "split the release into parts; use one of them",
    }
    for effect, reason in twice.items():
        both = stages_with(stages, effect)
        if len(both) > 1:
            yield f"{both[0].name} and {both[1].name} both {reason}"
    noisy = [stage for stage in stages_with(stages, "noises") if _trusted(stage)]
    if len(noisy) > 1:
        yield (
            f"{noisy[0].name} and {noisy[1].name} both add noise to the smashed data: no ε was derived for two noises "
            "with clipping between them; use one, with the σ that you want"
        )
    companions = [stage for stage in stages if type(stage).companion is not Defense.companion]
    if len(companions) > 1:
        names = " and ".join(stage.name for stage in companions)
        yield f"{names}: a client trains one simulated attacker beside the task; use one of them"
    levels = {stage.level for stage in stages_with(stages, "masks", "mixes")}
    if len(levels) > 1:
        names = " and ".join(stage.name for stage in stages_with(stages, "masks", "mixes"))
        yield f"{names} weigh positions of images and of smashed data, which differ; give them the same level"


def _claims(stages: Sequence[Defense]) -> Iterator[str]:
    trusted = [stage for stage in stages if _trusted(stage)]
    for shuffle in stages_with(trusted, "permutes"):
        for other in stages_with(trusted, "masks", "shortens"):
            remedy = "" if stages_with([other], "shortens") else f"mask at the server ({other.name}@server), or "
            yield (
                f"{shuffle.name} counts the orders of all tokens of an image, but {other.name} drops some: the count "
                f"would be false; {remedy}use one of them"
            )
        for other in stages_with(trusted, "mixes"):
            yield (
                f"{shuffle.name} counts the orders of one image's tokens, but {other.name} mixes several clients' "
                f"into a message: these orders are not counted; use shuffled_cutmix, which counts none"
            )
    for short, mixing in product(stages_with(stages, "shortens"), stages_with(stages, "mixes")):
        yield (
            f"{short.name} keeps tokens of other places in each image, so {mixing.name} would mix different places; "
            f"mask positions with random_cutout, or use one of them"
        )
    for short, other in product(stages_with(stages, "shortens"), stages_with(stages, "masks")):
        receipt = receipt_of_trial(other)
        if not isinstance(receipt, Nothing) or receipt.masks is not None:
            yield f"{short.name} and {other.name} both leave out positions, so places would no longer agree; use one"
    for split in stages_with(trusted, "splits"):
        for late in trusted[trusted.index(split) + 1 :]:
            yield f"{late.name} would act on parts that lie in storages already; put {split.name} behind it"
    mixing_channels = [stage for stage in stages if stage.frozen_block not in (False, "auto")]
    for block in mixing_channels if stages_with(stages, "splits") else ():
        yield (
            f"{block.name}:frozen_block=true carries each channel into all others behind the split into parts; leave "
            "frozen_block out"
        )
    mixed_labels = [stage for stage in stages if stage.soft_labels and stage.place != "server"]
    for number, stage in enumerate(stages):
        if stages_with([stage], "noises") and _trusted(stage):
            yield from _noise(stage, stages[:number], stages[number + 1 :])
        if stage.level == "input" and stages_with([stage], "noises", "mixes"):
            for learner in stages_with(stages, "trains"):
                yield (
                    f"{learner.name} trains lower segments on each client's own images, past {stage.name}:level=input: "
                    "what they learn is not covered; use level=smashed"
                )
        for sender in (other for other in mixed_labels if stages_with([stage], "answers")):
            yield (
                f"{stage.name} protects labels that the server holds, but {sender.name} lets clients send them mixed "
                "or noised; combine it with a defense of the smashed data alone"
            )


def _noise(stage: Defense, before: Sequence[Defense], after: Sequence[Defense]) -> Iterator[str]:
    for number, shuffle in enumerate(before):
        between = [*before[number + 1 :], stage]
        norms = [other for other in between if not _by_coordinate(other) or other.level != shuffle.level]
        if stages_with([shuffle], "permutes") and shuffle.over_batch and norms:
            yield (
                f"{shuffle.name} may spread one image over its batch, so {norms[0].name} would bound or change a row "
                f"and not a record; bound each coordinate (clip_by=coordinate), put {shuffle.name} after the noise, or "
                "declare over_batch=False if its tokens stay in their image"
            )
    late = stages_with(after, "clips")
    receipt = receipt_of_trial(stage)
    if late and isinstance(receipt, Noised) and receipt.clip is None and not stages_with(before, "clips"):
        yield (
            f"{late[0].name} after {stage.name} does not bound what the noise hides: the sensitivity is that of the "
            "data before the noise; put it before"
        )


def _by_coordinate(stage: Defense) -> bool:
    """Whether a stage treats each coordinate separately, so that it commutes with a permutation.

    The stage's receipt decides: True if coordinates are clamped, or get noise with or without a clamp. A stage that
    only changes the training counts as True.
    """
    if stage.effects == frozenset({"trains"}):
        return True
    if stage.effects is None or stage.effects - {"trains"} not in _OF_COORDINATES:
        return False
    receipt = receipt_of_trial(stage)
    if isinstance(receipt, Noised):
        return receipt.clip is None or isinstance(receipt.clip, Clamp)
    return isinstance(receipt, Nothing) and isinstance(receipt.bound, Clamp)


def _trusted(stage: Defense) -> bool:
    return stage.place != "server" or noised_by_clients(stage)
