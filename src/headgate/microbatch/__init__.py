"""Sources in Spark's batches and micro-batches: planning, offsets, alignment, and reading in a task."""
