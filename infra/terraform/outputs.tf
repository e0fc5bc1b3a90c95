output "url" {
  value       = local.url
  description = "URL of the API."
}

output "function_url" {
  value       = aws_lambda_function_url.enqueue.function_url
  description = "Function URL of the API, even if a domain is in front of it."
}

output "plugins_url" {
  value       = aws_lambda_function_url.plugins.function_url
  description = "URL that plugins are pushed to, and that is called once after an upgrade."
}

output "table_name" {
  value       = local.table.name
  description = "The table with the jobs."
}

output "bucket_name" {
  value       = local.bucket.name
  description = "The bucket with large bodies and plugins."
}

output "queue_urls" {
  value       = { for name, queue in aws_sqs_queue.live : name => queue.url }
  description = "The queues of work, hints and timers."
}

output "deliver_role_arn" {
  value       = module.deliver.role_arn
  description = "Role that calls the targets, for policies of resources in other accounts."
}

output "ingest_function_arn" {
  value       = one(module.ingest[*].arn)
  description = "The ingest function, for your own sources of events; null if it does not exist."
}

output "ingest_role_arn" {
  value       = one(module.ingest[*].role_arn)
  description = "Role that reads events, for policies of your own queues and streams; null without `ingest`."
}
