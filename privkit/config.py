"""The configuration of an audit: TOML and flags in, frozen specifications out; unknown names are errors."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from privkit import early
from privkit.errors import LONGEST, UsageError, shortened, unknown
from privkit.pairing import paired
from privkit.registry import Component, parse, read_options, specify, table
from privkit.same_domain import check_same_domain, model_for
from privkit.toml_text import TomlError, parse_toml, read_text

if TYPE_CHECKING:
    from privkit.attacks.base import AnyAttack
    from privkit.reports.gate import Gate
    from privkit.training.spec import TrainingSpec

MOST = 1_000_000_000
"""Images or epochs of a budget: far beyond what anybody computes, and small enough for every formula."""
MOST_THREADS = 1024
DATA_ROOT_VARIABLE = "PRIVKIT_DATA"


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How much work a run does; a dataset that is smaller is shared out in the same proportions.

    Attributes:
        private: the client's training images.
        auxiliary: the adversary's images.
        test: images for the task's accuracy.
        validation: images on which every epoch is measured, so that the best one can be kept; 0 measures none.
        victims: private images that are attacked, a multiple of the batch size (else rounded down).
        epochs: of task training.
        attack_epochs: of an attack's training, unless the attack names its own.
    """

    private: int
    auxiliary: int
    test: int
    victims: int
    epochs: int
    attack_epochs: int
    validation: int = 0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            least = 1 if name in ("private", "auxiliary", "test", "victims") else 0
            if value < least:
                raise ValueError(f"{name} must be a whole number >= {least}, got {value}")
            if value > MOST:
                raise ValueError(f"{name} must be at most {MOST:,}, got {shortened(value)}")


BUDGETS = {
    "smoke": Budget(private=200, auxiliary=200, test=100, victims=50, epochs=1, attack_epochs=2),
    "small": Budget(private=2500, auxiliary=2000, test=500, victims=500, epochs=8, attack_epochs=10),
    "medium": Budget(private=20_000, auxiliary=10_000, test=10_000, victims=1_000, epochs=30, attack_epochs=30),
    "large": Budget(private=40_000, auxiliary=10_000, test=10_000, victims=1_000, epochs=60, attack_epochs=50),
}
"""smoke: seconds, for tests. small: a minute on two CPU cores. medium: minutes on a GPU. large: the papers' epochs."""


@dataclass(frozen=True, kw_only=True)
class AuditConfig:
    """Everything that a run depends on.

    Attributes:
        defenses: the defenses to audit; the undefended baseline is added if it is not among them.
        attacks: the attacks to mount on each.
        dataset: where private images come from.
        model: what is split.
        protocol: who trains with whom.
        also: the same run for the defenses under other protocols, one configuration a protocol; see `parts`.
        partition: which client gets which images.
        delta: the δ at which ε is given.
        seeds: one run of everything for each.
        budget: how much work.
        budget_name: the preset it started from.
        training: how the task is trained.
        auxiliary: the adversary's images: "disjoint" (same distribution), "training" (the client's own training
            images, the patch-shuffling paper's worst case) or the name of another dataset.
        victims: which images are attacked: "private" (the client's training images) or "test" (images that no model
            was trained on); None for "test" under auxiliary="training", as in the paper, and "private" otherwise.
        held: names of the parts of a split release that the adversary holds; none for all of them.
        features: networks for F-SIM and identification (`privkit.metrics.feature_networks`), and for LPIPS.
        device: "auto", "cpu" or "cuda".
        data_root: folder of the official datasets.
        download: whether missing official files may be fetched.
        threads: CPU threads; None for all that this process may use, at most 8.
        gates: conditions such as "ssim<=0.4" that every defended row must meet, or the run exits with 1.
    """

    defenses: tuple[Component, ...]
    attacks: tuple[Component, ...]
    dataset: Component
    model: Component
    protocol: Component
    partition: Component
    delta: float = 1e-5
    seeds: tuple[int, ...] = (0,)
    budget: Budget
    budget_name: str = "small"
    training: TrainingSpec
    auxiliary: str = "disjoint"
    victims: Literal["private", "test"] | None = None
    held: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    device: str = "auto"
    data_root: Path | None = None
    download: bool = False
    threads: int | None = None
    gates: tuple[Gate, ...] = ()
    also: tuple[AuditConfig, ...] = ()

    @property
    def parts(self) -> tuple[AuditConfig, ...]:
        """The run protocol by protocol; `defenses`, `protocol` and `training` are of the first alone."""
        return (self, *self.also)

    @property
    def attacked(self) -> Literal["private", "test"]:
        """Which images are attacked."""
        return self.victims or ("test" if self.auxiliary == "training" else "private")

    def answers(self) -> dict[str, Any]:
        """The fields that change an answer; not where it is computed, nor what it is held against."""
        return {
            "defenses": [c.to_json() for c in self.defenses],
            "attacks": [c.to_json() for c in self.attacks],
            "dataset": self.dataset.to_json(),
            "model": self.model.to_json(),
            "protocol": self.protocol.to_json(),
            "partition": self.partition.to_json(),
            "delta": self.delta,
            "seeds": list(self.seeds),
            "budget": asdict(self.budget),
            "training": asdict(self.training),
            "auxiliary": self.auxiliary,
            "victims": self.attacked,
            "features": list(self.features),
            **({"parts": list(self.held)} if self.held else {}),
            **({"also": [part.answers() for part in self.also]} if self.also else {}),
        }

    @property
    def fingerprint(self) -> str:
        """Hash of what changes an answer; a run folder belongs to one."""
        return hashlib.sha256(json.dumps(self.answers(), sort_keys=True).encode()).hexdigest()[:12]


KEYS = (
    "defense",
    "attack",
    "dataset",
    "model",
    "protocol",
    "partition",
    "seed",
    "budget",
    "training",
    "delta",
    "auxiliary",
    "victims",
    "features",
    "parts",
    "device",
    "data_root",
    "download",
    "threads",
    "gate",
)
"""What a configuration file may hold; a flag of the same name overrides it."""

TYPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "data_root": ((str, Path), "the path of a folder"),
    "download": (bool, "true or false"),
    "device": (str, "auto, cpu or cuda"),
    "victims": (str, "private or test"),
    "delta": (float, "a number in (0, 1), such as 1e-5"),
}
"""What the settings are that no other reader checks."""

DEFAULTS: dict[str, Any] = {
    "defense": ["batch_shuffle"],
    "attack": ["black_box"],
    "dataset": "digits",
    "model": "vit_micro",
    "partition": "iid",
    "delta": 1e-5,
    "seed": [0],
    "budget": "small",
    "training": {},
    "auxiliary": "disjoint",
    "device": "auto",
}


def read_toml(path: Path) -> dict[str, Any]:
    """Read a configuration file; unknown keys are errors with a suggestion."""
    try:
        settings = parse_toml(read_text(path))
    except OSError as error:
        raise UsageError(f"cannot read the configuration {path}: {error.strerror}") from None
    except TomlError as error:
        raise UsageError(f"{path} is no valid TOML: {error}") from None
    for key in settings:
        if key not in KEYS:
            raise unknown(f"key of {path.name}", key, KEYS)
    return settings


def resolve(settings: Mapping[str, Any]) -> AuditConfig:
    """Turn settings (keys of `KEYS`; absent ones take the default) into a configuration.

    Raises:
        UsageError: for anything unknown or not allowed, in one sentence.

    >>> resolve({"defense": "patch_shuffle", "budget": "smoke:epochs=3"}).budget.epochs
    3
    """
    for key in settings:
        if key not in KEYS:
            raise unknown("setting", str(key), KEYS)
    s = {**DEFAULTS, **{key: value for key, value in settings.items() if value is not None}}
    for key, (kinds, what) in TYPES.items():
        if key in s and not isinstance(s[key], kinds):
            raise UsageError(f"{key} must be {what}, got {shortened(s[key])}")
    victims, device, seeds, threads = s.get("victims"), s["device"], _seeds(s["seed"]), _threads(s.get("threads"))
    if victims not in (None, "private", "test"):
        raise unknown("victims", str(victims), ["private", "test"])
    if device not in ("auto", "cpu", "cuda"):
        raise unknown("device", str(device), ["auto", "cpu", "cuda"])
    if not 0 < s["delta"] < 1:
        raise UsageError(f"delta must lie in (0, 1), got {s['delta']}")
    gates = tuple(_gate(text) for text in _many(s.get("gate", [])))
    budget_name, budget = _budget(s["budget"])
    early.check(s)  # what follows imports torch
    from privkit.training.spec import TrainingSpec

    pairs = paired(_many(s["defense"]), s.get("protocol"))
    attacks = _unique(_budgeted(parse("attacks", given), budget) for given in _attacks(_many(s["attack"])))
    dataset = parse("datasets", s["dataset"])
    if gates and all(defense.name == "none" for _, defenses in pairs for defense in defenses):
        raise UsageError("a gate judges defenses, and none is audited here; name one with --defense, or drop --gate")
    root = s.get("data_root") or os.environ.get(DATA_ROOT_VARIABLE)
    wished = _table("training", s["training"])
    protocols: list[dict[str, Any]] = []
    for protocol, defenses in pairs:
        training = specify("training", TrainingSpec, {"batch_size": _natural_batch(protocol.spec.clients), **wished})
        training.check_epochs(budget.epochs)
        if training.keep == "best" and not (budget.validation and budget.epochs):
            raise UsageError(
                "training: keep=best needs validation images and an epoch; use a budget such as small:validation=500"
            )
        protocols.append({"protocol": protocol, "defenses": defenses, "training": training})
    config = AuditConfig(
        **protocols[0],
        attacks=attacks,
        dataset=dataset,
        model=model_for(dataset, settings.get("model")),
        partition=parse("partitions", s["partition"]),
        delta=s["delta"],
        seeds=seeds,
        budget=budget,
        budget_name=budget_name,
        auxiliary=_auxiliary(s["auxiliary"], dataset),
        victims=victims,
        held=_held(s.get("parts", []), [defense for _, part in pairs for defense in part]),
        features=_features(s.get("features", [])),
        device=device,
        data_root=Path(root).expanduser() if root else None,
        download=s.get("download", False),
        threads=threads,
        gates=gates,
    )
    check_same_domain(dataset, auxiliary=config.auxiliary, augment=config.training.augment, features=config.features)
    return replace(config, also=tuple(replace(config, **others) for others in protocols[1:]))


def _held(given: Any, defenses: Sequence[Component]) -> tuple[str, ...]:
    """Names of the parts that the adversary holds; each is a part of every release that is split."""
    names = tuple(dict.fromkeys(_many(given)))
    split = [defense for defense in defenses if defense.spec.storages]
    if names and not split:
        raise UsageError(
            f"parts={shortened(list(names))}, but no defense here splits its release, so nobody holds a part of one; "
            "add the stage split_parts to a defense, or leave parts out"
        )
    for name in names:
        for defense in split:
            if name not in defense.spec.storages:
                raise unknown(f"part of {defense.label}", str(name), defense.spec.storages)
    return names


def _features(given: Any) -> tuple[str, ...]:
    """Names of feature networks; they are loaded when the run begins."""
    from privkit.metrics.perception import check_names

    names = _many(given)
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"features must be names of networks, got {shortened(given)}")
    check_names(names)
    return tuple(names)


def _many(value: Any) -> Sequence[Any]:
    """One or several."""
    return value if isinstance(value, list | tuple) else [value]


def _unique(components: Any) -> tuple[Component, ...]:
    """Drop what was named twice, in whatever words."""
    found: list[Component] = []
    for component in components:
        if component.to_json() not in [other.to_json() for other in found]:
            found.append(component)
    if not found:
        raise UsageError("name at least one defense and one attack")
    return tuple(found)


def _attacks(given: Sequence[Any]) -> Sequence[Any]:
    """`all` stands for every attack; the constant guesses are floors of every row anyway."""
    every = [name for name in table("attacks") if name not in ("mean_image", "mid_grey")]
    return [name for entry in given for name in (every if entry == "all" else [entry])]


def _natural_batch(clients: int) -> int:
    """Fifty images a round over all clients, but at least five of each."""
    return max(5, 50 // clients)


def _auxiliary(given: Any, dataset: Component) -> str:
    """Where the adversary's images come from; never the private dataset itself, part by part unknown."""
    if given in ("disjoint", "training"):
        return str(given)
    found = parse("datasets", given)
    if found.name == dataset.name:
        raise UsageError(
            f"auxiliary={found.label} is the private dataset itself, so private images would be among the adversary's; "
            "use disjoint (other images of it) or training (the private ones, on purpose)"
        )
    return found.label


def _budgeted(attack: Component, budget: Budget) -> Component:
    """Check what an attack declares, and give it its share of the budget's epochs, unless it named its own.

    Raises:
        UsageError: if a plug-in's attack lacks something of the contract.
    """
    from privkit.attacks.declaration import check_declared

    spec: AnyAttack = attack.spec
    try:
        check_declared(spec)
    except TypeError as error:
        raise UsageError(f"attack {attack.name}: {error}; repair the package that brings it") from None
    share = spec.mounting.budget_share
    return attack.replace(epochs=ceil(share * budget.attack_epochs)) if share else attack


def _budget(given: Any) -> tuple[str, Budget]:
    """A preset, with overrides: "small:epochs=3" or {name="small", epochs=3}."""
    if isinstance(given, str):
        name, _, text = given.partition(":")
        options = read_options(given, text)
    else:
        options = _table("budget", given)
        name = options.pop("name", "small")
    if not isinstance(name, str) or name not in BUDGETS:
        raise unknown("budget", str(name), BUDGETS)
    return name, specify(f"budget {name}", BUDGETS[name], options)


def _table(what: str, given: Any) -> dict[str, Any]:
    """A table of options, or the text of one."""
    if isinstance(given, str):
        return read_options(given, given)
    if not isinstance(given, Mapping):
        raise UsageError(f"{what} is a table of options, got {shortened(given)}")
    return dict(given)


def _seeds(given: Any) -> tuple[int, ...]:
    """Whole numbers ≥ 0, each once."""
    seeds = _many(given)
    for seed in seeds:
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
            raise UsageError(f"a seed is a whole number from 0 to 2^32 - 1, got {shortened(seed)}")
    if not seeds:
        raise UsageError("name at least one seed")
    return tuple(dict.fromkeys(seeds))


def _gate(text: Any) -> Gate:
    """A condition on the rows."""
    from privkit.reports.gate import Gate, GateError

    if not isinstance(text, str) or len(text) > LONGEST:
        raise UsageError(f"a gate is a text such as 'ssim<=0.4', got {shortened(text)}")
    try:
        return Gate.parse(text)
    except GateError as error:
        raise UsageError(str(error)) from None


def _threads(given: Any) -> int | None:
    """CPU threads, 1 to `MOST_THREADS`."""
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= MOST_THREADS:
        raise UsageError(f"threads must be a whole number from 1 to {MOST_THREADS}, got {shortened(given)}")
    return given
