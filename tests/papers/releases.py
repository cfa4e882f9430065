"""Releases of DP-CutMixSL: of one number, and drawn by hypothesis."""

from math import inf
from typing import Any, get_args

from hypothesis import strategies as st

from privkit.papers.dp_cutmixsl.setting import GroupRelease, Mechanism
from privkit.papers.values import printed

MECHANISMS: tuple[Mechanism, ...] = get_args(Mechanism)
PRINTED_SIZES = {
    "dp_mixsl": printed("dp_cutmixsl", "Fig. 7", "DP-MixSL", "k₂*"),
    "dp_cutmixsl": printed("dp_cutmixsl", "Fig. 7", "DP-CutMixSL", "k₃*"),
}
SIGMA = st.floats(0.01, 50.0)
ORDER = st.floats(1.01, 200.0)
DELTA = st.floats(1e-12, 0.9)


def one_number(**changes: Any) -> GroupRelease:
    """DP-SL of one number in [0, 1] with σ = 1, so that μ = 1."""
    base: dict[str, Any] = {
        "mechanism": "dp_sl",
        "sigma": 1.0,
        "dimensions": 1,
        "clip": 1.0,
        "label_dimensions": 1,
        "labels": "none",
        "group": 1,
        "clients": 10,
        "noise_site": "mixer",
        "sampling": "without_replacement",
    }
    return GroupRelease(**{**base, **changes})


settings_of_releases = st.builds(
    lambda group, extra, ratio, **rest: GroupRelease(
        group=group,
        clients=group + extra,
        mixing_ratio=None if rest["mechanism"] == "dp_sl" or ratio is None else max(ratio, 1 / group),
        **rest,
    ),
    mechanism=st.sampled_from(MECHANISMS),
    sigma=SIGMA,
    sigma_labels=st.none() | SIGMA,
    dimensions=st.integers(1, 5000),
    clip=st.floats(0.01, 5.0),
    label_dimensions=st.integers(1, 20),
    labels=st.sampled_from(["one_hot", "unit_box", "none"]),
    classes=st.none() | st.integers(1, 20),
    group=st.integers(1, 8),
    extra=st.integers(0, 30),
    ratio=st.none() | st.integers(50, 1000).map(lambda thousandths: thousandths / 1000),
    concentration=st.none() | st.floats(0.1, 10.0),
    patches=st.none() | st.integers(1, 100),
    noise_site=st.sampled_from(["mixer", "client"]),
    sampling=st.sampled_from(["without_replacement", "partition"]),
)


JUNK = st.sampled_from([float("nan"), inf, -inf, -1.0, -1, 0, True, None, "1", [1.0]])
