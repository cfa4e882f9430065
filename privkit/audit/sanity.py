"""Sanity gates: an attack counts only if it wins where winning is easy and fails where nothing is to be had."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import Knowledge, NotApplicable, QueryResult, View
from privkit.attacks.inversion.floors import MeanImage
from privkit.attacks.patches import Geometry, patchify
from privkit.audit.sanity_hijack import hijack_errors, shrunk
from privkit.reports.schema import Check, Metrics
from privkit.seeds import derive

CONTROL_STEPS = 100
CONTROL_IMAGES = 1_000
PLAYED = 100
"""Auxiliary images that take part at most, and those of them that play the victim."""
PROBE_SCALE = 6.0  # least squares give logits near 0 and 1; a trained server is surer
IDENTITY_SHARE = 0.5
"""The identity control passes if the attack's MSE is at most this share of the mean image's."""
NOISE_SLACK = 0.03
"""The noise control passes if the attack's MSE is at most this share below the mean image's."""


def controls(
    attack: Any, auxiliary: Tensor, labels: Tensor, release: Tensor, batch_size: int, seed: int
) -> tuple[Check, Check]:
    """Mount a short version of an attack on a release that is the image itself, and on one that is pure noise.

    Only auxiliary images take part: the last ones, at most a quarter, play the victim. An attack that takes training
    over meets small clients that can be led (`privkit.audit.sanity_hijack`) instead.

    Args:
        attack: the attack's specification.
        auxiliary: images [M, C, H, W] in [0, 1].
        labels: int64 [M], of these images.
        release: a release of the real client, whose shape the noise takes.
        batch_size: images a message.
        seed: of everything random in it.

    Raises:
        NotApplicable: if there are too few auxiliary images.
    """
    if "clients" not in attack.needs:  # whoever trains clients needs all
        auxiliary, labels = auxiliary[-CONTROL_IMAGES:], labels[-CONTROL_IMAGES:]
    whole = auxiliary.shape
    if hasattr(attack, "control_side"):
        auxiliary = shrunk(auxiliary, attack.control_side)
    shape = (auxiliary.shape[1], auxiliary.shape[2], auxiliary.shape[3])
    quarter = min(len(auxiliary) // 4, max(PLAYED, batch_size)) // batch_size * batch_size
    if quarter == 0:
        raise NotApplicable(f"controls need at least {4 * batch_size} auxiliary images, got {len(auxiliary)}")
    own, played = auxiliary[:-quarter], auxiliary[-quarter:]
    image = plain(release, shape)
    attack = shortened(attack, len(own), batch_size)
    if "clients" in attack.needs:
        led, noised = hijack_errors(attack, own, played, labels[:-quarter], labels[-quarter:], batch_size, seed)
        return _gates(led, noised, (own.mean(0) - played).square().mean().item())

    def answer(smashed: Tensor) -> QueryResult:
        members = torch.arange(len(smashed), device=smashed.device).unsqueeze(1)
        return QueryResult(view=View(round=0, smashed=smashed), members=members)

    def identity(images: Tensor, draws: Generator) -> QueryResult:
        return answer(image(images))

    def noise(images: Tensor, draws: Generator) -> QueryResult:
        real = "lower" not in attack.needs and auxiliary.shape == whole
        shape = (len(images), *release.shape[1:]) if real else image(images).shape
        return answer(torch.randn(shape, generator=draws, device=images.device))

    errors = []
    for name, query in (("identity", identity), ("noise", noise)):
        draws = Generator(auxiliary.device).manual_seed(derive(seed, "control", name))
        times = getattr(attack, "passes", 1)
        rounds = played.split(batch_size) * times
        tags = torch.arange(len(auxiliary) - quarter, len(auxiliary)).split(batch_size) * times
        views = [
            replace(query(part, draws).view, round=i, labels=labels[rows])
            for i, (part, rows) in enumerate(zip(rounds, tags, strict=True))
        ]
        knowledge = Knowledge(
            image_shape=shape,
            batch_size=batch_size,
            auxiliary=own,
            auxiliary_labels=labels[:-quarter],
            query=query,
            lower=image if "lower" in attack.needs else None,
            upper=_probe(query(own, draws).view.smashed, labels[:-quarter]) if "upper" in attack.needs else None,
        )
        guess = attack.run(views, knowledge, Generator().manual_seed(derive(seed, "control", name, "attack")))
        errors.append((guess.images - played).square().mean().item())
    floor = MeanImage().run(views[: len(views) // times], knowledge, Generator()).images
    mean_error = (floor - played).square().mean().item()
    identity_error, noise_error = errors
    return _gates(identity_error, noise_error, mean_error)


def shortened(attack: Any, own: int, batch_size: int) -> Any:
    """An attack as its controls mount it: its own `control` or `control_epochs`, or so many steps as all get.

    Args:
        attack: its specification.
        own: images that it has.
        batch_size: images a step.
    """
    if (control := getattr(attack, "control", None)) is not None:
        return control
    if (enough := getattr(attack, "control_epochs", None)) is not None:
        return replace(attack, epochs=enough)
    if getattr(attack, "epochs", None) is None:
        return attack
    steps = max(1, (own - max(batch_size, own // 10)) // batch_size)
    return replace(attack, epochs=ceil(CONTROL_STEPS / steps))


def _gates(identity_error: float, noise_error: float, mean_error: float) -> tuple[Check, Check]:
    """Both controls, judged."""
    return (
        Check(
            name="wins_on_identity",
            passed=identity_error <= IDENTITY_SHARE * mean_error,
            detail=f"on a release that is the image itself the attack has MSE {identity_error:.4f}, "
            f"the mean image {mean_error:.4f}",
            decisive=True,
        ),
        Check(
            name="fails_on_noise",
            passed=noise_error >= (1 - NOISE_SLACK) * mean_error,
            detail=f"on a release of pure noise the attack has MSE {noise_error:.4f}, the mean image {mean_error:.4f}",
            decisive=True,
        ),
    )


def _probe(released: Tensor, labels: Tensor) -> nn.Module:
    """A server that tells labels from releases as well as least squares do, with as many unknowns as images."""
    rows = released.flatten(1).double()
    inputs = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
    targets = nn.functional.one_hot(labels, int(labels.max()) + 1).double()
    ridge = 1e-2 * len(rows) * torch.eye(len(rows), dtype=inputs.dtype, device=inputs.device)
    found = (inputs.T @ torch.linalg.solve(inputs @ inputs.T + ridge, targets)).float()
    linear = nn.Linear(found.shape[0] - 1, found.shape[1], device=released.device)
    with torch.no_grad():
        linear.weight.copy_(PROBE_SCALE * found[:-1].T)
        linear.bias.copy_(PROBE_SCALE * found[-1])
    return nn.Sequential(nn.Flatten(), linear)


def plain(release: Tensor, image_shape: tuple[int, int, int]) -> nn.Module:
    """A lower segment that gives the image itself, in the form that is nearest to a release's.

    Args:
        release: [N, T, D], [N, C, h, w] or [N, D].
        image_shape: (C, H, W).

    >>> plain(torch.zeros(1, 16, 9), (1, 8, 8))(torch.zeros(1, 1, 8, 8)).shape
    torch.Size([1, 16, 4])
    >>> plain(torch.zeros(1, 16, 5, 5), (1, 8, 8))(torch.zeros(1, 1, 8, 8)).shape
    torch.Size([1, 1, 8, 8])
    """
    if release.ndim == 2:
        return nn.Flatten()
    try:
        return Patches(Geometry.of(release, image_shape).patch)
    except NotApplicable:
        if release.ndim == 4:
            return nn.Identity()
    shorter = min(image_shape[1:])
    sides = [p for p in range(1, shorter + 1) if image_shape[1] % p == 0 == image_shape[2] % p]
    return Patches(max(p for p in sides if p * p <= shorter))


class Patches(nn.Module):
    """A lower segment that gives the image's own patches: what a white-box attack is told in its controls."""

    def __init__(self, patch: int) -> None:
        super().__init__()
        self.patch = patch

    def forward(self, images: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, T, p·p·C]."""
        return patchify(images, self.patch)


CONVERGENCE: dict[bool | None, str] = {
    True: "attack converged: the last quarter of its epochs improved the held-out error by less than 5 %, and it ends "
    "within 5 % of its best epoch",
    False: "attack not converged: it was still improving, or ended worse than its best epoch",
    None: "convergence not judged: fewer than four epochs",
}


def judge(converged: bool | None, recovered: Metrics, floors: dict[str, Metrics]) -> tuple[Check, ...]:
    """Gates of one cell: did the attack converge, and does it beat the mean image and its own untrained start?

    A gate that fails here is a finding about the cell, not a fault of the run: numbers at the floor say that this
    attack got nothing, never that nothing is to be got.
    """
    found = [
        Check(
            name="converged",
            passed=converged,
            detail=CONVERGENCE[converged],
            decisive=False,
        )
    ]
    for name, what in (("mean_image", "the mean image"), ("zero_steps", "the attack's own untrained start")):
        if name in floors:
            ours, floor = recovered["mse"], floors[name]["mse"].mean
            passed = ours.high < floor
            found.append(
                Check(
                    name=f"beats_{name}",
                    passed=passed,
                    detail=f"{'better' if passed else 'no better'} than {what}: "
                    f"MSE {ours.mean:.4f} against {floor:.4f}",
                    decisive=False,
                )
            )
    return tuple(found)
