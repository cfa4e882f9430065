"""HTML of tables and runs for a notebook, with escaped text and embedded images."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape as quoted
from pathlib import Path
from typing import TYPE_CHECKING

from privkit.reports.escape import markup
from privkit.reports.gallery import data_uri

if TYPE_CHECKING:
    from privkit.reports.tables import Table
    from privkit.reports.verdict import Verdict


def html_table(shown: Table, note: str = "") -> str:
    """A table as HTML, with `note` below. Lines of guesses without the release (floors) are gray."""
    head = "".join(f"<th>{_text(header)}</th>" for header in shown.headers)
    lines = []
    for row, floor in zip(shown.rows, shown.floor, strict=True):
        style = ' style="color: gray"' if floor else ""
        lines.append(f"<tr{style}>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>")
    body = "".join(lines)
    remark = f"<p><small>{_text(note)}</small></p>" if note else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{remark}"


def html_picture(data: bytes, caption: str, kind: str = "image/png") -> str:
    """An image as an HTML element, embedded as a data URI and at most 640 pixels wide; `data` is the file's content."""
    style = "width: 100%; max-width: 640px; image-rendering: pixelated"
    return f'<img src="{data_uri(data, kind)}" alt="{_text(caption)}" style="{style}">'


def html_run(tables: Sequence[tuple[Table, str]], verdict: Verdict, page: Path) -> str:
    """A run as HTML: its verdict, its tables with notes, and its reconstructed images, if there are any."""
    told = "".join(f"<li>{_text(failure)}</li>" for failure in verdict.failures)
    parts = [f"<p><b>{_text(verdict.sentence)}</b></p>", f"<ul>{told}</ul>" if told else ""]
    parts += [html_table(shown, note) for shown, note in tables]
    strips = page.parent / "figures" / "reconstructions.svg"
    if strips.is_file():
        parts.append(html_picture(strips.read_bytes(), "records, and the guesses at them", "image/svg+xml"))
    return "".join([*parts, f"<p>report: <code>{_text(str(page))}</code></p>"])


def _text(text: str) -> str:
    return quoted(markup(text))
