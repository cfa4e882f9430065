"""Words are read off tokens that hold something of the whole text, in their places, and nothing from noise."""

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import NotApplicable, QueryResult, View, given
from privkit.attacks.inversion.token_decoder import TokenDecoder
from tests.attacks.inversion.test_vocabulary import (
    DOMAIN,
    LENGTH,
    ROWS,
    WORDS,
    Embedding,
    noise,
    observed,
    ordered,
    read,
    texts,
    within_rows,
)
from tests.attacks.sessions import Killed, Session

NAME = "token_accuracy"


class Neighbors(nn.Module):
    """A lower segment whose token holds more of the word before it than of its own."""

    def __init__(self) -> None:
        super().__init__()
        draws = Generator().manual_seed(2)
        self.vectors = torch.randn(WORDS, 16, generator=draws)
        self.turn = 1.5 * torch.randn(16, 16, generator=draws)

    def forward(self, sent: Tensor) -> Tensor:
        tokens = self.vectors[sent]
        return tokens + tokens.roll(1, 1) @ self.turn


@pytest.mark.slow
def test_the_network_reads_what_no_single_token_shows() -> None:
    private = texts(200, 5)
    alone, together = (
        1 - DOMAIN.scores(private, read(TokenDecoder(epochs=epochs), private, ordered, Neighbors()).images)[NAME].mean()
        for epochs in (0, 12)
    )
    assert together < 0.75 * alone  # over three segments the share was .46 to .54


@pytest.mark.slow
@pytest.mark.parametrize(("passes", "least"), [(1, 0.55), (8, 0.95)])
def test_it_reads_both_texts_of_a_mixture(passes: int, least: float) -> None:
    """Two clients fill the places of a row at random, anew in each pass, and the server knows who fills which."""
    lower, draws, private = Embedding(), Generator().manual_seed(7), texts(40, 5)

    def query(sent: Tensor, coins: Generator) -> QueryResult:
        tokens = lower(sent).unflatten(0, (2, -1))
        first = torch.rand(tokens.shape[1:3], generator=coins) < 0.5
        view = View(
            round=0,
            smashed=torch.where(first.unsqueeze(2), tokens[0], tokens[1]),
            mixed=2,
            weights=torch.stack([first, ~first], 1).float(),
            clients=torch.tensor([[0, 1]]).expand(len(first), -1),
        )
        return QueryResult(view=view, members=torch.arange(len(sent)).view(2, -1).T)

    observation = observed(private, query, draws, passes)
    found = TokenDecoder(passes=passes).run(observation, Generator().manual_seed(0)).images
    truth = private.view(-1, 2, ROWS // 2, LENGTH).transpose(1, 2).flatten(0, 2)
    assert DOMAIN.scores(truth, found)["rouge_1"].mean() > least


def test_a_masked_word_spoils_no_other_word_and_is_guessed_by_its_place() -> None:
    lower, draws, private = Embedding(), Generator().manual_seed(7), texts(100, 5)

    def query(sent: Tensor, coins: Generator) -> QueryResult:
        shown = (torch.rand(sent.shape, generator=coins) < 0.5).float()
        view = View(round=0, smashed=lower(sent) * shown.unsqueeze(2), weights=shown.unsqueeze(1))
        return QueryResult.row_by_row(view)

    observation = observed(private, query, draws)
    shown = torch.cat([given(view.weights)[:, 0] for view in observation.views]) > 0
    common = DOMAIN.guesses(texts(300, 3))["most_frequent_by_place"].expand_as(private)
    by_place = (common == private)[~shown].float().mean()
    for epochs in (0, 3):
        right = TokenDecoder(epochs=epochs).run(observation, Generator().manual_seed(0)).images == private
        assert right[shown].float().mean() > 0.9
        assert right[~shown].float().mean() > by_place - 0.05


def test_it_reads_nothing_from_noise() -> None:
    private = texts(40, 5)
    guess = DOMAIN.guesses(texts(300, 3))["most_frequent_by_place"].expand_as(private)
    floor = DOMAIN.scores(private, guess)["rouge_1"].mean()

    def answers(tokens: Tensor, draws: Generator) -> Tensor:
        """Own tokens by themselves, so that the attack believes in them; the private ones are noise."""
        return noise(tokens, draws) if draws.initial_seed() == 7 else tokens

    found = read(TokenDecoder(epochs=4), private, answers)
    assert DOMAIN.scores(private, found.images)["rouge_1"].mean() < floor + 0.1


def test_behind_a_shuffle_another_attack_is_named() -> None:
    private = texts(20, 5)
    for shuffle in (within_rows, noise):
        with pytest.raises(NotApplicable, match=r"take vocabulary.*or noise hides their words"):
            read(TokenDecoder(), private, shuffle)


@pytest.mark.slow
def test_a_killed_one_goes_on() -> None:
    private, attack = texts(20, 5), TokenDecoder(epochs=4)
    killed = Session(dies_after=2)
    with pytest.raises(Killed):
        read(attack, private, ordered, session=killed)
    resumed = Session(state=killed.state)
    found = read(attack, private, ordered, session=resumed)
    assert len(resumed.reports) == 2
    assert torch.equal(found.images, read(attack, private, ordered).images)
