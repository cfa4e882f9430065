"""Unmixing: computes each client's smashed data from several passes of mixed releases, then decodes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from privkit.attacks.base import NotApplicable, QueryResult, ReconstructingAttack, Session, View, given
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check_inputs
from privkit.attacks.inversion.black_box import BlackBox
from privkit.attacks.inversion.budgeted import mounted
from privkit.attacks.inversion.decoders import DecoderName
from privkit.attacks.inversion.linear_mixtures import Mixtures, fitting_noise
from privkit.attacks.inversion.mixed_releases import records_of_rows
from privkit.attacks.inversion.rounds import by_round
from privkit.attacks.patches import patch_tokens
from privkit.constraints import Count, Whole
from privkit.torch_utils.seeded import seeded

_UNEXPLAINED = 0.5  # unexplained share of another pass's variance from which secret ratios count as wrong
_MASKED = 1.5
"""Masks are assumed if vectors fitted to one half of the positions explain the other half badly: the variance that they
leave unexplained is more than this multiple of what the other half's own vectors leave unexplained. Noise twice as
large as the data stays below the factor (`tests/attacks/inversion/test_unmix.py`); a mask per position exceeds it if
noise is small."""
_LEAST = 1e-9  # share of the variance that is attributed to rounding
_SAME = 0.9  # cosine from which two candidates count as the same client


@dataclass(frozen=True, kw_only=True)
class Unmix(ReconstructingAttack):
    """Separate mixed releases by linear equations from several passes with known weights, then decode each image.

    A mixed release is a weighted sum of its records' smashed data. A server that forms the groups knows which clients'
    records are mixed and, if public, the weights. Each pass (the same records sent again) draws new weights, so a few
    passes determine all smashed data. Noise is averaged. Positions that were never sent get the mean; the decoder gets
    the explained variance of each position. If the weights are secret, with one weight for a whole record, they are
    estimated from the passes (`with_ratios`); the order of guesses within a round is then arbitrary. With secret masks
    the attack is not applicable.

    The attack assumes that a client sends the same batch in the same order in all passes (as with a fixed data order),
    and that the lower segment does not change. Without mixing, the attack averages the passes, also if these are
    masked.

    Attributes:
        passes: how many times ≥ 1 the same attacked images were sent, one complete sending after another.
        decoder: network that maps smashed data to images, a name as in `BlackBox`; None takes `BlackBox`'s default.
        epochs: number ≥ 0 of epochs over the adversary's (auxiliary) images. None leaves it to an audit's budget;
            `run` needs a number.
        doublings: largest number of times that the epochs are doubled, as long as this lowers the error on held-out
            images by more than 5 %; None trains in one learning-rate cycle.

    Raises:
        NotApplicable: by `run`, if the weights are hidden and cannot be estimated, or the release does not have the
            positions that were mixed.

    Source: privkit's own; ridge regression at each position. That public mixing is linear: DP-CutMixSL, Eq. 6 to 8 and
    15.
    """

    name: ClassVar[str] = "unmix"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary", "query"})

    passes: Count = 8
    decoder: DecoderName | None = None
    epochs: Whole | None = None
    doublings: Whole | None = 0

    @property
    def mounting(self) -> ImageMounting:
        undoes = frozenset({"maps", "masks", "mixes"})
        return replace(mounted(self, doublings=None), passes=self.passes, undoes=undoes)

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        check_inputs(self, observation)
        unmixed, to_seats = records_alone(observation, self.passes, generator)
        attack = BlackBox(decoder=self.decoder, epochs=self.epochs, doublings=self.doublings)
        guess = attack.run(unmixed, generator, session)
        return replace(guess, images=to_seats(guess.images))


def records_alone(
    observation: ImageObservation, passes: int, generator: Generator
) -> tuple[ImageObservation, Callable[[Tensor], Tensor]]:
    """Separate the records of mixed releases, so that an attack on unmixed records can follow.

    The noise is estimated from `passes` + 1 queries. Errors are as in `Unmix`. Returns the observation as if each
    record had been sent alone, client after client. In this observation, the weight of a position is the share of its
    variance that the passes explain. Also returns a function that puts guesses into the order of the observed rows and
    of the records in them.
    """
    rounds = by_round(observation.views, passes, mixed=True)
    first, query = observation.views[0], given(observation.query)
    batch, device = len(first.smashed) // first.messages, first.smashed.device
    secret = first.mixed > 1 and first.weights is None

    def told(same: Sequence[View]) -> Sequence[View]:
        return with_ratios(same, observation.batch_size // batch) if secret else same

    rounds = [list(told(same)) for same in rounds]
    Mixtures.of(rounds[0])  # raises an error, before any query, if the records cannot be separated
    root, module = torch.randint(2**48, (2,), generator=generator).tolist()
    own = given(observation.auxiliary)[: observation.batch_size].to(device)
    if len(own) < observation.batch_size:
        raise NotApplicable(f"unmix needs {observation.batch_size} images, a whole round, but has {len(own)}")
    draws = Generator(device).manual_seed(root)
    with seeded(device, module), torch.no_grad():
        tried = told([query(own, draws).view for _ in range(passes + 1)])
        typical, noise, left = fitting_noise(tried[:-1], tried[-1])
    if secret and left > _UNEXPLAINED:
        raise NotApplicable(
            f"secret ratios that fit some passes leave {100 * left:.0f} % of another pass's variance unexplained: a "
            f"row is no sum with one ratio per record, or noise hides it"
        )

    def unmixed(same: Sequence[View]) -> View:
        smashed, explained = Mixtures.of(same).solved(typical, noise)
        weights = None if smashed.ndim == 2 else explained.float().unsqueeze(1)
        clients = torch.arange(len(smashed), device=device).unsqueeze(1) // batch
        return View(
            round=same[0].round, smashed=smashed, weights=weights, clients=clients, messages=len(smashed) // batch
        )

    def asked(images: Tensor, draws: Generator) -> QueryResult:
        answers = [query(images, draws) for _ in range(passes)]
        same = told([answer.view for answer in answers])
        return QueryResult(view=unmixed(same), members=image_of_each(same, answers).unsqueeze(1))

    with torch.no_grad():
        views = [unmixed(same) for same in rounds]
    return replace(observation, views=views, query=asked), lambda images: seated(images, views, rounds)


def seated(images: Tensor, views: Sequence[View], rounds: Sequence[Sequence[View]]) -> Tensor:
    """Arrange guesses [R, C, H, W] at records like each round's first pass: row by row, image by image in a row."""
    parts = zip(images.split([len(view.smashed) for view in views]), rounds, strict=True)
    return torch.cat([part[records_of_rows(same[0]).flatten().clamp_min(0)] for part, same in parts])


def image_of_each(same: Sequence[View], answers: Sequence[QueryResult]) -> Tensor:
    """Find the adversary's image behind each record of an unmixed round: indices, int64, ordered as `records_of_rows`.

    If weights are secret, clients are numbered arbitrarily; then the image that was sent in most of a record's rows
    counts as the image of this record. Raises `NotApplicable` if records and images do not match one to one.
    """
    seated = torch.stack([records_of_rows(view).flatten() for view in same])
    members = torch.stack([answer.members for answer in answers])
    count = int(members.max()) + 1
    alone = torch.arange(count, device=members.device)
    if torch.equal(seated, members.flatten(1)):
        return alone
    seats = seated.unflatten(1, members.shape[1:])
    pairs = seats.unsqueeze(3) * count + members.unsqueeze(2)
    pairs = pairs[(seats.unsqueeze(3) >= 0) & (members.unsqueeze(2) >= 0)]
    together = torch.bincount(pairs.flatten(), minlength=count * count).view(count, count)
    image: Tensor = together.argmax(1)
    if not torch.equal(image.sort().values, alone):
        raise NotApplicable("the solved records do not match the own images one to one: record more passes")
    return image


def with_ratios(same: Sequence[View], clients: int) -> list[View]:
    """Estimate secret mixing weights from several releases (passes) of the same records; return views with the weights.

    The returned views hold estimated weights and clients. Each message is a weighted sum of k of n = `clients` unknown
    vectors, with one weight for a whole record. So all messages of all passes span n dimensions. A client's weights
    form a vector in this span that is zero in all messages without the client. Linear programs find the sparsest
    vectors, which are scaled so that the weights of a message sum to 1. Clients are numbered arbitrarily. Raises
    `NotApplicable` if messages are too few, weights differ between positions, or a client is not found.

    Source: clustering encodings that share a record, Carlini et al. 2021, "Is private learning possible with instance
    encoding?", §4; sparsest vectors of a subspace by linear programs: Spielman, Wang and Wright 2012.
    """
    members, messages = same[0].mixed, same[0].messages
    rows = torch.cat([view.smashed.unflatten(0, (messages, -1)).flatten(1) for view in same]).double()
    if len(rows) < 2 * clients:
        raise NotApplicable(
            f"secret ratios of {clients} clients need at least {2 * clients} messages, got {len(rows)}: "
            f"record at least {-(-2 * clients // messages)} passes"
        )
    if same[0].smashed.ndim > 2:
        tokens = torch.cat([patch_tokens(view.smashed).unflatten(0, (messages, -1)) for view in same])
        _must_share_ratios(tokens, clients)
    span = _span(rows, clients).numpy()
    chosen = _apart([_sparsest(span, row) for row in range(len(span))], clients, len(same))
    scale = np.linalg.lstsq(chosen, np.ones(len(chosen)), rcond=None)[0]
    weights = torch.from_numpy((chosen * scale).clip(min=0)).to(rows)
    largest = weights.topk(members, 1)
    ratios = (largest.values / largest.values.sum(1, keepdim=True).clamp_min(1e-12)).split(messages)
    seats = largest.indices.split(messages)
    batch = len(same[0].smashed) // messages
    return [
        replace(
            view,
            weights=ratio.repeat_interleave(batch, 0).unsqueeze(2).to(view.smashed.dtype),
            clients=seat.repeat_interleave(batch, 0),
        )
        for view, ratio, seat in zip(same, ratios, seats, strict=True)
    ]


def _span(rows: Tensor, dimensions: int) -> Tensor:
    """Find the n orthonormal vectors, [E, n], whose span is closest to the columns of `rows` [E, ...]."""
    flat = rows.flatten(1).double()
    vectors: Tensor = torch.linalg.eigh((flat @ flat.T).cpu())[1]
    return vectors[:, -dimensions:]


def _must_share_ratios(tokens: Tensor, clients: int) -> None:
    """Raise `NotApplicable` if positions of the messages [E, B, T, D] have different weights, as under masks.

    With one weight for each record, the tokens at all positions lie in one span of n dimensions, for n clients.
    """
    one, other = tokens[:, :, 0::2], tokens[:, :, 1::2].flatten(1).double().cpu()
    if not other.numel():
        return

    def left(span: Tensor) -> float:
        return float((other - span @ (span.T @ other)).square().sum() / other.square().sum())

    if left(_span(one, clients)) > _MASKED * left(_span(other, clients)) + _LEAST:
        raise NotApplicable(
            "the ratios are secret and differ from position to position, as those of masks do: unmix finds one ratio "
            "for each record"
        )


def _sparsest(span: NDArray[np.float64], row: int) -> NDArray[np.float64]:
    """Find the vector of a span [E, n] that is 1 in one row and has the least sum of absolute values."""
    from scipy.optimize import linprog

    count, dimensions = span.shape
    one = np.eye(count)
    found = linprog(
        np.r_[np.zeros(dimensions), np.ones(count)],
        A_ub=np.block([[span, -one], [-span, -one]]),
        b_ub=np.zeros(2 * count),
        A_eq=np.r_[span[row], np.zeros(count)][None],
        b_eq=[1.0],
        bounds=[(None, None)] * dimensions + [(0, None)] * count,
        method="highs",
    )
    vector: NDArray[np.float64] = span @ found.x[:dimensions] if found.status == 0 else np.ones(count)
    return vector


def _apart(vectors: list[NDArray[np.float64]], count: int, passes: int) -> NDArray[np.float64]:
    """Choose the n sparsest, pairwise different vectors, [E, n]; raise `NotApplicable` if there are fewer."""
    units = [vector / max(float(np.linalg.norm(vector)), 1e-12) for vector in vectors]
    chosen: list[NDArray[np.float64]] = []
    for unit in sorted(units, key=lambda unit: float(np.abs(unit).sum())):
        if all(abs(float(unit @ other)) < _SAME for other in chosen):
            chosen.append(unit)
        if len(chosen) == count:
            return np.stack(chosen, 1)
    raise NotApplicable(
        f"only {len(chosen)} of {count} clients' ratios were found from {passes} passes: record more passes, for "
        f"example with unmix:passes={2 * passes}"
    )


def found_among(own: Tensor, images: Tensor) -> Tensor:
    """Find each image [N, C, H, W] among the adversary's images [M, C, H, W]: its index, int64 [N]."""
    drawn = torch.rand(own[0].numel(), generator=Generator().manual_seed(0), dtype=torch.float64).to(own.device)
    keys, wanted = (some.flatten(1).double() @ drawn for some in (own, images))
    return (wanted.unsqueeze(1) - keys).abs().argmin(1)
