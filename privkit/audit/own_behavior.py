"""Checks that a user's own defense stage or network behaves in training as it does afterwards, when it is attacked."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import cast

import torch
from torch import Generator, Tensor, nn

from privkit.audit.contained import is_own_part
from privkit.defenses.base import Defense, is_own
from privkit.defenses.chain import stages_of
from privkit.defenses.own_receipts import TrialRounds, trial_of
from privkit.domains.base import Batch
from privkit.errors import Misbehaved
from privkit.settings.config import AuditConfig
from privkit.torch_utils.seeded import seeded
from privkit.training import Clients
from privkit.training.loop import learns

_ROUNDED = 1e-4
"""Largest relative difference of a release that rounding explains."""
_LIKE_TWO_DRAWS = 10
"""Allowed multiple of the distance between two draws, for parts that do not draw from their generator alone."""
_HOLDS_OTHERS = (nn.Module, nn.Sequential, nn.ModuleList, nn.ModuleDict)
"""torch's modules that compute nothing by themselves."""
_CURE = "so attacks on what is sent after training say nothing about training; let it do the same in both"


def must_send_alike(config: AuditConfig, edge: Clients, records: Batch) -> None:
    """Raise `Misbehaved` if a user's own stage or network sends other data in training than afterwards.

    Attacks read data that are sent after training. The test sends the first round of `records` in both ways.
    """
    names = [stage.name for stage in stages_of(edge.defense) if is_own(stage)]
    if is_own_part(config.model.spec):
        names.append(config.model.name)
    if not names:
        return
    count = edge.lowers.copies * config.training.batch_size
    x, y = (side[:count].unflatten(0, (edge.lowers.copies, -1)) for side in (records.x, records.y))

    def sent(gradients: AbstractContextManager[object]) -> Tensor:
        with gradients, seeded(x.device, 0):
            draws = Generator(x.device).manual_seed(0)
            return edge.release(x.clone(), y.clone(), draws).arrived.smashed.detach().double()

    training, after, again = sent(torch.enable_grad()), sent(torch.no_grad()), sent(torch.no_grad())
    if not bool(after.isfinite().all()):
        return  # no attack reads such a release, and the result row says so
    apart = float("inf") if training.shape != after.shape else (training - after).norm().item()
    size = max(training.norm().item(), after.norm().item())
    if not apart <= _ROUNDED * size + _LIKE_TWO_DRAWS * (after - again).norm().item():
        raise Misbehaved(
            f"{' or '.join(names)} sends other data in training than afterwards: one round of the same records with "
            f"the same draws differs by {apart / max(size, 1e-30):.2g} of its size with and without gradients, {_CURE}"
        )
    if (
        is_own_part(config.model.spec) and learns(edge) and not config.training.freeze_lower
    ):  # else it runs in eval mode
        _must_keep_its_mode(config.model.name, edge.lowers.copy(0), x[0])


@torch.no_grad()
def _must_keep_its_mode(name: str, lower: nn.Module, records: Tensor) -> None:
    """Raise `Misbehaved` if a user's own lower network sends other data for a record in training mode.

    torch's own layers, such as dropout, differ on purpose, so they stay in evaluation mode here. Differences from
    random draws or from the other records of a batch (as in a hand-written batch normalization) are allowed.
    """

    def sent(x: Tensor, seed: int = 0) -> Tensor:
        with seeded(x.device, seed):
            return cast(Tensor, lower(x.clone())).double()

    lower.eval()
    after = sent(records)
    for part in lower.modules():
        part.training = not any(_computes(kind) for kind in type(part).__mro__)
    halves = records.chunk(2) if len(records) > 3 else (records,)
    training, again, others = sent(records), sent(records, 1), torch.cat([sent(half) for half in halves])
    apart, drawn, met = (float((training - other).norm()) for other in (after, again, others))
    if apart > _ROUNDED * after.norm() + _LIKE_TWO_DRAWS * max(drawn, met):
        raise Misbehaved(
            f"{name} sends other data in training than afterwards: its code reads the mode of the module "
            f"(self.training), and the same records differ by {apart / max(after.norm().item(), 1e-30):.2g} of their "
            f"size, {_CURE}"
        )


def _computes(kind: type) -> bool:
    """Whether a class is a layer of torch that computes something, unlike a container such as `Sequential`."""
    return issubclass(kind, nn.Module) and kind.__module__.startswith("torch.") and kind not in _HOLDS_OTHERS


@torch.no_grad()
def must_draw_anew(stages: tuple[Defense, ...], shape: tuple[int, ...], image: tuple[int, ...]) -> None:
    """Raise `Misbehaved` if a user's own defense stage adds the same noise in each round, e.g. from a fixed seed.

    An adversary who has the code, or queries twice, can subtract this noise; privkit's attacks expect fresh noise.
    `shape` is the shape of a record's smashed data, `image` the shape of an image.
    """
    for stage in stages:
        if not (is_own(stage) and stage.noise_fields):
            continue
        trial = trial_of((stage,), None, image) or trial_of((stage,), shape, image)
        if trial is None:
            continue  # nothing of it can be measured, and the run itself refuses it
        silent = TrialRounds((stage.noiseless(),), trial.shape, trial.lead[1], dtype=trial.dtype)
        one, other, without = (_released(each, seed) for each, seed in ((trial, 0), (trial, 1), (silent, 0)))
        if torch.equal(one, other) and not torch.allclose(one, without):
            raise Misbehaved(
                f"{stage.name} adds the same noise in each round, whatever the draws: whoever has its code subtracts "
                "it, and attacks take it for fresh noise; draw from the generator that apply is given, and seed none"
            )


def _released(trial: TrialRounds, seed: int) -> Tensor:
    return trial.play(trial.data(), trial.labels(), seed)[0].smashed


@torch.no_grad()
def made_by(stages: tuple[Defense, ...], image: tuple[int, ...]) -> list[Tensor | None]:
    """The release of each of a user's own stages for fixed artificial records; None if it does not accept them."""
    made: list[Tensor | None] = []
    for stage in filter(is_own, stages):
        with seeded(torch.device("cpu"), 0):
            trial = trial_of((stage,), None, image)
            made.append(None if trial is None else _released(trial, 0).nan_to_num())
    return made


def must_keep_no_state(stages: tuple[Defense, ...], image: tuple[int, ...], before: list[Tensor | None]) -> None:
    """Raise `Misbehaved` if a user's own stage now releases other data than `before` (from `made_by`).

    Attacks and measurements use the stage after training, so they would say nothing about the training.
    """
    for stage, first, after in zip(filter(is_own, stages), before, made_by(stages, image), strict=True):
        if first is None or after is None:
            continue
        same = first.shape == after.shape
        apart = float((first - after).norm() / after.norm().clamp_min(1e-30)) if same else float("inf")
        if not apart <= _ROUNDED:
            raise Misbehaved(
                f"{stage.name} changed while the model was trained: from the same records and draws, its release "
                f"now differs by {apart:.2g} of its size, so attacks and claims, which meet the stage afterwards, say "
                "nothing about training; let it keep no state between calls"
            )
