"""What a package index shows of the package is true, and leads somewhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from trove_classifiers import classifiers

import headgate
from hatch_build import DescriptionHook, description

ROOT = Path(__file__).resolve().parents[2]
_TARGET = re.compile(r"\]\(([^)\s]+)\)")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    """Return the table `project` of pyproject.toml."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        table: dict[str, Any] = tomllib.load(file)["project"]
    return table


def test_the_versions_agree(project: dict[str, Any]) -> None:
    assert project["version"] == headgate.__version__
    wheels = re.findall(r"headgate-([\d.]+)-py3-none-any\.whl", (ROOT / "README.md").read_text())
    assert set(wheels) == {headgate.__version__}


def test_classifiers_exist_and_name_the_pythons_that_are_allowed(project: dict[str, Any]) -> None:
    assert set(project["classifiers"]) <= classifiers
    assert project["classifiers"] == sorted(project["classifiers"])
    allowed = SpecifierSet(project["requires-python"])
    named = re.findall(r"Python :: (3\.\d+)$", "\n".join(project["classifiers"]), re.MULTILINE)
    assert named == ["3.11", "3.12", "3.13"]
    assert all(version in allowed for version in named)
    assert "3.10" not in allowed


def test_the_extra_all_is_every_extra_of_users(project: dict[str, Any]) -> None:
    extras = project["optional-dependencies"]
    (of_all,) = [Requirement(each).extras for each in extras["all"]]
    assert of_all == extras.keys() - {"all", "dev"}
    assert all(len(packages) > 0 for packages in extras.values())


def test_every_format_that_spark_finds_is_in_the_wheel() -> None:
    with open(ROOT / "pyproject.toml", "rb") as file:
        packages = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    found = {path.relative_to(ROOT).as_posix() for path in (ROOT / "src").iterdir() if (path / "__init__.py").exists()}
    assert set(packages) == found


def test_type_checkers_are_allowed_to_look() -> None:
    assert (ROOT / "src/headgate/py.typed").exists()


def test_links_of_the_description_are_absolute() -> None:
    """As GitHub and GitLab address files and pictures; the paths stay, and `test_docs_links` tests those."""
    readme = (ROOT / "README.md").read_text()
    shown = description(readme, "https://forge.example/team/headgate/")
    relative = [link for link in _TARGET.findall(readme) if "://" not in link]
    found = re.findall(r"\]\(https://forge\.example/team/headgate/(blob|raw)/HEAD/([^)\s]+)\)", shown)
    assert [path for _, path in found] == relative
    assert {path for kind, path in found if kind == "raw"} == {path for path in relative if path.endswith(".png")}
    assert "](https://forge.example/team/headgate/blob/HEAD/docs/kafka.md)" in shown


def test_without_an_address_links_are_their_text(project: dict[str, Any]) -> None:
    readme = (ROOT / "README.md").read_text()
    metadata = dict(project, urls={})
    DescriptionHook(str(ROOT), {}).update(metadata)
    shown = metadata["readme"]["text"]
    assert all("://" in link for link in _TARGET.findall(shown))
    assert "](docs/kafka.md)" in readme and "docs/kafka.md" in shown
    assert "![" not in shown


def test_other_links_stay_as_they_are() -> None:
    text = "[a](https://x.example/b) [c](#d) [e](mailto:f@g.example)"
    assert description(text, None) == description(text, "https://y.example") == text
