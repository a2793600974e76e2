"""What the coordinator and the slots of a continuous query say to each other, as data.

Never: decide, send or store anything. `messages` are the letters, `state` is what checkpoints are made of, `session`
makes one FIFO stream of letters out of any number of connections.
"""
