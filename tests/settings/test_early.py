"""What is refused before torch is imported (`tests/cli/test_refusals.py`) is what the later check refuses."""

import dataclasses

import pytest

from privkit.constraints import allowed
from privkit.errors import UsageError
from privkit.parts.registry import load, parse, table
from privkit.settings import early


@pytest.mark.parametrize("kind", early.SETTINGS.values())
def test_the_fields_read_from_the_source_are_those_of_the_class(kind: str) -> None:
    for name, target in table(kind).items():
        found = {field.name for field in dataclasses.fields(load(target))}
        told = early.fields(target)
        assert told is not None
        assert told.keys() == found, name


@pytest.mark.parametrize("kind", early.SETTINGS.values())
def test_the_annotations_read_from_the_source_allow_what_the_class_allows(kind: str) -> None:
    for name, target in table(kind).items():
        told = {field: hint for field, hint in (early.fields(target) or {}).items() if hint is not None}
        part = load(target)
        words = allowed(part if isinstance(part, type) else type(part))
        assert allowed(dataclasses.make_dataclass("Told", told.items(), kw_only=True)).items() <= words.items(), name


def test_both_checks_say_the_same() -> None:
    for given in ("batch_shufle", "batch_shuffle:kep=1", "batch_shuffle:keep=2", "batch_shuffle:variant=x", 3):
        said = []
        for check in (lambda given: early.check({"defense": given}), lambda given: parse("defenses", given)):
            with pytest.raises(UsageError) as caught:
                check(given)
            said.append(str(caught.value))
        assert said[0] == said[1]
