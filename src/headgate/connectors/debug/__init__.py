"""Sinks to look at rows, or to measure what comes before them: console, memory and noop."""
