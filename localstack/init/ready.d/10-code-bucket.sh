#!/usr/bin/env bash
# Run by every stack when it is ready: the bucket that localstack/deploy puts the functions' zips into.
set -euo pipefail
# In LocalStack's own container the endpoint is known to `awslocal`; elsewhere AWS_ENDPOINT_URL says it to `aws`.
aws=$(command -v awslocal || command -v aws)
"$aws" s3api head-bucket --bucket tidegate-code 2>/dev/null || "$aws" s3api create-bucket --bucket tidegate-code
