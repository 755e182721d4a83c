"""From the iterations that workers report to one observation per probe.

The controller and the simulator hand over reported steps; this package estimates gradient noise
(Eq. 2), decides whether it has settled and takes the medians of the timing. Everything above works
with the resulting observations only.
"""
