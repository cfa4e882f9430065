"""The one table of measures: every number that says how close a guess is, its direction, its range and how it is shown.

How a measure is computed stands with its records (`privkit/domains/<domain>`) or its goal (`privkit/audit/goals`). Who
reads a finished run finds here all that it needs, and loads no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

UNIT, UNBOUNDED = (0.0, 1.0), (-inf, inf)


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One number that says how close a guess is.

    Attributes:
        name: its column in rows, tables and gates.
        title: how sentences, charts and cards call it; empty for the name.
        heading: over its column of a table; empty for the title with an arrow to what a defender wishes.
        spoken: how a check calls it; empty for the title.
        higher_is_closer: whether a higher value means a closer guess; None if either may, as of an AUC.
        within: its range (low, high), which an interval over seeds does not leave.
        unit: empty for numbers without one.
        digits: decimals.
        compared: whether attacks and runs are compared by it; False if another measure says the same.
    """

    name: str
    title: str = ""
    heading: str = ""
    spoken: str = ""
    higher_is_closer: bool | None = True
    within: tuple[float, float] = UNIT
    unit: str = ""
    digits: int = 3
    compared: bool = True

    def __post_init__(self) -> None:
        title = self.title or self.name
        arrow = {True: " ↓", False: " ↑", None: ""}[self.higher_is_closer]
        defaults = {"title": title, "spoken": title, "heading": f"{title}{arrow}"}
        for field, default in defaults.items():
            object.__setattr__(self, field, getattr(self, field) or default)


@dataclass(frozen=True, kw_only=True)
class Floor:
    """A guess at a record that needs no release, and so bounds what an attack is worth.

    Attributes:
        name: of the guess, as a row's `floors` has it.
        title: how tables call it.
        gate: how a gate calls it.
        beaten: how the check calls it that an attack is better; empty if there is no such check.
        mounted: whether it is also registered as an attack.
        labels: whether it knows each record's true label; then it tells what is the record's from what is its class's.
    """

    name: str
    title: str
    gate: str
    beaten: str = ""
    mounted: bool = False
    labels: bool = False


@dataclass(frozen=True, kw_only=True)
class Records:
    """One kind of record: what its guesses are measured by and held against, and what a run takes by default.

    Attributes:
        name: of the domain, which datasets, models and attacks name.
        noun: the plural noun of sentences, which a row's `records` has.
        measures: of guesses, the one first by which attacks are compared.
        perceived: measures by networks, which have a column where a run has them.
        likeness: name of the measure that shows how much a guess gives away, of a higher one more.
        floors: guesses that need no release.
        note: what stands below a table of these measures.
        model: that a run takes if the user names none.
        baseline: the attack that `auto` mounts on an undefended model.
        general: attacks that `auto` mounts where nothing was measured: all quick ones.
        pictures: whether records are shown as pictures.
    """

    name: str
    noun: str
    measures: tuple[Measure, ...]
    likeness: str
    floors: tuple[Floor, ...]
    note: str
    model: str
    baseline: str
    general: tuple[str, ...]
    perceived: tuple[Measure, ...] = ()
    pictures: bool = False

    @property
    def directions(self) -> dict[str, bool]:
        """Measure that the domain computes -> whether a higher value means a closer guess."""
        return {measure.name: bool(measure.higher_is_closer) for measure in self.measures}


IMAGES = Records(
    name="images",
    noun="images",
    measures=(
        Measure(name="mse", title="MSE", higher_is_closer=False, digits=4),
        Measure(name="psnr", title="PSNR", within=(0.0, inf), unit="dB", digits=1, compared=False),
        Measure(name="ssim", title="SSIM", within=(-1.0, 1.0)),
    ),
    perceived=(
        Measure(name="f_sim", title="F-SIM", within=(-1.0, 1.0)),
        Measure(name="identity", heading="ID ↓"),
        Measure(name="lpips", title="LPIPS", higher_is_closer=False, within=(0.0, inf)),
        Measure(name="recognized"),
    ),
    likeness="ssim",
    floors=(
        Floor(name="mid_grey", title="mid-grey", gate="the mid-grey image", mounted=True),
        Floor(
            name="mean_image",
            title="mean image",
            gate="the mean auxiliary image",
            beaten="the mean image",
            mounted=True,
        ),
    ),
    note="Arrows point to what a defender wishes. Images in [0, 1], PSNR in dB. Brackets are 95 % intervals over "
    "images. Worst is the SSIM of the image that was recovered best; matched is the SSIM after guesses are assigned to "
    "images inside each message by the truth, an upper bound. Identified: share of images whose guess is nearer to "
    "them than to any other attacked one. A claim is proven if privkit ran the mechanism itself, and declared if "
    "somebody else says what was run. kB up: smashed data an image and round. A floor is a guess made without the "
    "release; the class mean knows the true labels. A start is the attack before its first step, and it may know the "
    "client's segment.",
    model="vit_micro",
    baseline="black_box:epochs=5",
    general=("black_box", "jigsaw", "white_box", "jigsaw_white_box", "adaptive", "unmix"),
    pictures=True,
)

_RECORD_NOTE = (
    "Arrows point to what a defender wishes. Exact: share of sequences recovered whole. Cells: share of cells "
    "recovered, dense ones to a twentieth of their column's range. Dense error: mean absolute error as a share of that "
    "range. Matched: ROUGE-1 or cells after guesses are assigned to records inside each message by the truth, an upper "
    "bound. Identified: share of records whose guess is nearer to them than to any other attacked one. kB up: smashed "
    "data a record and round. A floor is a guess made without the release; the class mean knows the true labels."
)

TOKENS = Records(
    name="tokens",
    noun="token sequences",
    measures=(
        Measure(name="rouge_1", title="ROUGE-1"),
        Measure(name="token_accuracy", title="token accuracy"),
        Measure(name="rouge_l", title="ROUGE-L"),
        Measure(name="exact"),
    ),
    likeness="rouge_1",
    floors=(
        Floor(
            name="most_frequent_token",
            title="most frequent token",
            gate="the most frequent auxiliary token",
            beaten="the most frequent token everywhere",
        ),
        Floor(
            name="most_frequent_by_place",
            title="most frequent token of each place",
            gate="the most frequent auxiliary token of each place",
            beaten="the most frequent token of each place",
        ),
    ),
    note=_RECORD_NOTE,
    model="transformer_micro",
    baseline="vocabulary",
    general=("vocabulary", "nearest_record"),
)

TABLES = Records(
    name="tables",
    noun="table rows",
    measures=(
        Measure(name="cells", spoken="share of cells"),
        Measure(name="dense_error", title="dense error", higher_is_closer=False),
        Measure(name="dense_mse", title="dense MSE", higher_is_closer=False),
        Measure(name="categories"),
    ),
    likeness="cells",
    floors=(
        Floor(
            name="column_mean",
            title="mean or most frequent of each column",
            gate="the mean or most frequent auxiliary value of each column",
            beaten="the mean or most frequent value of each column",
        ),
    ),
    note=_RECORD_NOTE,
    model="table_mlp",
    baseline="black_box",
    general=("black_box", "nearest_record", "field_order"),
)

KINDS: dict[str, Records] = {kind.name: kind for kind in (IMAGES, TOKENS, TABLES)}
"""Domain -> its records. A new domain is one entry here, beside its own file."""

TASK = (
    Measure(name="accuracy", heading="accuracy ↑"),
    Measure(name="task_mcc", heading="task MCC ↑", within=(-1.0, 1.0)),
    Measure(name="task_auc", heading="task AUC ↑"),
)
"""What the defended model is good for; a defender wishes all of them high."""

TOLD_APART = (
    Measure(name="auc", title="AUC", heading="AUC → .5", higher_is_closer=None),
    Measure(name="auc_per_batch", heading="AUC, mean of rounds", higher_is_closer=None, compared=False),
    Measure(name="tpr_at_1_percent", heading="TPR at 1 % FPR ↓"),
    Measure(name="advantage", within=UNBOUNDED),
    Measure(name="label_accuracy", heading="labels ↓", compared=False),
    Measure(name="cluster_accuracy", compared=False),
)
"""Answers of attacks that score examples: is it a member, has it this label, was this canary sent?"""

ORDERS = (
    Measure(name="direct", heading="places ↓"),
    Measure(name="neighbor", heading="neighbors ↓"),
    Measure(name="membership", heading="membership ↓"),
    Measure(name="bits_before", higher_is_closer=False, within=(0.0, inf), unit="bit", compared=False),
    Measure(
        name="bits_left",
        heading="bits of the order left ↑",
        higher_is_closer=False,
        within=(0.0, inf),
        unit="bit",
    ),
)
"""Answers of attacks that put tokens back in order."""

IDENTIFIED = Measure(name="identified")
"""Share of the attacked records whose guess is nearer to them than to any other, by the first measure of their kind."""

OF_RECORDS: dict[str, Measure] = {
    **{measure.name: measure for kind in KINDS.values() for measure in (*kind.measures, *kind.perceived)},
    IDENTIFIED.name: IDENTIFIED,
}
"""Measures of guesses at records, in the order of every table."""
ANSWERS: dict[str, Measure] = {measure.name: measure for measure in (*TOLD_APART, *ORDERS)}
MEASURES: dict[str, Measure] = {**{measure.name: measure for measure in TASK}, **OF_RECORDS, **ANSWERS}
"""Name -> measure, of all of them."""
CLASS_MEAN = Floor(
    name="class_mean",
    title="class mean",
    gate="the mean of each record's true class",
    beaten="the mean of each record's true class",
    labels=True,
)
"""The guess of somebody who knows the true labels, at any kind of record."""
FLOORS: dict[str, Floor] = {
    floor.name: floor for floor in (*(floor for kind in KINDS.values() for floor in kind.floors), CLASS_MEAN)
}
"""Name -> guess that needs no release."""
CONSTANT_ATTACKS = frozenset(floor.name for floor in FLOORS.values() if floor.mounted)
"""Attacks that are no more than a floor."""


def measure(name: str) -> Measure:
    """A measure by its name; of one that nobody declared, such as a plug-in's, the name is the title.

    >>> measure("ssim").title, measure("matched_ssim").within, measure("sharpness").heading
    ('SSIM', (-1.0, 1.0), 'sharpness')
    """
    known = MEASURES.get(name) or MEASURES.get(name.removeprefix("matched_"))
    return known or Measure(name=name, higher_is_closer=None, within=UNBOUNDED)


def floor_title(name: str) -> str:
    """How tables call a guess that needs no release; its name if nobody declared it.

    >>> floor_title("mid_grey"), floor_title("loudest")
    ('mid-grey', 'loudest')
    """
    return FLOORS[name].title if name in FLOORS else name


def records_called(noun: str) -> Records | None:
    """The kind of record that a row names; None for one that nobody declared.

    >>> records_called("table rows").likeness
    'cells'
    """
    return next((kind for kind in KINDS.values() if kind.noun == noun), None)


def deciding(names: list[str]) -> str:
    """The measure by which attacks are compared, among those that a row has; empty if it has none.

    It is the first of the kind of record, and of undeclared measures the row's own first one.

    >>> deciding(["psnr", "mse"]), deciding(["sharpness"]), deciding([])
    ('mse', 'sharpness', '')
    """
    first = (kind.measures[0].name for kind in KINDS.values())
    return next((name for name in first if name in names), names[0] if names else "")


def likeness(names: list[str]) -> str:
    """The measure that shows how much guesses give away, among those that a row has; empty if it has none.

    >>> likeness(["mse", "psnr", "ssim"]), likeness(["mse", "psnr"])
    ('ssim', '')
    """
    return next((kind.likeness for kind in KINDS.values() if kind.likeness in names), "")
