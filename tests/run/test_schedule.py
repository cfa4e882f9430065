"""The order of cells: models are trained once, controls are done once, and all cells get a turn."""

import random

import pytest

from privkit.run.plan import Cell, Schedule, plan
from privkit.settings.resolve import resolve

ATTACKS = ["mean_image", "mid_grey"]


def with_twins(seeds: int) -> list[Cell]:
    """Of each seed: the baseline, four twins (one of them of two defenses), and five cells on defenses."""
    defenses = ["patch_shuffle", "batch_shuffle", "spectral_shuffle"]
    return plan(resolve({"attack": "auto", "defense": defenses, "seed": list(range(seeds))}))


def cells(seeds: int) -> list[Cell]:
    """Four cells per seed, of two models."""
    return plan(resolve({"attack": ATTACKS, "seed": list(range(seeds))}))


def schedule(planned: list[Cell], trained: set[str] | None = None, done: list[Cell] | None = None) -> Schedule:
    finished = done or []
    known = {cell.attack.label for cell in finished}
    return Schedule(planned, {cell.id for cell in finished}, known, (trained or set()).__contains__)


def test_one_at_a_time_is_the_order_of_the_plan() -> None:
    planned, trained, taken = cells(3), set[str](), []
    order = schedule(planned, trained)
    while (cell := order.take()) is not None:
        taken.append(cell)
        trained.add(cell.model_id)
        order.finish(cell)
    assert taken == planned


def test_cells_wait_for_a_model_and_for_the_controls_of_the_first_seed() -> None:
    planned, trained = cells(2), set[str]()
    order = schedule(planned, trained)
    assert [order.take(), order.take(), order.take()] == [planned[0], planned[3], None]  # two models, two attacks
    trained |= {planned[0].model_id, planned[3].model_id}
    order.finish(planned[0])
    assert order.take() == planned[4]  # a later seed after its first; [1] would begin the attack of [3]
    assert order.take() == planned[1]  # but nothing else is left
    order.finish(planned[3])
    assert [order.take(), order.take()] == [planned[2], planned[7]]
    assert order.take() is None


def test_a_cell_that_lost_its_worker_is_next_and_may_train_its_model() -> None:
    planned = cells(1)
    order = schedule(planned)
    assert order.take() == planned[0]
    order.again(planned[0])
    assert order.take() == planned[0]


def test_one_attack_on_two_models_is_begun_twice_if_nothing_else_is_left() -> None:
    planned = [cell for cell in cells(1) if cell.attack.label == "mean_image"]
    order = schedule(planned)
    assert [order.take(), order.take()] == planned


def test_finished_cells_are_left_out() -> None:
    planned = cells(2)
    order = schedule(planned, {planned[0].model_id}, planned[:1])
    assert order.take() == planned[1]


def test_twins_follow_the_cells_that_decide_and_come_first_in_the_plan() -> None:
    planned = with_twins(1)
    by_id = {cell.id: cell for cell in planned}
    twins = {cell.attack.label: [by_id[one].defense.label for one in cell.twin_of] for cell in planned if cell.twin_of}
    assert twins["jigsaw"] == ["patch_shuffle", "batch_shuffle"]
    assert twins["ridge:order=recognized"] == ["spectral_shuffle"]
    assert twins["jigsaw:passes=8"] == ["batch_shuffle"]
    places = [cell.defense.name == "none" for cell in planned]
    assert places == sorted(places, reverse=True)
    assert all(by_id[one].seed == cell.seed for cell in planned for one in cell.twin_of)


@pytest.mark.parametrize("seed", range(20))
def test_a_twin_runs_if_its_attack_failed_somewhere_and_makes_its_controls_on_the_first_seed_that_needs_it(
    seed: int,
) -> None:
    """Several workers, in any order, and a command that stops halfway: the same cells, from the rows alone."""
    dice, planned = random.Random(seed), with_twins(3)
    failed = {cell.id for cell in planned if not cell.twin_of and dice.random() < 0.3}
    wanted = [cell for cell in planned if not cell.twin_of or failed.intersection(cell.twin_of)]
    finished, running = list[Cell](), list[Cell]()

    def begun() -> Schedule:
        known = {cell.attack.label for cell in finished}
        return Schedule(planned, {cell.id for cell in finished}, known, lambda model: True, failed.__contains__)

    order, stop = begun(), dice.randrange(len(wanted))
    while True:
        while len(running) < 4 and (cell := order.take()) is not None:
            ended = {done.id for done in finished}
            assert not cell.twin_of or failed & ended & set(cell.twin_of)
            same = [one for one in wanted if (one.defense, one.attack) == (cell.defense, cell.attack)]
            assert cell is same[0] or same[0].id in ended
            running.append(cell)
        if not running:
            break
        if len(finished) == stop:
            running, stop = [], -1
            order = begun()
            continue
        finished.append(running.pop(dice.randrange(len(running))))
        order.finish(finished[-1])
    assert sorted(cell.id for cell in finished) == sorted(cell.id for cell in wanted)


@pytest.mark.parametrize("seed", range(20))
def test_every_cell_has_its_turn_once_and_no_model_two_trainers(seed: int) -> None:
    dice, planned, trained = random.Random(seed), cells(5), set[str]()
    order, running, finished = schedule(planned, trained), list[Cell](), list[Cell]()
    first = {(cell.defense.label, cell.attack.label): cell.id for cell in planned if cell.seed == 0}
    while True:
        while len(running) < 6 and (cell := order.take()) is not None:
            training = {other.model_id for other in running} - trained
            assert cell.model_id not in training
            ended = {done.id for done in finished}
            assert cell.seed == 0 or first[cell.defense.label, cell.attack.label] in ended
            running.append(cell)
        if not running:
            break
        cell = running.pop(dice.randrange(len(running)))
        if dice.random() < 0.2:
            order.again(cell)
            continue
        if dice.random() < 0.9:  # else its training failed
            trained.add(cell.model_id)
        finished.append(cell)
        order.finish(cell)
    assert sorted(cell.id for cell in finished) == sorted(cell.id for cell in planned)
