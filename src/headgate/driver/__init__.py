"""The driver's side of a continuous query, without Spark: threads around what the coordinator decides."""
