"""A whole cluster in one process: the production machines on a virtual clock, with faults, seeded.

Never: start a thread, read a clock, sleep, or draw from another generator than the seed's.

Follows the simulators of TigerBeetle and FoundationDB; FLINK-38544: a seed replays a failure exactly.
"""
