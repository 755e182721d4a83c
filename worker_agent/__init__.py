"""The agent beside the training process: it measures, reports, and resizes at iteration boundaries.

Three lines in a training script::

    with worker_agent.session() as job:
        job.prepare(model, optimizer)
        for indices in job.batches(len(dataset), global_batch=64, epochs=30):
            ...

Without the environment of a Scavenger job the script runs alone.
"""

from worker_agent.session import Session, StandaloneSession
from worker_agent.settings import read_settings

__all__ = ["Session", "session"]


def session(*, deterministic: bool = False) -> Session:
    """Open the session of this training process.

    Args:
        deterministic: Make the random streams of an iteration depend only on the seed of
            ``batches()`` and the position in the data, and refuse operations whose result varies.
    """
    settings = read_settings()
    if settings is None:
        return StandaloneSession(deterministic=deterministic)
    if settings.position > 0:
        from worker_agent.training.worker_processes import FollowingSession

        return FollowingSession(settings, deterministic=deterministic)
    # Imported here: a script outside a job must not load httpx and telemetry.
    if settings.strategy in ("downpour", "sandblaster"):
        from worker_agent.training.asynchronous import AsynchronousSession

        return AsynchronousSession(settings)
    from worker_agent.training.elastic import ElasticSession

    return ElasticSession(settings, deterministic=deterministic)
