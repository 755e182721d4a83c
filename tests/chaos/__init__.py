"""Resizes under faults: random plans, random faults, and a judge who knows what must come out."""
