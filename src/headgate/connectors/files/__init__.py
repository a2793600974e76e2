"""Files as a source: text, CSV, JSON lines, Parquet, ORC and Arrow IPC, from folders that may grow.

The data's way: `listing` finds files, `enumerator` cuts and hands them out as splits (`split`), `split_reader` reads
splits with `lines` and the decoders in `headgate.formats`. `source` ties them together.
"""
