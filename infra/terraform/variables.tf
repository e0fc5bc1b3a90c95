# The parameters of ../template.yaml in the same order, and `name`, which replaces the stack's name.
# Warm throughput is missing: providers before 6 cannot express it.

variable "name" {
  type        = string
  default     = "tidegate"
  description = "Prefix of the names of queues, functions and log groups."
}

variable "code_bucket" {
  type        = string
  description = "The bucket with the functions' zips, in this region."
}

variable "code_prefix" {
  type        = string
  description = "Prefix of the zips' keys, a new one for each version."
}

variable "architecture" {
  type        = string
  default     = "arm64"
  description = "The processor; arm64 costs a fifth less."
  validation {
    condition     = contains(["arm64", "x86_64"], var.architecture)
    error_message = "architecture must be arm64 or x86_64."
  }
}

variable "admin_token" {
  type        = string
  default     = ""
  sensitive   = true
  description = "A first token with every right, as ID:HASH (see ../../docs/deploy-aws.md). Without it the API refuses every caller until a token is stored."
  validation {
    condition     = can(regex("^$|^[A-Za-z0-9]+:[A-Za-z0-9+/]{43}=$", var.admin_token))
    error_message = "admin_token must be a token's id, a colon, and the base64 of its secret's SHA-256."
  }
}

variable "encryption_key_parameter" {
  type        = string
  description = "Name of a SecureString parameter of Systems Manager, with the key that encrypts the secrets of targets in the table: 32 random bytes in base64 (openssl rand -base64 32). Several, separated by commas: the first encrypts, all decrypt."
  validation {
    condition     = can(regex("^(/[A-Za-z0-9_.-]+)+$", var.encryption_key_parameter))
    error_message = "encryption_key_parameter must be a name with a leading slash, such as /tidegate/key."
  }
}

variable "kms_key_arn" {
  type        = string
  default     = ""
  description = "A KMS key of your own for the table, the bucket and the queues; empty for AWS's own keys, which cost nothing."
  validation {
    condition     = can(regex("^$|^arn:[a-z0-9-]+:kms:[a-z0-9-]+:[0-9]{12}:key/.+$", var.kms_key_arn))
    error_message = "kms_key_arn must be the ARN of a key, or empty."
  }
}

variable "allowed_targets" {
  type        = list(string)
  default     = []
  description = "The only hosts that targets may have: api.example.com, *.example.com, 10.0.0.0/8. Empty: every host."
}

variable "allowed_callbacks" {
  type        = list(string)
  default     = []
  description = "The only hosts that a callback_url may have, in the same form. Empty: every host."
}

variable "private_targets" {
  type        = bool
  default     = false
  description = "Whether targets may have loopback and private addresses. In Lambda, loopback is the function's own runtime."
}

variable "public_url" {
  type        = string
  default     = ""
  description = "Start of callback URLs, for a domain in front of the function URL. A sign-in (oidc_client_id) needs it in any case."
  validation {
    condition     = can(regex("^$|^https?://.+", var.public_url))
    error_message = "public_url must start with https:// or http://, or be empty."
  }
}

variable "jwt_jwks_url" {
  type        = string
  default     = ""
  description = "URL of the public keys of an identity provider whose signed tokens the API accepts, too; with jwt_issuer and jwt_audience."
  validation {
    condition     = can(regex("^$|^https://.+", var.jwt_jwks_url))
    error_message = "jwt_jwks_url must start with https://, or be empty."
  }
}

variable "jwt_issuer" {
  type        = string
  default     = ""
  description = "Required `iss` of these tokens."
}

variable "jwt_audience" {
  type        = string
  default     = ""
  description = "Required `aud` of these tokens, alone or among others."
}

variable "jwt_scope_claim" {
  type        = string
  default     = "scope"
  description = "The claim with the scopes of these tokens; if it is missing, `scp` is used."
  validation {
    condition     = var.jwt_scope_claim != ""
    error_message = "jwt_scope_claim must name a claim."
  }
}

variable "oidc_client_id" {
  type        = string
  default     = ""
  description = "The console's client id at that provider, with which users sign in. Register public_url and /console/callback as its redirect URI."
}

variable "oidc_client_secret_parameter" {
  type        = string
  default     = ""
  description = "Name of a SecureString parameter of Systems Manager, with the secret of this client; empty if it has none."
  validation {
    condition     = can(regex("^$|^(/[A-Za-z0-9_.-]+)+$", var.oidc_client_secret_parameter))
    error_message = "oidc_client_secret_parameter must be a name with a leading slash, such as /tidegate/console, or empty."
  }
}

variable "oidc_scopes" {
  type        = string
  default     = "openid"
  description = "The scopes that a sign-in requests, with spaces between them: openid, and those with which the provider puts jwt_audience and the scopes of the API into the token."
  validation {
    condition     = contains(split(" ", var.oidc_scopes), "openid")
    error_message = "oidc_scopes must have the scope openid."
  }
}

variable "sqs_target_arns" {
  type        = list(string)
  default     = []
  description = "Queues that jobs may be delivered to."
}

variable "sns_target_arns" {
  type        = list(string)
  default     = []
  description = "Topics that jobs may be delivered to."
}

variable "event_bus_target_arns" {
  type        = list(string)
  default     = []
  description = "Event buses that jobs may be delivered to."
}

variable "lambda_target_arns" {
  type        = list(string)
  default     = []
  description = "Functions that jobs may be delivered to."
}

variable "console_title" {
  type        = string
  default     = "tidegate"
  description = "Title of the console."
  validation {
    condition     = length(var.console_title) >= 1 && length(var.console_title) <= 100
    error_message = "console_title must have 1 to 100 characters."
  }
}

variable "console_read_only" {
  type        = bool
  default     = false
  description = "Whether the console offers no changes. Tokens keep their scopes."
}

variable "console_page_url" {
  type        = string
  default     = ""
  description = "A page of your own, embedded in the console's first page."
  validation {
    condition     = can(regex("^$|^https?://.+", var.console_page_url))
    error_message = "console_page_url must start with https:// or http://, or be empty."
  }
}

variable "console_trace_url" {
  type        = string
  default     = ""
  description = "URL of a job's trace, with {trace_id} in place of the id; empty for no link."
  validation {
    condition     = can(regex("^$|^https?://.*\\{trace_id\\}.*$", var.console_trace_url))
    error_message = "console_trace_url must be a URL that contains {trace_id}, or be empty."
  }
}

variable "console_servers" {
  type        = list(string)
  default     = []
  description = "Consoles of other servers to link to, as eu=https://eu.example."
}

variable "max_data_bytes" {
  type        = number
  default     = 4194304
  description = "Maximum bytes of a job's data; a function URL accepts at most 6 MB and answers with at most 4.7 MB."
  validation {
    condition     = var.max_data_bytes >= 1024 && var.max_data_bytes <= 4500000
    error_message = "max_data_bytes must be 1024 to 4500000."
  }
}

variable "create_unknown_types" {
  type        = bool
  default     = false
  description = "Whether a job of an unknown type creates the type."
}

variable "table_name" {
  type        = string
  default     = ""
  description = "An existing table, for example a restored one; empty to create one."
}

variable "bucket_name" {
  type        = string
  default     = ""
  description = "An existing bucket; empty to create one."
}

variable "object_prefix" {
  type        = string
  default     = ""
  description = "Prefix of all object names in the bucket, with a slash at the end."
  validation {
    # Policies grant access to the names below this prefix.
    condition     = can(regex("^$|^([A-Za-z0-9][A-Za-z0-9._-]*/)+$", var.object_prefix))
    error_message = "object_prefix must be words of A-Z a-z 0-9 . _ - that begin with a letter or digit, each with a slash behind it, or be empty."
  }
}

variable "point_in_time_recovery" {
  type        = bool
  default     = true
  description = "Whether the table can be restored to any second of the last 35 days; costs about as much as the storage."
}

variable "deletion_protection" {
  type        = bool
  default     = true
  description = "Whether DynamoDB refuses to delete the table."
}

variable "log_retention_days" {
  type        = number
  default     = 14
  description = "Days for which logs are kept."
  validation {
    condition     = contains([1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653], var.log_retention_days)
    error_message = "log_retention_days must be one that CloudWatch has: 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288 or 3653."
  }
}

variable "log_level" {
  type        = string
  default     = "info"
  description = "Lowest level that is logged."
  validation {
    condition     = contains(["error", "warn", "info", "debug", "trace"], var.log_level)
    error_message = "log_level must be error, warn, info, debug or trace."
  }
}

variable "metrics_namespace" {
  type        = string
  default     = ""
  description = "CloudWatch namespace of the functions' own metrics; empty for none. Each metric of each queue and type costs 0.30 USD a month."
  validation {
    condition     = can(regex("^$|^[A-Za-z0-9._/#-][A-Za-z0-9._/#:-]{0,254}$", var.metrics_namespace)) && !startswith(var.metrics_namespace, "AWS/")
    error_message = "metrics_namespace must be 1 to 255 of A-Z a-z 0-9 . - _ / # : and not begin with AWS/ or a colon, or be empty."
  }
}

variable "enqueue_memory" {
  type        = number
  default     = 512
  description = "Memory of the API's function in MB; its processor share grows with it."
  validation {
    condition     = var.enqueue_memory >= 128 && var.enqueue_memory <= 10240
    error_message = "enqueue_memory must be 128 to 10240."
  }
}

variable "tick_memory" {
  type        = number
  default     = 512
  description = "Memory of `tick`, which runs plugins, and of `sweep`, in MB."
  validation {
    condition     = var.tick_memory >= 128 && var.tick_memory <= 10240
    error_message = "tick_memory must be 128 to 10240."
  }
}

variable "deliver_memory" {
  type        = number
  default     = 512
  description = "Memory of `deliver`, which calls the targets, in MB."
  validation {
    condition     = var.deliver_memory >= 128 && var.deliver_memory <= 10240
    error_message = "deliver_memory must be 128 to 10240."
  }
}

variable "shards" {
  type        = number
  default     = 1
  description = "Number of table partitions for the jobs of each queue and type. A partition accepts 1000 writes a second, and every tick reads all of them."
  validation {
    condition     = contains(range(1, 17), var.shards)
    error_message = "shards must be 1 to 16."
  }
}

variable "deliver_concurrency" {
  type        = number
  default     = 50
  description = "Maximum concurrent batches of deliveries, at least 2; 0 sets no limit, so that deliveries may use all concurrency of the account."
  validation {
    condition     = var.deliver_concurrency == 0 || (var.deliver_concurrency >= 2 && var.deliver_concurrency <= 1000)
    error_message = "deliver_concurrency must be 0 or 2 to 1000."
  }
}

variable "tick_concurrency" {
  type        = number
  default     = 0
  description = "Maximum concurrent batches of hints, and as many of timers, at least 2. Together they should stay below tick_reserved_concurrency, or ticks are throttled. 0 sets no limit and costs 0.35 USD a month less when idle."
  validation {
    condition     = var.tick_concurrency == 0 || (var.tick_concurrency >= 2 && var.tick_concurrency <= 1000)
    error_message = "tick_concurrency must be 0 or 2 to 1000."
  }
}

variable "tick_reserved_concurrency" {
  type        = number
  default     = 40
  description = "Concurrency reserved for `tick`, at least 2, so that slots are freed when the account has no concurrency left. 0 reserves none; an account with a quota of 10 allows only 0."
  validation {
    condition     = var.tick_reserved_concurrency == 0 || var.tick_reserved_concurrency >= 2
    error_message = "tick_reserved_concurrency must be 0 or at least 2."
  }
}

variable "sweep_reserved_concurrency" {
  type        = number
  default     = 2
  description = "Concurrency reserved for `sweep`, so that ticks cannot delay it; 0 reserves none."
  validation {
    condition     = var.sweep_reserved_concurrency >= 0
    error_message = "sweep_reserved_concurrency must be 0 or more."
  }
}

variable "enqueue_reserved_concurrency" {
  type        = number
  default     = 100
  description = "Concurrency reserved for the API, through which workers report, which is also its maximum: it bounds what a flood of requests costs. 0 reserves none and sets no limit."
  validation {
    condition     = var.enqueue_reserved_concurrency >= 0
    error_message = "enqueue_reserved_concurrency must be 0 or more."
  }
}

variable "plugins_reserved_concurrency" {
  type        = number
  default     = 2
  description = "Concurrency reserved for `plugins`, which is also its maximum; 0 reserves none and sets no limit."
  validation {
    condition     = var.plugins_reserved_concurrency >= 0
    error_message = "plugins_reserved_concurrency must be 0 or more."
  }
}

variable "deliver_reserved_concurrency" {
  type        = number
  default     = 0
  description = "Concurrency reserved for `deliver`, which is also its maximum, so at least deliver_concurrency; 0 reserves none and sets no limit."
  validation {
    condition     = var.deliver_reserved_concurrency >= 0
    error_message = "deliver_reserved_concurrency must be 0 or more."
  }
}

variable "max_read_request_units" {
  type        = number
  default     = 0
  description = "Read units a second past which DynamoDB throttles the table, so that they cannot cost more; 0 sets no maximum."
  validation {
    condition     = var.max_read_request_units >= 0
    error_message = "max_read_request_units must be 0 or more."
  }
}

variable "max_write_request_units" {
  type        = number
  default     = 0
  description = "Write units a second past which DynamoDB throttles the table, so that they cannot cost more; 0 sets no maximum."
  validation {
    condition     = var.max_write_request_units >= 0
    error_message = "max_write_request_units must be 0 or more."
  }
}

variable "alarm_email" {
  type        = string
  description = "Address that receives alarms and the warnings of the budget."
  validation {
    condition     = can(regex("^[^@\\s]+@[^@\\s]+\\.[^@\\s]+$", var.alarm_email))
    error_message = "alarm_email must be an address."
  }
}

variable "monthly_budget" {
  type        = number
  description = "USD a month. A mail follows when the services that tidegate uses have cost 80 % of it in this region, or are forecast to cost more. 0 creates no budget."
  validation {
    condition     = var.monthly_budget >= 0
    error_message = "monthly_budget must be 0 or more."
  }
}

variable "alarms" {
  type        = string
  default     = "essential"
  description = "Which alarms to create. `essential` are two: the maintenance sweep, which fails if it finds failed parts, dead letters or late jobs, and stopped recursion. `all` are 19, and a metric for 0.30 USD a month. Each alarm costs 0.10 USD a month after the account's first ten. Or `none`."
  validation {
    condition     = contains(["essential", "all", "none"], var.alarms)
    error_message = "alarms must be essential, all or none."
  }
}

variable "alarm_topic_arn" {
  type        = string
  default     = ""
  description = "A topic that receives the alarms instead of alarm_email."
}

variable "lateness_seconds" {
  type        = number
  default     = 300
  description = "Lateness in seconds of a job, and age of a message, that raise an alarm."
  validation {
    # A message may have a delay of up to 150 seconds, which may count as its age.
    condition     = var.lateness_seconds >= 180
    error_message = "lateness_seconds must be at least 180."
  }
}

variable "dashboard" {
  type        = bool
  default     = false
  description = "Whether to create a CloudWatch dashboard. The first three of an account are free, each further one costs 3 USD a month."
}

variable "always_ingest" {
  type        = bool
  default     = false
  description = "Whether to create `ingest` without a source below, for other senders."
}

variable "ingest_event_pattern" {
  type        = string
  default     = ""
  description = "Events of a bus to ingest, as an EventBridge pattern in JSON."
}

variable "ingest_event_bus" {
  type        = string
  default     = "default"
  description = "The bus of the pattern, by name or ARN."
}

variable "ingest_topic_arn" {
  type        = string
  default     = ""
  description = "A topic whose messages are ingested."
}

variable "ingest_queue_arn" {
  type        = string
  default     = ""
  description = "A queue whose messages are ingested; visibility timeout at least 360 seconds."
}

variable "ingest_stream_arn" {
  type        = string
  default     = ""
  description = "A Kinesis stream whose records are ingested."
}

variable "ingest_cluster_arn" {
  type        = string
  default     = ""
  description = "An MSK cluster with IAM authentication, whose records are ingested."
}

variable "ingest_kafka_topic" {
  type        = string
  default     = ""
  description = "The topic of that cluster to read."
}
