"""Black-box inversion: train a decoder on the adversary's own images, then decode the victim's release."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Any, ClassVar, Literal

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import (
    AttackDiverged,
    Knowledge,
    NoSession,
    NotApplicable,
    Reconstruction,
    Session,
    View,
    missing,
)
from privkit.attacks.inversion.decoders import DECODERS, build, checked_width
from privkit.attacks.inversion.mixed_releases import exercise, per_member
from privkit.attacks.inversion.rounds import check_numbers
from privkit.torch_utils.one_cycle import WARM_UP, one_cycle
from privkit.torch_utils.seeded import seeded

WARMUP_STEPS = 40
EXPLODED = 100.0  # mean square error of what a decoder draws, of images in [0, 1], above which it diverged
COMPILE_FROM_STEPS = 2_000  # below this, torch.compile costs more time than it saves


@dataclass(frozen=True, kw_only=True)
class BlackBox:
    """Decoder network trained on auxiliary images pushed through the client's defended lower segment.

    Attributes:
        decoder: "mae" (the true MAE decoder), "released" (the variant in the authors' repository), "set" (which cares
            about no order of tokens), "message" (likewise, over all tokens of a round), "convolutions", "autoencoder",
            "unet" or "pix2pix"; what each is stands in its class.
        epochs: passes over the auxiliary images, ≥ 0 (0 is the zero-training floor); None takes the budget's.
        augment: "none", or "crop" for random shifts by an eighth of the side (the release's padding 28 of 224),
            or "crop_flip" for horizontal flips as well.
        learning_rate: peak of AdamW's cosine schedule; None for the decoder's own (for "mae" 0.4/width, where the
            release has 1.5e-4 at width 768).
        width: decoder channels, for "mae" a positive multiple of 16; None for a size scaled to the model.
        depth: decoder blocks or halvings, ≥ 1; None likewise.
        fraction: share of the auxiliary images that the adversary has, in (0, 1]; the papers on mixing also give 0.1.

    A tenth of the auxiliary images, but at least one message, is held out: the curve is the MSE on them, never on the
    victim's images.

    Source: Yao et al., patch shuffling, Eq. 3 and §V-B.1; AdamW (.9, .95), 40 warm-up steps and the cosine as in
    the authors' repository.
    """

    name: ClassVar[str] = "black_box"
    budgeted: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary", "query"})
    uses: ClassVar[frozenset[str]] = frozenset()

    decoder: Literal["mae", "released", "set", "message", "convolutions", "autoencoder", "unet", "pix2pix"] = "mae"
    epochs: int | None = None
    augment: Literal["none", "crop", "crop_flip"] = "none"
    learning_rate: float | None = None
    width: int | None = None
    depth: int | None = None
    fraction: float = 1.0

    def __post_init__(self) -> None:
        if self.decoder not in DECODERS:
            raise ValueError(f"decoder must be one of {', '.join(DECODERS)}, got {self.decoder!r}")
        if self.epochs is not None and self.epochs < 0:
            raise ValueError(f"epochs must be >= 0, got {self.epochs}")
        if self.learning_rate is not None and not (isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ValueError(f"learning_rate must be a finite number > 0, got {self.learning_rate}")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction must lie in (0, 1], got {self.fraction}")
        if self.width is not None and self.decoder in ("mae", "set", "message"):
            checked_width(self.width)
        for name in ("width", "depth"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise ValueError(f"{name} must be a whole number >= 1, or left out for the model's size, got {size}")

    def run(
        self, views: Sequence[View], knowledge: Knowledge, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        """Train the decoder and decode every view.

        Args:
            views: the recorded messages; all are decoded by the same network.
            knowledge: needs `auxiliary` and `query`.
            generator: a CPU generator, the only source of randomness.
            session: where to save after each epoch and to report progress.

        Raises:
            NotApplicable: if knowledge is lacking, the release is empty or holds NaN or infinity, the tokens form no
                grid or the auxiliary images are too few.
            AttackDiverged: if what the decoder draws is not finite or far from any image; the last good state is saved.

        >>> from privkit.attacks.base import QueryResult
        >>> aux = torch.rand(40, 1, 8, 8)
        >>> cells = lambda x: x.unfold(2, 2, 2).unfold(3, 2, 2).reshape(len(x), 16, 4)
        >>> def query(images: Tensor, draws: Generator) -> QueryResult:
        ...     members = torch.arange(len(images)).unsqueeze(1)
        ...     return QueryResult(view=View(round=0, smashed=cells(images)), members=members)
        >>> view = query(torch.rand(10, 1, 8, 8), torch.Generator()).view
        >>> knowledge = Knowledge(image_shape=(1, 8, 8), batch_size=10, auxiliary=aux, query=query)
        >>> BlackBox(epochs=1).run([view], knowledge, torch.Generator().manual_seed(0)).images.shape
        torch.Size([10, 1, 8, 8])
        """
        if self.epochs is None:
            raise ValueError("epochs is None: take the budget's, for example dataclasses.replace(attack, epochs=10)")
        lacking = missing(self, knowledge)
        if lacking or knowledge.auxiliary is None or knowledge.query is None:
            raise NotApplicable(f"black_box needs {' and '.join(lacking)}, which this adversary does not have")
        session = session or NoSession()
        check_numbers(views)
        device = views[0].smashed.device
        auxiliary = knowledge.auxiliary.to(device)
        if tuple(auxiliary.shape[1:]) != knowledge.image_shape:
            raise NotApplicable(
                f"auxiliary images are {list(auxiliary.shape[1:])}, the private ones {list(knowledge.image_shape)}: "
                "bring auxiliary data of the same shape"
            )
        auxiliary = auxiliary[: ceil(self.fraction * len(auxiliary))]
        batch = knowledge.batch_size
        if len(auxiliary) < 2 * batch:
            raise NotApplicable(
                f"black_box trains on messages as large as the victim's ({batch} images) and holds one out: it needs "
                f"at least {2 * batch} auxiliary images, got {len(auxiliary)}"
            )
        held_out = max(batch, len(auxiliary) // 10)  # a smaller message would be mixed less than the victim's
        train, validation = auxiliary[:-held_out], auxiliary[-held_out:]
        steps = len(train) // batch

        root, own = torch.randint(2**48, (2,), generator=generator).tolist()  # own: draws of the modules themselves
        with seeded(torch.device("cpu"), root):  # torch's initialisers know only the global generator
            network = build(
                self.decoder, per_member(views[0]), knowledge.image_shape, width=self.width, depth=self.depth
            ).to(device)
        peak = self.learning_rate or network.learning_rate
        optimizer = torch.optim.AdamW(network.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.05, fused=True)
        total = self.epochs * steps
        schedule = one_cycle(optimizer, peak, total, warm_up=min(WARMUP_STEPS / (total + 1), WARM_UP))
        if device.type == "cuda" and total >= COMPILE_FROM_STEPS:
            network.compile()

        curve: list[float] = []
        saved = session.load()
        if saved is not None:
            network.load_state_dict(saved["network"])
            optimizer.load_state_dict(saved["optimizer"])
            schedule.load_state_dict(saved["schedule"])
            curve = list(saved["curve"])

        def state() -> dict[str, Any]:
            parts: dict[str, Any] = {"network": network, "optimizer": optimizer, "schedule": schedule}
            return {name: part.state_dict() for name, part in parts.items()} | {"curve": list(curve)}

        good = deepcopy(state())
        for epoch in range(len(curve), self.epochs):
            draws = Generator(device).manual_seed(root + 1 + epoch)  # an epoch's draws depend on nothing before it
            order = torch.randperm(len(train), generator=draws, device=device)[: steps * batch].view(steps, batch)
            network.train()
            with seeded(device, own + 1 + epoch):
                for rows in order:
                    images = _augmented(train[rows], self.augment, draws)
                    with torch.no_grad():
                        released, truth = exercise(knowledge.query(images, draws), images)
                    optimizer.zero_grad(set_to_none=True)
                    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                        loss = network.objective(released, truth)
                    loss.backward()
                    optimizer.step()
                    schedule.step()
            with seeded(device, own):
                error, drawn = _held_out_errors(network, knowledge, validation, batch, root)
            if not drawn <= EXPLODED:
                getattr(session, "keep", session.save)(good)  # whatever time saving may take
                raise AttackDiverged(
                    f"black_box: the decoder's held-out error, before its output is cut to [0, 1], is {drawn:.3g} "
                    f"after epoch {epoch + 1}: try a smaller learning_rate"
                )
            curve.append(error)
            good = deepcopy(state())
            session.save(good)
            session.report(epoch + 1, self.epochs, curve[-1])
        guesses = [_decode(network, per_member(view)) for view in views]
        return Reconstruction(images=torch.cat(guesses), curve=tuple(curve))


def _augmented(images: Tensor, augment: str, draws: Generator) -> Tensor:
    """Random shifts by up to an eighth of the side, and flips, one gather for the whole batch."""
    if augment == "none":
        return images
    n, _, h, w = images.shape
    pad = max(1, h // 8)
    padded = nn.functional.pad(images, (pad, pad, pad, pad))
    top, left = torch.randint(0, 2 * pad + 1, (2, n, 1), generator=draws, device=images.device)
    rows = top + torch.arange(h, device=images.device)
    columns = left + torch.arange(w, device=images.device)
    if augment == "crop_flip":
        flip = torch.rand(n, 1, generator=draws, device=images.device) < 0.5
        columns = torch.where(flip, columns.flip(1), columns)
    index = torch.arange(n, device=images.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[index, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


@torch.no_grad()
def _decode(network: nn.Module, released: Tensor) -> Tensor:
    """Images in [0, 1] of one release."""
    network.eval()
    return network(released).float().clamp(0, 1)


@torch.no_grad()
def _held_out_errors(
    network: nn.Module, knowledge: Knowledge, images: Tensor, batch: int, root: int
) -> tuple[float, float]:
    """MSE on held-out auxiliary images, in [0, 1] and as drawn, through the same draws after every epoch."""
    assert knowledge.query is not None
    draws = Generator(images.device).manual_seed(root)
    total, raw, count = 0.0, 0.0, 0
    network.eval()
    chunks = images[: len(images) // batch * batch].split(batch)  # whole messages only, mixed like the victim's
    for chunk in chunks:
        released, truth = exercise(knowledge.query(chunk, draws), chunk)
        drawn = network(released).float()
        total += (drawn.clamp(0, 1) - truth).square().sum().item()
        raw += (drawn - truth).square().sum().item()
        count += truth.numel()
    return total / count, raw / count
