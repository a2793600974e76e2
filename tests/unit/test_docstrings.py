"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import headgate

HOME = Path(headgate.__file__).parent
MODULES = sorted(
    ".".join(["headgate", *path.relative_to(HOME).with_suffix("").parts]).removesuffix(".__init__")
    for path in HOME.rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    module = importlib.import_module(name)
    assert any(each.examples for each in doctest.DocTestFinder().find(module)), "written where nobody looks for them"
    assert doctest.testmod(module).failed == 0
