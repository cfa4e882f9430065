"""What an adversary who simulates the client recorded and owns: checked, drawn by label, and compared as samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import NotApplicable
from privkit.attacks.goals.reconstruct import ImageAttack, ImageObservation, check, check_one_form
from privkit.attacks.inversion.known_lower import check_release, frozen
from privkit.attacks.inversion.linear_mixtures import Unmixed
from privkit.attacks.inversion.rounds import labels_of

_SMALLEST = 10
BANDWIDTHS = tuple(2.0**power for power in range(-3, 2))
"""Of the Gaussian kernels, σ² in mean squared distances of two rows."""


@dataclass(frozen=True, kw_only=True)
class AttackData:
    """What the adversary recorded and owns.

    Attributes:
        rows: recorded releases [N, ...]; of mixed rows and several passes, what they say of each record (`Unmixed`).
        images: auxiliary images [M, C, H, W] in [0, 1].
        labels: int64 [N], of the rows, or None where they do not travel or are not used.
        own_labels: int64 [M], of the images, or None likewise.
        upper: the server's segment, frozen; None for attacks that do not use it.
        classes: number of its logits.
        lower: the client's segment where its architecture is known.
        imitate: what the clients' defense, and unmixing after it, make of a round of smashed data, or None.
        round_size: rows of that round.
        seats: int64, the row of each image that is to be guessed; None if that is each row once.
    """

    rows: Tensor
    images: Tensor
    labels: Tensor | None = None
    own_labels: Tensor | None = None
    upper: nn.Module | None = None
    classes: int = 0
    lower: nn.Module | None = None
    imitate: Callable[[Tensor, Generator], Tensor] | None = None
    round_size: int = 1
    seats: Tensor | None = None

    @classmethod
    def of(cls, attack: ImageAttack, observation: ImageObservation, lower: nn.Module | None = None) -> AttackData:
        """All of it that the attack declares.

        Args:
            attack: its labels and the server's segment are read if it needs them.
            observation: of the adversary.
            lower: the client's segment, of which the architecture alone may be used.

        Raises:
            NotApplicable: if something is missing, rows were mixed by hidden coins, there are too few images, labels
                are no whole numbers, or the server's segment does not classify such rows.
        """
        check(attack, observation)
        check_one_form(attack, observation.views)
        assert observation.auxiliary is not None
        views, device, passes = observation.views, observation.views[0].smashed.device, attack.mounting.passes
        unmixed = Unmixed.of(views, passes) if views[0].mixed > 1 or passes > 1 else None
        rows = torch.cat([view.smashed for view in views]).float() if unmixed is None else unmixed.rows
        own = observation.auxiliary.to(device)
        labels, own_labels, upper, classes = None, None, None, 0
        if "auxiliary_labels" in attack.needs and observation.auxiliary_labels is not None:
            labels = labels_of(views) if unmixed is None else unmixed.labels
            own_labels = observation.auxiliary_labels.to(device)
            if own_labels.shape != own.shape[:1] or own_labels.is_floating_point():
                raise NotApplicable(
                    f"{attack.name} needs a whole-number label for each of the {len(own)} auxiliary images"
                )
        if len(own) < _SMALLEST:
            raise NotApplicable(
                f"{attack.name} holds a tenth of the auxiliary images out: it needs {_SMALLEST}, got {len(own)}"
            )
        if "upper" in attack.needs and observation.upper is not None:
            upper = frozen(observation.upper, device)
            classes = _classes(attack.name, upper, rows, own_labels, labels)
        if lower is not None:
            check_release(frozen(lower, device), views[0], observation.image_shape)
        return cls(
            rows=rows,
            images=own,
            labels=labels,
            own_labels=own_labels,
            upper=upper,
            classes=classes,
            lower=lower,
            imitate=observation.imitate if unmixed is None else unmixed.imitate,
            round_size=observation.batch_size if unmixed is None else 1,
            seats=None if unmixed is None else unmixed.seats,
        )


def _classes(attack: str, upper: nn.Module, rows: Tensor, *labels: Tensor | None) -> int:
    """Number of classes of the server's segment, which must read the rows and know the labels."""
    try:
        with torch.no_grad():
            logits: Tensor = upper(rows[:2])
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise NotApplicable(f"the server's segment does not read rows of {list(rows.shape[1:])}: {reason}") from None
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise NotApplicable(
            f"{attack} needs a classifier of two or more classes, but it gives {list(logits.shape[1:])} a row"
        )
    for known in labels:
        if known is not None and len(known) and not 0 <= int(known.min()) <= int(known.max()) < logits.shape[1]:
            raise NotApplicable(
                f"labels run from {int(known.min())} to {int(known.max())}, but the server's segment has "
                f"{logits.shape[1]} classes"
            )
    return logits.shape[1]


class ByLabel:
    """Draws images of given labels."""

    def __init__(self, labels: Tensor) -> None:
        self.rows = labels.argsort(stable=True)
        self.counts = labels.bincount()
        self.starts = self.counts.cumsum(0) - self.counts

    def drawn(self, told: Tensor, draws: Generator) -> tuple[Tensor, Tensor]:
        """A row for each label, and the label; any row, and −1, for a label that none of the images has."""
        inside = (told >= 0) & (told < len(self.counts))
        known = told.clamp(0, len(self.counts) - 1)
        usable = inside & (self.counts[known] > 0)
        place = torch.rand(len(told), generator=draws, device=told.device, dtype=torch.float64)
        some = (place * len(self.rows)).long()
        own = self.starts[known] + (place * self.counts[known]).long()
        return self.rows[torch.where(usable, own, some)], torch.where(usable, told, -1)


def mk_mmd(recorded: Tensor, simulated: Tensor) -> Tensor:
    """The unbiased estimate of the squared discrepancy by Gaussian kernels of several widths; a scalar.

    Within a set a row is not compared with itself; between the sets all pairs count. A constant 2 / (N − 1) is added,
    as in the attack's release, which keeps its values positive.

    Args:
        recorded: [N, ...], N ≥ 2.
        simulated: shaped like it.

    Source: Gretton et al. 2012, "A kernel two-sample test", Lemma 6, with the kernels of Long et al. 2015, "Learning
    transferable features with deep adaptation networks".

    >>> rows = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    >>> bool(mk_mmd(rows, rows.flip(0)) < mk_mmd(rows, rows + 1))
    True
    """
    count, rows = len(recorded), torch.cat([recorded, simulated]).flatten(1)
    squares = rows.square().sum(1)
    apart = (squares.unsqueeze(1) + squares - 2 * rows @ rows.T).clamp_min(0)
    unit = 2 * apart.detach().mean().clamp_min(1e-12)
    alike = torch.stack([torch.exp(-apart / (width * unit)) for width in BANDWIDTHS]).sum(0)
    others = 1 - torch.eye(count, device=rows.device, dtype=rows.dtype)
    within = (alike[:count, :count] * others).sum() + (alike[count:, count:] * others).sum()
    discrepancy: Tensor = within / (count * (count - 1)) - 2 * alike[:count, count:].mean() + 2 / (count - 1)
    return discrepancy
