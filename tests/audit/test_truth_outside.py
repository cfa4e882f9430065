"""The truth stays outside of an attack."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks import base
from privkit.attacks.base import Mounting, Scores, View, known_to
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction
from privkit.attacks.hijack import fsha
from privkit.audit.goals import label_adversary, labels
from privkit.audit.goals.context import AttackContext
from privkit.audit.run import run_audit
from privkit.audit.seed_data import prepare
from privkit.parts.registry import load, part_table
from privkit.settings.resolve import resolve
from privkit.training import Clients
from privkit.wire.channel import black_box_query, record_rounds, shared_lower
from privkit.wire.hijack import LiveClients, imitated
from tests.attacks.sessions import Killed, Session
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
        self, observation: ImageObservation, generator: Generator, session: base.Session | None = None
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


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_no_private_image_can_be_reached_from_what_an_attack_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered(monkeypatch, Spy)
    Spy.seen.clear()
    budget = "smoke:private=100,auxiliary=100,test=50"
    config = resolve({"defense": "batch_shuffle", "attack": "spy", **SMALL, "budget": budget})
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
LOADED = {name: load(target) for name, target in part_table("attacks").items()}
SHUFFLED = {"fingerprints": "patch_shuffle", "union": "patch_shuffle"}
"""What an attack is mounted on that needs rows to keep their tokens; the others meet batch shuffling."""
HIJACKS = sorted(name for name, target in LOADED.items() if "clients" in target().needs)
"""Attacks that lead clients in training: what these send follows from the private images, so it is replayed."""
RECONSTRUCT = sorted(
    name
    for name, target in LOADED.items()
    if target.goal == "reconstruct" and "images" in target().mounting.domains and name not in HIJACKS
)


@pytest.mark.parametrize(
    "attack", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in RECONSTRUCT]
)
def test_other_truth_under_the_same_views_gives_the_same_bits_after_a_kill_too(attack: str) -> None:
    """The private images are replaced after the wire was recorded: every attack answers bit for bit the same.

    The second run is killed at its first save and goes on from there.
    """
    given = {"defense": SHUFFLED.get(attack, "batch_shuffle"), "attack": ATTACKS.get(attack, attack)}
    config = resolve({**given, **SMALL, "budget": "smoke:auxiliary=150", "training": "batch_size=25"})
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
            batch_size=25,
            views=record_rounds(edge, setting.victims, batch_size=25, seed=0, passes=spec.mounting.passes).views,
            **{name: value for name, value in held.items() if name in known_to(spec)},
        )
        if replaced:
            setting.victims.x.copy_(torch.rand_like(setting.victims.x))
            setting.splits.private.x.copy_(torch.rand_like(setting.splits.private.x))
        outputs.append((resumed if replaced else straight)(spec, knowledge).images)
    assert torch.equal(*outputs)


def straight(spec: Any, given: Any) -> Any:
    """What an attack says."""
    return spec.run(given, Generator().manual_seed(0))


def resumed(spec: Any, given: Any) -> Any:
    """What it says if it is killed at its first save and started again; one that trains must have saved."""
    killed = Session(dies_after=1, at="save")
    try:
        said = spec.run(given, Generator().manual_seed(0), killed)
    except Killed:
        return spec.run(given, Generator().manual_seed(0), Session(state=killed.state))
    assert not hasattr(spec, "epochs"), f"{spec.name} trains and saved nothing: a killed run would begin anew"
    return said


ASKED = sorted(name for name, target in LOADED.items() if target.goal != "reconstruct")


@pytest.mark.slow
@pytest.mark.usefixtures("no_report", "no_controls")
def test_no_answer_can_be_reached_from_what_an_attack_on_labels_members_or_canaries_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels that are asked for, which candidates are members, and the coins of canaries."""
    given: list[tuple[str, Any, Tensor]] = []
    named, told, inner = {"attack": ""}, AttackContext.told, label_adversary.observed

    def answer(self: Any, observation: Any, generator: Generator, session: Any = None) -> Scores:
        named["attack"], named["observation"] = self.name, observation  # type: ignore[assignment]
        rows = sum(len(view.smashed) for view in observation.views) if hasattr(observation, "views") else 0
        asked = {"membership": "candidates", "distinguish": "present"}.get(self.goal)
        count = len(getattr(observation, asked)) if asked else rows
        return Scores(values=torch.arange(count).double(), examples=torch.arange(count))

    def observed(transcript: Any, context: Any, client: int, own: Tensor, known: Tensor, cut: Any) -> Any:
        seen = inner(transcript, context, client, own, known, cut)
        given.append((context.attack.name, seen, own))
        return seen

    def judged(self: Any, scores: Scores, positive: Tensor, batches: Tensor | None = None) -> Any:
        if named["attack"] in ("canaries", "member_inference"):
            given.append((named["attack"], named["observation"], positive))
        return told(self, scores, positive, batches)

    for name in ASKED:
        monkeypatch.setattr(LOADED[name], "run", answer)
    monkeypatch.setattr(labels, "observed", observed)
    monkeypatch.setattr(AttackContext, "told", judged)
    run_audit(defense="none", attack=ASKED, out=tmp_path / "run", **SMALL)
    of_server = ["label_leak", "release_clustering:named_by=likeness", "tail_inversion"]
    run_audit(defense="none", attack=of_server, protocol="u_shape", out=tmp_path / "u_shape", **SMALL)
    assert {name for name, *_ in given} == set(ASKED)
    for name, observation, truth in given:
        assert not tells(truth, observation), f"{name} can reach the truth"
        assert tells(truth, {"deep": [observation, 1 - truth.long()]})
        if name == "member_inference":
            asked = observation.candidates
            others = [one for one in reachable(observation) if one is not asked and one.numel() % 64 == 0]
            assert not any((one.reshape(-1, 64)[:, None] == asked.flatten(1)[None]).all(2).any() for one in others)


def tells(truth: Tensor, *given: Any) -> bool:
    """Whether a tensor that can be reached is the truth, its opposite, the places of the positive ones or an order."""
    positive = truth.long()
    sides = [positive, 1 - positive, (positive == 1).nonzero().flatten(), positive.argsort(stable=True)]
    numbers = [one.long() for one in reachable(*given) if one.dtype in (torch.bool, torch.int64)]
    return any(torch.equal(one, side) for one in numbers for side in sides)


class Tape:
    """Clients in training whose views are kept; without the clients, these views alone are played again."""

    def __init__(self, clients: LiveClients | None, kept: list[list[View]]) -> None:
        self._clients, self._kept, self._played = clients, kept, iter(list(kept))

    def round(self, answer: Callable[[View], Tensor]) -> None:
        def kept_answer(view: View) -> Tensor:
            self._kept.append([view])
            return answer(view)

        if self._clients is None:
            answer(*next(self._played))
        else:
            self._clients.round(kept_answer)

    def views(self) -> list[View]:
        if self._clients is None:
            return next(self._played)
        self._kept.append(self._clients.views())
        return self._kept[-1]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {}


@pytest.mark.slow
@pytest.mark.parametrize("attack", HIJACKS)
def test_a_hijack_learns_of_the_truth_through_views_alone(attack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What clients in training sent is played again after they and their images are gone: the bits are the same."""
    monkeypatch.setattr(fsha, "ROUNDS_AN_EPOCH", 10)
    config = resolve({"defense": "batch_shuffle", "attack": ATTACKS[attack], **SMALL})
    setting, spec = prepare(config, 0, torch.device("cpu")), config.attacks[0].spec
    domain, training = setting.splits.domain, config.training
    model = config.model.spec.build(domain, 10, positions=False, seed=0)
    edge = Clients.build(model.lower, config.defenses[1].spec, domain, classes=10, seed=0)
    views = record_rounds(edge, setting.victims, batch_size=50, seed=0).views
    clients = LiveClients(edge, setting.splits.private, setting.shares, training, setting.victims, 0)
    tape: list[list[View]] = []
    outputs = []
    for source in (clients, None):
        known = ImageObservation(
            image_shape=(1, 8, 8), batch_size=50, views=views, auxiliary=setting.auxiliary.x, clients=Tape(source, tape)
        )
        outputs.append(spec.run(known, Generator().manual_seed(0)).images)
    assert len(tape) > 10
    assert torch.equal(*outputs)
    tape[-1] = [replace(view, smashed=torch.rand_like(view.smashed)) for view in tape[-1]]
    other = spec.run(replace(known, clients=Tape(None, tape)), Generator().manual_seed(0)).images
    assert not torch.equal(outputs[0], other)


def test_every_attack_on_images_is_asked() -> None:
    asking = {"adaptive", "black_box", "jigsaw", "ridge", "union", "unmix"}
    assert asking | {"fora", "pcat", "sdar", "unsplit", "white_box"} <= set(RECONSTRUCT)
    assert "fsha" in HIJACKS
