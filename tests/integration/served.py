"""The test's training script, with parameter servers: see trainee.py."""

import os
from functools import partial

import worker_agent
from tests.integration import trainee
from worker_agent.asynchronous import Asynchronous
from worker_agent.elastic import Elastic, carried
from worker_agent.membership import Membership
from worker_agent.settings import read_settings
from worker_agent.strategies.all_reduce import AllReduce
from worker_agent.strategies.choice import Choice
from worker_agent.strategies.parameter_server import ParameterServer
from worker_agent.strategies.store_meeting import StoreMeeting


class Served(Elastic):
    """A session that trains as its first Directive says."""

    def prepare(
        self, model, optimizer, *, micro_batches=1, scheduler=None, scaler=None, extra=None
    ):
        worker = self.settings.worker
        meeting = StoreMeeting(worker, self.settings.host, self._is_superseded)
        facts = {
            "micro_batches": micro_batches,
            "carried": carried(scheduler, scaler, extra),
            "is_abandoned": self._is_abandoned,
        }
        served = {"worker": worker, "secret": self.settings.job_secret}
        self.strategy = Choice(
            meeting,
            {
                "all_reduce": partial(AllReduce, model, optimizer, meeting, **facts),
                "parameter_server": partial(
                    ParameterServer, model, optimizer, meeting, **facts, **served
                ),
            },
        )
        self.membership = Membership(worker, self.strategy, self.reporter, self._wants_to_leave)


if __name__ == "__main__":
    kind = Asynchronous if os.environ.get("DOWNPOUR") else Served
    worker_agent.session = lambda: kind(read_settings())
    trainee.main()
