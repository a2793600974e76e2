"""What the coordinator and the slots of a continuous query say to each other, as data.

Never: decide, send or store anything. `messages` are the messages, `state` is what checkpoints are made of, `session`
makes one FIFO stream of messages out of any number of connections.
"""
