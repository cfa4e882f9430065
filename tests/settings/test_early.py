"""What is refused before torch is imported (`tests/cli/test_refusals.py`) is what the later check refuses."""

import dataclasses
import json
import math
from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from privkit.constraints import Checked, Named, allowed
from privkit.errors import UsageError
from privkit.parts.registry import PART_TABLES, load, parse
from privkit.settings import early

TRAINING = "privkit.training.spec:TrainingSpec"


def written(hint: Any) -> str | None:
    """An annotation as the index has it; None if it names a class that may need torch."""
    kind, arguments = get_origin(hint), get_args(hint)
    if hint in (bool, int, float, str, Any, NoneType):
        return "None" if hint is NoneType else "Any" if hint is Any else str(hint.__name__)
    if kind is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if kind is Annotated:
        marks = [
            "isfinite" if mark is math.isfinite else repr(mark)
            for mark in hint.__metadata__
            if isinstance(mark, str | Named) or mark is math.isfinite or type(mark).__module__ == "annotated_types"
        ]
        base = written(hint.__origin__)
        return base and (f"Annotated[{', '.join([base, *marks])}]" if marks else base)
    parts = ["..." if argument is Ellipsis else written(argument) for argument in arguments]
    if None in parts or kind not in (Union, UnionType, tuple, list, dict, Sequence):
        return None
    words = list(filter(None, parts))
    return " | ".join(words) if kind in (Union, UnionType) else f"{kind.__name__}[{', '.join(words)}]"


def entry(target: str) -> dict[str, Any]:
    """What the index has of a part."""
    part = load(target)
    cls = part if isinstance(part, type) else type(part)
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    hints = get_type_hints(cls, include_extras=True) if fields else {}
    return {
        "target": target,
        "checked": issubclass(cls, Checked),
        "fields": {field.name: written(hints[field.name]) for field in fields},
    }


def index() -> str:
    """The text of the index: a part a line."""
    kinds = {kind: dict(load(table)) for kind, table in PART_TABLES.items()} | {"training": {"training": TRAINING}}
    lines = [
        f'"{kind}": {{\n'
        + ",\n".join(f"{json.dumps(name)}: {json.dumps(entry(target))}" for name, target in sorted(table.items()))
        + "\n}"
        for kind, table in kinds.items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def test_the_index_of_parts_follows_from_the_parts() -> None:
    """If this fails, write it anew: python -m tests.settings.test_early."""
    assert early.INDEX.read_text("utf-8") == index()


@pytest.mark.parametrize("kind", early.PART_SETTINGS.values())
def test_the_annotations_of_the_index_allow_what_the_class_allows(kind: str) -> None:
    for name, part in early.indexed()[kind].items():
        known = {field: early._annotation(text) for field, text in part["fields"].items() if text is not None}
        spec = load(part["target"])
        words = allowed(spec if isinstance(spec, type) else type(spec))
        assert allowed(dataclasses.make_dataclass("Known", known.items(), kw_only=True)).items() <= words.items(), name


def test_most_values_are_checked_early() -> None:
    texts = [
        text
        for kind in early.PART_SETTINGS.values()
        for part in early.indexed()[kind].values()
        for text in part["fields"].values()
    ]
    assert sum(text is not None for text in texts) > 0.9 * len(texts)


def test_both_checks_say_the_same() -> None:
    for given in ("batch_shufle", "batch_shuffle:kep=1", "batch_shuffle:keep=2", "batch_shuffle:variant=x", 3):
        said = []
        for check in (lambda given: early.check_parts({"defense": given}), lambda given: parse("defenses", given)):
            with pytest.raises(UsageError) as caught:
                check(given)
            said.append(str(caught.value))
        assert said[0] == said[1]


if __name__ == "__main__":
    early.INDEX.write_text(index(), "utf-8")
