"""Every registered defense, protocol and model runs through a whole audit: trained, accounted, costed, scored."""

from pathlib import Path
from typing import Any

import pytest

from privkit.audit.run import run_audit
from privkit.domains.images.domain import Images
from privkit.registry import load, table

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


def test_every_defense_goes_through_an_audit(tmp_path: Path) -> None:
    names = [name if name != "blur" else "blur:factor=2" for name in sorted(table("defenses"))]
    run = run_audit(defense=names, protocol="psl:clients=4", out=tmp_path / "run", **SETTINGS)
    assert {(row.defense, row.status, row.reason) for row in run.rows} == {(name, "done", "") for name in names}
    for row in run.rows:
        name = row.defense.partition(":")[0]
        assert row.proves is not None
        assert row.proves.kind == PROVES.get(name, "nothing")
        assert row.costs is not None
        assert row.costs.bytes_up > 0
        assert row.accuracy is not None
    assert "no attack" not in " ".join(run.failures)


@pytest.mark.parametrize("protocol", sorted(table("protocols")))
def test_every_protocol_goes_through_an_audit(tmp_path: Path, protocol: str) -> None:
    mixes = protocol not in ("sl", "standalone")
    name = protocol if protocol == "sl" else f"{protocol}:clients=4"
    run = run_audit(
        defense="random_cutmix" if mixes else "none",
        protocol=name,
        partition="dirichlet",
        out=tmp_path / "run",
        **SETTINGS,
    )
    assert {row.status for row in run.rows} == {"not_applicable" if protocol == "standalone" else "done"}


@pytest.mark.parametrize("model", [name for name in sorted(table("models")) if name not in ("vit_base", "t2t_vit")])
def test_every_model_goes_through_a_round(model: str) -> None:
    """Digits of 28×28 for networks that need more than 8 pixels; two clients, one step, one test."""
    import torch

    from privkit.defenses.none import NoDefense
    from privkit.domains.base import Batch
    from privkit.training import Clients, SplitProtocol, TrainingSpec, evaluate, train

    shape = (1, 28, 28)
    split = load(table("models")[model])
    domain = Images(shape=shape)
    built = (split() if isinstance(split, type) else split).build(domain, 10, positions=True, seed=0)
    edge = Clients.build(built.lower, NoDefense(), domain, classes=10, seed=0, protocol=SplitProtocol(clients=2))
    draws = torch.Generator().manual_seed(0)
    data = Batch(x=torch.rand(4, *shape, generator=draws), y=torch.arange(4), ids=torch.arange(4))
    trained = train(edge, built.upper, data, TrainingSpec(batch_size=2), epochs=1, seed=0)
    assert all(value == value for value in trained.curve)
    assert evaluate(edge, built.upper, data, batch_size=2, seed=0).accuracy.n == 4


@pytest.mark.parametrize("attack", sorted(set(table("attacks")) - {"mean_image", "mid_grey"}))
def test_every_attack_is_controlled_and_scored(tmp_path: Path, attack: str) -> None:
    """Both controls pass and the row has numbers; a cheap attack gives the same ones again."""
    settings = {
        **SETTINGS,
        "budget": "smoke:private=200,auxiliary=400,test=100,victims=50,epochs=2,attack_epochs=4",
        "training": "batch_size=25",
        "attack": attack,
        **LARGER.get(attack, {}),
    }
    row = run_audit(defense="none", out=tmp_path / "one", **settings).rows[0]
    assert (row.status, row.reason) == ("done", "")
    decisive = {gate.name: gate.passed for gate in row.gates if gate.decisive}
    assert len(decisive) >= 2
    assert all(decisive.values()), row.gates
    assert row.recovers or row.answers
    if attack not in LARGER:
        assert row == run_audit(defense="none", out=tmp_path / "two", **settings).rows[0]
    assert load(table("attacks")[attack]).needs <= KNOWABLE


@pytest.mark.parametrize(
    "defense",
    ["spectral_shuffle", "spectral_shuffle:where=image,patch=2", "blur:factor=2"],
)
def test_a_white_box_knows_what_a_defense_makes_of_every_image_alone(tmp_path: Path, defense: str) -> None:
    """A transform is public: without it, what is released fits no image."""
    settings = {
        **SETTINGS,
        "budget": "smoke:private=200,auxiliary=400,test=100,victims=20,epochs=2",
        "attack": "white_box:epochs=4",
    }
    row = run_audit(defense=defense, out=tmp_path / "run", **settings).rows[1]
    assert (row.status, row.reason) == ("done", "")
    beaten = {gate.name: gate.passed for gate in row.gates}
    assert beaten["beats_mean_image"], row.gates


LARGER: dict[str, dict[str, Any]] = {
    "adaptive": {"attack": "adaptive:passes=2"},
    "fsha": {"attack": "fsha:epochs=1"},
    "jigsaw": {"attack": "jigsaw:kicks=10", "dataset": "digits"},
    "jigsaw_white_box": {"attack": "jigsaw_white_box:kicks=10,epochs=1", "dataset": "digits"},
}
"""Pieces of two pixels, as the small digits have, fit anywhere: no jigsaw wins on them."""
KNOWABLE = {"auxiliary", "auxiliary_labels", "query", "lower", "upper", "clients", "rows", "present", "absent"} | {
    "candidates",
    "candidate_labels",
    "predict",
}
