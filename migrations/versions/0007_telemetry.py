"""Measured iterations in packed chunks by day, and their statistics.

Revision ID: 0007
"""

import math
import struct
from datetime import UTC, datetime, timedelta

import numpy as np
import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"

DAYS_AHEAD = 8
FADE = 0.98
SERIES = (
    "local_norm_sq",
    "mean_norm_sq",
    "compute_time",
    "sync_time",
    "step_time",
    "loss",
    "mean_compute_time",
    "fastest_compute_time",
)
FINITE = ("mean", "distance", "fading", "lowest", "highest")


def upgrade():
    op.add_column(
        "workers", sa.Column("rejected", sa.BigInteger(), nullable=False, server_default="0")
    )
    op.alter_column("workers", "rejected", server_default=None)
    op.create_table(
        "chunks",
        sa.Column(
            "received_at",
            sa.DateTime(timezone=True),
            nullable=False,
            server_default=sa.text("now()"),
        ),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("every", sa.Integer(), nullable=False, server_default="1"),
        sa.Column("columns", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("received_at", "worker", "sequence", name=op.f("pk_chunks")),
        postgresql_partition_by="RANGE (received_at)",
    )
    op.create_index(
        op.f("ix_chunks_job_chunks_generation_chunks_received_at"),
        "chunks",
        ["job", "generation", "received_at"],
    )
    op.create_table(
        "statistics",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("series", sa.Text(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        *[sa.Column(name, sa.Double(), nullable=False) for name in FINITE],
        *[
            sa.CheckConstraint(
                f"{name} = {name} AND {name} < 'Infinity'::float8",
                name=op.f(f"ck_statistics_{name}_finite"),
            )
            for name in FINITE
        ],
        sa.ForeignKeyConstraint(
            ["job"], ["jobs.id"], name=op.f("fk_statistics_job"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job", "generation", "series", name=op.f("pk_statistics")),
    )
    today = datetime.now(UTC).date()
    for day in (today + timedelta(days=number) for number in range(-1, DAYS_AHEAD)):
        op.execute(
            f"CREATE TABLE chunks_{day:%Y%m%d} PARTITION OF chunks"
            f" FOR VALUES FROM ('{day} 00:00+00') TO ('{day + timedelta(days=1)} 00:00+00')"
        )
    convert(op.get_bind())
    op.drop_table("steps")


def convert(connection):
    """Pack what running jobs measured, and summarise it as if it came now."""
    known = {}
    query = sa.text(
        "SELECT worker, sequence, job, generation, columns FROM steps ORDER BY worker, sequence"
    )
    insert = sa.text(
        "INSERT INTO chunks (worker, sequence, job, generation, rows, columns)"
        " VALUES (:worker, :sequence, :job, :generation, :rows, :columns)"
    )
    for row in connection.execute(query, execution_options={"yield_per": 100}).mappings():
        columns = row["columns"]
        for name in ("mean_compute_time", "fastest_compute_time"):
            columns[name] = columns.get(name) or columns["compute_time"]
        whole = np.array([columns["iteration"], columns["shards"]], np.int64)
        series = np.array([columns[name] for name in SERIES], np.float64)
        # What was believed before and cannot be summed.
        is_usable = (np.abs(np.nan_to_num(series)) <= 1e80).all(axis=0) & (whole[1] >= 1)
        whole, series = whole[:, is_usable], series[:, is_usable]
        if not whole.shape[1]:
            continue
        content = struct.pack("<BI", 1, whole.shape[1])
        content += b"".join(b"q" + column.astype("<i8").tobytes() for column in whole)
        content += b"".join(b"d" + column.astype("<f8").tobytes() for column in series)
        place = {name: row[name] for name in ("worker", "sequence", "job", "generation")}
        connection.execute(insert, {**place, "rows": whole.shape[1], "columns": content})
        named = {"iteration": whole[0].astype(float), **dict(zip(SERIES, series, strict=True))}
        for name, values in named.items():
            gather(known, (row["job"], row["generation"], name), values[~np.isnan(values)])
    for (job, generation, name), values in known.items():
        insert_statistic(connection, job, generation, name, values)


def gather(known, key, values):
    """Merge values into count, mean, squared distance, moving sum, smallest and largest."""
    count = len(values)
    if not count:
        return
    mean = math.fsum(values) / count
    fading = float(FADE ** np.arange(count - 1, -1, -1) @ values)
    fresh = (count, mean, float(((values - mean) ** 2).sum()), fading, values.min(), values.max())
    if key in known:
        before, apart = known[key], mean - known[key][1]
        total = before[0] + count
        fresh = (
            total,
            before[1] + apart * count / total,
            before[2] + fresh[2] + apart * apart * before[0] * count / total,
            before[3] * FADE**count + fading,
            min(before[4], fresh[4]),
            max(before[5], fresh[5]),
        )
    known[key] = fresh


def insert_statistic(connection, job, generation, name, values):
    count, *rest = values
    figures = dict(zip(FINITE, map(float, rest), strict=True))
    connection.execute(
        sa.text(
            "INSERT INTO statistics VALUES (:job, :generation, :series, :count,"
            " :mean, :distance, :fading, :lowest, :highest)"
        ),
        {"job": job, "generation": generation, "series": name, "count": count, **figures},
    )


def downgrade():
    # What was measured stays behind: probes that run begin again.
    op.create_table(
        "steps",
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("columns", postgresql.JSONB(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job"], ["jobs.id"], name=op.f("fk_steps_job"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["worker"], ["vms.id"], name=op.f("fk_steps_worker"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("worker", "sequence", name=op.f("pk_steps")),
    )
    op.create_index(op.f("ix_steps_job_steps_generation"), "steps", ["job", "generation"])
    op.drop_table("statistics")
    op.drop_table("chunks")
    op.drop_column("workers", "rejected")
