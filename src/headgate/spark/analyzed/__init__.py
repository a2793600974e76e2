"""Spark's analyzed plan of a DataFrame becomes a plan of Headgate's: the front end of ``headgate.continuous(df)``.

Spark has parsed, resolved and typed the program. What is here walks its tree over py4j and decides nothing anew.
"""
