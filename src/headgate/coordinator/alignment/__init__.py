"""Decides how far an alignment group may read."""
