"""Execution stacks of PyTorch: how one worker computes a step, and how that is changed.

A stack is a sum of parts, such as ``bf16+fused``. Each part has one file here and one line in the
registry; a session turns parts on and off between two iterations. docs/adding-a-stack.md adds
another part step by step.
"""
