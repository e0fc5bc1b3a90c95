# Work: jobs to claim and deliver. Hints: a queue needs a tick. Timers: a queue needs a tick at an
# instant. The visibility timeout is six times the timeout of the function, as Lambda recommends.

locals {
  queues = {
    work  = { fifo = false, visibility = 1800, retention = 345600 }
    hint  = { fifo = true, visibility = 360, retention = 345600 }
    timer = { fifo = false, visibility = 360, retention = 3600 }
  }
}

resource "aws_sqs_queue" "dead" {
  for_each                          = local.queues
  name                              = "${var.name}-${each.key}-dead${each.value.fifo ? ".fifo" : ""}"
  fifo_queue                        = each.value.fifo
  visibility_timeout_seconds        = 360
  message_retention_seconds         = 1209600
  sqs_managed_sse_enabled           = var.kms_key_arn == "" ? true : null
  kms_master_key_id                 = var.kms_key_arn == "" ? null : var.kms_key_arn
  kms_data_key_reuse_period_seconds = var.kms_key_arn == "" ? null : 86400
  tags                              = local.tags
}

resource "aws_sqs_queue" "live" {
  for_each                          = local.queues
  name                              = "${var.name}-${each.key}${each.value.fifo ? ".fifo" : ""}"
  fifo_queue                        = each.value.fifo
  deduplication_scope               = each.value.fifo ? "messageGroup" : null
  fifo_throughput_limit             = each.value.fifo ? "perMessageGroupId" : null
  visibility_timeout_seconds        = each.value.visibility
  message_retention_seconds         = each.value.retention
  sqs_managed_sse_enabled           = var.kms_key_arn == "" ? true : null
  kms_master_key_id                 = var.kms_key_arn == "" ? null : var.kms_key_arn
  kms_data_key_reuse_period_seconds = var.kms_key_arn == "" ? null : 86400
  tags                              = local.tags
  redrive_policy                    = jsonencode({ deadLetterTargetArn = aws_sqs_queue.dead[each.key].arn, maxReceiveCount = 5 })
}
