"""Checkpoints: who takes part, when one is complete, what is in the manifest, and where it is stored.

Never: know how a message travels or which source it is. All but `storage` is pure.
"""
