"""Writes ``docs/spark-versions.md``: what older versions of Spark cannot do, and the tests left out. ``./run docs``.

Never: import a test: marks are read from the files' text, as some of these cannot be imported everywhere.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from headgate.spark.compatibility import FEATURES
from headgate.versions import NEWEST_SPARK, OLDEST_SPARK

OLDEST, NEWEST = (".".join(map(str, each)) for each in (OLDEST_SPARK, NEWEST_SPARK))
ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs/spark-versions.md"

OPENING = f"""# Versions of Spark

`./run docs` makes this page of `headgate.spark.compatibility` and of the tests' marks: do not edit it. A test fails
when it is out of date.

Headgate runs on PySpark {OLDEST} to {NEWEST}, with Java 17 or 21. Its other documents
describe Spark {NEWEST}. Asking an older version for what it cannot do is an error that names the first
version that can, unless the last column says otherwise.

| since Spark | feature | what it is | before |
| --- | --- | --- | --- |
"""

TESTS = """
## How it is tested

`./run test --spark 4.0` (or 4.1, 4.2) makes an environment of its own, `.venv-spark-4.0`, from `constraints.txt` with
what `constraints-spark-4.0.txt` says in its place, and runs the tests with that Spark; `--all` may follow, or
pytest's arguments.
`.ci/run` runs the tests with the newest version only.

A test that needs a feature is marked `@pytest.mark.spark_since("feature")`. A version without it skips these:

| feature | tests |
| --- | --- |
"""


def document() -> str:
    """Return the page."""
    features = "".join(
        f"| {each.since[0]}.{each.since[1]} | `{name}` | {each.what} | {each.before} |\n"
        for name, each in sorted(FEATURES.items(), key=lambda item: item[1].since)
    )
    by_feature = marked()
    tests = "".join(
        f"| `{name}` | {', '.join(f'`{each}`' for each in sorted(by_feature[name])) or 'none'} |\n" for name in FEATURES
    )
    return OPENING + features + TESTS + tests


def marked() -> dict[str, set[str]]:
    """Return the tests that are marked with each feature; of a mark for a whole file, the file."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "mark.spark_since(" not in text or path.name == Path(__file__).name:
            continue
        for node in ast.parse(text).body:
            for feature in _features_in(node):
                found[feature].add(_name_of(node, path.stem))
    return found


def _name_of(node: ast.stmt, file: str) -> str:
    match node:
        case ast.FunctionDef(name=name) if name.startswith("test_"):
            return f"{file}.{name}"
        case ast.Assign(targets=[ast.Name(id="pytestmark")]):
            return file
    return f"{file} (some)"


def _features_in(node: ast.AST) -> Iterator[str]:
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.spark_since":
            yield from (str(ast.literal_eval(each)) for each in call.args)


if __name__ == "__main__":
    DOCUMENT.write_text(document())
