"""Decides when a continuous query is rescaled, and to what parallelism: from its lag and from how busy it is."""
