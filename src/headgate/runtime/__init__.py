"""What a slot of a continuous query runs, without Spark: subtasks, their threads, and how rows get between them."""
