"""What the two ends of the control plane say to each other beside letters.

Never: begin like a letter: an `Envelope` is a MessagePack map, whose first byte is no ASCII.
"""

WELCOME = b"welcome"
"""From the server, the first frame: the secret is right and the stream is open."""
GOODBYE = b"goodbye"
"""From the server, the last frame: the client is to end the stream. What it had sent until then may be lost."""
