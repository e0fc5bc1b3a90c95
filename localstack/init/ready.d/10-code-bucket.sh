#!/usr/bin/env bash
# Creates the bucket to which localstack/deploy uploads the functions' zips. Every stack runs this
# script when it is ready.
set -euo pipefail
# In LocalStack's container `awslocal` knows the endpoint; elsewhere `aws` reads AWS_ENDPOINT_URL.
aws=$(command -v awslocal || command -v aws)
"$aws" s3api head-bucket --bucket tidegate-code 2>/dev/null || "$aws" s3api create-bucket --bucket tidegate-code
