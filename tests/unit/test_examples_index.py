"""examples/README.md lists every program with what it shows; the notebook is kept without what it printed."""

from __future__ import annotations

import ast
import re
from fnmatch import fnmatch
from functools import cache
from importlib import import_module
from pathlib import Path

import nbformat
import pytest

import headgate

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
EACH = pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)


def test_the_index_says_of_each_program_what_it_says_itself() -> None:
    rows = [line for line in (EXAMPLES / "README.md").read_text().splitlines() if line.startswith("| [")]
    documentation = {path.name: ast.get_docstring(ast.parse(path.read_text())) for path in EXAMPLES.glob("*.py")}
    programs = [f"| [{name}]({name}) | {(text or '').splitlines()[0]} |" for name, text in documentation.items()]
    packages = [path.parent.name for path in EXAMPLES.glob("*/pyproject.toml")]
    links = [f"| [{name}/]({name}/README.md) |" for name in packages]
    assert [row for row in rows[1:] if not row.startswith(tuple(links))] == sorted(programs)
    assert len(rows[1:]) == len(programs) + len(packages), "a row for each package, too"
    assert rows[0].startswith("| [first_steps.ipynb](first_steps.ipynb) |")


def test_the_notebook_has_no_outputs() -> None:
    notebook = nbformat.read(EXAMPLES / "first_steps.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell for cell in code if cell.outputs or cell.execution_count is not None] == []
    assert notebook.metadata.kernelspec.name == "python3", "the Python that runs it, whatever that is called"


@EACH
def test_a_program_uses_what_there_is(path: Path) -> None:
    """Its modules, what it takes from them, and what it takes from ``headgate``."""
    program = ast.parse(path.read_text())
    for node in ast.walk(program):
        if isinstance(node, ast.Import):
            for each in node.names:
                import_module(each.name)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            assert [each.name for each in node.names if not hasattr(import_module(node.module), each.name)] == []
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "headgate":
            assert hasattr(headgate, node.attr), f"headgate.{node.attr}"


@EACH
def test_a_program_s_options_are_options(path: Path) -> None:
    """Those that it names in calls of ``option`` and ``options`` are of a format, of queries or of Spark."""
    program = ast.parse(path.read_text())
    named = set()
    for node in ast.walk(program):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "option" and isinstance(node.args[0], ast.Constant):
                named.add(str(node.args[0].value))
            elif node.func.attr == "options":
                named |= {each.arg for each in node.keywords if each.arg}
    assert [each for each in named if not any(fnmatch(each, pattern) for pattern in known_options())] == []


@cache
def known_options() -> list[str]:
    """Return the names of all options, as patterns."""
    source = "".join(each.read_text() for each in (EXAMPLES.parent / "src").rglob("*.py"))
    return [*re.findall(r'OptionSpec\(\s*"([^"]+)"', source), "kafka.*"]
