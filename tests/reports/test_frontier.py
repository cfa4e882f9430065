"""The privacy–utility frontier: from made-up rows, and as a command."""

import csv
import io
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from privkit.cli.sweeps import varied
from privkit.errors import UsageError
from privkit.reports.frontier import frontier, frontier_chart, frontier_csv, frontier_table
from privkit.reports.schema import Check, Row
from privkit.reports.seed_intervals import over_seeds
from privkit.reports.tables import table
from privkit.settings.resolve import resolve
from privkit.shared.certificate import Certificate
from privkit.shared.interval import Interval
from tests.reports.made import made, metric


def row(
    defense: str, accuracy: float, ssim: float, *, attack: str = "black_box", epsilon: float = 0, seed: int = 0
) -> Row:
    proof = Certificate(kind="differential_privacy", statement="s", epsilon=epsilon, delta=1e-5) if epsilon else None
    return made(
        defense=defense,
        attack=attack,
        seed=seed,
        accuracy=Interval(value=accuracy, low=accuracy - 0.02, high=accuracy + 0.02, n=100, method="m"),
        recovered={
            "unaligned": {"ssim": metric(ssim, ssim - 0.05, ssim + 0.05, worst=ssim, closer=True)},
            "matched": {},
        },
        floors={"mean_image": {"unaligned": {"ssim": metric(0.1, 0.1, 0.1, worst=0.1, closer=True)}}},
        certificate=proof,
    )


ROWS = [
    row("none", 0.95, 0.9),
    row("gaussian_noise:sigma=0.1", 0.93, 0.6, epsilon=900),
    row("gaussian_noise:sigma=0.1", 0.93, 0.7, attack="white_box", epsilon=900),
    row("gaussian_noise:sigma=0.1", 0.93, 0.99, attack="mean_image", epsilon=900),
    row("gaussian_noise", 0.8, 0.3, epsilon=20),
    row("masking:keep=0.2", 0.7, 0.5),
]


def test_a_point_is_the_strongest_attack_on_one_setting() -> None:
    found = frontier(ROWS)
    assert found is not None
    assert [(p.defense, p.attack, p.recovered.value, p.epsilon) for p in found.points] == [
        ("none", "black_box", 0.9, None),
        ("gaussian_noise:sigma=0.1", "white_box", 0.7, 900),
        ("gaussian_noise", "black_box", 0.3, 20),
        ("masking:keep=0.2", "black_box", 0.5, None),
    ]
    assert [p.setting for p in found.points] == ["", "sigma=0.1", "", ""]
    assert [p.dominated for p in found.points] == [False, False, False, True]
    assert found.floors == {"mean image": pytest.approx(0.1)}


def test_less_than_two_defended_settings_are_no_frontier() -> None:
    assert frontier(ROWS[:4]) is None
    assert frontier([]) is None
    assert frontier([changed.model_copy(update={"status": "error"}) for changed in ROWS]) is None


def test_intervals_are_over_seeds_where_there_are_several() -> None:
    rows = [row(d, a + s / 50, 0.3 + s / 10, seed=s) for d, a in (("masking", 0.7), ("mixup", 0.8)) for s in (0, 1)]
    found = frontier(rows)
    assert found is not None
    first = next(summary for summary in over_seeds(rows) if summary.defense == "masking")
    assert (found.points[0].accuracy, found.points[0].seeds) == (first.values["accuracy"], 2)
    assert found.points[0].recovered == first.values["ssim"]


def test_what_an_attack_began_from_is_drawn_where_it_gives_away_more() -> None:
    starts = {"zero_steps": row("none", 0, 0.8).recovered}
    rows = [one.model_copy(update={"floors": one.floors | starts}) if "masking" in one.defense else one for one in ROWS]
    found = frontier(rows)
    assert found is not None
    last = found.points[-1]
    assert (last.guesses, last.recovered.value) == ("black_box, before its first step", 0.8)
    assert frontier_table(found).rows[3][1] == "black_box, before its first step"
    assert "black_box, before its first step;" in frontier_chart(found).marks[3].name


def test_an_attack_that_failed_its_control_is_drawn_only_without_a_sound_break_and_is_marked() -> None:
    failed = Check(name="wins_on_identity", passed=False, detail="no", decisive=True)
    cheat = row("masking", 0.7, 0.9, attack="mine:Cheat").model_copy(update={"checks": (failed,)})
    alone, both = (frontier([cheat, *others], least=0) for others in ([], [row("masking", 0.7, 0.5)]))
    assert alone is not None
    assert both is not None
    assert alone.points[0].guesses == "mine:Cheat, which failed its control"
    assert both.points[0].guesses == "black_box"


def test_a_floor_that_differs_between_protocols_is_shown_for_each_and_a_setting_has_its_own() -> None:
    """An average over protocols is true of no row."""
    other = row("mixup", 0.8, 0.4).model_copy(update={"protocol": "cutmixsl"})
    other.floors["mean_image"]["unaligned"]["ssim"] = metric(0.2, 0.2, 0.2, worst=0.2, closer=True)
    rows = [row("masking", 0.7, 0.5), row("blur", 0.7, 0.5), other]
    found = frontier(rows)
    assert found is not None
    assert found.floors == {"mean image (sl)": pytest.approx(0.1), "mean image (cutmixsl)": pytest.approx(0.2)}
    assert [point.floors["mean_image"] for point in found.points] == pytest.approx([0.1, 0.1, 0.2])
    shown = [line[1] for line in table(rows).lines(floors=True)]
    assert shown == ["mean image (sl)", "mean image (cutmixsl)"]
    seeds = [one.model_copy(update={"seed": seed}) for one in rows for seed in (0, 1)]
    assert {one.protocol for one in over_seeds(seeds) if one.floor} == {"sl", "cutmixsl"}
    assert [one.protocol for one in over_seeds(seeds[:4]) if one.floor] == [""]


@pytest.mark.parametrize(
    ("accuracy", "ssim", "epsilon", "dominated"),
    [
        (0.85, 0.3, 20, True),  # .8 ± .02 and .85 ± .02 do not meet
        (0.83, 0.3, 20, False),
        (0.8, 0.19, 20, True),
        (0.8, 0.25, 20, False),
        (0.85, 0.19, 21, False),  # it proves less
        (0.8, 0.3, 19, True),
        (0.85, 0.19, 0, False),  # it proves nothing
        (0.79, 0.19, 19, False),
    ],
)
def test_a_setting_is_dominated_by_more_than_its_intervals_and_never_by_a_weaker_proof(
    accuracy: float, ssim: float, epsilon: float, dominated: bool
) -> None:
    found = frontier([row("masking", 0.8, 0.3, epsilon=20), row("blur", accuracy, ssim, epsilon=epsilon)])
    assert found is not None
    assert [point.dominated for point in found.points] == [dominated, False]


FAMILIES = ["gaussian_noise", "masking"]


def test_table_figure_and_csv_show_the_same_points() -> None:
    found = frontier(ROWS)
    assert found is not None
    table = frontier_table(found)
    assert table.floor == (False,) * 4 + (True,)
    lines = list(csv.DictReader(io.StringIO(frontier_csv(found))))
    assert [float(line["ssim"]) for line in lines] == [0.9, 0.7, 0.3, 0.5]
    assert [line["epsilon"] for line in lines] == ["", "900", "20", ""]
    chart = frontier_chart(found)
    assert [mark.label for mark in chart.marks if mark.label] == ["undefended", "gaussian_noise sigma=0.1", *FAMILIES]
    assert (chart.x_label, chart.y_label) == ("task accuracy", "SSIM of the strongest attack")


def test_marks_lie_where_the_numbers_are_and_their_color_is_epsilon() -> None:
    found = frontier(ROWS)
    assert found is not None
    chart = frontier_chart(found)
    marks = dict(zip((point.defense for point in found.points), chart.marks, strict=True))
    strong, weak = marks["gaussian_noise"], marks["gaussian_noise:sigma=0.1"]
    assert strong.x < weak.x
    assert strong.y > weak.y  # a sheet's places count downwards
    assert strong.strength == 1  # the smallest ε
    assert weak.strength == pytest.approx(0.18)
    assert marks["masking:keep=0.2"].strength is None
    assert "pale" in marks["masking:keep=0.2"].kind
    assert marks["none"].kind == "undefended"
    floor = next(shape for shape in chart.shapes if shape.kind == "floor")
    assert float(floor.points.split(",")[1].split()[0]) == pytest.approx(chart.y([0.1])[0], abs=0.1)


@pytest.mark.parametrize("apart", [0.001, 0.01, 0.02, 0.03, 0.05])
def test_no_line_of_a_floor_crosses_the_words_of_another(apart: float) -> None:
    rows = [row("masking", 0.7, 0.5), row("blur", 0.8, 0.4)]
    for one in rows:
        for number, name in enumerate(("mid_grey", "mean_image", "class_mean")):
            value = 0.2 + number * apart
            one.floors[name] = {"unaligned": {"ssim": metric(value, value, value, worst=value, closer=True)}}
    found = frontier(rows)
    assert found is not None
    chart = frontier_chart(found)
    heights = [float(chart.y([value])[0]) for value in found.floors.values()]
    assert not any(bottom - 13 < height < bottom for _, bottom, _ in chart.words for height in heights)
    assert ", ".join(text for *_, text in chart.words) == "mid-grey, mean image, class mean"


def test_labels_that_have_no_room_are_left_to_the_table() -> None:
    crowd = [row(f"masking:keep=0.{number}", 0.8, 0.4) for number in range(1, 9)]
    found = frontier(crowd)
    assert found is not None
    assert 0 < sum(bool(mark.label) for mark in frontier_chart(found).marks) < 8


def test_a_single_defended_setting_is_drawn_if_asked_for() -> None:
    found = frontier(ROWS[:4], least=0)
    assert found is not None
    assert len(frontier_chart(found).marks) == 2


@pytest.mark.parametrize(
    ("defense", "vary", "labels"),
    [
        ("batch_shuffle", ["keep=.1,.2"], ["batch_shuffle:keep=0.1", "batch_shuffle:keep=0.2"]),
        (
            "gaussian_noise:sigma=9,clip_by=image+masking",
            ["keep=.1,.3", "clip=2,3"],
            [
                f"gaussian_noise:sigma=9.0,clip={clip},clip_by=image+masking:keep={keep}"
                for keep in ("0.1", "0.3")
                for clip in ("2.0", "3.0")
            ],
        ),
    ],
)
def test_a_defense_is_varied(defense: str, vary: list[str], labels: list[str]) -> None:
    assert varied(defense, vary) == labels


def test_a_defense_is_varied_under_its_own_protocol() -> None:
    found = resolve({"defense": varied("mixup:protocol=psl", ["group=2,3"])})
    labels = ["none", "mixup:protocol=psl", "mixup:group=3,protocol=psl"]
    assert (found.protocol.label, [defense.label for defense in found.defenses]) == ("psl", labels)


@pytest.mark.parametrize(
    ("defense", "vary", "sentence"),
    [
        ("gaussian_noise", "sgima=1,2", "did you mean 'sigma'"),
        ("gaussian_noise", "sigma=1", "at least two values"),
        ("gaussian_noise", "sigma", "such as sigma=.1,.3"),
        ("gaussian_noise", "sigma=1,-1", "sigma must be a finite number >= 1e-30"),
        ("masking@client+masking@server", "keep=.1,.2", "both have an option keep"),
        ("gaussian_noise:sigma=9", "sigma=.1,.2", "gaussian_noise:sigma=9.0 and --vary sigma=.1,.2 both set sigma"),
    ],
)
def test_bad_strengths_are_refused_in_a_sentence(defense: str, vary: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        varied(defense, [vary])


def test_a_frontier_of_nothing_is_refused(
    privkit_cli: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    refused = privkit_cli("frontier", "--defense", "gaussian_noise")
    assert (refused.returncode, "frontier needs a defense and its strengths" in refused.stderr) == (2, True)
    both = privkit_cli("frontier", "--from", "run", "--defense", "masking")
    assert (both.returncode, "leave out --defense" in both.stderr) == (2, True)


@pytest.mark.slow
def test_the_command_draws_a_new_run_and_an_earlier_one(
    privkit_cli: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "noise.toml").write_text('defense = "gaussian_noise"')
    vary = ("--config", "noise.toml", "--vary", "sigma=.3,3")
    small = (
        "--attack",
        "mean_image",
        "--dataset",
        "tiny_digits",
        "--budget",
        "smoke",
        "--threads",
        "1",
        "--out",
        "run",
    )
    done = privkit_cli("frontier", *vary, *small)
    assert done.returncode == 0
    assert "strongest attack" in done.stdout
    report = tmp_path / "run" / "report"
    kept = {name: (report / name).read_bytes() for name in ("figures/frontier.svg", "tables/frontier.csv")}
    (report / "figures" / "frontier.svg").unlink()
    assert privkit_cli("verify", "run").returncode == 3
    again = privkit_cli("frontier", "--from", "run", "--quiet")
    assert (again.returncode, again.stdout) == (0, "")
    assert {name: (report / name).read_bytes() for name in kept} == kept
    assert privkit_cli("verify", "run").returncode == 0


def test_a_setting_with_a_seed_that_proves_nothing_has_no_proven_epsilon() -> None:
    rows = [row("gaussian_noise", 0.8, 0.3, epsilon=epsilon, seed=seed) for seed, epsilon in ((0, 20), (1, 0))]
    found = frontier([*rows, row("masking", 0.8, 0.3)])
    assert found is not None
    assert found.points[0].epsilon is None
