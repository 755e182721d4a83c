"""The sessions of a job's workers: what happens between two iterations.

``worker_agent.session()`` opens one. A session counts progress, records measurements, follows
the controller's Directives and saves checkpoints; a `TrainingStrategy` of the model's framework
does the rest.
"""
