"""The read model: all that a tick of the reconciler or a page of the API knows about a job.

``loader`` reads it from the database in a fixed number of queries, ``job_state`` is the frozen
result, and the presenters turn it into views.
"""
