"""Controls of attacks that reconstruct: a release that is the record itself, and one of pure noise."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import AnyAttack, NotApplicable, QueryResult, View
from privkit.attacks.goals.control import Control
from privkit.attacks.goals.goal import Goal
from privkit.attacks.goals.learners import Learners, shrunk
from privkit.attacks.goals.reconstruct import ImageAttack, ImageObservation
from privkit.attacks.patches import Geometry, patchify
from privkit.shared.seeds import derive

CONTROL_IMAGES = 1_000
_PLAYED = 100
"""Auxiliary images that take part at most, and those of them that play the victim."""
_PROBE_SCALE = 6.0  # least squares give logits near 0 and 1; a trained server is surer
_CODE = 8
"""Numbers of the vector that stands for a cell of a table."""
_IDENTITY_SHARE = 0.5
"""The identity control passes if the attack's MSE is at most this share of the mean image's."""
_NOISE_SLACK = 0.03
"""The noise control passes if the attack's MSE is at most this share below the mean image's."""


def controls(attack: ImageAttack, observation: ImageObservation, seed: int) -> tuple[Control, Control]:
    """Mount a short version of an attack on a release that is the record itself, and on one that is pure noise.

    Only auxiliary records take part: the last ones, at most a quarter, play the victim. An attack that returns records
    of its own holds them, too. An attack that takes training over meets small clients that can be led
    (`privkit.attacks.goals.learners`) instead.

    Args:
        attack: as its `mounting.control` has it.
        observation: of the real client. Used are its auxiliary images, their labels (without them, all have one label),
            and the first view, whose shape the noise takes.
        seed: of everything random in it.

    Raises:
        NotApplicable: if there are too few auxiliary images, or no view.

    >>> from privkit.attacks.inversion.floors import MeanImage
    >>> own = torch.rand(80, 1, 8, 8, generator=Generator().manual_seed(0))
    >>> views = [View(round=0, smashed=torch.zeros(5, 64))]
    >>> seen = ImageObservation(views=views, image_shape=(1, 8, 8), batch_size=5, auxiliary=own)
    >>> [control.passed for control in controls(MeanImage(), seen, seed=0)]  # it is no attack, and wins nowhere
    [False, True]
    """
    if observation.auxiliary is None or not observation.views:
        raise NotApplicable("controls need auxiliary images, and a view whose form the noise takes")
    auxiliary, batch_size, release = observation.auxiliary, observation.batch_size, observation.views[0].smashed
    labels = observation.auxiliary_labels
    if labels is None:
        labels = torch.zeros(len(auxiliary), dtype=torch.int64, device=auxiliary.device)
    mounting, hijacks = attack.mounting, "clients" in attack.needs
    if not hijacks:  # a server that trains clients needs all images
        auxiliary, labels = auxiliary[-CONTROL_IMAGES:], labels[-CONTROL_IMAGES:]
    whole = auxiliary.shape
    if mounting.control_side is not None:
        auxiliary = shrunk(auxiliary, mounting.control_side)
    quarter = played_by(len(auxiliary), batch_size)
    if quarter == 0:
        raise NotApplicable(f"controls need at least {4 * batch_size} auxiliary images, got {len(auxiliary)}")
    own, played, own_labels = auxiliary[:-quarter], auxiliary[-quarter:], labels[:-quarter]
    mean = own.float().mean(0)
    if mounting.returns_auxiliary:
        own, own_labels = auxiliary, labels
    shape = cast(tuple[int, int, int], tuple(auxiliary.shape[1:]))  # of images; the attack reads these records
    image = identity_lower(release, shape, observation.columns)
    attack = as_control(attack, len(own), batch_size)
    held = ImageObservation(
        image_shape=shape,
        columns=observation.columns,
        batch_size=batch_size,
        auxiliary=own,
        auxiliary_labels=own_labels,
    )

    def answer(smashed: Tensor, whole: bool = True) -> QueryResult:
        members = torch.arange(len(smashed), device=smashed.device).unsqueeze(1)
        return QueryResult(view=View(round=0, smashed=smashed, whole=whole), members=members)

    def identity(images: Tensor, draws: Generator) -> QueryResult:
        return answer(image(images))

    def noise(images: Tensor, draws: Generator) -> QueryResult:
        real = "lower" not in attack.needs and auxiliary.shape == whole
        shape = (len(images), *release.shape[1:]) if real else image(images).shape
        return answer(torch.randn(shape, generator=draws, device=images.device), not real or observation.views[0].whole)

    errors = []
    for name, query in (("identity", identity), ("noise", noise)):
        draws = Generator(auxiliary.device).manual_seed(derive(seed, "control", name))
        if hijacks:
            start = derive(seed, "control", name)
            clients = Learners(own, own_labels, played, labels[-quarter:], batch_size, start, name == "noise")
            shown = replace(held, views=clients.views(), clients=clients)
        else:
            rounds = played.split(batch_size) * attack.mounting.passes
            tags = labels[-quarter:].split(batch_size) * attack.mounting.passes
            views = [
                replace(query(part, draws).view, round=number, labels=sent)
                for number, (part, sent) in enumerate(zip(rounds, tags, strict=True))
            ]
            shown = replace(
                held,
                views=views,
                query=query,
                lower=image if "lower" in attack.needs else None,
                upper=_probe(query(own, draws).view.smashed, own_labels) if "upper" in attack.needs else None,
            )
        try:
            guess = attack.run(shown, Generator().manual_seed(derive(seed, "control", name, "attack"))).images
        except NotApplicable:
            if name == "identity":
                raise
            guess = mean.expand_as(played)  # an attack that refuses noise learns nothing from it
        errors.append(_dense_error(guess, played, observation.columns))
    what = "image" if len(shape) == 3 else "record"
    return _judged(what, errors[0], errors[1], _dense_error(mean.expand_as(played), played, observation.columns))


def _dense_error(guess: Tensor, truth: Tensor, columns: tuple[int, ...]) -> float:
    """Mean square error; of table rows that of their dense columns, since the numbers of categories mean nothing."""
    dense = [place for place, size in enumerate(columns) if not size] or slice(None)
    apart = guess.float() - truth.float()
    return (apart[:, dense] if columns else apart).square().mean().item()


def played_by(records: int, batch_size: int) -> int:
    """How many of the records of controls play the victim; the others are the attack's own.

    >>> played_by(1_000, 50), played_by(200, 50)
    (100, 50)
    """
    return min(records // 4, max(_PLAYED, batch_size)) // batch_size * batch_size


def as_control(attack: ImageAttack, own: int, batch_size: int) -> ImageAttack:
    """An attack as its controls mount it.

    Args:
        attack: its specification.
        own: images that it has; a tenth of them, but at least one message, is held out.
        batch_size: images a step.
    """
    control = attack.mounting.control
    return attack if control is None else control(max(1, (own - max(batch_size, own // 10)) // batch_size))


def _judged(what: str, identity_error: float, noise_error: float, mean_error: float) -> tuple[Control, Control]:
    """Both controls against the error of the mean image or record."""
    return (
        Control(
            name="wins_on_identity",
            passed=identity_error <= _IDENTITY_SHARE * mean_error,
            detail=f"on a release that is the {what} itself the attack has MSE {identity_error:.4f}, "
            f"the mean {what} {mean_error:.4f}",
        ),
        Control(
            name="fails_on_noise",
            passed=noise_error >= (1 - _NOISE_SLACK) * mean_error,
            detail=f"on a release of pure noise the attack has MSE {noise_error:.4f}, the mean {what} {mean_error:.4f}",
        ),
    )


def _probe(released: Tensor, labels: Tensor) -> nn.Module:
    """A server that tells labels from releases as well as least squares do, with as many unknowns as images."""
    rows = released.flatten(1).double()
    inputs = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
    targets = nn.functional.one_hot(labels, int(labels.max()) + 1).double()
    ridge = 1e-2 * len(rows) * torch.eye(len(rows), dtype=inputs.dtype, device=inputs.device)
    weights = (inputs.T @ torch.linalg.solve(inputs @ inputs.T + ridge, targets)).float()
    linear = nn.Linear(weights.shape[0] - 1, weights.shape[1], device=released.device)
    with torch.no_grad():
        linear.weight.copy_(_PROBE_SCALE * weights[:-1].T)
        linear.bias.copy_(_PROBE_SCALE * weights[-1])
    return nn.Sequential(nn.Flatten(), linear)


def identity_lower(release: Tensor, image_shape: tuple[int, ...], columns: tuple[int, ...] = ()) -> nn.Module:
    """A lower segment that gives the image itself, in the form that is nearest to a release's; other records as a row.

    The categories of a table have codes, since their numbers mean nothing.

    Args:
        release: [N, T, D], [N, C, h, w] or [N, D].
        image_shape: (C, H, W), or (T,) of token sequences and table rows.
        columns: as in `ImageObservation`.

    >>> identity_lower(torch.zeros(1, 16, 9), (1, 8, 8))(torch.zeros(1, 1, 8, 8)).shape
    torch.Size([1, 16, 4])
    >>> identity_lower(torch.zeros(1, 16, 5, 5), (1, 8, 8))(torch.zeros(1, 1, 8, 8)).shape
    torch.Size([1, 1, 8, 8])
    """
    if columns:
        return _Codes(columns, by_place=release.ndim == 3)
    if len(image_shape) == 1:
        return _Numbers(by_place=release.ndim == 3 and release.shape[1] == image_shape[0])
    if release.ndim == 2 or len(image_shape) != 3:
        return nn.Flatten()
    channels, height, width = image_shape
    try:
        return _Patches(Geometry.of(release, (channels, height, width)).patch)
    except NotApplicable:
        if release.ndim == 4:
            return nn.Identity()
    shorter = min(height, width)
    sides = [p for p in range(1, shorter + 1) if height % p == 0 == width % p]
    return _Patches(max(p for p in sides if p * p <= shorter))


class _Patches(nn.Module):
    """A lower segment that gives the image's own patches: what a white-box attack is told in its controls."""

    def __init__(self, patch: int) -> None:
        super().__init__()
        self.patch = patch

    def forward(self, images: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, T, p·p·C]."""
        return patchify(images, self.patch)


class _Numbers(nn.Module):
    """A lower segment that gives the numbers of a token sequence or table row themselves, ids among them.

    Args:
        by_place: whether each number is a vector of its own, as where a token crosses for each token of a sequence.
    """

    def __init__(self, by_place: bool) -> None:
        super().__init__()
        self.by_place = by_place

    def forward(self, records: Tensor) -> Tensor:
        """[N, T] -> [N, T, 1] or [N, T]."""
        numbers = records.float()
        return numbers.unsqueeze(2) if self.by_place else numbers


class _Codes(nn.Module):
    """A lower segment that gives each cell of a table row as a vector.

    It is the category's code, or the dense column's times 1 + x, and the code of the column is added.

    Args:
        columns: as in `ImageObservation`.
        by_place: whether each column is a token of its own.
    """

    def __init__(self, columns: tuple[int, ...], by_place: bool) -> None:
        super().__init__()
        self.by_place = by_place
        self.dense = torch.tensor([size == 0 for size in columns])
        sizes = torch.tensor(columns).clamp_min(1)
        self.first = sizes.cumsum(0) - sizes
        draws = Generator().manual_seed(0)
        self.codes = torch.randn(int(sizes.sum()), _CODE, generator=draws)
        self.columns = torch.randn(len(columns), _CODE, generator=draws)

    def forward(self, records: Tensor) -> Tensor:
        """[N, C] -> [N, C, 8] or [N, C·8]."""
        dense, first, codes = (part.to(records.device) for part in (self.dense, self.first, self.codes))
        ids = torch.where(dense, 0, records).long()
        scale = torch.where(dense, 1 + records, 1.0).unsqueeze(2)
        cells = codes[first + ids] * scale + self.columns.to(records.device)
        return cells if self.by_place else cells.flatten(1)


class _Reconstruct(Goal):
    """Records are guessed, so that their kind decides what is measured, and its attacks can be tuned."""

    def reads(self, attack: AnyAttack) -> tuple[str, ...]:
        return attack.mounting.domains


GOAL = _Reconstruct(
    observation=ImageObservation,
    controls=lambda attack, seed, seen: controls(attack, seen, seed),
    untuned="",
)
