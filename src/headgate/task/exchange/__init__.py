"""The machines of an exchange: the queues of producers, the gate of a consumer, what barriers do in both, recovery."""
