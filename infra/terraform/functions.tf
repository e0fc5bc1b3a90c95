# docs/decisions/0010-serverless-deployment-mode.md lists what each function needs.

data "aws_iam_policy_document" "jobs" {
  statement {
    sid = "Table"
    actions = [
      "dynamodb:BatchGetItem",
      "dynamodb:BatchWriteItem",
      "dynamodb:DeleteItem",
      "dynamodb:PartiQLDelete",
      "dynamodb:PartiQLInsert",
      "dynamodb:PartiQLUpdate",
      "dynamodb:PutItem",
      "dynamodb:Query",
      "dynamodb:UpdateItem",
    ]
    resources = [local.table.arn]
  }
  statement {
    sid       = "Objects"
    actions   = ["s3:GetObject"]
    resources = ["${local.objects}*"]
  }
  statement {
    sid       = "Bodies"
    actions   = local.change_objects
    resources = ["${local.objects}bodies/*"]
  }
  # Without it, S3 answers 403 for a missing object instead of 404.
  statement {
    sid       = "Listing"
    actions   = ["s3:ListBucket"]
    resources = [local.bucket.arn]
  }
  statement {
    sid       = "Queues"
    actions   = ["sqs:SendMessage"]
    resources = [for queue in aws_sqs_queue.live : queue.arn]
  }
  statement {
    sid       = "EncryptionKey"
    actions   = ["ssm:GetParameter"]
    resources = ["arn:${data.aws_partition.here.partition}:ssm:${local.arn_of_account}:parameter${var.encryption_key_parameter}"]
  }
  dynamic "statement" {
    for_each = var.kms_key_arn == "" ? [] : [var.kms_key_arn]
    content {
      sid       = "KmsKey"
      actions   = ["kms:CreateGrant", "kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey*", "kms:ReEncrypt*"]
      resources = [statement.value]
      condition {
        test     = "StringLike"
        variable = "kms:ViaService"
        values   = [for service in ["dynamodb", "s3", "sqs", "ssm"] : "${service}.*.${data.aws_partition.here.dns_suffix}"]
      }
    }
  }
}

# Tokens are written by the API alone, and the records of plugins, which name the code that all
# functions run, too. This denies them to the functions that call targets, run plugins or read
# events.
data "aws_iam_policy_document" "no_owner" {
  statement {
    sid    = "TokensAndPlugins"
    effect = "Deny"
    actions = [
      "dynamodb:BatchWriteItem",
      "dynamodb:DeleteItem",
      "dynamodb:PartiQLDelete",
      "dynamodb:PartiQLInsert",
      "dynamodb:PartiQLUpdate",
      "dynamodb:PutItem",
      "dynamodb:UpdateItem",
    ]
    resources = [local.table.arn]
    condition {
      test     = "ForAnyValue:StringEquals"
      variable = "dynamodb:LeadingKeys"
      values   = ["C#token", "C#plugin"]
    }
  }
}

resource "aws_iam_policy" "no_owner" {
  name_prefix = "${var.name}-no-owner-"
  description = "No writes to the tokens and plugins of ${var.name}"
  policy      = data.aws_iam_policy_document.no_owner.json
}

# The permissions of every function. Each function's own policy adds to them.
resource "aws_iam_policy" "jobs" {
  name_prefix = "${var.name}-jobs-"
  description = "Table, bucket and sending to the queues of ${var.name}"
  policy      = data.aws_iam_policy_document.jobs.json
}

locals {
  deployment = {
    name               = var.name
    architecture       = var.architecture
    code_bucket        = var.code_bucket
    code_prefix        = var.code_prefix
    log_retention_days = var.log_retention_days
    policy_arn         = aws_iam_policy.jobs.arn
    no_owner_arn       = aws_iam_policy.no_owner.arn
    tags               = local.tags
    environment = {
      TIDEGATE_TABLE                    = local.table.name
      TIDEGATE_BUCKET                   = local.bucket.name
      TIDEGATE_PREFIX                   = var.object_prefix
      TIDEGATE_WORK_QUEUE_URL           = aws_sqs_queue.live["work"].url
      TIDEGATE_HINT_QUEUE_URL           = aws_sqs_queue.live["hint"].url
      TIDEGATE_TIMER_QUEUE_URL          = aws_sqs_queue.live["timer"].url
      TIDEGATE_ENCRYPTION_KEY_PARAMETER = var.encryption_key_parameter
      TIDEGATE_MAX_DATA_BYTES           = tostring(var.max_data_bytes)
      TIDEGATE_ALLOWED_TARGETS          = join(",", var.allowed_targets)
      TIDEGATE_ALLOWED_CALLBACKS        = join(",", var.allowed_callbacks)
      TIDEGATE_PRIVATE_TARGETS          = tostring(var.private_targets)
      TIDEGATE_CREATE_UNKNOWN_TYPES     = tostring(var.create_unknown_types)
      TIDEGATE_LOG_LEVEL                = var.log_level
      TIDEGATE_EMF_NAMESPACE            = var.metrics_namespace
      TIDEGATE_SHARDS                   = tostring(var.shards)
    }
  }
  objects        = "${local.bucket.arn}/${var.object_prefix}"
  change_objects = ["s3:DeleteObject", "s3:PutObject"]

  url     = var.public_url == "" ? aws_lambda_function_url.enqueue.function_url : var.public_url
  receive = ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"]
  # To schedule an early redelivery of failed messages.
  receive_again = concat(local.receive, ["sqs:ChangeMessageVisibility"])
  # `GET /v1/doctor` checks the table, the queues and the bucket.
  doctor = [
    { sid = "DoctorTable", actions = ["dynamodb:DescribeTable", "dynamodb:DescribeTimeToLive"], resources = [local.table.arn] },
    {
      sid       = "DoctorQueues"
      actions   = ["sqs:GetQueueAttributes"]
      resources = concat([for queue in aws_sqs_queue.live : queue.arn], [for queue in aws_sqs_queue.dead : queue.arn])
    },
    { sid = "DoctorObjects", actions = local.change_objects, resources = ["${local.objects}doctor/*"] },
  ]
  # The secret of the console as a client of the identity provider.
  client_secret = var.oidc_client_secret_parameter == "" ? [] : [{
    sid       = "ClientSecret"
    actions   = ["ssm:GetParameter"]
    resources = ["arn:${data.aws_partition.here.partition}:ssm:${local.arn_of_account}:parameter${var.oidc_client_secret_parameter}"]
  }]
  targets = {
    SqsTargets      = { action = "sqs:SendMessage", arns = var.sqs_target_arns }
    SnsTargets      = { action = "sns:Publish", arns = var.sns_target_arns }
    EventBusTargets = { action = "events:PutEvents", arns = var.event_bus_target_arns }
    LambdaTargets   = { action = "lambda:InvokeFunction", arns = var.lambda_target_arns }
  }
}

module "enqueue" {
  source      = "./function"
  deployment  = local.deployment
  function    = "enqueue"
  description = "The HTTP API"
  memory      = var.enqueue_memory
  timeout     = 75
  reserved    = var.enqueue_reserved_concurrency
  environment = {
    TIDEGATE_ADMIN_TOKEN                   = var.admin_token
    TIDEGATE_PUBLIC_URL                    = var.public_url
    TIDEGATE_CONSOLE__TITLE                = var.console_title
    TIDEGATE_CONSOLE__READ_ONLY            = tostring(var.console_read_only)
    TIDEGATE_CONSOLE__PAGE_URL             = var.console_page_url
    TIDEGATE_CONSOLE__TRACE_URL            = var.console_trace_url
    TIDEGATE_CONSOLE__SERVERS              = join(",", var.console_servers)
    TIDEGATE_JWT__JWKS_URL                 = var.jwt_jwks_url
    TIDEGATE_JWT__ISSUER                   = var.jwt_issuer
    TIDEGATE_JWT__AUDIENCE                 = var.jwt_audience
    TIDEGATE_JWT__SCOPE_CLAIM              = var.jwt_scope_claim
    TIDEGATE_OIDC__CLIENT_ID               = var.oidc_client_id
    TIDEGATE_OIDC__CLIENT_SECRET_PARAMETER = var.oidc_client_secret_parameter
    TIDEGATE_OIDC__SCOPES                  = var.oidc_scopes
  }
  may = concat(local.doctor, local.client_secret)
}

module "plugins" {
  source      = "./function"
  deployment  = local.deployment
  function    = "plugins"
  description = "The HTTP API with a compiler, for pushing plugins"
  memory      = 2048 # A compiler needs a full processor. It runs only when a plugin is pushed.
  timeout     = 300
  reserved    = var.plugins_reserved_concurrency
  environment = { TIDEGATE_ADMIN_TOKEN = var.admin_token }
  # Only this function may write the code that all functions run.
  may = concat(local.doctor, [{ sid = "Code", actions = ["s3:PutObject"], resources = ["${local.objects}plugins/*"] }])
}

# What Lambda deletes with a function (URLs, permissions, settings of its invocations) names the
# function by its name, which a new one has too. So it is replaced with its function.
resource "terraform_data" "function" {
  for_each = merge(
    { enqueue = module.enqueue.arn, plugins = module.plugins.arn, sweep = module.sweep.arn },
    { for function in module.ingest : "ingest" => function.arn },
  )
  triggers_replace = each.value
}

# The API has its own tokens. Without a valid one it serves only its health, its description and the
# empty page of the dashboard.
resource "aws_lambda_function_url" "plugins" {
  function_name      = module.plugins.name
  authorization_type = "NONE"
  invoke_mode        = "BUFFERED"
  lifecycle {
    replace_triggered_by = [terraform_data.function["plugins"]]
  }
}

resource "aws_lambda_function_url" "enqueue" {
  function_name      = module.enqueue.name
  authorization_type = "NONE"
  invoke_mode        = "BUFFERED"
  lifecycle {
    replace_triggered_by = [terraform_data.function["enqueue"]]
    precondition {
      condition     = length(distinct([for text in [var.jwt_jwks_url, var.jwt_issuer, var.jwt_audience] : text == ""])) == 1
      error_message = "jwt_jwks_url, jwt_issuer and jwt_audience need each other."
    }
    precondition {
      condition     = var.oidc_client_id == "" || (var.jwt_jwks_url != "" && var.public_url != "")
      error_message = "oidc_client_id needs jwt_jwks_url, jwt_issuer, jwt_audience and public_url."
    }
    precondition {
      condition     = var.oidc_client_secret_parameter == "" || var.oidc_client_id != ""
      error_message = "oidc_client_secret_parameter needs oidc_client_id."
    }
  }
}

# Since October 2025 function URLs need this second permission, which providers before 6.29 cannot
# express.
resource "aws_cloudformation_stack" "url_permission" {
  name = "${var.name}-url-permission"
  template_body = jsonencode({
    Resources = { for name in ["enqueue", "plugins"] : title(name) => {
      Type = "AWS::Lambda::Permission"
      Properties = {
        FunctionName          = "${var.name}-${name}"
        Action                = "lambda:InvokeFunction"
        Principal             = "*"
        InvokedViaFunctionUrl = true
      }
      }
    }
  })
  depends_on = [aws_lambda_function_url.enqueue, aws_lambda_function_url.plugins]
  lifecycle {
    replace_triggered_by = [terraform_data.function["enqueue"], terraform_data.function["plugins"]]
  }
}

module "tick" {
  source      = "./function"
  deployment  = local.deployment
  function    = "tick"
  description = "Runs a tick for each hint and timer"
  memory      = var.tick_memory
  timeout     = 60
  reserved    = var.tick_reserved_concurrency
  recursive   = true
  owner       = false
  may         = [{ sid = "Receive", actions = local.receive_again, resources = [aws_sqs_queue.live["hint"].arn, aws_sqs_queue.live["timer"].arn] }]
}

# The program of `tick`, as a function of its own: ticks cannot use up its concurrency.
module "sweep" {
  source      = "./function"
  deployment  = local.deployment
  function    = "sweep"
  program     = "tick"
  description = "Runs the maintenance sweep every minute, and handles the dead letters of the queues"
  memory      = var.tick_memory
  timeout     = 60
  reserved    = var.sweep_reserved_concurrency
  recursive   = true
  owner       = false
  environment = {
    TIDEGATE_LATENESS_SECONDS       = tostring(var.lateness_seconds)
    TIDEGATE_DEAD_LETTER_QUEUE_URLS = join(",", [for queue in aws_sqs_queue.dead : queue.url])
  }
  may = [
    { sid = "Receive", actions = local.receive, resources = [for queue in aws_sqs_queue.dead : queue.arn] },
    { sid = "OldCode", actions = ["s3:DeleteObject"], resources = ["${local.objects}plugins/*"] },
  ]
}

# The next sweep follows a failed one within a minute, so a retry has no use.
resource "aws_lambda_function_event_invoke_config" "sweep" {
  function_name                = module.sweep.name
  maximum_retry_attempts       = 0
  maximum_event_age_in_seconds = 60
  lifecycle {
    replace_triggered_by = [terraform_data.function["sweep"]]
  }
}

# Receiving dead letters costs a request for each queue, so it is not part of every sweep.
locals {
  maintenance = {
    sweep        = { description = "Maintenance sweep over all queues of ${var.name}", rate = "rate(1 minute)" }
    dead-letters = { description = "Handling of the dead letters of ${var.name}", rate = "rate(5 minutes)" }
  }
}

resource "aws_cloudwatch_event_rule" "maintenance" {
  for_each            = local.maintenance
  name                = "${var.name}-${each.key}"
  description         = each.value.description
  schedule_expression = each.value.rate
}

resource "aws_cloudwatch_event_target" "maintenance" {
  for_each = local.maintenance
  rule     = aws_cloudwatch_event_rule.maintenance[each.key].name
  arn      = module.sweep.arn
  input    = jsonencode({ tidegate = each.key })
  retry_policy {
    maximum_retry_attempts       = 0
    maximum_event_age_in_seconds = 60
  }
}

resource "aws_lambda_permission" "maintenance" {
  for_each      = local.maintenance
  function_name = module.sweep.name
  action        = "lambda:InvokeFunction"
  principal     = "events.amazonaws.com"
  source_arn    = aws_cloudwatch_event_rule.maintenance[each.key].arn
  lifecycle {
    replace_triggered_by = [terraform_data.function["sweep"]]
  }
}

module "deliver" {
  source      = "./function"
  deployment  = local.deployment
  function    = "deliver"
  description = "Claims jobs and sends them to their targets"
  memory      = var.deliver_memory
  timeout     = 300
  reserved    = var.deliver_reserved_concurrency
  recursive   = true
  owner       = false
  environment = { TIDEGATE_PUBLIC_URL = local.url }
  may = concat(
    [{ sid = "Receive", actions = local.receive_again, resources = [aws_sqs_queue.live["work"].arn] }],
    [for sid, target in local.targets : { sid = sid, actions = [target.action], resources = target.arns } if length(target.arns) > 0],
  )
}

locals {
  mappings = {
    work  = { function = module.deliver.name, queue = aws_sqs_queue.live["work"].arn, limit = var.deliver_concurrency }
    hint  = { function = module.tick.name, queue = aws_sqs_queue.live["hint"].arn, limit = var.tick_concurrency }
    timer = { function = module.tick.name, queue = aws_sqs_queue.live["timer"].arn, limit = var.tick_concurrency }
  }
}

resource "aws_lambda_event_source_mapping" "queue" {
  for_each                = local.mappings
  function_name           = each.value.function
  event_source_arn        = each.value.queue
  batch_size              = 10
  function_response_types = ["ReportBatchItemFailures"]
  dynamic "scaling_config" {
    for_each = each.value.limit == 0 ? [] : [each.value.limit]
    content {
      maximum_concurrency = scaling_config.value
    }
  }
}
