"""The truth stays outside of an attack."""

from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar

import pytest
import torch
from torch import Generator, nn

from privkit.attacks.base import Mounting, Session, known_to
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction
from privkit.audit.run import run_audit
from privkit.audit.seed_data import prepare
from privkit.registry import load, table
from privkit.settings import resolve
from privkit.training import Clients
from privkit.wire.channel import black_box_query, record, shared_lower
from privkit.wire.hijack import imitated
from tests.audit.audits import registered
from tests.audit.test_every_part import ATTACKS
from tests.small import SMALL


@dataclass(frozen=True, kw_only=True)
class Spy:
    """An attack that looks for the truth everywhere it can reach, and keeps what it was given."""

    name: ClassVar[str] = "spy"
    goal: ClassVar[str] = "reconstruct"
    mounting: ClassVar[ImageMounting] = Mounting(ignores_views=True)
    needs: ClassVar[frozenset[str]] = frozenset()
    uses: ClassVar[frozenset[str]] = frozenset({"auxiliary", "auxiliary_labels", "query", "lower", "upper", "imitate"})
    seen: ClassVar[list[ImageObservation]] = []

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        type(self).seen.append(observation)
        n = sum(len(view.smashed) for view in observation.views)
        return Reconstruction(images=torch.full((n, *observation.image_shape), 0.5))


def reachable(*roots: Any) -> list[torch.Tensor]:
    """Every tensor that can be reached from what an attack is given, closures and modules included."""
    found, queue, known = [], list(roots), set()
    while queue:
        thing = queue.pop()
        if id(thing) in known:
            continue
        known.add(id(thing))
        if isinstance(thing, torch.Tensor):
            found.append(thing)
        elif isinstance(thing, nn.Module):
            queue += [*thing.parameters(), *thing.buffers(), *vars(thing).values()]
        elif isinstance(thing, FunctionType):
            queue += [*(cell.cell_contents for cell in thing.__closure__ or ()), *(thing.__defaults__ or ())]
        elif isinstance(thing, dict):
            queue += thing.values()
        elif isinstance(thing, list | tuple | set):
            queue += thing
        elif hasattr(thing, "__dict__"):
            queue += vars(thing).values()
    return found


@pytest.mark.usefixtures("no_report")
def test_no_private_image_can_be_reached_from_what_an_attack_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered(monkeypatch, Spy)
    Spy.seen.clear()
    config = resolve({"defense": "batch_shuffle", "attack": "spy", **SMALL})
    run_audit(config, out=tmp_path / "run")
    private = prepare(config, 0, torch.device("cpu")).splits.private
    images = private.x.flatten(1)

    def leaks(*given: Any) -> bool:
        tensors = reachable(*given)
        assert len(tensors) > 10  # the client's weights, the views, the auxiliary images
        return any(
            (tensor.numel() % 64 == 0 and (tensor.reshape(-1, 64)[:, None] == images[None]).all(2).any())
            or (tensor.dtype == torch.int64 and tensor.ndim == 1 and torch.isin(tensor, private.ids).any())
            for tensor in tensors
        )

    assert len(Spy.seen) == 2
    altered: Any = replace  # by queries of a wrong type
    for observation in Spy.seen:
        assert not leaks(observation)
        victim, ids = private.x[7:8], private.ids[:5]
        kept = observation.query
        assert leaks(altered(observation, query=lambda x, g, kept=kept, leak=victim: (kept, leak)))
        assert leaks(altered(observation, query=lambda x, g: (kept, ids)))  # noqa: B023


QUICK = {"black_box", "mean_image", "mid_grey", "nearest_record"}
TRAINS_CLIENTS = {"fsha"}
"""Attacks whose clients train on private images, so that what they are shown follows from these by design."""
RECONSTRUCT = sorted(
    name
    for name, target in ((name, load(target)) for name, target in table("attacks").items())
    if target.goal == "reconstruct" and "images" in target().mounting.domains and name not in TRAINS_CLIENTS
)


@pytest.mark.parametrize(
    "attack", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in RECONSTRUCT]
)
def test_other_truth_under_the_same_views_gives_the_same_bits(attack: str) -> None:
    """The private images are replaced after the wire was recorded: every attack answers bit for bit the same."""
    config = resolve({"defense": "batch_shuffle", "attack": ATTACKS.get(attack, attack), **SMALL})
    outputs = []
    for replaced in (False, True):
        setting = prepare(config, 0, torch.device("cpu"))
        defense, spec = config.defenses[1].spec, config.attacks[0].spec
        domain = setting.splits.domain
        model = config.model.spec.build(domain, 10, positions=False, seed=0)
        edge = Clients.build(model.lower, defense, domain, classes=10, seed=0)
        held = {
            "auxiliary": setting.auxiliary.x,
            "auxiliary_labels": setting.auxiliary.y,
            "query": black_box_query(edge),
            "lower": shared_lower(edge),
            "upper": model.upper.requires_grad_(False),
            "upper_history": [model.upper],
            "imitate": imitated(edge, domain),
        }
        knowledge = ImageObservation(
            image_shape=(1, 8, 8),
            batch_size=50,
            views=record(edge, setting.victims, batch_size=50, seed=0, passes=spec.mounting.passes).views,
            **{name: value for name, value in held.items() if name in known_to(spec)},
        )
        if replaced:
            setting.victims.x.copy_(torch.rand_like(setting.victims.x))
            setting.splits.private.x.copy_(torch.rand_like(setting.splits.private.x))
        outputs.append(spec.run(knowledge, Generator().manual_seed(0)).images)
    assert torch.equal(*outputs)


def test_every_attack_on_images_is_asked() -> None:
    assert {"adaptive", "black_box", "fora", "jigsaw", "pcat", "sdar", "unmix", "unsplit", "white_box"} <= set(
        RECONSTRUCT
    )
