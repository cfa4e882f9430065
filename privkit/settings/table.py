"""The table of an audit's settings, from which flags, keys of files, checks and the page of settings are generated."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from privkit.attacks.query_rules import QueryRules
from privkit.errors import unknown
from privkit.settings import values
from privkit.settings.budgets import DEFAULT, Budget, Tuning, as_budget

if TYPE_CHECKING:
    from privkit.reports.gate import Gate

_Class = TypeVar("_Class")

DATA_ROOT_VARIABLE = "PRIVKIT_DATA"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting of an audit, or one flag of the command."""

    name: str  # key of a configuration file and keyword in Python; the flag writes it with hyphens
    help: str  # the meaning of the setting, in one sentence
    kind: type = str  # type of the flag's value: str, int, float, Path, or bool for a switch
    many: bool = False  # whether several values may be given, by a flag that is repeated or a list in a file
    default: Any = None  # default value; None if there is none, or if it depends on other settings
    absent: str = ""  # the behavior without the setting, in words, if `default` does not show it
    # converts a value from a flag, a file or Python to its checked form; the table's default check demands a bool for a
    # switch, and makes a list of a single value if `many`
    check: Callable[[Any], Any] = lambda given: given
    answer: bool = True  # whether the setting may change a result, so that the fingerprint of a run depends on it
    file: bool = True  # whether a configuration file may hold the setting
    # whether an audit of a recording may have the setting; the other settings describe a training
    recorded: bool = False
    of_cell: bool = True  # whether the command of one cell repeats the setting from the run's command

    @property
    def flag(self) -> str:
        """The flag's spelling, such as --cell-seconds."""
        return "--" + self.name.replace("_", "-")

    @property
    def otherwise(self) -> str:
        """The behavior without this setting, in words; empty if the setting's help says it."""
        default = self.default or ""
        return self.absent or (", ".join(map(str, default)) if isinstance(default, list) else str(default))

    @property
    def text(self) -> str:
        """The help of the flag: a sentence, and in brackets the behavior without the flag."""
        return self.help + (f" [{self.otherwise}]" if self.otherwise else "")


def _setting(help_: str, **more: Any) -> Any:
    """Declare a setting; the dataclass field gives its name, and `more` sets attributes of `Setting`."""
    return field(default_factory=lambda: more.get("default"), metadata={"help": help_, **more})


def _how(help_: str, **more: Any) -> Any:
    """Declare a setting that changes no results."""
    return _setting(help_, answer=False, **more)


def _flag(help_: str, **more: Any) -> Any:
    """Declare a flag that is not allowed in a configuration file."""
    return _how(help_, file=False, **more)


_PART = "NAME or NAME:key=value,…"


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """Settings for what is audited, under which adversary, and what is measured."""

    recorded: Path | None = _setting(
        "Folder of a recording (privkit.Recorder) to audit, instead of training a model here.",
        check=values.as_folder("recorded"),
        recorded=True,
    )
    trust: tuple[str, ...] | None = _flag(
        "Module of yours that a recording may build its segments and its defense from; repeatable.",
        absent="none",
        check=values.as_trust,
        recorded=True,
    )
    defense: Sequence[Any] = _setting(
        f"{_PART}, or your own module:object; repeatable.", default=["batch_shuffle"], of_cell=False
    )
    attack: Sequence[Any] = _setting(
        f"{_PART}, your own module:object, all, or auto (the strongest known quick ones); repeatable.",
        default=["auto"],
        of_cell=False,
        recorded=True,
    )
    dataset: Any = _setting(
        f"{_PART} such as folder:path=DIR or arrays:path=FILE, or your own module:object.", default="digits"
    )
    skip_bad_rows: bool = _setting("Leave out bad rows of text files; the results say how many.", default=False)
    model: Any = _setting(
        f"{_PART}, or your own by import path: module:object or two segments, package.Lower:package.Upper.",
        absent="vit_micro",
    )
    protocol: Any = _setting(f"{_PART} such as psl:clients=4.", absent="sl; cutmixsl for a defense that mixes clients")
    partition: Any = _setting("iid or dirichlet:alpha=0.1.", default="iid")
    seed: tuple[int, ...] = _setting(
        "Repeatable: the whole run is repeated for each seed.",
        default=[0],
        check=values.as_seeds,
        recorded=True,
        of_cell=False,
    )
    budget: tuple[str, Budget] = _setting(
        "smoke, quick, small, medium or large, or NAME:key=value,….", default=DEFAULT, check=as_budget, recorded=True
    )
    training: Any = _setting("key=value,… such as batch_size=50,optimizer=sgd.", default={})
    delta: float = _setting("δ at which ε is given.", default=1e-5, check=values.as_delta, recorded=True)
    auxiliary: Any = _setting(
        "The adversary's records: disjoint, training, candidates or a dataset.", default="disjoint"
    )
    victims: Literal["private", "test"] | None = _setting(
        "Attacked records: private or test.", absent="private; test if auxiliary=training", check=values.as_victims
    )
    queries: QueryRules = _setting(
        "Limits on the adversary's queries: rounds=100,copies=false, or rounds=0 for none.",
        default={},
        absent="any number",
        check=values.as_spec("queries", QueryRules),
        recorded=True,
    )
    tune: Tuning | None = _setting(
        "Choose the fields of attacks on the adversary's own records, such as trials=20,share=.25; needs "
        "privkit-sl[tune].",
        absent="attacks as given",
        check=values.as_spec("tune", Tuning),
    )
    escalate: int | None = _setting(
        "How often a failed attack that may still improve continues with twice its work; 0 for never.",
        absent="2; 0 for fewer than 4 epochs",
        check=values.as_count("escalate", most=10, least=0),
        recorded=True,
    )
    parts: Sequence[Any] = _setting(
        "Part of a split release that the adversary holds (part_1, …); repeatable.", default=(), absent="all"
    )
    features: tuple[str, ...] = _setting(
        "Network for F-SIM and identification (embedded, dlib, timm:MODEL, torchvision:MODEL, file:PATH), lpips:alex, "
        "or classifier (trained on auxiliary images, or classifier:PATH), which recognizes guesses; repeatable. "
        "A PATH is a TorchScript program, and it is run.",
        default=(),
        check=values.as_features,
        recorded=True,
    )
    metric: Sequence[Any] = _setting(
        "Your own metric of images, module:object; its column is own_NAME; repeatable.", default=(), recorded=True
    )
    gate: tuple[Gate, ...] = _how(
        "Condition on every defended row, such as 'ssim<=0.4'; exit 1 if unmet; repeatable.",
        default=(),
        check=values.as_gates,
        of_cell=False,
        recorded=True,
    )


@dataclass(frozen=True, kw_only=True)
class ExecutionSettings:
    """Settings for how a run is computed, which do not change results. A configuration inherits these fields."""

    data_root: Path | None = _how(
        "Folder of the official datasets.", absent=f"${DATA_ROOT_VARIABLE}", check=values.as_folder("data_root")
    )
    download: bool = _how("Fetch missing official files into the data root.", default=False)
    device: str = _how("auto, cpu, cuda, or cuda:0, cuda:1, ….", default="auto", check=values.as_device, recorded=True)
    threads: int | None = _how(
        "CPU threads.",
        absent="OMP_NUM_THREADS, else all usable, at most 8",
        check=values.as_count("threads"),
        recorded=True,
    )
    cell_seconds: float | None = _how(
        "Seconds after which a cell ends as an error.",
        absent="no limit",
        check=values.as_seconds,
        recorded=True,
        of_cell=False,
    )
    cell_memory: int | None = _how(
        "Memory at which a cell ends as an error, such as 4GiB.",
        kind=str,
        absent="no limit",
        check=values.as_memory,
        recorded=True,
        of_cell=False,
    )


@dataclass(frozen=True, kw_only=True)
class CommandFlags:
    """Flags that say where one command's settings come from, and what the command does."""

    preset: str | None = _flag("A paper's own settings (privkit papers lists them); --config and flags override them.")
    config: Path | None = _flag("TOML file with these settings; flags override it.")
    grid: Path | None = _flag("TOML file as --config, whose dataset and model may be lists: one run for each pair.")
    yes: bool = _flag("Begin a grid of more than 1000 cells.", of_cell=False)
    out: Path | None = _flag(
        "Run folder; the same command resumes it.", absent="privkit-runs/DATASET-HASH", of_cell=False
    )
    workers: int | None = _flag(
        "Processes of this machine that share the cells, the threads and the GPUs; with --engine, the number of cells "
        "submitted at once.",
        absent="one for each cell and CPU, at most 4; 1 with --threads, --engine, a GPU or code of yours",
        check=lambda given: given if given is None else values.as_count("workers")(given),
        of_cell=False,
    )
    engine: str | None = _flag(
        "Where cells are computed: dask, dask:ADDRESS, submitit:partition=gpu,time=240 (Slurm), mpi, or your own "
        "module:factory of a futures Executor.",
        absent="processes of this machine",
        of_cell=False,
    )
    again: bool = _flag("Recompute what rests on changed data, code, versions, device or threads.", of_cell=False)
    dry_run: bool = _flag("Print the cells and an estimate; train nothing. Your own parts are imported.", of_cell=False)


def settings_of(declared: type) -> tuple[Setting, ...]:
    """The settings that a class declares, in order of declaration; the type of a field decides the type of its flag."""
    return tuple(_declared(each) for each in fields(declared))


def _declared(each: Field[Any]) -> Setting:
    kind = next((kind for kind in (bool, int, float, Path) if re.search(rf"\b{kind.__name__}\b", str(each.type))), str)
    many = str(each.type).startswith("Sequence") or ", ...]" in str(each.type)
    default = False if kind is bool else None
    check: Callable[[Any], Any] = values.as_many if many else lambda given: given
    if kind is bool:
        check = values.as_switch(each.name)
    return Setting(name=each.name, **{"kind": kind, "many": many, "default": default, "check": check, **each.metadata})


SETTINGS = {each.name: each for declared in (AuditSettings, ExecutionSettings) for each in settings_of(declared)}
FLAGS = (*SETTINGS.values(), *settings_of(CommandFlags))
"""The flags of `privkit audit`, except those that say how a run is shown."""
KEYS = tuple(name for name, each in SETTINGS.items() if each.file)
"""Keys that a configuration file may have; a flag of the same name overrides the key."""
DEFAULTS: dict[str, Any] = {n: each.default for n, each in SETTINGS.items() if each.default not in (None, False, ())}


def with_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, with default values for absent ones and for None; raises `UsageError` for an unknown name or an
    array."""
    for key, value in settings.items():
        if key not in SETTINGS:
            raise unknown("setting", str(key), KEYS)
        values.no_array(key, value)
    return {**DEFAULTS, **{key: value for key, value in settings.items() if value is not None}}


def checked(declared: type[_Class], settings: Mapping[str, Any]) -> _Class:
    """Make an instance of a class of settings from the user's values, each of which is checked.

    >>> checked(ExecutionSettings, {"cell_memory": "4GiB"}).cell_memory
    4294967296
    """
    own = [each for each in settings_of(declared) if each.name in settings]
    return declared(**{each.name: each.check(settings[each.name]) for each in own})


def kept(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as JSON, for the manifest, from which a run's workers read them.

    Trusted modules are left out for security; the command of each worker names them.
    """
    return {key: _plain(value) for key, value in settings.items() if value is not None and SETTINGS[key].file}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value
