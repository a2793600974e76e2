"""A continuous query as a value: its plan, the stages it is cut into, and its options."""
