"""What a running query shows of itself: its progress, and that it falls behind.

Never: change what a query does, or import Spark. Figures come with `SubtaskProgress` letters; time is an argument.
"""
