"""Black-box inversion: trains a decoder on the adversary's images, then decodes the attacked release."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Annotated, ClassVar

import torch
from torch import Generator, Tensor

from privkit.attacks.base import AttackDiverged, NotApplicable, Query, ReconstructingAttack, Session, given
from privkit.attacks.fit import Learner, fit_doubling
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check_inputs
from privkit.attacks.inversion.augment import Augment, augmented
from privkit.attacks.inversion.budgeted import mounted, planned_epochs
from privkit.attacks.inversion.decoders import DecoderName, build_decoder
from privkit.attacks.inversion.decoders.base import Decoder
from privkit.attacks.inversion.decoders.cells import CellDecoder
from privkit.attacks.inversion.decoders.mae import checked_width
from privkit.attacks.inversion.mixed_releases import exercise, per_member
from privkit.attacks.search_space import Search, Untuned
from privkit.constraints import Count, Fraction, Positive, Whole
from privkit.torch_utils.one_cycle import WARM_UP, one_cycle
from privkit.torch_utils.out_of_memory import in_chunks
from privkit.torch_utils.precision import short_by_default
from privkit.torch_utils.seeded import seeded

_SCALED = 2_000  # most of the adversary's records whose releases set the input scale of a decoder of table rows
_UNORDERED = ("set", "message")  # decoders that ignore the order of tokens

_WARMUP_STEPS = 40
_EXPLODED = 100.0  # mean squared error of a decoder's output, for images in [0, 1], above which training diverged
_STEP_ROWS = 64
"""Most rows in a training step, if the decoder reads each row alone: a round of many clients is split into steps."""
COMPILE_DECODER_FROM_STEPS = 2_000  # least steps at which torch.compile saves time


@dataclass(frozen=True, kw_only=True)
class BlackBox(ReconstructingAttack):
    """Train a decoder network on releases of the adversary's images, then decode the attacked release with it.

    The adversary gets these releases (smashed data) by queries: it sends its own images, here called auxiliary, through
    the clients, who apply their defense.

    Attributes:
        decoder: "mae" (the MAE decoder; with a mask token for each patch if tokens were dropped or merged), "released"
            (the variant in the authors' repository), "set" (ignores the order of an image's tokens), "message" (ignores
            the order of all tokens of a round), "convolutions", "autoencoder", "unet" or "pix2pix". None means "mae"
            for tokens, "autoencoder" for feature maps and vectors.
        epochs: number ≥ 0 of epochs over the auxiliary images (0: untrained decoder). None leaves it to an audit's
            budget; `run` needs a number.
        doublings: largest number of times that the epochs are doubled, as long as a doubling lowers the held-out error
            by more than 5 %; see `privkit.attacks.fit.fit_doubling`. None trains in one learning-rate cycle.
        augment: "none"; "crop" for random shifts by up to an eighth of the side (as in the authors' code, 28 of
            224); or "crop_flip" for horizontal flips as well.
        learning_rate: peak > 0 of AdamW's cosine schedule; None for the decoder's default (for "mae" 0.4/width; the
            authors have 1.5e-4 at width 768).
        width: number ≥ 1 of decoder channels, for "mae", "set", "message" a multiple of 16; None for a size scaled to
            the model.
        depth: number ≥ 1 of decoder blocks or (in convolutional decoders) halvings; None for a size scaled to the
            model.
        fraction: share in (0, 1] of the auxiliary images that the adversary has; the papers on mixing also use 0.1.

    Table rows have their own decoder (`CellDecoder`): leave `decoder` and `augment` at their defaults.

    A tenth of the auxiliary images, but at least one message, is held out. The result's `curve` is the MSE on the
    held-out images, or for table rows the training objective on held-out rows. It does not use the attacked images.

    Source: Yao et al., patch shuffling, Eq. 3 and §V-B.1; AdamW (.9, .95), 40 warm-up steps and the cosine as in the
    authors' repository.
    """

    name: ClassVar[str] = "black_box"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary", "query"})

    decoder: DecoderName | None = None
    epochs: Whole | None = None
    doublings: Whole | None = 0
    augment: Augment = "none"
    learning_rate: Annotated[Positive, Search(1e-4, 1e-2)] | None = None
    width: Count | None = None
    depth: Count | None = None
    fraction: Annotated[Fraction, Untuned()] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width is not None and self.decoder in (None, "mae", "set", "message"):
            checked_width(self.width)

    @property
    def mounting(self) -> ImageMounting:
        undoes = frozenset({"maps", "permutes"} if self.decoder in _UNORDERED else {"maps"})
        kinds = ("images", "tables")
        return replace(mounted(self, doublings=None), domains=kinds, any_tokens=True, undoes=undoes)

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        return self.begun(observation, generator, session)

    def begun(
        self,
        observation: ImageObservation,
        generator: Generator,
        session: Session | None = None,
        begin: Callable[[Decoder], object] = lambda decoder: None,
    ) -> Reconstruction:
        """Run the attack as `run` does, but first call `begin` with the new decoder, to put prior knowledge into it."""
        epochs = planned_epochs(self.epochs)
        check_inputs(self, observation)
        device = observation.views[0].smashed.device
        auxiliary = given(observation.auxiliary).to(device)
        observation = observation.of_usual_size()
        views, query = observation.views, given(observation.query)
        auxiliary = auxiliary[: ceil(self.fraction * len(auxiliary))]
        batch = observation.batch_size
        if len(auxiliary) < 2 * batch:
            raise NotApplicable(
                f"black_box trains on messages as large as the victim's ({batch} records) and holds one out: it needs "
                f"at least {2 * batch} auxiliary records, got {len(auxiliary)}"
            )
        held_out = max(batch, len(auxiliary) // 10)  # a smaller message would mix fewer records than the victim's
        root, own = torch.randint(2**48, (2,), generator=generator).tolist()  # own: seed of draws inside modules
        with seeded(torch.device("cpu"), root):  # torch's initialisers know only the global generator
            decoder = self._decoder(auxiliary[:-held_out], observation, root).to(device)
        begin(decoder)
        cycle = partial(
            _DecoderTraining,
            decoder,
            query,
            auxiliary[:-held_out],
            auxiliary[-held_out:],
            batch=batch,
            augment=self.augment,
            learning_rate=self.learning_rate,
            seeds=(root, own),
        )
        curve, converged = fit_doubling(
            lambda before, epochs: cycle(before=before, epochs=epochs),
            epochs,
            session,
            doublings=self.doublings,
            objective="black_box: the held-out error",
        )
        with torch.no_grad():
            images = torch.cat([_decoded_rows(decoder.eval(), per_member(view)) for view in views])
        return Reconstruction(images=images, curve=curve, converged=converged)

    def _decoder(self, own: Tensor, observation: ImageObservation, seed: int) -> Decoder:
        if not observation.columns:
            view = observation.views[0]
            size = {"width": self.width, "depth": self.depth}
            return build_decoder(self.decoder, per_member(view), observation.image_shape, **size, whole=view.whole)
        if given := [name for name in ("decoder", "augment") if getattr(self, name) != getattr(BlackBox, name)]:
            raise NotApplicable(f"{' and '.join(given)} of black_box are for images: leave them out for table rows")
        released = _own_releases(own[:_SCALED], observation, Generator(own.device).manual_seed(seed))
        return CellDecoder(released, own, observation.columns, width=self.width, depth=self.depth)


def _decoded_rows(decoder: Decoder, rows: Tensor) -> Tensor:
    if decoder.whole_message:
        return decoder.guess(rows)
    return in_chunks(lambda part: decoder.guess(rows[part]), len(rows), len(rows))


@torch.no_grad()
def _own_releases(own: Tensor, observation: ImageObservation, draws: Generator) -> Tensor:
    """Query the clients' releases of the adversary's records, one row per record; an incomplete message is left out."""
    whole = len(own) // observation.batch_size * observation.batch_size
    answers = [given(observation.query)(rows, draws) for rows in own[:whole].split(observation.batch_size)]
    return torch.cat([per_member(answer.view) for answer in answers])


class _DecoderTraining(Learner):
    """Trains a decoder with AdamW and a one-cycle learning rate; satisfies `privkit.attacks.fit.Training`."""

    def __init__(
        self,
        decoder: Decoder,  # on the device of the images
        query: Query,  # runs the clients' defended lower segments on one message of images
        train: Tensor,  # images [N, C, H, W] in [0, 1] or other records; N is at least the size of a message
        # records like `train`; an epoch's objective is the decoder's error on them, for images the MSE
        held_out: Tensor,
        *,
        batch: int,  # images per message
        epochs: int,  # epochs of this cycle, which set the schedule
        before: int = 0,  # epochs of the cycles before this one
        augment: Augment,  # as in `BlackBox`
        learning_rate: float | None,  # peak; None for the decoder's default
        seeds: tuple[int, int],  # seed of the epochs' draws, and seed of the modules' own draws
    ) -> None:
        self.decoder, self._query, self._augment = decoder, query, augment
        self._train, self._held_out, self._batch = train, held_out, batch
        self._root, self._own = seeds
        self._before = before
        self._rounds = len(train) // batch
        self._parts = 1 if decoder.whole_message else ceil(batch / _STEP_ROWS)
        peak, total = learning_rate or decoder.learning_rate, epochs * self._rounds * self._parts
        optimizer = torch.optim.AdamW(decoder.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.05, fused=True)
        warm_up = min(_WARMUP_STEPS / (total + 1), WARM_UP)
        super().__init__(decoder, optimizer, partial(one_cycle, optimizer, peak, warm_up=warm_up), total)
        if train.device.type == "cuda" and total >= COMPILE_DECODER_FROM_STEPS:
            decoder.compile()

    def epoch(self, number: int) -> float:
        device = self._train.device
        of_all = 1 + self._before + number
        draws = Generator(device).manual_seed(self._root + of_all)  # depends on nothing before this epoch
        order = torch.randperm(len(self._train), generator=draws, device=device)[: self._rounds * self._batch]
        self.decoder.train()
        with seeded(device, self._own + of_all):
            for rows in order.view(self._rounds, self._batch):
                images = augmented(self._train[rows], self._augment, draws)
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
        """Mean squared errors on held-out records, of clamped and of unclamped guesses; draws are always the same."""
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
