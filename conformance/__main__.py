"""Runs one comparison by its name: ``python -m conformance spark``."""

from __future__ import annotations

import argparse
import sys

from conformance import columns, queries, spark

COMPARISONS = {"spark": spark, "columns": columns, "queries": queries}


def main() -> int:
    """Run the comparison that the arguments name; 1: something was different."""
    parser = argparse.ArgumentParser(
        prog="./run conformance",
        description="Compare continuous queries with Spark over programs that others wrote. Prints a table and, as its "
        "last line, one JSON object; ends with 1 if anything was different.",
    )
    commands = parser.add_subparsers(dest="comparison", required=True, metavar="NAME")
    for name, module in COMPARISONS.items():
        command = commands.add_parser(name, help=module.SUMMARY, description=module.__doc__)
        command.formatter_class = argparse.RawDescriptionHelpFormatter
        module.add_arguments(command)
    arguments = parser.parse_args()
    return COMPARISONS[arguments.comparison].run(arguments)


if __name__ == "__main__":
    sys.exit(main())
