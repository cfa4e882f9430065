"""Training of a decoder on the adversary's own images, each batch sent through the defended lower segment anew."""

from __future__ import annotations

from math import ceil
from typing import Literal

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import AttackDiverged, Query
from privkit.attacks.fit import Learner
from privkit.attacks.inversion.decoders.base import Decoder
from privkit.attacks.inversion.mixed_releases import exercise
from privkit.torch_utils.one_cycle import WARM_UP, one_cycle
from privkit.torch_utils.precision import short_by_default
from privkit.torch_utils.seeded import seeded

Augment = Literal["none", "crop", "crop_flip"]

_WARMUP_STEPS = 40
_EXPLODED = 100.0  # mean square error of what a decoder draws, of images in [0, 1], above which it diverged
STEP_ROWS = 64
"""Rows that a step learns from at most, if the decoder reads each row by itself: many clients make large rounds."""
COMPILE_FROM_STEPS = 2_000  # below this, torch.compile costs more time than it saves


class DecoderTraining(Learner):
    """AdamW with one cycle; satisfies `privkit.attacks.fit.Training`.

    Args:
        decoder: on the device of the images.
        query: runs the clients' defended lower segments on one message of images.
        train: images [N, C, H, W] in [0, 1] or other records, N at least a message.
        held_out: likewise; an epoch's objective is the decoder's error on them.
        batch: images a message.
        epochs: of this cycle, which set the schedule.
        before: epochs of the cycles before this one.
        augment: as in `BlackBox`.
        learning_rate: peak; None for the decoder's own.
        seeds: of the epochs' draws, and of what modules draw themselves.
    """

    def __init__(
        self,
        decoder: Decoder,
        query: Query,
        train: Tensor,
        held_out: Tensor,
        *,
        batch: int,
        epochs: int,
        before: int = 0,
        augment: Augment,
        learning_rate: float | None,
        seeds: tuple[int, int],
    ) -> None:
        self.decoder, self._query, self._augment = decoder, query, augment
        self._train, self._held_out, self._batch = train, held_out, batch
        self._root, self._own = seeds
        self._before = before
        self._rounds = len(train) // batch
        self._parts = 1 if decoder.whole_message else ceil(batch / STEP_ROWS)
        peak, total = learning_rate or decoder.learning_rate, epochs * self._rounds * self._parts
        optimizer = torch.optim.AdamW(decoder.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.05, fused=True)
        warm_up = min(_WARMUP_STEPS / (total + 1), WARM_UP)
        super().__init__(decoder, optimizer, one_cycle(optimizer, peak, total, warm_up=warm_up))
        if train.device.type == "cuda" and total >= COMPILE_FROM_STEPS:
            decoder.compile()

    def epoch(self, number: int) -> float:
        """One pass over the training images; the error on held-out ones, of images the mean square one, cut to [0, 1].

        Raises:
            AttackDiverged: if what the decoder draws is not finite, or far from any image.
        """
        device = self._train.device
        of_all = 1 + self._before + number
        draws = Generator(device).manual_seed(self._root + of_all)  # depends on nothing before this epoch
        order = torch.randperm(len(self._train), generator=draws, device=device)[: self._rounds * self._batch]
        self.decoder.train()
        with seeded(device, self._own + of_all):
            for rows in order.view(self._rounds, self._batch):
                images = _augmented(self._train[rows], self._augment, draws)
                with torch.no_grad():
                    released, truth = exercise(self._query(images, draws), images)
                for own, wanted in zip(
                    released.tensor_split(self._parts), truth.tensor_split(self._parts), strict=True
                ):
                    with torch.autocast(device.type, torch.bfloat16, enabled=short_by_default(device)):
                        loss = self.decoder.objective(own, wanted)
                    self.step(loss)
        with seeded(device, self._own):
            error, drawn = self._held_out_errors()
        if not drawn <= _EXPLODED:
            raise AttackDiverged(
                f"black_box: the decoder's held-out error, before its output is cut to [0, 1], is {drawn:.3g} "
                f"after epoch {of_all}: try a smaller learning_rate"
            )
        return error

    @torch.no_grad()
    def _held_out_errors(self) -> tuple[float, float]:
        """Mean square errors, cut to [0, 1] and as drawn, through the same draws after every epoch."""
        draws = Generator(self._held_out.device).manual_seed(self._root)
        total, raw, count = 0.0, 0.0, 0
        self.decoder.eval()
        whole = len(self._held_out) // self._batch * self._batch  # whole messages only, mixed like the victim's
        for chunk in self._held_out[:whole].split(self._batch):
            released, truth = exercise(self._query(chunk, draws), chunk)
            guessed, drawn = self.decoder.error_sums(released, truth)
            total, raw = total + guessed, raw + drawn
            count += truth.numel()
        return total / count, raw / count


def _augmented(images: Tensor, augment: Augment, draws: Generator) -> Tensor:
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
