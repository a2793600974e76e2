"""Pulsar as a sink: of batches and micro-batches (`micro_batch`), and of continuous queries (`sink`)."""
