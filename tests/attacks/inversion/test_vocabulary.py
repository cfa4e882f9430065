"""Words are read off tokens behind shuffles, from queries or with the weights, and nothing is read from noise."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import NotApplicable, Query, QueryResult, View, given
from privkit.attacks.goals.reconstruct import ImageAttack, ImageObservation, Reconstruction
from privkit.attacks.inversion.vocabulary import Vocabulary
from privkit.domains.tokens.domain import Tokens

WORDS, LENGTH, ROWS = 40, 6, 10
DOMAIN = Tokens(length=LENGTH, vocabulary=("", "?", *(f"word{number}" for number in range(WORDS - 2))))
Shuffle = Callable[[Tensor, Generator], Tensor]


def texts(count: int, seed: int) -> Tensor:
    """Texts of two to six words, whose word depends on its place a little: even words come first."""
    draws = Generator().manual_seed(seed)
    words = torch.randint(1, WORDS // 2, (count, LENGTH), generator=draws) * 2 + (torch.arange(LENGTH) > 2).long()
    ends = torch.randint(2, LENGTH + 1, (count, 1), generator=draws)
    return torch.where(torch.arange(LENGTH) < ends, words.clamp(1, WORDS - 1), 0)


class Stirred(nn.Module):
    """A lower segment whose tokens hold much of the whole text, in three of their 16 directions."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors = torch.randn(WORDS, 16, generator=Generator().manual_seed(1))
        self.few = torch.linalg.qr(torch.randn(16, 3, generator=Generator().manual_seed(2)))[0]

    def forward(self, sent: Tensor) -> Tensor:
        tokens = self.vectors[sent]
        context = (tokens * torch.arange(LENGTH).view(-1, 1)).sum(1, keepdim=True)
        return tokens + 3 * context @ self.few @ self.few.T


class Embedding(nn.Module):
    """A lower segment whose token is its word's vector and a little of the whole text."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors = torch.randn(WORDS, 16, generator=Generator().manual_seed(1))

    def forward(self, sent: Tensor) -> Tensor:
        tokens = self.vectors[sent]
        return tokens + 0.2 * tokens.mean(1, keepdim=True)


def ordered(tokens: Tensor, draws: Generator) -> Tensor:
    return tokens


def within_rows(tokens: Tensor, draws: Generator) -> Tensor:
    order = torch.rand(tokens.shape[:2], generator=draws).argsort(1)
    return tokens.gather(1, order.unsqueeze(2).expand_as(tokens))


def within_messages(tokens: Tensor, draws: Generator) -> Tensor:
    """Every second token goes anywhere in the message."""
    flat = tokens.flatten(0, 1).clone()
    moved = torch.randperm(len(flat), generator=draws)[: len(flat) // 2]
    flat[moved] = flat[moved[torch.randperm(len(moved), generator=draws)]]
    return within_rows(flat.view_as(tokens), draws)


def dropped(tokens: Tensor, draws: Generator) -> Tensor:
    """Half of each text's tokens, in their order."""
    kept = torch.rand(tokens.shape[:2], generator=draws).argsort(1)[:, : LENGTH // 2].sort(1).values
    return tokens.gather(1, kept.unsqueeze(2).expand(-1, -1, tokens.shape[2]))


def noise(tokens: Tensor, draws: Generator) -> Tensor:
    return torch.randn(tokens.shape, generator=draws)


def read(
    attack: ImageAttack, private: Tensor, shuffle: Shuffle, lower: nn.Module | None = None, session: Any = None
) -> Reconstruction:
    lower = lower or Embedding()

    def query(sent: Tensor, draws: Generator) -> QueryResult:
        order = torch.randperm(len(sent), generator=draws)  # rows come back in another order
        view = View(round=0, smashed=shuffle(lower(sent[order]), draws))
        return QueryResult(view=view, members=order.unsqueeze(1))

    draws = Generator().manual_seed(7)
    observation = ImageObservation(
        image_shape=(LENGTH,),  # type: ignore[arg-type]
        batch_size=ROWS,
        views=[View(round=n, smashed=shuffle(lower(part), draws)) for n, part in enumerate(private.split(ROWS))],
        auxiliary=texts(300, 3),
        query=query,
        lower=lower if "lower" in attack.needs else None,
    )
    return attack.run(observation, Generator().manual_seed(0), session)


def observed(private: Tensor, query: Query, draws: Generator, passes: int = 1) -> ImageObservation:
    """Private texts, sent `passes` times as a query sends them."""
    return ImageObservation(
        image_shape=(LENGTH,),  # type: ignore[arg-type]
        batch_size=ROWS,
        views=[query(part, draws).view for _ in range(passes) for part in private.split(ROWS)],
        auxiliary=texts(300, 3),
        query=query,
    )


@pytest.mark.slow
@pytest.mark.parametrize("source", ["lower", "query"])
def test_a_shuffle_within_texts_hides_no_word(source: str) -> None:
    private = texts(40, 5)
    found = read(Vocabulary(source=source, epochs=12), private, within_rows)  # type: ignore[arg-type]
    scores = DOMAIN.scores(private, found.images)
    assert scores["rouge_1"].mean() > 0.95
    assert scores["token_accuracy"].mean() > 0.4  # places of odd and of even words are told apart, and not more
    assert "places are guessed" in found.note


def test_a_strong_context_in_few_directions_hides_no_word() -> None:
    private = texts(40, 5)
    found = read(Vocabulary(epochs=0), private, within_rows, Stirred())
    assert DOMAIN.scores(private, found.images)["rouge_1"].mean() > 0.9


@pytest.mark.parametrize("lower", [Embedding, Stirred])
def test_dropped_tokens_do_not_hide_the_others(lower: type[nn.Module]) -> None:
    """With much context in a token, first vectors name few words of a token's own row: ROUGE-1 was .39."""
    private = texts(40, 5)
    found = read(Vocabulary(epochs=0), private, dropped, lower()).images
    own = (found.unsqueeze(2) == private.unsqueeze(1)).any(2)
    assert own[found > 0].float().mean() > 0.95
    assert DOMAIN.scores(private, found)["rouge_1"].mean() > 0.6  # half of the words would have two thirds


@pytest.mark.parametrize("mixed", [False, True])
def test_several_passes_show_the_words_that_one_pass_drops_or_mixes(mixed: bool) -> None:
    """Half of each text's tokens are sent, in a random order; if `mixed`, a row has the tokens of two random texts."""
    private, lower, draws = texts(40, 5), Embedding(), Generator().manual_seed(7)

    def query(sent: Tensor, coins: Generator) -> QueryResult:
        tokens = dropped(lower(sent), coins)
        if not mixed:
            return QueryResult.row_by_row(View(round=0, smashed=tokens))
        clients = torch.rand(len(sent), generator=coins).argsort().view(-1, 2)  # each client has one text
        rows = within_rows(torch.cat([tokens[clients[:, 0]], tokens[clients[:, 1]]], 1), coins)
        view = View(round=0, smashed=rows, mixed=2, clients=clients, messages=len(rows))
        return QueryResult(view=view, members=clients)

    passes = 10
    observation = observed(private, query, draws, passes)
    found = Vocabulary(epochs=0, passes=passes).run(observation, Generator().manual_seed(0)).images
    truth = private
    if mixed:
        first = torch.cat([given(view.clients) + ROWS * n for n, view in enumerate(observation.views[:4])])
        truth = private[first.flatten()]
    assert DOMAIN.scores(truth, found)["rouge_1"].mean() > 0.9


@pytest.mark.slow
def test_words_are_read_from_a_shuffled_batch() -> None:
    private = texts(40, 5)
    found = read(Vocabulary(epochs=12), private, within_messages)
    kept = within_messages(torch.arange(40 * LENGTH).view(40, LENGTH, 1), Generator()).squeeze(2) // LENGTH
    share = (kept == torch.arange(40).unsqueeze(1)).float().mean().item()
    assert share < 0.6
    own = DOMAIN.scores(private, found.images)["rouge_1"].mean()
    assert own > DOMAIN.scores(private.roll(1, 0), found.images)["rouge_1"].mean() + 0.15
    whole = private.view(-1, ROWS * LENGTH), found.images.view(-1, ROWS * LENGTH)
    assert (whole[0].sort(1).values == whole[1].sort(1).values).float().mean() > 0.8  # of a message, nearly all


def test_tokens_in_their_places_are_read_in_place() -> None:
    private = texts(40, 5)
    found = read(Vocabulary(epochs=12), private, ordered)
    assert DOMAIN.scores(private, found.images)["exact"].mean() > 0.9
    assert "in their places" in found.note


def test_it_reads_nothing_from_noise() -> None:
    private = texts(40, 5)
    guess = DOMAIN.guesses(texts(300, 3))["most_frequent_by_place"].expand_as(private)
    floor = DOMAIN.scores(private, guess)["rouge_1"].mean()
    assert DOMAIN.scores(private, read(Vocabulary(epochs=4), private, noise).images)["rouge_1"].mean() < floor + 0.1


def query_of_nothing() -> Query:
    return lambda sent, draws: QueryResult(view=View(round=0, smashed=sent.float()), members=torch.zeros(0, 1).long())


@pytest.mark.parametrize(
    ("released", "own", "why"),
    [((ROWS, 8), 300, "a token for each of the 6 words"), ((ROWS, LENGTH, 8), ROWS - 1, "sends 10 own texts a round")],
)
def test_refusals(released: tuple[int, ...], own: int, why: str) -> None:
    observation = ImageObservation(
        image_shape=(LENGTH,),  # type: ignore[arg-type]
        batch_size=ROWS,
        views=[View(round=0, smashed=torch.zeros(released))],
        auxiliary=texts(own, 3),
        query=query_of_nothing(),
    )
    with pytest.raises(NotApplicable, match=why):
        Vocabulary().run(observation, Generator())
