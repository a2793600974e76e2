"""Decides which slots there are."""
