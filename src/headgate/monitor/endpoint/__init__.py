"""The HTTP endpoint of a driver process: the dashboard, what it reads, and the actions that a token permits.

Never: import Spark, or know what a query is beyond `registry.ServedQuery`.
"""
