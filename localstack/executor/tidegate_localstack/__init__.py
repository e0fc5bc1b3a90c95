"""LocalStack without Docker: functions as processes of this machine, DynamoDB by dynoxide.

Both are plugins that LocalStack finds by their entry points (`pyproject.toml`) and that its environment chooses:
`LAMBDA_RUNTIME_EXECUTOR=process` and `PROVIDER_OVERRIDE_DYNAMODB=dynoxide`. The interfaces they fill are not promised by
LocalStack, which is why its version is pinned.
"""
