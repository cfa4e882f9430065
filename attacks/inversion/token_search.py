"""Search for texts, word by word, until a known lower segment outputs the release."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.assign import distances, hungarian, take
from privkit.attacks.base import Mounting, NotApplicable, ReconstructingAttack, Session, given
from privkit.attacks.fit import JUDGED_FROM, Resumable, fit, gained
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check_rows
from privkit.attacks.inversion.known_lower import frozen, quiet
from privkit.attacks.inversion.rounds import averaged_passes
from privkit.attacks.inversion.word_means import WordMeans, check_tokens, check_words, drawn_texts, seen_share
from privkit.attacks.inversion.word_order import WordPairs, likeliest_order
from privkit.attacks.scores.tokens import PADDING
from privkit.constraints import Count, Whole
from privkit.torch_utils.out_of_memory import in_chunks

_NUMBERS = 2**22  # most released numbers of candidate texts in memory
_TABLE = 2**24  # most numbers of word tables in memory
_EXPLAINS = 2.0
"""A masked word is kept if the commonest word in its place would multiply the difference from the release by at least
this factor. With factors 1, 2 and 4, ROUGE-1 under `random_cutout` was .66, .73 and .76, and .99, .93 and .87 of the
texts were identified (seed 0)."""
_BASES = 8  # texts over which a word's effect on other places is averaged
_SURE = 20.0
"""A word that leads the next word by this many nats is not tried again in the first epoch; later epochs need a larger
lead."""
_SURER = 4.0  # factor on `_SURE` from epoch to epoch
_WIDER = 8  # factor on the number of candidates, until the exact word, which must exist, is found
# a text whose guess did not change in the last epoch is finished if its difference is at most this multiple of the
# median text's difference: all texts have the same noise
_LIKE_OTHERS = 1.5
_SHOWN = 3.0  # standard errors that decide whether tokens were released in their places


@dataclass(frozen=True, kw_only=True)
class TokenSearch(ReconstructingAttack):
    """Search each text, word by word, until the known lower segment maps it to the release.

    The adversary sends its own texts and texts of random words through its copy of the lower segment (the clients' part
    of the network). Each word's mean token (released vector) gives a first guess at every place. Then the search visits
    each place. The difference between the release and the output for the present guess shows which words would fit
    better. The best candidates are tried, and the word that gives the likeliest text is kept. Without noise, the
    likeliest text has the smallest difference; a difference of zero means that the text explains the release. With
    noise, word frequencies in the adversary's texts count as well.

    In a causal model no place depends on later places. Without noise, one search from left to right is then enough: if
    no candidate gives the token exactly, all words are tried.

    If tokens were shuffled within texts, their order is found from three things: word frequencies at each place, word
    pairs in the adversary's texts, and the effect of a place on a token. If a shuffle moved tokens to other texts, each
    released row is still searched as if it held one text.

    A word under a public mask is searched by its effect on the released tokens. If the commonest word of its place
    explains the release nearly as well, that word is the guess.

    Attributes:
        epochs: number ≥ 0 of times that the search visits all places.
        candidates: number ≥ 1 of words tried at each place in the first epoch; it doubles with each further epoch.
        passes: how many times ≥ 1 the same attacked texts were sent, one complete sending after another. A text's
            releases are averaged.

    Raises:
        NotApplicable: by `run`, if a release has no token for each word, the number of words is unknown, or the lower
            segment's tokens have another size than the released tokens.

    The result's `curve` is the mean squared difference between release and output after each epoch, as a share of the
    release's variance. For exact texts it is 0, or the noise's share of the variance if the release is noisy.

    Source: privkit's own. Searching a causal model from left to right: Nikolaou et al. 2025, "Language models are
    injective and hence invertible" (arXiv:2510.15511); candidates one place at a time: Ebrahimi et al. 2018, "HotFlip".

    >>> from privkit.attacks.base import View
    >>> mixing = torch.nn.RNN(8, 8, batch_first=True)
    >>> lower = torch.nn.Sequential(torch.nn.Embedding(50, 8), mixing, type("First", (torch.nn.Module,), {
    ...     "forward": lambda self, both: both[0]})())
    >>> private = torch.randint(1, 50, (20, 6), generator=Generator().manual_seed(1))
    >>> views = [View(round=0, smashed=lower(private).detach())]
    >>> seen = ImageObservation(views=views, image_shape=(6,), batch_size=20, lower=lower)
    >>> found = TokenSearch().run(seen, Generator().manual_seed(0))
    >>> (found.images == private).float().mean().item() > 0.95
    True
    """

    name: ClassVar[str] = "token_search"
    needs: ClassVar[frozenset[str]] = frozenset({"lower"})
    uses: ClassVar[frozenset[str]] = frozenset({"auxiliary"})

    epochs: Whole = 4
    candidates: Count = 8
    passes: Count = 1

    @property
    def mounting(self) -> ImageMounting:
        return Mounting(
            passes=self.passes,
            domains=("tokens",),
            undoes=frozenset({"maps", "masks", "permutes"}),
            control=lambda steps: replace(self, epochs=min(self.epochs, 1)),
        )

    @torch.no_grad()
    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        check_rows(self, observation)
        observation = averaged_passes(observation, self.passes, self.name)
        views = observation.views
        length, device = observation.image_shape[0], views[0].smashed.device
        released = torch.cat([view.smashed for view in views]).float()
        check_tokens(self.name, released, length)
        lower = frozen(given(observation.lower), device)
        own = None if observation.auxiliary is None else observation.auxiliary.to(device)
        if own is not None:
            check_words(self, own)
        words = _words(lower, length, own, device)
        words = min(words, observation.words or words)  # embeddings may be padded with rows that stand for no word
        draws = Generator(device).manual_seed(int(torch.randint(2**48, (1,), generator=generator)))
        like = torch.ones(length, length, dtype=torch.int64, device=device).tril() if own is None else own
        texts = torch.cat([like[:0] if own is None else own, drawn_texts(like, words, PADDING, draws)])
        lower = quiet(lower, texts[: observation.batch_size])
        tokens = _outputs(lower, texts)
        if tokens.shape[1:] != released.shape[1:]:
            raise NotApplicable(
                f"the lower segment gives {list(tokens.shape[1:])} for a text, and {list(released.shape[1:])} was "
                "released: give the segment that the clients use"
            )
        means = WordMeans(tokens, texts, 0 if own is None else len(own), words)
        noise = means.noise(released)
        guess = _read(means, released - means.places, noise)
        shares = [seen_share(view) for view in views]
        seen = torch.ones(len(guess), length, device=device) if shares[0] is None else torch.cat([*map(given, shares)])
        hidden = seen == 0
        guess = torch.where(hidden, means.written.argmin(), guess)
        masked = bool(hidden.any())  # public masks leave tokens in their places
        order = None if masked else _order(lower, means, released, guess, own is not None, draws)
        if order is not None and own is not None:
            costs = means.costs_of_places(released, guess, noise)
            order = likeliest_order(costs, guess, WordPairs(own, words))
        if order is not None:
            released = take(released, order)
            guess = _read(means, released - means.places, noise)
        effects = _effects(lower, texts[:_BASES], words) if masked else None
        causal = not masked and _causal(lower, texts[:1], words)
        search = _Search(lower, released, seen, means, guess, self.candidates, causal, effects)
        curve = fit(search, self.epochs, session, objective=f"{self.name}: the unexplained share of the release")
        found, exact = search.hedged(), search.explained()
        converged = None if len(curve) < JUDGED_FROM else not gained(curve[len(curve) // 2 - 1], curve[-1])
        places = "tokens are in their places" if order is None else "places are guessed"
        note = (
            f"for {exact} of {len(released)} texts, the found words give exactly their release ({words:,} words "
            f"are possible); {places}"
        )
        return Reconstruction(images=found, curve=curve, converged=converged, note=note)


class _Search(Resumable):
    """The search over the words at all places of all texts; an epoch visits every place once.

    An epoch returns the share of the release's variance that the present guess does not explain.

    Args:
        released: released tokens of N texts in their places, [N, T, D].
        seen: how much of each token was released, [N, T] from 0 (masked) to 1.
        means: mean token and frequency of each word.
        guess: guessed words, int64 [N, T], changed in place.
        candidates: number ≥ 1 of candidates in the first epoch.
        causal: whether no place depends on later places, and none is masked.
        effects: for each word, the mean token at the other places of its texts, [words, D]; None if no token is masked.
    """

    def __init__(
        self,
        lower: nn.Module,
        released: Tensor,
        seen: Tensor,
        means: WordMeans,
        guess: Tensor,
        candidates: int,
        causal: bool,
        effects: Tensor | None,
    ) -> None:
        self.guess, self._moved = guess, torch.ones(len(guess), dtype=torch.bool, device=guess.device)
        self._lower, self._released, self._means = lower, released, means
        self._candidates, self._causal = candidates, causal
        self._seen, self._effects = seen.unsqueeze(2), effects
        self._exact = causal and _quiet(lower, released, means)

    def stateful(self) -> dict[str, Any]:
        return {"guess": self.guess, "moved": self._moved}

    def explained(self) -> int:
        """Count the texts whose output equals the release up to rounding."""
        return int((self._left() <= self._means.least).sum())

    def hedged(self) -> Tensor:
        """The guess, int64 [N, T]; masked words that explain little become the commonest word of their place."""
        found, left = self.guess.clone(), self._left()
        for place, common in enumerate(self._means.common if self._effects is not None else ()):
            other = self.guess.clone()
            other[:, place] = common
            little = _left(self._lower, self._released, self._seen, other) < _EXPLAINS * left
            found[:, place] = torch.where(little & (self._seen[:, place, 0] == 0), common, found[:, place])
        return found

    def _left(self) -> Tensor:
        return _left(self._lower, self._released, self._seen, self.guess)

    def epoch(self, number: int) -> float:
        left, least = self._left(), self._means.least
        noise = max(least, float(left.median()))
        rests = (left <= least) | ~self._moved & (left <= _LIKE_OTHERS * noise)
        rows = (~rests).nonzero().squeeze(1)
        before = self.guess.clone()
        if len(rows):
            tried = min(len(self._means.means), self._candidates << min(number, 30))
            for place in range(self.guess.shape[1]):
                self._settle(rows, place, noise, tried, _SURE * _SURER**number, first=number == 0)
        self._moved.copy_((self.guess != before).any(1))
        return float(self._left().mean() / self._released.var().clamp_min(1e-12))

    def _settle(self, rows: Tensor, place: int, noise: float, tried: int, sure: float, *, first: bool) -> None:
        """Choose again the word at position `place` of each text in `rows`, among its `tried` likeliest words. A text
        is skipped if its present word is the likeliest by `sure` nats."""
        guess, released, seen = self.guess[rows], self._released[rows], self._seen[rows]
        apart = released - seen * _outputs(self._lower, guess)
        left = apart[:, place]
        wanted = torch.stack(
            [left + self._means.means[guess[:, place]], released[:, place] - self._means.places[place]]
        )
        costs, words = _likeliest(self._means, wanted, noise, tried)
        unsure = (costs[:, 1:2] - costs[:, :1] < sure).any(1) | (words[:, 0] != guess[:, place])
        if self._effects is not None:  # a masked word shows only in its effect on the released tokens
            hidden = seen[:, place, 0] == 0
            wanted = apart.sum(1) / seen.sum(1).clamp_min(1) + self._effects[guess[:, place]]
            others = distances(wanted, self._effects).topk(tried, 1, largest=False).indices
            words = torch.where(hidden.unsqueeze(1), others, words)
            unsure |= hidden
        if self._exact:
            unsure = left.square().mean(1) > self._means.least
        rows, guess, released, words, seen = (part[unsure] for part in (rows, guess, released, words, seen))
        if not len(rows):
            return
        words = torch.cat([guess[:, place : place + 1], words], 1)  # a tie leaves the word as it is
        written = self._means.written[words]

        def best(part: slice) -> Tensor:
            texts = guess[part].unsqueeze(1).repeat(1, words.shape[1], 1)
            texts[:, :, place] = words[part]
            outputs = _outputs(self._lower, texts.flatten(0, 1)).unflatten(0, texts.shape[:2])
            squares = (seen[part, None] * outputs - released[part, None]).square()
            here = squares[:, :, place].sum(2)
            ahead = here if self._causal and (first or self._exact) else squares.sum((2, 3))
            cost: Tensor = here if self._exact else ahead / (2 * noise) + written[part]
            return cost.argmin(1)

        most = max(1, _NUMBERS // (words.shape[1] * released[0].numel()))
        chosen = in_chunks(best, len(rows), most)
        self.guess[rows, place] = words.gather(1, chosen.unsqueeze(1)).squeeze(1)
        if self._exact and tried < len(self._means.means):  # the texts that no candidate explains
            self._settle(rows, place, noise, min(len(self._means.means), _WIDER * tried), sure, first=first)


def _effects(lower: nn.Module, texts: Tensor, words: int) -> Tensor:
    """The mean token of all other places, [words, D], if the first place holds each of the words in turn."""
    tried = texts.repeat(words, 1)
    tried[:, 0] = torch.arange(words, device=texts.device).repeat_interleave(len(texts))
    tokens: Tensor = _outputs(lower, tried)[:, 1:].unflatten(0, (words, -1)).mean((1, 2))
    return tokens


def _outputs(lower: nn.Module, texts: Tensor) -> Tensor:
    most = max(1, _NUMBERS // (64 * texts.shape[1]))
    return in_chunks(lambda part: lower(texts[part]), len(texts), most).float()


def _likeliest(means: WordMeans, wanted: Tensor, noise: float, most: int) -> tuple[Tensor, Tensor]:
    """Find the likeliest words for each of n tokens: costs in nats, lowest first, and word indices, both [n, most].

    Args:
        means: mean token and frequency of each word.
        wanted: one or several estimates of each token, [ways, n, D], minus the mean effect of the token's place. A
            word's cost is its least cost over these estimates.
        noise: variance of the noise on each number.
        most: number of words that are returned for each token.
    """

    def table(part: slice) -> Tensor:
        costs = torch.stack([means.costs(way[part], noise) for way in wanted]).amin(0)
        best = costs.topk(most, 1, largest=False)
        return torch.stack([best.values.double(), best.indices.double()], 1)

    both = in_chunks(table, wanted.shape[1], max(1, _TABLE // len(means.means)))
    return both[:, 0], both[:, 1].long()


def _read(means: WordMeans, tokens: Tensor, noise: float) -> Tensor:
    """Find the likeliest word for each token alone, int64 [N, T]; `tokens` [N, T, D] lack the shift of their place."""
    return _likeliest(means, tokens.flatten(0, 1)[None], noise, 1)[1].view(tokens.shape[:2])


def _left(lower: nn.Module, released: Tensor, seen: Tensor | float, guess: Tensor) -> Tensor:
    """The mean squared difference between each release and the visible part (`seen`) of its guess's output, [N]."""
    return (released - seen * _outputs(lower, guess)).square().flatten(1).mean(1)


def _order(
    lower: nn.Module, means: WordMeans, released: Tensor, guess: Tensor, written: bool, draws: Generator
) -> Tensor | None:
    """Find the released token of each place, int64 [N, T] for N texts; None if tokens are in their places.

    Tokens count as in place if the lower segment explains them better in the released order than in the likeliest other
    order. If the lower segment treats all places alike, the adversary's texts decide (if there are any): tokens count
    as in place if words are more typical of their places than of random places.
    """
    noise = means.noise(released)
    costs = means.costs_of_places(released, guess, noise)
    order = hungarian(costs)
    moved = take(released, order)
    other = _read(means, moved - means.places, noise)
    gain = _in_errors(_left(lower, released, 1, guess) - _left(lower, moved, 1, other))
    if abs(gain) < _SHOWN:
        drawn = torch.rand(guess.shape, generator=draws, device=guess.device).argsort(1)
        dearer = costs.gather(2, drawn.unsqueeze(2)).squeeze(2) - costs.diagonal(dim1=1, dim2=2)
        return order if written and _in_errors(dearer.sum(1)) < _SHOWN else None
    return order if gain > 0 else None


def _in_errors(gains: Tensor) -> float:
    """The mean of gains [N], divided by its standard error."""
    error = float(gains.std(correction=0)) / sqrt(len(gains))
    return float(gains.mean()) / max(error, float(torch.finfo(gains.dtype).tiny))


def _causal(lower: nn.Module, text: Tensor, words: int) -> bool:
    """Whether no token changes if later words change."""
    half = text.shape[1] // 2
    if not half:
        return False
    other = text.clone()
    other[:, half:] = (other[:, half:] + 1) % words
    first, second = _outputs(lower, torch.cat([text, other]))[:, :half]
    return torch.allclose(first, second, rtol=1e-5, atol=1e-6 * float(first.abs().max()))


def _quiet(lower: nn.Module, released: Tensor, means: WordMeans) -> bool:
    """Whether there is no noise: some word gives exactly the first token of most texts (of a causal segment)."""
    texts = torch.arange(len(means.means), device=released.device).unsqueeze(1).expand(-1, released.shape[1])
    first = _outputs(lower, texts)[:, 0]
    least = in_chunks(
        lambda part: torch.cdist(released[part, 0], first).amin(1), len(released), max(1, _TABLE // len(first))
    )
    return float(least.square().median()) <= means.least * first.shape[1]


def _words(lower: nn.Module, length: int, own: Tensor | None, device: torch.device) -> int:
    """Count the words in the segment's first embedding or, without an embedding, in the adversary's texts."""
    found: list[int] = []
    parts = [part for part in lower.modules() if isinstance(part, nn.Embedding)]
    hooks = [part.register_forward_hook(lambda part, *_: found.append(part.num_embeddings)) for part in parts]
    _outputs(lower, torch.full((2, length), PADDING, device=device))
    for hook in hooks:
        hook.remove()
    if found:
        if own is not None and int(own.max()) >= found[0]:
            raise NotApplicable(
                f"own texts have the word id {int(own.max())}, but the lower segment's embedding has {found[0]} "
                f"words: give texts of the same vocabulary"
            )
        return found[0]
    if own is None:
        raise NotApplicable(
            "the lower segment has no torch.nn.Embedding that says how many words there are: give own texts as well"
        )
    return int(own.max()) + 1
