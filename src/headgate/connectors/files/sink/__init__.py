"""Files as the sink of continuous queries, published through Spark's own log."""
