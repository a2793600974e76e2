"""What the author of a sink for continuous queries implements."""

from headgate.sink.sink import Sink, SinkCommitter, SinkWriter

__all__ = ["Sink", "SinkCommitter", "SinkWriter"]
