"""How letters get from one process to another: Arrow Flight for real; the simulator needs none of this.

Never: decide anything about a query, or look into a letter. `ControlServer` and `ControlClient` carry the control plane
between the driver and the slots; `endpoint` (secret, TLS, sockets) is what any plane of a query stands on.
"""
