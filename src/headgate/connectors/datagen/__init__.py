"""Generated data: `DatagenSource`, the same rows for the same seed, however they are read."""

from headgate.connectors.datagen.source import DatagenSource

__all__ = ["DatagenSource"]
