"""What a running query reports: its progress, and that it cannot keep up with its input.

Never: change what a query does, or import Spark. Figures come with `SubtaskProgress` messages; time is an argument.
"""
