"""A source class that no other process can import: it has to travel with the query, like one of a notebook."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import headgate


def local_numbers() -> type[headgate.SimpleSource]:
    """Return a class defined inside a function."""

    class Numbers(headgate.SimpleSource):
        name = "numbers"
        schema = "n bigint"

        def splits(self) -> list[str]:
            return sorted(os.listdir(self.options["folder"]))

        def read(self, split_id: str, position: Any) -> Iterator[tuple[Any, Any]]:
            import pyarrow as pa

            with open(os.path.join(self.options["folder"], split_id)) as file:
                length = int(file.read())
            for n in range(position or 0, length):
                yield pa.record_batch({"n": [n]}), n + 1

    Numbers.__module__ = "__main__"
    return Numbers
