"""Columns and conditions of continuous queries, evaluated by Arrow with Spark's results."""
