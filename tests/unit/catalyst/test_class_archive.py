"""Which archive a Java for expressions starts with, or makes: `ClassArchive`."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from headgate.catalyst.class_archive import ClassArchive, delete_unused


def archive_of(folder: Path, options: Sequence[str] = ()) -> ClassArchive:
    java, jars = folder / "java", folder / "jars"
    for each in (java, jars):
        if not each.exists():
            each.touch()
    return ClassArchive(folder, str(java), jars, options)


def test_the_second_makes_it_and_the_others_start_with_it(tmp_path: Path) -> None:
    assert archive_of(tmp_path).options() == []
    (path,) = tmp_path.glob("*.jsa")
    assert archive_of(tmp_path).options() == [f"-XX:ArchiveClassesAtExit={path}"]
    path.write_bytes(b"\0\0\0\0what is not whole yet")
    assert archive_of(tmp_path).options() == [f"-XX:ArchiveClassesAtExit={path}"]
    path.write_bytes(b"whole")
    assert archive_of(tmp_path).options() == [f"-XX:SharedArchiveFile={path}"]
    assert archive_of(tmp_path, ["-Xmx1g"]).options() == [], "with other options Java's is another one"
    archive_of(tmp_path).discard()
    archive_of(tmp_path).discard()
    assert archive_of(tmp_path).options() == []


def test_the_user_s_options_about_archives_are_left_alone(tmp_path: Path) -> None:
    for option in ("-XX:SharedArchiveFile=mine.jsa", "-Xshare:off"):
        assert archive_of(tmp_path, [option]).options() == []
    assert not [*tmp_path.glob("*.jsa")]


def test_what_nobody_uses_is_deleted(tmp_path: Path) -> None:
    """For a week, or where eight were used later; a start counts as a use."""
    day = 86400
    now = time.time()
    ages = [6 * day, 8 * day, *range(1, 9)]
    archives = [archive_of(tmp_path, [f"-Xmx{number}g"]) for number in range(len(ages))]
    for archive, age_s in zip(archives, ages, strict=True):
        archive._path.write_bytes(b"whole")
        os.utime(archive._path, (now - age_s, now - age_s))
    wanted, old, *others = archives
    placeholder = archive_of(tmp_path, ["-Xmx99g"])
    forgotten = archive_of(tmp_path, ["-Xmx100g"])
    for each in (placeholder, forgotten):
        assert each.options() == []
    os.utime(forgotten._path, (now - 8 * day, now - 8 * day))
    unrelated = tmp_path / "0123456789abcdef"
    unrelated.mkdir()
    os.utime(unrelated, (0, 0))
    wanted.options()
    delete_unused(tmp_path)
    assert not old._path.exists() and not forgotten._path.exists() and unrelated.exists()
    assert placeholder._path.exists(), "it has no size, and says that the next one makes an archive"
    assert [each._path.exists() for each in (wanted, *others)] == [True] * 8 + [False], "the one of eight seconds ago"
