"""Hooks of mkdocs: the site's navigation follows the links of its READMEs, its reference of names their `__all__`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import griffe

from privkit.shared.threat_models import THREAT_MODELS, threat_name

DOCS = Path(__file__).parent
PACKAGE = re.compile(r"^::: (privkit(?:\.\w+)?)$", flags=re.MULTILINE)
"""A line of a page that stands for the public names of a package."""
ADVERSARY = re.compile(f"<th>(adversary|{'|'.join(map(threat_name, THREAT_MODELS))})</th>")
"""A heading of a column of adversaries, or of what one of them found."""


EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", flags=re.MULTILINE)
"""An example of a docstring: it ends at an empty line."""


class Examples(griffe.Extension):
    """Sets the examples of docstrings as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence the examples of one docstring."""
        if obj.docstring is not None and not obj.is_alias:
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)


def on_config(config: Any) -> Any:
    """Put the pages of a folder where the navigation names the folder."""
    named = set(pages(config.nav))
    config.nav = [filled(entry, named) for entry in config.nav]
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put each public name of a package where a page names the package."""
    return PACKAGE.sub(lambda found: "\n\n".join(f"::: {name}" for name in public(found[1])), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Mark the columns by which tables.js filters by adversary."""
    return ADVERSARY.sub(r"<th data-adversary>\1</th>", html)


def public(package: str) -> Iterator[str]:
    """Where each public name of a package is defined; the package itself if it lists none."""
    module = import_module(package)
    for name in getattr(module, "__all__", ()):
        one = getattr(module, name)
        home = getattr(one, "__module__", None) if isinstance(one, type) or callable(one) else None
        if not name.startswith("_"):
            yield f"{home}.{name}" if str(home).startswith("privkit") else f"{package}.{name}"
    if not hasattr(module, "__all__"):
        yield package


def pages(entry: Any) -> Iterator[str]:
    """The files and folders that a part of the navigation names."""
    if isinstance(entry, str):
        yield entry
    for inner in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
        yield from pages(inner)


def filled(entry: Any, named: set[str]) -> Any:
    """A part of the navigation, with the pages of each folder that stand nowhere else."""
    if isinstance(entry, dict):
        return {heading: filled(inner, named) for heading, inner in entry.items()}
    if isinstance(entry, list):
        return [filled(inner, named) for inner in entry]
    return [page for page in listed(entry) if page not in named] if entry.endswith("/") else entry


def listed(folder: str) -> list[str]:
    """A folder's README, then the pages to which it links, in their order."""
    text = (DOCS / folder / "README.md").read_text(encoding="utf-8")
    return [f"{folder}{page}" for page in dict.fromkeys(["README.md", *re.findall(r"\]\(([\w-]+\.md)\)", text)])]
