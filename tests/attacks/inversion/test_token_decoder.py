"""Words are read off tokens that hold something of the whole text, in their places, and nothing from noise."""

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import NotApplicable
from privkit.attacks.inversion.token_decoder import TokenDecoder
from tests.attacks.inversion.test_vocabulary import DOMAIN, WORDS, noise, ordered, read, texts, within_rows
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
