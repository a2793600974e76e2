"""The description of the package on an index: the README, whose links lead somewhere from there, too.

Never: name a repository. Its address is `project.urls.Repository` in pyproject.toml; without one links are their text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")
"""A link to a file of the repository, or with an exclamation mark a picture."""


def description(readme: str, repository: str | None) -> str:
    """Return the README with absolute links to a repository, or without what only a repository has."""

    def absolute(link: re.Match[str]) -> str:
        picture, text, path = link.groups()
        if repository is None:
            return "" if picture else text
        return f"{picture}[{text}]({repository.rstrip('/')}/{'raw' if picture else 'blob'}/HEAD/{path})"

    return _LINK.sub(absolute, readme)


class DescriptionHook(MetadataHookInterface):
    """What hatchling calls when it needs the fields that pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field `readme`."""
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = description(readme, metadata.get("urls", {}).get("Repository"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
