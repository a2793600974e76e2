"""Every relative link of the README and of docs/ leads to a file that exists, and to a heading that it has."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]

_CODE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_OUTSIDE = re.compile(r"[a-z]+:")


@cache
def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, by GitHub's rule."""
    headings = re.findall(r"^#+ (.*)$", _CODE.sub("", page.read_text()), re.MULTILINE)
    return {_anchor(heading) for heading in headings}


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _links(page: Path) -> list[str]:
    return [unquote(link) for link in _LINK.findall(_CODE.sub("", page.read_text())) if not _OUTSIDE.match(link)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in _links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert ROOT in target.parents, f"{link} leaves the repository"
        if anchor:
            assert anchor in _anchors(target), f"{link}: {target.name} has no such heading"


def test_the_index_names_every_page() -> None:
    for folder in (ROOT / "docs", ROOT / "docs/decisions"):
        index = folder / "README.md"
        named = {(folder / link).resolve() for link in _links(index)}
        assert set(folder.glob("*.md")) - {index} <= named


def test_what_code_cites_exists() -> None:
    """Docstrings and messages cite pages, some with the title of a heading in quotes."""
    cited = re.compile(r'\b(docs/[\w/-]+\.md)(?:, "([^"\n]+)")?')
    for folder in ("src", "tests", "conformance", "fuzz", "bench", "local", "demo", "examples", "deploy"):
        for path in (ROOT / folder).rglob("*.py"):
            for page, heading in cited.findall(path.read_text()):
                assert (ROOT / page).exists(), f"{path.relative_to(ROOT)} cites {page}"
                if heading:
                    assert _anchor(heading) in _anchors(ROOT / page), f"{path.relative_to(ROOT)} cites {heading!r}"
