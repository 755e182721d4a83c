"""How long a live resize takes, beside the same change made by torchrun's elastic restart."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from tests.bench import diary
from tests.bench.diary import Gap
from tests.bench.digits import BATCH
from tests.bench.torchrun import Torchrun
from tests.conductor import Conductor

SETTLED = 10  # iterations between two changes
CHANGES = ((2, 4), (4, 1), (1, 2))
