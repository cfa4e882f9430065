"""What an attack declares is checked before it is mounted; a third party's fault becomes one sentence."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import pytest

from privkit.attacks.base import Mounting, known_to
from privkit.attacks.declaration import check_declared
from privkit.attacks.goals import goal_of
from privkit.attacks.inversion.floors import MidGrey
from privkit.attacks.inversion.sdar import SDAR
from privkit.attacks.inversion.white_box import WhiteBox
from privkit.attacks.membership.canaries import Canaries
from privkit.errors import UsageError
from privkit.parts.registry import Component, parse, part_table
from privkit.settings.resolve import resolve


@pytest.mark.parametrize("name", sorted(part_table("attacks")))
def test_every_attack_declares_what_it_needs_and_how_it_is_mounted(name: str) -> None:
    attack = parse("attacks", name).spec
    check_declared(attack)
    assert known_to(attack) <= {field.name for field in fields(goal_of(attack).observation)}
    if attack.mounting.start is not None:
        check_declared(attack.mounting.start)
        assert attack.mounting.start.mounting.start is None  # a start has nothing left to leave out
    if attack.mounting.control is not None:
        check_declared(attack.mounting.control(4))


def wrong(**declared: Any) -> Any:
    """Mid-grey with other declarations; None takes one away."""

    @dataclass(frozen=True, kw_only=True)
    class Wrong:
        name: ClassVar[str] = "wrong"
        run: ClassVar[Callable[..., Any]] = MidGrey.run

    for name in ("goal", "needs", "uses", "mounting"):
        if (value := declared.get(name, getattr(MidGrey, name))) is not None:
            setattr(Wrong, name, value)
    return Wrong()


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ({"goal": None}, "it declares no goal; an attack declares name, goal, needs, uses, mounting, run"),
        ({"goal": "fame"}, "module:object or one of reconstruct, labels, membership, distinguish, got 'fame'"),
        ({"goal": "nowhere_at_all:GOAL"}, "goal nowhere_at_all:GOAL cannot be imported: No module named"),
        ({"goal": "privkit.attacks.base:View"}, "goal privkit.attacks.base:View must be a Goal, got type"),
        ({"goal": "privkit.attacks.goals.distinguish:GOAL"}, "it declares no on, which an attack with goal"),
        ({"goal": "labels"}, "it declares no positive, which an attack with goal labels must have"),
        ({"needs": {"query"}}, "needs must be a frozenset of names, got set"),
        ({"uses": frozenset({"qery"})}, "uses has 'qery', which no adversary holds; allowed are image_shape"),
        ({"mounting": {"passes": 2}}, "mounting must be a Mounting, got dict"),
        ({"mounting": Mounting(passes=0)}, "mounting.passes must be a whole number >= 1, got 0"),
        ({"mounting": Mounting(budget_share=0.5)}, "there is no field epochs"),
    ],
)
def test_what_is_missing_or_wrong_is_named(
    declared: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = wrong(**declared)
    with pytest.raises(TypeError) as caught:
        check_declared(attack)
    assert says in str(caught.value)
    part = Component(name="wrong", spec=attack, label="wrong")
    monkeypatch.setattr(
        "privkit.settings.resolve.parse", lambda kind, given: part if given == "wrong" else parse(kind, given)
    )
    monkeypatch.setattr("privkit.settings.early.check_parts", lambda settings: None)  # it knows registered names only
    with pytest.raises(UsageError) as refused:
        resolve({"attack": ["wrong"]})
    assert str(refused.value) == f"attack wrong: {caught.value}; repair the file or package that brings it"


def test_needs_follow_the_specification() -> None:
    assert "lower" not in SDAR().needs
    assert "lower" in SDAR(simulator="known").needs
    assert replace(SDAR(simulator="known"), simulator="generic").needs == SDAR().needs
    assert known_to(Canaries()) == {"rows", "present", "absent"}


def test_a_white_box_with_a_start_of_its_own_still_has_one_without_steps() -> None:
    """`start` names the first guess of a white box; the start that floors are made of is the mounting's."""
    assert WhiteBox(start="mean").mounting.start == WhiteBox(start="mean", epochs=0)
