"""``headgate.pulsar``: topics of Apache Pulsar, over ``pulsar-client`` and the brokers' HTTP API.

A split is a partition (`split`). `source` ties the parts: `discovery` finds partitions and resolves where they start
and stop, `planning` cuts micro-batches, `split_reader` reads, `columns` makes record batches. `admin` asks the brokers,
`client` makes clients of options, `ledgers` decides whether messages were lost.
"""
