"""The pages of the documentation's site, for mkdocs: what the README leads to, and the public modules.

Never: write a page by hand, or leave out one that another page links to.

Pages keep their paths of the repository, so that their links are right on the site as well.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
MODULES = (
    "headgate", "headgate.source", "headgate.source.simple", "headgate.readers", "headgate.assigners", "headgate.sink",
    "headgate.errors", "headgate.testing", "headgate.testing.conformance",
)  # fmt: skip
"""The modules that programs and connectors import: each is a page of the reference."""
_CODE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s#]+)")


def linked(page: Path) -> list[Path]:
    """Return the files of the repository that a page links to, in its order."""
    links = _LINK.findall(_CODE.sub("", page.read_text(encoding="utf-8")))
    return list(dict.fromkeys((page.parent / unquote(link)).resolve() for link in links))


def reachable(page: Path) -> list[Path]:
    """Return a page and all files to which it leads, by way of other pages as well.

    What is not there is left out: mkdocs names the link and the page.
    """
    found = {page: None}
    waiting = [page]
    while waiting:
        for path in linked(waiting.pop(0)):
            if path not in found and path.is_file():
                found[path] = None
                if path.suffix == ".md":
                    waiting.append(path)
    return list(found)


def navigation() -> list[Any]:
    """Return the navigation: what comes first, the tables of docs/README.md, a section each, and the reference."""
    index = ROOT / "docs/README.md"
    nav: list[Any] = [{"Headgate": ["README.md", "docs/README.md", "examples/README.md", "CHANGELOG.md"]}]
    _, *sections = re.split(r"^## ", index.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for section in sections:
        title, _, table = section.partition("\n")
        pages: list[Any] = []
        for link in _LINK.findall(table):
            path = (index.parent / link).resolve()
            name = path.relative_to(ROOT).as_posix()
            below = [each.relative_to(ROOT).as_posix() for each in linked(path) if each.parent == path.parent]
            pages.append({"Decisions": [name, *below]} if below and path.name == "README.md" else name)
        nav.append({title: pages})
    nav.append({"Reference": [f"docs/reference/{module}.md" for module in MODULES]})
    return nav


def on_config(config: Any) -> None:
    """Set the navigation."""
    config.nav = navigation()


def on_files(files: Files, config: Any) -> Files:
    """Add all pages, and what they show or link to."""
    for path in reachable(ROOT / "README.md"):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    for module in MODULES:
        text = f"# {module}\n\n::: {module}\n"
        files.append(File.generated(config, f"docs/reference/{module}.md", content=text))
    return files
