"""The tables, one concern each. Every column has one writer, named beside its table.

Moments are ``timestamptz``; money is ``numeric``; columns that a fit reads refuse NaN.
``PHASE_TRANSITIONS`` and ``VM_TRANSITIONS`` list what may become of a job and of a machine;
triggers refuse any other change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from scavenger.schemas.jobs import JobPhase

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_N_label)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def moment_column(name: str, *, nullable: bool = True, primary_key: bool = False) -> Column[Any]:
    """A column that holds a moment in UTC."""
    return Column(
        name,
        DateTime(timezone=True),
        nullable=nullable and not primary_key,
        primary_key=primary_key,
    )


def finite_constraint(name: str) -> CheckConstraint:
    """A constraint that refuses NaN, which Postgres would otherwise store and spread."""
    return CheckConstraint(
        f"{name} = {name} AND {name} < 'Infinity'::float8", name=f"{name}_finite"
    )


def job_column(*, primary_key: bool = False) -> Column[Any]:
    """The job a row belongs to."""
    return Column(
        "job",
        Text,
        ForeignKey("jobs.id", ondelete="CASCADE"),
        primary_key=primary_key,
        nullable=False,
    )


# Jobs as submitted, and requests to cancel them: written by the API.
jobs = Table(
    "jobs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("project", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("model_key", Text, nullable=False),
    Column("spec", JSONB, nullable=False),
    moment_column("created_at", nullable=False),
    moment_column("cancel_requested_at"),
    Index(None, "created_at", "id"),
    Index(None, "project", "created_at", "id"),
    Index(None, "project", "model_key"),
)

# What became of a job: written by the reconciler. Phases change as service.db.schema says, and
# one that is final is for ever (a trigger).
outcomes = Table(
    "outcomes",
    metadata,
    job_column(primary_key=True),
    Column("phase", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("search", Text, nullable=False),
    Column("chosen", JSONB),
    Column("choice", Text),
    Column("advised", JSONB),
    Column("advice", Text),
    Column("worker_exit_code", Integer),
    Column("epochs_to_target", Double),
    Column("diverged", Boolean, nullable=False),
    Column("budget_told", Integer, nullable=False, server_default="0"),
    Column("framework", Text, nullable=False, server_default=""),
    moment_column("finished_at"),
    Column("waiting", Text),
    moment_column("due_from"),
    moment_column("due_until"),
    Index(None, "phase"),
)

# Compiled code that machines of a project share: written by the API, the oldest use dropped first.
bundles = Table(
    "bundles",
    metadata,
    Column("project", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("content", LargeBinary, nullable=False),
    moment_column("last_used", nullable=False),
)

# The code that jobs run, by its hash: written by the API, and dropped once no job names it.
packages = Table(
    "packages",
    metadata,
    Column("project", Text, primary_key=True),
    Column("sha256", Text, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("content", LargeBinary, nullable=False),
    moment_column("created_at", nullable=False),
    moment_column("last_used", nullable=False),
)

# Checkpoints in buckets: written by the API as machines send them, and dropped once the bucket has
# them no longer.
checkpoints = Table(
    "checkpoints",
    metadata,
    job_column(primary_key=True),
    Column("id", Text, primary_key=True),
    Column("cloud", Text, nullable=False),
    Column("bucket", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("iteration", BigInteger, nullable=False),
    Column("parts", JSONB, nullable=False),
    Column("state", Text, nullable=False),
    Column("worker", Text, nullable=False),
    moment_column("created_at", nullable=False),
    moment_column("keep_until", nullable=False),
    CheckConstraint("state IN ('unfinished', 'complete', 'doomed')", name="state_known"),
    Index(None, "keep_until", postgresql_where=text("state <> 'complete'")),
)

# Which controller acts for a job: written by the reconciler's loop.
leases = Table(
    "leases",
    metadata,
    job_column(primary_key=True),
    Column("token", Text, nullable=False),
    moment_column("expires_at", nullable=False),
)

# Virtual machines: intent first, then what the provider showed; gone is for ever (triggers).
# Written by the reconciler, except prepaid_until, which belongs to the ledger.
vms = Table(
    "vms",
    metadata,
    Column("id", Text, primary_key=True),
    job_column(),
    Column("role", Text, nullable=False),
    Column("launch_key", Text, nullable=False, unique=True),
    Column("state", Text, nullable=False),
    Column("provider_id", Text),
    Column("cloud", Text, nullable=False),
    Column("zone", Text, nullable=False),
    Column("machine_type", Text, nullable=False),
    Column("market", Text, nullable=False),
    Column("image", Text, nullable=False),
    Column("price_per_hour", Numeric, nullable=False),
    Column("quantum", Double, nullable=False),
    Column("minimum", Double, nullable=False),
    Column("prepaid", Double, nullable=False),
    moment_column("intended_at", nullable=False),
    moment_column("began_at"),
    moment_column("attempted_at"),
    Column("open_asks", Integer, nullable=False),
    Column("refusal", Text),
    Column("refusal_label", Text),
    Column("stamp", Text),
    moment_column("missed_at"),
    moment_column("warned_at"),
    moment_column("ordered_at"),
    Column("orders", Integer, nullable=False),
    moment_column("ended_at"),
    moment_column("prepaid_until", nullable=False),
    Index(None, "job"),
    Index(None, "intended_at", "id"),
    CheckConstraint("role IN ('worker', 'server')", name="role_known"),
    CheckConstraint("state IN ('intended', 'launched', 'ending', 'gone')", name="state_known"),
    CheckConstraint("market IN ('on_demand', 'spot')", name="market_known"),
    finite_constraint("quantum"),
    finite_constraint("minimum"),
    finite_constraint("prepaid"),
)

# What spot machines cost, as their clouds showed it: every change between two looks, and each look.
# Written by the reconciler.
vm_prices = Table(
    "vm_prices",
    metadata,
    Column("vm", Text, ForeignKey("vms.id", ondelete="CASCADE"), primary_key=True),
    moment_column("since", primary_key=True),
    Column("price_per_hour", Numeric, nullable=False),
)

# Places that a cloud refused a machine at, for a while; an empty zone, type or market stands for
# all of them. All controllers share them: written by the reconciler.
shortages = Table(
    "shortages",
    metadata,
    Column("cloud", Text, primary_key=True),
    Column("zone", Text, primary_key=True),
    Column("machine_type", Text, primary_key=True),
    Column("market", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("why", Text, nullable=False),
    moment_column("until", nullable=False),
    CheckConstraint("kind IN ('capacity', 'quota', 'credentials', 'taken')", name="kind_known"),
)

# What clouds ask for what they rent out: written by an admin's import, by maintenance, and by a
# controller that starts.
prices = Table(
    "prices",
    metadata,
    Column("provider", Text, primary_key=True),
    Column("region", Text, primary_key=True),
    Column("item", Text, primary_key=True),
    Column("unit", Text, primary_key=True),
    Column("market", Text, primary_key=True),
    Column("price", Numeric, nullable=False),
    Column("vcpus", Double),
    Column("memory_gib", Double),
    Column("accelerator", Text, nullable=False),
    Column("accelerators", Integer, nullable=False),
    moment_column("as_of", nullable=False),
    Column("source", Text, nullable=False),
    CheckConstraint("price > 0 AND price < 1000000", name="price_plausible"),
    CheckConstraint("source IN ('shipped', 'imported', 'cloud')", name="source_known"),
    CheckConstraint("market IN ('on_demand', 'spot')", name="market_known"),
)

# Machines that came up, and the nonce each enrolled with: written by the API.
enrolments = Table(
    "enrolments",
    metadata,
    Column("worker", Text, ForeignKey("vms.id", ondelete="CASCADE"), primary_key=True),
    Column("nonce_digest", Text, nullable=False),
    moment_column("at", nullable=False),
)

# How a worker's command ended: written by the agent endpoint.
exits = Table(
    "exits",
    metadata,
    Column("worker", Text, ForeignKey("vms.id", ondelete="CASCADE"), primary_key=True),
    Column("code", Integer, nullable=False),
    Column("tail", Text, nullable=False),
    moment_column("at", nullable=False),
)

# Where each worker stands: written by the agent endpoint.
workers = Table(
    "workers",
    metadata,
    Column("worker", Text, ForeignKey("vms.id", ondelete="CASCADE"), primary_key=True),
    job_column(),
    Column("address", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("iteration", BigInteger, nullable=False),
    Column("samples", BigInteger, nullable=False),
    Column("epochs", Double, nullable=False),
    Column("metrics", JSONB, nullable=False),
    Column("not_finite", JSONB, nullable=False),
    Column("broken", BigInteger),
    Column("refused", BigInteger),
    Column("finished", Text),
    Column("next_sequence", BigInteger, nullable=False),
    Column("dropped", BigInteger, nullable=False),
    Column("rejected", BigInteger, nullable=False),
    Column("framework", Text, nullable=False, server_default=""),
    moment_column("hello_at", nullable=False),
    moment_column("seen_at", nullable=False),
    Index(None, "job"),
    finite_constraint("epochs"),
)

# Measured iterations, packed, one row per report, in a partition per day: written by the agent
# endpoint. No foreign key: a chunk outlives its job until its day is dropped.
chunks = Table(
    "chunks",
    metadata,
    Column("received_at", DateTime(timezone=True), primary_key=True, server_default=text("now()")),
    Column("worker", Text, primary_key=True),
    Column("sequence", BigInteger, primary_key=True),
    Column("job", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("rows", Integer, nullable=False),
    Column("columns", LargeBinary, nullable=False),
    Index(None, "job", "generation", "received_at"),
    postgresql_partition_by="RANGE (received_at)",
)

# Generations of which an iteration was measured, and the first such iteration. They stay when the
# chunks are dropped: written by the agent endpoint.
measured_generations = Table(
    "measured_generations",
    metadata,
    job_column(primary_key=True),
    Column("generation", BigInteger, primary_key=True),
    Column("first_iteration", BigInteger, nullable=False),
)

# What workers were told: written by the reconciler.
directives = Table(
    "directives",
    metadata,
    job_column(primary_key=True),
    Column("generation", BigInteger, primary_key=True),
    Column("directive", JSONB, nullable=False),
    moment_column("published_at", nullable=False),
)

# How long each change of generation took: written by the agent endpoint.
regroups = Table(
    "regroups",
    metadata,
    job_column(primary_key=True),
    Column("generation", BigInteger, primary_key=True),
    Column("pause", Double, nullable=False),
    Column("iterations_lost", BigInteger, nullable=False),
    moment_column("at", nullable=False),
    finite_constraint("pause"),
)

# Settled probes, of a configuration one before the noise has settled and one after: written by the
# reconciler.
observations = Table(
    "observations",
    metadata,
    job_column(primary_key=True),
    Column("workers", Integer, primary_key=True),
    Column("global_batch", Integer, primary_key=True),
    Column("has_settled_noise", Boolean, primary_key=True),
    Column("stack", Text, primary_key=True, server_default="eager"),
    Column("noise", Double),
    Column("noise_scale", Double),
    Column("compute_time", Double, nullable=False),
    Column("sync_time", Double, nullable=False),
    Column("iterations", Integer, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("cost", Numeric, nullable=False),
    moment_column("settled_at", nullable=False),
    *[
        finite_constraint(name)
        for name in ("noise", "noise_scale", "compute_time", "sync_time", "seconds")
    ],
)

# Noise scales that had drifted, from which plans were made anew: written by the reconciler.
drifts = Table(
    "drifts",
    metadata,
    job_column(primary_key=True),
    moment_column("at", primary_key=True),
    Column("noise_scale", Double, nullable=False),
    finite_constraint("noise_scale"),
)

# Where the loss or the target's metric was first NaN or infinite: written by the agent endpoint.
divergences = Table(
    "divergences",
    metadata,
    job_column(primary_key=True),
    Column("series", Text, primary_key=True),
    Column("worker", Text, nullable=False),
    Column("value", Text, nullable=False),
    Column("iteration", BigInteger, nullable=False),
    moment_column("at", nullable=False),
)

# What workers found out about stacks: written by the agent endpoint.
stack_checks = Table(
    "stack_checks",
    metadata,
    job_column(primary_key=True),
    Column("stack", Text, primary_key=True),
    Column("local_batch", Integer, primary_key=True, autoincrement=False),
    Column("worker", Text, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("gradient_error", Double, nullable=False),
    Column("refusal", Text, nullable=False),
    Column("cache_trouble", Text, nullable=False),
    Column("memory_share", Double, nullable=False, server_default="1"),
    moment_column("at", nullable=False),
    finite_constraint("seconds"),
    finite_constraint("gradient_error"),
    finite_constraint("memory_share"),
)

# What a machine measured of a job's model, or why it could not: written by the agent endpoint.
layout_profiles = Table(
    "layout_profiles",
    metadata,
    job_column(primary_key=True),
    Column("project", Text, nullable=False),
    Column("signature", Text, nullable=False),
    Column("profile", JSONB(none_as_null=True)),
    Column("failure", Text, nullable=False),
    moment_column("at", nullable=False),
    Index("ix_layout_profiles_signature", "project", "signature", "at"),
)

# The curve each choice was made from, for ever (a trigger): written by the reconciler.
curves = Table(
    "curves",
    metadata,
    job_column(primary_key=True),
    Column("number", Integer, primary_key=True),
    moment_column("at", nullable=False),
    Column("curve", JSONB, nullable=False),
    Column("points", JSONB, nullable=False),
)

# Plans and the jobs submitted from them: written by the API, and dropped a day after they expire.
plans = Table(
    "plans",
    metadata,
    Column("id", Text, primary_key=True),
    Column("project", Text, nullable=False),
    moment_column("created_at", nullable=False),
    moment_column("expires_at", nullable=False),
    Column("spec", JSONB, nullable=False),
    Column("plan", JSONB, nullable=False),
    Column("job", Text, ForeignKey("jobs.id", ondelete="CASCADE")),
    Index(None, "expires_at"),
)

# What the target's metric was at which progress, thinned: written by the agent endpoint.
readings = Table(
    "readings",
    metadata,
    job_column(primary_key=True),
    Column("epochs", Double, primary_key=True),
    Column("value", Double, nullable=False),
    Column("at", DateTime(timezone=True), server_default=text("now()")),
    finite_constraint("epochs"),
    finite_constraint("value"),
)

# What users ask of running jobs: written by the API. State, told and ended_at: by the reconciler;
# an order that has ended never changes (a trigger).
orders = Table(
    "orders",
    metadata,
    job_column(primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("wish", JSONB, nullable=False),
    Column("reason", Text, nullable=False),
    Column("token", Text, nullable=False),
    moment_column("at", nullable=False),
    Column("state", Text, nullable=False),
    Column("told", Text),
    moment_column("ended_at"),
    CheckConstraint("kind IN ('resize', 'probe', 'pause', 'resume', 'change')", name="kind_known"),
    CheckConstraint("state IN ('open', 'done', 'refused', 'replaced')", name="state_known"),
    CheckConstraint(
        "(state = 'open') = (ended_at IS NULL) AND (state = 'open') = (told IS NULL)",
        name="end_told",
    ),
)

# What commands printed, a row for each line, the newest of each job: written by the agent endpoint,
# and dropped with the files of ended machines.
log_lines = Table(
    "log_lines",
    metadata,
    Column("number", BigInteger, Identity(always=True), primary_key=True),
    job_column(),
    Column("worker", Text, nullable=False),
    Column("line", BigInteger, nullable=False),
    moment_column("at", nullable=False),
    Column("text", Text, nullable=False),
    Index(None, "job", "number"),
    UniqueConstraint("worker", "line"),
)

# How many lines a machine has printed, kept or not: written by the agent endpoint.
log_counts = Table(
    "log_counts",
    metadata,
    Column("worker", Text, ForeignKey("vms.id", ondelete="CASCADE"), primary_key=True),
    job_column(),
    Column("printed", BigInteger, nullable=False),
    Index(None, "job"),
)

# Fitted models by project and signature: written by the reconciler.
models = Table(
    "models",
    metadata,
    Column("project", Text, primary_key=True),
    Column("signature", Text, primary_key=True),
    Column("model_key", Text, nullable=False),
    Column("model", JSONB, nullable=False),
    Column("jobs", Integer, nullable=False),
    moment_column("updated_at", nullable=False),
)

# Models that users want forgotten as they were at that moment: written by the API.
forgotten_models = Table(
    "forgotten_models",
    metadata,
    Column("project", Text, primary_key=True),
    Column("signature", Text, primary_key=True),
    moment_column("at", nullable=False),
)

# One sentence per thing that happened: written in the transaction of what it tells. Triggers number
# it at the commit, and refuse to change it from then on.
events = Table(
    "events",
    metadata,
    Column("sequence", BigInteger, Identity(always=True), primary_key=True),
    job_column(),
    moment_column("at", nullable=False),
    Column("kind", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("data", JSONB, nullable=False),
    Index(None, "job", "sequence"),
)

# Addresses that are told of events: written by the API; failing_since, gave_up_at, gave_up_why and
# seen by the sender. `seen` is the number of the last event for which deliveries were made.
webhooks = Table(
    "webhooks",
    metadata,
    Column("id", Text, primary_key=True),
    Column("project", Text, nullable=False),
    Column("url", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("events", JSONB, nullable=False),
    moment_column("created_at", nullable=False),
    Column("created_by", Text, nullable=False),
    moment_column("enabled_at"),
    Column("rotations", Integer, nullable=False),
    moment_column("rotated_at"),
    moment_column("failing_since"),
    moment_column("gave_up_at"),
    Column("gave_up_why", Text),
    Column("seen", BigInteger, nullable=False),
    CheckConstraint("kind IN ('generic', 'slack')", name="kind_known"),
)

# Events on their way to webhooks: inserted by the sender, tests and replays by the API; the rest
# is written by the sender. No foreign key to events: their numbers are written by an update, which
# would search this table.
deliveries = Table(
    "deliveries",
    metadata,
    Column("number", BigInteger, Identity(always=True), primary_key=True),
    Column("webhook", Text, ForeignKey("webhooks.id", ondelete="CASCADE"), nullable=False),
    Column("event", BigInteger),
    Column("replay_of", BigInteger),
    moment_column("created_at", nullable=False),
    Column("state", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    moment_column("next_try_at", nullable=False),
    Column("status", Integer),
    Column("told", Text),
    moment_column("ended_at"),
    CheckConstraint("state IN ('waiting', 'delivered', 'failed')", name="state_known"),
    Index(None, "webhook", "number"),
    Index(
        "uq_deliveries_webhook_event",
        "webhook",
        "event",
        unique=True,
        postgresql_where=text("replay_of IS NULL"),
    ),
    Index(None, "next_try_at", postgresql_where=text("state = 'waiting'")),
)

# What tells this installation from others: written by the first controller.
installations = Table(
    "installations",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("id", Text, nullable=False),
    Column("fingerprint", Text),
    CheckConstraint("number = 1", name="only_one"),
)

# In which account the machines of each cloud are, by the name of its entry in the clouds file:
# written by the first controller that has the entry.
accounts = Table(
    "accounts",
    metadata,
    Column("cloud", Text, primary_key=True),
    Column("account", Text, nullable=False),
)

# Launches counted so far, by launch counter; a controller starts a new one after a restore: written
# by the reconciler.
launch_counters = Table(
    "launch_counters",
    metadata,
    Column("token", Text, primary_key=True),
    Column("launches", BigInteger, nullable=False),
)

# What each run of the garbage collector found: written by it, confirmed_at by the API.
sweeps = Table(
    "sweeps",
    metadata,
    Column("number", BigInteger, Identity(always=True), primary_key=True),
    Column("cloud", Text, nullable=False),
    moment_column("at", nullable=False),
    Column("shown", Integer),
    Column("suspects", JSONB),
    Column("ended", Integer, nullable=False),
    Column("tripped", Text),
    moment_column("confirmed_at"),
)

# Requests that carry a key, with what was answered: written in the transaction of their effect.
requests = Table(
    "requests",
    metadata,
    Column("caller", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("fingerprint", Text, nullable=False),
    Column("status", Integer, nullable=False),
    Column("headers", JSONB, nullable=False),
    Column("content", Text, nullable=False),
    moment_column("at", nullable=False),
    Index("ix_requests_at", "at"),
)

# Tokens of people, known by their hashes: written by the API.
tokens = Table(
    "tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("project", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("name", Text, nullable=False),
    moment_column("created_at", nullable=False),
    Column("created_by", Text, nullable=False),
    moment_column("expires_at"),
    moment_column("revoked_at"),
    moment_column("last_used_at"),
    CheckConstraint("role IN ('viewer', 'submitter', 'operator', 'admin')", name="role_known"),
)

# Browsers that are signed in, known by the hashes of their cookies: written by the API.
sessions = Table(
    "sessions",
    metadata,
    Column("digest", Text, primary_key=True),
    Column("token", Text, ForeignKey("tokens.id", ondelete="CASCADE"), nullable=False),
    moment_column("created_at", nullable=False),
    moment_column("last_used_at", nullable=False),
)

# Codes that begin a session, until they are used, by their hashes: written by the API.
sign_in_codes = Table(
    "sign_in_codes",
    metadata,
    Column("digest", Text, primary_key=True),
    Column("token", Text, ForeignKey("tokens.id", ondelete="CASCADE"), nullable=False),
    moment_column("expires_at", nullable=False),
)

# Requests of people that would change something, for ever (a trigger): written by the API's gate.
audit = Table(
    "audit",
    metadata,
    Column("number", BigInteger, Identity(always=True), primary_key=True),
    moment_column("at", nullable=False),
    Column("who", Text, nullable=False),
    Column("project", Text, nullable=False),
    Column("method", Text, nullable=False),
    Column("route", Text, nullable=False),
    Column("target", Text),
    Column("status", Integer, nullable=False),
    Column("request_id", Text, nullable=False),
    Index(None, "project", "number"),
)

FINAL_PHASES = frozenset(phase for phase in JobPhase if phase.is_final)
FAILURE_PHASES = FINAL_PHASES - {JobPhase.SUCCEEDED}

# Before anything was told to a worker nothing can have succeeded; and a search is never taken up
# again. What earlier jobs taught may make it needless.
PHASE_TRANSITIONS: Mapping[JobPhase, frozenset[JobPhase]] = {
    JobPhase.PENDING: FAILURE_PHASES | {JobPhase.STARTING, JobPhase.TRAINING},
    JobPhase.STARTING: FAILURE_PHASES | {JobPhase.PROBING, JobPhase.TRAINING},
    JobPhase.PROBING: FINAL_PHASES | {JobPhase.TRAINING},
    # A configuration that was chosen by times of another framework is searched anew.
    JobPhase.TRAINING: FINAL_PHASES | {JobPhase.PROBING},
    **{phase: frozenset() for phase in JobPhase if phase.is_final},
}

# One that is ending may be shown for the first time: it is ending all the same.
VM_TRANSITIONS: Mapping[str, frozenset[str]] = {
    "intended": frozenset({"launched", "ending", "gone"}),
    "launched": frozenset({"ending", "gone"}),
    "ending": frozenset({"gone"}),
    "gone": frozenset(),
}
