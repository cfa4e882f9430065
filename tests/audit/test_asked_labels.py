"""Rounds of two or three clients, written out: which rows a label attack is asked about, and what it is given."""

from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import Mounting, Scores, Session, View
from privkit.attacks.goals.labels import LabelObservation
from privkit.attacks.labels.label_leak import LabelLeak
from privkit.audit.goals.label_adversary import other_labels
from privkit.audit.goals.label_answers import best_cut
from privkit.audit.goals.labels import asked
from privkit.wire.transcript import RecordedRound, Transcript

CONTEXT: Any = SimpleNamespace(
    config=SimpleNamespace(auxiliary="disjoint", protocol=SimpleNamespace(spec=SimpleNamespace(gradient="unicast"))),
    seed_data=SimpleNamespace(splits=SimpleNamespace(domain=SimpleNamespace(shape=(1, 2, 2)))),
    round_size=6,
    generator=Generator,
    upper=nn.Identity,
    label_shares=lambda: torch.ones(2) / 2,
)


class Asker:
    """Scores each row by its number, and keeps what it was given."""

    name: ClassVar[str] = "asker"
    goal: ClassVar[str] = "labels"
    needs: ClassVar[frozenset[str]] = frozenset({"known_rows", "known_labels"})
    uses: ClassVar[frozenset[str]] = frozenset()
    mounting: ClassVar[Mounting[LabelObservation, Scores]] = Mounting(labeled=1)
    positive: ClassVar[int] = 1
    epoch: ClassVar[int] = -1

    def __init__(self) -> None:
        self.given: list[LabelObservation] = []

    def run(self, observation: LabelObservation, generator: Generator, session: Session | None = None) -> Scores:
        self.given.append(observation)
        rows = torch.arange(sum(len(view.smashed) for view in observation.views))
        return Scores(values=rows.double(), examples=rows)


def recorded(labels: list[int], clients: int, members: Tensor, mixed: int = 1) -> RecordedRound:
    rows = len(labels) // clients
    views = [View(round=0, smashed=torch.zeros(rows, 2), cut_gradient=torch.ones(rows, 2)) for _ in range(clients)]
    whole = View(round=0, smashed=torch.zeros(len(members), 2), mixed=mixed)
    return RecordedRound(view=whole, received=tuple(views), members=members, labels=torch.tensor(labels))


def test_an_attack_is_asked_about_the_rows_whose_labels_it_was_not_given() -> None:
    """Of each client it knows the first row of either label, and nothing that it does not declare."""
    transcript, attack = Transcript(), Asker()
    for labels in ([0, 1, 1, 1, 0, 0], [1, 0, 0, 0, 1, 1]):
        transcript.rounds.append(recorded(labels, 2, torch.arange(6).unsqueeze(1)))
    cell = SimpleNamespace(attack=SimpleNamespace(spec=attack))
    context: Any = SimpleNamespace(**vars(CONTEXT), cell=cell)
    scores, truth, batches = asked(transcript, context, lambda name: None)  # type: ignore[arg-type, return-value]
    assert scores.examples.tolist() == [2, 3, 4, 5, 8, 9, 10, 11]
    assert scores.values.tolist() == [2, 3, 4, 5, 2, 3, 4, 5]
    assert truth.tolist() == [1, 1, 0, 0, 0, 0, 1, 1]
    assert batches.tolist() == [0, 2, 2, 2, 1, 3, 3, 3]
    for given, known in zip(attack.given, ([0, 1], [1, 0]), strict=True):
        assert given.known_rows is not None
        assert given.known_labels is not None
        assert given.known_rows.tolist() == [0, 1]
        assert given.known_labels.tolist() == known
        undeclared = (given.upper, given.lower, given.auxiliary, given.own_labels, given.label_shares)
        assert undeclared == (None,) * 5


def test_the_other_label_is_that_of_the_row_in_the_same_message() -> None:
    """The third client's records are alone in their messages."""
    transcript = Transcript()
    members = torch.tensor([[0, 3], [1, 2], [4, -1], [5, -1]])
    transcript.rounds.append(recorded([10, 11, 12, 13, 14, 15], 3, members, mixed=2))
    assert other_labels(Asker(), transcript, CONTEXT, 3).tolist() == [[13, 12], [11, 10], [-1, -1]]  # type: ignore[arg-type]


def test_reversed_scores_at_one_cut_leak_more_than_weak_ones_at_the_other() -> None:
    """A norm has no sign: an AUC of 0 tells every label, one of .625 hardly any."""
    truth, rounds, at = torch.tensor([0, 0, 1, 1]), torch.zeros(4).long(), torch.arange(4)
    weak, opposite = (Scores(values=torch.tensor(v), examples=at) for v in ([1.0, 2.0, 2.0, 1.5], [3.0, 4.0, 1.0, 2.0]))
    auc, _, (scores, _, _) = best_cut(
        LabelLeak(), ("second", "first"), [{"second": (weak, truth, rounds), "first": (opposite, truth, rounds)}], None
    )
    assert auc == {"second": 0.625, "first": 0.0}
    assert scores is opposite
