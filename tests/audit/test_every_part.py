"""Every registered defense, protocol and model runs through a whole audit: trained, accounted, costed, scored."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privkit.audit.run import run_audit
from privkit.domains.domain import Domain
from privkit.domains.images.domain import Images
from privkit.domains.tables.domain import Tables
from privkit.domains.tokens.domain import Tokens
from privkit.parts.registry import load, part_table
from privkit.reports.schema import Row

pytestmark = pytest.mark.usefixtures("no_report")
SETTINGS: dict[str, Any] = {
    "attack": "mid_grey",
    "dataset": "tiny_digits",
    "budget": "smoke:private=120,auxiliary=120,test=80,victims=40,epochs=1",
    "training": "batch_size=5",
    "threads": 1,
}
PROVES = {
    "batch_shuffle": "permutation_count",
    "patch_shuffle": "permutation_count",
    "spectral_shuffle": "permutation_count",
    "dp_cutmixsl": "differential_privacy",
    "dp_mixsl": "differential_privacy",
    "dp_sl": "differential_privacy",
    "gaussian_noise": "differential_privacy",
    "laplace_noise": "differential_privacy",
}
"""What a defense proves with its defaults; the others nothing."""


ONE_OF_A_KIND = ["batch_shuffle", "dp_cutmixsl", "gaussian_noise", "grad_perturb", "none", "random_cutmix"]
"""What shuffles, mixes, adds noise to what is sent or comes back, and what proves nothing."""
EVERY_DEFENSE = [name if name != "blur" else "blur:factor=2" for name in sorted(part_table("defenses"))]


@pytest.mark.parametrize(
    "names", [ONE_OF_A_KIND, pytest.param(EVERY_DEFENSE, marks=pytest.mark.slow)], ids=["one of a kind", "all"]
)
def test_every_defense_goes_through_an_audit(tmp_path: Path, names: list[str]) -> None:
    settings = {**SETTINGS, "budget": "smoke:private=60,auxiliary=60,test=40,victims=20,epochs=1", "delta": 1e-4}
    run = run_audit(defense=names, protocol="psl:clients=4", out=tmp_path / "run", **settings)
    assert {(row.defense, row.status, row.reason) for row in run.rows} == {(name, "done", "") for name in names}
    for row in run.rows:
        name = row.defense.partition(":")[0]
        assert row.certificate is not None
        assert row.certificate.kind == PROVES.get(name, "nothing")
        if name in ("dp_cutmixsl", "gaussian_noise"):
            assert row.certificate.delta == 1e-4
        assert row.costs is not None
        assert row.costs.bytes_up > 0
        assert row.accuracy is not None
    assert "no attack" not in " ".join(run.failures)


QUICK_PROTOCOLS = ("cutmixsfl", "sl")
"""With mixing and averaging, and with a client after the other; test_many_clients.py has standalone clients."""


@pytest.mark.parametrize(
    "protocol",
    [p if p in QUICK_PROTOCOLS else pytest.param(p, marks=pytest.mark.slow) for p in sorted(part_table("protocols"))],
)
def test_every_protocol_goes_through_an_audit(tmp_path: Path, protocol: str) -> None:
    mixes = protocol not in ("sl", "standalone", "u_shape")
    name = protocol if protocol == "sl" else f"{protocol}:clients=4"
    run = run_audit(
        defense="random_cutmix" if mixes else "none",
        protocol=name,
        partition="dirichlet",
        out=tmp_path / "run",
        **{**SETTINGS, "budget": "smoke:private=80,auxiliary=60,test=40,victims=20,epochs=1"},
    )
    assert {row.status for row in run.rows} == {"not_applicable" if protocol == "standalone" else "done"}


DOMAINS: dict[str, Domain] = {
    "images": Images(shape=(1, 28, 28)),
    "tokens": Tokens(length=6, vocabulary=("", "?", "a", "b", "c")),
    "tables": Tables(dense=("x", "y"), ranges=((0, 1), (0, 1)), categorical=("kind",), values=(("a", "b", "c"),)),
}


MARKS = {
    "albert": pytest.mark.needs("albert"),
    "resnet50": pytest.mark.slow,
    "patch_splitnn": pytest.mark.slow,
}
"""resnet50 is a `ResNet` as others are; tests/models/test_patch_splitnn.py trains the networks of patches."""
FITTED = {"patch_splitnn": {"patch": 14, "stride": 14}}
"""Options that a model needs for 28×28 pixels."""


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(name, marks=MARKS.get(name, ()))
        for name in sorted(part_table("models"))
        if name not in ("hf", "vit_base", "t2t_vit")
    ],
)
def test_every_model_goes_through_a_round(model: str) -> None:
    """Records of the model's domain, of 28×28 pixels for networks that need more than 8; two clients, one step."""
    import torch

    from privkit.defenses.none import NoDefense
    from privkit.domains.base import Batch
    from privkit.training import Clients, SplitProtocol, TrainingSpec, evaluate, train

    split = load(part_table("models")[model])
    domain = DOMAINS["images" if split.domain == "any" else split.domain]
    classes = 2 if model == "difm" else 10
    spec = replace(split() if isinstance(split, type) else split, **FITTED.get(model, {}))
    built = spec.build(domain, classes, positions=True, seed=0)
    edge = Clients.build(built.lower, NoDefense(), domain, classes=classes, seed=0, protocol=SplitProtocol(clients=2))
    draws = torch.Generator().manual_seed(0)
    data = Batch(x=domain.random(4, draws), y=torch.arange(4) % classes, ids=torch.arange(4), domain=domain)
    trained = train(edge, built.upper, data, TrainingSpec(batch_size=2), epochs=1, seed=0)
    assert all(value == value for value in trained.curve)
    assert evaluate(edge, built.upper, data, batch_size=2, seed=0).accuracy.n == 4


ATTACKS = {
    "adaptive": "adaptive:passes=2",
    "fsha": "fsha:epochs=1",
    "gradient_matching": "gradient_matching:epoch=0",
    "jigsaw": "jigsaw:kicks=10",
    "sara": "sara:predictor_epochs=2,epochs=2",
    "jigsaw_white_box": "jigsaw_white_box:kicks=10,epochs=1",
    "mixture_posterior": "mixture_posterior:repeats=4,components=40,width=64",
    "posterior_mean": "posterior_mean:epochs=2,repeats=4",
    "ridge": "ridge:components=100,width=128,repeats=1",
    "seen_tokens": "seen_tokens:repeats=2",
    "union": "union:passes=2",
    "unmix": "unmix:passes=2",
    "white_box": "white_box:epochs=1",
}
"""How a costly attack is called here; the others by their names."""
LARGER = {"drag_reorder", "jigsaw", "jigsaw_white_box", "sara"}
"""Pieces of two pixels, as the small digits have, fit anywhere: no jigsaw wins on them."""
FLOORS = {"mean_image", "mid_grey"}
NO_IMAGES = {
    "field_order",
    "token_decoder",
    "token_search",
    "vocabulary",
}  # read no images; tests of their own hold their controls
IN_A_U_SHAPE = {"tail_inversion"}
"""Attacks on the clients' last layer, which elsewhere the server has."""
CHEAP = ["canaries", "label_leak", "member_inference", "nearest_record", "release_clustering"]
LONG = set(part_table("attacks")) - FLOORS - NO_IMAGES - set(CHEAP)
"""Attacks that take seconds here, and win and fail in tests/attacks; `small_run` has the controls of black_box."""


def attacked(attacks: list[str], folder: Path, **changes: Any) -> dict[str, Row]:
    """The rows of one audit by the names of its attacks: all of them meet the same trained model."""
    settings = {
        **SETTINGS,
        "budget": "smoke:private=200,auxiliary=400,test=100,victims=50,epochs=2,attack_epochs=4",
        "training": "batch_size=25",
        "attack": [ATTACKS.get(name, name) for name in attacks],
        **changes,
    }
    rows = run_audit(defense="none", out=folder, **settings).rows
    return {row.attack.partition(":")[0]: row for row in rows}


def rows_of(attacks: set[str], folder: Path) -> dict[str, Row]:
    """A row of each attack."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("privkit.audit.run.build", lambda folder, *rest: folder)
        rows = attacked(sorted(attacks - LARGER - IN_A_U_SHAPE), folder / "small")
        if larger := sorted(attacks & LARGER):
            rows |= attacked(larger, folder / "larger", dataset="digits")
        if u_shaped := sorted(attacks & IN_A_U_SHAPE):
            rows |= attacked(u_shaped, folder / "u_shape", protocol="u_shape")
        return rows


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    return rows_of(set(CHEAP), tmp_path_factory.mktemp("attacks"))


@pytest.fixture(scope="module")
def long_rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    return rows_of(LONG, tmp_path_factory.mktemp("long_attacks"))


@pytest.mark.parametrize(
    ("attack", "of"),
    [(attack, "rows") for attack in CHEAP]
    + [pytest.param(attack, "long_rows", marks=pytest.mark.slow) for attack in sorted(LONG)],
)
def test_every_attack_is_controlled_and_scored(request: pytest.FixtureRequest, attack: str, of: str) -> None:
    """Both controls pass and the row has numbers."""
    row = request.getfixturevalue(of)[attack]
    assert (row.status, row.reason) == ("done", "")
    decisive = {check.name: check.passed for check in row.checks if check.decisive}
    assert len(decisive) >= 2
    assert all(decisive.values()), row.checks
    assert row.recovered or row.answers


@pytest.mark.slow
def test_an_attack_gives_the_same_row_again_and_in_other_company(tmp_path: Path) -> None:
    company = attacked(["exploit", *CHEAP[::-1], "ridge"], tmp_path / "company")
    assert attacked(CHEAP, tmp_path / "again") == {name: company[name] for name in CHEAP}


@pytest.mark.slow
@pytest.mark.parametrize(
    "defenses", [["spectral_shuffle:where=image,patch=2"], ["spectral_shuffle", "blur:factor=2"]], ids="+".join
)
@pytest.mark.usefixtures("no_controls")
def test_a_white_box_knows_what_a_defense_makes_of_every_image_alone(tmp_path: Path, defenses: list[str]) -> None:
    """A transform is public: without it, what is released fits no image."""
    settings = {
        **SETTINGS,
        "budget": "smoke:private=200,auxiliary=400,test=100,victims=20,epochs=2",
        "attack": "white_box:epochs=2,total_variation=0.01,l2=0.1",
    }
    rows = run_audit(defense=defenses, out=tmp_path / "run", **settings).rows
    assert [row.defense for row in rows] == ["none", *defenses]
    for row in rows:
        assert (row.status, row.reason) == ("done", "")
        beaten = {check.name: check.passed for check in row.checks}
        assert beaten["beats_mean_image"], row.checks
