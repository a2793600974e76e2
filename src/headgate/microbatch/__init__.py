"""Sources in Spark's batches and micro-batches: planning, offsets, alignment, and reading in a task.

planner.py        runs an enumerator in Spark's planner process with one virtual reader
stream_plan.py    fixes what each micro-batch reads, and keeps it in offsets
offsets.py        what is in Spark's offset log; state_store.py: what is too large for it, in files of ``stateLocation``
packing.py        which splits share a task
task.py           reads splits in a Spark task
alignment/        which splits wait for others in event time
"""
