"""Mixed rows of several passes by the records that they hold: two passes of three clients, written out."""

import torch

from privkit.attacks.base import View
from privkit.attacks.inversion.mixed_releases import LinkedRows


def passed(number: int, groups: list[list[int]]) -> View:
    """One pass of two places in each of two messages; an empty seat has a weight, too."""
    clients = torch.tensor(groups).repeat_interleave(2, 0)
    smashed = 10.0 * number + torch.arange(4).view(4, 1)
    weights = torch.tensor([[0.75], [0.25]]).expand(4, 2, 1)
    return View(round=number, smashed=smashed, messages=2, mixed=2, weights=weights, clients=clients)


PASSES = [passed(0, [[0, 1], [2, -1]]), passed(1, [[2, 0], [1, -1]])]


def test_rows_of_one_place_stand_together_and_empty_seats_weigh_nothing() -> None:
    linked = LinkedRows.of(PASSES)
    assert (linked.places, linked.clients, linked.mixed) == (2, 3, 2)
    assert linked.smashed.flatten().tolist() == [0, 2, 10, 12, 1, 3, 11, 13]
    assert linked.records.tolist() == [[0, 1], [2, 2], [2, 0], [1, 1], [3, 4], [5, 5], [5, 3], [4, 4]]
    assert linked.weights[..., 0].tolist() == 2 * [[0.75, 0.25], [0.75, 0.0], [0.75, 0.25], [0.75, 0.0]]


def test_parts_count_their_own_records_and_guesses_go_to_the_seats_of_a_pass() -> None:
    linked = LinkedRows.of(PASSES)
    first, second = linked.parts(3)
    assert torch.equal(first.records, second.records)
    assert first.records.tolist() == linked.records[:4].tolist()
    assert second.smashed.flatten().tolist() == [1, 3, 11, 13]
    assert len(linked.parts(6)) == 1
    images = torch.arange(6.0)  # record p·3 + c shows its own number
    assert linked.seated(images, PASSES[0]).tolist()[:4] == [0, 1, 3, 4]
    assert linked.seated(images, PASSES[1]).tolist()[:4] == [2, 0, 5, 3]


def test_joined_rounds_keep_their_rows_and_number_their_places_on() -> None:
    linked, alone = LinkedRows.of(PASSES), LinkedRows.of([passed(2, [[0, 1], [1, 0]])])  # the latter has two clients
    both = LinkedRows.joined([linked, alone])
    assert (both.places, both.clients) == (4, 3)
    assert both.records[:8].tolist() == linked.records.tolist()
    assert both.records[8:].tolist() == [[6, 7], [7, 6], [9, 10], [10, 9]]
    assert both.smashed.flatten().tolist()[8:] == [20, 22, 21, 23]
    assert torch.equal(both.weights[8:], alone.weights)
