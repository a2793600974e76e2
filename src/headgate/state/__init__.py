"""Keyed state: sorted runs of rows in columns, which are merged as they grow, spilled, and stored in checkpoints."""
