"""Benches: Headgate beside Spark's own readers, in one run, on the same data and with the same program."""
