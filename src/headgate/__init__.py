"""Headgate: write a source once, read it from Spark as a batch, a stream or a continuous pipeline."""

__version__ = "0.1.0"
