# A root module that deploys tidegate with one queue as a target and the events of a shop as a
# source.

terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.100"
    }
  }
}

provider "aws" {
  region = "eu-west-1"
}

variable "code_bucket" {
  type        = string
  description = "The bucket that holds the zips of `cargo xtask package`, under tidegate/VERSION/ARCH/."
}

variable "alarm_email" {
  type        = string
  description = "Address that receives alarms and the warnings of the budget."
}

resource "aws_sqs_queue" "invoices" {
  name = "invoices"
}

module "tidegate" {
  source = "../../terraform"

  code_bucket = var.code_bucket
  code_prefix = "tidegate/0.1.0"
  # aws ssm put-parameter --name /tidegate/key --type SecureString --value "$(openssl rand -base64 32)"
  encryption_key_parameter = "/tidegate/key"
  alarm_email              = var.alarm_email
  monthly_budget           = 20
  sqs_target_arns          = [aws_sqs_queue.invoices.arn]
  ingest_event_pattern     = jsonencode({ source = ["my.shop"] })
}

output "url" {
  value = module.tidegate.url
}
