"""`PROVIDER_OVERRIDE_DYNAMODB=dynoxide`: LocalStack's DynamoDB with `dynoxide` behind it.

LocalStack's provider starts Amazon's DynamoDB Local, whose licence forbids redistribution. This is the
same provider with another process, `DYNOXIDE_BIN`. It sets `DYNOXIDE_URL` to the address of that
process, so that the functions bypass LocalStack, which takes ten times as long for a request.
"""

import os

from localstack.aws.forwarder import HttpFallbackDispatcher
from localstack.services.plugins import Service, aws_provider


@aws_provider(api="dynamodb", name="dynoxide")
def dynamodb() -> Service:
    from localstack.services.dynamodb import server
    from localstack.services.dynamodb.v2.provider import DynamoDBProvider
    from localstack.utils.common import TMP_THREADS, ShellCommandThread

    def start(self):
        command = [os.environ["DYNOXIDE_BIN"], "serve", "--log", "quiet", "--port", str(self.port)]
        thread = ShellCommandThread(command, strip_color=True, auto_restart=True, name="dynoxide")
        # LocalStack stops the listed servers when it stops.
        TMP_THREADS.append(thread)
        thread.start()
        os.environ["DYNOXIDE_URL"] = f"http://127.0.0.1:{self.port}"
        return thread

    server.DynamodbServer.do_start_thread = start
    return Service.for_provider(DynamoDBProvider(), dispatch_table_factory=lambda it: HttpFallbackDispatcher(it, it.get_forward_url))
