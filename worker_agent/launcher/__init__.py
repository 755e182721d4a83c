"""``scavenger agent run``: measures and restarts training scripts that do not import the agent.

One half is the launcher, which starts the script. The other half runs inside the script's
processes, loaded by ``boot/sitecustomize.py``: patches, step timing, and the aggregation of all
ranks' measurements.
"""
