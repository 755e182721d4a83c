"""What torchrun starts: the digits, looking at the clock before anything is imported."""

from __future__ import annotations

import time


def main() -> None:
    """Train until torchrun restarts or ends this process."""
    started = time.monotonic()
    # Here because a restart imports everything again, and that is part of what it costs.
    from tests.bench import resized
    from tests.bench.diary import Boot

    resized.be_restarted(Boot(started, time.monotonic()))


if __name__ == "__main__":
    main()
