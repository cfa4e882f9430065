"""A vertical split: a party reads its own columns, and is given no more than its own part."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privkit.audit.goals import label_adversary
from privkit.audit.run import run_audit
from privkit.domains.images.domain import Images
from privkit.domains.tables.domain import Tables
from privkit.domains.tokens.domain import Tokens
from privkit.errors import UsageError
from privkit.models.vertical import Parties, Vertical, parties_of
from privkit.reports.schema import Row
from tests.small import SMALL, generator

CARS = Tables(
    dense=("mpg", "weight", "power"),
    ranges=((0.0, 1.0),) * 3,
    categorical=("fuel", "maker"),
    values=(("gas", "oil"), ("a", "b", "c")),
)
PICTURES = Images(shape=(3, 8, 9))


@pytest.mark.parametrize("domain", [CARS, PICTURES], ids=["table", "images"])
@pytest.mark.parametrize("parties", [2, 3, 5])
def test_each_part_follows_from_one_party_s_columns_alone(domain: Any, parties: int) -> None:
    split = Vertical(parties=parties, width=4).build(domain, 3, positions=True, seed=0)
    assert isinstance(split.lower, Parties)
    x = domain.random(6, generator())
    sent, covered = split.lower(x), torch.zeros_like(x)
    assert sent.shape == (6, 4 * parties)
    for number in range(parties):
        own = split.lower.of(x, [number])
        covered += own
        changed = split.lower(own).unflatten(1, (parties, 4))
        same = [torch.equal(changed[:, p], sent.unflatten(1, (parties, 4))[:, p]) for p in range(parties)]
        assert same[number]
    assert torch.equal(covered, x)  # each column has one party
    others = split.lower(split.lower.of(x, range(1, parties))).unflatten(1, (parties, 4))
    assert not torch.equal(others[:, 0], sent.unflatten(1, (parties, 4))[:, 0])


@pytest.mark.parametrize("aggregate", ["concatenate", "sum"])
def test_the_server_joins_what_the_parties_send(aggregate: Any) -> None:
    split = Vertical(width=4, hidden=5, aggregate=aggregate).build(PICTURES, 3, positions=True, seed=0)
    sent = torch.rand(6, 8, generator=generator())
    joined = sent if aggregate == "concatenate" else sent[:, :4] + sent[:, 4:]
    _, _, first, _, last = split.upper.children()
    assert torch.equal(split.upper(sent), last(first(joined.relu()).relu()))


def plain(strip: Tensor, convolutions: list[nn.Module], last: nn.Module) -> Tensor:
    """A party's three layers, written out."""
    maps = convolutions[1](convolutions[0]((strip - 0.5) / 0.5).relu()).relu()
    sent: Tensor = last(nn.functional.adaptive_avg_pool2d(maps, 4).flatten(1))
    return sent


def layers(module: nn.Module) -> list[nn.Module]:
    return [part for part in module.modules() if isinstance(part, nn.Conv2d | nn.Linear)]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_the_whole_network_is_the_same_for_each_cut(cut: int) -> None:
    """Weights and outputs, to the last bit; what a party sends follows from its strip alone, and is one vector."""
    x = PICTURES.random(6, generator())
    whole = Vertical(parties=3, width=4).build(PICTURES, 3, positions=True, seed=0)
    split = Vertical(parties=3, width=4, cut=cut).build(PICTURES, 3, positions=True, seed=0)
    sent = split.lower(x)
    assert sent.shape == (6, 3 * {1: 16 * 8 * 3, 2: 32 * 4 * 4, 3: 4}[cut])
    assert [len(layers(split.lower)), len(layers(split.upper))] == [3 * cut, 11 - 3 * cut]
    assert torch.equal(split.upper(sent), whole.upper(whole.lower(x)))
    first, second, last = layers(whole.lower)[:3]
    torch.testing.assert_close(whole.lower(x)[:, :4], plain(x[..., :3], [first, second], last), rtol=0, atol=0)
    assert isinstance(split.lower, Parties)
    alone = split.lower(split.lower.of(x, [1])).unflatten(1, (3, -1))
    assert torch.equal(alone[:, 1], sent.unflatten(1, (3, -1))[:, 1])


@pytest.mark.parametrize(
    ("domain", "options", "says"),
    [
        (PICTURES, {"parties": 2, "cut": 1}, "cut=1 sends maps as wide as the strips, and parties=2 cannot share 9"),
        (CARS, {"cut": 2}, "cut=2 is of a strip's layers, and columns of a table have one; leave cut out"),
    ],
)
def test_cuts_that_do_not_exist_are_refused(domain: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Vertical(**options).build(domain, 2, positions=True, seed=0)


@pytest.mark.parametrize(
    ("domain", "parties", "says"),
    [
        (CARS, 6, "parties=6 need as many columns, and a record has 5"),
        (PICTURES, 10, "parties=10 need as many columns of pixels, and a record has 9"),
        (Tokens(length=4, vocabulary=("a", "b", "c")), 2, "vertical splits images and table rows"),
    ],
)
def test_records_that_cannot_be_shared_out_are_refused(domain: Any, parties: int, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Vertical(parties=parties).build(domain, 2, positions=True, seed=0)


def test_other_models_have_no_parties() -> None:
    assert parties_of(nn.Sequential(nn.Flatten())) is None


ATTACKS = ("release_clustering", "model_completion", "label_leak:at=lower,epoch=0", "gradient_matching:epoch=0")


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Row], dict[str, Any]]:
    """An audit whose adversary is the second of three parties, and what each attack was given."""
    given: dict[str, Any] = {}
    inner = label_adversary.to_parties

    def watched(seen: Any, parties: Parties, edge: Any) -> Any:
        given["before"], given["after"] = seen, inner(seen, parties, edge)
        return given["after"]

    settings = SMALL | {"budget": "smoke:private=800,epochs=1", "attack": ATTACKS[:3], "parts": "part_2"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(label_adversary, "to_parties", watched)
        run = run_audit(
            defense="split_parts:parts=3", model="vertical:parties=3,width=64", out=_out(tmp_path_factory), **settings
        )
    return {row.attack: row for row in run.rows if row.defense != "none"}, given


def _out(factory: pytest.TempPathFactory) -> Path:
    return factory.mktemp("vertical") / "run"


def test_a_party_is_given_its_columns_its_outputs_and_its_gradients(
    audited: tuple[dict[str, Row], dict[str, Any]],
) -> None:
    before, after = audited[1]["before"], audited[1]["after"]
    for view, whole in zip(after.views, before.views, strict=True):
        assert torch.equal(view.smashed, whole.smashed[:, 64:128])
        assert torch.equal(view.cut_gradient, whole.cut_gradient[:, 64:128])
    hidden: Tensor = after.auxiliary[..., :3]  # of 8 columns of pixels the second party has three, from the fourth on
    assert not hidden.any()
    assert not after.auxiliary[..., 6:].any()
    assert torch.equal(after.auxiliary[..., 3:6], before.auxiliary[..., 3:6])
    assert after.upper is None
    own = after.lower.eval()
    own.load_state_dict(after.lower_weights[0])
    rows = len(after.views[0].smashed)
    torch.testing.assert_close(own(after.auxiliary[:rows]), after.views[0].smashed, rtol=1e-4, atol=1e-5)


def test_one_party_names_the_labels_from_its_own_gradients(audited: tuple[dict[str, Row], dict[str, Any]]) -> None:
    row = audited[0]["release_clustering"]
    assert row.answers["label_accuracy"].value > 0.8  # .999 and more with each of 20 seeds
    assert any("the adversary is part_2 of a vertical split" in note for note in row.notes)


@pytest.mark.parametrize(
    ("defense", "says"),
    [
        ("split_parts:parts=3", "use split_parts:parts=2, which gives each party's output a name"),
        ("orthogonal_map+split_parts", "acts on the outputs of all parties together, so no part belongs to one party"),
        ("disco+split_parts", "disco acts on the outputs of all parties together"),
        ("clip:clip_by=image+split_parts", "clip acts on the outputs of all parties together"),
        ("gaussian_noise:clip_by=image,clip=1+split_parts", "gaussian_noise acts on the outputs of all parties"),
    ],
)
def test_parts_that_are_not_the_parties_are_refused(tmp_path: Path, defense: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        run_audit(defense=defense, model="vertical", out=tmp_path / "run", **SMALL)
