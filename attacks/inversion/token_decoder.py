"""Texts read by a decoder that learned, from own texts, which word stands behind a token in the company of others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import ClassVar

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from privkit.attacks.base import Mounting, NotApplicable, Session
from privkit.attacks.fit import Learner, fit
from privkit.attacks.goals.control import CONTROL_STEPS
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction
from privkit.attacks.inversion.recurrence import keeps_places
from privkit.attacks.inversion.word_means import Discriminant, asked, drawn_texts, released_tokens
from privkit.attacks.scores.tokens import PADDING
from privkit.constraints import Checked, Count, Whole
from privkit.torch_utils.one_cycle import one_cycle
from privkit.torch_utils.out_of_memory import in_chunks
from privkit.torch_utils.seeded import seeded

_STEP_ROWS = 32
_LEARNING_RATE = 2e-3
_READ_ROWS = 256


@dataclass(frozen=True, kw_only=True)
class TokenDecoder(Checked):
    """Trains a network that names the word behind each released token, on own texts sent over the wire.

    The adversary sends its own texts, and texts that it draws word by word, so that rare words recur. Linear
    discriminants of the tokens that came back are the start; a transformer over the tokens of a text then learns to
    correct them, since behind a block a token holds something of all words of its text.

    It needs tokens that come back in their places; behind a shuffle, `vocabulary` finds out which token is which word.
    Words that no own text holds cannot be read.

    Attributes:
        epochs: passes over the texts that were sent; 0 is the discriminants alone.
        width: of the network's layers, a multiple of 4.

    The curve is the cross-entropy of words on a tenth of the own texts.

    Source: privkit's own; discriminants by Fisher 1936. Decoders of hidden states: Song and Raghunathan 2020,
    "Information leakage in embedding models", §4; Wan et al. 2024, "Information leakage from embedding in large
    language models".
    """

    name: ClassVar[str] = "token_decoder"
    goal: ClassVar[str] = "reconstruct"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary", "query"})
    uses: ClassVar[frozenset[str]] = frozenset()

    epochs: Whole = 3
    width: Count = 128

    @property
    def mounting(self) -> ImageMounting:
        """It reads token sequences; its controls train a few steps."""
        return Mounting(
            domains=("tokens",),
            start=None if self.epochs == 0 else replace(self, epochs=0),
            control=lambda an_epoch: replace(self, epochs=min(self.epochs, ceil(CONTROL_STEPS / an_epoch))),
        )

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        """Send, learn, read; see `Attack.run`.

        Raises:
            NotApplicable: if a release has no token for each word, if tokens come back in other places, or if a round
                of own texts is missing.

        >>> from privkit.attacks.base import QueryResult, View
        >>> vectors, draws = torch.randn(9, 16, generator=Generator().manual_seed(1)), Generator().manual_seed(2)
        >>> def query(texts: Tensor, coins: Generator) -> QueryResult:
        ...     members = torch.arange(len(texts)).unsqueeze(1)
        ...     return QueryResult(view=View(round=0, smashed=vectors[texts]), members=members)
        >>> own = torch.randint(1, 9, (300, 4), generator=draws)
        >>> private = torch.randint(1, 9, (10, 4), generator=draws)
        >>> observation = ImageObservation(
        ...     views=[query(private, draws).view], image_shape=(4,), batch_size=10, auxiliary=own, query=query
        ... )
        >>> found = TokenDecoder(epochs=1).run(observation, Generator().manual_seed(0)).images
        >>> (found == private).float().mean().item() > 0.95
        True
        """
        released = released_tokens(self, observation)
        query, own, batch = observation.query, observation.auxiliary, observation.batch_size
        assert query is not None
        assert own is not None
        coins, module = torch.randint(2**48, (2,), generator=generator).tolist()
        draws = Generator(released.device).manual_seed(coins)
        words, own = own.to(released.device).unique(return_inverse=True)  # from here on, a word is its row of `words`
        padding = int((words == PADDING).nonzero().sum()) if (words == PADDING).any() else -1
        own = own[: len(own) // batch * batch]
        texts = torch.cat([own, drawn_texts(own, len(words), padding, draws)])
        texts = texts[: len(texts) // batch * batch]
        tokens, sent, _ = asked(query, words, texts, batch, draws)
        again, same, _ = asked(query, words, texts[:batch], batch, draws)
        if not keeps_places(tokens[:batch][sent[:batch].argsort()], again[same.argsort()]):
            raise NotApplicable(
                "it learns from tokens that come back in their places, and the same texts sent twice came back in "
                "others: vocabulary reads tokens behind a shuffle"
            )
        texts = texts[sent]
        start = Discriminant(tokens.flatten(0, 1), texts.flatten(), own.flatten().bincount(minlength=len(words)))
        with seeded(released.device, module):
            training = _Training(tokens, texts, len(own), start, self, module)
            curve = fit(training, self.epochs, session, objective=f"{self.name}: the held-out cross-entropy")
        note = f"{len(words)} words are in own texts, {len(texts) // batch + 1:,} rounds"
        return Reconstruction(images=words[training.read(released)], curve=curve, note=note)


class _Decoder(nn.Module):
    """Logits of words [N, T, W] of standardized tokens [N, T, D]: linear ones, and what a transformer adds to them."""

    def __init__(self, length: int, size: int, words: int, width: int) -> None:
        super().__init__()
        self.linear, self.enter = nn.Linear(size, words), nn.Linear(size, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.leave = nn.Linear(width, words)
        nn.init.zeros_(self.leave.weight)
        nn.init.zeros_(self.leave.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.linear(tokens) + self.leave(self.blocks(self.enter(tokens) + self.places))
        return logits


class _Training(Learner):
    """Trains the decoder on tokens [M, T, D] of texts [M, T], of which the first `own` are texts as people write them.

    An epoch tells the cross-entropy on a tenth of these.
    """

    def __init__(
        self, tokens: Tensor, texts: Tensor, own: int, start: Discriminant, attack: TokenDecoder, seed: int
    ) -> None:
        self._middle = tokens.flatten(0, 1).mean(0)
        self._scale = tokens.flatten(0, 1).std(0).clamp_min(1e-6)
        self._tokens, self._texts, self._seed = (tokens - self._middle) / self._scale, texts, seed
        self._held = max(1, own // 10)
        weight, bias = start.linear()
        network = _Decoder(tokens.shape[1], tokens.shape[2], len(weight), attack.width).to(tokens.device)
        with torch.no_grad():
            network.linear.weight.copy_(weight * self._scale)
            network.linear.bias.copy_(bias + weight @ self._middle)
        optimizer = torch.optim.AdamW(network.parameters(), lr=_LEARNING_RATE, weight_decay=0.01)
        steps = attack.epochs * ceil((len(tokens) - self._held) / _STEP_ROWS)
        super().__init__(network, optimizer, partial(one_cycle, optimizer, _LEARNING_RATE), steps)

    def _loss(self, rows: Tensor) -> Tensor:
        return functional.cross_entropy(self.network(self._tokens[rows]).flatten(0, 1), self._texts[rows].flatten())

    def epoch(self, number: int) -> float:
        device = self._tokens.device
        self.network.train()
        with seeded(device, self._seed + number):
            order = self._held + torch.randperm(len(self._tokens) - self._held, device=device)
            for rows in order.split(_STEP_ROWS):
                self.step(self._loss(rows))
        self.network.eval()
        with torch.no_grad():
            return self._loss(torch.arange(self._held, device=device)).item()

    @torch.no_grad()
    def read(self, released: Tensor) -> Tensor:
        """The word of each token, int64 [N, T]."""
        self.network.eval()
        return in_chunks(
            lambda part: self.network((released[part] - self._middle) / self._scale).argmax(2),
            len(released),
            _READ_ROWS,
        )
