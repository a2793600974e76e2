"""Comparisons of continuous queries with Spark, over programs that others wrote: ``./run conformance NAME``."""
