# ../../docs/deploy-aws.md has a response for each alarm.

locals {
  functions = merge(
    {
      tick        = module.tick.name
      deliver     = module.deliver.name
      enqueue     = module.enqueue.name
      plugins     = module.plugins.name
      dead-letter = module.dead_letter.name
    },
    { for function in module.ingest : "ingest" => function.name },
  )
  alarms = !var.alarms ? {} : merge(
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
    } if !contains(["dead-letter", "ingest", "plugins"], function) },
    { for queue in ["work", "hint", "timer"] : "${queue}-late" => {
      description = "Messages of ${queue} wait too long", namespace = "AWS/SQS", metric = "ApproximateAgeOfOldestMessage", statistic = "Maximum"
      dimensions  = { QueueName = aws_sqs_queue.live[queue].name }, period = 60, threshold = var.lateness_seconds
    } },
    { for kind in ["Read", "Write"] : "table-${lower(kind)}-throttles" => {
      description = "The table throttles ${lower(kind)}s", namespace = "AWS/DynamoDB", metric = "${kind}ThrottleEvents", statistic = "Sum"
      dimensions  = { TableName = local.table.name }, period = 300, threshold = 0
    } },
  )
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
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_topic_arn == "" ? [] : [var.alarm_topic_arn]
  ok_actions          = var.alarm_topic_arn == "" ? [] : [var.alarm_topic_arn]
}

resource "aws_cloudwatch_metric_alarm" "sweep_missing" {
  count               = var.alarms ? 1 : 0
  alarm_name          = "${var.name}-sweep-missing"
  alarm_description   = "The maintenance sweep, which finds lost jobs, does not start"
  namespace           = "AWS/Events"
  metric_name         = "Invocations"
  statistic           = "Sum"
  dimensions          = { RuleName = aws_cloudwatch_event_rule.sweep.name }
  period              = 300
  threshold           = 1
  evaluation_periods  = 1
  comparison_operator = "LessThanThreshold"
  treat_missing_data  = "breaching"
  alarm_actions       = var.alarm_topic_arn == "" ? [] : [var.alarm_topic_arn]
  ok_actions          = var.alarm_topic_arn == "" ? [] : [var.alarm_topic_arn]
}
