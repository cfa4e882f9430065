"""A decoder for texts: it learns from the adversary's texts which word a token (released vector) stands for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import Mounting, NotApplicable, ReconstructingAttack, Session, given
from privkit.attacks.fit import fit
from privkit.attacks.goals.control import CONTROL_STEPS
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check_inputs
from privkit.attacks.inversion.recurrence import keeps_places
from privkit.attacks.inversion.rounds import averaged_passes
from privkit.attacks.inversion.token_training import TokenTraining, encoder
from privkit.attacks.inversion.unmix import records_alone
from privkit.attacks.inversion.word_means import (
    Discriminant,
    counts_by_place,
    drawn_texts,
    released_tokens,
    seen_share,
    text_tokens,
)
from privkit.attacks.scores.tokens import PADDING
from privkit.constraints import Count, Whole
from privkit.torch_utils.seeded import seeded

_STEP_ROWS = 32
_SHOWN = 0.5  # a token counts as visible if its visible share is above this
_IGNORED = -100  # label that the cross-entropy leaves out


@dataclass(frozen=True, kw_only=True)
class TokenDecoder(ReconstructingAttack):
    """Predict the word behind each released token (a vector) by a network, trained on the adversary's texts.

    The adversary sends its own texts through the clients, and also texts of random words, in which rare words occur
    often. The network starts from linear discriminants of the returned tokens. A transformer over the tokens of a text
    then learns to correct the discriminants, since after a transformer block a token depends on all words of its text.

    If a release mixes texts of several clients, each text's tokens are first computed as in `Unmix`. The attack needs
    tokens in their places; if tokens are shuffled or dropped, use the attack `vocabulary`. It cannot predict a word
    that is in none of the adversary's texts.

    Attributes:
        epochs: number ≥ 0 of epochs over the sent texts; 0 uses the discriminants alone.
        width: width of the network's layers, a multiple of 4.
        passes: how many times ≥ 1 the same attacked texts were sent, one complete sending after another. A text's
            releases are averaged or, if mixed, separated. The adversary sends its own texts the same number of times.

    Raises:
        NotApplicable: by `run`, if a release has no token for each word, if tokens come back in other places, or if the
            adversary's texts do not fill a round; for mixed texts, also in the cases of `Unmix`.

    The result's `curve` is the cross-entropy of words on a held-out tenth of the adversary's texts.

    Source: privkit's own; discriminants by Fisher 1936. Decoders of hidden states: Song and Raghunathan 2020,
    "Information leakage in embedding models", §4; Wan et al. 2024, "Information leakage from embedding in large
    language models".

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

    name: ClassVar[str] = "token_decoder"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary", "query"})

    epochs: Whole = 3
    width: Count = 128
    passes: Count = 1

    @property
    def mounting(self) -> ImageMounting:
        return Mounting(
            passes=self.passes,
            domains=("tokens",),
            undoes=frozenset({"maps", "masks", "mixes"}),
            start=None if self.epochs == 0 else replace(self, epochs=0),
            control=lambda an_epoch: replace(self, epochs=min(self.epochs, ceil(CONTROL_STEPS / an_epoch))),
        )

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        check_inputs(self, observation)
        to_seats = None
        if observation.views[0].mixed > 1:
            observation, to_seats = records_alone(observation, self.passes, generator)
        else:
            observation = averaged_passes(observation, self.passes, self.name)
        released = released_tokens(self, observation)
        query, own, batch = given(observation.query), given(observation.auxiliary), observation.batch_size
        coins, module = torch.randint(2**48, (2,), generator=generator).tolist()
        draws = Generator(released.device).manual_seed(coins)
        words, own = own.to(released.device).unique(return_inverse=True)  # a word is now an index in `words`
        padding = int((words == PADDING).nonzero().sum()) if (words == PADDING).any() else -1
        own = own[: len(own) // batch * batch]
        texts = torch.cat([own, drawn_texts(own, len(words), padding, draws)])
        texts = texts[: len(texts) // batch * batch]
        tokens, sent, _, seen = text_tokens(query, words, texts, batch, draws)
        again, same, _, _ = text_tokens(query, words, texts[:batch], batch, draws)
        masked = seen is not None and to_seats is None  # public masks leave tokens in their places
        if not masked and not keeps_places(tokens[:batch][sent[:batch].argsort()], again[same.argsort()]):
            raise NotApplicable(
                "it needs tokens that keep their places, but when texts were sent twice, no more tokens agreed than "
                "by chance: tokens are moved (take vocabulary), or noise hides their words"
            )
        texts = texts[sent]
        whole = torch.ones_like(texts, dtype=torch.bool) if seen is None else seen > _SHOWN
        start = Discriminant(tokens[whole], texts[whole], own.flatten().bincount(minlength=len(words)))
        weight, bias = start.linear()
        # nothing predicts a hidden word in a text of random words
        labels = texts.where(whole | (sent < len(own)).unsqueeze(1), _IGNORED)
        with seeded(released.device, module):
            decoder = _Decoder(tokens.shape[1], tokens.shape[2], len(words), self.width, seen is not None)
            decoder = decoder.to(released.device)
            held = max(1, len(own) // 10)
            training = TokenTraining(
                decoder, tokens, labels, held=held, epochs=self.epochs, step_rows=_STEP_ROWS, seed=module, seen=seen
            )
            by_place = counts_by_place(own, len(words)).float().clamp_min(0.5).log()
            decoder.begin(weight * training.scale, bias + weight @ training.middle, by_place)
            curve = fit(training, self.epochs, session, objective=f"{self.name}: the held-out cross-entropy")
        note = f"own texts contain {len(words)} different words; {len(texts) // batch + 1:,} rounds were sent"
        shares = None if seen is None else torch.cat([given(seen_share(view)) for view in observation.views])
        guess = words[training.read(released, lambda logits: logits.argmax(2), shares)]
        return Reconstruction(images=guess if to_seats is None else to_seats(guess), curve=curve, note=note)


class _Decoder(nn.Module):
    """Logits of words [N, T, W] from standardized tokens [N, T, D]: linear logits plus the output of a transformer.

    If tokens are `masked`, inputs are [N, T, D + 1], and the last number is the visible share of a token. The more a
    token is masked, the more the logits of its place replace its own logits.
    """

    def __init__(self, length: int, size: int, words: int, width: int, masked: bool) -> None:
        super().__init__()
        self.linear, self.enter = nn.Linear(size, words), nn.Linear(size + masked, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        self.blocks, self.leave = encoder(width), nn.Linear(width, words)
        self.hidden = nn.Parameter(torch.zeros(length, words)) if masked else None
        nn.init.zeros_(self.leave.weight)
        nn.init.zeros_(self.leave.bias)

    @torch.no_grad()
    def begin(self, weight: Tensor, bias: Tensor, hidden: Tensor) -> None:
        """Start from the weights [W, D] and biases [W] of linear logits, and from logits of each place [T, W]."""
        self.linear.weight.copy_(weight)
        self.linear.bias.copy_(bias)
        if self.hidden is not None:
            self.hidden.copy_(hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        context: Tensor = self.leave(self.blocks(self.enter(tokens) + self.places))
        if self.hidden is not None:
            tokens, seen = tokens[..., :-1], tokens[..., -1:]
            context = context + (1 - seen) * (self.hidden - self.linear(tokens))
        logits: Tensor = self.linear(tokens) + context
        return logits
