"""The client's methods that give orders to running jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from scavenger.client.core import (
    MAX_PAGE_SIZE,
    ApiRequest,
    Listing,
    get,
    iterate_items,
    job_path,
    post,
)
from scavenger.client.methods import listing, one_request
from scavenger.schemas.orders import OrderList, OrderView, Preference


class OrderMethods:
    """Resize, probe, pause and resume jobs, and change their limits.

    Each returns the order as it was given; ``orders`` tells what became of it. All take ``seen``:
    the ETag of the answer that the user looked at. They then raise PreconditionFailed where
    something was decided since; ``error.problem.current`` has the figures of now.
    """

    @one_request
    def resize(
        self,
        job: str,
        to: Preference | tuple[int, int] | tuple[int, int, str],
        *,
        reason: str = "",
        seen: str | None = None,
    ) -> ApiRequest[OrderView]:
        """Move a job to a configuration, or to what an objective chooses, and keep it there.

        Args:
            job: Id of the job.
            to: Workers and global batch, and perhaps a stack, else the job's; ``knee``,
                ``cheapest`` or ``fastest``; or ``auto``, which plans by the job's own objective
                again.
            reason: Why, for those who read it later.
            seen: ETag of the job as it was seen.
        """
        target = to if isinstance(to, str) else _point(*to)
        return _order(f"{job_path(job)}/actions/resize", {"to": target}, reason, seen)

    @one_request
    def probe(
        self,
        job: str,
        workers: int,
        global_batch: int,
        stack: str | None = None,
        *,
        reason: str = "",
        seen: str | None = None,
    ) -> ApiRequest[OrderView]:
        """Measure a configuration once; the job then goes back to where it was.

        Args:
            job: Id of the job.
            workers: Workers (K).
            global_batch: Global batch (B) in samples.
            stack: Stack of each worker; None for the job's.
            reason: Why, for those who read it later.
            seen: ETag of the job as it was seen.
        """
        wish = _point(workers, global_batch, stack)
        return _order(f"{job_path(job)}/actions/probe", wish, reason, seen)

    @one_request
    def pause(
        self, job: str, *, reason: str = "", seen: str | None = None
    ) -> ApiRequest[OrderView]:
        """Save a checkpoint and end all machines of a job until it is resumed."""
        return _order(f"{job_path(job)}/actions/pause", {}, reason, seen)

    @one_request
    def resume(
        self, job: str, *, reason: str = "", seen: str | None = None
    ) -> ApiRequest[OrderView]:
        """Launch machines of a paused job again; it goes on from its checkpoint."""
        return _order(f"{job_path(job)}/actions/resume", {}, reason, seen)

    @one_request
    def change_limits(
        self,
        job: str,
        limits: Mapping[str, str | None],
        *,
        objective: str | Mapping[str, float] | None = None,
        reason: str = "",
        seen: str | None = None,
    ) -> ApiRequest[OrderView]:
        """Change limits or the objective of a job.

        Args:
            job: Id of the job.
            limits: ``max_cost`` such as ``5 USD`` and ``max_time`` such as ``2h``; None removes
                one, and what is left out stays.
            objective: Which configuration to train on from now on; None leaves it.
            reason: Why, for those who read it later.
            seen: ETag of the job as it was seen.
        """
        wish: dict[str, Any] = {"limits": dict(limits)} if limits else {}
        if objective is not None:
            wish["objective"] = objective if isinstance(objective, str) else dict(objective)
        return _order(job_path(job), wish, reason, seen, method="PATCH")

    @listing
    def orders(self, job: str) -> Listing[OrderView]:
        """Yield the orders of a job, newest first, with what became of each."""
        request = get(OrderList, f"{job_path(job)}/orders", {"limit": MAX_PAGE_SIZE})
        return iterate_items(request, lambda page: page.orders)


def _point(workers: int, global_batch: int, stack: str | None = None) -> dict[str, Any]:
    """Return a configuration as the API takes it."""
    named = {} if stack is None else {"stack": stack}
    return {"workers": workers, "global_batch": global_batch, **named}


def _order(
    path: str,
    wish: dict[str, Any],
    reason: str,
    seen: str | None,
    method: Literal["POST", "PATCH"] = "POST",
) -> ApiRequest[OrderView]:
    """Return the request that gives an order."""
    because = {"reason": reason} if reason else {}
    headers = {} if seen is None else {"If-Match": seen}
    return post(OrderView, path, {**wish, **because}, method=method, headers=headers)
