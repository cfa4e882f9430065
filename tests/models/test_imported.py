"""A user's own pair of segments: built, refused in one sentence, and saved like any other."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from privkit.domains.images.domain import Images
from privkit.errors import UsageError
from privkit.files.storage import load_module, save_module
from privkit.models.imported import ImportedPair

SHAPE = (1, 28, 28)
IMAGES = Images(shape=SHAPE)
Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Put a module into the current folder; names must differ between tests, since imports are cached."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def put(name: str, source: str) -> None:
        (tmp_path / f"{name}.py").write_text("import torch\nfrom torch import nn\n" + source)

    return put


def test_a_users_own_pair(write: Write) -> None:
    write(
        "my_nets",
        "def lower(image_shape, positions):\n    return nn.Conv2d(image_shape[0], 8, 7, 7)\n"
        "class Upper(nn.Sequential):\n    def __init__(self, classes):\n"
        "        super().__init__(nn.Flatten(), nn.LazyLinear(classes))\n"
        "number = 3\n",
    )
    split = ImportedPair(lower="my_nets.lower", upper="my_nets.Upper").build(IMAGES, 5, positions=True, seed=0)
    assert split.upper(split.lower(torch.zeros(2, *SHAPE))).shape == (2, 5)
    assert split.hides_places is None
    for bad, reason in [
        ("my_nets.absent", "cannot import"),
        ("no_such_module.Lower", "cannot import"),
        ("my_nets.number", "must be an nn.Module class"),
        ("builtins.dict", "must give a torch.nn.Module"),
    ]:
        with pytest.raises(UsageError, match=reason):
            ImportedPair(lower=bad, upper="my_nets.Upper").build(IMAGES, 5, positions=True, seed=0)


@pytest.mark.parametrize(
    ("name", "source", "reason"),
    [
        ("exits", "import sys\nsys.exit(0)\n", "cannot import the segment exits.Lower: SystemExit: 0"),
        (
            "fails",
            "raise RuntimeError('two\\nlines')\n",
            "cannot import the segment fails.Lower: RuntimeError: two lines",
        ),
        ("broken", "def Lower(:\n", "cannot import the segment broken.Lower: SyntaxError"),
        (
            "explodes",
            "class Lower(nn.Module):\n    def __init__(self):\n        raise RuntimeError('boom\\nsecond')\n",
            "cannot build the segment explodes.Lower: RuntimeError: boom second",
        ),
        ("leaves", "def Lower():\n    raise SystemExit\n", "cannot build the segment leaves.Lower: SystemExit"),
    ],
)
def test_a_module_that_fails_is_named_in_one_sentence(write: Write, name: str, source: str, reason: str) -> None:
    write(name, source)
    with pytest.raises(UsageError) as caught:
        ImportedPair(lower=f"{name}.Lower", upper="torch.nn.Flatten").build(IMAGES, 5, positions=True, seed=0)
    assert str(caught.value).startswith(reason)
    assert "\n" not in str(caught.value)


def test_a_lower_segment_that_shows_positions_to_a_shuffle_is_refused(write: Write) -> None:
    write(
        "embedding",
        "class Lower(nn.Module):\n"
        "    def __init__(self, image_shape, positions):\n"
        "        super().__init__()\n"
        "        self.embed = nn.Conv2d(image_shape[0], 32, 7, 7)\n"
        "        self.places = nn.Parameter(torch.zeros(16, 32)) if positions or self.deaf else None\n"
        "    deaf = True\n"
        "    def forward(self, x):\n"
        "        tokens = self.embed(x).flatten(2).transpose(1, 2)\n"
        "        return tokens if self.places is None else tokens + self.places\n"
        "class Honest(Lower):\n    deaf = False\n",
    )

    def build(lower: str, positions: bool) -> bool | None:
        pair = ImportedPair(lower=f"embedding.{lower}", upper="torch.nn.Flatten")
        return pair.build(IMAGES, 5, positions=positions, seed=0).hides_places

    assert build("Lower", positions=True) is None
    assert build("Honest", positions=False) is True
    with pytest.raises(UsageError, match=r"embedding\.Lower.s tokens reveal their places.*`positions`"):
        build("Lower", positions=False)


class Tied(nn.Module):
    """Two names for one weight."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        with torch.no_grad():
            self.first.weight.fill_(seed)
        self.second.weight = self.first.weight


def test_tied_weights_are_saved_and_read_back(tmp_path: Path) -> None:
    saved, read = Tied(1), Tied(2)
    known = save_module(tmp_path / "tied.safetensors", saved)
    load_module(tmp_path / "tied.safetensors", read, known)
    assert read.second.weight is read.first.weight
    assert all(torch.equal(a, b) for a, b in zip(saved.state_dict().values(), read.state_dict().values(), strict=True))
