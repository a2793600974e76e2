"""Keyed pipelines on a virtual clock: exchanges, barriers, channel state, recovery and rescaling, seeded.

Never: start a thread, read a clock, sleep, or draw from another generator than the seed's.

Where `headgate.simulation` has a whole driver and one stage, this has several stages and a driver reduced to
deployments: the machines here are the `InputGate`, `ResultPartition` and `ChannelRecovery` of every subtask, the
`CheckpointCoordinator`, and what restores a checkpoint at another parallelism.

Follows FLIP-547; FLINK-38544: a seed replays a failure exactly.
"""
