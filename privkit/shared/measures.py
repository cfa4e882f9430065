"""The table of all measures of how close a guess is to the true record, with direction, range and display.

Measures are computed in `privkit/domains/<domain>` or `privkit/audit/goals`. Code that reads a finished run needs only
this table, without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

UNIT, UNBOUNDED = (0.0, 1.0), (-inf, inf)


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One measure of how close a guess is to a record."""

    name: str  # the measure's column in rows, tables and gates
    title: str = ""  # the name in sentences, charts and cards; empty for `name`
    heading: str = ""  # heading of its table column; empty for the title with an arrow (up if higher is safer)
    spoken: str = ""  # the name in sentences on checks; empty for the title
    higher_is_closer: bool | None = True  # whether a higher value means a closer guess; None if neither direction does
    within: tuple[float, float] = UNIT  # range of the values (low, high), which limits intervals over seeds
    unit: str = ""  # unit of the values; empty for a number without unit
    digits: int = 3  # number of printed decimals
    # whether a threshold or class names are fitted to the truth, so that even random guesses exceed chance
    fitted: bool = False
    # whether attacks and runs are compared by this measure; False if another measure says the same
    compared: bool = True

    def __post_init__(self) -> None:
        title = self.title or self.name
        arrow = {True: " ↓", False: " ↑", None: ""}[self.higher_is_closer]
        defaults = {"title": title, "spoken": title, "heading": f"{title}{arrow}"}
        for field, default in defaults.items():
            object.__setattr__(self, field, getattr(self, field) or default)


@dataclass(frozen=True, kw_only=True)
class Floor:
    """A floor, i.e. a guess at a record without the release, such as the mean image. A successful attack's guess is
    closer to the record."""

    name: str  # key of the guess in the field `floors` of a result row
    title: str  # the guess's name in tables
    gate: str  # the guess's name in a gate, i.e. a user's pass/fail condition
    beaten: str = ""  # name in the check whether an attack is better; empty if there is no such check
    mounted: bool = False  # whether the guess is also registered as an attack
    labels: bool = False  # whether the guess uses true labels, so that a better attack shows more than the class
    drawn: bool = False  # whether the guess is another random record for each attacked one, and no constant


@dataclass(frozen=True, kw_only=True)
class Records:
    """One kind of record (such as images): its measures, its guesses without a release, and a run's defaults."""

    name: str  # name of the domain, as datasets, models and attacks give it
    noun: str  # plural noun in sentences, and in the field `records` of a result row
    measures: tuple[Measure, ...]  # measures of guesses; the first one compares attacks
    likeness: str  # name of the measure of how much a guess reveals; a higher value reveals more
    floors: tuple[Floor, ...]  # guesses that need no release
    note: str  # note below a table of these measures
    model: str  # default model of a run
    baseline: str  # the attack that `--attack auto` mounts on an undefended model
    general: tuple[str, ...]  # attacks that `--attack auto` mounts on a defense without a measured strongest attack
    passive: tuple[str, ...] = ()  # attacks that `--attack auto` mounts if only the release was recorded
    perceived: tuple[Measure, ...] = ()  # measures by networks, with a column only in runs that have them
    pictures: bool = False  # whether records are shown as pictures

    @property
    def all_floors(self) -> tuple[Floor, ...]:
        """The guesses above, and those that use true labels."""
        drawn = any(floor.drawn for floor in self.floors)
        return (*self.floors, CLASS_MEAN, *((CLASS_RECORD,) if drawn else ()))

    @property
    def directions(self) -> dict[str, bool]:
        """Whether a higher value means a closer guess, for each measure that the domain computes."""
        return {measure.name: bool(measure.higher_is_closer) for measure in self.measures}


CLASS_MEAN = Floor(
    name="class_mean",
    title="class mean",
    gate="the mean of each record's true class",
    beaten="the mean of each record's true class",
    labels=True,
)
"""The guess that uses the true label, for any kind of record: the last constant guess, from records of this class."""
RANDOM_RECORD = Floor(
    name="random_own_record",
    title="random own record",
    gate="a random auxiliary record",
    beaten="a random record of the adversary",
    drawn=True,
)
"""A guess for kinds of records whose first measure counts exact matches, in which real records may beat a mean."""
CLASS_RECORD = Floor(
    name="random_own_record_of_class",
    title="random own record of the class",
    gate="a random auxiliary record of each record's true class",
    beaten="a random record of each record's true class",
    labels=True,
    drawn=True,
)

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
    note="Arrows show which direction is better for the defender. Images in [0, 1], PSNR in dB. Brackets are 95 % "
    "intervals over images. Worst: SSIM of the image that was recovered best. Matched: SSIM after the guesses "
    "are assigned to the images of their message with the smallest MSE, which needs the true images. Identified: share "
    "of images whose guess is nearer to them than to any other attacked image. A claim is proven if privkit ran the "
    "mechanism itself, and declared if somebody else says what was run. kB up: kilobytes of smashed data per image and "
    "round. A floor is a guess that ignores the smashed data; the class mean uses the true labels. A start is the "
    "attack before its first step; it may know the client's segment.",
    model="vit_micro",
    baseline="black_box:epochs=5",
    general=(
        *("black_box", "ridge", "posterior_mean", "seen_tokens", "mixture_posterior", "ridge:order=recognized"),
        *("fingerprints", "jigsaw", "white_box", "jigsaw_white_box", "adaptive", "unmix", "union"),
        *("mixture_posterior:passes=8", "jigsaw:passes=8", "white_box:passes=8"),
    ),
    passive=("fora",),
    pictures=True,
)

_RECORD_NOTE = (
    "after the guesses are assigned to the records of their message with the smallest error, which needs the true "
    "records. Identified: share of records whose guess is nearer to them than to any other attacked record. kB up: "
    "kilobytes of smashed data per record and round. A floor is a guess that ignores the smashed data; the class mean "
    "(of texts and tables, the commonest values of the class) uses the true labels."
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
        RANDOM_RECORD,
        Floor(
            name="commonest_tokens",
            title="commonest tokens",
            gate="the commonest auxiliary tokens",
            beaten="the commonest tokens",
        ),
    ),
    note="Arrows show which direction is better for the defender. Exact: share of sequences whose tokens are all "
    "right, whatever is guessed behind their end. Matched: ROUGE-1 " + _RECORD_NOTE,
    model="transformer_micro",
    baseline="vocabulary",
    general=(
        *("vocabulary", "token_decoder", "token_search", "nearest_record"),
        *("vocabulary:passes=8", "token_decoder:passes=8", "token_search:passes=8"),
    ),
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
        RANDOM_RECORD,
        Floor(
            name="commonest_values",
            title="commonest values",
            gate="the commonest auxiliary value of each column",
            beaten="the commonest value of each column",
        ),
    ),
    note="Arrows show which direction is better for the defender. Cells: share of cells recovered; a number counts if "
    "it is closer than a twentieth of its column's range. Dense error: mean absolute error as a share of that range. "
    "Matched: cells " + _RECORD_NOTE,
    model="table_mlp",
    baseline="ridge",
    general=(
        *("black_box", "ridge", "nearest_record", "field_order"),
        *("ridge:order=recognized", "adaptive", "ridge:passes=8"),
    ),
)

KINDS: dict[str, Records] = {kind.name: kind for kind in (IMAGES, TOKENS, TABLES)}
"""Name of a domain -> its records. A new domain needs one entry here, and its own package."""

TASK = (
    Measure(name="accuracy", heading="accuracy ↑"),
    Measure(name="task_mcc", heading="task MCC ↑", within=(-1.0, 1.0)),
    Measure(name="task_auc", heading="task AUC ↑"),
)
"""Measures of the defended model's task; higher is better for the defender."""

TOLD_APART = (
    Measure(name="auc", title="AUC", heading="AUC → .5", higher_is_closer=None),
    Measure(name="auc_per_batch", heading="AUC, mean of rounds", higher_is_closer=None, compared=False),
    Measure(name="tpr_at_1_percent", heading="TPR at 1 % FPR ↓"),
    Measure(name="advantage", within=UNBOUNDED, fitted=True),
    Measure(name="label_accuracy", heading="labels ↓", compared=False),
    Measure(name="cluster_accuracy", compared=False, fitted=True),
)
"""Measures of attacks that score examples, for example by their belief that the example is a member."""

ORDERS = (
    Measure(name="direct", heading="places ↓"),
    Measure(name="neighbor", heading="neighbors ↓"),
    Measure(name="membership", heading="membership ↓"),
    Measure(name="bits_before", higher_is_closer=False, within=(0.0, inf), unit="bit", compared=False),
    Measure(
        name="bits_left", heading="bits of the order left ↑", higher_is_closer=False, within=(0.0, inf), unit="bit"
    ),
)
"""Measures of attacks that restore the order of tokens."""

IDENTIFIED = Measure(name="identified")
"""Share of attacked records whose guess is nearer to them than to any other record, by the kind's first measure."""

OF_RECORDS: dict[str, Measure] = {
    **{measure.name: measure for kind in KINDS.values() for measure in (*kind.measures, *kind.perceived)},
    IDENTIFIED.name: IDENTIFIED,
}
"""Measures of guesses at records, in the order of every table."""
ANSWERS: dict[str, Measure] = {measure.name: measure for measure in (*TOLD_APART, *ORDERS)}
MEASURES: dict[str, Measure] = {**{measure.name: measure for measure in TASK}, **OF_RECORDS, **ANSWERS}
"""Name -> measure, for all measures."""
FLOORS: dict[str, Floor] = {floor.name: floor for kind in KINDS.values() for floor in kind.floors} | {
    floor.name: floor for floor in (CLASS_MEAN, CLASS_RECORD)
}
"""Name -> guess that needs no release."""
CONSTANT_ATTACKS = frozenset(floor.name for floor in FLOORS.values() if floor.mounted)
"""Names of the registered attacks that only make a guess of `FLOORS`."""


def measure(name: str) -> Measure:
    """Look up a measure by its name; a name outside the table, such as a plug-in's measure, serves as its own title.

    >>> measure("ssim").title, measure("matched_ssim").within, measure("sharpness").heading
    ('SSIM', (-1.0, 1.0), 'sharpness')
    """
    known = MEASURES.get(name) or MEASURES.get(name.removeprefix("matched_"))
    return known or Measure(name=name, higher_is_closer=None, within=UNBOUNDED)


def floor_title(name: str, protocol: str = "") -> str:
    """The title in tables of a guess without the release (a floor), with the protocol if given.

    >>> floor_title("mid_grey"), floor_title("loudest", "sl")
    ('mid-grey', 'loudest (sl)')
    """
    title = FLOORS[name].title if name in FLOORS else name
    return f"{title} ({protocol})" if protocol else title


def differs(values: Mapping[str, float | None]) -> bool:
    """Whether the scores of one guess, by protocol, differ in three decimals. They may, since each protocol attacks its
    own records.

    >>> differs({"sl": 0.1841, "cutmixsl": 0.1732}), differs({"sl": 0.1841, "cutmixsl": 0.1839}), differs({})
    (True, False, False)
    """
    return len({round(value, 3) for value in values.values() if value is not None}) > 1


def deciding(names: list[str]) -> str:
    """The name of the measure by which a result's attacks are compared.

    It is the first measure of a kind of records, such as "mse" for images, if it is in `names`; else the first of
    `names`; else "".

    >>> deciding(["psnr", "mse"]), deciding(["sharpness"]), deciding([])
    ('mse', 'sharpness', '')
    """
    first = (kind.measures[0].name for kind in KINDS.values())
    return next((name for name in first if name in names), names[0] if names else "")


def likeness(names: list[str]) -> str:
    """The name of the measure in `names` that shows how similar guesses look to the records, or ""."""
    return next((kind.likeness for kind in KINDS.values() if kind.likeness in names), "")
