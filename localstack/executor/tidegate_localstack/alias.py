"""Aliases of functions that an update of a stack moves to another version.

LocalStack's provider of `AWS::Lambda::Alias` cannot update: its engine creates the alias again, which
fails, and would then delete it as the old one. Here a creation moves an alias that exists, and a
deletion leaves an alias that another version has taken over.
"""


def patch() -> None:
    """Replaces the methods of LocalStack's provider."""
    from localstack.services.cloudformation.resource_provider import OperationStatus, ProgressEvent
    from localstack.services.lambda_.resource_providers.lambda_alias import REPEATED_INVOCATION, LambdaAliasProvider

    create_alias, delete_alias = LambdaAliasProvider.create, LambdaAliasProvider.delete

    def create(self, request):
        model, client = request.desired_state, request.aws_client_factory.lambda_
        names = {"FunctionName": model["FunctionName"], "Name": model["Name"]}
        try:
            client.get_alias(**names)
        except client.exceptions.ResourceNotFoundException:
            return create_alias(self, request)
        # A new alias is created in steps, of which this is the second.
        if request.custom_context.get(REPEATED_INVOCATION):
            return create_alias(self, request)
        changed = {key: model[key] for key in ("FunctionVersion", "Description", "RoutingConfig") if key in model}
        model["Id"] = client.update_alias(**names, **changed)["AliasArn"]
        return ProgressEvent(status=OperationStatus.SUCCESS, resource_model=model, custom_context=request.custom_context)

    def delete(self, request):
        model, client = request.desired_state, request.aws_client_factory.lambda_
        try:
            now = client.get_alias(FunctionName=model["FunctionName"], Name=model["Name"])
        except client.exceptions.ResourceNotFoundException:
            now = None
        if now is not None and now["FunctionVersion"] != model.get("FunctionVersion", now["FunctionVersion"]):
            return ProgressEvent(status=OperationStatus.SUCCESS, resource_model=request.previous_state)
        return delete_alias(self, request)

    LambdaAliasProvider.create = LambdaAliasProvider.update = create
    LambdaAliasProvider.delete = delete
