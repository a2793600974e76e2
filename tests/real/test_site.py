"""The documentation's site builds without a warning, works from a folder, and loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from local.site_pages import MODULES, ROOT, navigation, reachable

_LOADED = re.compile(r"""<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)=["']?(https?:)?//""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site: a link to a page, a file or a heading that is not there is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    shown = done.stdout + done.stderr
    assert done.returncode == 0, shown
    assert "Documentation built" in shown, "with --quiet, mkdocs would let pass what it does not show"
    assert "WARNING" not in shown
    return folder


def test_every_page_of_the_repository_is_there(site: Path) -> None:
    """The README is the first page, and that of each folder its index."""
    pages = [path.relative_to(ROOT) for path in reachable(ROOT / "README.md") if path.suffix == ".md"]
    docs = [path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md")]
    assert set(docs) <= set(pages)
    for page in pages:
        path = page.with_name("index.html") if page.name == "README.md" else page.with_suffix(".html")
        assert (site / path).exists(), page


def test_the_navigation_is_that_of_the_index() -> None:
    sections = {title: pages for section in navigation() for title, pages in section.items()}
    assert list(sections) == [
        "Headgate",
        "You run queries",
        "You write a connector",
        "You change Headgate",
        "Reference",
    ]
    assert sections["Headgate"][:2] == ["README.md", "docs/README.md"]
    assert sections["You run queries"][0] == "docs/connectors.md"
    assert "CONTRIBUTING.md" in sections["You change Headgate"]


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("headgate", ["continuous", "ContinuousQuery.stop", "register", "SimpleSource"]),
        ("headgate.source", ["Source", "SplitEnumerator.handle_split_request", "SplitReader.fetch", "OptionSpec"]),
        ("headgate.readers", ["SequentialReader", "MultithreadedReader"]),
        ("headgate.sink", ["Sink", "SinkCommitter.commit"]),
        ("headgate.errors", ["HeadgateError", "DataLossError"]),
        ("headgate.testing", ["SourceHarness"]),
        ("headgate.testing.conformance", ["check", "conformance_test", "Report.require"]),
    ],
)
def test_the_reference_has_the_public_names(site: Path, module: str, names: list[str]) -> None:
    assert module in MODULES
    page = (site / f"docs/reference/{module}.html").read_text()
    assert [name for name in names if not re.search(rf'<h\d id="[\w.]*\b{re.escape(name)}"', page)] == []


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    """Not even by what a page's scripts do on their own: they load Mermaid where a diagram is marked for it."""
    pages = {page: page.read_text() for page in site.rglob("*.html")}
    assert len(pages) > 50
    assert [page.name for page, text in pages.items() if _LOADED.search(text)] == []
    assert [page.name for page, text in pages.items() if 'class="mermaid"' in text] == []
