"""Texts and table rows of simple laws, and lower segments that read them."""

import torch
from torch import Generator, Tensor, nn

from privkit.domains.tables.domain import Tables
from privkit.domains.tokens.domain import Tokens
from privkit.recording.read import Recording
from privkit.recording.recorder import Recorder

WORDS = Tokens(length=6, vocabulary=("", "?", *(f"w{number}" for number in range(30))))
CARS = Tables(
    dense=("power", "weight"),
    ranges=((0.0, 200.0), (500.0, 2500.0)),
    categorical=("wheels", "color"),
    values=(("3", "4"), ("red", "green", "blue")),
)
ROWS, ROUNDS, OWN = 20, 2, 200


def texts(count: int, seed: int) -> Tensor:
    """Random texts in the vocabulary, whose words depend on their positions."""
    draws = Generator().manual_seed(seed)
    drawn = torch.randint(0, 15, (count, WORDS.length), generator=draws)
    return 2 + (drawn + 5 * torch.arange(WORDS.length)) % 30


def cars(count: int, seed: int) -> Tensor:
    """Random table rows in which weight determines the number of wheels, and mostly the power."""
    draws = Generator().manual_seed(seed)
    size = torch.rand(count, 1, generator=draws)
    power = (0.8 * size + 0.2 * torch.rand(count, 1, generator=draws)).clamp(0, 1)
    color = torch.randint(0, 3, (count, 1), generator=draws)
    return torch.cat([power, size, (size > 0.4).float(), color.float()], 1)


class Words(nn.Module):
    """A lower segment with one token per word: the word's vector plus a vector of its position."""

    def __init__(self, words: int = len(WORDS.vocabulary)) -> None:
        super().__init__()
        draws = Generator().manual_seed(0)
        self.words = nn.Embedding.from_pretrained(torch.randn(words, 16, generator=draws), freeze=False)
        self.places = nn.Parameter(0.1 * torch.randn(WORDS.length, 16, generator=draws))

    def forward(self, ids: Tensor) -> Tensor:
        tokens: Tensor = self.words(ids) + self.places
        return tokens


class Fields(nn.Module):
    """A lower segment with one token per field: a scaled vector for numbers, one vector per category for the others."""

    def __init__(self, colors: int = 3) -> None:
        super().__init__()
        draws = Generator().manual_seed(0)
        self.dense, self.offsets = (nn.Parameter(torch.randn(2, 8, generator=draws)) for _ in range(2))
        self.wheels, self.color = (
            nn.Embedding.from_pretrained(torch.randn(size, 8, generator=draws), freeze=False) for size in (2, colors)
        )

    def forward(self, x: Tensor) -> Tensor:
        ids = x[:, 2:].long()
        dense = x[:, :2, None] * self.dense + self.offsets
        return torch.cat([dense, self.wheels(ids[:, :1]), self.color(ids[:, 1:])], 1)


class Shuffled(nn.Module):
    """A lower segment whose tokens are permuted within each record, anew at each call."""

    def __init__(self, lower: nn.Module) -> None:
        super().__init__()
        self.lower = lower

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.lower(x)
        order = torch.rand(tokens.shape[:2]).argsort(1)
        return tokens.gather(1, order.unsqueeze(2).expand_as(tokens))


def recorded(
    folder: str, domain: Tokens | Tables, lower: nn.Module, noise: float = 0.0, *, known: bool = True
) -> Recording:
    """Two rounds of texts or table rows behind a lower segment and noise, in which nothing is learned."""
    records = {WORDS: texts, CARS: cars}[domain]
    recorder, draws = Recorder(), Generator().manual_seed(7)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for x in records(ROWS * ROUNDS, 1).split(ROWS):
            released = lower(x).detach()
            sent = released + noise * torch.randn(released.shape, generator=draws)
            recorder(sent, **({"x": x, "y": torch.arange(ROWS) % 2} if known else {}))
        built = "" if known else f"{type(lower).__module__}:{type(lower).__name__}"  # to trace it takes records
        own = records(OWN, 2)
        return recorder.save(folder, name="none", own=own, lower=lower, lower_builder=built, domain=domain)
