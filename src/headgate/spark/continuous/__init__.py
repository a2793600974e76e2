"""Continuous queries at work: threads, streams and storage around the machines, in the driver and in the slots.

Never: decide. What happens goes into a machine as an event, and what comes out is carried out.
"""
