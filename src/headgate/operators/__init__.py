"""What happens to rows between source and sink of a continuous query, and the sinks.

Never: start a thread of its own beside a sink's hand-over thread, or hold rows across a barrier outside its state.
"""
