"""Servers for tests, benches and people, on loopback: a Kafka broker, and AWS's interfaces by moto."""
