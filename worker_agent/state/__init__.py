"""The state of training, for all frameworks: progress, encoding, transfer and checkpoints.

A newcomer and a checkpoint get the same encoding, so both are read by the same careful code.
"""
