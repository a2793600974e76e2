"""``transformWithState``: PySpark's `StatefulProcessor` over a keyed stream, its state in the checkpoints of the query.

Never: import pyspark before a processor is given: the package is loaded with the other operators.
"""
