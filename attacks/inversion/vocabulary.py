"""Recovers texts from released tokens, also after a shuffle: finds the word and the place of each token."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, log
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from privkit.attacks.assign import distances, hungarian
from privkit.attacks.base import Mounting, NotApplicable, ReconstructingAttack, Session, given
from privkit.attacks.fit import fit
from privkit.attacks.goals.control import CONTROL_STEPS
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check_inputs
from privkit.attacks.inversion.known_lower import frozen
from privkit.attacks.inversion.token_training import TokenTraining, encoder
from privkit.attacks.inversion.union import tokens_alone
from privkit.attacks.inversion.word_means import (
    Discriminant,
    drawn_texts,
    mean_tokens,
    released_tokens,
    text_tokens,
    whitening,
)
from privkit.attacks.inversion.word_order import WordPairs, likeliest_order
from privkit.attacks.scores.tokens import PADDING
from privkit.constraints import Count, Whole
from privkit.torch_utils.out_of_memory import in_chunks
from privkit.torch_utils.seeded import seeded

_STEP_ROWS = 64
_MATCHINGS = 6  # rounds of matching tokens with words; each sets a word's vector to the mean of its tokens
_OWN_WORD = 0.8  # share of tokens with a word of their own row above which tokens are taken to stay in their row
_IN_PLACE = 0.9  # share of tokens matched with their own place above which tokens are taken to be in their places
_TABLE = 2**24  # most distances in memory


@dataclass(frozen=True, kw_only=True)
class Vocabulary(ReconstructingAttack):
    """Recover texts from shuffled tokens: the word and the place of each token are learned from the adversary's texts.

    The adversary sends its own texts, and texts of random words, in which rare words occur often. A shuffle hides which
    token (released vector) represents which word. But the sum of a text's tokens is linear in its word counts, so a
    regression gives each word a first vector. Then tokens are matched with the sent words, and each vector becomes the
    mean of its tokens. Each attacked token gets the word with the nearest mean, in Mahalanobis distance. A small
    network predicts the place of each token, from all tokens of its text. The likeliest order is searched by these
    predictions and by the frequency of word pairs in the adversary's texts. If tokens come back in their places, no
    network is needed.

    If tokens were dropped, the words of the remaining tokens are found. With `passes` > 1, a text's tokens are
    collected over the passes as in `Union`, also from mixed texts. Words that are in none of the adversary's texts
    cannot be found.

    Attributes:
        source: how the adversary gets the tokens of its texts: "query", from the defended clients; "lower", in order,
            from the lower segment itself.
        epochs: number ≥ 0 of epochs of the network.
        width: width of the network's layers, a multiple of 4.
        passes: how many times ≥ 1 the same attacked texts were sent, one complete sending after another. The adversary
            sends its own texts the same number of times.

    Raises:
        NotApplicable: by `run`, if a release is not a sequence of tokens, if it has more tokens than the text has words
            or (with `source=lower`) fewer, or if the adversary's texts do not fill a round; with `passes` > 1, also in
            the cases of `Union`.

    The result's `curve` is the cross-entropy of places on a held-out tenth of the adversary's texts.

    Source: privkit's own; words by linear discriminants (Fisher 1936). That tokens of shallow layers reveal their
    words: Song and Raghunathan 2020, "Information leakage in embedding models".

    >>> from privkit.attacks.base import QueryResult, View
    >>> vectors, draws = torch.randn(9, 16, generator=Generator().manual_seed(1)), Generator().manual_seed(2)
    >>> def query(texts: Tensor, coins: Generator) -> QueryResult:
    ...     order = torch.rand(texts.shape, generator=coins).argsort(1)
    ...     tokens = vectors[texts.gather(1, order)]
    ...     return QueryResult(view=View(round=0, smashed=tokens), members=torch.arange(len(texts)).unsqueeze(1))
    >>> own = torch.randint(1, 9, (300, 4), generator=draws)
    >>> private = torch.randint(1, 9, (10, 4), generator=draws)
    >>> observation = ImageObservation(
    ...     views=[query(private, draws).view], image_shape=(4,), batch_size=10, auxiliary=own, query=query
    ... )
    >>> found = Vocabulary(epochs=10).run(observation, Generator().manual_seed(0)).images
    >>> (found.sort().values == private.sort().values).float().mean().item() > 0.95
    True
    """

    name: ClassVar[str] = "vocabulary"

    source: Literal["query", "lower"] = "query"
    epochs: Whole = 10
    width: Count = 128
    passes: Count = 1

    @property
    def needs(self) -> frozenset[str]:
        """Name the required fields: the adversary's texts, and the `source` of their tokens."""
        return frozenset({"auxiliary", self.source})

    @property
    def mounting(self) -> ImageMounting:
        return Mounting(
            passes=self.passes,
            domains=("tokens",),
            any_tokens=True,
            undoes=frozenset({"permutes", "shortens"} | ({"mixes"} if self.passes > 1 else set())),
            control=lambda an_epoch: replace(self, epochs=min(self.epochs, ceil(CONTROL_STEPS / an_epoch))),
        )

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        coins, module = torch.randint(2**48, (2,), generator=generator).tolist()
        draws = Generator(observation.views[0].smashed.device).manual_seed(coins)
        to_seats = None
        if self.passes > 1:
            check_inputs(self, observation)
            words = observation.image_shape[0]
            observation, to_seats = tokens_alone(observation, self.passes, words, self.name, draws)
        released = released_tokens(self, observation, fewer=self.source == "query")
        own, batch, device = given(observation.auxiliary), observation.batch_size, released.device
        words, own = own.to(device).unique(return_inverse=True)  # a word is now an index in `words`
        padding = int((words == PADDING).nonzero().sum()) if (words == PADDING).any() else -1
        texts = torch.cat([own, drawn_texts(own, len(words), padding, draws)])
        texts = texts[: len(texts) // batch * batch]
        if self.source == "query":
            tokens, sent, rows, _ = text_tokens(given(observation.query), words, texts, batch, draws)
            labels, places = _labelled(tokens, texts[sent], rows, len(words))
        else:
            lower = frozen(given(observation.lower), device)
            with torch.no_grad():
                tokens = torch.cat([lower(words[part]) for part in texts.split(batch)]).float()
            if tokens.shape[1:] != released.shape[1:]:
                raise NotApplicable(
                    f"the lower segment gives {list(tokens.shape[1:])} for a text, and {list(released.shape[1:])} was "
                    "released: give the segment that the clients use"
                )
            labels, places = texts, torch.arange(own.shape[1], device=device).expand_as(texts)
        reader = Discriminant(tokens.flatten(0, 1), labels.flatten(), own.flatten().bincount(minlength=len(words)))
        guess = reader.name(released)
        curve: tuple[float, ...] = ()
        missing = own.shape[1] - released.shape[1]
        stayed = float((places == torch.arange(places.shape[1], device=device)).float().mean())
        in_place = self.source == "query" and stayed > _IN_PLACE  # the lower segment alone says nothing of a shuffle
        if not in_place:
            written = len(own) // batch * batch  # random words say nothing about places
            with seeded(device, module):
                # Without an embedding of places, the network cannot read them off the order of the tokens.
                blocks = encoder(self.width)
                network = nn.Sequential(
                    nn.Linear(tokens.shape[2], self.width), blocks, nn.Linear(self.width, own.shape[1])
                ).to(device)
                training = TokenTraining(
                    network,
                    tokens[:written],
                    places[:written],
                    held=max(1, written // 10),
                    epochs=self.epochs,
                    step_rows=_STEP_ROWS,
                    seed=module,
                )
                curve = fit(training, self.epochs, session, objective="vocabulary: the held-out cross-entropy")
            costs = training.read(released, lambda logits: -logits.log_softmax(2))
            # in place of a token that was not released, padding or the commonest word is put at the likeliest place
            blank = padding if padding >= 0 else int(own.flatten().mode().values)
            guess = functional.pad(guess, (0, missing), value=blank)
            costs = functional.pad(costs, (0, 0, 0, missing), value=log(own.shape[1]))
            guess = guess.gather(1, likeliest_order(costs, guess, WordPairs(own, len(words))))
        order = "tokens come back in their places" if in_place else "places are guessed"
        via = f"{len(texts) // batch:,} rounds" if self.source == "query" else "the lower segment's own tokens"
        note = f"own texts contain {len(words)} different words, sent in {via}; {order}"
        images = words[guess] if to_seats is None else to_seats(words[guess])
        return Reconstruction(images=images, curve=curve, note=note)


@torch.no_grad()
def _labelled(tokens: Tensor, texts: Tensor, rows: int, words: int) -> tuple[Tensor, Tensor]:
    """Find the word and the place of each token of texts that were sent; both int64 [M, K].

    Args:
        tokens: K ≤ T released tokens of each of M texts, [M, K, D], in any order within a text, or within a message.
        texts: the sent texts, int64 [M, T].
        rows: number of texts in a message.
        words: number of words in the vocabulary.
    """
    dropped = tokens.shape[1] < texts.shape[1]  # then first vectors are poor, and own rows cannot be recognized by them
    found = [_rematched(tokens, texts, rows, words, stay) for stay in ((False, True) if dropped else (False,))]
    return max(found, key=lambda one: one[2])[:2]


def _rematched(tokens: Tensor, texts: Tensor, rows: int, words: int, stay: bool) -> tuple[Tensor, Tensor, float]:
    """Find labels and places as in `_labelled`, and the share of tokens whose nearest word is their label.

    Tokens are matched with the words of their row if `stay`, or if the words found so far for most tokens occur in the
    tokens' rows; otherwise with the words of their message.
    """
    left, length = tokens.shape[1], texts.shape[1]
    vectors, white = _first_vectors(tokens, texts, rows, words), torch.eye(tokens.shape[2], device=tokens.device)

    def nearest() -> Tensor:
        return in_chunks(
            lambda part: distances(tokens[part].flatten(0, 1) @ white, vectors @ white).argmin(1),
            len(tokens),
            max(1, _TABLE // words // left),
        ).view(-1, left)

    named = nearest()
    for _ in range(_MATCHINGS):
        own = stay or bool((named.unsqueeze(2) == texts.unsqueeze(1)).any(2).float().mean() > _OWN_WORD)
        group = 1 if own else rows
        groups, sent = tokens.view(-1, group * left, tokens.shape[2]), texts.view(-1, group * length)
        place = _matched(groups @ white, vectors @ white, sent)
        labels = sent.gather(1, place).flatten()
        vectors = mean_tokens(tokens.flatten(0, 1), labels, vectors)
        white, named = whitening(tokens.flatten(0, 1), vectors[labels]), labels.view(-1, left)
    return named, (place % length).view_as(named), float((nearest() == named).float().mean())


def _matched(groups: Tensor, vectors: Tensor, sent: Tensor) -> Tensor:
    """Find the place of each of K tokens, [G, K, D], among S ≥ K sent words in the best matching: int64 [G, K]."""
    return in_chunks(
        lambda part: hungarian(distances(groups[part], vectors[sent[part]]).mT),
        len(groups),
        max(1, _TABLE // sent.shape[1] ** 2),
    )


def _first_vectors(tokens: Tensor, texts: Tensor, rows: int, words: int) -> Tensor:
    """Estimate a vector for each word, [words, D], by regression of rows' token sums on word counts."""
    counts = functional.one_hot(texts, words).sum(1).float()
    sums = tokens.sum(1)
    if rows > 1:  # tokens from other rows of the message are then the same for all rows, on average
        messages = [whole.view(-1, rows, whole.shape[1]) for whole in (counts, sums)]
        counts, sums = ((each - each.mean(1, keepdim=True)).flatten(0, 1) for each in messages)
    vectors: Tensor = torch.linalg.solve(counts.T @ counts + torch.eye(words, device=counts.device), counts.T @ sums)
    drawn = vectors[texts].flatten(0, 1)
    middle, wanted = drawn.mean(0), tokens.flatten(0, 1)
    scale = (wanted.var(0).sum() / drawn.var(0).sum().clamp_min(1e-12)).sqrt()
    return (vectors - middle) * scale + wanted.mean(0)
