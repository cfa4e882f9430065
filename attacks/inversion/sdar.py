"""SDAR: a passive server that learns a stand-in for the client from what it saw, and a decoder from the stand-in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Lt
from torch import Generator, Tensor, nn

from privkit.attacks.base import Mounting, NotApplicable, Session, View
from privkit.attacks.fit import fit
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check_rows
from privkit.attacks.inversion.known_lower import check_release, frozen
from privkit.attacks.inversion.sdar_training import AttackData, SDARTraining
from privkit.constraints import Checked, Count, NonNegative, Positive, Whole

_SMALLEST = 10
_CONTROL_EPOCHS = 10
_PUBLISHED_STEPS, _PUBLISHED_BATCH = 20_000, 128  # of the authors' released script


@dataclass(frozen=True, kw_only=True)
class SDAR(Checked):
    """A simulator of the client, kept honest by the server's own segment and by a discriminator, and a decoder of both.

    The simulator sends the adversary's images to releases that the server's frozen segment classifies rightly and that
    a discriminator cannot tell from the recorded ones. The decoder draws the adversary's images from them, and a second
    discriminator compares what it draws from the recorded releases with the adversary's images. No query is made, and
    nothing is sent: clients cannot notice.

    Attributes:
        epochs: passes over the auxiliary images, ≥ 0 (0 is the untrained start); None takes half the budget's.
        simulator: "generic" (convolutions, which know of the client's architecture only the form of the release), or
            "known" (the client's architecture with weights of one's own, drawn anew as UnSplit does; needs `lower`).
        learning_rate: of Adam on simulator and decoder, > 0.
        discriminator_rate: of Adam on both discriminators, > 0.
        lambda1: weight ≥ 0 of the discriminator's part beside the cross-entropy in the simulator's objective.
        lambda2: weight ≥ 0 of the other discriminator's part beside the mean squared error in the decoder's.
        flip: share in [0, 1) of the auxiliary labels that are drawn anew in each step, against overfitting.
        width: channels of the first layers, ≥ 1.
        batch: images in a step, ≥ 2.

    Where int labels travel with the releases, discriminators and decoder are told them, as in the paper. A tenth of the
    auxiliary images is held out: the curve is the decoder's MSE on their simulated releases. It tells how well the
    simulator can be decoded, not how true it is to the client.

    Source: Zhu et al. 2023, "Passive inference attacks on split learning via adversarial regularization", Section IV;
    there the attack runs along with training, here on the releases of the trained client.
    """

    name: ClassVar[str] = "sdar"
    goal: ClassVar[str] = "reconstruct"
    uses: ClassVar[frozenset[str]] = frozenset({"imitate"})

    epochs: Whole | None = None
    simulator: Literal["generic", "known"] = "generic"
    learning_rate: Positive = 1e-3
    discriminator_rate: Positive = 1e-3
    lambda1: NonNegative = 0.3
    lambda2: NonNegative = 1e-3
    flip: Annotated[float, Ge(0), Lt(1)] = 0.0
    width: Count = 16
    batch: Annotated[int, Ge(2)] = 32

    @property
    def needs(self) -> frozenset[str]:
        """Labeled images and the server's segment; `lower` for its architecture, if the simulator is "known"."""
        own = frozenset({"auxiliary", "auxiliary_labels", "upper"})
        return own | {"lower"} if self.simulator == "known" else own

    @property
    def mounting(self) -> ImageMounting:
        """Half the budget's epochs, since one costs twice what another attack's does."""
        taken = "half the budget's" if self.epochs is None else f"{self.epochs:,}"
        return Mounting(
            budget_share=0.5 if self.epochs is None else 0.0,
            start=None if self.epochs == 0 else replace(self, epochs=0),
            control=lambda steps: replace(self, epochs=_CONTROL_EPOCHS),
            control_side=8,
            short_of_published=f"{taken} epochs on the recorded releases of trained clients, where the authors' attack "
            f"takes {_PUBLISHED_STEPS:,} steps of {_PUBLISHED_BATCH} images along with training: "
            "not the published strength",
        )

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        """Learn from every view and decode it.

        >>> views = [View(round=0, smashed=torch.rand(6, 16), labels=torch.tensor([0, 1, 2] * 2))]
        >>> observation = ImageObservation(
        ...     views=views, image_shape=(1, 8, 8), batch_size=6, auxiliary=torch.rand(40, 1, 8, 8),
        ...     auxiliary_labels=torch.arange(40) % 3, upper=nn.Linear(16, 3),
        ... )
        >>> SDAR(epochs=1, batch=6).run(observation, torch.Generator().manual_seed(0)).images.shape
        torch.Size([6, 1, 8, 8])
        """
        if self.epochs is None:
            raise ValueError("epochs is None: take the budget's, for example dataclasses.replace(attack, epochs=10)")
        root = int(torch.randint(2**48, (1,), generator=generator))
        training = SDARTraining(self, self._data(observation), root)
        curve = fit(training, self.epochs, session, objective="sdar: the held-out error")
        return Reconstruction(images=training.guess(), curve=curve)

    def _data(self, observation: ImageObservation) -> AttackData:
        """What the training works on, checked."""
        check_rows(self, observation)
        assert observation.auxiliary is not None
        assert observation.auxiliary_labels is not None
        assert observation.upper is not None
        views = observation.views
        rows, labels = _recorded(views)
        own, own_labels = observation.auxiliary.to(rows.device), observation.auxiliary_labels.to(rows.device)
        if own_labels.shape != own.shape[:1] or own_labels.is_floating_point():
            raise NotApplicable(f"sdar needs a whole-number label for each of the {len(own)} auxiliary images")
        if len(own) < _SMALLEST:
            raise NotApplicable(f"sdar holds a tenth of the auxiliary images out: it needs {_SMALLEST}, got {len(own)}")
        upper = frozen(observation.upper, rows.device)
        classes = _classes(upper, rows, own_labels, labels)
        lower = None
        if self.simulator == "known" and observation.lower is not None:
            lower = observation.lower
            check_release(frozen(lower, rows.device), views[0], observation.image_shape)
        return AttackData(
            rows=rows,
            labels=labels,
            images=own,
            own_labels=own_labels,
            upper=upper,
            classes=classes,
            lower=lower,
            imitate=observation.imitate,
            round_size=observation.batch_size,
        )


def _recorded(views: Sequence[View]) -> tuple[Tensor, Tensor | None]:
    """Rows of all views, and their labels where they travel as whole numbers."""
    labels = [v.labels for v in views if v.labels is not None and not v.labels.is_floating_point()]
    return torch.cat([v.smashed for v in views]).float(), torch.cat(labels) if len(labels) == len(views) else None


def _classes(upper: nn.Module, rows: Tensor, *labels: Tensor | None) -> int:
    """Number of classes of the server's segment, which must read the rows and know the labels."""
    try:
        with torch.no_grad():
            logits: Tensor = upper(rows[:2])
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise NotApplicable(f"the server's segment does not read rows of {list(rows.shape[1:])}: {reason}") from None
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise NotApplicable(
            f"sdar needs a classifier of two or more classes, but it gives {list(logits.shape[1:])} a row"
        )
    for known in labels:
        if known is not None and len(known) and not 0 <= int(known.min()) <= int(known.max()) < logits.shape[1]:
            raise NotApplicable(
                f"labels run from {int(known.min())} to {int(known.max())}, but the server's segment has "
                f"{logits.shape[1]} classes"
            )
    return logits.shape[1]
