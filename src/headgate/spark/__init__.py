"""Entry points of Spark: sources for ``spark.read`` and ``spark.readStream``, sinks, and continuous queries.

datasource.py     what Spark calls: the data source, its batch reader, its stream reader
broker_sink.py    what formats of brokers share: they are sources and sinks
kafka_sink.py     the Kafka sink of batches and micro-batches
pulsar_sink.py    the Pulsar sink of batches and micro-batches
registration.py   `headgate.register`, for sources of one's own
continuous/       `headgate.continuous`: writer, query, driver, and the Spark job whose tasks are slots

What plans and reads a micro-batch is in `headgate.microbatch`.
"""
