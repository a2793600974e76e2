"""What the two ends of a stream of the control plane say to each other beside messages.

Never: begin like a message: that is a MessagePack map, whose first byte is not ASCII.
"""

CONTROL = b"control"
"""What a slot's stream to the coordinator asks for: the command of its descriptor."""

WELCOME = b"welcome"
"""From the server, the first frame: the secret is right and the stream is open."""
GOODBYE = b"goodbye"
"""From the server, the last frame: the client is to end the stream. What it had sent until then may be lost."""
