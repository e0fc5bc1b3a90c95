# ../../docs/deploy-aws.md has a response for each alarm.

locals {
  functions = merge(
    {
      tick    = module.tick.name
      deliver = module.deliver.name
      enqueue = module.enqueue.name
      plugins = module.plugins.name
    },
    { for function in module.ingest : "ingest" => function.name },
  )
  essential_alarms = {
    # `sweep` fails if it finds failed parts, dead letters or late jobs. Without data it does not
    # run.
    sweep = {
      description = "The maintenance sweep does not run, or has found failed parts, dead letters or late jobs", namespace = "AWS/Lambda", metric = "Errors", statistic = "Sum"
      dimensions  = { FunctionName = module.sweep.name }, period = 300, threshold = 0
    }
    # Without a dimension: of all functions of the account and region, since it is users' functions
    # that Lambda stops.
    recursion = {
      description = "Lambda has stopped a chain of messages that it takes for a loop", namespace = "AWS/Lambda", metric = "RecursiveInvocationsDropped", statistic = "Sum"
      dimensions  = {}, period = 300, threshold = 0
    }
  }
  more_alarms = merge(
    # A message received from a dead-letter queue is one that SQS gave up on.
    { for queue, what in { work = "work", hint = "a hint", timer = "a timer" } : "${queue}-dead" => {
      description               = "SQS gave up on ${what}", namespace = "AWS/SQS", metric = "NumberOfMessagesReceived", statistic = "Sum"
      dimensions                = { QueueName = aws_sqs_queue.dead[queue].name }, period = 300, threshold = 0
    } },
    { for queue in aws_sqs_queue.ingest_dead : "ingest-dead" => {
      description = "Events failed three times and wait in the queue of failed events", namespace = "AWS/SQS", metric = "ApproximateNumberOfMessagesVisible", statistic = "Maximum"
      dimensions  = { QueueName = queue.name }, period = 300, threshold = 0
    } },
    { for function, name in local.functions : "${function}-errors" => {
      description = "Invocations of ${function} fail", namespace = "AWS/Lambda", metric = "Errors", statistic = "Sum"
      dimensions  = { FunctionName = name }, period = 300, threshold = 0
    } },
    { for function, name in local.functions : "${function}-throttles" => {
      description = "Invocations of ${function} are throttled for lack of concurrency", namespace = "AWS/Lambda", metric = "Throttles", statistic = "Sum"
      dimensions  = { FunctionName = name }, period = 300, threshold = 0
    } if !contains(["ingest", "plugins"], function) },
    { for queue in ["work", "hint", "timer"] : "${queue}-late" => {
      description = "Messages of ${queue} wait too long", namespace = "AWS/SQS", metric = "ApproximateAgeOfOldestMessage", statistic = "Maximum"
      dimensions  = { QueueName = aws_sqs_queue.live[queue].name }, period = 60, threshold = var.lateness_seconds
    } },
    { for kind in ["Read", "Write"] : "table-${lower(kind)}-throttles" => {
      description = "The table throttles ${lower(kind)}s", namespace = "AWS/DynamoDB", metric = "${kind}ThrottleEvents", statistic = "Sum"
      dimensions  = { TableName = local.table.name }, period = 300, threshold = 0
    } },
    {
      sweep-dropped = {
        description = "Lambda has dropped the events that start the maintenance sweep", namespace = "AWS/Lambda", metric = "AsyncEventsDropped", statistic = "Sum"
        dimensions  = { FunctionName = module.sweep.name }, period = 300, threshold = 0
      }
      oldest-due = {
        description = "The oldest due job waits too long", namespace = "tidegate", metric = "${var.name}-oldest-due-seconds", statistic = "Maximum"
        dimensions  = {}, period = 60, threshold = var.lateness_seconds
      }
    },
  )
  alarms    = merge(var.alarms == "none" ? {} : local.essential_alarms, var.alarms == "all" ? local.more_alarms : {})
  topic_arn = var.alarm_topic_arn != "" ? var.alarm_topic_arn : one(aws_sns_topic.alarms[*].arn)
}

resource "aws_sns_topic" "alarms" {
  count = var.alarms != "none" && var.alarm_topic_arn == "" ? 1 : 0
  name  = "${var.name}-alarms"
  tags  = local.tags
}

resource "aws_sns_topic_subscription" "alarms" {
  count     = length(aws_sns_topic.alarms)
  topic_arn = aws_sns_topic.alarms[0].arn
  protocol  = "email"
  endpoint  = var.alarm_email
}

# The log of each sweep says how late the oldest due job of the queues without limits is.
resource "aws_cloudwatch_log_metric_filter" "oldest_due" {
  count          = var.alarms == "all" ? 1 : 0
  name           = "${var.name}-oldest-due"
  log_group_name = module.sweep.log_group
  pattern        = "{ $.fields.oldest_due_seconds = * }"
  metric_transformation {
    namespace = "tidegate"
    name      = "${var.name}-oldest-due-seconds"
    value     = "$.fields.oldest_due_seconds"
    unit      = "Seconds"
  }
}

resource "aws_cloudwatch_metric_alarm" "over" {
  for_each            = local.alarms
  alarm_name          = "${var.name}-${each.key}"
  alarm_description   = each.value.description
  namespace           = each.value.namespace
  metric_name         = each.value.metric
  statistic           = each.value.statistic
  dimensions          = each.value.dimensions
  period              = each.value.period
  threshold           = each.value.threshold
  evaluation_periods  = 1
  comparison_operator = "GreaterThanThreshold"
  treat_missing_data  = each.key == "sweep" ? "breaching" : "notBreaching"
  alarm_actions       = [local.topic_arn]
  ok_actions          = [local.topic_arn]
  tags                = local.tags
}

resource "aws_budgets_budget" "monthly" {
  count        = var.monthly_budget == 0 ? 0 : 1
  name         = "${var.name}-${data.aws_region.here.name}"
  budget_type  = "COST"
  time_unit    = "MONTHLY"
  limit_amount = tostring(var.monthly_budget)
  limit_unit   = "USD"
  cost_filter {
    name   = "Region"
    values = [data.aws_region.here.name]
  }
  cost_filter {
    name   = "Service"
    values = ["Amazon DynamoDB", "Amazon Simple Queue Service", "Amazon Simple Storage Service", "AmazonCloudWatch", "AWS Lambda"]
  }
  dynamic "notification" {
    for_each = { ACTUAL = 80, FORECASTED = 100 }
    content {
      notification_type          = notification.key
      comparison_operator        = "GREATER_THAN"
      threshold                  = notification.value
      threshold_type             = "PERCENTAGE"
      subscriber_email_addresses = [var.alarm_email]
    }
  }
}

locals {
  metric_widgets = {
    "Invocations" = { statistic = "Sum", metrics = [
      for function in ["enqueue", "tick", "deliver", "sweep"] : ["AWS/Lambda", "Invocations", "FunctionName", "${var.name}-${function}"]
    ] }
    "Errors and throttles" = { statistic = "Sum", metrics = concat(
      [for function in ["enqueue", "tick", "deliver", "sweep"] : ["AWS/Lambda", "Errors", "FunctionName", "${var.name}-${function}"]],
      [for function in ["enqueue", "tick", "deliver"] : ["AWS/Lambda", "Throttles", "FunctionName", "${var.name}-${function}"]],
      [["AWS/Lambda", "AsyncEventsDropped", "FunctionName", "${var.name}-sweep"]],
    ) }
    "Age of the oldest message, s" = { statistic = "Maximum", metrics = [
      for queue in aws_sqs_queue.live : ["AWS/SQS", "ApproximateAgeOfOldestMessage", "QueueName", queue.name]
    ] }
    "Waiting messages and dead letters" = { statistic = "Maximum", metrics = [
      for queue in concat([for queue in aws_sqs_queue.live : queue.name], [for queue in aws_sqs_queue.dead : queue.name]) :
      ["AWS/SQS", "ApproximateNumberOfMessagesVisible", "QueueName", queue]
    ] }
    "Table: consumed units and throttles" = { statistic = "Sum", metrics = [
      for metric in ["ConsumedReadCapacityUnits", "ConsumedWriteCapacityUnits", "ReadThrottleEvents", "WriteThrottleEvents"] :
      ["AWS/DynamoDB", metric, "TableName", local.table.name]
    ] }
  }
}

resource "aws_cloudwatch_dashboard" "overview" {
  count          = var.dashboard ? 1 : 0
  dashboard_name = "${var.name}-${data.aws_region.here.name}"
  # CloudWatch places widgets without coordinates one after the other.
  dashboard_body = jsonencode({ widgets = concat(
    [for title, widget in local.metric_widgets : {
      type       = "metric", width = 12, height = 6
      properties = { title = title, region = data.aws_region.here.name, stat = widget.statistic, period = 60, metrics = widget.metrics }
    }],
    [{
      type = "log", width = 12, height = 6
      properties = {
        title = "Maintenance sweeps: lateness of the oldest due job, s", region = data.aws_region.here.name, view = "timeSeries"
        query = "SOURCE '${module.sweep.log_group}' | filter ispresent(fields.oldest_due_seconds) | stats max(fields.oldest_due_seconds) by bin(1m)"
      }
    }],
  ) })
}
