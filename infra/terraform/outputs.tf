output "url" {
  value       = local.url
  description = "Where the API is."
}

output "function_url" {
  value       = aws_lambda_function_url.enqueue.function_url
  description = "The function URL of the API, whatever stands in front of it."
}

output "plugins_url" {
  value       = aws_lambda_function_url.plugins.function_url
  description = "Where plugins are pushed to, and what is called once after an upgrade."
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
  description = "Work to deliver, queues to look at, and queues to look at at an instant."
}

output "deliver_role_arn" {
  value       = module.deliver.role_arn
  description = "Who calls the targets, for the policies of queues, topics, buses and functions in other accounts."
}

output "ingest_function_arn" {
  value       = one(module.ingest[*].arn)
  description = "Who takes events, for sources of your own; none if nothing is to come in."
}

output "ingest_role_arn" {
  value       = one(module.ingest[*].role_arn)
  description = "Who reads events, for the policies of queues and streams of your own; none if nothing is to come in."
}
