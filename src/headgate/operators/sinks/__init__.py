"""Where rows of a continuous query go.

Never: publish what belongs to a checkpoint that is not complete.
"""
