"""Rows that a test makes up."""

from privkit.reports.schema import Metric, Row
from privkit.shared.interval import Interval


def metric(value: float, low: float, high: float, *, worst: float, closer: bool) -> Metric:
    return Metric(value=value, low=low, high=high, worst=worst, higher_is_closer=closer, n=50, method="bootstrap")


def made(**changes: object) -> Row:
    ssim = metric(0.3, 0.2, 0.4, worst=0.8, closer=True)
    fields: dict[str, object] = {
        "cell": "c",
        "status": "done",
        "defense": "batch_shuffle",
        "attack": "black_box",
        "dataset": "digits",
        "protocol": "sl",
        "partition": "iid",
        "model": "vit_micro",
        "seed": 0,
        "auxiliary": "disjoint",
        "attacked": "private",
        "batch_size": 50,
        "accuracy": Interval(value=0.9, low=0.8, high=0.95, n=100, method="m"),
        "recovered": {"unaligned": {"ssim": ssim}, "matched": {}},
    }
    return Row.model_validate({**fields, **changes})
