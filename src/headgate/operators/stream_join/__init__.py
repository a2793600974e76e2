"""The join of two streams: `StreamJoin`, the rows that it keeps of each side, and the condition of its pairs.

Never: import what is not an operator's: see `headgate.operators`.
"""
