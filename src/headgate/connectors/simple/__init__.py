"""The adapter that makes a `Source` of a `SimpleSource` class."""

from headgate.connectors.simple.source import SimpleSourceAdapter, adapt

__all__ = ["SimpleSourceAdapter", "adapt"]
