"""How messages get from one process to another: Arrow Flight for real; the simulator needs none of this.

Never: decide anything about a query, or look into a message. `ControlServer` and `ControlClient` carry the control
plane between the driver and the slots; `endpoint` (secret, TLS, sockets) is what each plane of a query is built on.
"""
