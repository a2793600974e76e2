"""``headgate sources new``: makes the package of a connector, with its tests and what lets Spark find it.

Never: change a folder that exists, or import Spark, the kit or what the package is made for.

The files are those of ``connector_template``: in their names ``NAME`` stands for the package's, and what they hold has
the placeholders of `string.Template`.
"""

from __future__ import annotations

import keyword
import re
import sys
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated

import typer

from headgate.cli.app import AsJson, write_json, write_lines
from headgate.errors import OptionError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

SUFFIX = ".template"
SPARKS_OWN = {
    "avro", "binaryfile", "console", "csv", "jdbc", "json", "kafka", "libsvm", "memory", "noop", "orc", "parquet",
    "protobuf", "rate", "socket", "statestore", "text", "xml",
}  # fmt: skip
"""Formats of Spark's: it looks for those first."""

EXAMPLES = """
headgate sources new weather

headgate sources new weather --folder /data/connectors/weather
"""


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the format and of the Python module: weather.")],
    folder: Annotated[
        Path | None, typer.Option(help="The folder to make; by default one called NAME in this one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make the package of a connector: a source that works, its tests, and what lets Spark find it."""
    check_name(name)
    made = Path(name) if folder is None else folder
    written = write_package(name, made)
    if as_json:
        write_json({"name": name, "folder": str(made), "files": [path.as_posix() for path in written]})
        return
    write_lines(
        f"made {made}:",
        *(f"  {path.as_posix()}" for path in written),
        "Next:",
        f"  cd {made}",
        "  pip install -e '.[test]'",
        "  pytest",
        f"Then let src/{name}/__init__.py read your system, and tests/test_{name}.py write to it, until pytest passes.",
    )


def check_name(name: str) -> None:
    """Raise `OptionError` if a package cannot have this name."""
    if not re.fullmatch(r"[a-z]([a-z0-9_]*[a-z0-9])?", name) or keyword.iskeyword(name):
        raise _error(
            name,
            "cannot be the name of a module and of a format: use a-z, 0-9 and _ between words, such as "
            "'weather_stations', and no word of Python's own",
        )
    if name in SPARKS_OWN:
        raise _error(name, f"is a format of Spark's own, which Spark looks for first. Try {f'{name}_source'!r}")
    for module in (name, f"pyspark_{name}"):
        if module in sys.stdlib_module_names or _is_importable(module):
            raise _error(name, f"is taken: there is a module {module!r} in this Python. Choose another name")


def write_package(name: str, folder: Path) -> list[Path]:
    """Write the package's files into a new folder; return their paths in it.

    Raises
    ------
    OptionError
        The folder exists, or cannot be made.
    """
    contents = package_files(name)
    try:
        folder.mkdir(parents=True)
        for path, text in contents.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except FileExistsError:
        raise OptionError(
            f"{folder} exists already, and nothing was changed. Choose a folder that does not exist: --folder DIR.",
            option="--folder", value=str(folder),
        ) from None  # fmt: skip
    except OSError as error:
        raise OptionError(
            f"{folder} cannot be made: {error}. Choose another one: --folder DIR.", option="--folder", value=str(folder)
        ) from error
    return list(contents)


def package_files(name: str) -> dict[Path, str]:
    """Return the text of each file of the package, by its path in it."""
    words = {
        "name": name,
        "Class": "".join(map(str.capitalize, name.split("_"))),
        "distribution": name.replace("_", "-"),
    }
    found: dict[Path, str] = {}

    def add(folder: Traversable, path: Path) -> None:
        for each in sorted(folder.iterdir(), key=lambda each: each.name):
            inner = path / each.name.replace("NAME", name).removesuffix(SUFFIX)
            if each.is_dir():
                add(each, inner)
            elif each.name.endswith(SUFFIX):
                found[inner] = Template(each.read_text(encoding="utf-8")).substitute(words)

    add(files("headgate.cli") / "connector_template", Path())
    return found


def _is_importable(module: str) -> bool:
    """Return whether a module of this name is installed; a mere folder of this name is none."""
    spec = find_spec(module)
    return spec is not None and spec.origin is not None


def _error(name: str, what: str) -> OptionError:
    return OptionError(f"{name!r} {what}.", option="NAME", value=name)
