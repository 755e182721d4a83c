"""The laws that predict iteration time and epochs to the target, and how they are fitted.

`planning` and `offline` fit them to measurements and ask them for time and cost of configurations
that were never measured.
"""
