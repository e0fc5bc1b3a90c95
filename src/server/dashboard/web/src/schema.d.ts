// Generated from /openapi.json by types.mjs. Do not edit.

export type paths = Record<string, never>;
export interface webhooks {
    delivery: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** A job is delivered to the target of its type. */
        post: operations["delivery"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    ended: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** A job with a `callback_url` has ended. */
        post: operations["ended"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
}
export interface components {
    schemas: {
        AnyValue: unknown;
        Applied: components["schemas"]["AppliedEnqueued"] | components["schemas"]["AppliedAlreadyEnqueued"] | components["schemas"]["AppliedCompleted"] | components["schemas"]["AppliedRecorded"] | components["schemas"]["AppliedAlreadyProcessed"] | components["schemas"]["AppliedLate"] | components["schemas"]["AppliedPending"] | components["schemas"]["AppliedDeadLettered"] | components["schemas"]["AppliedDropped"];
        AppliedAlreadyEnqueued: {
            /** @enum {string} */
            action: "already_enqueued";
            job: components["schemas"]["JobId"];
            trigger: string;
        };
        AppliedAlreadyProcessed: {
            /** @enum {string} */
            action: "already_processed";
            job: components["schemas"]["JobId"];
            trigger: string;
        };
        AppliedCompleted: {
            /** @enum {string} */
            action: "completed";
            job: components["schemas"]["JobId"];
            trigger: string;
        };
        AppliedDeadLettered: {
            /** @enum {string} */
            action: "dead_lettered";
            letter: string;
            reason: string;
            trigger: string;
        };
        AppliedDropped: {
            /** @enum {string} */
            action: "dropped";
            reason: string;
            trigger: string;
        };
        AppliedEnqueued: {
            /** @enum {string} */
            action: "enqueued";
            job: components["schemas"]["JobId"];
            trigger: string;
            type: components["schemas"]["TypeName"];
        };
        AppliedLate: {
            /** @enum {string} */
            action: "late";
            job: components["schemas"]["JobId"];
            trigger: string;
        };
        AppliedPending: {
            /** @enum {string} */
            action: "pending";
            trigger: string;
            until: components["schemas"]["Timestamp"];
        };
        AppliedRecorded: {
            /** @enum {string} */
            action: "recorded";
            job: components["schemas"]["JobId"];
            trigger: string;
        };
        AttributeValue: string | number;
        AuditEntry: {
            action: string;
            at: components["schemas"]["Timestamp"];
            caller: string;
            path: string;
            query?: string | null;
            request_id: string;
            /** Format: int64 */
            status: number;
            with?: components["schemas"]["AnyValue"];
        };
        AuditPage: {
            entries: components["schemas"]["AuditEntry"][];
            next_cursor?: string | null;
        };
        AwsService: components["schemas"]["AwsServiceSqs"] | components["schemas"]["AwsServiceSns"] | components["schemas"]["AwsServiceEventBridge"] | components["schemas"]["AwsServiceLambda"];
        AwsServiceEventBridge: {
            event_bridge: components["schemas"]["EventBridgeTarget"];
        };
        AwsServiceLambda: {
            lambda: components["schemas"]["LambdaTarget"];
        };
        AwsServiceSns: {
            sns: components["schemas"]["SnsTarget"];
        };
        AwsServiceSqs: {
            sqs: components["schemas"]["SqsTarget"];
        };
        Backoff: {
            base_seconds?: components["schemas"]["Seconds"] | null;
            jitter?: components["schemas"]["Jitter"] | null;
            max_seconds?: components["schemas"]["Seconds"] | null;
        };
        BasicAuth: {
            password?: string;
            username: string;
        };
        BatchResult: {
            error?: components["schemas"]["Problem"] | null;
            job?: components["schemas"]["Job"] | null;
            /** Format: int64 */
            status: number;
        };
        BatchView: {
            results: components["schemas"]["BatchResult"][];
        };
        Beat: {
            cancel: boolean;
            expires_at: components["schemas"]["Timestamp"];
        };
        Bulk: {
            all?: boolean | null;
            dry_run?: boolean | null;
            filter?: components["schemas"]["JobFilter"] | null;
        };
        BulkChanges: {
            /** Format: int32 */
            priority?: number | null;
            run_at?: components["schemas"]["Timestamp"] | null;
            windows?: components["schemas"]["Window"][] | null;
        };
        /** @enum {string} */
        BulkKind: "cancel" | "replay" | "purge" | "patch";
        BulkPatch: {
            all?: boolean | null;
            dry_run?: boolean | null;
            filter?: components["schemas"]["JobFilter"] | null;
            patch: components["schemas"]["BulkChanges"];
        };
        BulkReplay: {
            again?: boolean | null;
            all?: boolean | null;
            dry_run?: boolean | null;
            filter?: components["schemas"]["JobFilter"] | null;
        };
        Check: {
            about: string;
            advice?: string | null;
            finding: string;
            level: string;
        };
        CloudEvent: {
            data?: components["schemas"]["AnyValue"];
            data_base64?: string | null;
            datacontenttype?: string | null;
            dataschema?: string | null;
            id: string;
            source: string;
            specversion: string;
            subject?: string | null;
            time?: string | null;
            type: string;
        };
        /** @enum {string} */
        Complete: "on_delivery" | "on_result";
        Condition: (string | number | boolean) | (string | number | boolean)[] | components["schemas"]["Test"];
        ConsoleView: {
            embed?: string | null;
            read_only: boolean;
            servers: components["schemas"]["OtherServer"][];
            title: string;
            trace_url?: string | null;
        };
        Constraint: {
            /** Format: int64 */
            concurrency?: number | null;
            match?: components["schemas"]["Matcher"] | null;
            name: string;
            per?: string | null;
            rate?: components["schemas"]["Rate"] | null;
        };
        ConstraintUse: {
            /** Format: int64 */
            limit: number;
            name: string;
            per?: string | null;
            /** Format: int64 */
            running_weight: number;
            value?: string | null;
        };
        DeadLetter: {
            event: components["schemas"]["CloudEvent"];
            failed_at: components["schemas"]["Timestamp"];
            id: string;
            reason: string;
            trigger?: components["schemas"]["TriggerName"] | null;
        };
        DeadLetterPage: {
            dead_letters: components["schemas"]["DeadLetter"][];
            next_cursor?: string | null;
        };
        Debounce: {
            max_seconds: components["schemas"]["Seconds"];
            merge?: components["schemas"]["MergePolicy"] | null;
            seconds: components["schemas"]["Seconds"];
        };
        /** @enum {string} */
        DecidedAction: "run" | "hold" | "reschedule" | "drop" | "retry" | "give_up";
        /** @enum {string} */
        Delivery: "at_least_once" | "at_most_once";
        Description: {
            about: string;
            config_schema?: string | null;
            group_by: string[];
            needs_data: boolean;
            needs_earlier?: boolean;
            needs_ended: boolean;
            needs_running_jobs: boolean;
            /** Format: int64 */
            state_version: number;
            waiting_by?: string[];
        };
        DevClock: {
            frozen: boolean;
            now: components["schemas"]["Timestamp"];
        };
        DevClockChange: {
            advance_seconds?: components["schemas"]["Seconds"] | null;
            freeze?: boolean | null;
            set?: components["schemas"]["Timestamp"] | null;
        };
        Difference: {
            at: components["schemas"]["Timestamp"];
            job: components["schemas"]["JobId"];
            live: components["schemas"]["ShadowDecision"];
            queue: components["schemas"]["QueueName"];
            shadow: components["schemas"]["ShadowDecision"];
        };
        Doctor: {
            checks: components["schemas"]["Check"][];
            ok: boolean;
            version: string;
        };
        Ended: {
            /** Format: int64 */
            attempt: number;
            correlation_key?: string | null;
            ended_at: components["schemas"]["Timestamp"];
            error?: components["schemas"]["EndError"] | null;
            id: components["schemas"]["JobId"];
            kind: string;
            result: components["schemas"]["AnyValue"];
            state: string;
            type: components["schemas"]["TypeName"];
        };
        /** @enum {string} */
        EndedAs: "succeeded" | "failed" | "cancelled" | "released" | "snoozed";
        EndError: {
            message?: string | null;
            reason: components["schemas"]["Reason"];
        };
        ErrorGroup: {
            examples: string[];
            first_at: components["schemas"]["Timestamp"];
            /** Format: int64 */
            jobs: number;
            last_at: components["schemas"]["Timestamp"];
            message?: string | null;
            pattern: string;
            reason: components["schemas"]["Reason"];
            type: string;
        };
        Errors: {
            errors: components["schemas"]["ErrorGroup"][];
            next_cursor?: string | null;
            /** Format: int64 */
            ungrouped: number;
        };
        EventAnswer: components["schemas"]["Ingested"] | components["schemas"]["EventBatch"];
        EventBatch: {
            results: components["schemas"]["EventResult"][];
        };
        EventBridgeTarget: {
            bus?: string | null;
            detail_type?: string | null;
            source?: string | null;
        };
        EventFilter: {
            all?: components["schemas"]["EventFilter"][] | null;
            any?: components["schemas"]["EventFilter"][] | null;
            attribute?: {
                [key: string]: components["schemas"]["Condition"];
            } | null;
            data?: {
                [key: string]: components["schemas"]["Condition"];
            } | null;
            not?: components["schemas"]["EventFilter"] | null;
            source?: components["schemas"]["Condition"] | null;
            subject?: components["schemas"]["Condition"] | null;
            type?: components["schemas"]["Condition"] | null;
        };
        EventReference: {
            id: string;
            source: string;
            type: string;
        };
        EventResult: {
            error?: components["schemas"]["Problem"] | null;
            event?: components["schemas"]["Ingested"] | null;
            /** Format: int64 */
            status: number;
        };
        Explanation: {
            earliest_at?: components["schemas"]["Timestamp"] | null;
            held_by?: components["schemas"]["HeldBy"] | null;
            phase: string;
            reason: string;
            since?: components["schemas"]["Timestamp"] | null;
            state: string;
            workers?: components["schemas"]["WorkerStatus"] | null;
        };
        ExternalTarget: components["schemas"]["ExternalTargetSqs"] | components["schemas"]["ExternalTargetSns"] | components["schemas"]["ExternalTargetEventBridge"] | components["schemas"]["ExternalTargetLambda"];
        ExternalTargetEventBridge: {
            complete?: components["schemas"]["Complete"] | null;
            event_bridge: components["schemas"]["EventBridgeTarget"];
        };
        ExternalTargetLambda: {
            complete?: components["schemas"]["Complete"] | null;
            lambda: components["schemas"]["LambdaTarget"];
        };
        ExternalTargetSns: {
            complete?: components["schemas"]["Complete"] | null;
            sns: components["schemas"]["SnsTarget"];
        };
        ExternalTargetSqs: {
            complete?: components["schemas"]["Complete"] | null;
            sqs: components["schemas"]["SqsTarget"];
        };
        Failure: {
            details: components["schemas"]["AnyValue"];
            message?: string | null;
            reason: components["schemas"]["Reason"];
            /** Format: double */
            retry_after_seconds?: number | null;
            /** Format: int64 */
            status?: number | null;
        };
        HandledEvent: components["schemas"]["HandledEventEnqueued"] | components["schemas"]["HandledEventAlreadyEnqueued"] | components["schemas"]["HandledEventCompleted"] | components["schemas"]["HandledEventRecorded"] | components["schemas"]["HandledEventAlreadyProcessed"] | components["schemas"]["HandledEventLate"] | components["schemas"]["HandledEventPending"] | components["schemas"]["HandledEventDeadLettered"] | components["schemas"]["HandledEventDropped"];
        HandledEventAlreadyEnqueued: {
            /** @enum {string} */
            action: "already_enqueued";
            at: components["schemas"]["Timestamp"];
            event: components["schemas"]["EventReference"];
            job: components["schemas"]["JobId"];
        };
        HandledEventAlreadyProcessed: {
            /** @enum {string} */
            action: "already_processed";
            at: components["schemas"]["Timestamp"];
            event: components["schemas"]["EventReference"];
            job: components["schemas"]["JobId"];
        };
        HandledEventCompleted: {
            /** @enum {string} */
            action: "completed";
            at: components["schemas"]["Timestamp"];
            event: components["schemas"]["EventReference"];
            job: components["schemas"]["JobId"];
        };
        HandledEventDeadLettered: {
            /** @enum {string} */
            action: "dead_lettered";
            at: components["schemas"]["Timestamp"];
            event: components["schemas"]["EventReference"];
            letter: string;
            reason: string;
        };
        HandledEventDropped: {
            /** @enum {string} */
            action: "dropped";
            at: components["schemas"]["Timestamp"];
            event: components["schemas"]["EventReference"];
            reason: string;
        };
        HandledEventEnqueued: {
            /** @enum {string} */
            action: "enqueued";
            at: components["schemas"]["Timestamp"];
            event: components["schemas"]["EventReference"];
            job: components["schemas"]["JobId"];
            type: components["schemas"]["TypeName"];
        };
        HandledEventLate: {
            /** @enum {string} */
            action: "late";
            at: components["schemas"]["Timestamp"];
            event: components["schemas"]["EventReference"];
            job: components["schemas"]["JobId"];
        };
        HandledEventPending: {
            /** @enum {string} */
            action: "pending";
            at: components["schemas"]["Timestamp"];
            event: components["schemas"]["EventReference"];
            until: components["schemas"]["Timestamp"];
        };
        HandledEventRecorded: {
            /** @enum {string} */
            action: "recorded";
            at: components["schemas"]["Timestamp"];
            event: components["schemas"]["EventReference"];
            job: components["schemas"]["JobId"];
        };
        Health: {
            status: string;
            version: string;
        };
        Heartbeat: {
            /** Format: int64 */
            attempt: number;
            checkpoint?: components["schemas"]["AnyValue"];
            lease_seconds?: components["schemas"]["Seconds"] | null;
            log?: components["schemas"]["NewLogLine"][] | null;
            note?: string | null;
            /** Format: double */
            progress?: number | null;
        };
        HeldBy: {
            kind: string;
            name?: string | null;
            value?: string | null;
        };
        HeldJobs: {
            earliest_at?: components["schemas"]["Timestamp"] | null;
            /** Format: int64 */
            jobs: number;
            kind: string;
            name?: string | null;
            reason: string;
            since?: components["schemas"]["Timestamp"] | null;
            types: {
                [key: string]: number;
            };
            value?: string | null;
        };
        History: {
            from?: components["schemas"]["Timestamp"] | null;
            points: components["schemas"]["HistoryPoint"][];
            /** Format: int64 */
            step_seconds: number;
            throughput: components["schemas"]["Throughput"];
            /** Format: double */
            time_to_empty_seconds?: number | null;
        };
        HistoryEntry: {
            /** Format: int64 */
            attempt: number;
            /** Format: int64 */
            duration_ms: number;
            ended_at: components["schemas"]["Timestamp"];
            error?: components["schemas"]["Failure"] | null;
            message?: string | null;
            outcome: components["schemas"]["EndedAs"];
            retry_at?: components["schemas"]["Timestamp"] | null;
            started_at: components["schemas"]["Timestamp"];
            /** Format: int64 */
            waited_ms?: number | null;
            worker?: string | null;
        };
        HistoryPoint: {
            at: components["schemas"]["Timestamp"];
            /** Format: int64 */
            enqueued?: number | null;
            /** Format: int64 */
            failed: number;
            /** Format: int64 */
            finished: number;
            /** Format: int64 */
            limit?: number | null;
            /** Format: int64 */
            ready: number;
            /** Format: int64 */
            retrying: number;
            run_seconds?: components["schemas"]["Quantiles"] | null;
            /** Format: int64 */
            running: number;
            /** Format: int64 */
            scheduled: number;
            start_delay_seconds?: components["schemas"]["Quantiles"] | null;
            /** Format: int64 */
            started?: number | null;
            /** Format: int64 */
            weight?: number | null;
        };
        /** @enum {string} */
        HistoryRange: "hour" | "day";
        /** @enum {string} */
        HoldSlotUntil: "lease_end" | "report";
        Ingested: {
            id: string;
            outcomes: components["schemas"]["Applied"][];
            source: string;
        };
        /** @enum {string} */
        Invocation: "wait" | "event";
        /** @enum {string} */
        Jitter: "full" | "none";
        Job: {
            /** Format: int64 */
            attempt: number;
            attributes: {
                [key: string]: components["schemas"]["AttributeValue"];
            };
            callback_url?: string | null;
            checkpoint?: components["schemas"]["AnyValue"];
            checkpoint_bytes?: number | null;
            correlation_key?: string | null;
            created_at: components["schemas"]["Timestamp"];
            critical: boolean;
            data?: components["schemas"]["AnyValue"];
            data_bytes?: number | null;
            deadline_at?: components["schemas"]["Timestamp"] | null;
            due_at: components["schemas"]["Timestamp"];
            ended_at?: components["schemas"]["Timestamp"] | null;
            enqueued_by?: string | null;
            error?: components["schemas"]["Failure"] | null;
            expires_at?: components["schemas"]["Timestamp"] | null;
            /** Format: int64 */
            handed_back?: number;
            headers?: {
                [key: string]: string;
            };
            history: components["schemas"]["HistoryEntry"][];
            id: string;
            keep_result: components["schemas"]["KeepResult"];
            /** Format: int64 */
            max_attempts: number;
            merged?: components["schemas"]["Merged"] | null;
            origin?: components["schemas"]["JobOrigin"] | null;
            original?: components["schemas"]["OriginalJob"] | null;
            phase: string;
            /** Format: int32 */
            priority: number;
            queue: string;
            replay_of?: string | null;
            replayed_by?: string | null;
            result: components["schemas"]["AnyValue"];
            result_bytes?: number | null;
            retry: components["schemas"]["Retry"];
            retry_target?: string | null;
            run_at: components["schemas"]["Timestamp"];
            running?: components["schemas"]["Running"] | null;
            started_at?: components["schemas"]["Timestamp"] | null;
            state: string;
            timeout_seconds: components["schemas"]["Seconds"];
            type: string;
            unique?: components["schemas"]["Unique"] | null;
            /** Format: int64 */
            weight: number;
            windows?: components["schemas"]["Window"][];
        };
        JobChange: {
            at: components["schemas"]["Timestamp"];
            /** Format: int64 */
            attempt: number;
            error_reason?: components["schemas"]["Reason"] | null;
            id: string;
            phase: string;
            progress?: components["schemas"]["Progress"] | null;
            queue: string;
            /** Format: int64 */
            revision: number;
            run_at?: components["schemas"]["Timestamp"] | null;
            state: string;
            type: string;
            worker?: string | null;
        };
        JobError: {
            message?: string | null;
            reason: components["schemas"]["Reason"];
            /** Format: int64 */
            status?: number | null;
        };
        JobFilter: {
            attribute?: {
                [key: string]: components["schemas"]["AttributeValue"];
            } | null;
            created_from?: components["schemas"]["Timestamp"] | null;
            created_to?: components["schemas"]["Timestamp"] | null;
            data?: {
                [key: string]: components["schemas"]["AttributeValue"];
            } | null;
            due_from?: components["schemas"]["Timestamp"] | null;
            due_to?: components["schemas"]["Timestamp"] | null;
            ended_from?: components["schemas"]["Timestamp"] | null;
            ended_to?: components["schemas"]["Timestamp"] | null;
            error_contains?: string | null;
            error_pattern?: string | null;
            error_reason?: components["schemas"]["Words"] | null;
            id?: components["schemas"]["Words"] | null;
            /** Format: int64 */
            max_attempt?: number | null;
            /** Format: int64 */
            min_attempt?: number | null;
            phase?: components["schemas"]["Words"] | null;
            queue?: string | null;
            started_from?: components["schemas"]["Timestamp"] | null;
            started_to?: components["schemas"]["Timestamp"] | null;
            state?: components["schemas"]["Words"] | null;
            type?: string | null;
            worker?: string | null;
        };
        JobId: string;
        JobOrigin: {
            event?: string | null;
            occurrence?: components["schemas"]["Timestamp"] | null;
            schedule?: string | null;
            source?: string | null;
            trigger?: string | null;
        };
        JobPage: {
            jobs: components["schemas"]["Job"][];
            next_cursor?: string | null;
            sorted?: components["schemas"]["SortedJobs"] | null;
            unreadable?: string[];
        };
        JobPatch: {
            data?: components["schemas"]["AnyValue"];
            expires_at?: components["schemas"]["Timestamp"] | null;
            /** Format: int32 */
            priority?: number | null;
            run_at?: components["schemas"]["Timestamp"] | null;
            windows?: components["schemas"]["Window"][] | null;
        };
        JobType: {
            attributes?: {
                [key: string]: string;
            };
            callback_signing_secret?: components["schemas"]["Secrets"];
            /** Format: uri */
            callback_url?: string | null;
            changed_secrets?: string[] | null;
            /** Format: int64 */
            concurrency?: number | null;
            deadline_seconds?: components["schemas"]["Seconds"] | null;
            delivery?: components["schemas"]["Delivery"];
            headers?: {
                [key: string]: string;
            };
            hold_slot_until?: components["schemas"]["HoldSlotUntil"];
            keep_result?: components["schemas"]["KeepResult"];
            lease_seconds?: components["schemas"]["Seconds"];
            /** Format: int64 */
            max_attempts?: number | null;
            /** Format: int64 */
            max_releases?: number;
            name: string;
            on_response_timeout?: components["schemas"]["OnResponseTimeout"];
            /** Format: int32 */
            priority?: number;
            queue?: components["schemas"]["QueueName"];
            response_timeout_seconds?: components["schemas"]["Seconds"];
            retention_seconds?: components["schemas"]["Seconds"];
            retry?: components["schemas"]["Retry"];
            retry_after_restart?: boolean;
            retry_targets?: {
                [key: string]: string;
            };
            secrets?: string[] | null;
            start?: components["schemas"]["Start"];
            target?: components["schemas"]["TargetConfig"] | null;
            timeout_seconds?: components["schemas"]["Seconds"];
            /** Format: int64 */
            version: number;
            /** Format: int64 */
            weight?: number;
            windows?: components["schemas"]["Window"][];
        };
        JobTypeChange: {
            type: string;
            /** Format: int64 */
            version?: number | null;
        };
        JobTypePage: {
            job_types: components["schemas"]["JobType"][];
            next_cursor?: string | null;
        };
        KeepResult: ("none" | "once") | components["schemas"]["KeepResultSeconds"];
        KeepResultSeconds: {
            seconds: number;
        };
        LambdaTarget: {
            function: string;
            invocation?: components["schemas"]["Invocation"] | null;
        };
        Lease: {
            /** Format: int64 */
            attempt: number;
            expires_at: components["schemas"]["Timestamp"];
            job: components["schemas"]["Job"];
            token: string;
        };
        LeaseRequest: {
            lease_seconds?: components["schemas"]["Seconds"] | null;
            /** Format: int64 */
            max?: number | null;
            max_pause_seconds?: components["schemas"]["Seconds"] | null;
            /** Format: int64 */
            min?: number | null;
            queue?: string | null;
            reports?: components["schemas"]["Report"][] | null;
            request_id?: string | null;
            types?: string[] | null;
            wait_seconds?: components["schemas"]["Seconds"] | null;
            worker?: string | null;
        };
        Leases: {
            leases: components["schemas"]["Lease"][];
            reports: components["schemas"]["Reported"][];
            retry_after_seconds?: components["schemas"]["Seconds"] | null;
            stop?: boolean;
        };
        LeftOut: {
            /** Format: int64 */
            jobs?: number | null;
            reason: string;
        };
        Limits: {
            /** Format: int64 */
            answer_bytes?: number | null;
            /** Format: int64 */
            batch_events: number;
            /** Format: int64 */
            batch_jobs: number;
            /** Format: int64 */
            batch_request_bytes: number;
            /** Format: int64 */
            checkpoint_bytes: number;
            /** Format: int64 */
            data_bytes: number;
            /** Format: int64 */
            error_bytes: number;
            /** Format: int64 */
            leases: number;
            /** Format: int64 */
            log_lines: number;
            /** Format: int64 */
            message_bytes: number;
            /** Format: int64 */
            page_items: number;
            /** Format: int64 */
            reports: number;
            /** Format: int64 */
            request_bytes: number;
            wait_seconds: components["schemas"]["Seconds"];
        };
        /** @enum {string} */
        LogLevel: "trace" | "debug" | "info" | "warn" | "error";
        LogLine: {
            /** Format: int64 */
            attempt: number;
            cut?: boolean;
            fields?: {
                [key: string]: components["schemas"]["AnyValue"];
            } | null;
            level: components["schemas"]["LogLevel"];
            /** Format: int64 */
            number: number;
            text: string;
            time: components["schemas"]["Timestamp"];
        };
        LogPage: {
            /** Format: int64 */
            dropped: number;
            lines: components["schemas"]["LogLine"][];
            next_cursor?: string | null;
        };
        Matcher: {
            all?: components["schemas"]["Matcher"][] | null;
            any?: components["schemas"]["Matcher"][] | null;
            attribute?: {
                [key: string]: components["schemas"]["Condition"];
            } | null;
            not?: components["schemas"]["Matcher"] | null;
            priority?: components["schemas"]["Condition"] | null;
            type?: components["schemas"]["Condition"] | null;
        };
        /** @enum {string} */
        Merged: "replaced" | "debounced";
        /** @enum {string} */
        MergePolicy: "last" | "first";
        /** @enum {string} */
        Missed: "skip" | "one" | "all";
        NewJob: {
            attributes?: {
                [key: string]: unknown;
            } | null;
            callback_url?: string | null;
            correlation_key?: string | null;
            critical?: boolean | null;
            data: components["schemas"]["AnyValue"];
            deadline_seconds?: components["schemas"]["Seconds"] | null;
            delay_seconds?: components["schemas"]["Seconds"] | null;
            expires_at?: components["schemas"]["Timestamp"] | null;
            headers?: {
                [key: string]: string;
            } | null;
            id?: string | null;
            keep_result?: components["schemas"]["KeepResult"] | null;
            /** Format: int64 */
            max_attempts?: number | null;
            /** Format: int32 */
            priority?: number | null;
            retry?: components["schemas"]["Retry"] | null;
            run_at?: components["schemas"]["Timestamp"] | null;
            timeout_seconds?: components["schemas"]["Seconds"] | null;
            type?: string | null;
            unique?: components["schemas"]["Unique"] | null;
            /** Format: int64 */
            weight?: number | null;
            windows?: components["schemas"]["Window"][] | null;
        };
        NewJobs: {
            jobs: components["schemas"]["NewJob"][];
        };
        NewLogLine: {
            fields?: {
                [key: string]: components["schemas"]["AnyValue"];
            } | null;
            level?: components["schemas"]["LogLevel"] | null;
            text: string;
            time?: components["schemas"]["Timestamp"] | null;
        };
        NewSchedule: {
            anchor?: components["schemas"]["Timestamp"] | null;
            attributes?: {
                [key: string]: unknown;
            } | null;
            callback_url?: string | null;
            critical?: boolean | null;
            cron?: string | null;
            data?: components["schemas"]["AnyValue"];
            deadline_seconds?: components["schemas"]["Seconds"] | null;
            ends_at?: components["schemas"]["Timestamp"] | null;
            every_seconds?: components["schemas"]["Seconds"] | null;
            expires_after_seconds?: components["schemas"]["Seconds"] | null;
            headers?: {
                [key: string]: string;
            } | null;
            keep_result?: components["schemas"]["KeepResult"] | null;
            /** Format: int64 */
            max_attempts?: number | null;
            /** Format: int64 */
            max_missed?: number | null;
            missed?: components["schemas"]["Missed"] | null;
            paused?: boolean | null;
            /** Format: int32 */
            priority?: number | null;
            retry?: components["schemas"]["Retry"] | null;
            starts_at?: components["schemas"]["Timestamp"] | null;
            timeout_seconds?: components["schemas"]["Seconds"] | null;
            type: components["schemas"]["TypeName"];
            tz?: string | null;
            unique?: components["schemas"]["Unique"] | null;
            /** Format: int64 */
            weight?: number | null;
            windows?: components["schemas"]["Window"][] | null;
        };
        NewSchedulePatch: {
            anchor?: components["schemas"]["Timestamp"] | null;
            attributes?: {
                [key: string]: unknown;
            } | null;
            callback_url?: string | null;
            critical?: boolean | null;
            cron?: string | null;
            data?: components["schemas"]["AnyValue"];
            deadline_seconds?: components["schemas"]["Seconds"] | null;
            ends_at?: components["schemas"]["Timestamp"] | null;
            every_seconds?: components["schemas"]["Seconds"] | null;
            expires_after_seconds?: components["schemas"]["Seconds"] | null;
            headers?: {
                [key: string]: string;
            } | null;
            keep_result?: null | Record<string, never> | string;
            /** Format: int64 */
            max_attempts?: number | null;
            /** Format: int64 */
            max_missed?: number | null;
            missed?: components["schemas"]["Missed"] | null;
            paused?: boolean | null;
            /** Format: int32 */
            priority?: number | null;
            retry?: null | Record<string, never>;
            starts_at?: components["schemas"]["Timestamp"] | null;
            timeout_seconds?: components["schemas"]["Seconds"] | null;
            type?: components["schemas"]["TypeName"];
            tz?: string | null;
            unique?: null | Record<string, never>;
            /** Format: int64 */
            weight?: number | null;
            windows?: components["schemas"]["Window"][] | null;
        };
        NewToken: {
            expires_at?: components["schemas"]["Timestamp"] | null;
            name: string;
            queues?: string[] | null;
            scopes: string[];
            types?: string[] | null;
        };
        Occurrence: {
            at: components["schemas"]["Timestamp"];
            job: string;
        };
        /** @enum {string} */
        OnConflict: "keep" | "replace";
        /** @enum {string} */
        OnFailure: "hold" | "run";
        /** @enum {string} */
        OnResponseTimeout: "fail" | "wait";
        Operation: {
            created_at: components["schemas"]["Timestamp"];
            /** Format: int64 */
            done: number;
            dry_run?: boolean;
            ended_at?: components["schemas"]["Timestamp"] | null;
            error?: string | null;
            id: string;
            kind: components["schemas"]["BulkKind"];
            /** Format: int64 */
            matched: number;
            /** Format: int64 */
            refused: number;
            sample?: string[];
            /** Format: int64 */
            skipped?: number;
            skipped_jobs?: components["schemas"]["SkippedJob"][];
            state: string;
            unreadable?: string[];
        };
        OperationAnswer: {
            operation: components["schemas"]["Operation"];
        };
        /** @enum {string} */
        OrderKind: "time" | "priority";
        OriginalJob: {
            attributes: {
                [key: string]: components["schemas"]["AttributeValue"];
            };
            data?: components["schemas"]["AnyValue"];
            /** Format: int64 */
            max_attempts?: number | null;
            /** Format: int32 */
            priority: number;
            timeout_seconds?: components["schemas"]["Seconds"] | null;
            /** Format: int64 */
            weight?: number | null;
        };
        OtherServer: {
            name: string;
            url: string;
        };
        OverviewMinute: {
            at: components["schemas"]["Timestamp"];
            /** Format: int64 */
            enqueued?: number | null;
            /** Format: int64 */
            failed: number;
            /** Format: int64 */
            finished: number;
            /** Format: int64 */
            ready: number;
            /** Format: int64 */
            running: number;
        };
        OverviewPage: {
            at: components["schemas"]["Timestamp"];
            next_cursor?: string | null;
            queues: components["schemas"]["QueueOverview"][];
        };
        Plugin: {
            health: components["schemas"]["PluginHealth"];
            /** Format: int64 */
            live: number;
            name: string;
            /** Format: int64 */
            pushed?: number | null;
            recording?: components["schemas"]["PluginRecording"] | null;
            retry?: components["schemas"]["Description"] | null;
            roles: components["schemas"]["Role"][];
            runnable: boolean;
            /** Format: int64 */
            shadow?: number | null;
            shadow_health?: components["schemas"]["PluginHealth"] | null;
            throttler?: components["schemas"]["Description"] | null;
            used_by: components["schemas"]["PluginUser"][];
            /** Format: int64 */
            version: number;
        };
        PluginCallFault: {
            kind: string;
            message: string;
        };
        PluginCallFilter: {
            action?: components["schemas"]["DecidedAction"] | null;
            attributes?: {
                [key: string]: string;
            } | null;
            job?: string | null;
            queue?: string | null;
            reason?: string | null;
            type?: string | null;
        };
        PluginCallLogLine: {
            level: string;
            message: string;
        };
        PluginCalls: {
            redact?: string[] | null;
            store?: boolean | null;
        };
        PluginCode: {
            engine: string;
            target: string;
        };
        PluginDifferences: {
            /** Format: int64 */
            compared: number;
            differences: components["schemas"]["Difference"][];
            /** Format: int64 */
            different: number;
            /** Format: int64 */
            failed: number;
            /** Format: int64 */
            missed: number;
            /** Format: int64 */
            version?: number | null;
        };
        PluginFault: {
            at: components["schemas"]["Timestamp"];
            kind: string;
            message: string;
            role: components["schemas"]["Role"];
            shadow: boolean;
            /** Format: int64 */
            version: number;
        };
        PluginFaults: {
            faults: components["schemas"]["RecordedPluginFault"][];
        };
        PluginHealth: {
            /** Format: int64 */
            calls: number;
            failing: boolean;
            /** Format: int64 */
            faults: number;
            faults_by_kind: {
                [key: string]: number;
            };
            last_fault?: components["schemas"]["PluginFault"] | null;
            last_usage?: components["schemas"]["PluginUsage"] | null;
        };
        PluginLogLine: {
            at: components["schemas"]["Timestamp"];
            level: string;
            message: string;
            /** Format: int64 */
            number: number;
            role: components["schemas"]["Role"];
            /** Format: int64 */
            version: number;
        };
        PluginLogs: {
            logs: components["schemas"]["PluginLogLine"][];
        };
        PluginName: string;
        PluginPage: {
            next_cursor?: string | null;
            plugins: components["schemas"]["Plugin"][];
        };
        PluginPrune: {
            /** Format: int64 */
            keep?: number | null;
        };
        PluginRecording: {
            filter: components["schemas"]["PluginCallFilter"];
            until: components["schemas"]["Timestamp"];
        };
        PluginRecordingRequest: {
            filter?: components["schemas"]["PluginCallFilter"] | null;
            /** Format: int64 */
            for_seconds?: number | null;
        };
        PluginRollback: {
            /** Format: int64 */
            version?: number | null;
        };
        PluginShadow: {
            /** Format: int64 */
            version: number;
        };
        PluginUsage: {
            /** Format: int64 */
            fuel?: number | null;
            /** Format: int64 */
            host_calls: number;
            /** Format: int64 */
            memory_bytes: number;
            /** Format: double */
            took_seconds: number;
        };
        PluginUser: {
            kind: string;
            name: string;
        };
        PluginVersion: {
            /** Format: int64 */
            bytes: number;
            compiled: components["schemas"]["PluginCode"][];
            live: boolean;
            /** Format: int64 */
            number: number;
            pushed_at: components["schemas"]["Timestamp"];
            retry?: components["schemas"]["Description"] | null;
            roles: components["schemas"]["Role"][];
            sha256: string;
            shadow: boolean;
            throttler?: components["schemas"]["Description"] | null;
        };
        PluginVersionPage: {
            next_cursor?: string | null;
            versions: components["schemas"]["PluginVersion"][];
        };
        Problem: {
            code: string;
            detail: string;
            error?: components["schemas"]["JobError"] | null;
            field?: string | null;
            holder?: string | null;
            instance?: string | null;
            reasons?: string[] | null;
            state?: string | null;
            /** Format: int64 */
            status: number;
            title: string;
            type: string;
        };
        Progress: {
            note?: string | null;
            /** Format: double */
            percent: number;
        };
        PrunedPlugin: {
            kept: number[];
            removed: number[];
        };
        Pull: {
            pull: boolean;
        };
        Push: {
            basic_auth?: components["schemas"]["BasicAuth"] | null;
            complete?: components["schemas"]["Complete"] | null;
            encoding?: components["schemas"]["PushEncoding"] | null;
            headers?: {
                [key: string]: string;
            } | null;
            signing_secret?: components["schemas"]["Secrets"] | null;
            url: string;
        };
        PushCallback: {
            token: string;
            url: string;
        };
        /** @enum {string} */
        PushEncoding: "json" | "msgpack";
        PushFailure: {
            error?: components["schemas"]["AnyValue"];
            message: string;
        };
        PushRequest: {
            /** Format: int64 */
            attempt: number;
            attributes: {
                [key: string]: components["schemas"]["AttributeValue"];
            };
            callback: components["schemas"]["PushCallback"];
            checkpoint?: components["schemas"]["AnyValue"];
            correlation_key?: string | null;
            data: components["schemas"]["AnyValue"];
            headers?: {
                [key: string]: string;
            } | null;
            id: components["schemas"]["JobId"];
            /** Format: int64 */
            max_attempts: number;
            type: components["schemas"]["TypeName"];
        };
        Quantiles: {
            /** Format: double */
            p50: number;
            /** Format: double */
            p95: number;
            /** Format: double */
            p99: number;
        };
        Queue: {
            ageing_seconds?: components["schemas"]["Seconds"] | null;
            /** Format: int64 */
            concurrency?: number | null;
            constraints?: components["schemas"]["Constraint"][];
            name: string;
            order?: components["schemas"]["OrderKind"];
            order_step_seconds?: components["schemas"]["Seconds"];
            partition_by?: string | null;
            partition_then_by?: string | null;
            paused: boolean;
            plugin_calls?: components["schemas"]["PluginCalls"] | null;
            status?: components["schemas"]["QueueStatus"] | null;
            strict_order?: boolean | null;
            throttler?: components["schemas"]["Throttler"] | null;
            /** Format: int64 */
            version: number;
        };
        QueueChange: {
            queue: string;
            /** Format: int64 */
            version?: number | null;
        };
        QueueConfig: {
            ageing_seconds?: components["schemas"]["Seconds"] | null;
            /** Format: int64 */
            concurrency?: number | null;
            constraints?: components["schemas"]["Constraint"][] | null;
            order?: components["schemas"]["OrderKind"] | null;
            order_step_seconds?: components["schemas"]["Seconds"] | null;
            partition_by?: string | null;
            partition_then_by?: string | null;
            plugin_calls?: components["schemas"]["PluginCalls"] | null;
            strict_order?: boolean | null;
            throttler?: components["schemas"]["Throttler"] | null;
        };
        QueueConfigPatch: {
            ageing_seconds?: components["schemas"]["Seconds"] | null;
            /** Format: int64 */
            concurrency?: number | null;
            constraints?: components["schemas"]["Constraint"][] | null;
            order?: components["schemas"]["OrderKind"] | null;
            order_step_seconds?: components["schemas"]["Seconds"] | null;
            partition_by?: string | null;
            partition_then_by?: string | null;
            plugin_calls?: null | Record<string, never>;
            strict_order?: boolean | null;
            throttler?: null | Record<string, never>;
        };
        QueueExplanation: {
            constraints: components["schemas"]["ConstraintUse"][];
            /** Format: int64 */
            examined: number;
            held: components["schemas"]["HeldJobs"][];
            more: boolean;
            next_due_at?: components["schemas"]["Timestamp"] | null;
            reason: string;
            running: components["schemas"]["TypeUse"][];
            workers: components["schemas"]["TypeWorkers"][];
        };
        QueueName: string;
        QueueOverview: {
            /** Format: int64 */
            concurrency?: number | null;
            counted_at?: components["schemas"]["Timestamp"] | null;
            depth_at_least: boolean;
            /** Format: int64 */
            desired_workers: number;
            explained_at?: components["schemas"]["Timestamp"] | null;
            held: components["schemas"]["HeldJobs"][];
            minutes: components["schemas"]["OverviewMinute"][];
            name: string;
            oldest_due_at?: components["schemas"]["Timestamp"] | null;
            paused: boolean;
            phases: {
                [key: string]: number;
            };
            /** Format: int64 */
            running_weight: number;
            start_delay_seconds?: components["schemas"]["Quantiles"] | null;
            throughput: components["schemas"]["Throughput"];
            /** Format: double */
            time_to_empty_seconds?: number | null;
            /** Format: int64 */
            workers: number;
        };
        QueuePage: {
            next_cursor?: string | null;
            queues: components["schemas"]["Queue"][];
        };
        QueueStatus: {
            constraints: components["schemas"]["ConstraintUse"][];
            counted_at?: components["schemas"]["Timestamp"] | null;
            depth: {
                [key: string]: number;
            };
            depth_at_least?: boolean;
            /** Format: int64 */
            desired_workers: number;
            held: components["schemas"]["HeldJobs"][];
            /** Format: double */
            lateness_seconds: number;
            oldest_due_at?: components["schemas"]["Timestamp"] | null;
            phases?: {
                [key: string]: number;
            };
            /** Format: int64 */
            ready: number;
            /** Format: int64 */
            running_weight: number;
            /** Format: int64 */
            workers?: number;
        };
        Rate: {
            /** Format: int64 */
            burst?: number | null;
            /** Format: int64 */
            count: number;
            per_seconds: components["schemas"]["Seconds"];
        };
        /** @enum {string} */
        Reason: "failed" | "timeout" | "lease_expired" | "connection_lost" | "not_delivered" | "outcome_unknown" | "deadline";
        RecordedPluginCall: {
            answer?: components["schemas"]["AnyValue"];
            at: components["schemas"]["Timestamp"];
            call?: components["schemas"]["AnyValue"];
            decided: {
                [key: string]: number;
            };
            fault?: components["schemas"]["PluginCallFault"] | null;
            id: string;
            log: components["schemas"]["PluginCallLogLine"][];
            queue: string;
            reason: string;
            redacted: string[];
            role: components["schemas"]["Role"];
            shadow: boolean;
            usage: components["schemas"]["PluginUsage"];
            /** Format: int64 */
            version: number;
        };
        RecordedPluginCalls: {
            calls: components["schemas"]["RecordedPluginCall"][];
        };
        RecordedPluginFault: {
            at: components["schemas"]["Timestamp"];
            call: components["schemas"]["AnyValue"];
            kind: string;
            message: string;
            role: components["schemas"]["Role"];
            shadow: boolean;
            /** Format: int64 */
            version: number;
        };
        Registration: {
            /** Format: int64 */
            capacity?: number | null;
            queue?: string | null;
            types?: string[] | null;
        };
        RemovedJob: {
            id: string;
        };
        ReplayDeadLetters: {
            cursor?: string | null;
            trigger?: components["schemas"]["TriggerName"] | null;
        };
        Replayed: components["schemas"]["TriggerAction"] | components["schemas"]["ReplayedAction"];
        ReplayedAction: {
            action: string;
        };
        ReplayedDeadLetters: {
            next_cursor?: string | null;
            /** Format: int64 */
            remaining: number;
            /** Format: int64 */
            replayed: number;
        };
        ReplayWith: {
            again?: boolean | null;
            attributes?: {
                [key: string]: components["schemas"]["AttributeValue"];
            } | null;
            data?: components["schemas"]["AnyValue"];
            expires_at?: components["schemas"]["Timestamp"] | null;
            /** Format: int32 */
            priority?: number | null;
            /** Format: int64 */
            weight?: number | null;
            windows?: components["schemas"]["Window"][] | null;
        };
        Report: {
            /** Format: int64 */
            attempt: number;
            checkpoint?: components["schemas"]["AnyValue"];
            delay_seconds?: components["schemas"]["Seconds"] | null;
            error?: components["schemas"]["AnyValue"];
            finished_at?: components["schemas"]["Timestamp"] | null;
            id?: string | null;
            log?: components["schemas"]["NewLogLine"][] | null;
            message?: string | null;
            reason?: components["schemas"]["Reason"] | null;
            result?: components["schemas"]["AnyValue"];
            retryable?: boolean | null;
            run_at?: components["schemas"]["Timestamp"] | null;
            status: components["schemas"]["Status"];
            token?: string | null;
            type?: string | null;
        };
        Reported: {
            error?: components["schemas"]["Problem"] | null;
            id: string;
            state?: string | null;
            /** Format: int64 */
            status: number;
        };
        Retry: components["schemas"]["RetryExponential"] | components["schemas"]["RetryPlugin"];
        RetryExponential: {
            config?: components["schemas"]["Backoff"] | null;
            /** @enum {string} */
            strategy: "exponential";
        };
        RetryPlugin: {
            config?: Record<string, never> | null;
            plugin: string;
        };
        /** @enum {string} */
        Role: "throttler" | "retry";
        Running: {
            cancel: boolean;
            lease_expires_at: components["schemas"]["Timestamp"];
            progress?: components["schemas"]["Progress"] | null;
            timeout_at: components["schemas"]["Timestamp"];
            /** Format: int64 */
            waited_ms?: number | null;
            worker?: string | null;
        };
        Schedule: {
            anchor?: components["schemas"]["Timestamp"] | null;
            attributes?: {
                [key: string]: unknown;
            } | null;
            callback_url?: string | null;
            critical?: boolean | null;
            cron?: string | null;
            data: components["schemas"]["AnyValue"];
            deadline_seconds?: components["schemas"]["Seconds"] | null;
            ends_at?: components["schemas"]["Timestamp"] | null;
            every_seconds?: components["schemas"]["Seconds"] | null;
            expires_after_seconds?: components["schemas"]["Seconds"] | null;
            headers?: {
                [key: string]: string;
            } | null;
            keep_result?: components["schemas"]["KeepResult"] | null;
            last_error?: components["schemas"]["ScheduleError"] | null;
            last_job?: string | null;
            last_occurrence?: components["schemas"]["Timestamp"] | null;
            /** Format: int64 */
            max_attempts?: number | null;
            /** Format: int64 */
            max_missed?: number;
            missed?: components["schemas"]["Missed"];
            /** Format: int64 */
            missed_count: number;
            name: string;
            next: components["schemas"]["Timestamp"][];
            paused?: boolean;
            previous?: components["schemas"]["Occurrence"][];
            /** Format: int32 */
            priority?: number | null;
            retry?: components["schemas"]["Retry"] | null;
            starts_at?: components["schemas"]["Timestamp"] | null;
            timeout_seconds?: components["schemas"]["Seconds"] | null;
            type: components["schemas"]["TypeName"];
            tz?: string | null;
            unique?: components["schemas"]["Unique"] | null;
            /** Format: int64 */
            version: number;
            /** Format: int64 */
            weight?: number | null;
            windows?: components["schemas"]["Window"][] | null;
        };
        ScheduleConfig: {
            anchor?: components["schemas"]["Timestamp"] | null;
            attributes?: {
                [key: string]: unknown;
            } | null;
            callback_url?: string | null;
            critical?: boolean | null;
            cron?: string | null;
            deadline_seconds?: components["schemas"]["Seconds"] | null;
            ends_at?: components["schemas"]["Timestamp"] | null;
            every_seconds?: components["schemas"]["Seconds"] | null;
            expires_after_seconds?: components["schemas"]["Seconds"] | null;
            headers?: {
                [key: string]: string;
            } | null;
            keep_result?: components["schemas"]["KeepResult"] | null;
            /** Format: int64 */
            max_attempts?: number | null;
            /** Format: int64 */
            max_missed?: number;
            missed?: components["schemas"]["Missed"];
            paused?: boolean;
            /** Format: int32 */
            priority?: number | null;
            retry?: components["schemas"]["Retry"] | null;
            starts_at?: components["schemas"]["Timestamp"] | null;
            timeout_seconds?: components["schemas"]["Seconds"] | null;
            type: components["schemas"]["TypeName"];
            tz?: string | null;
            unique?: components["schemas"]["Unique"] | null;
            /** Format: int64 */
            weight?: number | null;
            windows?: components["schemas"]["Window"][] | null;
        };
        ScheduleError: {
            at: components["schemas"]["Timestamp"];
            message: string;
            occurrence: components["schemas"]["Timestamp"];
        };
        SchedulePage: {
            next_cursor?: string | null;
            schedules: components["schemas"]["Schedule"][];
        };
        Seconds: number;
        Secrets: string | string[];
        ServerView: {
            deployment_mode: string;
            simulate: boolean;
            stream: boolean;
            version: string;
        };
        Session: {
            authenticated: boolean;
            console: components["schemas"]["ConsoleView"];
            name?: string | null;
            queues?: string[] | null;
            scopes: string[];
            server?: components["schemas"]["ServerView"] | null;
            sign_in: string[];
            signed_in_by?: string | null;
            types?: string[] | null;
        };
        Setting: {
            about: string;
            from: string;
            name: string;
            value: components["schemas"]["AnyValue"];
        };
        SettingsView: {
            settings: components["schemas"]["Setting"][];
        };
        ShadowDecision: {
            action: string;
            reason?: string | null;
            until?: components["schemas"]["Timestamp"] | null;
        };
        Simulated: {
            changed: components["schemas"]["SimulatedRun"];
            current: components["schemas"]["SimulatedRun"];
            differences: components["schemas"]["SimulatedDifference"][];
            /** Format: int64 */
            different_jobs: number;
            from: components["schemas"]["Timestamp"];
            /** Format: int64 */
            jobs: number;
            left_out: components["schemas"]["LeftOut"][];
            recorded?: components["schemas"]["SimulatedRun"] | null;
            stopped_early: boolean;
            /** Format: int64 */
            workers: number;
        };
        SimulatedDifference: {
            /** Format: double */
            at_seconds: number;
            changed: string;
            current: string;
            job: string;
            value: string;
        };
        SimulatedGroup: {
            /** Format: int64 */
            jobs: number;
            /** Format: double */
            share: number;
            start_delay_seconds: components["schemas"]["Quantiles"];
            value: string;
        };
        SimulatedPoint: {
            /** Format: double */
            at: number;
            /** Format: int64 */
            limit?: number | null;
            /** Format: int64 */
            running: number;
            /** Format: int64 */
            waiting: number;
        };
        SimulatedRun: {
            /** Format: double */
            drained_after_seconds?: number | null;
            /** Format: int64 */
            expired: number;
            /** Format: int64 */
            failed: number;
            /** Format: int64 */
            finished: number;
            groups: components["schemas"]["SimulatedGroup"][];
            run_seconds: components["schemas"]["Quantiles"];
            series: components["schemas"]["SimulatedSeries"];
            start_delay_seconds: components["schemas"]["Quantiles"];
            /** Format: double */
            throughput_per_second: number;
            /** Format: double */
            utilization?: number | null;
        };
        SimulatedSeries: {
            points: components["schemas"]["SimulatedPoint"][];
            /** Format: double */
            step_seconds: number;
        };
        Simulation: {
            by?: string | null;
            /** Format: double */
            over_seconds?: number | null;
            queue?: components["schemas"]["QueueConfig"] | null;
            /** Format: int64 */
            throttler_version?: number | null;
            types?: {
                [key: string]: components["schemas"]["TypeConfig"];
            } | null;
            /** Format: int32 */
            workers?: number | null;
        };
        SkippedChanges: {
            /** Format: int64 */
            changes?: number | null;
        };
        SkippedJob: {
            holder: string;
            id: string;
            reason: string;
        };
        SnsTarget: {
            topic_arn: string;
        };
        SortedJobs: {
            /** Format: int64 */
            compared: number;
            complete: boolean;
        };
        SqsTarget: {
            queue_url: string;
        };
        /** @enum {string} */
        Start: "claim" | "plain";
        /** @enum {string} */
        Status: "succeeded" | "failed" | "released" | "snoozed";
        StreamEvent: components["schemas"]["JobChange"] | components["schemas"]["RemovedJob"] | components["schemas"]["QueueChange"] | components["schemas"]["JobTypeChange"] | components["schemas"]["WorkerChange"] | components["schemas"]["StreamReady"] | components["schemas"]["SkippedChanges"];
        StreamReady: {
            resumed: boolean;
        };
        TargetConfig: components["schemas"]["Pull"] | components["schemas"]["Push"] | components["schemas"]["ExternalTarget"];
        Template: unknown;
        Test: {
            eq?: string | number | boolean;
            exists?: boolean | null;
            gt?: string | number | boolean;
            gte?: string | number | boolean;
            in?: (string | number | boolean)[] | null;
            lt?: string | number | boolean;
            lte?: string | number | boolean;
            prefix?: string | null;
        };
        Throttler: {
            config?: Record<string, never> | null;
            on_failure?: components["schemas"]["OnFailure"] | null;
            plugin: components["schemas"]["PluginName"];
        };
        Throughput: {
            /** Format: double */
            enqueued_per_second?: number | null;
            /** Format: double */
            failed_per_second: number;
            /** Format: double */
            finished_per_second: number;
            /** Format: double */
            over_seconds: number;
        };
        /**
         * Format: date-time
         * @example 2026-01-31T08:00:00.000Z
         */
        Timestamp: string;
        Token: {
            created_at: components["schemas"]["Timestamp"];
            expires_at?: components["schemas"]["Timestamp"] | null;
            id: string;
            last_used_at?: components["schemas"]["Timestamp"] | null;
            name: string;
            queues?: string[] | null;
            scopes: string[];
            token?: string | null;
            types?: string[] | null;
        };
        TokenPage: {
            next_cursor?: string | null;
            tokens: components["schemas"]["Token"][];
        };
        Trigger: {
            complete?: {
                [key: string]: components["schemas"]["Template"];
            };
            enqueue?: {
                [key: string]: components["schemas"]["Template"];
            };
            filter?: components["schemas"]["EventFilter"];
            job_types?: string[];
            name: string;
            status?: components["schemas"]["TriggerStatus"] | null;
            /** Format: int64 */
            version: number;
        };
        TriggerAction: components["schemas"]["TriggerActionEnqueued"] | components["schemas"]["TriggerActionAlreadyEnqueued"] | components["schemas"]["TriggerActionCompleted"] | components["schemas"]["TriggerActionRecorded"] | components["schemas"]["TriggerActionAlreadyProcessed"] | components["schemas"]["TriggerActionLate"] | components["schemas"]["TriggerActionPending"] | components["schemas"]["TriggerActionDeadLettered"] | components["schemas"]["TriggerActionDropped"];
        TriggerActionAlreadyEnqueued: {
            /** @enum {string} */
            action: "already_enqueued";
            job: components["schemas"]["JobId"];
        };
        TriggerActionAlreadyProcessed: {
            /** @enum {string} */
            action: "already_processed";
            job: components["schemas"]["JobId"];
        };
        TriggerActionCompleted: {
            /** @enum {string} */
            action: "completed";
            job: components["schemas"]["JobId"];
        };
        TriggerActionDeadLettered: {
            /** @enum {string} */
            action: "dead_lettered";
            letter: string;
            reason: string;
        };
        TriggerActionDropped: {
            /** @enum {string} */
            action: "dropped";
            reason: string;
        };
        TriggerActionEnqueued: {
            /** @enum {string} */
            action: "enqueued";
            job: components["schemas"]["JobId"];
            type: components["schemas"]["TypeName"];
        };
        TriggerActionLate: {
            /** @enum {string} */
            action: "late";
            job: components["schemas"]["JobId"];
        };
        TriggerActionPending: {
            /** @enum {string} */
            action: "pending";
            until: components["schemas"]["Timestamp"];
        };
        TriggerActionRecorded: {
            /** @enum {string} */
            action: "recorded";
            job: components["schemas"]["JobId"];
        };
        TriggerConfig: {
            complete?: {
                [key: string]: components["schemas"]["Template"];
            } | null;
            enqueue?: {
                [key: string]: components["schemas"]["Template"];
            } | null;
            filter?: components["schemas"]["EventFilter"] | null;
            job_types?: string[] | null;
        };
        TriggerName: string;
        TriggerPage: {
            next_cursor?: string | null;
            triggers: components["schemas"]["Trigger"][];
        };
        TriggerStatus: {
            /** Format: int64 */
            dead_letters: number;
            /** Format: int64 */
            enqueued: number;
            last_at?: components["schemas"]["Timestamp"] | null;
            /** Format: int64 */
            matched: number;
            recent: components["schemas"]["HandledEvent"][];
            since: components["schemas"]["Timestamp"];
        };
        TriggerTrial: {
            action: string;
            job?: components["schemas"]["AnyValue"];
            reason?: string | null;
        };
        TypeConfig: {
            attributes?: {
                [key: string]: string;
            } | null;
            callback_signing_secret?: components["schemas"]["Secrets"] | null;
            /** Format: uri */
            callback_url?: string | null;
            /** Format: int64 */
            concurrency?: number | null;
            deadline_seconds?: components["schemas"]["Seconds"] | null;
            delivery?: components["schemas"]["Delivery"] | null;
            headers?: {
                [key: string]: string;
            } | null;
            hold_slot_until?: components["schemas"]["HoldSlotUntil"] | null;
            keep_result?: components["schemas"]["KeepResult"] | null;
            lease_seconds?: components["schemas"]["Seconds"] | null;
            /** Format: int64 */
            max_attempts?: number | null;
            /** Format: int64 */
            max_releases?: number | null;
            on_response_timeout?: components["schemas"]["OnResponseTimeout"] | null;
            /** Format: int32 */
            priority?: number | null;
            queue?: components["schemas"]["QueueName"] | null;
            response_timeout_seconds?: components["schemas"]["Seconds"] | null;
            retention_seconds?: components["schemas"]["Seconds"] | null;
            retry?: components["schemas"]["Retry"] | null;
            retry_after_restart?: boolean | null;
            retry_targets?: {
                [key: string]: string;
            } | null;
            start?: components["schemas"]["Start"] | null;
            target?: components["schemas"]["TargetConfig"] | null;
            timeout_seconds?: components["schemas"]["Seconds"] | null;
            /** Format: int64 */
            weight?: number | null;
            windows?: components["schemas"]["Window"][] | null;
        };
        TypeConfigPatch: {
            attributes?: {
                [key: string]: string;
            } | null;
            callback_signing_secret?: components["schemas"]["Secrets"] | null;
            /** Format: uri */
            callback_url?: string | null;
            /** Format: int64 */
            concurrency?: number | null;
            deadline_seconds?: components["schemas"]["Seconds"] | null;
            delivery?: components["schemas"]["Delivery"] | null;
            headers?: {
                [key: string]: string;
            } | null;
            hold_slot_until?: components["schemas"]["HoldSlotUntil"] | null;
            keep_result?: null | Record<string, never> | string;
            lease_seconds?: components["schemas"]["Seconds"] | null;
            /** Format: int64 */
            max_attempts?: number | null;
            /** Format: int64 */
            max_releases?: number | null;
            on_response_timeout?: components["schemas"]["OnResponseTimeout"] | null;
            /** Format: int32 */
            priority?: number | null;
            queue?: components["schemas"]["QueueName"] | null;
            response_timeout_seconds?: components["schemas"]["Seconds"] | null;
            retention_seconds?: components["schemas"]["Seconds"] | null;
            retry?: null | Record<string, never>;
            retry_after_restart?: boolean | null;
            retry_targets?: {
                [key: string]: string;
            } | null;
            start?: components["schemas"]["Start"] | null;
            target?: null | Record<string, never>;
            timeout_seconds?: components["schemas"]["Seconds"] | null;
            /** Format: int64 */
            weight?: number | null;
            windows?: components["schemas"]["Window"][] | null;
        };
        TypeName: string;
        TypeUse: {
            /** Format: int64 */
            jobs: number;
            /** Format: int64 */
            limit?: number | null;
            type: string;
            /** Format: int64 */
            weight: number;
        };
        TypeWorkers: {
            type: string;
            workers: components["schemas"]["WorkerStatus"];
        };
        Unique: {
            debounce?: components["schemas"]["Debounce"] | null;
            key: string;
            on_conflict?: components["schemas"]["OnConflict"] | null;
            period_seconds?: components["schemas"]["Seconds"] | null;
            while: components["schemas"]["UniqueWhile"];
        };
        /** @enum {string} */
        UniqueWhile: "scheduled" | "live";
        Window: {
            days?: ("mon" | "tue" | "wed" | "thu" | "fri" | "sat" | "sun")[] | null;
            from: string;
            to: string;
            tz?: string | null;
        };
        Words: string | string[];
        Worker: {
            /** Format: int64 */
            capacity?: number | null;
            draining: boolean;
            name: string;
            queue?: string | null;
            /** Format: int64 */
            running: number;
            seen_at: components["schemas"]["Timestamp"];
            stopping?: boolean;
            types?: string[];
        };
        WorkerChange: {
            change: string;
            worker: string;
        };
        WorkerHistory: {
            from?: components["schemas"]["Timestamp"] | null;
            points: components["schemas"]["WorkerHistoryPoint"][];
            /** Format: int64 */
            step_seconds: number;
        };
        WorkerHistoryPoint: {
            at: components["schemas"]["Timestamp"];
            /** Format: int64 */
            failed: number;
            /** Format: int64 */
            finished: number;
            /** Format: int64 */
            running: number;
        };
        WorkerPage: {
            next_cursor?: string | null;
            workers: components["schemas"]["Worker"][];
        };
        WorkerStatus: {
            /** Format: int64 */
            busy?: number | null;
            /** Format: int64 */
            capacity?: number | null;
            /** Format: int64 */
            draining?: number | null;
            /** Format: int64 */
            in_use: number;
            /** Format: int64 */
            known?: number | null;
            last_seen_at?: components["schemas"]["Timestamp"] | null;
            /** Format: int64 */
            polling?: number | null;
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
export type $defs = Record<string, never>;
export interface operations {
    delivery: {
        parameters: {
            query?: never;
            header?: {
                traceparent?: string;
                "webhook-id"?: string;
                "webhook-signature"?: string;
                "webhook-timestamp"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["PushRequest"];
                "application/msgpack": components["schemas"]["PushRequest"];
            };
        };
        responses: {
            "2XX": {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            429: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            489: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PushFailure"];
                };
            };
        };
    };
    ended: {
        parameters: {
            query?: never;
            header?: {
                traceparent?: string;
                "webhook-id"?: string;
                "webhook-signature"?: string;
                "webhook-timestamp"?: string;
            };
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Ended"];
                "application/msgpack": components["schemas"]["Ended"];
            };
        };
        responses: {
            "2XX": {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
        };
    };
}
