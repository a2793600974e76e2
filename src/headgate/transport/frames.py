"""What the two ends of a stream say to each other beside messages (control plane), rows and events (data plane).

Never: begin like a message or an event: those are MessagePack maps, whose first byte is not ASCII.
"""

CONTROL = b"control"
"""What a slot's stream to the coordinator asks for: the command of its descriptor."""

WELCOME = b"welcome"
"""From the server, the first frame: the secret is right and the stream is open."""
GOODBYE = b"goodbye"
"""From the server, the last frame: the client is to end the stream. What it had sent until then may be lost.

In the data plane why follows, in UTF-8."""
REFUSED = b"refused"
"""From the server of a data plane, the first and last frame; why follows, in UTF-8. The client is to end the stream."""
