"""Runs one fuzzer by its name: ``./run fuzz files --minutes 5``. Each is a module here with a ``main``."""

from __future__ import annotations

import importlib
import sys

NAMES = ("files", "programs")


def main() -> int:
    """Run the fuzzer that the first argument names; the others are its own."""
    if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
        print(f"usage: ./run fuzz {{{','.join(NAMES)}}} [--help]", file=sys.stderr)
        return 2
    result: int = importlib.import_module(f"fuzz.{sys.argv[1]}").main(sys.argv[2:])
    return result


if __name__ == "__main__":
    sys.exit(main())
