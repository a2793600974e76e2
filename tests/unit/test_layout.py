"""The order of the package: imports point one way, and the public names are the ones that are documented."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import headgate
import headgate.source

SRC = Path(__file__).resolve().parents[2] / "src"
PACKAGE = SRC / "headgate"

# Each folder with what it may import of headgate beside `ANYWHERE` and itself.
ANYWHERE = {
    "errors", "event_log", "futures", "java_texts", "machine", "pickling", "private_files", "serial_executor",
    "versions",
}  # fmt: skip
MAY_IMPORT: dict[str, set[str]] = {
    "source": set(),
    "protocol": {"source"},  # of that what a connector measured
    "sink": {"protocol", "source", "formats"},
    "readers": {"source"},
    "assigners": {"source"},
    "enumerators": {"source", "assigners"},
    "formats": {"source"},
    "connectors": {"source", "sink", "readers", "assigners", "enumerators", "formats", "protocol", "expressions"},
    "expressions": {"formats"},
    "catalyst": set(),
    "state": {"protocol"},
    "operators": {"source", "expressions", "protocol", "catalyst", "state"},
    "task": {"source", "readers", "protocol"},
    "checkpoint": {"source", "formats", "protocol"},
    "coordinator": {"source", "protocol", "checkpoint"},
    "graph": {"protocol", "source", "sink", "expressions", "operators", "coordinator"},
    "transport": {"source", "protocol"},
    "runtime": {
        "source", "sink", "readers", "protocol", "expressions", "state", "operators", "task", "checkpoint", "graph",
        "transport",
    },
    "driver": {"source", "protocol", "checkpoint", "coordinator", "graph"},
    "microbatch": {"source", "expressions", "task"},
    "monitor": {"source", "protocol", "coordinator"},  # of that the status, which is made for people
    "simulation": {
        "source", "sink", "readers", "assigners", "enumerators", "protocol", "state", "operators", "task", "checkpoint",
        "coordinator", "graph", "transport", "runtime", "driver", "connectors",
    },
    "testing": {"source", "readers", "connectors", "formats", "task"},
    "cli": {
        "source", "connectors", "formats", "protocol", "state", "operators", "checkpoint", "coordinator", "microbatch",
    },
}  # fmt: skip
COMPATIBILITY = ["spark", "compatibility"]
"""What the versions of Spark call what: whoever may import PySpark may import it."""
WITHOUT_SPARK = (
    *sorted(set(MAY_IMPORT) - {"operators", "testing"}),
    "errors.py",
    "event_log.py",
    "futures.py",
    "java_texts.py",
    "machine.py",
    "pickling.py",
    "private_files.py",
    "versions.py",
    "serial_executor.py",
)
# What decides takes time and events as arguments: it starts nothing and waits for nothing.
PURE = (
    "protocol", "coordinator/job", "coordinator/slots", "coordinator/alignment", "coordinator/autoscaler",
    "coordinator/sources",
    "checkpoint/checkpoint_events.py", "checkpoint/coordinator.py", "checkpoint/commits.py", "checkpoint/manifest.py",
    "checkpoint/restore.py", "checkpoint/channel_assignment.py", "checkpoint/stored_channels.py", "task", "graph",
    "monitor/event_times.py", "monitor/figures.py", "monitor/progress.py", "monitor/late_publications.py",
    "monitor/growing_lag.py", "monitor/recent_events.py", "monitor/history.py", "monitor/snapshot.py",
    "monitor/diagnosis.py", "monitor/endpoint/routes.py",
    "connectors/pulsar/position.py", "connectors/pulsar/ledgers.py", "connectors/pulsar/planning.py",
    "sink/publication_retries.py", "microbatch/alignment/votes.py",
    "microbatch/alignment/group_membership.py", "microbatch/alignment/messages.py", "microbatch/watermark_options.py",
)  # fmt: skip


CONTRACT = [
    "Boundedness",
    "Counter",
    "FetchedBatch",
    "InputStatus",
    "MetricGroup",
    "OptionSpec",
    "Options",
    "PlanLimits",
    "PlannedRange",
    "ReaderInfo",
    "ReaderOutput",
    "Remaining",
    "Signal",
    "Source",
    "SourceEvent",
    "SourceOutput",
    "SourceReader",
    "SourceReaderContext",
    "Split",
    "SplitEnumerator",
    "SplitEnumeratorContext",
    "SplitMetricGroup",
    "SplitReader",
    "SupportsBoundedPlans",
    "SupportsEventTimeSeek",
    "SupportsLag",
    "SupportsSplitReassignmentOnRecovery",
    "SupportsTaskGroups",
    "VersionedSerializer",
    "WatermarkAlignment",
    "WatermarkStrategy",
]


@cache
def imported_modules(path: Path) -> list[str]:
    """Return the full name of all that a file imports, wherever in the file it does so; of ours with what of it."""
    return list(_imported_modules(path))


def _imported_modules(path: Path) -> Iterator[str]:
    package = path.relative_to(SRC).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) - node.level + 1]] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            ours = name.split(".")[0] == "headgate"
            yield from (f"{name}.{alias.name}" for alias in node.names) if ours else [name]


def files_under(*names: str) -> list[Path]:
    """Return the Python files of these folders or files of the package."""
    found = []
    for name in names:
        path = PACKAGE / name
        of_this = [path] if path.is_file() else sorted(path.rglob("*.py"))
        assert of_this, f"there is no {name}"
        found += of_this
    return found


def test_the_walker_sees_imports() -> None:
    """Guards the tests below: a walker that finds nothing would let everything pass."""
    assert "headgate.errors.OptionError" in set(imported_modules(PACKAGE / "source" / "options.py"))
    assert "pyarrow" in set(imported_modules(PACKAGE / "source" / "source.py"))


@pytest.mark.parametrize("path", files_under(*WITHOUT_SPARK), ids=lambda path: str(path.relative_to(SRC)))
def test_nothing_below_the_entry_points_imports_pyspark(path: Path) -> None:
    """The contract, the readers, the connectors and the task are usable and testable without Spark."""
    names = imported_modules(path)
    found = {name for name in names if name.split(".")[0] in ("pyspark", "py4j")}
    found |= {name for name in names if name.split(".")[1:3] == COMPATIBILITY}
    assert not found, f"{path} imports {sorted(found)}"


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_imports_point_one_way(folder: str) -> None:
    """A folder imports only what precedes it in the data's way."""
    for path in files_under(folder):
        parts = [name.split(".") for name in imported_modules(path)]
        wanted = {part[1] for part in parts if part[0] == "headgate" and len(part) > 1 and part[1:3] != COMPATIBILITY}
        allowed = MAY_IMPORT[folder] | ANYWHERE | {folder}
        assert wanted <= allowed, f"{path.relative_to(SRC)} imports {sorted(wanted - allowed)}"


def test_modules_do_not_import_one_another_in_a_circle() -> None:
    """Late and type-only imports counted: of two such modules none can be understood, or moved, without the other."""
    modules = {}
    for path in files_under("."):
        parts = path.relative_to(SRC).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path

    def module_of(name: str) -> str:
        while name not in modules and "." in name:
            name = name.rpartition(".")[0]
        return name

    imports = {module: {*map(module_of, imported_modules(path))} - {module} for module, path in modules.items()}
    assert len(imports["headgate.spark.continuous.query"]) > 10, "the walker finds nothing"
    TopologicalSorter(imports).prepare()  # its error names the circle


@pytest.mark.parametrize("path", files_under(*PURE), ids=lambda path: str(path.relative_to(SRC)))
def test_machines_are_pure(path: Path) -> None:
    """No thread, clock, socket, disk or chance of its own in what decides."""
    impure = {
        "threading",
        "time",
        "socket",
        "queue",
        "os",
        "subprocess",
        "asyncio",
        "concurrent",
        "tempfile",
        "pathlib",
    }
    tops = {name.split(".")[0] for name in imported_modules(path)}
    assert not tops & impure, f"{path} imports {sorted(tops & impure)}"


def test_modules_and_functions_end_in_sight() -> None:
    """Who reads one for the first time has to see where it ends."""
    found = []
    for path in files_under("."):
        source = path.read_text(encoding="utf-8")
        lengths = [("", source.count("\n"), 700)]
        lengths += [
            (f" {node.name}", (node.end_lineno or 0) - node.lineno + 1, 60)
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        found += [f"{path.relative_to(PACKAGE)}{name}: {lines}" for name, lines, most in lengths if lines > most]
    assert found == []


def test_connectors_do_not_import_one_another() -> None:
    """A connector stands alone, so that one can be taken away or copied as a model."""
    for path in files_under("connectors"):
        own = path.relative_to(PACKAGE / "connectors").parts[0]
        for name in imported_modules(path):
            parts = name.split(".")
            if parts[:2] == ["headgate", "connectors"] and len(parts) > 2:
                assert parts[2] == own, f"{path.relative_to(SRC)} imports {name}"


def test_shims_import_pyspark_and_headgate_only() -> None:
    """Spark imports every module named pyspark_*: one that fails to import hides them all."""
    shims = sorted(SRC.glob("pyspark_*"))
    assert shims, "no shim found"
    for shim in shims:
        for path in [shim] if shim.is_file() else sorted(shim.rglob("*.py")):
            tops = {name.split(".")[0] for name in imported_modules(path)} - {"__future__"}
            assert tops <= {"pyspark", "headgate"}, f"{path.relative_to(SRC)} imports {sorted(tops)}"


def test_public_names_of_the_package() -> None:
    """A name that users may rely on appears or goes only together with this line."""
    assert sorted(headgate.__all__) == [
        "ContinuousDataFrame",
        "ContinuousQuery",
        "SimpleSource",
        "__version__",
        "continuous",
        "register",
        "streams",
    ]


def test_public_names_of_the_contract() -> None:
    """The contract is what connectors are written against: a change here is a change for all of them."""
    assert sorted(headgate.source.__all__) == CONTRACT
    for name in CONTRACT:
        assert getattr(headgate.source, name).__doc__, f"{name} has no docstring"


def test_what_a_struct_is_made_of_is_known_before_threads_decode_it() -> None:
    """msgspec finds it out at the first use, and crashes where two threads do so: decoders are made at import."""
    late = re.compile(r"msgspec\.(?:json|msgpack)\.decode\(.*\btype=|^ {4,}.*\bDecoder\(|\bmsgspec\.convert\(")
    found = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in files_under(".")
        for line in path.read_text(encoding="utf-8").splitlines()
        if late.search(line)
    ]
    assert found == [
        "source/serialization.py: msgspec.json.Decoder(self.value_type)",
        "source/serialization.py: return msgspec.convert(fields, self.value_type)",
    ]


def test_nothing_cites_pages_that_readers_do_not_have() -> None:
    """Numbers of design notes say nothing to who has only the repository: what they say stands where it is needed."""
    root = SRC.parent
    notes = re.compile(
        r"\b(?:traps?|lessons?),? \(?\d|(?:traps|lessons|style|api|defects|design)\.md|\bdesign, \"", re.I
    )
    pages = [*root.glob("*.md"), *(root / "docs").rglob("*.md")]
    for folder in ("src", "tests", "bench", "demo", "examples", "fuzz", "conformance", "local"):
        pages += (root / folder).rglob("*.py")
    cited = [f"{path.relative_to(root)}: {match[0]}" for path in pages for match in notes.finditer(path.read_text())]
    assert [each for each in cited if not each.startswith("tests/unit/test_layout.py")] == []
