"""Clients that learn the next token: the loss and its gradient, what is refused, and what their server reads."""

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from privkit.audit.assembled import assemble
from privkit.audit.goals import label_adversary
from privkit.audit.run import run_audit
from privkit.defenses.base import Defense
from privkit.defenses.none import NoDefense
from privkit.defenses.patch_shuffle import PatchShuffle
from privkit.domains import Tokens
from privkit.domains.base import Batch
from privkit.errors import UsageError
from privkit.metrics.classification import token_scores
from privkit.models.base import SplitModel
from privkit.settings.resolve import resolve
from privkit.torch_utils.seeded import seeded
from privkit.training import Clients, TrainingSpec, evaluate, split_round, train
from privkit.training.losses import next_token, next_tokens
from privkit.training.u_shape import UShaped
from privkit.wire.transcript import Transcript
from tests.small import generator

WORDS = Tokens(length=6, vocabulary=("", "?", *map(str, range(18))))
TEXTS = torch.tensor([[2, 5, 3, 9, 0, 0], [7, 0, 0, 0, 0, 0], [4, 4, 8, 1, 2, 19], [3, 2, 0, 0, 0, 0]])
OWN = "tests.training.test_next_token:Causal"
SETTINGS: dict[str, Any] = {
    "dataset": "definitions:length=8,vocabulary=60",
    "model": OWN,
    "budget": "smoke:epochs=1,private=100,auxiliary=100,test=40,victims=20",
    "training": "batch_size=10",
    "threads": 1,
}


class Upper(nn.Module):
    """A recurrent network over places, and a head of all tokens."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(16, 16), nn.Tanh()), nn.Linear(16, words)
        self.loss = next_token

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(tokens.cumsum(1)))
        return logits


@dataclass(frozen=True)
class Causal:
    """An embedding at the client; each place sees those before it."""

    domain: ClassVar[str] = "tokens"

    def build(self, domain: Tokens, classes: int, *, positions: bool, seed: int) -> SplitModel:
        with seeded(torch.device("cpu"), seed):
            lower, upper = nn.Embedding(len(domain.vocabulary), 16), Upper(len(domain.vocabulary))
        return SplitModel(lower=lower, upper=upper, predicts="texts")


def assembled(defense: Defense, **settings: Any) -> tuple[Clients, nn.Module]:
    config = resolve({**SETTINGS, "defense": ["none"], **settings})
    edge, upper, _ = assemble(config, defense, WORDS, 3, 0)
    return edge, upper


def test_a_texts_loss_is_the_mean_over_its_tokens() -> None:
    assert next_tokens(TEXTS).tolist()[0] == [5, 3, 9, 0, 0, 0]
    logits = torch.randn(4, 6, 20, generator=generator())
    found = next_token(logits, TEXTS.float())  # as labels arrive at a loss of one's own
    for text, own, loss in zip(TEXTS, logits, found, strict=True):
        length = int((text != 0).sum())
        if length == 1:
            assert loss == 0
            continue
        torch.testing.assert_close(loss, nn.functional.cross_entropy(own[: length - 1], text[1:length]))


def test_the_gradient_is_that_of_the_uncut_model() -> None:
    edge, upper = assembled(NoDefense(), protocol="u_shape:clients=2")
    assert isinstance(upper, UShaped)
    lower, middle = deepcopy(edge.lowers.copy(0)), deepcopy(upper.middle)
    tail = deepcopy(upper.tails.copy(0))
    texts = TEXTS.view(2, 2, 6)
    outcome = split_round(edge, upper, texts, texts, generator())
    losses = [next_token(tail(middle(lower(own))), own).mean() for own in texts]
    torch.testing.assert_close(outcome.losses, torch.stack(losses).detach(), rtol=0, atol=1e-6)
    torch.stack(losses).mean().backward()
    for one, other in zip(upper.middle.parameters(), middle.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-6)
    own_of_first = torch.autograd.grad(
        next_token(tail(middle(lower(texts[0]))), texts[0]).mean(), [*lower.parameters()]
    )
    for stack, gradient in zip(edge.lowers.parameters(), own_of_first, strict=True):
        torch.testing.assert_close(stack.grad[0], gradient, rtol=0, atol=1e-6)  # type: ignore[index]


def test_no_text_crosses_as_a_label() -> None:
    edge, upper = assembled(NoDefense(), protocol="u_shape")
    transcript = Transcript()
    transcript(edge, upper, TEXTS.unsqueeze(0), TEXTS.unsqueeze(0), generator())
    (kept,) = transcript.rounds
    assert kept.view.labels is None
    assert all(view.labels is None for view in kept.returned)


@pytest.mark.parametrize(
    ("defense", "protocol", "reason"),
    [
        (NoDefense(), "sl", "has the texts themselves as labels, and this protocol sends labels to the server"),
        (
            PatchShuffle(),
            "u_shape",
            "patch_shuffle moves or drops tokens, so a model of the next token cannot be trained",
        ),
    ],
    ids=["sent", "moved"],
)
def test_what_would_send_or_move_texts_is_refused(defense: Defense, protocol: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        assembled(defense, protocol=protocol)


def test_standalone_clients_send_nothing() -> None:
    edge, upper = assembled(NoDefense(), protocol="standalone:clients=2")
    data = Batch(x=TEXTS, y=torch.zeros(4, dtype=torch.int64), ids=torch.arange(4), domain=WORDS)
    assert len(train(edge, upper, data, TrainingSpec(batch_size=2), epochs=1, seed=0).curve) == 1


def test_accuracy_counts_tokens_and_its_interval_texts() -> None:
    """Texts that repeat one token after another: a model of it is right everywhere but at padding."""
    edge, upper = assembled(NoDefense(), protocol="u_shape")
    x = (torch.arange(80) % 18 + 2).unsqueeze(1).repeat(1, 6)
    x[::2, 4:] = 0
    data = Batch(x=x, y=torch.zeros(80, dtype=torch.int64), ids=torch.arange(80), domain=WORDS)
    spec = TrainingSpec(batch_size=20, learning_rate=0.05)
    trained = train(edge, upper, data, spec, epochs=30, seed=0)
    found = evaluate(trained.edge, trained.upper, data, batch_size=20, seed=0)
    assert found.accuracy.value > 0.95
    assert found.accuracy.n == 80
    assert (found.mcc, found.auc) == (None, None)
    some = token_scores(np.array([[1, 2], [1, 2], [5, 5]]), np.array([[1, 3], [1, 2], [5, 0]])).accuracy
    assert some.value == 4 / 5
    assert some.low < 4 / 5 < some.high


def test_no_certificate_stands_beside_gradients_of_texts(tmp_path: Path) -> None:
    """Without an epoch nothing comes up, and the noise on smashed data counts."""
    kinds = []
    for epochs in (1, 0):
        budget = SETTINGS["budget"].replace("epochs=1", f"epochs={epochs}")
        given = {**SETTINGS, "protocol": "u_shape", "budget": budget}
        (row,) = run_audit(
            defense="gaussian_noise:sigma=6,clip=1,clip_by=image",
            attack="nearest_record",
            out=tmp_path / f"{epochs}",
            **given,
        ).rows[-1:]
        assert row.certificate is not None
        kinds.append(row.certificate.kind)
        assert ("the loss predicts the texts themselves" in row.certificate.statement) == (epochs == 1)
        assert ("gradient of each place's next token" in row.doubt) == (epochs == 1)  # so it never shows "holds"
    assert kinds == ["nothing", "differential_privacy"]


def test_the_best_epoch_is_that_of_a_score_that_texts_have() -> None:
    with pytest.raises(UsageError, match="best_by=mcc has no value for predicted texts"):
        assembled(NoDefense(), protocol="u_shape", training="best_by=mcc")


def test_texts_of_one_token_have_nothing_to_learn_or_read(tmp_path: Path) -> None:
    given = {**SETTINGS, "dataset": "definitions:length=1,vocabulary=60"}
    (row,) = run_audit(defense="none", attack="tail_inversion", protocol="u_shape", out=tmp_path / "run", **given).rows
    assert row.status == "not_applicable"
    assert row.accuracy is not None
    assert (row.accuracy.low, row.accuracy.high) == (0, 1)


def test_words_of_more_places_than_memory_holds_are_those_of_the_first_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_adversary, "_MOST_SCORES", 60 * 8 * 25)  # of 10 texts in each of 10 rounds
    (row,) = run_audit(
        defense="none", attack="tail_inversion", protocol="u_shape", out=tmp_path / "run", **SETTINGS
    ).rows
    assert row.answers["label_accuracy"].n <= 2 * 10 * 7
    assert "the first 2 of 10 rounds are read, by all 60 words" in row.notes


@pytest.mark.parametrize("defense", ["none", "gaussian_noise:sigma=2"])
def test_who_knows_the_last_layer_reads_the_words(defense: str, tmp_path: Path) -> None:
    """Noise on smashed data changes nothing: the gradient is of the words."""
    attacks = ["tail_inversion", "release_clustering"]
    run = run_audit(defense=defense, attack=attacks, protocol="u_shape", out=tmp_path / "run", **SETTINGS)
    rows = {row.attack: row for row in run.rows[-2:]}
    assert rows["tail_inversion"].answers["label_accuracy"].value > 0.9
    assert "each place of a text has one: the next token" in rows["release_clustering"].reason
