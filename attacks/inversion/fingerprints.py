"""Fingerprints: separates shuffled mixtures of clients whose different networks leave marks in their tokens.

Clients that learn separate lower segments send tokens with different distributions. The distributions also differ
between positions ("places") in an image. So an adversary who knows these distributions, from tokens of its own images,
can infer the client and the place of each token in an unknown mixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from privkit.attacks.assign import cheapest
from privkit.attacks.base import Mounting, NotApplicable, Query, ReconstructingAttack, Session, View, given
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check_forms, whole_rounds
from privkit.attacks.inversion.mixed_releases import records_of_rows
from privkit.attacks.inversion.seen_tokens import TOKEN_PENALTIES, Covariances
from privkit.attacks.inversion.union import collect
from privkit.attacks.order.followed_tokens import PlaceLaws
from privkit.attacks.order.own_tokens import KEEPS_ALL
from privkit.attacks.order.token_sets import PatchFeatures, TokenMaps
from privkit.attacks.patches import Geometry, patch_tokens
from privkit.constraints import Count
from privkit.torch_utils.seeded import seeded

_SENT = 5  # mean number of times that each token of a collected set is sent
_RECUR = 0.5  # least share of the adversary's tokens that appear again in another sending
_FEWEST = 50  # least number of complete token sets of each client
_COMPONENTS = 128  # most components of tokens
_SHRUNK = 1e-6  # share of the mean variance added to each variance; small, since small variances distinguish places
_TRIED = 2  # rounds of the adversary's images that are attacked as a test
_TOLD = 0.5  # least share of tokens whose client must be found, on a scale from 0 (chance) to 1 (all)
_NOBODY = 1e9  # cost of assigning a token to an empty seat
_NUMBERS_AT_ONCE = 2**24


@dataclass(frozen=True, kw_only=True)
class Fingerprints(ReconstructingAttack):
    """Find the client and place of each token in a shuffled mixture, by the distributions of each client's tokens.

    A token is a released vector that stands for one patch of an image. A released row can mix the tokens of k images.

    The adversary sends its own images many times. The tokens that recur whenever the same client sends an image form
    the image's unordered set; maps from the image's content to its tokens (`TokenMaps`) give the places of these
    tokens. These maps then locate the tokens in all released rows of the adversary's images, which gives a distribution
    of tokens for each client and place. By these distributions, each token of an attacked row gets its most likely
    client and place. A regression for each client guesses images from these tokens, as in `SeenTokens`. The attacked
    images need to be sent only once. If clients share a lower segment, their tokens have no marks, and the attack is
    not applicable.

    Attributes:
        images: largest number ≥ 1 of the adversary's images that are sent.
        sets: number ≥ 1 of these images whose token sets are collected; for this, every client sends each of these
            images 5·k times if rows mix k images.
        repeats: number ≥ 1; each image is sent `repeats`·k times by every client to read its tokens.
        components: number ≥ 1 of inputs of each client's regression, divided equally among an image's tokens; the
            inputs are each token's largest principal components.

    Raises:
        NotApplicable: by `run`, if releases are not a grid of tokens, if it is unknown which clients a row mixes, if
            the adversary's images fill fewer than five rounds, if tokens change when an image is sent again, if a
            client has fewer than 50 complete token sets, or if clients cannot be distinguished.

    The result's `curve` is one number, the MSE on two rounds of the adversary's images that are attacked as a test.

    Source: privkit's own. That a network leaves marks in its output: Yu et al. 2019, "Attributing fake images to GANs".
    """

    name: ClassVar[str] = "fingerprints"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary", "query"})
    mounting: ClassVar[ImageMounting] = Mounting(undoes=frozenset({"maps", "mixes", "permutes"}))

    images: Count = 2_000
    sets: Count = 200
    repeats: Count = 1
    components: Count = 768

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        check_forms(self, observation)
        views, query, batch = observation.views, given(observation.query), observation.batch_size
        first = views[0]
        if first.smashed.ndim != 3:
            raise NotApplicable(f"fingerprints needs tokens [N, T, D], but releases are {list(first.smashed.shape)}")
        geometry = Geometry.of(first.smashed, observation.image_shape)
        seats = [records_of_rows(view) for view in views]
        own = whole_rounds(self, observation, _TRIED + 3, self.images)
        root, module = torch.randint(2**48, (2,), generator=generator).tolist()
        draws = Generator(own.device).manual_seed(root)
        with seeded(own.device, module), torch.no_grad():
            wire = _Wire(query, own, batch, len(first.smashed) // first.messages, geometry.tokens, draws)
            every, last = torch.arange(len(own), device=own.device), _TRIED * batch
            learned, played = every.split([len(own) - last, last])
            sets, still = wire.sets(learned[: max(1, self.sets // batch) * batch], _SENT * first.mixed)
            axes = _Axes.of(torch.cat([tokens for tokens, _ in sets]).flatten(0, 1))
            shown = PatchFeatures.of(own, geometry.patch)
            maps = [TokenMaps.of_sets(axes(tokens), shown.some(images), still) for tokens, images in sets]
            rows = wire.rows(wire.everywhere(learned), self.repeats * first.mixed, axes, still)
            maps = [TokenMaps.of(*placed, shown.some(learned)) for placed in rows.placed(maps, shown, len(learned))]
            most = max(1, self.components // geometry.tokens)
            clients = [
                _Client.of(*placed, one.expected(shown.all[learned]), own[learned].flatten(1), most)
                for one, placed in zip(maps, rows.placed(maps, shown, len(learned)), strict=True)
            ]
            victims = _Rows(
                tokens=axes(torch.cat([patch_tokens(view.smashed).float() for view in views])),
                clients=torch.cat(seats).div(wire.share, rounding_mode="floor").clamp_min(-1),
                images=torch.zeros_like(torch.cat(seats)),
                still=still,
            )
            tried = wire.rows(played.split(batch), 1, axes, still)
            owners, places = tried.agreement(maps, shown, clients)
            if owners < 1 / first.mixed + _TOLD * (1 - 1 / first.mixed):
                raise NotApplicable(
                    f"fingerprints finds the owners of {100 * owners:.0f} % of own tokens, with {first.mixed} images "
                    f"a row: clients with similar lower segments cannot be told apart; take ridge, or union with its "
                    f"passes"
                )
            truth, taken = own[tried.images].flatten(2).flatten(0, 1), tried.clients.flatten() >= 0
            ahead = (tried.decoded(clients, penalty) for penalty in TOKEN_PENALTIES)
            errors = [float((guess - truth)[taken].square().mean()) for guess in ahead]
            guess = victims.decoded(clients, TOKEN_PENALTIES[errors.index(min(errors))])
        note = (
            f"{100 * owners:.0f} % of own tokens were assigned to their owner, and {100 * places:.0f} % to their place"
        )
        return Reconstruction(images=guess.view(-1, *observation.image_shape), curve=(min(errors),), note=note)


@dataclass(frozen=True)
class _Axes:
    middle: Tensor  # [D]
    basis: Tensor  # [D, q]

    @classmethod
    def of(cls, tokens: Tensor) -> _Axes:
        away = (tokens - tokens.mean(0)).double()
        return cls(tokens.mean(0), torch.linalg.eigh(away.T @ away)[1][:, -_COMPONENTS:].float())

    def __call__(self, tokens: Tensor) -> Tensor:
        return (tokens - self.middle) @ self.basis


@dataclass(frozen=True)
class _Client:
    law: PlaceLaws
    regression: Covariances

    @classmethod
    def of(cls, tokens: Tensor, there: Tensor, expected: Tensor, images: Tensor, most: int) -> _Client:
        """Fit to tokens [n, T, q] at T places; `expected` [n, T, q] replaces tokens missing in `there`, bool [n, T]."""
        whole = torch.where(there.unsqueeze(2), tokens, expected.float())
        return cls(PlaceLaws.fit(whole, whole.shape[2], _SHRUNK), Covariances.of(whole, images, most))


@dataclass(frozen=True)
class _Rows:
    tokens: Tensor  # [N, L, q]
    clients: Tensor  # int64 [N, k], the client on each seat, −1 on an empty seat
    images: Tensor  # int64 [N, k], the adversary's image on each seat; 0 on an empty seat
    still: bool  # whether tokens lie in their places

    def known(self, maps: Sequence[TokenMaps], shown: PatchFeatures) -> tuple[Tensor, Tensor]:
        """Find each token's seat (its image among k mixed images) and place, int64 [N, L] each, for known images."""
        return self._assigned(
            lambda client, row, seat: maps[client].costs(self.tokens[row], shown.all[self.images[row, seat]])
        )

    def read(self, clients: Sequence[_Client]) -> tuple[Tensor, Tensor]:
        """Find each token's seat and place, both int64 [N, L], by the clients' distributions of tokens alone."""
        return self._assigned(lambda client, row, seat: clients[client].law.costs(self.tokens[row]))

    def _assigned(self, costs: Callable[[int, Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Assign tokens to places one to one, at the least total cost; each cost is the least over the row's images."""
        (count, mixed), length = self.clients.shape, self.tokens.shape[1]
        seats, places = [], []
        for part in torch.arange(count, device=self.tokens.device).split(
            max(1, _NUMBERS_AT_ONCE // (mixed * length**2))
        ):
            table = self.tokens.new_full((len(part), mixed, length, length), _NOBODY)
            for client in self.clients[part].unique().tolist():
                if client >= 0:
                    row, seat = (self.clients[part] == client).nonzero(as_tuple=True)
                    table[row, seat] = costs(client, part[row], seat)
            if self.still:
                table += _NOBODY * (1 - torch.eye(length, device=part.device))
            least, seat = table.min(1)
            place = torch.from_numpy(cheapest(least.cpu().numpy())).to(part.device)
            seats.append(seat.gather(2, place.unsqueeze(2)).squeeze(2))
            places.append(place)
        return torch.cat(seats), torch.cat(places)

    def placed(self, maps: Sequence[TokenMaps], shown: PatchFeatures, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each client's mean token of n images at each place, [n, T, q], and whether it is known, [n, T]."""
        seat, place = self.known(maps, shown)
        client, image = self.clients.gather(1, seat), self.images.gather(1, seat)
        for number in range(len(maps)):
            at = client == number
            here, total = (image[at], place[at]), self.tokens.new_zeros(count, *self.tokens.shape[1:])
            met = total.new_zeros(total.shape[:2])
            total.index_put_(here, self.tokens[at], accumulate=True)
            met.index_put_(here, met.new_ones(()), accumulate=True)
            yield total / met.clamp_min(1).unsqueeze(2), met > 0

    def agreement(
        self, maps: Sequence[TokenMaps], shown: PatchFeatures, clients: Sequence[_Client]
    ) -> tuple[float, float]:
        """The share of tokens with the same image in `read` as in `known`, and the share with the same place."""
        pairs = zip(self.known(maps, shown), self.read(clients), strict=True)
        owners, places = (float((known == read).float().mean()) for known, read in pairs)
        return owners, places

    def decoded(self, clients: Sequence[_Client], penalty: float) -> Tensor:
        """Guess the k images of each of N rows, [N·k, P], P pixel values in [0, 1]."""
        seat, place = self.read(clients)
        row = torch.arange(len(seat), device=seat.device).unsqueeze(1).expand_as(seat)
        tokens = self.tokens.new_zeros(*self.clients.shape, *self.tokens.shape[1:])
        tokens[row, seat, place] = self.tokens
        there = torch.zeros(tokens.shape[:3], device=row.device).bool()
        there[row, seat, place] = True
        guess = clients[0].regression.mean.repeat(*self.clients.shape, 1)
        for number, client in enumerate(clients):
            at = self.clients == number
            guess[at] = client.regression.guess(tokens[at], there[at], penalty)
        return guess.flatten(0, 1)


@dataclass(frozen=True)
class _Wire:
    query: Query
    own: Tensor
    batch: int  # images of a round
    share: int  # number of images of each client in a round
    tokens: int  # number of tokens of an image
    draws: Generator

    def everywhere(self, images: Tensor) -> list[Tensor]:
        """Arrange image indices in rounds, so that every client sends each image once."""
        clients = range(0, self.batch, self.share)
        return [part.roll(start) for part in images.split(self.batch) for start in clients]

    def sets(self, images: Tensor, times: int) -> tuple[list[tuple[Tensor, Tensor]], bool]:
        """Collect complete token sets at each client: all T tokens of an image as this client sends them.

        Every client sends each of `images` (indices) `times` times. Returns for each client n sets [n, T, D] and the
        indices of their images, [n]; and whether tokens stay in place.
        """
        found, recurring, kept = [], [], []
        for part in self.everywhere(images):
            views, seats = zip(*(self._among_others(part) for _ in range(times)), strict=True)
            sets = collect(views, torch.stack(seats))
            mine = sets.met > 1
            whole = (mine.sum(1) == self.tokens).nonzero().squeeze(1)
            tokens = sets.tokens[whole][mine[whole]].unflatten(0, (-1, self.tokens))
            recurring.append(sets.recurring)
            kept.append(sets.in_place)
            found.append((tokens, part[whole], whole // self.share))
        if (back := float(torch.cat(recurring).mean())) < _RECUR:
            raise NotApplicable(
                f"fingerprints needs tokens that stay the same if an image is sent again, but {100 * (1 - back):.0f} "
                f"% of own tokens changed: noise was added, or a token depends on the other images of its batch"
            )
        tokens, image, client = (torch.cat(parts) for parts in zip(*found, strict=True))
        each = [client == number for number in range(self.batch // self.share)]
        if (fewest := min(int(at.sum()) for at in each)) < _FEWEST:
            raise NotApplicable(
                f"fingerprints needs {_FEWEST} whole sets of each client's tokens, but one client has only {fewest}: "
                f"raise sets=…"
            )
        return [(tokens[at], image[at]) for at in each], float(torch.cat(kept).mean()) > KEEPS_ALL

    def _among_others(self, part: Tensor) -> tuple[View, Tensor]:
        """Send images in a random order at each client, so that each image is mixed with new images.

        Returns the view, and for each released row the mixed images, as indices into `part`; −1 for an empty place.
        """
        keys = torch.rand(len(part) // self.share, self.share, generator=self.draws, device=part.device)
        order = torch.arange(len(part), device=part.device).view_as(keys).gather(1, keys.argsort(1)).flatten()
        answer = self.query(self.own[part[order]], self.draws)
        return answer.view, torch.where(answer.members >= 0, order[answer.members.clamp_min(0)], -1)

    def rows(self, rounds: Sequence[Tensor], times: int, axes: _Axes, still: bool) -> _Rows:
        """Send each round of images (indices) `times` times, and return the released rows."""
        found = []
        for part in rounds:
            for _ in range(times):
                answer = self.query(self.own[part], self.draws)
                members, tokens = answer.members, axes(patch_tokens(answer.view.smashed).float())
                image = torch.where(members >= 0, part[members.clamp_min(0)], 0)
                found.append((tokens, members.div(self.share, rounding_mode="floor"), image))
        tokens, clients, images = (torch.cat(parts) for parts in zip(*found, strict=True))
        return _Rows(tokens=tokens, clients=clients, images=images, still=still)
