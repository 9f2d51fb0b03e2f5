"""Formulas of the pages and docstrings as MathML, which browsers draw without any script.

`pymdownx.arithmatex` marks the formulas; this hook of MkDocs translates them.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert

_FORMULA = re.compile(
    r'<(span|div) class="arithmatex">\\(?:\((?P<inline>.*?)\\\)|\[(?P<display>.*?)\\\])</\1>',
    re.DOTALL,
)


def _translate(match: re.Match[str]) -> str:
    inline = match["inline"]
    if inline is not None:
        return convert(html.unescape(inline))
    return convert(html.unescape(match["display"]), display="block")


def on_page_content(content: str, **_: Any) -> str:
    """Replaces each formula of a rendered page."""
    return _FORMULA.sub(_translate, content)
