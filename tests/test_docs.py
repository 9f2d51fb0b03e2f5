"""The README and the documentation are run, and the API reference is complete.

A page's `python` fences run in order in one namespace. A `text` fence right after a `python` fence
is what that snippet prints, to the letter.
"""

import contextlib
import io
import re
import types
from dataclasses import dataclass
from pathlib import Path

import pytest

import gradsolve as gs

_ROOT = Path(__file__).parent.parent
_PAGES = _ROOT / "docs" / "pages"
_FENCE = re.compile(r"^([ \t]*)```(\w*)[^\n]*\n(.*?)^\1```[ \t]*$", re.DOTALL | re.MULTILINE)
_DIRECTIVE = re.compile(r"^::: (gradsolve[\w.]*)", re.MULTILINE)
_DEFINITION = (
    "The derivative of the discrete map `(system, y0, ts, t0, t1) -> ys` that takes exactly the "
    "recorded steps; interior mesh times are constants, the first and last move with t0 and t1."
)

# Modules that are public as a whole; every other module is reached through `gradsolve` itself.
_PUBLIC_MODULES = ("datasets", "plot")


@dataclass(frozen=True)
class Fence:
    language: str
    text: str
    line: int  # of the first line of the text, from 1
    indent: str
    follows_directly: bool  # only blank lines since the previous fence


def _fences(page: Path) -> list[Fence]:
    source = page.read_text(encoding="utf-8")
    fences = []
    end = 0
    for match in _FENCE.finditer(source):
        fences.append(
            Fence(
                language=match[2],
                text=match[3],
                line=source.count("\n", 0, match.start(3)) + 1,
                indent=match[1],
                follows_directly=bool(fences) and not source[end : match.start()].strip(),
            )
        )
        end = match.end()
    return fences


def _markdown() -> list[Path]:
    pages = [_ROOT / "README.md", *sorted(_PAGES.rglob("*.md"))]
    return [page for page in pages if any(fence.language == "python" for fence in _fences(page))]


def _run(page: Path) -> None:
    namespace = {"__name__": "__main__"}
    printed = None
    for fence in _fences(page):
        if fence.language == "python":
            # Blank lines in front make tracebacks point into the page.
            code = compile("\n" * (fence.line - 1) + fence.text, page, "exec")
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(code, namespace)
            printed = output.getvalue()
        elif fence.language == "text" and fence.follows_directly and printed is not None:
            assert printed == fence.text, f"{page}:{fence.line}: printed\n{printed}"
            printed = None
        else:
            printed = None


@pytest.fixture
def settings_restored():
    """Pages may set JAX's precision, as their reader does; the next test gets the old one back."""
    import jax

    x64 = jax.config.values["jax_enable_x64"]
    yield
    jax.config.update("jax_enable_x64", x64)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", _markdown(), ids=lambda page: page.relative_to(_ROOT).with_suffix("").as_posix()
)
@pytest.mark.usefixtures("settings_restored")
def test_snippets_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where pages write their files
    try:
        _run(page)
    finally:
        from matplotlib import pyplot

        pyplot.close("all")


def test_snippets_are_where_the_test_sees_them():
    # An indented fence, inside a list or an admonition, could not be compiled as it stands.
    for page in _markdown():
        for fence in _fences(page):
            assert not (fence.language == "python" and fence.indent), f"{page}:{fence.line}"


def test_readme_has_two_commands_of_one_line_each():
    commands = [fence.text for fence in _fences(_ROOT / "README.md") if fence.language == "bash"]
    assert len(commands) == 2
    for command in commands:
        assert command.count("\n") == 1
        assert command.startswith("python3 -m venv .venv && ")
    assert "examples/fit_lynx_hare.py" in commands[0]
    assert "pytest" in commands[1]


def test_gradient_is_defined_in_the_words_of_the_contract():
    # One sentence says what every gradient of this library is; the numerical tests quote it too.
    page = (_PAGES / "concepts" / "gradient.md").read_text(encoding="utf-8")
    assert _DEFINITION in re.sub(r"\s+>?\s*", " ", page)


def _methods(heading: str) -> list[tuple[str, str]]:
    """The rows of the table in one section of the page on integrators."""
    page = (_PAGES / "integrators.md").read_text(encoding="utf-8")
    section = page.split(f"## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \| (.+) \|$", section, re.MULTILINE)


def test_table_of_stiff_methods_agrees_with_the_tableaus():
    rows = _methods("Stiff systems")
    assert len(rows) == 8
    for name, row in rows:
        tableau = getattr(gs, name).tableau
        assert row.split(" | ")[:-1] == [
            str(tableau.order),
            str(tableau.embedded_order),
            str(tableau.stages),
            str(tableau.dense.order),
        ]


def test_table_of_explicit_methods_agrees_with_the_tableaus():
    rows = _methods("Explicit methods")
    assert len(rows) == 11
    for name, row in rows:
        tableau = getattr(gs, name).tableau
        extra = len(tableau.dense.extra_a)
        stages = f"{tableau.stages}"
        if tableau.fsal:
            stages += ", last reused"
        if extra:
            stages += f", {extra} more for output"
        assert row.split(" | ") == [
            str(tableau.order),
            "–" if tableau.embedded_order is None else str(tableau.embedded_order),
            stages,
            str(tableau.dense.order),
            "no" if tableau.b_error is None else "yes",
        ]


def _public_names() -> set[str]:
    names = set()
    for name in dir(gs):
        if name.startswith("_"):
            continue
        value = getattr(gs, name)
        if not isinstance(value, types.ModuleType):
            names.add(f"gradsolve.{name}")
    for module_name in _PUBLIC_MODULES:
        module = getattr(gs, module_name)
        names |= {
            f"gradsolve.{module_name}.{name}"
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", "").startswith("gradsolve")
        }
    return names


def test_every_public_name_is_in_the_api_reference():
    documented = [
        name
        for page in sorted((_PAGES / "api").glob("*.md"))
        for name in _DIRECTIVE.findall(page.read_text(encoding="utf-8"))
    ]
    assert len(documented) == len(set(documented)), "a name is documented twice"
    assert set(documented) == _public_names()
