"""Who is mixed with whom, and what a protocol refuses."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator

from privkit.errors import UsageError
from privkit.parts.registry import load, part_table
from privkit.training import SplitProtocol


@given(
    n=st.integers(1, 30),
    k=st.integers(1, 30),
    number=st.integers(0, 60),
    kind=st.sampled_from(["random", "round_robin"]),
)
def test_everybody_sits_once(n: int, k: int, number: int, kind: str) -> None:
    protocol = SplitProtocol(clients=n, grouping=kind)  # type: ignore[arg-type]
    groups = protocol.groups(min(k, n), number, Generator().manual_seed(number))
    seats = groups.flatten().tolist()
    assert sorted(seat for seat in seats if seat >= 0) == list(range(n))
    taken = (groups >= 0).sum(1).tolist()
    assert taken[:-1] == [min(k, n)] * (len(taken) - 1)
    assert taken[-1] == (protocol.unmatched(min(k, n)) or min(k, n))


@pytest.mark.parametrize("n", [2, 3, 6, 9, 10])
def test_in_a_round_robin_everybody_meets_everybody(n: int) -> None:
    protocol = SplitProtocol(clients=n, grouping="round_robin")
    rounds = n - 1 + n % 2
    met: list[tuple[int, ...]] = []
    for number in range(rounds):
        met += [tuple(sorted(pair)) for pair in protocol.groups(2, number, Generator()).tolist() if min(pair) >= 0]
    assert sorted(met) == list(combinations(range(n), 2))


def test_random_groups_pair_all_alike() -> None:
    protocol, draws = SplitProtocol(clients=4), Generator().manual_seed(0)
    partner = [0, 0, 0, 0]
    for number in range(3_000):
        for pair in protocol.groups(2, number, draws).tolist():
            if 0 in pair:
                partner[sum(pair)] += 1
    assert partner[0] == 0
    assert all(abs(count - 1_000) < 4.5 * (3_000 * 2 / 9) ** 0.5 for count in partner[1:])  # two-sided odds of 7e-6


def test_a_group_that_cannot_be_filled_is_refused_with_what_can() -> None:
    with pytest.raises(UsageError, match="only 10 of 10 send in a round; use group=2 to group=10"):
        SplitProtocol(clients=10).check_group("mixup", 11)
    with pytest.raises(UsageError, match="psl:clients=10"):
        SplitProtocol().check_group("mixup", 2)
    with pytest.raises(UsageError, match="standalone clients send nothing"):
        SplitProtocol(clients=10, upper="own").check_group("mixup", 2)
    SplitProtocol(clients=3).check_group("mixup", 2)  # one is left over, and sends alone


@pytest.mark.parametrize(
    "bad",
    [{"clients": 0}, {"lower": "handed_on", "average": "round"}, {"upper": "own", "gradient": "average"}],
    ids=str,
)
def test_what_no_protocol_is(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"clients must|handed_on|upper=own"):
        SplitProtocol(**bad)  # type: ignore[arg-type]


def test_every_registered_protocol_is_one() -> None:
    assert {type(load(target)) for target in part_table("protocols").values()} == {SplitProtocol}
