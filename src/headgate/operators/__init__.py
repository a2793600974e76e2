"""What happens to rows between source and sink of a continuous query.

Never: start a thread of its own beside a sink's writer thread, or hold rows across a barrier outside its state.
"""
