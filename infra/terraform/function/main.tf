# One function with its role and its log group.

terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.100"
    }
  }
}

variable "deployment" {
  type = object({
    name               = string
    architecture       = string
    code_bucket        = string
    code_prefix        = string
    log_retention_days = number
    policy_arn         = string
    no_owner_arn       = string
    tags               = map(string)
    environment        = map(string)
  })
  description = "Settings of all functions; `policy_arn` has their common permissions, `no_owner_arn` denies writes to tokens and plugins."
}

variable "function" {
  type        = string
  description = "Name of the function."
}

variable "program" {
  type        = string
  default     = ""
  description = "Name of its zip; empty: that of the function."
}

variable "description" {
  type        = string
  description = "Description of the function."
}

variable "memory" {
  type        = number
  description = "Memory in MB."
}

variable "timeout" {
  type        = number
  description = "Timeout of an invocation in seconds."
}

variable "reserved" {
  type        = number
  default     = 0
  description = "Reserved concurrency; 0 reserves none."
}

variable "recursive" {
  type        = bool
  default     = false
  description = "Whether to allow a chain of messages that Lambda takes for a loop."
}

variable "owner" {
  type        = bool
  default     = true
  description = "Whether it may write the tokens and the records of plugins."
}

variable "may" {
  type        = list(object({ sid = string, actions = list(string), resources = list(string) }))
  default     = []
  description = "Statements of the function's own policy."
}

variable "environment" {
  type        = map(string)
  default     = {}
  description = "Environment variables of this function only."
}

resource "aws_cloudwatch_log_group" "log" {
  name              = "/aws/lambda/${var.deployment.name}-${var.function}"
  retention_in_days = var.deployment.log_retention_days
  tags              = var.deployment.tags
}

data "aws_iam_policy_document" "trust" {
  statement {
    actions = ["sts:AssumeRole"]
    principals {
      type        = "Service"
      identifiers = ["lambda.amazonaws.com"]
    }
  }
}

data "aws_iam_policy_document" "own" {
  statement {
    sid       = "Logs"
    actions   = ["logs:CreateLogStream", "logs:PutLogEvents"]
    resources = ["${aws_cloudwatch_log_group.log.arn}:*"]
  }
  dynamic "statement" {
    for_each = var.may
    content {
      sid       = statement.value.sid
      actions   = statement.value.actions
      resources = statement.value.resources
    }
  }
}

resource "aws_iam_role" "role" {
  name_prefix        = "${var.deployment.name}-${var.function}-"
  assume_role_policy = data.aws_iam_policy_document.trust.json
}

resource "aws_iam_role_policy" "own" {
  name   = "own"
  role   = aws_iam_role.role.id
  policy = data.aws_iam_policy_document.own.json
}

resource "aws_iam_role_policy_attachment" "jobs" {
  role       = aws_iam_role.role.name
  policy_arn = var.deployment.policy_arn
}

resource "aws_iam_role_policy_attachment" "no_owner" {
  count      = var.owner ? 0 : 1
  role       = aws_iam_role.role.name
  policy_arn = var.deployment.no_owner_arn
}

resource "aws_lambda_function" "function" {
  function_name                  = "${var.deployment.name}-${var.function}"
  description                    = var.description
  s3_bucket                      = var.deployment.code_bucket
  s3_key                         = "${var.deployment.code_prefix}/${var.deployment.architecture}/${var.program == "" ? var.function : var.program}.zip"
  runtime                        = "provided.al2023"
  handler                        = "bootstrap"
  architectures                  = [var.deployment.architecture]
  memory_size                    = var.memory
  timeout                        = var.timeout
  role                           = aws_iam_role.role.arn
  reserved_concurrent_executions = var.reserved == 0 ? -1 : var.reserved
  tags                           = var.deployment.tags

  environment {
    variables = merge(var.deployment.environment, var.environment)
  }
  logging_config {
    log_group             = aws_cloudwatch_log_group.log.name
    log_format            = "JSON"
    application_log_level = "TRACE"
    system_log_level      = "WARN"
  }
  # Lambda refuses a mapping while the role has no permission to receive.
  depends_on = [aws_iam_role_policy.own, aws_iam_role_policy_attachment.jobs, aws_iam_role_policy_attachment.no_owner]
}

# A freed slot leads through the next tick to the next delivery. Lambda would take this chain of
# messages for a loop.
resource "aws_lambda_function_recursion_config" "function" {
  count          = var.recursive ? 1 : 0
  function_name  = aws_lambda_function.function.function_name
  recursive_loop = "Allow"
  lifecycle {
    replace_triggered_by = [aws_lambda_function.function.arn]
  }
}

output "name" {
  value       = aws_lambda_function.function.function_name
  description = "Name of the function."
}

output "arn" {
  value       = aws_lambda_function.function.arn
  description = "ARN of the function."
}

output "role_arn" {
  value       = aws_iam_role.role.arn
  description = "ARN of the function's role."
}

output "log_group" {
  value       = aws_cloudwatch_log_group.log.name
  description = "Name of the function's log group."
}
