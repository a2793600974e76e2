"""Alignment of micro-batches: how far each source of a group is planned, and how planners of one application meet."""
