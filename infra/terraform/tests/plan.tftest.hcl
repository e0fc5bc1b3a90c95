# Plans of the module, without an account: which alarms exist, what is refused, and who may not
# write tokens.

mock_provider "aws" {
  mock_data "aws_iam_policy_document" {
    defaults = { json = "{}" }
  }
}

variables {
  code_bucket              = "code"
  code_prefix              = "tidegate/0.1.0"
  encryption_key_parameter = "/tidegate/key"
  alarm_email              = "operator@example.com"
  monthly_budget           = 20
}

run "defaults_are_safe" {
  command = plan
  assert {
    condition     = toset(keys(aws_cloudwatch_metric_alarm.over)) == toset(["recursion", "sweep"])
    error_message = "The essential alarms are recursion and sweep."
  }
  assert {
    condition     = aws_cloudwatch_metric_alarm.over["sweep"].treat_missing_data == "breaching"
    error_message = "A sweep that does not run must raise its alarm."
  }
  assert {
    condition     = toset(keys(aws_lambda_event_source_mapping.queue)) == toset(["hint", "timer", "work"])
    error_message = "Only the three live queues are polled."
  }
  assert {
    condition     = length(aws_sns_topic.alarms) == 1 && length(aws_budgets_budget.monthly) == 1 && length(aws_cloudwatch_dashboard.overview) == 0
    error_message = "There is a topic and a budget, and no dashboard."
  }
}

run "all_alarms_and_the_dashboard" {
  command = plan
  variables {
    alarms          = "all"
    alarm_topic_arn = "arn:aws:sns:eu-west-1:123456789012:alarms"
    monthly_budget  = 0
    dashboard       = true
    always_ingest   = true
    kms_key_arn     = "arn:aws:kms:eu-west-1:123456789012:key/1"
  }
  assert {
    condition     = length(aws_cloudwatch_metric_alarm.over) == 21
    error_message = "There are 19 alarms, and two with events."
  }
  assert {
    condition     = length(aws_sns_topic.alarms) == 0 && length(aws_budgets_budget.monthly) == 0 && length(aws_cloudwatch_dashboard.overview) == 1
    error_message = "There is a dashboard, and neither a topic nor a budget."
  }
  assert {
    condition     = alltrue([for queue in aws_sqs_queue.live : queue.kms_master_key_id == var.kms_key_arn])
    error_message = "The queues are encrypted with the key."
  }
}

run "bad_values_are_refused" {
  command = plan
  variables {
    deliver_concurrency       = 1
    tick_concurrency          = 1
    tick_reserved_concurrency = 1
    alarm_email               = "nobody"
    monthly_budget            = -1
    alarms                    = "some"
    encryption_key_parameter  = "key"
    kms_key_arn               = "key"
  }
  expect_failures = [
    var.deliver_concurrency,
    var.tick_concurrency,
    var.tick_reserved_concurrency,
    var.alarm_email,
    var.monthly_budget,
    var.alarms,
    var.encryption_key_parameter,
    var.kms_key_arn,
  ]
}

run "users_sign_in_at_a_provider" {
  command = plan
  variables {
    public_url                   = "https://jobs.example"
    jwt_jwks_url                 = "https://id.example/keys"
    jwt_issuer                   = "https://id.example"
    jwt_audience                 = "jobs"
    oidc_client_id               = "console"
    oidc_client_secret_parameter = "/tidegate/console"
    oidc_scopes                  = "openid jobs"
    console_trace_url            = "https://traces.example/{trace_id}"
    console_servers              = ["eu=https://eu.example", "us=https://us.example"]
  }
  assert {
    condition     = local.client_secret[0].actions == ["ssm:GetParameter"] && endswith(local.client_secret[0].resources[0], ":parameter/tidegate/console")
    error_message = "The API may read the secret of its client."
  }
}

run "a_sign_in_without_its_provider_is_refused" {
  command = plan
  variables {
    oidc_client_id = "console"
  }
  expect_failures = [aws_lambda_function_url.enqueue]
}

run "a_provider_without_its_audience_is_refused" {
  command = plan
  variables {
    jwt_jwks_url = "https://id.example/keys"
    jwt_issuer   = "https://id.example"
  }
  expect_failures = [aws_lambda_function_url.enqueue]
}

run "bad_settings_of_the_console_are_refused" {
  command = plan
  variables {
    console_title                = ""
    console_page_url             = "javascript:alert(1)"
    console_trace_url            = "https://traces.example/"
    jwt_jwks_url                 = "http://id.example/keys"
    oidc_client_secret_parameter = "secret"
    oidc_scopes                  = "profile"
  }
  expect_failures = [
    var.console_title,
    var.console_page_url,
    var.console_trace_url,
    var.jwt_jwks_url,
    var.oidc_client_secret_parameter,
    var.oidc_scopes,
  ]
}
