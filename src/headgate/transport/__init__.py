"""How messages and rows get from one process to another; the simulator needs none of this.

Never: decide anything about a query, or look into a message. `ControlServer` and `ControlClient` carry the control
plane between the driver and the slots, over Arrow Flight (`endpoint`: secret, TLS). `DataPlane` carries the channels
between the slots, over sockets of its own.
"""
