"""Reads the papers' own settings by name (presets); a configuration file and flags take precedence over them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privkit.errors import unknown
from privkit.papers import PAPERS, paper
from privkit.parts.registry import read_options
from privkit.settings.resolve import read_toml


def presets() -> dict[str, Path]:
    """Preset name -> file, for the presets of all papers."""
    return {path.stem: path for name in PAPERS for path in paper(name).presets}


PUBLISHED_WORK = {"escalate": 0}  # a paper's attack trains as long as in the paper, also if it fails


def preset(name: str) -> dict[str, Any]:
    """Read the settings of a preset, as input for `resolve`. Raises `UsageError` if there is no such preset."""
    known = presets()
    if name not in known:
        raise unknown("preset", name, known)
    return {**PUBLISHED_WORK, **read_toml(known[name])}


def preset_settings(path: Path) -> dict[str, Any]:
    """Read the settings of a file. If it names a preset, the file's settings take precedence over the preset's."""
    given = read_toml(path)
    named = given.pop("preset", None)
    return given if named is None else overridden(preset(str(named)), given)


def overridden(settings: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a preset's settings with the user's, which take precedence; options of `training` are merged one by one."""
    merged = {**settings, **given}
    own = given.get("training")
    if isinstance(own, str):
        own = read_options(own, own)
    if isinstance(own, Mapping) and "training" in settings:
        merged["training"] = {**settings["training"], **own}
    return merged
