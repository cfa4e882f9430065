"""Times of computations that take turns."""

from collections.abc import Callable, Mapping
from statistics import median
from time import process_time


def in_turns(
    works: Mapping[str, Callable[[], object]], turns: int, clock: Callable[[], float] = process_time
) -> dict[str, list[float]]:
    """Seconds of each work in each turn, after one turn that does not count; a slow minute affects all works."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(turns + 1):
        for name, work in works.items():
            start = clock()
            work()
            if turn:
                times[name].append(clock() - start)
    return times


def seconds(work: Callable[[], object], repeats: int, clock: Callable[[], float] = process_time) -> float:
    """Median seconds of one work, after one run that does not count."""
    return median(in_turns({"": work}, repeats, clock)[""])
