"""Kafka as a source and a sink, over confluent-kafka (librdkafka).

The data's way: `cluster` asks the brokers what there is, `positions` says where reading starts and ends, `enumerator`
makes splits of partitions and hands them out, `ranges` fixes what a micro-batch reads of them, `event_times` how far in
event time, and `tasks` which of these ranges share a task; `split_reader` reads them with a consumer (`consumer_pool`
keeps them from task to task) and the decoders `bulk` (whole batches by librdkafka's C interface) or `plain` (one
message at a time, the fall-back); `columns` makes record batches of what they return. `source` ties them together.
The other way, `sink` writes the rows of a task, with `sink.task_writer` or, exactly once, in `sink.transactions`.

Never: import confluent-kafka or numba before they are used.
"""
