# Data. Terraform deletes neither resource while it has content: the table is protected, and S3 does
# not delete a bucket with objects. Before `table_name` or `bucket_name` names another one, remove
# the old one from Terraform's state, a bucket with its settings (../../docs/deploy-aws.md, Back
# up).

resource "aws_dynamodb_table" "jobs" {
  count                       = var.table_name == "" ? 1 : 0
  name                        = "${var.name}-jobs"
  billing_mode                = "PAY_PER_REQUEST"
  hash_key                    = "p"
  range_key                   = "s"
  deletion_protection_enabled = var.deletion_protection

  attribute {
    name = "p"
    type = "S"
  }
  attribute {
    name = "s"
    type = "S"
  }
  # Finished jobs have `x`, and the parts of large records. So do index entries of waiting jobs and
  # the registrations of their hours, which expire after 400 days: the function `sweep` renews them.
  ttl {
    attribute_name = "x"
    enabled        = true
  }
  point_in_time_recovery {
    enabled = var.point_in_time_recovery
  }
  server_side_encryption {
    enabled     = var.kms_key_arn != ""
    kms_key_arn = var.kms_key_arn == "" ? null : var.kms_key_arn
  }
  dynamic "on_demand_throughput" {
    for_each = var.max_read_request_units + var.max_write_request_units == 0 ? [] : [1]
    content {
      max_read_request_units  = var.max_read_request_units == 0 ? -1 : var.max_read_request_units
      max_write_request_units = var.max_write_request_units == 0 ? -1 : var.max_write_request_units
    }
  }
  tags = local.tags
}

resource "aws_s3_bucket" "objects" {
  #checkov:skip=CKV_AWS_19:It is encrypted either way; the check does not evaluate the condition on the key
  count         = var.bucket_name == "" ? 1 : 0
  bucket_prefix = "${var.name}-"
  tags          = local.tags
}

resource "aws_s3_bucket_server_side_encryption_configuration" "objects" {
  count  = length(aws_s3_bucket.objects)
  bucket = aws_s3_bucket.objects[0].id
  rule {
    apply_server_side_encryption_by_default {
      sse_algorithm     = var.kms_key_arn == "" ? "AES256" : "aws:kms"
      kms_master_key_id = var.kms_key_arn == "" ? null : var.kms_key_arn
    }
    bucket_key_enabled = var.kms_key_arn != ""
  }
}

resource "aws_s3_bucket_ownership_controls" "objects" {
  count  = length(aws_s3_bucket.objects)
  bucket = aws_s3_bucket.objects[0].id
  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_public_access_block" "objects" {
  count                   = length(aws_s3_bucket.objects)
  bucket                  = aws_s3_bucket.objects[0].id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

# No request without TLS reads or writes an object.
resource "aws_s3_bucket_policy" "objects" {
  count  = length(aws_s3_bucket.objects)
  bucket = aws_s3_bucket.objects[0].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "OnlyTls"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:*"
      Resource  = [aws_s3_bucket.objects[0].arn, "${aws_s3_bucket.objects[0].arn}/*"]
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }]
  })
}

# The server deletes a body with its job and keeps plugins. Only unfinished uploads expire.
resource "aws_s3_bucket_lifecycle_configuration" "objects" {
  count  = length(aws_s3_bucket.objects)
  bucket = aws_s3_bucket.objects[0].id
  rule {
    id     = "unfinished-uploads"
    status = "Enabled"
    filter {}
    abort_incomplete_multipart_upload {
      days_after_initiation = 1
    }
  }
}

data "aws_partition" "here" {}
data "aws_region" "here" {}
data "aws_caller_identity" "here" {}

locals {
  tags           = { tidegate = var.name }
  arn_of_account = "${data.aws_region.here.name}:${data.aws_caller_identity.here.account_id}"
  table = {
    name = var.table_name == "" ? aws_dynamodb_table.jobs[0].name : var.table_name
    arn  = var.table_name == "" ? aws_dynamodb_table.jobs[0].arn : "arn:${data.aws_partition.here.partition}:dynamodb:${local.arn_of_account}:table/${var.table_name}"
  }
  bucket = {
    name = var.bucket_name == "" ? aws_s3_bucket.objects[0].bucket : var.bucket_name
    arn  = "arn:${data.aws_partition.here.partition}:s3:::${var.bucket_name == "" ? aws_s3_bucket.objects[0].bucket : var.bucket_name}"
  }
}
