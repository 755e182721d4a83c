import { useQueries } from "@tanstack/react-query";
import { Link } from "wouter";
import { get } from "../api/client";
import { useApi } from "../api/queries";
import type { Curve, Job } from "../api/types";
import { Moment, Money, Notice, PhaseChip, Title } from "../parts/basics";
import { CopyCommands, curl } from "../parts/commands";
import { formatConfig, formatNumber, formatSeconds } from "../parts/format";
import parts from "../parts/parts.module.css";
import { useFilters } from "../parts/query";
import { DataTable } from "../parts/table";
import { FrontOverlay } from "./overlay";
import css from "./pages.module.css";

const MOST = 6;

/** Two to six jobs beside each other, with their fronts in one picture. */
export default function ComparePage() {
  const [filters, change] = useFilters();
  const ids = (filters.get("jobs") ?? "").split(",").filter(Boolean).slice(0, MOST);
  const known = useApi<{ jobs: Job[] }>("/v1/jobs?limit=100");
  const jobs = useQueries({ queries: ids.map((id) => ({ queryKey: [`/v1/jobs/${id}`], queryFn: () => get<Job>(`/v1/jobs/${id}`) })) });
  const curves = useQueries({ queries: ids.map((id) => ({ queryKey: [`/v1/jobs/${id}/curve`, "basis=total"], queryFn: () => get<Curve>(`/v1/jobs/${id}/curve?basis=total`) })) });
  const found = jobs.flatMap((query, index) => {
    const job = query.data?.data;
    return job ? [{ job, curve: curves[index]?.data?.data ?? null }] : [];
  });
  const set = (next: string[]) => change({ jobs: next.join(",") || null });
  const others = (known.data?.data.jobs ?? []).filter((job) => !ids.includes(job.id));
  return (
    <>
      <div className={css.head}>
        <Title page="Compare">Compare</Title>
        <CopyCommands commands={{ cli: ids.map((id) => `scavenger curve ${id} --basis total`).join("\n") || "scavenger list", api: ids.map((id) => curl("GET", `/v1/jobs/${id}/curve?basis=total`)).join("\n") || curl("GET", "/v1/jobs") }} />
      </div>
      <label className={parts.row}>
        <span className={parts.muted}>Add a job</span>
        <select className={parts.input} style={{ width: "auto", maxWidth: "100%" }} value="" disabled={ids.length >= MOST} onChange={(event) => set([...ids, event.target.value])}>
          <option value="">choose…</option>
          {others.map((job) => (
            <option key={job.id} value={job.id}>
              {job.name} · {job.phase} · {job.id.slice(-8)}
            </option>
          ))}
        </select>
      </label>
      {ids.length === 0 && <Notice>Choose two to six jobs, here or on the list of jobs.</Notice>}
      {jobs.some((query) => query.isError) && <Notice tone="bad">A job of this address does not exist, or is not yours.</Notice>}
      {[...jobs, ...curves].some((query) => query.isPending) && <div className={parts.skeleton} role="status" aria-label="loading" />}
      {found.length > 0 && (
        <>
          <FrontOverlay entries={found} />
          <DataTable
            label="Jobs beside each other"
            rows={found}
            rowKey={({ job }) => job.id}
            csv="compare.csv"
            columns={[
              { name: "job", value: ({ job }) => job.name, cell: ({ job }) => <Link href={`/jobs/${job.id}/curve`}>{job.name}</Link> },
              { name: "phase", value: ({ job }) => job.phase, cell: ({ job }) => <PhaseChip phase={job.phase} /> },
              { name: "option", value: ({ job }) => formatConfig(job.applied ?? job.target), cell: ({ job }) => formatConfig(job.applied ?? job.target) },
              { name: "chosen", value: ({ curve }) => formatConfig(curve?.chosen), cell: ({ curve }) => formatConfig(curve?.chosen) },
              { name: "time", value: ({ job }) => job.elapsed, cell: ({ job }) => formatSeconds(job.elapsed), isNumber: true },
              { name: "epochs", value: ({ job }) => job.progress.epochs, cell: ({ job }) => formatNumber(job.progress.epochs), isNumber: true },
              { name: "cost", value: ({ job }) => Number(job.cost.accrued.amount), cell: ({ job }) => <Money value={job.cost.accrued} />, isNumber: true },
              { name: "probes", value: ({ curve }) => curve?.probes.length ?? null, cell: ({ curve }) => curve?.probes.length ?? "", isNumber: true },
              { name: "submitted", value: ({ job }) => job.created_at, cell: ({ job }) => <Moment at={job.created_at} /> },
              {
                name: "remove",
                head: <span className="hidden-text">remove</span>,
                cell: ({ job }) => (
                  <button type="button" className={parts.button} aria-label={`Leave out ${job.name}`} onClick={() => set(ids.filter((id) => id !== job.id))}>
                    ✕
                  </button>
                ),
              },
            ]}
          />
        </>
      )}
    </>
  );
}
