"""The state of training, for all frameworks: progress, encoding and checkpoints.

A newcomer and a checkpoint get the same encoding, so both are read by the same careful code.
"""
