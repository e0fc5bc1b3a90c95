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
    environment = {
      TIDEGATE_TABLE                = local.table.name
      TIDEGATE_BUCKET               = local.bucket.name
      TIDEGATE_PREFIX               = var.object_prefix
      TIDEGATE_WORK_QUEUE_URL       = aws_sqs_queue.live["work"].url
      TIDEGATE_HINT_QUEUE_URL       = aws_sqs_queue.live["hint"].url
      TIDEGATE_TIMER_QUEUE_URL      = aws_sqs_queue.live["timer"].url
      TIDEGATE_ENCRYPTION_KEY       = var.encryption_key
      TIDEGATE_MAX_DATA_BYTES       = tostring(var.max_data_bytes)
      TIDEGATE_ALLOWED_TARGETS      = join(",", var.allowed_targets)
      TIDEGATE_ALLOWED_CALLBACKS    = join(",", var.allowed_callbacks)
      TIDEGATE_CREATE_UNKNOWN_TYPES = tostring(var.create_unknown_types)
      TIDEGATE_LOG_LEVEL            = var.log_level
      TIDEGATE_EMF_NAMESPACE        = var.metrics_namespace
      TIDEGATE_SHARDS               = tostring(var.shards)
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
  environment = { TIDEGATE_ADMIN_TOKEN = var.admin_token }
  may         = local.doctor
}

module "plugins" {
  source      = "./function"
  deployment  = local.deployment
  function    = "plugins"
  description = "The HTTP API with a compiler, for pushing plugins"
  memory      = 2048 # A compiler needs a full processor. It runs only when a plugin is pushed.
  timeout     = 300
  environment = { TIDEGATE_ADMIN_TOKEN = var.admin_token }
  # Only this function may change the code that all functions run.
  may = concat(local.doctor, [{ sid = "Code", actions = ["s3:PutObject"], resources = ["${local.objects}plugins/*"] }])
}

# The API has its own tokens. Without a valid one it serves only its health, its description and the
# empty page of the dashboard.
resource "aws_lambda_function_url" "plugins" {
  function_name      = module.plugins.name
  authorization_type = "NONE"
  invoke_mode        = "BUFFERED"
}

resource "aws_lambda_function_url" "enqueue" {
  function_name      = module.enqueue.name
  authorization_type = "NONE"
  invoke_mode        = "BUFFERED"
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
}

module "tick" {
  source      = "./function"
  deployment  = local.deployment
  function    = "tick"
  description = "Runs a tick for each hint and timer, and the maintenance sweep every minute"
  memory      = var.tick_memory
  timeout     = 60
  reserved    = var.tick_reserved_concurrency
  recursive   = true
  may         = [{ sid = "Receive", actions = local.receive_again, resources = [aws_sqs_queue.live["hint"].arn, aws_sqs_queue.live["timer"].arn] }]
}

# The next sweep follows a failed one within a minute, so a retry has no use.
resource "aws_lambda_function_event_invoke_config" "tick" {
  function_name                = module.tick.name
  maximum_retry_attempts       = 0
  maximum_event_age_in_seconds = 60
}

resource "aws_cloudwatch_event_rule" "sweep" {
  name                = "${var.name}-sweep"
  description         = "Maintenance sweep over all queues of ${var.name}"
  schedule_expression = "rate(1 minute)"
}

resource "aws_cloudwatch_event_target" "sweep" {
  rule  = aws_cloudwatch_event_rule.sweep.name
  arn   = module.tick.arn
  input = jsonencode({ tidegate = "sweep" })
  retry_policy {
    maximum_retry_attempts       = 0
    maximum_event_age_in_seconds = 60
  }
}

resource "aws_lambda_permission" "sweep" {
  function_name = module.tick.name
  action        = "lambda:InvokeFunction"
  principal     = "events.amazonaws.com"
  source_arn    = aws_cloudwatch_event_rule.sweep.arn
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
  environment = { TIDEGATE_PUBLIC_URL = local.url }
  may = concat(
    [{ sid = "Receive", actions = local.receive_again, resources = [aws_sqs_queue.live["work"].arn] }],
    [for sid, target in local.targets : { sid = sid, actions = [target.action], resources = target.arns } if length(target.arns) > 0],
  )
}

module "dead_letter" {
  source      = "./function"
  deployment  = local.deployment
  function    = "dead-letter"
  description = "Turns each message that SQS gave up on into a failed attempt or a tick"
  memory      = var.tick_memory
  timeout     = 60
  recursive   = true
  may         = [{ sid = "Receive", actions = local.receive, resources = [for queue in aws_sqs_queue.dead : queue.arn] }]
}

locals {
  mappings = {
    work       = { function = module.deliver.name, queue = aws_sqs_queue.live["work"].arn, limit = var.deliver_concurrency }
    hint       = { function = module.tick.name, queue = aws_sqs_queue.live["hint"].arn, limit = 0 }
    timer      = { function = module.tick.name, queue = aws_sqs_queue.live["timer"].arn, limit = 0 }
    work-dead  = { function = module.dead_letter.name, queue = aws_sqs_queue.dead["work"].arn, limit = 0 }
    hint-dead  = { function = module.dead_letter.name, queue = aws_sqs_queue.dead["hint"].arn, limit = 0 }
    timer-dead = { function = module.dead_letter.name, queue = aws_sqs_queue.dead["timer"].arn, limit = 0 }
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
