"""Union of passes: a token has the same values in each pass, so several passes reveal a record's tokens, even if each
pass drops some of them or mixes in tokens of other records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Generator, Tensor, nn

from privkit.attacks.assign import distances, take
from privkit.attacks.base import NotApplicable, Query, QueryResult, ReconstructingAttack, Session, View, given
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check_inputs
from privkit.attacks.inversion.black_box import BlackBox
from privkit.attacks.inversion.budgeted import mounted
from privkit.attacks.inversion.decoders import DecoderName
from privkit.attacks.inversion.mixed_releases import records_of_rows
from privkit.attacks.inversion.rounds import by_round
from privkit.attacks.inversion.unmix import found_among, image_of_each, seated
from privkit.attacks.order.own_tokens import KEEPS_ALL
from privkit.attacks.patches import patch_tokens
from privkit.constraints import Whole

_SAME = 1e-4  # share of the mean squared distance of two tokens, below which they count as copies
_UNDOES = frozenset({"mixes", "permutes", "shortens"})
_RECUR = 0.5  # least share of the adversary's tokens that appear in another pass
_LONGER = 2.0  # multiple of the budget's epochs: they are cheap, since nothing is sent in them


@dataclass(frozen=True, kw_only=True)
class Union(ReconstructingAttack):
    """Collect the tokens of each record over several passes (the same records sent again), and decode the set.

    A token is a released vector that stands for one patch of an image, or for one word. If tokens are dropped, each
    pass can add tokens that other passes dropped. If a released row holds the tokens of several records in a hidden
    order, a token belongs to the one record that is in all rows with this token. The attack assumes that the server
    knows which released rows of different passes hold the same record, that the lower segment does not change, and that
    tokens are released without noise.

    Attributes:
        passes: how many times ≥ 2 the same attacked records were sent, one complete sending after another.
        decoder: network that maps a set of tokens to an image, a name as in `BlackBox`. None is "mae" if tokens of the
            adversary's images come back in their places, and "set" otherwise.
        epochs: number ≥ 0 of epochs over the adversary's (auxiliary) images. None leaves it to an audit, which takes
            twice its budget of epochs; `run` needs a number.
        doublings: largest number of times that the epochs are doubled, as long as this lowers the error on held-out
            images by more than 5 %; None trains in one learning-rate cycle.

    Raises:
        NotApplicable: by `run`, if releases are vectors, if the adversary's images do not fill a round, if it is
            unknown which rows hold the same record, or if most tokens change when an image is sent again.

    Source: privkit's own; intersection attacks on mixes (Berthold, Pfitzmann and Standtke 2001) also link messages by
    recurrence.
    """

    name: ClassVar[str] = "union"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary", "query"})

    passes: Annotated[int, Ge(2), "one pass has no union: take black_box"] = 8
    decoder: DecoderName | None = None
    epochs: Whole | None = None
    doublings: Whole | None = 0

    @property
    def mounting(self) -> ImageMounting:
        return replace(mounted(self, _LONGER, doublings=None), passes=self.passes, any_tokens=True, undoes=_UNDOES)

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        check_inputs(self, observation)
        rounds = by_round(observation.views, self.passes, mixed=True)
        query, device = given(observation.query), observation.views[0].smashed.device
        own, batch = given(observation.auxiliary).to(device), observation.batch_size
        own = own[: len(own) // batch * batch]
        if not len(own) or observation.views[0].smashed.ndim == 2:
            raise NotApplicable(f"union needs tokens, and auxiliary images for a round of {batch}")
        root = int(torch.randint(2**48, (1,), generator=generator))
        draws = Generator(device).manual_seed(root)
        with torch.no_grad():
            own_sets = [_sent(query, images, self.passes, draws) for images in own.split(batch)]
            sets = [collect(same) for same in rounds]
        _check_recurring(own_sets, self.name)
        typical = torch.cat([one.sizes for one in own_sets]).median()  # filled empty seats are outliers
        tokens = _places(int(typical), observation.image_shape)
        stored = torch.cat([one.rows(tokens) for one in own_sets])

        def asked(images: Tensor, draws: Generator) -> QueryResult:
            return QueryResult.row_by_row(View(round=0, smashed=stored[found_among(own, images)]))

        views = [View(round=same[0].round, smashed=one.rows(tokens)) for same, one in zip(rounds, sets, strict=True)]
        in_place = torch.cat([one.in_place for one in own_sets]).mean().item() > KEEPS_ALL
        decoder: DecoderName = self.decoder or ("mae" if in_place else "set")
        attack = BlackBox(decoder=decoder, epochs=self.epochs, doublings=self.doublings)
        guess = attack.run(replace(observation, views=views, query=asked, auxiliary=own), generator, session)
        images = seated(guess.images, views, rounds)
        share = float(torch.cat([view.smashed[..., -1] for view in views]).mean())
        return replace(guess, images=images, note=f"{100 * share:.0f} % of the attacked records' tokens were collected")


def tokens_alone(
    observation: ImageObservation, passes: int, tokens: int, attack: str, draws: Generator
) -> tuple[ImageObservation, Callable[[Tensor], Tensor]]:
    """Collect each record's tokens over passes, so that an attack on whole, unmixed records can follow.

    Args:
        observation: the adversary's observation, with auxiliary records.
        passes: how many times ≥ 2 the same records were sent.
        tokens: number T of tokens of a record.
        attack: the attack's name, for error messages.
        draws: random generator for the queries that test whether tokens recur.

    Returns:
        The observation as if each record had been sent alone, with T tokens in any order (a missing token is zero); and
        a function that puts an attack's guesses into the order of the observed rows and of the records in each row.

    Raises:
        NotApplicable: as in `Union`.
    """
    query, rounds = given(observation.query), by_round(observation.views, passes, mixed=True)
    own = given(observation.auxiliary)[: observation.batch_size].to(observation.views[0].smashed.device)

    def alone(number: int, sets: _TokenSets) -> View:
        return View(round=number, smashed=sets.rows(tokens)[..., :-1])

    def asked(records: Tensor, coins: Generator) -> QueryResult:
        return QueryResult.row_by_row(alone(0, _sent(query, records, passes, coins)))

    _check_recurring([_sent(query, own, passes, draws)], attack)
    views = [alone(same[0].round, collect(same)) for same in rounds]
    return replace(observation, views=views, query=asked), lambda guess: seated(guess, views, rounds)


def _check_recurring(own_sets: Sequence[_TokenSets], attack: str) -> None:
    recur = torch.cat([one.recurring for one in own_sets]).mean().item()
    if recur < _RECUR:
        raise NotApplicable(
            f"{attack} needs tokens that stay the same if a record is sent again, but {100 * (1 - recur):.0f} % of "
            f"own tokens changed: noise was added, or a token depends on the other records of its batch; take adaptive "
            f"or unmix"
        )


@dataclass(frozen=True)
class _TokenSets:
    """The distinct tokens of each record."""

    tokens: Tensor  # [R, n, D], all tokens that were sent in the record's rows
    met: Tensor  # float [R, n], how often each token came; 0 for repetitions, and for tokens whose record is unclear
    # float [R], number of a record's tokens that came more than once, divided by the tokens of a row; at most 1
    recurring: Tensor
    in_place: Tensor  # float [R], share of the tokens in a record's first row that keep their place in its second row

    @property
    def sizes(self) -> Tensor:
        return (self.met > 0).sum(1)

    def rows(self, tokens: int) -> Tensor:
        """Take for each of R records the T tokens that came most often, in order of arrival, then zeros: [R, T, D + 1].

        A last channel holds 1 at tokens and 0 after them.
        """
        often = self.met.topk(min(tokens, self.met.shape[1]), dim=1)
        best = often.indices.masked_fill(often.values == 0, self.met.shape[1]).sort(1).values
        there = (best < self.met.shape[1]).to(self.tokens.dtype).unsqueeze(2)
        best = best.clamp_max(self.met.shape[1] - 1)
        rows = torch.cat([take(self.tokens, best) * there, there], 2)
        return nn.functional.pad(rows, (0, 0, 0, tokens - rows.shape[1]))


def collect(same: Sequence[View], seats: Tensor | None = None) -> _TokenSets:
    """Sort the tokens of one round, sent in several passes, by record.

    A token belongs to a record if the rows with this token have no other record in common. If rows hold several copies
    of a token, the record gets the largest number of copies that one row holds.

    Args:
        same: the views of the round, one for each of P passes.
        seats: int64 [P, N, k], the k records in each of N rows, −1 for an empty place; None if `View.clients` gives
            them.

    Raises:
        NotApplicable: if the adversary does not know which records are in a row.

    >>> one, two = torch.tensor([[[1.0], [2.0]]]), torch.tensor([[[3.0], [2.0]]])
    >>> sets = collect([View(round=0, smashed=one), View(round=0, smashed=two)])
    >>> sets.rows(4)[0, :, 0].sort().values.tolist(), sets.met[0].tolist()
    ([0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 1.0, 0.0])
    """
    seats = torch.stack([records_of_rows(view) for view in same]) if seats is None else seats  # [P, N, k]
    passes, _, _ = seats.shape
    tokens = torch.stack([patch_tokens(view.smashed).float() for view in same])
    count, length = int(seats.max()) + 1, tokens.shape[2]
    holds = nn.functional.one_hot(seats.clamp_min(0), count).bool() & (seats >= 0).unsqueeze(3)
    holds = holds.any(2)  # [P, N, R]: whether a row holds a record
    there, row = holds.any(1).T, holds.int().argmax(1).T  # [R, P]
    number = torch.arange(passes, device=row.device)
    company = holds[number, row]  # [R, P, R]
    alone = torch.eye(count, device=row.device).bool().unsqueeze(1)
    company = (company & ~alone).float().repeat_interleave(length, 1)  # [R, n, R]
    crossed = tokens[number, row].flatten(1, 2)  # [R, n, D]
    valid = there.repeat_interleave(length, 1)
    away = crossed - crossed.mean((0, 1))  # the common part of all tokens would hide their differences
    apart = distances(away, away)
    same_token = (apart <= _SAME * apart.mean((1, 2), keepdim=True)) & valid.unsqueeze(1) & valid.unsqueeze(2)
    within = torch.block_diag(*[torch.ones(length, length, device=row.device)] * passes).tril(-1)
    rank = (same_token * within).sum(2)  # among equal tokens, the second of one row matches the second of another
    same_token &= rank.unsqueeze(1) == rank.unsqueeze(2)
    copies = same_token.float()
    met = copies.sum(2)
    shared = ((copies @ company == met.unsqueeze(2)) & valid.unsqueeze(2)).any(2)
    first = same_token.int().argmax(2) == torch.arange(met.shape[1], device=met.device)
    known = torch.where(first & valid & ~shared, met, 0)
    return _TokenSets(
        tokens=crossed,
        met=known,
        recurring=((known > 1).sum(1) / length).clamp_max(1),
        in_place=same_token[:, :length, length : 2 * length].diagonal(dim1=1, dim2=2).float().mean(1),
    )


def _sent(query: Query, images: Tensor, passes: int, draws: Generator) -> _TokenSets:
    """Send one round of the adversary's images in several passes; collect token sets in the order of the images."""
    answers = [query(images, draws) for _ in range(passes)]
    same = [answer.view for answer in answers]
    order = image_of_each(same, answers).argsort()
    sets = collect(same)
    return _TokenSets(**{name: value[order] for name, value in vars(sets).items()})


def _places(tokens: int, image_shape: tuple[int, int, int]) -> int:
    """Number of patches in the smallest square grid with ≥ `tokens` patches; raises `NotApplicable` if none exists."""
    _, height, width = image_shape
    grids = [(height // side) ** 2 for side in range(1, height + 1) if height == width and height % side == 0]
    fitting = [places for places in grids if places >= tokens]
    if not fitting:
        raise NotApplicable(f"a record has {tokens} tokens, which are more than a square image has pixels")
    return min(fitting)
