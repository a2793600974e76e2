"""Kafka as a sink: of batches and micro-batches (`task_writer`), and of continuous queries (`sink`)."""
