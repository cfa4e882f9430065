"""The seconds that each stage of a result takes: training, attack, and control experiments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from privkit.reports.schema import Seconds

_DIGITS = 3


@dataclass(kw_only=True)
class Spent:
    """A stopwatch for one result of an audit: the seconds of training, attack and control experiments.

    >>> times = iter([0.0, 5.0, 6.0, 8.0, 9.0])
    >>> spent = Spent(clock=lambda: next(times))
    >>> spent.trained(3.5)
    >>> with spent.controlling():
    ...     pass
    >>> spent.seconds
    Seconds(training=3.5, attack=2.0, controls=2.0)
    """

    clock: Callable[[], float]  # returns the time in seconds, as `privkit.torch_utils.clock`
    training: float | None = None  # seconds of training the model, even for another result; None for a recording
    controls: float = 0.0  # seconds of the attack's control experiments, even for another result
    earlier: float = 0.0  # seconds of the attack before interruptions of the run
    _since: float = field(init=False)

    def __post_init__(self) -> None:
        self._since = self.clock()

    def trained(self, seconds: float) -> None:
        """Note that the model is trained; later seconds belong to the attack."""
        self.training, self._since = seconds, self.clock()

    @contextmanager
    def controlling(self) -> Iterator[None]:
        """Count the seconds of this block as time of control experiments."""
        start = self.clock()
        yield
        seconds = self.clock() - start
        self.controls += seconds
        self._since += seconds

    def attacked(self) -> float:
        """Seconds of the attack in this process."""
        return self.clock() - self._since

    @property
    def seconds(self) -> Seconds:
        """The seconds of each stage, for the result row."""
        return Seconds(
            training=None if self.training is None else round(self.training, _DIGITS),
            attack=round(self.earlier + self.attacked(), _DIGITS),
            controls=round(self.controls, _DIGITS),
        )
