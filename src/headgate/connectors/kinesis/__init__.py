"""Amazon Kinesis Data Streams: `KinesisSource`, by GetRecords through boto3.

The data's way: ListShards -> `shards` (which shards are new, which wait for their parents) -> `enumerator` -> a
`KinesisSplit`: a shard, a position in it, and for a range the last sequence number that belongs to it -> `cursor`
(iterators, expiry, throttling, lost data; one call at a time) -> `split_reader`, a few threads over many shards ->
`columns`: Arrow batches. Before a micro-batch `scout` reads ahead with the same cursors, because a range may only end
at a sequence number that somebody has seen.
"""

from headgate.connectors.kinesis.source import KinesisSource

__all__ = ["KinesisSource"]
