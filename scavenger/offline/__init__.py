"""Work without a controller: fit a table, evaluate the laws, simulate jobs.

The commands `fit`, `evaluate` and `simulate` are the callers; the controller imports nothing from
here.
"""
