"""A typo is refused before torch is imported, in the words of the check that comes later."""

import dataclasses
import subprocess
import sys

import pytest

from privkit import early
from privkit.errors import UsageError
from privkit.registry import load, parse, table

WRONG = [
    {"defense": "batch_shufle"},
    {"defense": ["none", "batch_shuffle:kep=1"]},
    {"attack": {"name": "black_box", "epoch": 3}},
    {"dataset": "digit"},
    {"dataset": "image_folder:sise=3"},
    {"model": "vit_micr"},
    {"protocol": "psl:client=3"},
    {"partition": "dirichlet:alfa=1"},
    {"auxiliary": "digit"},
    {"training": "batch_sise=3"},
    {"training": {"batch_sise": 3}},
    {"budget": "smal"},
    {"budget": "small:epoch=3"},
    {"device": "gpu"},
    {"gate": "sim<3"},
    {"seed": -1},
    {"threads": 0},
]


def test_no_typo_costs_an_import_of_torch() -> None:
    code = (
        "import sys\nfrom privkit.settings import resolve\nfrom privkit.errors import UsageError\n"
        f"for settings in {WRONG!r}:\n"
        "    try:\n        resolve(settings)\n"
        "    except UsageError:\n        pass\n"
        "    else:\n        print('taken', settings)\n"
        "    assert 'torch' not in sys.modules, settings"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("kind", early.SETTINGS.values())
def test_the_fields_read_from_the_source_are_those_of_the_class(kind: str) -> None:
    for name, target in table(kind).items():
        found = {field.name for field in dataclasses.fields(load(target))}
        assert early.fields(target) == found, name


def test_both_checks_say_the_same() -> None:
    for given in ("batch_shufle", "batch_shuffle:kep=1"):
        said = []
        for check in (lambda given: early.check({"defense": given}), lambda given: parse("defenses", given)):
            with pytest.raises(UsageError) as caught:
                check(given)
            said.append(str(caught.value))
        assert said[0] == said[1]
