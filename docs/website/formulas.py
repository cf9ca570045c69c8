"""Sets formulas: a block ``math`` of a page, LaTeX as forges read it, becomes pictures with the text's own colour.

matplotlib sets them while the site is built, so a page needs no script, no font and no network. Words in a formula stay
words, and a line that is wider than the page goes on in the next one, between pictures and words.
"""

from __future__ import annotations

import io
import re
from html import escape
from typing import Any

SIZE, EM = 12, 1.05
"""Points at which formulas are set, and how many times the size of the text they are shown."""
ENVIRONMENT = re.compile(r"\\(?:begin|end)\{aligned\}")
WORDS = re.compile(r"\\text\{([^{}]*)\}(?![_^])|\\quad")
"""Words of a formula, and what separates formulas: outside of brackets they are text of the page."""
OPEN, CLOSE = re.compile(r"\\left(?![a-z])|(?<!\\)\{"), re.compile(r"\\right(?![a-z])|(?<!\\)\}")


def picture(latex: str) -> str:
    """A formula as inline SVG that stands on the line of the text, its size in units of the text's.

    Raises:
        ValueError: matplotlib cannot set it; the message shows where.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(0.01, 0.01), dpi=72)
    FigureCanvasAgg(figure)
    shown = figure.text(0, 0, f"${latex}$".replace(r"\frac", r"\dfrac"), fontsize=SIZE)
    below = -shown.get_window_extent().y0 / SIZE * EM
    file = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": latex, "svg.fonttype": "path"}):
        figure.savefig(file, format="svg", transparent=True, bbox_inches="tight", pad_inches=0, metadata={"Date": None})
    text = file.getvalue()
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", text[text.index("<svg") :], flags=re.S)
    text = re.sub(r"\s*\n\s*", " ", re.sub(r' xmlns(:xlink)?="[^"]*"| version="[^"]*"', "", text))

    def ems(found: re.Match[str]) -> str:
        return f'{found[1]}="{float(found[2]) / SIZE * EM:.3f}em"'

    head, rest = text.split(">", 1)
    style = f' style="vertical-align:{-below:.3f}em" fill="currentColor" aria-hidden="true">'
    return re.sub(r'(width|height)="([\d.]+)pt"', ems, head) + style + rest.strip()


def line(latex: str) -> str:
    """A line: pictures, and the words that stand outside of all brackets, as HTML."""
    out, start = [], 0
    for found in WORDS.finditer(latex):
        before = latex[start : found.start()]
        if len(OPEN.findall(before)) == len(CLOSE.findall(before)) and not before.endswith(("_", "^")):
            words = "&emsp; " if found[1] is None else escape(found[1].replace(r"\_", "_"), quote=False)
            out += [picture(before.strip())] if before.strip() else []
            out.append(words)
            start = found.end()
    rest = latex[start:].strip()
    return "".join([*out, picture(rest) if rest else ""])


def fence(source: str, language: str, css_class: str, options: Any, md: Any, **more: Any) -> str:
    """What SuperFences shows for a block of LaTeX."""
    lines = [each.replace("&", "").strip() for each in ENVIRONMENT.sub("", source).split(r"\\")]
    shown = "".join(f"<p>{line(each)}</p>" for each in lines if each)
    return f'<div class="formula" role="math" aria-label="{escape(" ".join(source.split()))}">{shown}</div>'
