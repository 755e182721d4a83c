"""``python -m worker_agent.supervisor``: the first process of a machine."""

from __future__ import annotations

from worker_agent.supervisor.lifetime import RestartBudget
from worker_agent.supervisor.supervisor import main

if __name__ == "__main__":
    main(RestartBudget())
