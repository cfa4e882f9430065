"""Other people's text, made harmless for what shows it: a terminal, a spreadsheet, LaTeX, Markdown, a figure.

Names of defenses, attacks and rows come from plug-ins, parameter tables and run folders, and none of them may act.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

CONTROLS = (
    *range(32),
    *range(127, 160),
    0x061C,
    *range(0x200E, 0x2010),
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
)
"""Characters that move the cursor, start an escape sequence, end a line or turn the direction of writing."""
_VISIBLE = {code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in CONTROLS if chr(code) not in "\n\t"}
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # wide ones start formulas, too
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "{": r"\{",
        "}": r"\}",
        "$": r"\$",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "_": r"\_",
        "%": r"\%",
        "#": r"\#",
        "&": r"\&",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        '"': "''",
        "`": r"\textasciigrave{}",
        "↑": r"$\uparrow$",
        "↓": r"$\downarrow$",
        "→": r"$\to$",
        "–": "--",
        "×": r"$\times$",
        "∞": r"$\infty$",
        "ε": r"$\varepsilon$",
        "δ": r"$\delta$",
        "σ": r"$\sigma$",
        "λ": r"$\lambda$",
        "γ": r"$\gamma$",
        "α": r"$\alpha$",
        "μ": r"$\mu$",
        "⌈": r"$\lceil$",
        "⌉": r"$\rceil$",
        "≥": r"$\geq$",
        "≤": r"$\leq$",
        "√": r"$\surd$",
        "₁": r"$_1$",
        "₂": r"$_2$",
        "₃": r"$_3$",
        "−": "$-$",  # the minus sign
        "²": r"$^2$",
    }
)


def terminal(text: str) -> str:
    r"""Text whose control characters are shown, not sent; line ends and tabs stay.

    >>> print(terminal("\x1b]0;title\x07"))
    \x1b]0;title\x07
    """
    return text.translate(_VISIBLE)


def console(width: int | None = None) -> Console:
    """A terminal that shows control characters of whatever text is printed on it, and sends none."""
    from rich.console import Console
    from rich.text import Text

    class Plain(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(terminal(text), **options)

    return Plain(width=width)


def csv_cell(value: object) -> object:
    """A text that a spreadsheet would take for a formula gets an apostrophe before it; numbers stay numbers.

    Source: OWASP, "CSV injection".

    >>> csv_cell("=1+1"), csv_cell(-1.0)
    ("'=1+1", -1.0)
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def latex(text: str) -> str:
    r"""Text that LaTeX prints as it is, in one line.

    >>> print(latex("\\input{/etc/passwd} 50%"))
    \textbackslash{}input\{/etc/passwd\} 50\%
    """
    escaped = terminal(" ".join(text.split())).translate(_LATEX)
    return "{[}" + escaped[1:] if escaped.startswith("[") else escaped  # else a length, after a line break


def markdown(text: str) -> str:
    r"""Text that Markdown prints in one table cell: no column, no HTML, no link and no picture.

    >>> print(markdown("a|b ![x](http://a.b)"))
    a\|b ![x]\(http://a.b)
    """
    return terminal(" ".join(text.split())).translate({124: r"\|", 60: "&lt;"}).replace("](", r"]\(")


def figure(text: str) -> str:
    r"""Text that matplotlib draws as it is: a pair of dollars would start a formula.

    >>> print(figure("$\\frac$"))
    \$\frac\$
    """
    return terminal(text).replace("$", r"\$")
