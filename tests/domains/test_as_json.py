"""What one record is, as JSON: it comes back as it was, and what is not a domain is refused in one sentence."""

import json
import re
from typing import Any

import pytest

from privkit.domains.as_json import domain_from_json, domain_to_json
from privkit.domains.domain import Domain
from privkit.domains.images.domain import Images
from privkit.domains.tables.domain import Tables
from privkit.domains.tokens.domain import Tokens

WORDS = Tokens(length=3, vocabulary=("", "?", "ja", "naïve"), separator="")
CARS = Tables(dense=("power",), ranges=((0, 200.5),), categorical=("color",), values=(("red", "blue"),))


@pytest.mark.parametrize("domain", [Images(shape=(3, 8, 4)), WORDS, CARS, Tables(dense=("x",), ranges=((0, 1),))])
def test_a_domain_comes_back_as_it_was(domain: Domain) -> None:
    assert domain_from_json(json.loads(json.dumps(domain_to_json(domain)))) == domain


NO_DOMAINS: list[tuple[Any, str]] = [
    ([], "name must be one of images, tokens, tables, got None"),
    ({"name": ["tokens"]}, "name must be one of images, tokens, tables, got ['tokens']"),
    ({"name": "sounds"}, "name must be one of images, tokens, tables, got 'sounds'"),
    ({"name": "tokens", "length": 3}, "vocabulary: "),
    ({"name": "images", "shape": [1, 8, -8]}, "shape.2: input should be greater than or equal to 1"),
    ({"name": "images", "shape": [1, 8]}, "shape.2: field required"),
    (domain_to_json(WORDS) | {"size": 3}, "'size' is not a field of tokens, which have length, vocabulary, separator"),
    (domain_to_json(WORDS) | {"length": "3"}, "length: input should be a valid integer"),
    (domain_to_json(WORDS) | {"length": 0}, "a text has a length >= 1"),
    (domain_to_json(WORDS) | {"vocabulary": ["a"]}, "got length=3 and 1 tokens"),
    (domain_to_json(WORDS) | {"vocabulary": ["", "?", 7]}, "vocabulary.2: input should be a valid string"),
    (domain_to_json(CARS) | {"ranges": []}, "ranges has 0 entries for 1 columns; give one each"),
    (
        domain_to_json(CARS) | {"ranges": [[1, 0]]},
        "each range of a dense column is two finite numbers, the lower one first",
    ),
    (domain_to_json(CARS) | {"ranges": [[0, float("nan")]]}, "each range of a dense column is two finite numbers"),
    (domain_to_json(CARS) | {"values": [[]]}, "each categorical column has at least one category"),
    (domain_to_json(CARS) | {"values": [["red"], ["blue"]]}, "values has 2 entries for 1 columns; give one each"),
    ({"name": "tables", "dense": [], "ranges": []}, "a table has at least one column"),
]


@pytest.mark.parametrize(("given", "sentence"), NO_DOMAINS, ids=[str(number) for number in range(len(NO_DOMAINS))])
def test_what_is_no_domain_is_refused(given: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)) as told:
        domain_from_json(given)
    assert "\n" not in str(told.value)
