# Events from other services: created only if `always_ingest` is set or an `ingest_` variable names
# a source.

locals {
  ingest_bus     = var.ingest_event_pattern != ""
  ingest_topic   = var.ingest_topic_arn != ""
  ingest_queue   = var.ingest_queue_arn != ""
  ingest_stream  = var.ingest_stream_arn != ""
  ingest_cluster = var.ingest_cluster_arn != "" && var.ingest_kafka_topic != ""
  ingests        = var.always_ingest || local.ingest_bus || local.ingest_topic || local.ingest_queue || local.ingest_stream || local.ingest_cluster

  # ARNs of topics and groups contain the cluster's name and id:
  # arn:...:cluster/NAME/ID, arn:...:topic/NAME/ID/TOPIC.
  kafka_topic_arn = "${replace(var.ingest_cluster_arn, ":cluster/", ":topic/")}/${var.ingest_kafka_topic}"
  kafka_group_arn = "${replace(var.ingest_cluster_arn, ":cluster/", ":group/")}/*"

  ingest_may = concat(
    [for queue in aws_sqs_queue.ingest_dead : { sid = "Fail", actions = ["sqs:SendMessage"], resources = [queue.arn] }],
    !local.ingest_queue ? [] : [{ sid = "Queue", actions = local.receive, resources = [var.ingest_queue_arn] }],
    !local.ingest_stream ? [] : [{
      sid       = "Stream"
      actions   = ["kinesis:DescribeStream", "kinesis:DescribeStreamSummary", "kinesis:GetRecords", "kinesis:GetShardIterator", "kinesis:ListShards"]
      resources = [var.ingest_stream_arn]
    }],
    !local.ingest_cluster ? [] : [
      {
        sid = "Cluster"
        actions = [
          "kafka:DescribeCluster",
          "kafka:DescribeClusterV2",
          "kafka:GetBootstrapBrokers",
          "kafka-cluster:Connect",
          "kafka-cluster:DescribeClusterDynamicConfiguration",
        ]
        resources = [var.ingest_cluster_arn]
      },
      {
        sid       = "Topic"
        actions   = ["kafka-cluster:AlterGroup", "kafka-cluster:DescribeGroup", "kafka-cluster:DescribeTopic", "kafka-cluster:ReadData"]
        resources = [local.kafka_topic_arn, local.kafka_group_arn]
      },
      # These actions support no resource ARN. Lambda's poller needs them to join the cluster's
      # network.
      {
        sid = "Network"
        actions = [
          "ec2:CreateNetworkInterface",
          "ec2:DeleteNetworkInterface",
          "ec2:DescribeNetworkInterfaces",
          "ec2:DescribeSecurityGroups",
          "ec2:DescribeSubnets",
          "ec2:DescribeVpcs",
        ]
        resources = ["*"]
      },
    ],
  )
}

resource "aws_sqs_queue" "ingest_dead" {
  count                             = local.ingests ? 1 : 0
  name                              = "${var.name}-ingest-dead"
  message_retention_seconds         = 1209600
  sqs_managed_sse_enabled           = var.kms_key_arn == "" ? true : null
  kms_master_key_id                 = var.kms_key_arn == "" ? null : var.kms_key_arn
  kms_data_key_reuse_period_seconds = var.kms_key_arn == "" ? null : 86400
  tags                              = local.tags
}

module "ingest" {
  count       = local.ingests ? 1 : 0
  source      = "./function"
  deployment  = local.deployment
  function    = "ingest"
  description = "Turns events of other services into jobs and results"
  memory      = 512
  timeout     = 60
  recursive   = true
  owner       = false
  may         = local.ingest_may
  # For an API Gateway in front of it. Its requests need a token like all others.
  environment = { TIDEGATE_ADMIN_TOKEN = var.admin_token }
}

# Asynchronous events that failed three times, for an operator to examine.
resource "aws_lambda_function_event_invoke_config" "ingest" {
  count                        = local.ingests ? 1 : 0
  function_name                = module.ingest[0].name
  maximum_retry_attempts       = 2
  maximum_event_age_in_seconds = 21600
  destination_config {
    on_failure {
      destination = aws_sqs_queue.ingest_dead[0].arn
    }
  }
  lifecycle {
    replace_triggered_by = [terraform_data.function["ingest"]]
  }
}

resource "aws_cloudwatch_event_rule" "ingest" {
  count          = local.ingest_bus ? 1 : 0
  name           = "${var.name}-ingest"
  description    = "Events for ${var.name}"
  event_bus_name = var.ingest_event_bus
  event_pattern  = var.ingest_event_pattern
}

resource "aws_cloudwatch_event_target" "ingest" {
  count          = local.ingest_bus ? 1 : 0
  rule           = aws_cloudwatch_event_rule.ingest[0].name
  event_bus_name = var.ingest_event_bus
  arn            = module.ingest[0].arn
}

resource "aws_lambda_permission" "ingest_bus" {
  count         = local.ingest_bus ? 1 : 0
  function_name = module.ingest[0].name
  action        = "lambda:InvokeFunction"
  principal     = "events.amazonaws.com"
  source_arn    = aws_cloudwatch_event_rule.ingest[0].arn
  lifecycle {
    replace_triggered_by = [terraform_data.function["ingest"]]
  }
}

resource "aws_sns_topic_subscription" "ingest" {
  count     = local.ingest_topic ? 1 : 0
  topic_arn = var.ingest_topic_arn
  protocol  = "lambda"
  endpoint  = module.ingest[0].arn
}

resource "aws_lambda_permission" "ingest_topic" {
  count         = local.ingest_topic ? 1 : 0
  function_name = module.ingest[0].name
  action        = "lambda:InvokeFunction"
  principal     = "sns.amazonaws.com"
  source_arn    = var.ingest_topic_arn
  lifecycle {
    replace_triggered_by = [terraform_data.function["ingest"]]
  }
}

resource "aws_lambda_event_source_mapping" "ingest_queue" {
  count                   = local.ingest_queue ? 1 : 0
  function_name           = module.ingest[0].name
  event_source_arn        = var.ingest_queue_arn
  batch_size              = 10
  function_response_types = ["ReportBatchItemFailures"]
}

resource "aws_lambda_event_source_mapping" "ingest_stream" {
  count                   = local.ingest_stream ? 1 : 0
  function_name           = module.ingest[0].name
  event_source_arn        = var.ingest_stream_arn
  batch_size              = 500
  starting_position       = "LATEST"
  function_response_types = ["ReportBatchItemFailures"]
  # Records are retried only while the store does not answer, so their age limits them, not a count:
  # they are dropped after six hours.
  maximum_record_age_in_seconds = 21600
  destination_config {
    on_failure {
      destination_arn = aws_sqs_queue.ingest_dead[0].arn
    }
  }
}

# Without function_response_types, which Lambda allows for Kafka only in provisioned mode: one
# failed record repeats its whole batch, and ingesting a record twice has no effect. Without a
# failure destination, because with one Lambda gives up after ten attempts.
resource "aws_lambda_event_source_mapping" "ingest_cluster" {
  count             = local.ingest_cluster ? 1 : 0
  function_name     = module.ingest[0].name
  event_source_arn  = var.ingest_cluster_arn
  topics            = [var.ingest_kafka_topic]
  batch_size        = 500
  starting_position = "LATEST"
}
