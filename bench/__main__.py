"""Runs one bench by its name: ``python -m bench scan --quick``."""

from __future__ import annotations

import argparse
import sys

from bench import (
    align,
    coordinator,
    growth,
    kafka,
    keyed,
    latency,
    passthrough,
    pulsar,
    recover,
    scale,
    scan,
    soak,
    startup,
    state,
    stream,
    unaligned,
    wide,
)

BENCHES = {
    "scan": scan,
    "stream": stream,
    "kafka": kafka,
    "pulsar": pulsar,
    "passthrough": passthrough,
    "latency": latency,
    "recover": recover,
    "coordinator": coordinator,
    "align": align,
    "keyed": keyed,
    "unaligned": unaligned,
    "startup": startup,
    "scale": scale,
    "growth": growth,
    "state": state,
    "soak": soak,
    "wide": wide,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./run bench",
        description="Measure Headgate and its peer (Spark's own reader or engine, or what is required of it) in one "
        "run. Prints a table and, as its last line, one JSON object. A ratio above 1 means Headgate is better.",
    )
    commands = parser.add_subparsers(dest="bench", required=True, metavar="NAME")
    for name, module in BENCHES.items():
        command = commands.add_parser(name, help=module.SUMMARY, description=module.__doc__)
        command.formatter_class = argparse.RawDescriptionHelpFormatter
        command.add_argument("--quick", action="store_true", help="fewer rows: under 50 s, data included")
        command.add_argument("--rounds", type=int, default=3, help="measurements per side (default 3)")
        command.add_argument("--rows", type=int, help="rows of each data set, instead of the default")
        command.add_argument("--only", action="append", metavar="CASE", help="only this case; may be given again")
        module.add_arguments(command)
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    BENCHES[arguments.bench].run(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
