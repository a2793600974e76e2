"""examples/README.md lists every program with what it shows; the notebook is kept without what it printed."""

from __future__ import annotations

import ast
from pathlib import Path

import nbformat

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


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
