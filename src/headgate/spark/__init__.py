"""The DataFrame doors: a source as a Spark batch and as a Structured Streaming source.

datasource.py     what Spark calls: the data source, its batch reader, its stream reader
registration.py   `headgate.register`, for sources of one's own
planner.py        runs an enumerator in Spark's planner process with one virtual reader
stream_plan.py    fixes what each micro-batch reads, and keeps it in offsets
offsets.py        what stands in Spark's offset log
state_store.py    what is too large for it, in files of ``stateLocation``
packing.py        which splits share a task
task.py           reads splits in a Spark task
"""
