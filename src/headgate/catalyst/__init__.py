"""Spark's own code for expressions that no Arrow kernel is proven to equal: a Java process beside the slots runs it."""
