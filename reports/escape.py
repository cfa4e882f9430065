"""Escapes text of unknown origin for each kind of output.

Names of defenses, attacks and table rows come from plug-ins, parameter tables and run folders. Such text must be shown,
and never be interpreted as a command, markup or formula.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

CONTROLS = (*range(32), *range(127, 160), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
"""Characters that move the cursor, start an escape sequence, end a line or turn the direction of writing."""
_NOT_IN_XML = (*range(0xD800, 0xE000), 0xFFFE, 0xFFFF)
"""Surrogates, which cannot be encoded, and two codes that XML forbids."""
_VISIBLE = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    for code in (*CONTROLS, *_NOT_IN_XML)
    if chr(code) not in "\n\t"
}
_ONE_LINE = _VISIBLE | {ord("\n"): r"\n", ord("\t"): r"\t"}
_CI_COMMAND = re.compile(r":(:)(?=[A-Za-z])|#(#)(?=[A-Za-z]*\[)")
"""Commands that a CI system obeys: ::error at the beginning of a line; ##[error] or ##vso[ anywhere in a line."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # wide characters start formulas, too
_SIGNS = (
    *("↑ uparrow", "↓ downarrow", "→ to", "× times", "∞ infty", "⌈ lceil", "⌉ rceil", "≥ geq", "≤ leq", "√ surd"),
    *("ε varepsilon", "δ delta", "σ sigma", "λ lambda", "γ gamma", "α alpha", "μ mu"),
)
"""Signs with their LaTeX names in formulas."""
_TEXT_SIGNS = ("\\ backslash", "~ asciitilde", "^ asciicircum", "< less", "> greater", "| bar", "` asciigrave")
_LATEX = str.maketrans(
    {sign: rf"$\{name}$" for sign, name in map(str.split, _SIGNS)}
    | {sign: rf"\text{name}{{}}" for sign, name in map(str.split, _TEXT_SIGNS)}
    | {sign: rf"\{sign}" for sign in "{}$_%#&"}
    | {'"': "''", "–": "--", "₁": "$_1$", "₂": "$_2$", "₃": "$_3$", "−": "$-$", "²": "$^2$"}  # − is the minus sign
)
_MARKDOWN = {ord("\\"): r"\\", ord("|"): r"\|", ord("<"): "&lt;", ord("&"): "&amp;"}


def terminal(text: str) -> str:
    r"""One line of text for a terminal or a log; control characters are shown as escapes.

    Unescaped control characters could move the cursor, a line end could forge a line, and a CI system could obey a line
    of the log.

    >>> print(terminal("\x1b]0;title\x07, a\n::error::b"))
    \x1b]0;title\x07, a\n:\x3aerror:\x3ab
    """
    return _CI_COMMAND.sub(lambda found: rf"{found[0][0]}\x{ord(found[0][0]):02x}", text.translate(_ONE_LINE))


def console(width: int | None = None) -> Console:
    """A console that prints each text as one line, escaped by `terminal`."""
    from rich.console import Console
    from rich.text import Text

    class Plain(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(terminal(text), **options)

    return Plain(width=width, emoji=False)  # otherwise :Hushed: in an import path could become a picture


def workflow_message(text: str) -> str:
    r"""The text of a workflow command of GitHub Actions (`::error …`), escaped; line ends are kept.

    Source: GitHub, "Workflow commands for GitHub Actions".
    """
    return text.translate(_VISIBLE).replace("%", "%25").replace("\n", "%0A")


def markup(text: str) -> str:
    r"""Text for XML and HTML, in which characters that XML forbids are visible escapes; < must still be escaped."""
    return text.translate(_VISIBLE)


def terminal_json(text: str) -> str:
    r"""JSON text for a terminal: control characters become JSON escapes, so a program reads the same values."""
    shown = text.translate({code: rf"\u{code:04x}" for code in _VISIBLE})
    return re.sub(r"##(?=[A-Za-z]*\[)", r"#\\u0023", shown)


def csv_cell(value: object) -> object:
    r"""A CSV cell: text is put into one line, and gets an apostrophe in front if a spreadsheet would run it as a
    formula.

    Source: OWASP, "CSV injection".
    """
    if not isinstance(value, str):
        return value
    return f"'{terminal(value)}" if value.startswith(_FORMULA) else terminal(value)


def latex(text: str) -> str:
    r"""One line of text that LaTeX prints literally."""
    escaped = terminal(" ".join(text.split())).translate(_LATEX)
    return f"{{{escaped[0]}}}{escaped[1:]}" if escaped[:1] in ("[", "*") else escaped  # otherwise an option of \\\\


def markdown(text: str) -> str:
    r"""Text that Markdown prints literally inside one table cell."""
    return terminal(" ".join(text.split())).translate(_MARKDOWN).replace("](", r"]\(").replace("][", r"]\[")


def figure(text: str) -> str:
    r"""Text that matplotlib draws literally: dollar signs are escaped, since a pair of them would enclose a formula."""
    return terminal(text).replace("$", r"\$")
