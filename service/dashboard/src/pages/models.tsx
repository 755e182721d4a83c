import { Link } from "wouter";
import { usePages } from "../api/pages";
import type { StoredModel } from "../api/types";
import { ListState, Moment, Notice, Title } from "../parts/basics";
import { CopyCommands, curl } from "../parts/commands";
import { UNKNOWN, formatNumber, formatPercent } from "../parts/format";
import parts from "../parts/parts.module.css";
import { projectOption, projectQuery, useProject } from "../parts/project";
import { DataTable } from "../parts/table";
import css from "./pages.module.css";

/** What earlier jobs taught, which later jobs of the same model use instead of a search. */
export default function ModelsPage() {
  const project = useProject();
  const query = new URLSearchParams({ limit: "200", ...projectQuery(project) });
  const list = usePages<{ models: StoredModel[]; next_cursor?: string | null }>("/v1/models", query);
  const models = list.data?.pages.flatMap((page) => page.models) ?? [];
  return (
    <>
      <div className={css.head}>
        <Title page="Models">Models</Title>
        <CopyCommands commands={{ cli: `scavenger model list${projectOption(project)}`, api: curl("GET", `/v1/models?${query}`) }} />
      </div>
      <ListState list={list} />
      {list.data && (
        <DataTable
          label="Models"
          rows={models}
          rowKey={(model) => model.signature}
          csv="models.csv"
          empty={<Notice>No model {project === null ? "" : `of ${project} `}is stored yet: the first job that reaches its target stores one.</Notice>}
          columns={[
            { name: "model", value: (m) => m.model_key, cell: (m) => <Link href={`/models/${encodeURIComponent(m.signature)}`}>{m.model_key}</Link> },
            { name: "jobs", value: (m) => m.jobs, cell: (m) => m.jobs, isNumber: true },
            { name: "noise_scale", head: "φ", value: (m) => m.laws.noise_scale, cell: (m) => formatNumber(m.laws.noise_scale), isNumber: true },
            { name: "error", head: "error of τ", value: (m) => m.laws.mean_relative_error, cell: (m) => formatPercent(m.laws.mean_relative_error), isNumber: true },
            { name: "targets", value: (m) => Object.keys(m.epochs_to_target).join("; "), cell: (m) => Object.entries(m.epochs_to_target).map(([target, epochs]) => `${target}: ${formatNumber(epochs)} epochs`).join("; ") || UNKNOWN, isWide: true },
            { name: "changed", value: (m) => m.updated_at, cell: (m) => <Moment at={m.updated_at} isAge />, isNumber: true },
          ]}
          more={
            list.hasNextPage && (
              <button type="button" className={parts.button} onClick={() => void list.fetchNextPage()}>
                More models
              </button>
            )
          }
        />
      )}
    </>
  );
}
