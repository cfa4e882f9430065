"""The laws of parts: privkit's own and the templates keep them, and each law finds a part that breaks it."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from privkit.audit.assembled import assemble
from privkit.defenses.receipts import NOT_DP, Nothing
from privkit.domains.base import Pools, RecordPool
from privkit.domains.images.domain import Images
from privkit.errors import UsageError
from privkit.laws import datasets, defenses, metrics, models
from privkit.laws.defenses import SEEDED, UNSEEDED
from privkit.laws.parts import kind_of, laws
from privkit.models import SplitModel
from privkit.models.vit import Vit
from privkit.parts.registry import parse
from privkit.settings.resolve import resolve
from privkit.templates import attack, dataset, defense, metric, model

SHAPE = Images(shape=(1, 8, 8))
PARTS = (
    *("privkit.templates.defense:Template", "privkit.templates.attack:Template", "privkit.templates.dataset:Template"),
    *("privkit.templates.model:Template:maps=4", "privkit.templates.metric:Template"),
    *(
        "gaussian_noise:sigma=1+masking:keep=0.5",
        "laplace_noise",
        "label_leak",
        "member_inference",
        "canaries",
        "tiny_digits",
        "lenet5",
    ),
)
COUNTER = iter(range(10_000))


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_templates_and_our_own_parts_keep_their_laws(part: str) -> None:
    asked = list(laws(part, kind_of(part)))
    assert len(asked) >= 7
    assert [(law, how) for law, how in asked if how] == []


def test_a_stage_that_draws_nothing_is_not_said_to_follow_its_seed() -> None:
    said = {part: [law for law, how in laws(part, "defenses") if not how] for part in ("none", "masking")}
    assert [UNSEEDED in law for law in said.values()] == [True, False]
    assert [SEEDED in law for law in said.values()] == [False, True]


def test_what_is_no_part_is_refused() -> None:
    for given, message in (
        ("lenet6", r"unknown part 'lenet6'; did you mean lenet5\? \(privkit list lists all\)$"),
        (
            "math:pi",
            r"math:pi is not a part; privkit new KIND NAME writes one \(defense, attack, dataset, model, metric\)",
        ),
        ("privkit.errors:one_line", "may be a dataset or a model; add --kind dataset or model"),
        ("batch_shuffle:keep", "write options as name:key=value"),
    ):
        with pytest.raises(UsageError, match=message):
            kind_of(given)


@dataclass(frozen=True, kw_only=True)
class Noisy(defense.Template):
    """It adds noise of a law of its own.

    Attributes:
        kinds: the effects that it declares.
        fields: its noise_fields.
        reason: of its receipt.
    """

    kinds: tuple[str, ...] = ("maps",)
    fields: tuple[str, ...] = ()
    reason: str = "uniform noise; no differential privacy"

    effects: ClassVar[Any] = property(lambda self: frozenset(self.kinds))
    noise_fields: ClassVar[Any] = property(lambda self: self.fields)

    def loudness(self) -> float:
        return self.bound

    def apply(self, smashed: Any, labels: Any, generator: Any, present: Any = None) -> Any:
        release, _ = super().apply(smashed, labels, generator, present)
        drawn = release.smashed + self.loudness() * torch.rand(smashed.shape, generator=generator)
        return replace(release, smashed=drawn), Nothing(reason=self.reason)


class ByRatio(Noisy):
    """Its field is a ratio of signal to noise."""

    def loudness(self) -> float:
        return 1 / self.bound


def test_a_stage_that_draws_says_how_and_what_scales_its_noise() -> None:
    law = defenses.LAWS["its effects say how it draws, and what scales its noise"]
    assert law(defense.Template()) == ""
    assert law(Noisy()).startswith("another seed gives another release, so its effects must name one of masks")
    assert law(Noisy(kinds=("noises",))).startswith("it declares noise, and noise_fields does not name")
    assert law(Noisy(kinds=("noises",), fields=("bound",))) == ""
    assert 'says "without noise"' in law(Noisy(kinds=("noises",), fields=("bound",), reason=f"released {NOT_DP}"))
    assert "fields that are proportional to the noise" in law(ByRatio(kinds=("noises",), fields=("bound",)))


class Garbled(defense.Template):
    """It returns what nobody can send.

    Attributes:
        bound: as it was.
    """

    way: ClassVar[str] = "alone"

    def apply(self, smashed: Any, labels: Any, generator: Any, present: Any = None) -> Any:
        release, receipt = super().apply(smashed, labels, generator, present)
        made = {
            "alone": release,
            "fewer": (replace(release, smashed=release.smashed[:, :-1]), receipt),
            "labels": (replace(release, labels=None), receipt),  # type: ignore[arg-type]
            "receipt": (release, None),
        }
        return made[self.way]


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("alone", "must return a pair (Release, Receipt) from apply, got Release"),
        ("receipt", "must return a pair (Release, Receipt) from apply, got Release, NoneType"),
        ("fewer", "must release smashed data for 2 messages of 3 records, [2, 3, ...], got [2, 2, 16, 4]"),
        ("labels", "must release labels for 2 messages of 3 records, [2, 3, ...], got NoneType"),
    ],
)
def test_what_a_stage_must_return_is_said_once(way: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Garbled, "way", way)
    told = [how for _, how in laws(f"{__name__}:Garbled", "defenses") if how]
    assert told[0].endswith(said)
    assert told.count('not decided, as "same seed, same bits; another seed, other bits" ended in the same error') >= 3
    assert not any("Error:" in how for how in told)


class Undefined(defense.Template):
    """It releases NaN.

    Attributes:
        bound: as it was.
    """

    def apply(self, smashed: Any, labels: Any, generator: Any, present: Any = None) -> Any:
        release, receipt = super().apply(smashed, labels, generator, present)
        return replace(release, smashed=release.smashed * float("nan")), receipt


def test_a_release_of_nan_is_called_so_and_is_no_other_fault() -> None:
    told = dict(laws(f"{__name__}:Undefined", "defenses"))
    assert "releases NaN" in told["a row and a label for each record"]
    assert "releases NaN" in told["the receipt says what was done"]
    assert told[UNSEEDED] == ""


@dataclass(frozen=True, kw_only=True)
class Odd(model.Template):
    """A model with a fault."""

    fault: str = ""
    checkpoint: str = ""

    def build(self, domain: Images, classes: int, *, positions: bool, seed: int) -> SplitModel:
        if self.fault == "seed":
            seed = next(COUNTER)
        elif self.fault == "fixed":
            seed = 0
        split = super().build(domain, classes + (self.fault == "logits"), positions=positions, seed=seed)
        if self.fault == "global":
            nn.Linear(2, 2)
        return replace(split, hides_places=False) if self.fault == "places" else split


class Shifted(Vit):
    """A network that depends on its cut."""

    def build(self, domain: Images, classes: int, *, positions: bool, seed: int) -> SplitModel:
        return super().build(domain, classes, positions=positions, seed=seed + len(self.cut))


@pytest.mark.parametrize(
    ("fault", "law"),
    [("logits", "a logit for each class"), ("seed", "weights follow the seed"), ("global", "weights follow the seed")],
)
def test_models_that_break_a_law(fault: str, law: str) -> None:
    assert models.LAWS[law](Odd(), SHAPE) == ""
    assert models.LAWS[law](Odd(fault=fault), SHAPE)


def test_weights_from_a_file_need_not_follow_the_seed() -> None:
    told = models.LAWS["weights follow the seed"](Odd(fault="fixed"), SHAPE)
    assert told.startswith("another seed gives the same weights of the lower segment; if these are pretrained")
    assert models.LAWS["weights follow the seed"](Odd(fault="fixed", checkpoint="w.pth"), SHAPE) == ""


class Lower(nn.Sequential):
    """The first segment of a pair, of images of 784 pixels."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(784, 12))


class Upper(nn.Linear):
    """The second one."""

    def __init__(self, classes: int) -> None:
        super().__init__(12, classes)


class Short(nn.Sequential):
    """A first segment in half precision, which rounds to a thousandth."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(784, 12))
        self.half()

    def forward(self, x: Tensor) -> Tensor:
        return 100 * cast(Tensor, super().forward(x.half())).float()


class Drawing(Lower):
    """A first segment that draws random numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, super().forward(x)) + torch.randn(12)


class Two(nn.Linear):
    """One for two classes."""

    def __init__(self) -> None:
        super().__init__(12, 2)


class Lazy(nn.LazyLinear):
    """One that learns its size from its first batch."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes)


def test_a_pair_of_segments_keeps_the_laws_of_a_model() -> None:
    given = f"{__name__}.Lower:{__name__}.Upper"
    assert kind_of(given) == "models"
    asked = dict(laws(given, "models"))
    assert asked.keys() == models.LAWS.keys()
    assert not any(asked.values()), asked
    two = f"{__name__}.Lower:{__name__}.Two"
    assert "give [2, 10], or name your data with --dataset" in dict(laws(two, "models"))["a logit for each class"]
    assert not any(how for _, how in laws(two, "models", "digits:classes=[0,1]"))
    assert not any(how for _, how in laws(f"{__name__}.Short:{__name__}.Upper", "models"))
    drawing = dict(laws(f"{__name__}.Drawing:{__name__}.Upper", "models"))
    assert "and draw no random numbers" in drawing["clients in one call equal each alone"]
    lazy = dict(laws(f"{__name__}.Lower:{__name__}.Lazy", "models"))
    assert [law for law, how in lazy.items() if "give layers their sizes" in how] == ["weights follow the seed"]


class Pair(Lower):
    """A first segment that returns two tensors."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x.mean()


class Failing(nn.Conv2d):
    """A first segment of color images that fails behind its first layer."""

    def __init__(self) -> None:
        super().__init__(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError(f"no table for {super().forward(x).shape[-1]} columns")


class Heads(Upper):
    """One with two outputs, of which the first are the logits."""

    def forward(self, z: Tensor) -> Any:
        return {"logits": super().forward(z), "mean": z.mean(1)}


class Tupled(model.Template):
    """Its method returns no split model."""

    def build(self, *given: Any, **named: Any) -> Any:
        return Lower(), Upper(10)


def test_a_model_of_the_wrong_form_is_told_so_in_check_and_before_an_audit() -> None:
    tensors, split = "the lower segment returns a tuple; return one tensor", "build of Tupled returns a tuple; return "
    for given, said in ((f"{__name__}.Pair:{__name__}.Upper", tensors), (f"{__name__}:Tupled", split)):
        with pytest.raises(UsageError, match=said):
            dict(laws(given, "models"))
        config = resolve({"dataset": "digits", "budget": "smoke", "model": given, "threads": 1})
        with pytest.raises(UsageError, match=said):
            assemble(config, config.defenses[0].spec, Images(shape=(1, 28, 28)), 10, 0)
    assert not any(how for _, how in laws(f"{__name__}.Lower:{__name__}.Heads", "models"))
    with pytest.raises(UsageError, match=r"\(on 3×32×32: no table for 30 columns\); name its data"):
        dict(laws(f"{__name__}.Failing:{__name__}.Upper", "models"))


def test_a_model_that_lies_about_cuts_or_positions() -> None:
    micro = {"patch": 4, "width": 16, "depth": 2, "heads": 2}
    assert models.a_cut_changes_no_function(Vit(**micro), SHAPE) == ""  # type: ignore[arg-type]
    assert models.a_cut_changes_no_function(Shifted(**micro), SHAPE)  # type: ignore[arg-type]

    class Denies(Vit):
        def build(self, *given: Any, positions: bool, **named: Any) -> SplitModel:
            split = super().build(*given, positions=True, **named)
            return replace(split, hides_places=True)

    assert models.positions_are_as_said(Vit(**micro), SHAPE) == ""  # type: ignore[arg-type]
    assert models.positions_are_as_said(Denies(**micro), SHAPE)  # type: ignore[arg-type]


class Restless(RecordPool):
    """A pool whose records change with their order."""

    def take(self, rows: Any) -> Any:
        batch = super().take(rows)
        return replace(batch, x=batch.x * torch.linspace(0.5, 1, len(rows)).view(-1, 1, 1, 1))


def pools(kind: type[RecordPool] = RecordPool, **changes: Any) -> Pools:
    x, y = torch.rand(8, 1, 8, 8), torch.arange(8) % 2
    pool = kind(x=x, y=y, domain=SHAPE)
    return replace(Pools(train=pool, test=replace(pool, first_id=100), classes=2), **changes)


@pytest.mark.parametrize(
    ("given", "law"),
    [
        (lambda: pools(test=RecordPool(x=torch.rand(4, 1, 9, 9), y=torch.arange(4), domain=Images(shape=(1, 9, 9)))),
         "records have one shape, in range"),
        (lambda: pools(classes=1), "labels are classes"),
        (lambda: pools(Restless), "a row never changes"),
        (lambda: pools(test=pools().train), "a row never changes"),
    ],
)  # fmt: skip
def test_datasets_that_break_a_law(given: Callable[[], Pools], law: str) -> None:
    assert datasets.LAWS[law](pools()) == ""
    assert datasets.LAWS[law](given())


@dataclass(frozen=True, kw_only=True)
class Lost(dataset.Template):
    """A dataset whose file is missing."""

    def open(self, *given: Any, **named: Any) -> Pools:
        raise FileNotFoundError(2, "No such file or directory", "nonexist")


class Fame(attack.Template):
    """An attack with a goal that nobody has."""

    goal: ClassVar[str] = "fame"


def test_an_error_of_a_part_before_its_first_law_is_told_as_its_own() -> None:
    for part, kind, said in (("Lost", "dataset", "FileNotFoundError: .* 'nonexist'"), ("Fame", "attack", "goal must")):
        with pytest.raises(UsageError, match=f"^{kind} {__name__}:{part} failed: .*{said}.*; repair it$"):
            list(laws(f"{__name__}:{part}", f"{kind}s"))


@pytest.mark.parametrize(
    ("law", "given"),
    [
        ("it has a name and a direction", {"name": "Bad Name"}),
        ("it has a name and a direction", {"name": "the_worst"}),
        ("it has a name and a direction", {"higher_is_closer": "yes"}),
        ("equal images are closest", {"higher_is_closer": True}),
        ("equal images are closest", {"__call__": lambda self, truth, guess, *, data_range: np.ones(len(truth))}),
        ("a number for each image", {"__call__": lambda self, truth, guess, *, data_range: np.arange(len(truth))}),
    ],
)
def test_metrics_that_break_a_law(law: str, given: dict[str, Any]) -> None:
    assert metrics.LAWS[law](metric.Template()) == ""
    assert metrics.LAWS[law](type("Lie", (metric.Template,), given)())


@pytest.fixture
def undocumented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model.Template, "__doc__", "A model.")


@pytest.mark.usefixtures("undocumented")
def test_a_part_without_words_is_told_so() -> None:
    part = "privkit.templates.model:Template"
    broken = {law: how for law, how in laws(part, "models") if how}
    asked = "give its class a docstring whose first line says what it is, in 20 characters or more"
    assert broken == {"its docstring says what it is": asked}
    assert parse("models", part).label == part


@pytest.mark.slow
@pytest.mark.parametrize("part", ["hushed:Hushed", "dithered:Dithered"])
def test_the_noisy_stages_of_the_page_keep_their_laws(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "own-parts.md").read_text("utf-8")
    file = f"{part.partition(':')[0]}.py"
    (code,) = re.findall(rf"```python\n# {file}\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / file).write_text(code, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert [(law, how) for law, how in laws(part, kind_of(part)) if how] == []
