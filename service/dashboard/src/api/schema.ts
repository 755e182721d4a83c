// Made of docs/openapi.json by schema/build.mjs: change that, not this.

export type paths = Record<string, never>;
export type webhooks = Record<string, never>;
export interface components {
    schemas: {
        /**
         * AdviceView
         * @description Configuration that an advised job would do better with.
         *
         *     Attributes:
         *         config: The configuration; None when none meets the limits.
         *         why: One sentence.
         */
        AdviceView: {
            config: components["schemas"]["ConfigView"] | null;
            /** Why */
            why: string;
        };
        /**
         * AuditEntryView
         * @description One request that asked for a change.
         *
         *     Attributes:
         *         who: Id of its token.
         *         route: Path of the request, with the names of its parameters.
         *         target: Id of its job or token, if the path has one.
         *         status: HTTP status of the answer.
         */
        AuditEntryView: {
            /**
             * At
             * Format: date-time
             */
            at: string;
            /** Method */
            method: string;
            /** Number */
            number: number;
            /** Project */
            project: string;
            /** Request Id */
            request_id: string;
            /** Route */
            route: string;
            /** Status */
            status: number;
            /** Target */
            target: string | null;
            /** Who */
            who: string;
        };
        /**
         * AuditList
         * @description Requests that asked for changes, newest first.
         */
        AuditList: {
            /** Entries */
            entries: components["schemas"]["AuditEntryView"][];
            /** Next Cursor */
            next_cursor: string | null;
        };
        /**
         * BlockProfile
         * @description What one block of a model takes on one process, and what crosses its borders.
         *
         *     Attributes:
         *         name: Its name in the model.
         *         fixed_seconds: Seconds of both passes that no batch changes, such as launches of kernels.
         *         seconds_per_sample: Seconds of both passes for each sample.
         *         output_bytes: Bytes per sample that it hands to the next block.
         *         saved_bytes: Bytes per sample that its forward pass keeps for its backward pass.
         *         weight_bytes: Bytes of its weights.
         *         all_reduces: All-reduces of both passes if its weights are shared by several processes; 0 if
         *             they cannot be.
         *         all_reduce_bytes: Bytes per sample of each of them.
         *         keeps_whole_gradient: Whether each shard holds the gradient of all its weights, as of an
         *             embedding of a vocabulary.
         *         begins_no_stage: Whether the model cannot be cut before it.
         */
        BlockProfile: {
            /**
             * All Reduce Bytes
             * @default 0
             */
            all_reduce_bytes: number;
            /**
             * All Reduces
             * @default 0
             */
            all_reduces: number;
            /**
             * Begins No Stage
             * @default false
             */
            begins_no_stage: boolean;
            /** Fixed Seconds */
            fixed_seconds: number;
            /**
             * Keeps Whole Gradient
             * @default false
             */
            keeps_whole_gradient: boolean;
            /** Name */
            name: string;
            /** Output Bytes */
            output_bytes: number;
            /** Saved Bytes */
            saved_bytes: number;
            /** Seconds Per Sample */
            seconds_per_sample: number;
            /** Weight Bytes */
            weight_bytes: number;
        };
        /**
         * CalibrationView
         * @description How good forecasts of the same model were before this curve was drawn.
         *
         *     Attributes:
         *         coverage: Share of the jobs that ended within the 80 % interval of their forecast.
         *         forecasts: How many jobs that is a share of.
         *         is_degraded: Whether so few of so many held that curves of this model are rough guides only.
         */
        CalibrationView: {
            /** Coverage */
            coverage: number;
            /** Forecasts */
            forecasts: number;
            /**
             * Is Degraded
             * @default false
             */
            is_degraded: boolean;
        };
        /**
         * ChangeRequest
         * @description A change of limits or objective, with its reason.
         */
        ChangeRequest: {
            /** @default {} */
            limits: components["schemas"]["LimitsChange"];
            /** Objective */
            objective?: ("knee" | "cheapest" | "fastest") | components["schemas"]["WeightedObjective"] | null;
            /**
             * Reason
             * @description Why, for those who read it later
             * @default
             */
            reason: string;
        };
        /**
         * CheckView
         * @description One check.
         *
         *     Attributes:
         *         state: ``ok``, ``warning`` or ``failed``.
         *         found: The finding, in one sentence.
         *         remedy: What to do next; empty where nothing is wrong.
         */
        CheckView: {
            /** Found */
            found: string;
            /** Name */
            name: string;
            /**
             * Remedy
             * @default
             */
            remedy: string;
            /** State */
            state: string;
        };
        /**
         * CheckpointPart
         * @description A range of one file of a checkpoint; the ranges of a file follow each other.
         *
         *     Attributes:
         *         file: Which file.
         *         size: Bytes.
         *         sha256: Hash of these bytes.
         */
        CheckpointPart: {
            /**
             * File
             * @enum {string}
             */
            file: "state.json" | "state.safetensors";
            /** Sha256 */
            sha256: string;
            /** Size */
            size: number;
        };
        /**
         * CheckpointTrouble
         * @description What a machine could not do with the bucket, in one sentence without addresses.
         */
        CheckpointTrouble: {
            /** Why */
            why: string;
        };
        /**
         * CheckpointUpload
         * @description A machine has a checkpoint for the bucket, or has sent all of it; it may say so again.
         *
         *     Attributes:
         *         generation: Generation of the leader that wrote it.
         *         iteration: Iterations of the job that are in it.
         *         parts: Its parts, the ranges of a file in order.
         *         is_sent: Whether the bucket has taken every part.
         */
        CheckpointUpload: {
            /** Generation */
            generation: number;
            /**
             * Is Sent
             * @default false
             */
            is_sent: boolean;
            /** Iteration */
            iteration: number;
            /** Parts */
            parts: components["schemas"]["CheckpointPart"][];
        };
        /**
         * CheckpointsSpec
         * @description How often checkpoints are written, so that training can resume after all workers are lost.
         *
         *     Attributes:
         *         every: Seconds between two checkpoints.
         *         keep: Checkpoints that are kept, the newest ones.
         *         directory: Absolute path that every machine of the job reaches; each job writes to a
         *             directory of its own in it. None leaves it to the controller.
         */
        CheckpointsSpec: {
            /**
             * Directory
             * @example /srv/checkpoints
             */
            directory?: string;
            /**
             * Every
             * @default 60
             * @example 60s
             */
            every: string;
            /**
             * Keep
             * @default 3
             * @example 3
             */
            keep: number;
        };
        /**
         * ClusterConfig
         * @description How many workers share one global batch: (K, B) in the paper.
         *
         *     Attributes:
         *         workers: Number of data-parallel workers, at least 1.
         *         global_batch: Samples per iteration over all workers, at least one per worker.
         *         workers_per_machine: Workers that share one VM, e.g. one per accelerator.
         *         machine_type: Key of the ``MachineType``; empty where there is only one.
         *         stack: How each worker computes a step, as ``Stack`` writes it.
         */
        ClusterConfig: {
            /** Global Batch */
            global_batch: number;
            /**
             * Machine Type
             * @default
             */
            machine_type: string;
            /**
             * Stack
             * @default eager
             */
            stack: string;
            /** Workers */
            workers: number;
            /**
             * Workers Per Machine
             * @default 1
             */
            workers_per_machine: number;
        };
        /**
         * CodeView
         * @description The code of a hash, which a controller has for a project.
         *
         *     Attributes:
         *         sha256: SHA-256 of the archive; ``run.code`` of a job names it.
         *         size: Bytes of the archive.
         */
        CodeView: {
            /**
             * Created At
             * Format: date-time
             */
            created_at: string;
            /** Sha256 */
            sha256: string;
            /** Size */
            size: number;
        };
        /**
         * CommandExit
         * @description The training command of a worker ended.
         *
         *     Attributes:
         *         worker: Whose command it was.
         *         code: Exit code; negative for a signal, as in ``subprocess``.
         *         tail: Last lines of its output.
         *         cause: What is known of the reason beyond the code, in one sentence; empty when the code
         *             says all.
         *         restarts: Whether the supervisor starts the command again on the same machine.
         *         failed_layout: Layout that its processes had, if they ended before they had trained in it
         *             and the supervisor asks for another; None otherwise.
         */
        CommandExit: {
            /**
             * Cause
             * @default
             */
            cause: string;
            /** Code */
            code: number;
            failed_layout?: components["schemas"]["Layout"] | null;
            /**
             * Restarts
             * @default false
             */
            restarts: boolean;
            /** Tail */
            tail: string;
            /** Worker */
            worker: string;
        };
        /**
         * ConfigView
         * @description A configuration: workers (K), global batch (B, samples), and the stack of each worker.
         */
        ConfigView: {
            /** Global Batch */
            global_batch: number;
            /**
             * Stack
             * @default eager
             */
            stack: string;
            /** Workers */
            workers: number;
        };
        /**
         * Confirmation
         * @description An operator has seen what a sweep held back, the newest if none is named.
         */
        Confirmation: {
            /**
             * Confirm
             * @constant
             */
            confirm: true;
            /** Sweep */
            sweep?: number | null;
        };
        /**
         * CostEntryView
         * @description What one job, model, project, cloud or day cost.
         *
         *     Attributes:
         *         key: Id of the job, key of the model, name of the project or cloud, or date.
         *         name: Name of the job; empty otherwise.
         */
        CostEntryView: {
            cost: components["schemas"]["MoneyView"];
            /** Key */
            key: string;
            /**
             * Name
             * @default
             */
            name: string;
        };
        /**
         * CostReportView
         * @description One page of what the machines of a project cost.
         *
         *     Attributes:
         *         by: What an entry is: ``job``, ``model``, ``project``, ``cloud`` or ``day``.
         *         until: Machines that exist cost more from then on.
         *         total: Of all entries, those of other pages too.
         *         since: What was spent before is left out; None where all counts.
         *         not_included: What a cloud may bill besides, a sentence each.
         */
        CostReportView: {
            /** By */
            by: string;
            /** Entries */
            entries: components["schemas"]["CostEntryView"][];
            /** Next Cursor */
            next_cursor?: string | null;
            /**
             * Not Included
             * @default []
             */
            not_included: string[];
            /** Since */
            since?: string | null;
            total: components["schemas"]["MoneyView"];
            /**
             * Until
             * Format: date-time
             */
            until: string;
        };
        /**
         * CostView
         * @description Spending and limits of a job, which are never added up.
         *
         *     Attributes:
         *         accrued: Spent so far, by the intervals in which VMs were observed to exist.
         *         search: Part of ``accrued`` that was spent while probing.
         *         cap: The most this job may spend; None without a limit.
         *         forecast: Predicted cost of the whole job; None while unknown.
         *         reserved: Held back besides ``accrued`` for machines that exist: what they may still cost if
         *             no controller answers them again.
         */
        CostView: {
            accrued: components["schemas"]["MoneyView"];
            cap: components["schemas"]["MoneyView"] | null;
            forecast: components["schemas"]["MoneyView"] | null;
            /**
             * @default {
             *       "amount": "0",
             *       "currency": "USD"
             *     }
             */
            reserved: components["schemas"]["MoneyView"];
            search: components["schemas"]["MoneyView"];
        };
        /**
         * CurveView
         * @description The cost/time curve of a job: that of its last choice, or a preview before the first one.
         *
         *     Attributes:
         *         as_of: When it was drawn: when the choice was made, or else now, or when the job ended.
         *         basis: ``total`` in seconds and dollars of the whole job, ``remaining`` of what is left of
         *             it, or ``relative`` to the start configuration while the epochs to target are unknown.
         *         spent: What the job had taken when what is left begins: now, or when it was chosen; None
         *             where that is not known. The total is this and what is left.
         *         epochs: Reference epochs of the work that was counted when the curve was drawn.
         *         objective: What the job asks for, in words.
         *         why: One sentence: which configuration was chosen, and why.
         *         decision: Number of the choice it belongs to; None where it was drawn for this answer.
         *         decided_at: When that was.
         *         limits: What the points are judged by; of what was left, where the basis is that.
         *         support: Share of posterior samples in which the chosen configuration is chosen too; None
         *             where nothing is uncertain, or the objective is not the knee.
         *         runner_up: The configuration chosen in most of the other samples.
         *         source: Where the models come from: this job's probes or a stored model.
         *         current: The configuration the job runs on; None before its first and after its end.
         *         knee_bends: Whether the front bends at ``knee``; where it bends nowhere, that is the end
         *             of the front where time times cost is least.
         *         other_knees: Where the front bends, too; only where ``knee_bends``.
         *         switch: What changing the configuration takes now; None where the job does not run.
         *         calibration: How good earlier forecasts of this model were; None without any.
         *         is_finished: Whether the job has ended.
         *         stacks: The execution stacks it may use, the one it starts with first.
         */
        CurveView: {
            /**
             * As Of
             * Format: date-time
             */
            as_of: string;
            /** Basis */
            basis: string;
            calibration?: components["schemas"]["CalibrationView"] | null;
            cheapest: components["schemas"]["ConfigView"] | null;
            chosen: components["schemas"]["ConfigView"] | null;
            current: components["schemas"]["ConfigView"] | null;
            /** Decided At */
            decided_at?: string | null;
            /** Decision */
            decision?: number | null;
            /** Epochs */
            epochs?: number | null;
            fastest: components["schemas"]["ConfigView"] | null;
            /** Front */
            front: components["schemas"]["ConfigView"][];
            /**
             * Is Finished
             * @default false
             */
            is_finished: boolean;
            knee: components["schemas"]["ConfigView"] | null;
            /**
             * Knee Bends
             * @default true
             */
            knee_bends: boolean;
            laws: components["schemas"]["LawsView"] | null;
            limits?: components["schemas"]["LimitsView"] | null;
            /** Objective */
            objective: string;
            /**
             * Other Knees
             * @default []
             */
            other_knees: components["schemas"]["ConfigView"][];
            /** Points */
            points: components["schemas"]["PointView"][];
            /** Probes */
            probes: components["schemas"]["ProbeView"][];
            /** Resizes */
            resizes: components["schemas"]["ResizeView"][];
            runner_up: components["schemas"]["ConfigView"] | null;
            /** Source */
            source: string;
            spent?: components["schemas"]["SpentView"] | null;
            /**
             * Stacks
             * @default []
             */
            stacks: components["schemas"]["StackView"][];
            start: components["schemas"]["ConfigView"];
            /** Support */
            support: number | null;
            switch?: components["schemas"]["SwitchView"] | null;
            /** Why */
            why: string;
        };
        /**
         * DecisionList
         * @description One page of the choices of a job, oldest first: the first and the newest are kept.
         */
        DecisionList: {
            /** Decisions */
            decisions: components["schemas"]["DecisionView"][];
            /** Next Cursor */
            next_cursor?: string | null;
        };
        /**
         * DecisionView
         * @description One choice of a job, whose curve is kept.
         *
         *     Attributes:
         *         number: Counts the choices of a job from 1; ``?decision=`` of its curve takes it.
         *         why: One sentence: what was chosen, and why.
         *         chosen: The configuration; None where none was.
         *         basis: In what its curve counts, as there.
         */
        DecisionView: {
            /**
             * At
             * Format: date-time
             */
            at: string;
            /** Basis */
            basis: string;
            chosen: components["schemas"]["ConfigView"] | null;
            /** Number */
            number: number;
            /** Why */
            why: string;
        };
        /**
         * DeliveryList
         * @description One page of the deliveries of a webhook, newest first.
         */
        DeliveryList: {
            /** Deliveries */
            deliveries: components["schemas"]["DeliveryView"][];
            /** Next Cursor */
            next_cursor?: string | null;
        };
        /**
         * DeliveryState
         * @description State of a delivery.
         * @enum {string}
         */
        DeliveryState: "waiting" | "delivered" | "failed";
        /**
         * DeliveryView
         * @description One event on its way to one webhook.
         *
         *     Attributes:
         *         number: Counts the deliveries of all webhooks.
         *         message_id: The header ``webhook-id``: the same in every try and replay.
         *         event: Number of the event; None for a test.
         *         kind: Kind of the event; None for a test.
         *         job: Its job; None for a test.
         *         attempts: Requests that were begun.
         *         next_try_at: When the next one begins at the earliest; None once it is over.
         *         status: HTTP status of the last answer; None if there was none.
         *         told: What was wrong the last time, and what becomes of it; None if nothing was.
         *         replay_of: Number of the delivery that a person had sent again.
         */
        DeliveryView: {
            /** Attempts */
            attempts: number;
            /**
             * Created At
             * Format: date-time
             */
            created_at: string;
            /** Ended At */
            ended_at: string | null;
            /** Event */
            event: number | null;
            /** Job */
            job: string | null;
            /** Kind */
            kind: string | null;
            /** Message Id */
            message_id: string;
            /** Next Try At */
            next_try_at: string | null;
            /** Number */
            number: number;
            /** Replay Of */
            replay_of: number | null;
            state: components["schemas"]["DeliveryState"];
            /** Status */
            status: number | null;
            /** Told */
            told: string | null;
            /** Webhook */
            webhook: string;
        };
        /**
         * DiagnosticsView
         * @description Checks of a controller by itself.
         *
         *     Attributes:
         *         version: Its version.
         *         at: Its time.
         */
        DiagnosticsView: {
            /**
             * At
             * Format: date-time
             */
            at: string;
            /** Checks */
            checks: components["schemas"]["CheckView"][];
            /** Version */
            version: string;
        };
        /**
         * Directive
         * @description What the controller wants every worker to do from the next iteration boundary on.
         *
         *     Attributes:
         *         generation: Counts resizes from 1; a larger number replaces a smaller one.
         *         config: Workers and global batch; ``config.workers == len(members)``.
         *         members: The workers of this generation in rank order; the first is the leader.
         *         purpose: Whether this configuration is being probed or trained on.
         *         progress_per_iteration: Reference epochs of progress one iteration is worth (SCIENCE §2).
         *         learning_rate: How the learning rate the script was written with follows the batch.
         *         stop: When to stop.
         *         split_every: With one worker, split one of this many iterations in two shards so that
         *             noise can be measured; 0 never splits.
         *         report_after: Iterations after which the leader sends its first report of this generation
         *             at once, so that a probe does not wait for the reporting interval.
         *         repairs: The generation before cannot go on; who waits in one of its collectives gives up.
         *         fence: Newest generation that repaired one, this one included; 0 while none has. A worker in
         *             an older generation that is neither a member nor hands over is out.
         *         why: One sentence for people.
         *         strategy: How the workers train together.
         *         servers: The parameter servers, in the order of their shards; none for ``all_reduce``.
         *         handover: Leader of the generation before, who hands its state over at the change; None when
         *             there is none or it is lost.
         *         most_local_batch: Samples a worker's memory holds; None when that is not known.
         *         revision: Counts the times the members of this generation regrouped by themselves because
         *             one had left or was lost; the controller's Directives have 0.
         *         exchange: How often a worker speaks to the servers.
         *         lbfgs: How the servers step by L-BFGS.
         *         standby: Workers that are left out and wait to be named again, instead of ending.
         *         is_provisional: Whether ``progress_per_iteration`` rests on noise that has not settled.
         *         correction: Factor on what provisional generations counted as progress, once the noise has
         *             settled; it applies once to all of it.
         *         nan_guard: Whether a step does nothing if its averaged gradient is not finite.
         *         layout: How the processes of each worker share the model, as ``Layout`` writes it; empty
         *             where they do as they were started. Workers that do otherwise start again.
         *         restarts: Whether that differs from the Directive before, so that the workers start again
         *             before they enter this generation.
         */
        Directive: {
            config: components["schemas"]["ClusterConfig"];
            /**
             * Correction
             * @default 1
             */
            correction: number;
            /**
             * @default {
             *       "n_fetch": 1,
             *       "n_push": 1
             *     }
             */
            exchange: components["schemas"]["ExchangeInterval"];
            /**
             * Fence
             * @default 0
             */
            fence: number;
            /** Generation */
            generation: number;
            handover?: components["schemas"]["Member"] | null;
            /**
             * Is Provisional
             * @default false
             */
            is_provisional: boolean;
            /**
             * Layout
             * @default
             */
            layout: string;
            /**
             * @default {
             *       "history": 10,
             *       "portions": 80
             *     }
             */
            lbfgs: components["schemas"]["LbfgsSettings"];
            learning_rate: components["schemas"]["LearningRateScaling"];
            /** Members */
            members: components["schemas"]["Member"][];
            /** Most Local Batch */
            most_local_batch?: number | null;
            /**
             * Nan Guard
             * @default false
             */
            nan_guard: boolean;
            /** Progress Per Iteration */
            progress_per_iteration: number;
            /**
             * Purpose
             * @enum {string}
             */
            purpose: "probe" | "train";
            /**
             * Repairs
             * @default false
             */
            repairs: boolean;
            /** Report After */
            report_after: number;
            /**
             * Restarts
             * @default false
             */
            restarts: boolean;
            /**
             * Revision
             * @default 0
             */
            revision: number;
            /**
             * Servers
             * @default []
             */
            servers: components["schemas"]["Member"][];
            /** Split Every */
            split_every: number;
            /**
             * Standby
             * @default []
             */
            standby: string[];
            /** Stop */
            stop: components["schemas"]["StopAtMetric"] | components["schemas"]["StopAtProgress"];
            /**
             * Strategy
             * @default all_reduce
             * @enum {string}
             */
            strategy: "all_reduce" | "parameter_server" | "downpour" | "sandblaster" | "pipedream";
            /** Why */
            why: string;
        };
        /**
         * DownpourSpec
         * @description Workers push to and fetch from servers, each at its own pace (Downpour SGD).
         *
         *     Attributes:
         *         servers: Machines that serve, beside the workers.
         *         priced: Whether they are paid; if not, they count neither in the cap nor in predictions.
         *         n_push: Iterations of a worker whose gradients are pushed at once.
         *         n_fetch: Iterations of a worker after which it fetches weights.
         */
        DownpourSpec: {
            /**
             * N Fetch
             * @default 1
             * @example 1
             */
            n_fetch: number;
            /**
             * N Push
             * @default 1
             * @example 1
             */
            n_push: number;
            /**
             * Priced
             * @default true
             * @example true
             */
            priced: boolean;
            /**
             * Servers
             * @default 1
             * @example 1
             */
            servers: number;
        };
        /**
         * EnrolmentReply
         * @description What a machine learns by enrolling, because launch parameters can be read by others.
         *
         *     Attributes:
         *         token: Lets it speak for its job.
         *         job_secret: What workers and parameter servers of one job know each other by.
         *         secrets: Environment variables of the training command.
         *         worker: What the machine runs.
         *         bundle_secret: What the machines of the project sign compiled code with; empty from a
         *             controller that keeps none.
         */
        EnrolmentReply: {
            /**
             * Bundle Secret
             * @default
             */
            bundle_secret: string;
            /** Job Secret */
            job_secret: string;
            /** Secrets */
            secrets: {
                [key: string]: string;
            };
            /** Token */
            token: string;
            worker: components["schemas"]["WorkerSpec"];
        };
        /**
         * EnrolmentRequest
         * @description A machine came up and wants a token of its own, for the one it was launched with.
         *
         *     Attributes:
         *         nonce: A random word of the machine, the same when it asks again because an answer was lost.
         */
        EnrolmentRequest: {
            /** Nonce */
            nonce: string;
            /** Worker */
            worker: string;
        };
        /**
         * EpochsTarget
         * @description Train for a number of epochs, counted as epochs at a reference batch.
         *
         *     Attributes:
         *         epochs: Epochs the training needs at ``at_batch``.
         *         at_batch: The reference batch: the global batch the number of epochs is known for.
         */
        EpochsTarget: {
            /**
             * At Batch
             * @example 64
             */
            at_batch: number;
            /**
             * Epochs
             * @example 30
             */
            epochs: number;
        };
        /**
         * ErrorDetail
         * @description One problem of a request: JSON pointer to the field, and what to do about it.
         */
        ErrorDetail: {
            /**
             * Column
             * @default null
             */
            column: number | null;
            /**
             * Line
             * @default null
             */
            line: number | null;
            /** Message */
            message: string;
            /** Pointer */
            pointer: string;
        };
        /**
         * EtaView
         * @description When a job should reach its target, as a band: one job in ten ends before or after it.
         *
         *     Attributes:
         *         p10: One job in ten ends before this.
         *         p50: Half of them do.
         *         p90: Nine of ten do.
         */
        EtaView: {
            /**
             * P10
             * Format: date-time
             */
            p10: string;
            /**
             * P50
             * Format: date-time
             */
            p50: string;
            /**
             * P90
             * Format: date-time
             */
            p90: string;
        };
        /**
         * EventKind
         * @description Kind of an event, as ``GET /v1/jobs/{job}/events`` shows it; ``*`` stands for all.
         * @enum {string}
         */
        EventKind: "*" | "submitted" | "order" | "cancel" | "succeeded" | "failed" | "cancelled" | "capped" | "budget" | "framework" | "choice" | "advice" | "probe" | "resize" | "regrouped" | "drift" | "degraded" | "waiting" | "resumed" | "not_finite" | "stack_refused" | "cache_unusable" | "layouts" | "hello" | "exit" | "restart" | "launch" | "launch_delayed" | "launch_refused" | "vm_launched" | "vm_gone" | "terminate" | "undeletable" | "interruption_notice" | "sweep" | "enrolment_refused" | "secret_missing" | "checkpoints" | "checkpoint_trouble" | "rows_dropped" | "rows_lost" | "rows_rejected";
        /**
         * EventList
         * @description One page of events, oldest first.
         */
        EventList: {
            /** Events */
            events: components["schemas"]["EventView"][];
            /** Next Cursor */
            next_cursor?: string | null;
        };
        /**
         * EventView
         * @description One event of a job, with a sentence that explains it.
         *
         *     Attributes:
         *         sequence: Its number among the events of all jobs, which grows, with gaps.
         *         job: Its job; empty in an answer of a controller of before.
         */
        EventView: {
            /**
             * At
             * Format: date-time
             */
            at: string;
            /** Data */
            data: {
                [key: string]: unknown;
            };
            /**
             * Job
             * @default
             */
            job: string;
            /** Kind */
            kind: string;
            /** Message */
            message: string;
            /** Sequence */
            sequence: number;
        };
        /**
         * ExchangeInterval
         * @description How often a worker of Downpour SGD speaks to the servers, counted in its own iterations.
         *
         *     Attributes:
         *         n_push: Iterations whose gradients are pushed at once.
         *         n_fetch: Iterations after which weights are fetched.
         */
        ExchangeInterval: {
            /**
             * N Fetch
             * @default 1
             */
            n_fetch: number;
            /**
             * N Push
             * @default 1
             */
            n_push: number;
        };
        /**
         * ExitReply
         * @description What to do after a training command ended.
         *
         *     Attributes:
         *         layout: Layout to start it again in; None where its end is final, or it is started again
         *             as it was.
         */
        ExitReply: {
            layout?: components["schemas"]["Layout"] | null;
        };
        /**
         * ForecastView
         * @description What was forecast of a job when it chose, beside what came of it.
         *
         *     Attributes:
         *         job: Its id.
         *         chosen: The configuration it chose.
         *         due_from: One job in ten ends before this.
         *         due_until: Nine of ten end before this.
         *         is_within: Whether it ended within that span; None where it has not succeeded.
         *         cost_low: What one job in ten costs less than; None where no cost was forecast.
         *         cost: What half of them cost less than.
         *         cost_high: What nine of ten cost less than.
         *         spent: What it has cost.
         */
        ForecastView: {
            chosen: components["schemas"]["ConfigView"] | null;
            cost: components["schemas"]["MoneyView"] | null;
            cost_high: components["schemas"]["MoneyView"] | null;
            cost_low: components["schemas"]["MoneyView"] | null;
            /** Due From */
            due_from: string | null;
            /** Due Until */
            due_until: string | null;
            /** Finished At */
            finished_at: string | null;
            /** Is Within */
            is_within: boolean | null;
            /** Job */
            job: string;
            /** Name */
            name: string;
            phase: components["schemas"]["JobPhase"];
            spent: components["schemas"]["MoneyView"];
        };
        /**
         * ForgottenModelView
         * @description A model that was forgotten: the next job of its signature searches anew.
         */
        ForgottenModelView: {
            /**
             * Forgotten At
             * Format: date-time
             */
            forgotten_at: string;
            /** Model Key */
            model_key: string;
            /** Project */
            project: string;
            /** Signature */
            signature: string;
        };
        /**
         * GridPoint
         * @description A configuration by its workers, its global batch in samples, and the stack of each worker.
         *
         *     Attributes:
         *         stack: The stack; None, in an order, for the one that the job has.
         */
        GridPoint: {
            /** Global Batch */
            global_batch: number;
            /** Stack */
            stack?: string | null;
            /** Workers */
            workers: number;
        };
        /**
         * HealthView
         * @description Answer of a controller that works: ``status`` is ``ok``.
         */
        HealthView: {
            /** Status */
            status: string;
        };
        /**
         * Hello
         * @description A worker is up and ready to join a generation, or a parameter server to serve one.
         *
         *     Attributes:
         *         worker: Its id, equal to the id of the VM it runs on.
         *         address: ``host:port`` at which the others reach it.
         *         role: What it is there for; old agents, which leave it out, are workers.
         *         framework: What trains, such as ``pytorch``; empty while the worker does not know it.
         */
        Hello: {
            /** Address */
            address: string;
            /**
             * Framework
             * @default
             */
            framework: string;
            /**
             * Role
             * @default worker
             * @enum {string}
             */
            role: "worker" | "server";
            /** Worker */
            worker: string;
        };
        /**
         * IndicatorsView
         * @description Noise and timing of the running configuration.
         *
         *     Attributes:
         *         noise: γ_n, measured among the shards of an iteration; None where iterations have one shard.
         *         noise_scale: φ in samples.
         *         compute_time: Seconds.
         *         sync_time: Seconds.
         *         step_time: Seconds.
         */
        IndicatorsView: {
            /** Compute Time */
            compute_time: number;
            /** Noise */
            noise: number | null;
            /** Noise Scale */
            noise_scale: number | null;
            /** Step Time */
            step_time: number;
            /** Sync Time */
            sync_time: number;
        };
        /**
         * InterruptionNotice
         * @description The cloud has told a machine that it will take it back; the worker leaves meanwhile.
         *
         *     Attributes:
         *         worker: Which machine, by its worker.
         *         reason: What the cloud said.
         *         ends_at: When the cloud takes it, by the cloud's clock; None where it did not say.
         */
        InterruptionNotice: {
            /** Ends At */
            ends_at?: string | null;
            /** Reason */
            reason: string;
            /** Worker */
            worker: string;
        };
        /**
         * InterruptionsSpec
         * @description How often spot machines are taken back, and what that takes.
         *
         *     Attributes:
         *         per_hour: Interruptions of one machine per hour.
         *         restart: Seconds without progress each time.
         */
        InterruptionsSpec: {
            /**
             * Per Hour
             * @example 0.05
             */
            per_hour: number;
            /**
             * Restart
             * @example 2m
             */
            restart: string;
        };
        /**
         * JobList
         * @description One page of jobs, newest first.
         */
        JobList: {
            /** Jobs */
            jobs: components["schemas"]["JobView"][];
            /** Next Cursor */
            next_cursor: string | null;
        };
        /**
         * JobPhase
         * @description Phase of a job; the last four are final.
         * @enum {string}
         */
        JobPhase: "pending" | "starting" | "probing" | "training" | "succeeded" | "failed" | "cancelled" | "capped";
        /**
         * JobRow
         * @description One job.
         *
         *     Attributes:
         *         id: ``job_`` and a ULID-like sortable id.
         *         project: The project it belongs to.
         *         name: Name the user gave, or the model key.
         *         model_key: Key of the stored model it learns or reuses.
         *         phase: Its phase.
         *         reason: One sentence about the phase: what happened and what to do.
         *         worker_exit_code: Exit code of the user's command when that failed the job.
         *         diverged: Whether the job failed or reached a limit while its loss or its target's metric
         *             was NaN or infinite.
         *         lacks_capacity: Whether it has no machine, or had none when it failed or reached a limit,
         *             because the clouds gave none when they were asked last, or took back what they gave.
         *         target: Configuration wanted now.
         *         applied: Configuration all workers confirmed.
         *         generation: Counts resizes.
         *         workers_alive: VMs of workers that exist now.
         *         servers_alive: VMs of parameter servers that exist now.
         *         search: What the search did or does, one sentence ("no search: …" when a model was stored).
         *         advice: What a job of level ``advise`` would choose; None until it can tell.
         *         eta: When it should reach its target; None while that is unknown, and once it has ended.
         *         checkpoints: Where the job's checkpoints are: a directory, as its machines see it, or a
         *             folder of a bucket; None where each machine keeps its own. Only the user deletes the
         *             newest.
         *         preference: The objective that an order chooses by; ``auto`` while the job's own is planned
         *             by, ``pinned`` where an order has named a configuration.
         *         pinned: That configuration.
         *         moved_knee: Knee of its newest curve, where it trains on another configuration; None where
         *             it does not train, or its objective is another.
         *         is_paused: Whether an order has paused it: no machine runs, or the last are ending.
         *         open_orders: How many orders are still to be obeyed.
         *         framework: What its workers train with, as they said, or else its document; None where
         *             neither does.
         *         spec: The JobSpec as stored, with limits and objective as they were changed since.
         */
        JobRow: {
            /** @default null */
            advice: components["schemas"]["AdviceView"] | null;
            applied?: components["schemas"]["ConfigView"] | null;
            /**
             * Checkpoints
             * @default null
             */
            checkpoints: string | null;
            cost?: components["schemas"]["CostView"];
            /**
             * Created At
             * Format: date-time
             */
            created_at?: string;
            /**
             * Diverged
             * @default false
             */
            diverged: boolean;
            /** Elapsed */
            elapsed?: number;
            /** @default null */
            eta: components["schemas"]["EtaView"] | null;
            /** Finished At */
            finished_at?: string | null;
            /**
             * Framework
             * @default null
             */
            framework: string | null;
            /** Generation */
            generation?: number;
            /** Id */
            id: string;
            indicators?: components["schemas"]["IndicatorsView"] | null;
            /**
             * Is Paused
             * @default false
             */
            is_paused: boolean;
            /**
             * Lacks Capacity
             * @default false
             */
            lacks_capacity: boolean;
            /** Model Key */
            model_key?: string;
            /** @default null */
            moved_knee: components["schemas"]["ConfigView"] | null;
            /** Name */
            name?: string;
            /**
             * Open Orders
             * @default 0
             */
            open_orders: number;
            phase?: components["schemas"]["JobPhase"];
            /** @default null */
            pinned: components["schemas"]["ConfigView"] | null;
            /**
             * Preference
             * @default auto
             * @enum {string}
             */
            preference: "auto" | "knee" | "cheapest" | "fastest" | "pinned";
            progress?: components["schemas"]["ProgressView"];
            /**
             * Project
             * @default default
             */
            project: string;
            /** Reason */
            reason?: string;
            /** Search */
            search?: string;
            /**
             * Servers Alive
             * @default 0
             */
            servers_alive: number;
            /** Spec */
            spec?: {
                [key: string]: unknown;
            };
            target?: components["schemas"]["ConfigView"] | null;
            /** Worker Exit Code */
            worker_exit_code?: number | null;
            /** Workers Alive */
            workers_alive?: number;
        };
        /**
         * JobRowList
         * @description One page of jobs, newest first.
         */
        JobRowList: {
            /** Jobs */
            jobs: components["schemas"]["JobRow"][];
            /** Next Cursor */
            next_cursor: string | null;
        };
        /**
         * JobSpec
         * @description A job: what is trained, until when, within which limits, and with which command.
         *
         *     Attributes:
         *         model: What is trained.
         *         name: Up to 63 lower-case letters, digits and hyphens; made from the model key if absent.
         *         target: When training is done.
         *         objective: Which configuration of the cost/time curve to train on.
         *         limits: What the job may use.
         *         search: How many configurations to probe before choosing one.
         *         laws: Whether measurements choose the form of the laws, or the paper's forms are taken.
         *         level: Whether the job is resized, or only measured, or measured and advised.
         *         strategy: How the workers train together.
         *         lr_scaling: How the learning rate follows the global batch.
         *         nan_guard: Whether a step does nothing if its averaged gradient is not finite.
         *         precision: Whether stacks may compute with fewer bits than the script says.
         *         stacks: How each worker may compute a step; ``auto`` tries what may be faster.
         *         framework: What the script trains with, whose times are no other framework's; None counts
         *             as PyTorch.
         *         price: Dollars per worker-hour, or a tariff; None for the price of its machines, which the
         *             controller writes down when the job is submitted.
         *         machine: Which machines to rent; None for those of the controller's own cloud.
         *         run: What every worker runs.
         */
        JobSpec: {
            /**
             * Framework
             * @example tensorflow
             * @enum {string}
             */
            framework?: "pytorch" | "tensorflow";
            /**
             * Laws
             * @default measured
             * @example measured
             * @enum {string}
             */
            laws: "measured" | "paper";
            /**
             * Level
             * @default control
             * @example advise
             * @enum {string}
             */
            level: "observe" | "advise" | "control";
            /**
             * @example {
             *       "batch": "32..256",
             *       "workers": "1..4"
             *     }
             */
            limits: components["schemas"]["Limits"];
            /**
             * Lr Scaling
             * @default {
             *       "rule": "none",
             *       "warm_up": null
             *     }
             * @example linear
             */
            lr_scaling: ("none" | "linear" | "sqrt" | "adascale") | components["schemas"]["LearningRateSpec"];
            /**
             * @example {
             *       "market": "spot",
             *       "type": "m7i.xlarge"
             *     }
             */
            machine?: components["schemas"]["MachineSpec"];
            /**
             * @example {
             *       "dataset_size": 50000,
             *       "key": "resnet18/cifar10"
             *     }
             */
            model: components["schemas"]["ModelSpec"];
            /**
             * Name
             * @example resnet18-cifar10
             */
            name?: string;
            /**
             * Nan Guard
             * @default off
             * @example true
             * @enum {string}
             */
            nan_guard: "on" | "off";
            /**
             * Objective
             * @default knee
             * @example knee
             */
            objective: ("knee" | "cheapest" | "fastest") | components["schemas"]["WeightedObjective"];
            /**
             * Precision
             * @default script
             * @example any
             * @enum {string}
             */
            precision: "script" | "any";
            /**
             * Price
             * @example 0.13402 USD/h
             */
            price?: string | components["schemas"]["MachinePriceSpec"] | components["schemas"]["ResourcePriceSpec"];
            /**
             * @example {
             *       "command": [
             *         "python",
             *         "train.py"
             *       ]
             *     }
             */
            run: components["schemas"]["RunSpec"];
            /**
             * Search
             * @default auto
             * @example auto
             * @enum {string}
             */
            search: "auto" | "none" | "partial" | "full" | "universal";
            /**
             * Stacks
             * @default [
             *       "eager"
             *     ]
             * @example auto
             */
            stacks: "auto" | string[];
            /**
             * Strategy
             * @default {}
             * @example all_reduce
             */
            strategy: ("all_reduce" | "parameter_server" | "downpour" | "sandblaster" | "pipedream") | components["schemas"]["NamedStrategySpec"];
            /**
             * Target
             * @example {
             *       "at_batch": 64,
             *       "epochs": 30
             *     }
             */
            target: components["schemas"]["EpochsTarget"] | components["schemas"]["MetricTarget"];
        };
        /**
         * JobVersionView
         * @description What is decided about a job by now, for a client that acted on an older answer.
         *
         *     Attributes:
         *         etag: Its version; send it as If-Match to act on these figures.
         *         target: Configuration wanted now.
         *         applied: Configuration all workers confirmed.
         *         forecast: Predicted cost of the whole job; None while unknown.
         */
        JobVersionView: {
            applied: components["schemas"]["ConfigView"] | null;
            /** Etag */
            etag: string;
            forecast: components["schemas"]["MoneyView"] | null;
            /** Is Paused */
            is_paused: boolean;
            phase: components["schemas"]["JobPhase"];
            /**
             * Preference
             * @enum {string}
             */
            preference: "auto" | "knee" | "cheapest" | "fastest" | "pinned";
            target: components["schemas"]["ConfigView"] | null;
        };
        /**
         * JobView
         * @description One job.
         *
         *     Attributes:
         *         id: ``job_`` and a ULID-like sortable id.
         *         project: The project it belongs to.
         *         name: Name the user gave, or the model key.
         *         model_key: Key of the stored model it learns or reuses.
         *         phase: Its phase.
         *         reason: One sentence about the phase: what happened and what to do.
         *         worker_exit_code: Exit code of the user's command when that failed the job.
         *         diverged: Whether the job failed or reached a limit while its loss or its target's metric
         *             was NaN or infinite.
         *         lacks_capacity: Whether it has no machine, or had none when it failed or reached a limit,
         *             because the clouds gave none when they were asked last, or took back what they gave.
         *         target: Configuration wanted now.
         *         applied: Configuration all workers confirmed.
         *         generation: Counts resizes.
         *         workers_alive: VMs of workers that exist now.
         *         servers_alive: VMs of parameter servers that exist now.
         *         search: What the search did or does, one sentence ("no search: …" when a model was stored).
         *         advice: What a job of level ``advise`` would choose; None until it can tell.
         *         eta: When it should reach its target; None while that is unknown, and once it has ended.
         *         checkpoints: Where the job's checkpoints are: a directory, as its machines see it, or a
         *             folder of a bucket; None where each machine keeps its own. Only the user deletes the
         *             newest.
         *         preference: The objective that an order chooses by; ``auto`` while the job's own is planned
         *             by, ``pinned`` where an order has named a configuration.
         *         pinned: That configuration.
         *         moved_knee: Knee of its newest curve, where it trains on another configuration; None where
         *             it does not train, or its objective is another.
         *         is_paused: Whether an order has paused it: no machine runs, or the last are ending.
         *         open_orders: How many orders are still to be obeyed.
         *         framework: What its workers train with, as they said, or else its document; None where
         *             neither does.
         *         spec: The JobSpec as stored, with limits and objective as they were changed since.
         */
        JobView: {
            /** @default null */
            advice: components["schemas"]["AdviceView"] | null;
            applied: components["schemas"]["ConfigView"] | null;
            /**
             * Checkpoints
             * @default null
             */
            checkpoints: string | null;
            cost: components["schemas"]["CostView"];
            /**
             * Created At
             * Format: date-time
             */
            created_at: string;
            /**
             * Diverged
             * @default false
             */
            diverged: boolean;
            /** Elapsed */
            elapsed: number;
            /** @default null */
            eta: components["schemas"]["EtaView"] | null;
            /** Finished At */
            finished_at: string | null;
            /**
             * Framework
             * @default null
             */
            framework: string | null;
            /** Generation */
            generation: number;
            /** Id */
            id: string;
            indicators: components["schemas"]["IndicatorsView"] | null;
            /**
             * Is Paused
             * @default false
             */
            is_paused: boolean;
            /**
             * Lacks Capacity
             * @default false
             */
            lacks_capacity: boolean;
            /** Model Key */
            model_key: string;
            /** @default null */
            moved_knee: components["schemas"]["ConfigView"] | null;
            /** Name */
            name: string;
            /**
             * Open Orders
             * @default 0
             */
            open_orders: number;
            phase: components["schemas"]["JobPhase"];
            /** @default null */
            pinned: components["schemas"]["ConfigView"] | null;
            /**
             * Preference
             * @default auto
             * @enum {string}
             */
            preference: "auto" | "knee" | "cheapest" | "fastest" | "pinned";
            progress: components["schemas"]["ProgressView"];
            /**
             * Project
             * @default default
             */
            project: string;
            /** Reason */
            reason: string;
            /** Search */
            search: string;
            /**
             * Servers Alive
             * @default 0
             */
            servers_alive: number;
            /** Spec */
            spec: {
                [key: string]: unknown;
            };
            target: components["schemas"]["ConfigView"] | null;
            /** Worker Exit Code */
            worker_exit_code: number | null;
            /** Workers Alive */
            workers_alive: number;
        };
        /**
         * LawShareView
         * @description One of the laws of an iteration's time that are averaged.
         *
         *     Attributes:
         *         weight: Its share of the average, as an exponent; all add up to 1.
         */
        LawShareView: {
            /** Compute Fixed */
            compute_fixed: number;
            /** Compute Per Sample */
            compute_per_sample: number;
            /** Flatness */
            flatness: number;
            /** Growth */
            growth: string;
            /** Overlap */
            overlap: number;
            /** Sync Across Machines */
            sync_across_machines: number;
            /** Sync Fixed */
            sync_fixed: number;
            /** Sync Per Worker */
            sync_per_worker: number;
            /** Weight */
            weight: number;
        };
        /**
         * LawsView
         * @description The fitted laws.
         *
         *     An iteration takes the geometric mean of the laws in ``averaged``, by weight; the coefficients
         *     beside it are those of the heaviest. Epochs are
         *     ``e(B) = c * (1 + noisy_samples / (B + noise_scale) + B / critical_batch)``, without a term
         *     whose coefficient is unknown or 0; by the paper's law ``e(B) = c * (noise_floor +
         *     noise_per_root / sqrt(B))``.
         *
         *     Attributes:
         *         spread: Relative standard deviation of an iteration's time where only predicted; None
         *             where it is not known.
         *         law: The law of epochs in use, in symbols.
         *         mean_relative_error: Of the iteration time where it was measured.
         *         averaged: All laws of an iteration's time, heaviest first; one where a single law is in
         *             use, none from a controller that knows of no others.
         */
        LawsView: {
            /**
             * Averaged
             * @default []
             */
            averaged: components["schemas"]["LawShareView"][];
            /** Compute Fixed */
            compute_fixed: number;
            /** Compute Per Sample */
            compute_per_sample: number;
            /** Critical Batch */
            critical_batch: number | null;
            /** Flatness */
            flatness: number;
            /** Growth */
            growth: string;
            /** Law */
            law: string;
            /** Mean Relative Error */
            mean_relative_error: number;
            /** Noise Floor */
            noise_floor: number | null;
            /** Noise Per Root */
            noise_per_root: number | null;
            /** Noise Scale */
            noise_scale: number | null;
            /** Noisy Samples */
            noisy_samples: number;
            /** Overlap */
            overlap: number;
            /** Spread */
            spread: number | null;
            /** Sync Across Machines */
            sync_across_machines: number;
            /** Sync Fixed */
            sync_fixed: number;
            /** Sync Per Worker */
            sync_per_worker: number;
        };
        /**
         * Layout
         * @description P pipeline stages of T tensor shards, S-way sharded data, and M micro-batches.
         *
         *     Attributes:
         *         pipeline: Stages that the model's blocks are cut into, P.
         *         tensor: Processes that share each large weight of a stage, T.
         *         shard: Processes that share weights and split the worker's batch, S.
         *         micro_batches: Parts of a local batch that follow each other through the stages, M.
         *         replicas: Processes of each stage, which take minibatches in turn, if the pipeline is
         *             asynchronous (PipeDream); empty if each iteration ends in all stages.
         *         cuts: Names of the modules that the stages after the first begin with, or the chunks of an
         *             interleaved pipeline; empty to divide by weights.
         *         vertical_sync: Whether a minibatch uses in all stages weights of the same minibatches, those
         *             that the first stage has when it enters, rather than the newest of each stage.
         *         schedule: Order of the passes of a synchronous pipeline: one forward, one backward; all
         *             forward first (GPipe); or interleaved.
         *         chunks: Chunks of the model that each stage has, V: chunk number c belongs to stage c mod P.
         *
         *     >>> str(Layout())
         *     'P=1 T=1'
         *     >>> str(Layout(2, 4, micro_batches=8))
         *     'P=2 T=4 M=8'
         *     >>> str(Layout(2, replicas=(3, 1), cuts=("layers.13",)))
         *     'P=2 T=1 R=3-1 C=layers.13'
         *     >>> str(Layout(2, replicas=(3, 1), vertical_sync=True))
         *     'P=2 T=1 R=3-1 V=1'
         *     >>> str(Layout(2, micro_batches=4, schedule="interleaved", chunks=3))
         *     'P=2 T=1 M=4 V=3'
         */
        Layout: {
            /**
             * Chunks
             * @default 1
             */
            chunks: number;
            /**
             * Cuts
             * @default []
             */
            cuts: string[];
            /**
             * Micro Batches
             * @default 1
             */
            micro_batches: number;
            /**
             * Pipeline
             * @default 1
             */
            pipeline: number;
            /**
             * Replicas
             * @default []
             */
            replicas: number[];
            /**
             * Schedule
             * @default 1f1b
             * @enum {string}
             */
            schedule: "1f1b" | "gpipe" | "interleaved";
            /**
             * Shard
             * @default 1
             */
            shard: number;
            /**
             * Tensor
             * @default 1
             */
            tensor: number;
            /**
             * Vertical Sync
             * @default false
             */
            vertical_sync: boolean;
        };
        /**
         * LayoutProfile
         * @description What the time of any layout of a model follows from.
         *
         *     Attributes:
         *         blocks: A chain: each hands its output to the next.
         *         inside: Link between processes of one machine.
         *         across: Link between machines.
         *         processes_per_machine: Processes that one machine hosts.
         *         concurrent_processes: How many of them compute at full speed at once, as each has cores or a
         *             device of its own; 0 for all.
         *         start_seconds: From the start of the script to its first step.
         *         machine_memory_bytes: Memory of a machine; infinite where nothing tells.
         *         optimizer_slots: Tensors of the size of the weights that the optimizer keeps: 2 of Adam.
         *         optimizer_seconds: One step of the optimizer for the whole model on one process.
         *         heads: Attention heads of a block, which shards must divide; 1 divides by nothing.
         *         vocabulary: Rows of the embedding, which shards must divide; 0 without one.
         *         has_batch_statistics: Whether a batch normalisation sees the samples of a micro-batch only.
         *         most_stages: Stages that the model can be cut into; 0 where nothing tells.
         *         uncut_reason: Why it cannot be cut into more, in a sentence.
         *         has_own_passes: Whether the script makes its passes itself, so that no processes can share
         *             its model before it lets ``job.step`` make them.
         */
        LayoutProfile: {
            across: components["schemas"]["LinkSpeed"];
            /** Blocks */
            blocks: components["schemas"]["BlockProfile"][];
            /**
             * Concurrent Processes
             * @default 0
             */
            concurrent_processes: number;
            /**
             * Has Batch Statistics
             * @default false
             */
            has_batch_statistics: boolean;
            /**
             * Has Own Passes
             * @default false
             */
            has_own_passes: boolean;
            /**
             * Heads
             * @default 1
             */
            heads: number;
            inside: components["schemas"]["LinkSpeed"];
            /** Machine Memory Bytes */
            machine_memory_bytes?: number;
            /**
             * Most Stages
             * @default 0
             */
            most_stages: number;
            /**
             * Optimizer Seconds
             * @default 0
             */
            optimizer_seconds: number;
            /**
             * Optimizer Slots
             * @default 0
             */
            optimizer_slots: number;
            /**
             * Processes Per Machine
             * @default 1
             */
            processes_per_machine: number;
            /**
             * Start Seconds
             * @default 0
             */
            start_seconds: number;
            /**
             * Uncut Reason
             * @default
             */
            uncut_reason: string;
            /**
             * Vocabulary
             * @default 0
             */
            vocabulary: number;
        };
        /**
         * LayoutSpec
         * @description How the processes of each worker share the model; of several ways the job searches the best.
         *
         *     Attributes:
         *         pipeline: Numbers of stages that the model's blocks may be cut into.
         *         tensor: Numbers of processes that may share the large weights of each stage.
         *         shard: Numbers of processes that each keep a part of all weights and train on a part of the
         *             batch.
         *         micro_batches: Parts of a local batch that follow each other through the stages; None for 1,
         *             or where there are several numbers of stages for the best.
         *         schedule: Order of the passes of the micro-batches.
         *         chunks: Chunks of the model that each stage of an interleaved pipeline has; None for 2, or
         *             for 1 with another schedule.
         *         cuts: Names of the modules that the stages, or chunks, after the first begin with; None to
         *             divide by weights, or by time where the layout is searched.
         */
        LayoutSpec: {
            /**
             * Chunks
             * @example 2
             */
            chunks?: number;
            /**
             * Cuts
             * @example [
             *       "layers.3"
             *     ]
             */
            cuts?: string[];
            /**
             * Micro Batches
             * @default null
             * @example 4
             */
            micro_batches: number | "auto";
            /**
             * Pipeline
             * @default 1
             * @example 1..4
             */
            pipeline: number | string | number[];
            /**
             * Schedule
             * @default 1f1b
             * @example interleaved
             * @enum {string}
             */
            schedule: "1f1b" | "gpipe" | "interleaved";
            /**
             * Shard
             * @default 1
             * @example 2
             */
            shard: number | string | number[];
            /**
             * Tensor
             * @default 1
             * @example 2
             */
            tensor: number | string | number[];
        };
        /**
         * LbfgsSettings
         * @description How the servers of a Sandblaster job step.
         *
         *     Attributes:
         *         history: Pairs of steps and gradient changes that a direction is made from.
         *         portions: Parts into which the batch of an iteration is cut.
         */
        LbfgsSettings: {
            /**
             * History
             * @default 10
             */
            history: number;
            /**
             * Portions
             * @default 80
             */
            portions: number;
        };
        /**
         * LearningRateScaling
         * @description How the learning rate that was written for one batch follows to others.
         *
         *     Attributes:
         *         rule: The law.
         *         reference_batch: Global batch the learning rate was written for, in samples.
         *         warm_up: Reference epochs over which a larger factor is approached, in a straight line from
         *             the one before; a smaller one holds at once (Goyal et al., section 2.2).
         */
        LearningRateScaling: {
            /**
             * Reference Batch
             * @default 1
             */
            reference_batch: number;
            /**
             * Rule
             * @default none
             * @enum {string}
             */
            rule: "none" | "linear" | "sqrt" | "adascale";
            /**
             * Warm Up
             * @default 0
             */
            warm_up: number;
        };
        /**
         * LearningRateSpec
         * @description How the learning rate follows the global batch.
         *
         *     Attributes:
         *         rule: The law: ``adascale`` also follows the measured noise.
         *         warm_up: Reference epochs over which a larger learning rate is approached; None leaves it
         *             to the rule.
         */
        LearningRateSpec: {
            /**
             * Rule
             * @example linear
             * @enum {string}
             */
            rule: "none" | "linear" | "sqrt" | "adascale";
            /**
             * Warm Up
             * @example 5
             */
            warm_up?: number;
        };
        /**
         * LimitChancesView
         * @description How probable it is that a configuration meets each limit, 0 to 1; None without a limit.
         */
        LimitChancesView: {
            /** Max Cost */
            max_cost?: number | null;
            /** Max Time */
            max_time?: number | null;
        };
        /**
         * Limits
         * @description What the job may use.
         *
         *     Attributes:
         *         max_cost: The most the job may spend, in dollars; None without a limit.
         *         max_time: The longest the job may take, in seconds; None without a limit.
         *         workers: Allowed worker counts: a range or a list.
         *         worker_step: Distance between the worker counts of a range.
         *         batch: Allowed global batches in samples: a range, which means its low end, every doubling
         *             of it below the high end, and the high end; or a list.
         *         memory: What leaves out configurations whose part of the batch fits no machine; None leaves
         *             out none.
         *         layout: How the processes of each worker share the model; None where each has one.
         *         process_gib: GiB that each process of a worker has, such as the memory of its GPU; layouts
         *             that do not fit are left out. None for what the machine says.
         */
        Limits: {
            /**
             * Batch
             * @example 32..256
             */
            batch: number | string | number[];
            /** @example auto */
            layout?: components["schemas"]["LayoutSpec"] | ("auto" | 1);
            /**
             * Max Cost
             * @example 3.40 USD
             */
            max_cost?: string;
            /**
             * Max Time
             * @example 3h12m
             */
            max_time?: string;
            /**
             * @example {
             *       "fixed_gib": 2,
             *       "gib_per_sample": 0.01,
             *       "machine_gib": 16
             *     }
             */
            memory?: components["schemas"]["MemoryLimit"];
            /**
             * Process Gib
             * @example 16
             */
            process_gib?: number;
            /**
             * Worker Step
             * @default 1
             * @example 4
             */
            worker_step: number;
            /**
             * Workers
             * @example 1..4
             */
            workers: number | string | number[];
        };
        /**
         * LimitsChange
         * @description Limits to replace; one that is left out stays, and null removes one.
         *
         *     Attributes:
         *         max_cost: The most the job may spend.
         *         max_time: The longest the job may take.
         */
        LimitsChange: {
            /** Max Cost */
            max_cost?: string | null;
            /** Max Time */
            max_time?: string | null;
        };
        /**
         * LimitsView
         * @description Limits that configurations are chosen under, dollars and seconds; None without limit.
         */
        LimitsView: {
            /** Max Cost */
            max_cost: string | null;
            /** Max Time */
            max_time: number | null;
        };
        /**
         * LinkSpeed
         * @description Between two processes.
         *
         *     Attributes:
         *         latency_seconds: Of a message without content.
         *         bytes_per_second: Each way.
         */
        LinkSpeed: {
            /** Bytes Per Second */
            bytes_per_second: number;
            /** Latency Seconds */
            latency_seconds: number;
        };
        /**
         * LogBatch
         * @description Lines that the commands of a machine printed, in order; sending some again is no harm.
         *
         *     Attributes:
         *         worker: Whose they are.
         *         printed: How many the machine has printed by now, sent or not.
         */
        LogBatch: {
            /** Lines */
            lines: components["schemas"]["LogLine"][];
            /** Printed */
            printed: number;
            /** Worker */
            worker: string;
        };
        /**
         * LogLine
         * @description One line that a command of a machine printed.
         *
         *     Attributes:
         *         number: Counts the lines of the machine from 1; a missing number is a line that was dropped.
         *         at: When it was printed, by the clock of the machine.
         */
        LogLine: {
            /**
             * At
             * Format: date-time
             */
            at: string;
            /** Number */
            number: number;
            /** Text */
            text: string;
        };
        /**
         * LogLineView
         * @description One line that a command of a job printed.
         *
         *     Attributes:
         *         number: Grows over all machines of the job, with gaps.
         *         at: When it was printed, by the clock of its machine.
         */
        LogLineView: {
            /**
             * At
             * Format: date-time
             */
            at: string;
            /** Machine */
            machine: string;
            /** Number */
            number: number;
            /**
             * Role
             * @enum {string}
             */
            role: "worker" | "server";
            /** Text */
            text: string;
        };
        /**
         * LogList
         * @description One page of the lines that the commands of a job printed, oldest first.
         *
         *     Attributes:
         *         dropped: Lines that are not kept, of all machines that were asked for.
         */
        LogList: {
            /** Dropped */
            dropped: number;
            /** Lines */
            lines: components["schemas"]["LogLineView"][];
            /** Next Cursor */
            next_cursor?: string | null;
        };
        /**
         * MachineList
         * @description One page of machines, newest first.
         */
        MachineList: {
            /** Machines */
            machines: components["schemas"]["MachineView"][];
            /** Next Cursor */
            next_cursor?: string | null;
        };
        /**
         * MachinePriceSpec
         * @description A price per machine, each of which hosts one worker.
         *
         *     Attributes:
         *         per_hour: Dollars of one worker's machine for one hour.
         */
        MachinePriceSpec: {
            /**
             * @example {
             *       "per_hour": 0.05,
             *       "restart": "2m"
             *     }
             */
            interruptions?: components["schemas"]["InterruptionsSpec"];
            /**
             * Per Hour
             * @example 0.13402 USD/h
             */
            per_hour: string;
            /**
             * Quantum
             * @example 1h
             */
            quantum?: string;
            /**
             * @example {
             *       "count": 2,
             *       "per_hour": "0.13402 USD/h"
             *     }
             */
            servers?: components["schemas"]["ServersSpec"];
        };
        /**
         * MachineSpec
         * @description Which machines the workers run on; parameter servers run on the same.
         *
         *     Attributes:
         *         type: The cloud's word for their size; None for the type that the clouds file names.
         *         cloud: Name of an entry of the controller's clouds file; None where it has only one.
         *         market: ``on_demand``; ``spot``, which costs less and may be taken back; or ``any``, spot
         *             first and on demand while no zone gives one.
         */
        MachineSpec: {
            /**
             * Cloud
             * @example aws-frankfurt
             */
            cloud?: string;
            /**
             * Market
             * @default on_demand
             * @example spot
             * @enum {string}
             */
            market: "on_demand" | "spot" | "any";
            /**
             * Type
             * @example m7i.xlarge
             */
            type?: string;
        };
        /**
         * MachineView
         * @description One machine of a job.
         *
         *     Attributes:
         *         role: ``worker`` or ``server``.
         *         state: ``intended`` until its cloud confirmed it, ``launched``, ``ending`` once its end was
         *             ordered, and ``gone``.
         *         cloud: Name of the entry in the clouds file.
         *         price_per_hour: The most it costs; a spot machine is reserved at its price on demand.
         *         prepaid_until: It powers itself off at that moment unless its lease is renewed.
         *         lease_age: Seconds since its worker was last heard; None before the first time.
         *         launched_at: When its cloud was first asked for it; None before.
         *         gone_at: When it was gone; None while it may exist.
         *         why: What is known of it, in one sentence.
         */
        MachineView: {
            /** Cloud */
            cloud: string;
            /** Gone At */
            gone_at: string | null;
            /** Id */
            id: string;
            /** Job */
            job: string;
            /** Launched At */
            launched_at: string | null;
            /** Lease Age */
            lease_age: number | null;
            /** Machine Type */
            machine_type: string;
            /**
             * Market
             * @enum {string}
             */
            market: "on_demand" | "spot";
            /**
             * Prepaid Until
             * Format: date-time
             */
            prepaid_until: string;
            price_per_hour: components["schemas"]["MoneyView"];
            /** Project */
            project: string;
            /**
             * Role
             * @enum {string}
             */
            role: "worker" | "server";
            /**
             * State
             * @enum {string}
             */
            state: "intended" | "launched" | "ending" | "gone";
            /** Why */
            why: string;
            /** Zone */
            zone: string;
        };
        /**
         * Member
         * @description One worker of a generation.
         *
         *     Attributes:
         *         worker: The worker's id, equal to the id of the VM it runs on.
         *         address: ``host:port`` of the rendezvous store this worker serves.
         */
        Member: {
            /** Address */
            address: string;
            /** Worker */
            worker: string;
        };
        /**
         * MemoryLimit
         * @description Memory of the machines, each of which hosts one worker, beside what a worker needs.
         *
         *     Attributes:
         *         machine_gib: GiB one machine has.
         */
        MemoryLimit: {
            /**
             * Fixed Gib
             * @example 2
             */
            fixed_gib: number;
            /**
             * Gib Per Sample
             * @example 0.01
             */
            gib_per_sample: number;
            /**
             * Machine Gib
             * @example 16
             */
            machine_gib: number;
        };
        /**
         * MemorySpec
         * @description Memory one worker needs, a line in its local batch.
         *
         *     Attributes:
         *         fixed_gib: GiB for weights, optimizer and program.
         *         gib_per_sample: GiB per sample of the local batch.
         */
        MemorySpec: {
            /**
             * Fixed Gib
             * @example 2
             */
            fixed_gib: number;
            /**
             * Gib Per Sample
             * @example 0.01
             */
            gib_per_sample: number;
        };
        /**
         * MetricTarget
         * @description Train until a logged metric reaches a goal.
         *
         *     Attributes:
         *         metric: Name under which the training script logs the value.
         *         goal: Value to reach.
         *         direction: ``at_least`` for metrics that grow, ``at_most`` for losses.
         *         max_epochs: Reference epochs after which training stops without success.
         *         at_batch: The reference batch; None means the smallest allowed global batch.
         */
        MetricTarget: {
            /**
             * At Batch
             * @example 64
             */
            at_batch?: number;
            /**
             * Direction
             * @default at_least
             * @example at_least
             * @enum {string}
             */
            direction: "at_least" | "at_most";
            /**
             * Goal
             * @example 0.97
             */
            goal: number;
            /**
             * Max Epochs
             * @example 120
             */
            max_epochs: number;
            /**
             * Metric
             * @example accuracy
             */
            metric: string;
        };
        /**
         * ModelDetailView
         * @description A stored model with the forecasts that its jobs were chosen by.
         *
         *     Attributes:
         *         calibration: None before the first forecast can be judged.
         *         forecasts: The newest jobs of this signature, newest first.
         */
        ModelDetailView: {
            calibration: components["schemas"]["CalibrationView"] | null;
            /** Epochs To Target */
            epochs_to_target: {
                [key: string]: number;
            };
            /** Forecasts */
            forecasts: components["schemas"]["ForecastView"][];
            /** Jobs */
            jobs: number;
            laws: components["schemas"]["LawsView"];
            /** Model Key */
            model_key: string;
            /** Project */
            project: string;
            /** Reference Batch */
            reference_batch: number;
            /** Signature */
            signature: string;
            /**
             * Updated At
             * Format: date-time
             */
            updated_at: string;
        };
        /**
         * ModelSpec
         * @description What is trained.
         *
         *     Attributes:
         *         key: Names the stored performance model that this job learns or reuses.
         *         dataset_size: Samples in one epoch.
         */
        ModelSpec: {
            /**
             * Dataset Size
             * @example 50000
             */
            dataset_size: number;
            /**
             * Key
             * @example resnet18/cifar10
             */
            key: string;
        };
        /**
         * MoneyView
         * @description An exact amount of money.
         */
        MoneyView: {
            /** Amount */
            amount: string;
            /**
             * Currency
             * @default USD
             */
            currency: string;
        };
        /**
         * NamedStrategySpec
         * @description A strategy with options, under its name.
         *
         *     Attributes:
         *         parameter_server: Servers wait for all workers.
         *         downpour: No worker waits for another.
         *         sandblaster: Servers step by L-BFGS.
         *         pipedream: Stages of a pipeline do not wait for the end of an iteration.
         */
        NamedStrategySpec: {
            /**
             * @example {
             *       "n_fetch": 1,
             *       "n_push": 1,
             *       "servers": 1
             *     }
             */
            downpour?: components["schemas"]["DownpourSpec"];
            /**
             * @example {
             *       "priced": true,
             *       "servers": 2
             *     }
             */
            parameter_server?: components["schemas"]["ParameterServerSpec"];
            /**
             * @example {
             *       "stages": [
             *         2,
             *         1
             *       ]
             *     }
             */
            pipedream?: components["schemas"]["PipeDreamSpec"];
            /**
             * @example {
             *       "history": 10,
             *       "portions": 80,
             *       "servers": 2
             *     }
             */
            sandblaster?: components["schemas"]["SandblasterSpec"];
        };
        /**
         * NewTokenView
         * @description A new token with its secret, which is never shown again.
         */
        NewTokenView: {
            /**
             * Created At
             * Format: date-time
             */
            created_at: string;
            /** Created By */
            created_by: string;
            /** Expires At */
            expires_at: string | null;
            /** Id */
            id: string;
            /** Last Used At */
            last_used_at: string | null;
            /** Name */
            name: string;
            /** Project */
            project: string;
            /** Revoked At */
            revoked_at: string | null;
            role: components["schemas"]["UserRole"];
            /** Token */
            token: string;
        };
        /**
         * NewestCheckpoint
         * @description Answer to a machine that looks for a checkpoint to go on from.
         *
         *     Attributes:
         *         stored: The newest one; None where there is none.
         */
        NewestCheckpoint: {
            stored: components["schemas"]["StoredCheckpoint"] | null;
        };
        /**
         * NotFinite
         * @description What the script logged under one name was NaN or infinite.
         *
         *     Attributes:
         *         value: What it was first.
         *         first: Iteration in which it was that.
         *         since: Iteration since which no finite value was logged; None after one was.
         */
        NotFinite: {
            /** First */
            first: number;
            /** Since */
            since: number | null;
            /**
             * Value
             * @enum {string}
             */
            value: "NaN" | "Infinity" | "-Infinity";
        };
        /**
         * OfferList
         * @description One page of offers, cheapest first.
         */
        OfferList: {
            /** Next Cursor */
            next_cursor?: string | null;
            /** Offers */
            offers: components["schemas"]["OfferView"][];
        };
        /**
         * OfferView
         * @description One place to rent one kind of machine.
         *
         *     Attributes:
         *         cloud: Name of the entry in the clouds file.
         *         zone: The cloud's word; empty where it has none.
         *         price_per_hour: Of the machine with its disk and its public address.
         *         is_upper_bound: Whether that is the price on demand, because no price on spot is known.
         *         as_of: When the price was so.
         *         memory_gib: None where it is not known, as ``vcpus``.
         *         shortage: Why the cloud gave no such machine there just now; None where it was not so.
         *         shortage_until: When it is asked again.
         */
        OfferView: {
            /** Accelerator */
            accelerator: string;
            /** Accelerators */
            accelerators: number;
            /**
             * As Of
             * Format: date-time
             */
            as_of: string;
            /** Cloud */
            cloud: string;
            /** Is Upper Bound */
            is_upper_bound: boolean;
            /** Machine Type */
            machine_type: string;
            /**
             * Market
             * @enum {string}
             */
            market: "on_demand" | "spot";
            /** Memory Gib */
            memory_gib: number | null;
            price_per_hour: components["schemas"]["MoneyView"];
            /** Shortage */
            shortage?: string | null;
            /** Shortage Until */
            shortage_until?: string | null;
            /** Source */
            source: string;
            /** Vcpus */
            vcpus: number | null;
            /** Zone */
            zone: string;
        };
        /**
         * OrderList
         * @description One page of the orders of a job, newest first.
         */
        OrderList: {
            /** Next Cursor */
            next_cursor: string | null;
            /** Orders */
            orders: components["schemas"]["OrderView"][];
        };
        /**
         * OrderView
         * @description One order.
         *
         *     Attributes:
         *         number: Counts the orders of a job from 1.
         *         wish: What is asked for; amounts and durations are written as in a job document.
         *         by: Id of the token of who asked.
         *         state: ``open`` until the controller has obeyed it; ``refused`` where it cannot be obeyed
         *             any more; ``replaced`` where a later one came first.
         *         told: What became of it, in one sentence; empty while it is open.
         */
        OrderView: {
            /**
             * At
             * Format: date-time
             */
            at: string;
            /** By */
            by: string;
            /** Ended At */
            ended_at: string | null;
            /** Job */
            job: string;
            /**
             * Kind
             * @enum {string}
             */
            kind: "resize" | "probe" | "pause" | "resume" | "change";
            /** Number */
            number: number;
            /** Reason */
            reason: string;
            /**
             * State
             * @enum {string}
             */
            state: "open" | "done" | "refused" | "replaced";
            /** Told */
            told: string;
            /** Wish */
            wish: {
                [key: string]: unknown;
            };
        };
        /**
         * OrphanView
         * @description A machine in the cloud that no running job accounts for, or that needs an explanation.
         *
         *     Attributes:
         *         machine: The cloud's name of the machine.
         *         fate: ``end``, ``wait`` for a second sweep, ``hold`` until a user confirms, ``keep`` a
         *             machine that works for a job, ``spare`` one that is not provably of this installation.
         *         reason: Why it is orphaned, or why it is spared.
         *         since: Since when every sweep found it orphaned; None where it is not.
         */
        OrphanView: {
            /** Fate */
            fate: string;
            /** Job */
            job: string;
            /** Launch Key */
            launch_key: string;
            /** Machine */
            machine: string;
            /** Reason */
            reason: string;
            /** Since */
            since: string | null;
        };
        /**
         * ParameterServerSpec
         * @description Workers push gradients to servers, which wait for all of them (the paper's setting).
         *
         *     Attributes:
         *         servers: Machines that serve, beside the workers.
         *         priced: Whether they are paid; if not, they count neither in the cap nor in predictions.
         */
        ParameterServerSpec: {
            /**
             * Priced
             * @default true
             * @example true
             */
            priced: boolean;
            /**
             * Servers
             * @default 1
             * @example 2
             */
            servers: number;
        };
        /**
         * PauseRequest
         * @description A pause, with its reason.
         */
        PauseRequest: {
            /**
             * Reason
             * @description Why, for those who read it later
             * @default
             */
            reason: string;
        };
        /**
         * PipeDreamSpec
         * @description The processes of one worker are stages of an asynchronous pipeline (PipeDream).
         *
         *     Attributes:
         *         stages: Processes of each stage, first to last, which take minibatches in turn; ``auto`` for
         *             those that a profile of the model finds to be fastest.
         *         cuts: Names of the modules that the stages after the first begin with; None to divide by
         *             weights.
         *         vertical_sync: Whether a minibatch uses in all stages weights of the same minibatches, those
         *             that the first stage has when it enters.
         */
        PipeDreamSpec: {
            /**
             * Cuts
             * @example [
             *       "layers.3"
             *     ]
             */
            cuts?: string[];
            /**
             * Stages
             * @example [
             *       2,
             *       1
             *     ]
             */
            stages: "auto" | number[];
            /**
             * Vertical Sync
             * @default false
             * @example true
             */
            vertical_sync: boolean;
        };
        /**
         * PlanReference
         * @description A body that submits a plan, in place of a job document.
         *
         *     Attributes:
         *         plan: Id of the plan.
         */
        PlanReference: {
            /**
             * Plan
             * @example plan_0193a1b2c3d
             */
            plan: string;
        };
        /**
         * PlanView
         * @description What would become of a job document if it was submitted now; nothing is launched or spent.
         *
         *     Attributes:
         *         id: ``plan_`` and a sortable id; a job can be submitted from it until it expires.
         *         curve: The cost/time curve as it can be drawn from earlier jobs; it may have no points.
         *         choice: The configuration to train on; None where a search decides, or nothing is feasible.
         *         why: One sentence about the choice, or what is searched first, or what is not feasible.
         *         search: What is measured before the choice; None where nothing is.
         *         cap: The most the job may spend, even if the controller dies; None without a limit.
         *         checks: What else to know before submitting, a sentence each.
         *         prices_as_of: When the prices of its machines were so; None where the document names them.
         *         would_reuse: Earlier jobs whose model replaces a search.
         *         job: The job that was submitted from it; None before.
         */
        PlanView: {
            cap: components["schemas"]["MoneyView"] | null;
            /** Checks */
            checks: string[];
            choice: components["schemas"]["ConfigView"] | null;
            /**
             * Created At
             * Format: date-time
             */
            created_at: string;
            curve: components["schemas"]["CurveView"];
            /**
             * Expires At
             * Format: date-time
             */
            expires_at: string;
            /** Id */
            id: string;
            /** Job */
            job?: string | null;
            /** Model Key */
            model_key: string;
            /** Name */
            name: string;
            /** Prices As Of */
            prices_as_of: string | null;
            search: components["schemas"]["PlannedSearchView"] | null;
            /** Why */
            why: string;
            /** Would Reuse */
            would_reuse: number;
        };
        /**
         * PlannedSearchView
         * @description What a search is expected to take before it chooses.
         *
         *     Attributes:
         *         probes: About how many configurations it measures.
         *         seconds: None where no earlier job tells how long an iteration takes.
         *         cost: Likewise.
         */
        PlannedSearchView: {
            cost: components["schemas"]["MoneyView"] | null;
            /** Probes */
            probes: number;
            /** Seconds */
            seconds: number | null;
        };
        /**
         * PointView
         * @description One configuration on the cost/time curve.
         *
         *     Attributes:
         *         id: Its name among the points of this curve, such as ``k4-b256``.
         *         noise: γ among its workers, as φ predicts; 1 for one worker.
         *         epochs: Reference-independent epochs this batch needs, e(B); relative when the curve is.
         *         time: Seconds to target, the median of what is possible.
         *         time_low: Seconds that 10 % of the possible outcomes stay below.
         *         time_high: Seconds that 90 % of the possible outcomes stay below.
         *         cost: Dollars to target, the median of what is possible.
         *         cost_low: Dollars that 10 % of the possible outcomes stay below.
         *         cost_high: Dollars that 90 % of the possible outcomes stay below.
         *         source: Whether iteration time was ``measured`` here; otherwise it is ``predicted`` where
         *             workers and local batch lie in the range that was probed, else ``extrapolated``.
         *         measured_step_time: Seconds per iteration as measured; None if only predicted.
         *         on_front: Whether it is feasible, and no other feasible one is both cheaper and faster.
         *         violations: Limits this configuration breaks, in words; empty when feasible.
         *         meets: How probable it is that it meets each limit.
         *         parallel_efficiency: Share of an iteration in which its workers compute, 0 to 1.
         *         statistical_efficiency: What one of its samples teaches against one at the reference batch:
         *             epochs at that batch over epochs at its own.
         *         marginal_price: Dollars for each hour saved against the next cheaper point of the front;
         *             None off the front, for the cheapest, and on a relative curve.
         *         dominated_by: Id of the front's point that is no slower, no dearer, and better in one.
         *         saving: What a move there saves; None where the job runs on no point, and on a relative
         *             curve. ``switch`` is what the move itself takes.
         */
        PointView: {
            /** Compute Time */
            compute_time: number;
            /** Cost */
            cost: string;
            /** Cost High */
            cost_high: string;
            /** Cost Low */
            cost_low: string;
            /** Dominated By */
            dominated_by?: string | null;
            /** Epochs */
            epochs: number;
            /** Global Batch */
            global_batch: number;
            /** Id */
            id: string;
            /** Marginal Price */
            marginal_price?: string | null;
            /** Measured Step Time */
            measured_step_time: number | null;
            /** @default {} */
            meets: components["schemas"]["LimitChancesView"];
            /** Noise */
            noise: number | null;
            /** On Front */
            on_front: boolean;
            /** Parallel Efficiency */
            parallel_efficiency?: number | null;
            saving?: components["schemas"]["SavingView"] | null;
            /**
             * Source
             * @enum {string}
             */
            source: "measured" | "predicted" | "extrapolated";
            /**
             * Stack
             * @default eager
             */
            stack: string;
            /** Statistical Efficiency */
            statistical_efficiency?: number | null;
            /** Step Time */
            step_time: number;
            /** Sync Time */
            sync_time: number;
            /** Time */
            time: number;
            /** Time High */
            time_high: number;
            /** Time Low */
            time_low: number;
            /** Violations */
            violations: string[];
            /** Workers */
            workers: number;
        };
        /**
         * PriceImport
         * @description Rows of a price table.
         */
        PriceImport: {
            /** Prices */
            prices: components["schemas"]["PriceRow"][];
        };
        /**
         * PriceImportView
         * @description What became of an import.
         *
         *     Attributes:
         *         accepted: How many prices hold from now on; older ones than those that hold do not count.
         *         refused: Why others are not believed, a sentence each.
         */
        PriceImportView: {
            /** Accepted */
            accepted: number;
            /** Refused */
            refused: string[];
        };
        /**
         * PriceList
         * @description One page of prices, by provider, region and item.
         */
        PriceList: {
            /** Next Cursor */
            next_cursor?: string | null;
            /** Prices */
            prices: components["schemas"]["PriceView"][];
        };
        /**
         * PriceRow
         * @description One row of a price table; what is plausible, the controller judges.
         *
         *     Attributes:
         *         provider: As in the clouds file.
         *         region: The cloud's word.
         *         item: The cloud's word for what is rented: a machine type, a family of custom sizes, a kind
         *             of disk, or ``public-ipv4``.
         *         unit: What the price is of.
         *         price: Dollars for one unit.
         *         memory_gib: Of a machine.
         *         accelerator: The cloud's word; empty where it has none.
         *         accelerators: How many.
         *         as_of: When it was so; None for now.
         */
        PriceRow: {
            /**
             * Accelerator
             * @default
             */
            accelerator: string;
            /**
             * Accelerators
             * @default 0
             */
            accelerators: number;
            /** As Of */
            as_of?: string | null;
            /** Item */
            item: string;
            /**
             * Market
             * @default on_demand
             * @enum {string}
             */
            market: "on_demand" | "spot";
            /** Memory Gib */
            memory_gib?: number | null;
            /** Price */
            price: number | string;
            /** Provider */
            provider: string;
            /** Region */
            region: string;
            /**
             * Unit
             * @default machine_hour
             * @enum {string}
             */
            unit: "machine_hour" | "vcpu_hour" | "gib_hour" | "disk_gib_month" | "address_hour";
            /** Vcpus */
            vcpus?: number | null;
        };
        /**
         * PriceView
         * @description What one item costs in one region and market, as the controller plans with it.
         *
         *     Attributes:
         *         source: ``shipped`` with the controller, ``imported`` by an admin, or told by the ``cloud``.
         */
        PriceView: {
            /**
             * Accelerator
             * @default
             */
            accelerator: string;
            /**
             * Accelerators
             * @default 0
             */
            accelerators: number;
            /**
             * As Of
             * Format: date-time
             */
            as_of: string;
            /** Item */
            item: string;
            /**
             * Market
             * @enum {string}
             */
            market: "on_demand" | "spot";
            /** Memory Gib */
            memory_gib?: number | null;
            /** Price */
            price: string;
            /** Provider */
            provider: string;
            /** Region */
            region: string;
            /**
             * Source
             * @enum {string}
             */
            source: "shipped" | "imported" | "cloud";
            /**
             * Unit
             * @enum {string}
             */
            unit: "machine_hour" | "vcpu_hour" | "gib_hour" | "disk_gib_month" | "address_hour";
            /** Vcpus */
            vcpus?: number | null;
        };
        /**
         * ProbeRequest
         * @description A probe, with its reason.
         */
        ProbeRequest: {
            /** Global Batch */
            global_batch: number;
            /**
             * Reason
             * @description Why, for those who read it later
             * @default
             */
            reason: string;
            /** Stack */
            stack?: string | null;
            /** Workers */
            workers: number;
        };
        /**
         * ProbeView
         * @description One settled probe and what it took; probes are listed in the order in which they ran.
         *
         *     Attributes:
         *         noise: γ_n, measured among the shards of its iterations; None where they had one shard.
         *         noise_scale: φ in samples.
         *         compute_time: Seconds of an iteration, as measured.
         *         sync_time: Seconds of an iteration, as measured.
         *         iterations: Iterations it took.
         *         seconds: Seconds it took.
         *         cost: Dollars it took.
         */
        ProbeView: {
            /** Compute Time */
            compute_time: number;
            /** Cost */
            cost: string;
            /** Global Batch */
            global_batch: number;
            /** Iterations */
            iterations: number;
            /** Noise */
            noise: number | null;
            /** Noise Scale */
            noise_scale: number | null;
            /** Seconds */
            seconds: number;
            /**
             * Settled At
             * Format: date-time
             */
            settled_at: string;
            /**
             * Stack
             * @default eager
             */
            stack: string;
            /** Sync Time */
            sync_time: number;
            /** Workers */
            workers: number;
        };
        /**
         * ProblemView
         * @description An error answer (RFC 9457, ``application/problem+json``).
         *
         *     Attributes:
         *         current: The job as it is now, where something was decided since the version in If-Match.
         *         code: Short name of the problem type, such as ``not_found``; docs/problems.md lists them.
         */
        ProblemView: {
            /** Code */
            code: string;
            /** @default null */
            current: components["schemas"]["JobVersionView"] | null;
            /** Detail */
            detail: string;
            /**
             * Errors
             * @default []
             */
            errors: components["schemas"]["ErrorDetail"][];
            /**
             * Request Id
             * @default null
             */
            request_id: string | null;
            /** Status */
            status: number;
            /** Title */
            title: string;
            /** Type */
            type: string;
        };
        /**
         * ProfileReply
         * @description How the processes of a machine are to share its model.
         *
         *     Attributes:
         *         layout: The layout.
         *         refusal: Why none fits, in a sentence; empty where one does.
         */
        ProfileReply: {
            /**
             * @default {
             *       "chunks": 1,
             *       "cuts": [],
             *       "micro_batches": 1,
             *       "pipeline": 1,
             *       "replicas": [],
             *       "schedule": "1f1b",
             *       "shard": 1,
             *       "tensor": 1,
             *       "vertical_sync": false
             *     }
             */
            layout: components["schemas"]["Layout"];
            /**
             * Refusal
             * @default
             */
            refusal: string;
        };
        /**
         * ProfileReport
         * @description What a machine measured of the model that it is to train.
         *
         *     Attributes:
         *         worker: The worker of that machine.
         *         profile: The profile; None where the model could not be profiled.
         *         failure: Why it could not be, in a sentence; empty where it was.
         */
        ProfileReport: {
            /**
             * Failure
             * @default
             */
            failure: string;
            profile: components["schemas"]["LayoutProfile"] | null;
            /** Worker */
            worker: string;
        };
        /**
         * Progress
         * @description Where training stands on the reporting worker.
         *
         *     Attributes:
         *         generation: Generation the worker is in; 0 before the first.
         *         iteration: Iterations applied so far, over the whole job.
         *         samples: Samples consumed so far, the position in the data order.
         *         epochs: Progress in reference epochs.
         *         metrics: Last finite value of everything the script logged.
         *         not_finite: What of it was not finite, as far as this process has seen; left out by old
         *             agents.
         *         stack_checks: What this process found out about stacks.
         */
        Progress: {
            /** Epochs */
            epochs: number;
            /** Generation */
            generation: number;
            /** Iteration */
            iteration: number;
            /** Metrics */
            metrics: {
                [key: string]: number;
            };
            /** Not Finite */
            not_finite?: {
                [key: string]: components["schemas"]["NotFinite"];
            };
            /** Samples */
            samples: number;
            /**
             * Stack Checks
             * @default []
             */
            stack_checks: components["schemas"]["StackCheck"][];
        };
        /**
         * ProgressView
         * @description Progress of training.
         *
         *     Attributes:
         *         iteration: Iterations applied.
         *         epochs: Reference epochs of progress.
         *         expected_epochs: Reference epochs the target is expected to need; None while unknown.
         *         max_epochs: Reference epochs after which training stops anyway.
         *         metrics: Last finite value of everything the script logged.
         *         diverged: Which of the loss and the target's metric is NaN or infinite by now, and since
         *             when, in words; None while none is.
         */
        ProgressView: {
            /**
             * Diverged
             * @default null
             */
            diverged: string | null;
            /** Epochs */
            epochs: number;
            /** Expected Epochs */
            expected_epochs: number | null;
            /** Iteration */
            iteration: number;
            /** Max Epochs */
            max_epochs: number;
            /** Metrics */
            metrics: {
                [key: string]: number;
            };
        };
        /**
         * Regrouped
         * @description The leader entered a generation: what the change took.
         *
         *     Attributes:
         *         generation: The generation entered.
         *         pause: Seconds between the last iteration of the old and the first of the new generation.
         *         iterations_lost: Applied iterations that the new generation does not contain.
         */
        Regrouped: {
            /** Generation */
            generation: number;
            /** Iterations Lost */
            iterations_lost: number;
            /** Pause */
            pause: number;
        };
        /**
         * RejectedRow
         * @description A row that cannot be used, and is not to be sent again.
         *
         *     Attributes:
         *         sequence: Its number in the worker's stream.
         *         why: What is wrong with it.
         */
        RejectedRow: {
            /** Sequence */
            sequence: number;
            /** Why */
            why: string;
        };
        /**
         * Reply
         * @description The controller's answer to Hello and to every report.
         *
         *     Attributes:
         *         directive: The newest Directive of the job; None before the first.
         *         next_sequence: Sequence the controller expects next; rows below it are stored or rejected.
         *         accepted: Rows of the report that were stored.
         *         duplicates: Rows of it that had been stored before.
         *         rejected: Rows of it that cannot be used, the first thousand of them.
         */
        Reply: {
            /**
             * Accepted
             * @default 0
             */
            accepted: number;
            directive: components["schemas"]["Directive"] | null;
            /**
             * Duplicates
             * @default 0
             */
            duplicates: number;
            /** Next Sequence */
            next_sequence: number;
            /**
             * Rejected
             * @default []
             */
            rejected: components["schemas"]["RejectedRow"][];
        };
        /**
         * ResizeRequest
         * @description A resize, with its reason.
         */
        ResizeRequest: {
            /**
             * Reason
             * @description Why, for those who read it later
             * @default
             */
            reason: string;
            /** To */
            to: ("auto" | "knee" | "cheapest" | "fastest") | components["schemas"]["GridPoint"];
        };
        /**
         * ResizeView
         * @description One change of configuration, as the leader reported it.
         */
        ResizeView: {
            after: components["schemas"]["ConfigView"];
            /**
             * At
             * Format: date-time
             */
            at: string;
            before: components["schemas"]["ConfigView"] | null;
            /** Generation */
            generation: number;
            /** Iterations Lost */
            iterations_lost: number | null;
            /** Pause */
            pause: number | null;
            /** Why */
            why: string;
        };
        /**
         * ResourcePriceSpec
         * @description Machines of custom size, whose memory follows the batch (V-D).
         *
         *     Attributes:
         *         per_vcpu_hour: Dollars of one vCPU for one hour.
         *         per_gib_hour: Dollars of one GiB for one hour.
         *         vcpus: vCPUs of one worker.
         *         memory: GiB one worker needs.
         */
        ResourcePriceSpec: {
            /**
             * @example {
             *       "per_hour": 0.05,
             *       "restart": "2m"
             *     }
             */
            interruptions?: components["schemas"]["InterruptionsSpec"];
            /**
             * @example {
             *       "fixed_gib": 2,
             *       "gib_per_sample": 0.01
             *     }
             */
            memory: components["schemas"]["MemorySpec"];
            /**
             * Per Gib Hour
             * @example 0.0032 USD/h
             */
            per_gib_hour: string;
            /**
             * Per Vcpu Hour
             * @example 0.0237 USD/h
             */
            per_vcpu_hour: string;
            /**
             * Quantum
             * @example 1h
             */
            quantum?: string;
            /**
             * @example {
             *       "count": 2,
             *       "per_hour": "0.13402 USD/h"
             *     }
             */
            servers?: components["schemas"]["ServersSpec"];
            /**
             * Vcpus
             * @example 4
             */
            vcpus: number;
        };
        /**
         * ResumeRequest
         * @description A resumption, with its reason.
         */
        ResumeRequest: {
            /**
             * Reason
             * @description Why, for those who read it later
             * @default
             */
            reason: string;
        };
        /**
         * RunSpec
         * @description What every worker runs.
         *
         *     Attributes:
         *         command: Program and arguments, handed over as they are, without a shell.
         *         code: SHA-256 of the code that each machine fetches and runs the command in, as the
         *             controller stores it; None for none. ``scavenger submit --code`` fills it in.
         *         directory: Absolute path the command runs in; None leaves it to the worker. With ``code``,
         *             a path inside the code; None for its top.
         *         setup: Program and arguments, run once on each machine before the command, in the same
         *             directory; None for nothing.
         *         image: Machine image to boot, in the cloud's own word (of AWS an id, of Google a path), in
         *             place of the one of the clouds file. It is no container image.
         *         env: Environment variables added to the worker's own; no secrets.
         *         secrets: Environment variables whose values the controller keeps, and no document.
         *         checkpoints: How often checkpoints are written; None for the defaults.
         *         stall: Seconds without an iteration that are always allowed; a command that takes
         *             longer has its stack dumped and is restarted.
         *         drain: Seconds the command has to end in order once its machine was told to end.
         */
        RunSpec: {
            /**
             * @example {
             *       "every": "60s",
             *       "keep": 3
             *     }
             */
            checkpoints?: components["schemas"]["CheckpointsSpec"];
            /**
             * Code
             * @example 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
             */
            code?: string;
            /**
             * Command
             * @example [
             *       "python",
             *       "train.py"
             *     ]
             */
            command: string[];
            /**
             * Directory
             * @example /srv/train
             */
            directory?: string;
            /**
             * Drain
             * @default 30
             * @example 30s
             */
            drain: string;
            /**
             * Env
             * @example {
             *       "LOG_LEVEL": "info"
             *     }
             */
            env?: {
                [key: string]: string;
            };
            /**
             * Image
             * @example ami-0123456789abcdef0
             */
            image?: string;
            /**
             * Secrets
             * @default []
             * @example [
             *       "HF_TOKEN"
             *     ]
             */
            secrets: string[];
            /**
             * Setup
             * @example [
             *       "pip",
             *       "install",
             *       "-r",
             *       "requirements.txt"
             *     ]
             */
            setup?: string[];
            /**
             * Stall
             * @default 300
             * @example 5m
             */
            stall: string;
        };
        /**
         * SandblasterSpec
         * @description Workers compute parts of large batches, and servers step by L-BFGS (Sandblaster).
         *
         *     Attributes:
         *         servers: Machines that serve, beside the workers.
         *         priced: Whether they are paid; if not, they count neither in the cap nor in predictions.
         *         history: Pairs of steps and gradient changes that a direction is made from.
         *         portions: Parts into which the batch of an iteration is cut.
         */
        SandblasterSpec: {
            /**
             * History
             * @default 10
             * @example 10
             */
            history: number;
            /**
             * Portions
             * @default 80
             * @example 80
             */
            portions: number;
            /**
             * Priced
             * @default true
             * @example true
             */
            priced: boolean;
            /**
             * Servers
             * @default 1
             * @example 2
             */
            servers: number;
        };
        /**
         * SavingView
         * @description What a configuration takes less than the one that the job runs on; negative where more.
         */
        SavingView: {
            /** Cost */
            cost: string;
            /** Seconds */
            seconds: number;
        };
        /**
         * SeriesView
         * @description One series, as the least and the largest value of each of its buckets.
         *
         *     A bucket without a value, and one between two parts with nothing measured between them, has
         *     null: a line ends there and begins anew.
         *
         *     Attributes:
         *         at: When each bucket begins.
         *         low: Least value of each bucket.
         *         high: Largest value of each bucket.
         *         nonfinite: Values that were NaN or infinite; no bucket shows them.
         */
        SeriesView: {
            /** At */
            at: string[];
            /** High */
            high: (number | null)[];
            /** Low */
            low: (number | null)[];
            /** Name */
            name: string;
            /** Nonfinite */
            nonfinite: number;
            /** Unit */
            unit: string;
        };
        /**
         * ServersSpec
         * @description Parameter servers that are paid beside the workers.
         *
         *     Attributes:
         *         count: How many.
         *         per_hour: Dollars of one for one hour.
         */
        ServersSpec: {
            /**
             * Count
             * @example 2
             */
            count: number;
            /**
             * Per Hour
             * @example 0.13402 USD/h
             */
            per_hour: string;
        };
        /**
         * SessionView
         * @description Who sends a request, by session or by token.
         *
         *     Attributes:
         *         token: Id of the token that the session began with.
         *         name: Name of that token.
         *         project: Its project, or ``*`` for all.
         *         csrf: What the header ``X-CSRF`` of each request must hold that is no GET; empty where
         *             the request carries a token and so belongs to no session.
         *         expires_at: When the session ends unless it is used before, or when the token does; None
         *             for a token that never expires.
         */
        SessionView: {
            /** Csrf */
            csrf: string;
            /** Expires At */
            expires_at: string | null;
            /** Name */
            name: string;
            /** Project */
            project: string;
            role: components["schemas"]["UserRole"];
            /** Token */
            token: string;
        };
        /**
         * SignIn
         * @description What begins a session: a token, or a code that ``scavenger dashboard`` has bought.
         */
        SignIn: {
            /**
             * Code
             * @default
             */
            code: string;
            /**
             * Token
             * @default
             */
            token: string;
        };
        /**
         * SignInCodeView
         * @description A code that signs a browser in, once.
         *
         *     Attributes:
         *         code: What ``POST /v1/session`` takes instead of a token.
         */
        SignInCodeView: {
            /** Code */
            code: string;
            /**
             * Expires At
             * Format: date-time
             */
            expires_at: string;
        };
        /**
         * SignedRequest
         * @description One request that a bucket accepts for a while, no matter from which computer: a secret.
         *
         *     Attributes:
         *         url: Where to.
         *         headers: Headers that must be sent with it as they are.
         */
        SignedRequest: {
            /** Headers */
            headers?: {
                [key: string]: string;
            };
            /** Url */
            url: string;
        };
        /**
         * SpentView
         * @description What a job had taken at some moment: seconds since it began, and dollars.
         */
        SpentView: {
            /** Cost */
            cost: string;
            /** Time */
            time: number;
        };
        /**
         * StackCheck
         * @description What a worker found out about a stack in a rehearsal.
         *
         *     Attributes:
         *         stack: The stack.
         *         local_batch: Samples of the batch that it was rehearsed with.
         *         seconds: What the rehearsal took, with compiling.
         *         gradient_error: Distance of all gradients from those in float64, relative to their length.
         *         refusal: Why this worker trains without a part of it; empty where all is right.
         *         cache_trouble: Why compiled code of other workers was not used, or this one's not shared;
         *             empty where all is right.
         *         memory_share: Bytes that a forward pass keeps for its backward pass, relative to what it
         *             keeps with the script as it is.
         */
        StackCheck: {
            /**
             * Cache Trouble
             * @default
             */
            cache_trouble: string;
            /** Gradient Error */
            gradient_error: number;
            /** Local Batch */
            local_batch: number;
            /**
             * Memory Share
             * @default 1
             */
            memory_share: number;
            /**
             * Refusal
             * @default
             */
            refusal: string;
            /** Seconds */
            seconds: number;
            /** Stack */
            stack: string;
        };
        /**
         * StackView
         * @description An execution stack that a job may use, and what its workers found out about it.
         *
         *     Attributes:
         *         name: Its name, such as ``bf16+fused``, or a layout such as ``P=2 T=1 M=4``.
         *         seconds: Seconds of the longest rehearsal, with compiling; None before any.
         *         gradient_error: Largest distance of all gradients from those in float64, relative to their
         *             length; None before a rehearsal.
         *         memory_share: Memory that a sample takes, relative to the script as it is; None before a
         *             rehearsal.
         *         refusal: Why the job cannot use it; empty where it can.
         */
        StackView: {
            /** Gradient Error */
            gradient_error?: number | null;
            /** Memory Share */
            memory_share?: number | null;
            /** Name */
            name: string;
            /**
             * Refusal
             * @default
             */
            refusal: string;
            /** Seconds */
            seconds?: number | null;
        };
        /**
         * StepColumns
         * @description Measured iterations of one generation, as columns of equal length.
         *
         *     Attributes:
         *         iteration: Number of each iteration, counted over the whole job.
         *         shards: Independent gradient shards the norms were taken over (K, or micro-batches).
         *         local_norm_sq: Mean over shards of ||g_k||², weighted by shard size; None if not finite.
         *         mean_norm_sq: ||ḡ||² of the aggregated gradient; None if not finite.
         *         compute_time: Seconds from first forward to last local gradient, slowest worker.
         *         sync_time: Exposed seconds of synchronisation, worker that waited least.
         *         step_time: Wall seconds of the whole iteration on the leader.
         *         loss: Loss the script logged, leader's; None where none was logged or it is not finite.
         *         mean_compute_time: The same from first forward to last local gradient, mean over workers;
         *             left out by old agents, and then the slowest worker's.
         *         fastest_compute_time: The same, fastest worker.
         */
        StepColumns: {
            /**
             * Compute Time
             * @default []
             */
            compute_time: number[];
            /**
             * Fastest Compute Time
             * @default []
             */
            fastest_compute_time: number[];
            /**
             * Iteration
             * @default []
             */
            iteration: number[];
            /**
             * Local Norm Sq
             * @default []
             */
            local_norm_sq: (number | null)[];
            /**
             * Loss
             * @default []
             */
            loss: (number | null)[];
            /**
             * Mean Compute Time
             * @default []
             */
            mean_compute_time: number[];
            /**
             * Mean Norm Sq
             * @default []
             */
            mean_norm_sq: (number | null)[];
            /**
             * Shards
             * @default []
             */
            shards: number[];
            /**
             * Step Time
             * @default []
             */
            step_time: number[];
            /**
             * Sync Time
             * @default []
             */
            sync_time: number[];
        };
        /**
         * StepReport
         * @description What a worker tells the controller; the reply is the newest Directive.
         *
         *     Attributes:
         *         worker: Who reports.
         *         progress: Where it stands.
         *         sequence: Number of the first row of ``steps`` in this worker's stream, from 0.
         *         steps: Iterations measured since the last report; all of ``progress.generation``.
         *         regrouped: Set once after a change of generation, by the leader.
         *         broken: Generation whose collective failed, while the worker waits for a new one.
         *         refused: Generation that could not be formed, so the old one goes on.
         *         finished: Why training ended, once it has; None while it runs.
         *         dropped: Rows of this stream that were given up so far because too many were waiting.
         */
        StepReport: {
            /**
             * Broken
             * @default null
             */
            broken: number | null;
            /**
             * Dropped
             * @default 0
             */
            dropped: number;
            /**
             * Finished
             * @default null
             */
            finished: ("target" | "exhausted" | "released") | null;
            progress: components["schemas"]["Progress"];
            /**
             * Refused
             * @default null
             */
            refused: number | null;
            /** @default null */
            regrouped: components["schemas"]["Regrouped"] | null;
            /**
             * Sequence
             * @default 0
             */
            sequence: number;
            /**
             * @default {
             *       "compute_time": [],
             *       "fastest_compute_time": [],
             *       "iteration": [],
             *       "local_norm_sq": [],
             *       "loss": [],
             *       "mean_compute_time": [],
             *       "mean_norm_sq": [],
             *       "shards": [],
             *       "step_time": [],
             *       "sync_time": []
             *     }
             */
            steps: components["schemas"]["StepColumns"];
            /** Worker */
            worker: string;
        };
        /**
         * StopAtMetric
         * @description Stop when a logged metric reaches the goal, or when the allowed progress is used up.
         *
         *     Attributes:
         *         metric: Name under which the training script logs the value.
         *         goal: Value to reach.
         *         direction: ``at_least`` for metrics that grow, ``at_most`` for losses.
         *         max_progress: Reference epochs after which training stops without success.
         */
        StopAtMetric: {
            /**
             * Direction
             * @enum {string}
             */
            direction: "at_least" | "at_most";
            /** Goal */
            goal: number;
            /**
             * Kind
             * @default metric
             * @constant
             */
            kind: "metric";
            /** Max Progress */
            max_progress: number;
            /** Metric */
            metric: string;
        };
        /**
         * StopAtProgress
         * @description Stop after this many reference epochs of progress.
         */
        StopAtProgress: {
            /**
             * Kind
             * @default progress
             * @constant
             */
            kind: "progress";
            /** Max Progress */
            max_progress: number;
        };
        /**
         * StoredCheckpoint
         * @description A complete checkpoint in a bucket.
         *
         *     Attributes:
         *         checkpoint: Its name, by which a machine asks for the one before.
         *         generation: Generation of the leader that wrote it; the later is the newer one.
         *         iteration: Iterations of the job that are in it.
         *         parts: Its parts, the ranges of a file in order.
         *         requests: A GET for each part.
         */
        StoredCheckpoint: {
            /** Checkpoint */
            checkpoint: string;
            /** Generation */
            generation: number;
            /** Iteration */
            iteration: number;
            /** Parts */
            parts: components["schemas"]["CheckpointPart"][];
            /** Requests */
            requests: components["schemas"]["SignedRequest"][];
        };
        /**
         * StoredModelList
         * @description One page of stored models, newest first.
         */
        StoredModelList: {
            /** Models */
            models: components["schemas"]["StoredModelView"][];
            /** Next Cursor */
            next_cursor?: string | null;
        };
        /**
         * StoredModelView
         * @description A fitted model that later jobs of the same signature reuse.
         *
         *     Attributes:
         *         epochs_to_target: Reference epochs each target took, by target in words.
         */
        StoredModelView: {
            /** Epochs To Target */
            epochs_to_target: {
                [key: string]: number;
            };
            /** Jobs */
            jobs: number;
            laws: components["schemas"]["LawsView"];
            /** Model Key */
            model_key: string;
            /** Reference Batch */
            reference_batch: number;
            /** Signature */
            signature: string;
            /**
             * Updated At
             * Format: date-time
             */
            updated_at: string;
        };
        /**
         * SweepList
         * @description One page of sweeps, newest first.
         */
        SweepList: {
            /** Next Cursor */
            next_cursor?: string | null;
            /** Sweeps */
            sweeps: components["schemas"]["SweepView"][];
        };
        /**
         * SweepView
         * @description One sweep for orphaned machines.
         *
         *     Attributes:
         *         cloud: Name of the entry in the clouds file.
         *         shown: Machines of this installation that the cloud listed as alive.
         *         ended: Machines whose termination the cloud accepted.
         *         tripped: Why machines are held back, in one sentence; None where none are.
         *         confirmed_at: When a user confirmed that the machines held back are terminated.
         */
        SweepView: {
            /**
             * At
             * Format: date-time
             */
            at: string;
            /** Cloud */
            cloud: string;
            /** Confirmed At */
            confirmed_at: string | null;
            /** Ended */
            ended: number;
            /** Number */
            number: number;
            /** Shown */
            shown: number;
            /** Suspects */
            suspects: components["schemas"]["OrphanView"][];
            /** Tripped */
            tripped: string | null;
        };
        /**
         * SwitchView
         * @description What a change of configuration takes now: seconds without training, and their dollars.
         */
        SwitchView: {
            /** Cost */
            cost: string;
            /** Seconds */
            seconds: number;
        };
        /**
         * TelemetryView
         * @description Measured series of a job.
         *
         *     Attributes:
         *         since: Where they begin, ``from`` in the request; later than that where too much was
         *             measured for one answer.
         *         until: Where they end, ``to`` in the request.
         *         iterations_from: Before this moment iterations are no longer kept, and their series have one
         *             value for each settled probe, its mean; None where all are kept.
         */
        TelemetryView: {
            /**
             * From
             * Format: date-time
             */
            from: string;
            /** Iterations From */
            iterations_from?: string | null;
            /** Series */
            series: components["schemas"]["SeriesView"][];
            /**
             * To
             * Format: date-time
             */
            to: string;
        };
        /**
         * TokenList
         * @description Tokens, newest first.
         */
        TokenList: {
            /** Tokens */
            tokens: components["schemas"]["TokenView"][];
        };
        /**
         * TokenRequest
         * @description A token to create.
         *
         *     Attributes:
         *         project: The user's own if it is missing.
         *         lifetime: Seconds until it expires; without it, the token never expires.
         */
        TokenRequest: {
            /** Lifetime */
            lifetime?: number | null;
            /** Name */
            name: string;
            /** Project */
            project?: string | null;
            role: components["schemas"]["UserRole"];
        };
        /**
         * TokenView
         * @description A token of a user, without its secret.
         *
         *     Attributes:
         *         id: The first part of the token, which is no secret.
         *         project: Its project, or ``*`` for all.
         *         created_by: Id of the token that created it, or ``serve``.
         */
        TokenView: {
            /**
             * Created At
             * Format: date-time
             */
            created_at: string;
            /** Created By */
            created_by: string;
            /** Expires At */
            expires_at: string | null;
            /** Id */
            id: string;
            /** Last Used At */
            last_used_at: string | null;
            /** Name */
            name: string;
            /** Project */
            project: string;
            /** Revoked At */
            revoked_at: string | null;
            role: components["schemas"]["UserRole"];
        };
        /**
         * UploadTarget
         * @description Where a machine sends a checkpoint.
         *
         *     Attributes:
         *         is_complete: Whether it is in the bucket; nothing is to be sent then.
         *         requests: A PUT for each part. Status 412 says that the object is there.
         */
        UploadTarget: {
            /** Is Complete */
            is_complete: boolean;
            /**
             * Requests
             * @default []
             */
            requests: components["schemas"]["SignedRequest"][];
        };
        /**
         * UserRole
         * @description Role of a token; each includes the permissions of the ones before it.
         * @enum {string}
         */
        UserRole: "viewer" | "submitter" | "operator" | "admin";
        /**
         * VersionView
         * @description What answers.
         *
         *     Attributes:
         *         version: Of the controller.
         *         api: Of the API, the first part of every path.
         *         schema_revision: Of the database, ``schema`` on the wire.
         */
        VersionView: {
            /** Api */
            api: string;
            /** Schema */
            schema: string;
            /** Version */
            version: string;
        };
        /**
         * VmLease
         * @description How long a VM may go on.
         *
         *     Attributes:
         *         remaining: Seconds, from when the request was sent.
         *         drain: Whether its worker is to save a checkpoint and leave now.
         */
        VmLease: {
            /**
             * Drain
             * @default false
             */
            drain: boolean;
            /** Remaining */
            remaining: number;
        };
        /**
         * WebhookChange
         * @description What to change; what is missing stays as it is.
         */
        WebhookChange: {
            /** Events */
            events?: components["schemas"]["EventKind"][] | null;
            /** Is Enabled */
            is_enabled?: boolean | null;
            /** Url */
            url?: string | null;
        };
        /**
         * WebhookKind
         * @description What a receiver understands.
         * @enum {string}
         */
        WebhookKind: "generic" | "slack";
        /**
         * WebhookList
         * @description One page of webhooks, newest first.
         */
        WebhookList: {
            /** Next Cursor */
            next_cursor?: string | null;
            /** Webhooks */
            webhooks: components["schemas"]["WebhookView"][];
        };
        /**
         * WebhookRequest
         * @description A webhook to create.
         *
         *     Attributes:
         *         events: Kinds of events to send, ``*`` for all; without it those that a person who is not
         *             watching wants to hear of.
         *         project: The user's own if it is missing.
         */
        WebhookRequest: {
            /** Events */
            events?: components["schemas"]["EventKind"][] | null;
            /** @default generic */
            kind: components["schemas"]["WebhookKind"];
            /** Project */
            project?: string | null;
            /** Url */
            url: string;
        };
        /**
         * WebhookView
         * @description A webhook.
         *
         *     Attributes:
         *         id: ``whk_`` and 16 hexadecimal digits.
         *         events: Kinds of the events that are sent.
         *         project: Whose jobs they are about; ``*`` for every project.
         *         is_enabled: Whether events are sent now.
         *         disabled_why: Why they are not; None while they are.
         *         rotations: How often its secret was replaced.
         *         secret: What signs the requests; only in the answers to creation and rotation, and None for
         *             Slack, which checks no signature.
         */
        WebhookView: {
            /**
             * Created At
             * Format: date-time
             */
            created_at: string;
            /** Disabled Why */
            disabled_why?: string | null;
            /** Events */
            events: components["schemas"]["EventKind"][];
            /** Id */
            id: string;
            /** Is Enabled */
            is_enabled: boolean;
            kind: components["schemas"]["WebhookKind"];
            /** Project */
            project: string;
            /**
             * Rotations
             * @default 0
             */
            rotations: number;
            /** Secret */
            secret?: string | null;
            /** Url */
            url: string;
        };
        /**
         * WeightedObjective
         * @description Least time^w times cost^(1-w): each percent of time is worth w / (1-w) percent of cost.
         *
         *     Attributes:
         *         time_weight: w, from 0 for the cheapest to 1 for the fastest.
         */
        WeightedObjective: {
            /**
             * Time Weight
             * @example 0.7
             */
            time_weight: number;
        };
        /**
         * WhatIf
         * @description A question about a job's curve: what if it had another price, limits or objective?
         *
         *     Attributes:
         *         price: Dollars per worker-hour, or a tariff.
         *         workers: Allowed worker counts: a range or a list.
         *         limits: Limits in place of those that it names.
         *         objective: Which configuration of the curve to choose.
         */
        WhatIf: {
            /**
             * @example {
             *       "max_cost": "3.40 USD"
             *     }
             */
            limits?: components["schemas"]["WhatIfLimits"] | null;
            /**
             * Objective
             * @example cheapest
             */
            objective?: ("knee" | "cheapest" | "fastest") | components["schemas"]["WeightedObjective"] | null;
            /**
             * Price
             * @example 0.5 USD/h
             */
            price?: string | components["schemas"]["MachinePriceSpec"] | components["schemas"]["ResourcePriceSpec"] | null;
            /**
             * Workers
             * @example [
             *       1,
             *       2,
             *       4
             *     ]
             */
            workers?: number | string | number[] | null;
        };
        /**
         * WhatIfLimits
         * @description Limits in place of a job's; null removes one, and what is absent stays.
         *
         *     Attributes:
         *         max_cost: The most the job may spend, in dollars.
         *         max_time: The longest the job may take, in seconds.
         *         batch: Allowed global batches in samples.
         */
        WhatIfLimits: {
            /**
             * Batch
             * @example 32..256
             */
            batch?: number | string | number[] | null;
            /**
             * Max Cost
             * @example 3.40 USD
             */
            max_cost?: string | null;
            /**
             * Max Time
             * @example 3h12m
             */
            max_time?: string | null;
        };
        /**
         * WorkerSpec
         * @description What a machine runs: the part of a job that is the user's.
         *
         *     Attributes:
         *         role: Whether it trains or serves parameters.
         *         strategy: How the workers of the job train together.
         *         command: The training command, program first; empty for a parameter server of the agent.
         *         directory: Where the command starts; None leaves it to the machine. With ``code``, a path
         *             inside the code; None for its top.
         *         code: SHA-256 of the code that the machine fetches; None for none.
         *         setup: Run once on the machine before the command, program first; empty for nothing.
         *         variables: Environment variables that the job adds, none of them ours.
         *         checkpoints: Directory of the job's checkpoints; None for one of the machine's own.
         *         checkpoint_every: Seconds between two checkpoints.
         *         checkpoint_keep: Number of checkpoints kept.
         *         checkpoint_store: Whether they are put into a bucket, too.
         *         drain: Seconds the command has to end in order once its machine was told to end.
         *         stall: Least seconds without an iteration after which training counts as stuck.
         *         stack: The stack it will probably compute with, to be rehearsed before it says hello.
         *         local_batch: Samples to rehearse with; 0 for no rehearsal.
         *         layout: How the processes of the worker share the model.
         *         profile: Whether the machine is to profile the model first, and to ask for the layout then.
         *         searches_layout: Whether a command that fails before it has trained may go on in another.
         */
        WorkerSpec: {
            /**
             * Checkpoint Every
             * @default 60
             */
            checkpoint_every: number;
            /**
             * Checkpoint Keep
             * @default 3
             */
            checkpoint_keep: number;
            /**
             * Checkpoint Store
             * @default false
             */
            checkpoint_store: boolean;
            /** Checkpoints */
            checkpoints?: string | null;
            /** Code */
            code?: string | null;
            /**
             * Command
             * @default []
             */
            command: string[];
            /** Directory */
            directory?: string | null;
            /**
             * Drain
             * @default 30
             */
            drain: number;
            /**
             * @default {
             *       "chunks": 1,
             *       "cuts": [],
             *       "micro_batches": 1,
             *       "pipeline": 1,
             *       "replicas": [],
             *       "schedule": "1f1b",
             *       "shard": 1,
             *       "tensor": 1,
             *       "vertical_sync": false
             *     }
             */
            layout: components["schemas"]["Layout"];
            /**
             * Local Batch
             * @default 0
             */
            local_batch: number;
            /**
             * Profile
             * @default false
             */
            profile: boolean;
            /**
             * Role
             * @default worker
             * @enum {string}
             */
            role: "worker" | "server";
            /**
             * Searches Layout
             * @default false
             */
            searches_layout: boolean;
            /**
             * Setup
             * @default []
             */
            setup: string[];
            /**
             * Stack
             * @default eager
             */
            stack: string;
            /**
             * Stall
             * @default 300
             */
            stall: number;
            /**
             * Strategy
             * @default all_reduce
             * @enum {string}
             */
            strategy: "all_reduce" | "parameter_server" | "downpour" | "sandblaster" | "pipedream";
            /** Variables */
            variables?: {
                [key: string]: string;
            };
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
export type $defs = Record<string, never>;
export type operations = Record<string, never>;
