"""The format own_connector: readings of weather stations, which programs append to files of JSON lines.

Replace what it reads by your system. The files of a folder are the splits; a position is a number of bytes. A line is a
batch: however much is there, batches end at the same positions.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import headgate
import pyarrow as pa
from headgate.errors import OptionError

ROWS = pa.schema({"station": pa.string(), "at": pa.timestamp("ms", "UTC"), "degrees": pa.float64()})


class OwnConnector(headgate.SimpleSource):
    name = "own_connector"
    schema = "station string, at timestamp, degrees double"

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        if "path" not in options:
            raise OptionError("own_connector: the option 'path' is required: set it to the folder of the files.")

    def splits(self) -> list[str]:
        return sorted(name for name in os.listdir(self.options["path"]) if name.endswith(".jsonl"))

    def read(self, split_id: str, position: int | None) -> Iterator[tuple[pa.RecordBatch, int]]:
        position = position or 0
        with open(Path(self.options["path"], split_id), "rb") as file:
            file.seek(position)
            for line in file:
                if not line.endswith(b"\n"):  # it is being written: the next read gets it
                    return
                position += len(line)
                yield pa.RecordBatch.from_pylist(json.loads(line), ROWS), position
