"""Decides for a whole query: slots, restarts, failover, and who is notified of what."""
