"""Checks the names of networks in the setting `features` before a network is loaded."""

from __future__ import annotations

from collections.abc import Sequence

from privkit.errors import UsageError

TRUNKS = ("alex", "vgg", "squeeze")  # the trunks of LPIPS


def check_names(names: Sequence[str]) -> None:
    """Raise `UsageError` for an unknown trunk of LPIPS, a classifier without a path, or two networks of one kind."""
    kinds = [network_kind(name) for name in names]
    if len(kinds) > len(set(kinds)):
        allowed = "one network, one lpips:TRUNK and one classifier at most"
        raise UsageError(f"features takes {allowed}, got {', '.join(names)}")
    for name, kind in zip(names, kinds, strict=True):
        if kind == "lpips" and name.partition(":")[2] not in TRUNKS:
            raise UsageError(f"the trunk of LPIPS must be {', '.join(TRUNKS)}, got {name!r}")
        if name == "classifier:":
            raise UsageError("classifier: needs the path of a TorchScript file; classifier alone trains one")


def check_channels(names: Sequence[str], channels: int) -> None:
    """Raise `UsageError` if networks are named and images are neither grey nor in three colors."""
    if names and channels not in (1, 3):
        raise UsageError(
            f"features={','.join(names)} reads grey or color images, and these have {channels} channels; leave it out, "
            "or drop the other channels"
        )


def network_kind(name: str) -> str:
    """The kind of a network from its name: "lpips", "classifier", or "" for a feature network."""
    kind = name.partition(":")[0]
    return kind if kind == "classifier" or name.startswith("lpips:") else ""
