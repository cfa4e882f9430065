"""Black-box inversion: train a decoder on the adversary's own images, then decode the victim's release."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Annotated, ClassVar

import torch
from torch import Generator, Tensor

from privkit.attacks.base import NotApplicable, Session
from privkit.attacks.fit import fit_doubling
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check
from privkit.attacks.inversion.budgeted import mounted, planned_epochs
from privkit.attacks.inversion.decoder_training import Augment, DecoderTraining
from privkit.attacks.inversion.decoders import DecoderName, build, checked_width
from privkit.attacks.inversion.decoders.base import Decoder
from privkit.attacks.inversion.decoders.cells import CellDecoder
from privkit.attacks.inversion.mixed_releases import per_member
from privkit.attacks.search_space import Search, Untuned
from privkit.constraints import Checked, Count, Fraction, Positive, Whole
from privkit.torch_utils.chunks import in_chunks
from privkit.torch_utils.seeded import seeded

_UNORDERED = ("set", "message")
"""Decoders that care about no order."""
_SCALED = 2_000
"""Own records, at most, whose releases set the scale of what a decoder of table rows reads."""


@dataclass(frozen=True, kw_only=True)
class BlackBox(Checked):
    """Decoder network trained on auxiliary images pushed through the client's defended lower segment.

    Attributes:
        decoder: "mae" (the true MAE decoder; if tokens were dropped or merged, with a mask token for each patch),
            "released" (the variant in the authors' repository), "set" (which cares about no order of tokens), "message"
            (likewise, over all tokens of a round), "convolutions", "autoencoder", "unet" or "pix2pix"; what each is
            stands in its class.
        epochs: passes over the auxiliary images, ≥ 0 (0 is the zero-training floor); None takes the budget's.
        doublings: of these epochs, at most, as long as each lowers the held-out error by more than 5 %; see
            `privkit.attacks.fit.fit_doubling`. With `epochs` of None, the budget's. None trains in one cycle.
        augment: "none", or "crop" for random shifts by an eighth of the side (the release's padding 28 of 224),
            or "crop_flip" for horizontal flips as well.
        learning_rate: peak of AdamW's cosine schedule; None for the decoder's own (for "mae" 0.4/width, where the
            release has 1.5e-4 at width 768).
        width: decoder channels, for "mae" a positive multiple of 16; None for a size scaled to the model.
        depth: decoder blocks or halvings, ≥ 1; None likewise.
        fraction: share of the auxiliary images that the adversary has, in (0, 1]; the papers on mixing also give 0.1.

    Table rows have a decoder of their own (`CellDecoder`), so that `decoder` and `augment` are left at their defaults.

    A tenth of the auxiliary images, but at least one message, is held out: the curve is the MSE on them, of table rows
    the training error; never on the victim's images.

    Source: Yao et al., patch shuffling, Eq. 3 and §V-B.1; AdamW (.9, .95), 40 warm-up steps and the cosine as in
    the authors' repository.
    """

    name: ClassVar[str] = "black_box"
    goal: ClassVar[str] = "reconstruct"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary", "query"})
    uses: ClassVar[frozenset[str]] = frozenset()

    decoder: DecoderName = "mae"
    epochs: Whole | None = None
    doublings: Whole | None = 0
    augment: Augment = "none"
    learning_rate: Annotated[Positive, Search(1e-4, 1e-2)] | None = None
    width: Count | None = None
    depth: Count | None = None
    fraction: Annotated[Fraction, Untuned()] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width is not None and self.decoder in ("mae", "set", "message"):
            checked_width(self.width)

    @property
    def mounting(self) -> ImageMounting:
        """Short training in its controls; a share of the budget unless it has epochs of its own."""
        undoes = frozenset({"maps", "permutes"} if self.decoder in _UNORDERED else {"maps"})
        kinds = ("images", "tables")
        return replace(mounted(self, doublings=None), domains=kinds, any_tokens=True, undoes=undoes)

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        """Train the decoder and decode every view.

        >>> from privkit.attacks.base import QueryResult, View
        >>> aux = torch.rand(40, 1, 8, 8)
        >>> cells = lambda x: x.unfold(2, 2, 2).unfold(3, 2, 2).reshape(len(x), 16, 4)
        >>> def query(images: Tensor, draws: Generator) -> QueryResult:
        ...     members = torch.arange(len(images)).unsqueeze(1)
        ...     return QueryResult(view=View(round=0, smashed=cells(images)), members=members)
        >>> view = query(torch.rand(10, 1, 8, 8), torch.Generator()).view
        >>> observation = ImageObservation(
        ...     views=[view], image_shape=(1, 8, 8), batch_size=10, auxiliary=aux, query=query
        ... )
        >>> BlackBox(epochs=1).run(observation, torch.Generator().manual_seed(0)).images.shape
        torch.Size([10, 1, 8, 8])
        """
        return self.begun(observation, generator, session)

    def begun(
        self,
        observation: ImageObservation,
        generator: Generator,
        session: Session | None = None,
        begin: Callable[[Decoder], object] = lambda decoder: None,
    ) -> Reconstruction:
        """`run` with a decoder that knows something before its training; `begin` gives that to the new decoder."""
        views = observation.views
        epochs = planned_epochs(self.epochs)
        check(self, observation)
        assert observation.auxiliary is not None
        assert observation.query is not None
        device = views[0].smashed.device
        auxiliary = observation.auxiliary.to(device)
        auxiliary = auxiliary[: ceil(self.fraction * len(auxiliary))]
        batch = observation.batch_size
        if len(auxiliary) < 2 * batch:
            raise NotApplicable(
                f"black_box trains on messages as large as the victim's ({batch} images) and holds one out: it needs "
                f"at least {2 * batch} auxiliary images, got {len(auxiliary)}"
            )
        held_out = max(batch, len(auxiliary) // 10)  # a smaller message would be mixed less than the victim's
        root, own = torch.randint(2**48, (2,), generator=generator).tolist()  # own: draws of the modules themselves
        with seeded(torch.device("cpu"), root):  # torch's initialisers know only the global generator
            decoder = self._decoder(auxiliary[:-held_out], observation, root).to(device)
        begin(decoder)
        cycle = partial(
            DecoderTraining,
            decoder,
            observation.query,
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
        """The network that is trained, with torch's global generator for its weights."""
        if not observation.columns:
            view = observation.views[0]
            size = {"width": self.width, "depth": self.depth}
            return build(self.decoder, per_member(view), observation.image_shape, **size, whole=view.whole)
        if given := [name for name in ("decoder", "augment") if getattr(self, name) != getattr(BlackBox, name)]:
            raise NotApplicable(f"{' and '.join(given)} of black_box are for images: leave them out for table rows")
        released = _own_releases(own[:_SCALED], observation, Generator(own.device).manual_seed(seed))
        return CellDecoder(released, own, observation.columns, width=self.width, depth=self.depth)


def _decoded_rows(decoder: Decoder, rows: Tensor) -> Tensor:
    """Images of one view's rows; fewer rows at a time if memory runs out and the decoder reads each by itself."""
    if decoder.whole_message:
        return decoder.guess(rows)
    return in_chunks(lambda part: decoder.guess(rows[part]), len(rows), len(rows))


@torch.no_grad()
def _own_releases(own: Tensor, observation: ImageObservation, draws: Generator) -> Tensor:
    """What the clients release of own records, a row for each record of every whole message."""
    assert observation.query is not None
    whole = len(own) // observation.batch_size * observation.batch_size
    answers = [observation.query(rows, draws) for rows in own[:whole].split(observation.batch_size)]
    return torch.cat([per_member(answer.view) for answer in answers])
