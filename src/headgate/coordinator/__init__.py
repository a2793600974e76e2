"""The coordinator of a continuous query: slots, sources, failover. Pure machines, and the enumerator's runner.

Never: start a thread, read a clock, touch a socket or a disk. `job_master` is the entry point to all machines here and
to `headgate.checkpoint.coordinator`; drivers (`headgate.spark.continuous` and `headgate.simulation`) carry out what
it orders and report what happened.
"""
