"""Decides for one source of a query: its enumerator, its readers, and the log of both."""
