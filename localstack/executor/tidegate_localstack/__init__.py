"""LocalStack without Docker: functions as processes of this machine, DynamoDB by dynoxide.

Both are plugins that LocalStack finds by their entry points (`pyproject.toml`). Environment variables
select them: `LAMBDA_RUNTIME_EXECUTOR=process` and `PROVIDER_OVERRIDE_DYNAMODB=dynoxide`. Their
interfaces are internal to LocalStack and may change, so its version is pinned.
"""
