"""Driven readers for the tests of this folder, closed in the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from scripted_split_reader import Drive, Driven, ReaderType

from headgate.readers import ReaderOptions


@pytest.fixture
def drive() -> Iterator[Drive]:
    """Make driven readers that are closed in the end."""
    made: list[Driven] = []

    def make(reader_type: ReaderType, options: ReaderOptions | None = None, **given: bool) -> Driven:
        made.append(Driven(reader_type, options, **given))
        return made[-1]

    yield make
    for driven in made:
        driven.script.released.set()
        driven.reader.close()
