"""``python -m headgate.testing.conformance``: checks a source and prints the report.

Never: need pytest.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from typing import Any

from headgate.errors import HeadgateError
from headgate.formats.ddl import parsed_schema
from headgate.testing.conformance.kit import PROMISES, check
from headgate.testing.conformance.report import Promise


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script; return 0: all promises kept, 1: some broken, 2: the source could not be made."""
    parser = argparse.ArgumentParser(
        prog="python -m headgate.testing.conformance",
        description="Checks a source against the promises of the contract.",
    )
    parser.add_argument(
        "make_source", nargs="?", metavar="package.module:make_source",
        help="a function without parameters that makes the source; modules of the current folder are found",
    )  # fmt: skip
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="check this promise; repeatable")
    parser.add_argument("--schema", metavar="DDL", help="the columns to read; by default those that the source names")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--list", action="store_true", help="print the promises, and check nothing")
    chosen = parser.parse_args(arguments)
    if chosen.list:
        print("\n\n".join(map(_described, PROMISES)))
        return 0
    if chosen.make_source is None:
        parser.error("name what makes the source: package.module:make_source")
    try:
        report = check(
            _loaded(chosen.make_source),
            schema=None if chosen.schema is None else parsed_schema(chosen.schema),
            only=chosen.only,
        )
    except (HeadgateError, ImportError, AttributeError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report.to_json(), indent=2) if chosen.json else report)
    return 0 if report.kept else 1


def _loaded(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute or "make_source")


def _described(promise: Promise) -> str:
    return f"{promise.name}\n  {promise.sentence}\n  {promise.how}\n  {promise.contract}"


if __name__ == "__main__":
    sys.exit(main())
