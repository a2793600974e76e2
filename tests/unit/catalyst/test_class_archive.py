"""Which archive a Java for expressions starts with, or makes: `ClassArchive`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headgate.catalyst.class_archive import ClassArchive


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
