"""Windows over event time: which rows belong together, what is computed of them, and the state until they are whole.

Never: keep a Python object per key or per row.
"""
