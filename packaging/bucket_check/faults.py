"""Planted faults: each is one change of one file, and the words of the check that must find it."""

from .files import APP_HOURS, CLOUD_RUN, COMPOSE, CONTAINER_APPS, FARGATE, FLY, HOURS, KUBERNETES

SERVE_LOG = "src/cli/serve/log.rs"
IMAGE = "xtask/src/release/image.rs"
HEALTH = "src/server/handlers/health.rs"
# What a copy needs so that the check can run on it.
SOURCES = ("Cargo.toml", "docs/operate.md", "docs/deploy-bucket.md", SERVE_LOG, IMAGE, HEALTH)

# Found by schemas, which run for the changed file alone.
OF_SCHEMAS = (
    (KUBERNETES, "podManagementPolicy: Parallel", "podManagement: Parallel", "podManagement"),
    (HOURS, "maxReplicaCount: 2", "maxReplicas: 2", "maxReplicas"),
    (FARGATE, "StopTimeout: 30", "StopTimeouts: 30", "StopTimeouts"),
    (FARGATE, "SourceSecurityGroupId: !Ref BalancerGroup", "SourceSecurityGroupId: !Ref LoadGroup", "LoadGroup"),
    (COMPOSE, "stop_grace_period: 30s", "stop_grace: 30s", "stop_grace"),
)
# Found by the rest.
FAULTS = (
    # The program and the files differ.
    (CLOUD_RUN, "TIDEGATE_SHUTDOWN_SECONDS", "TIDEGATE_STOP_SECONDS", "TIDEGATE_STOP_SECONDS is no setting"),
    (CLOUD_RUN, 'value: "3"', 'value: "6"', "a stop takes up to 11"),
    (CLOUD_RUN, "value: gs://", "value: s3://", "has the log s3://"),
    (CLOUD_RUN, "value: gs://", "value: ftp://", "refuses its settings"),
    (CONTAINER_APPS, "terminationGracePeriodSeconds: 30", "terminationGracePeriodSeconds: 15", "kills after 15 s"),
    (CONTAINER_APPS, "AZURE_CLIENT_ID", "AZURE_IDENTITY", "nothing reads AZURE_IDENTITY"),
    (CONTAINER_APPS, "targetPort: 8080", "targetPort: 80", "calls port 8080 instead of 80"),
    (CONTAINER_APPS, "path: /readyz", "path: /ready", "the ready probe is /ready"),
    (FLY, "internal_port = 8080", "internal_port = 3000", "has port 3000"),
    (FLY, "tidegate/tidegate:", "tidegate/server:", "has the image"),
    (FLY, "kill_timeout = 30", "kill_timeout = 5", "kills after 5 s"),
    (FARGATE, "StopTimeout: 30", "StopTimeout: 10", "kills after 10 s"),
    (FARGATE, "HealthCheckPath: /readyz", "HealthCheckPath: /healthz", "the ready probe is /healthz"),
    (KUBERNETES, "runAsUser: 65532", "runAsUser: 1000", "the user 1000"),
    (KUBERNETES, "mountPath: /data", "mountPath: /var/lib/tidegate", "mounts"),
    (COMPOSE, "/data:uid=65532", "/data:uid=1000", "the user 1000"),
    (IMAGE, '"0.0.0.0:8080"', '"0.0.0.0:8081"', "has port 8080, and the image 8081"),
    (HEALTH, '["/healthz", "/readyz"]', '["/livez", "/readyz"]', "probe is /healthz"),
    (
        SERVE_LOG,
        "RELEASE_TIMEOUT: Duration = Duration::from_secs(5)",
        "RELEASE_TIMEOUT: Duration = Duration::from_secs(20)",
        "a stop takes up to",
    ),
    # More than one leads, or requests do not reach the leader.
    (CLOUD_RUN, 'manualInstanceCount: "1"', 'manualInstanceCount: "2"', "2 servers, and standby is False"),
    (CLOUD_RUN, 'cpu-throttling: "false"', 'cpu-throttling: "true"', "a leader without a CPU"),
    (
        CLOUD_RUN,
        "run.googleapis.com/scalingMode: manual",
        "run.googleapis.com/scalingMode: automatic",
        "scalingMode",
    ),
    (CLOUD_RUN, "failureThreshold: 120", "failureThreshold: 200", "Cloud Run allows 240"),
    (
        CLOUD_RUN,
        "            - name: TIDEGATE_LOG\n",
        '            - name: TIDEGATE_STANDBY\n              value: "true"\n            - name: TIDEGATE_LOG\n',
        "1 servers, and standby is True",
    ),
    (CONTAINER_APPS, "activeRevisionsMode: Single", "activeRevisionsMode: Multiple", "activeRevisionsMode"),
    (CONTAINER_APPS, "minReplicas: 2\n      maxReplicas: 2", "minReplicas: 1\n      maxReplicas: 2", "minReplicas"),
    (APP_HOURS, "maxReplicas: 2", "maxReplicas: 3", "has the counts"),
    (APP_HOURS, "    scale:", "    scaling:", "has no field scaling"),
    (CONTAINER_APPS, "path: /healthz", "path: /readyz", "the startup probe is /readyz"),
    (FLY, '"immediate"', '"rolling"', "wait until a standby is ready"),
    (FLY, 'auto_stop_machines = "off"', 'auto_stop_machines = "stop"', "would stop the standby"),
    (FLY, 'TIDEGATE_STANDBY = "true"\n', "", "2 servers, and standby is False"),
    (FARGATE, "MaximumPercent: 100", "MaximumPercent: 200", "the old task ends first"),
    (FARGATE, "DesiredCount: 1\n", "DesiredCount: 2\n", "2 servers, and standby is False"),
    (FARGATE, '"DesiredCount": 0}', '"DesiredCount": 1}', "StopSchedule sends"),
    (KUBERNETES, "type: OnDelete", "type: RollingUpdate", "updateStrategy"),
    (KUBERNETES, "replicas: 2", "replicas: 1", "1 servers, and standby is True"),
    (KUBERNETES, "  publishNotReadyAddresses: true\n", "", "a standby has a name too"),
    (KUBERNETES, "minAvailable: 1", "maxUnavailable: 1", "minAvailable"),
    (
        KUBERNETES,
        "periodSeconds: 2\n            failureThreshold: 1\n",
        "periodSeconds: 10\n            failureThreshold: 3\n",
        "a leader that was replaced is ready for 30 s",
    ),
    (HOURS, 'desiredReplicas: "2"', 'desiredReplicas: "1"', "has the counts"),
    (COMPOSE, "server b tidegate-b:8080", "server b tidegate-c:8080", "the proxy knows"),
    (COMPOSE, "uri /readyz", "uri /healthz", "the ready probe is /healthz"),
    (COMPOSE, "restart: always\n  stop", "restart: 'no'\n  stop", "a process leads at most once"),
    (COMPOSE, "mkdir -p /data/tidegate ", "mkdir -p /data/jobs ", "the bucket of the log is not made"),
    (COMPOSE, "#   ENCRYPTION_KEY=", "#   KEY=", "how to make ENCRYPTION_KEY"),
    # Secrets and rights.
    (
        KUBERNETES,
        "            - name: TIDEGATE_ADMIN_TOKEN\n"
        "              valueFrom:\n"
        "                secretKeyRef:\n"
        "                  name: tidegate\n"
        "                  key: admin-token\n",
        "            - name: TIDEGATE_ADMIN_TOKEN\n              value: admin:hash\n",
        "in clear text",
    ),
    (
        CONTAINER_APPS,
        "          - name: TIDEGATE_ENCRYPTION_KEY\n            secretRef: encryption-key\n",
        "",
        "lacks {'TIDEGATE_ENCRYPTION_KEY'}",
    ),
    (FARGATE, '"s3:DeleteObject"]', '"s3:DeleteObject", "s3:PutBucketPolicy"]', "the rights"),
    (FARGATE, '"${Bucket.Arn}/tidegate/*"', '"${Bucket.Arn}/*"', "s3:GetObject is for"),
    (
        FARGATE,
        'Action: "s3:ListBucket"\n',
        'Action: "s3:ListBucket"\n                Condition: {StringLike: {"s3:prefix": "tidegate/*"}}\n',
        "403 for an absent object",
    ),
    (FARGATE, "Protocol: HTTPS", "Protocol: HTTP", "without TLS"),
    # Fields that a platform does not know.
    (CLOUD_RUN, "containerConcurrency", "concurrency", "has no field concurrency"),
    (
        CLOUD_RUN,
        "run.googleapis.com/cpu-throttling",
        "run.googleapis.com/cpu_throttling",
        "has no field run.googleapis.com/cpu_throttling",
    ),
    (CONTAINER_APPS, "allowInsecure: false", "insecure: false", "has no field insecure"),
    (CONTAINER_APPS, "transport: http", "transport: http1", "'http1' and not one of"),
    (CONTAINER_APPS, "cpu: 0.5", 'cpu: "0.5"', "'0.5' and not float"),
    (FLY, "force_https", "https_only", "has no field https_only"),
    # The pages.
    ("docs/bucket-fargate.md", "MaximumPercent: 100", "MaximumPercent: 200", "this is not in"),
    ("docs/bucket-kubernetes.md", "failureThreshold: 1\n", "failureThreshold: 2\n", "this is not in"),
    (
        "docs/bucket-fly.md",
        "<!-- from packaging/bucket/fly/fly.toml -->\n```toml\n  strategy",
        "```toml\n  strategy",
        "with their file",
    ),
    ("docs/bucket-cloud-run.md", "storage.objects.list", "storage.objects.update", "the rights"),
    ("docs/bucket-cloud-run.md", "$URL/\"", "$URL/readyz\"", "a path that ends with z"),
    ("docs/bucket-cloud-run.md", "\ntidegate queues list", "\ntidegate health", "which requests /readyz"),
    ("docs/bucket-cloud-run.md", "no `TIDEGATE_STANDBY`", "no `TIDEGATE_FOLLOW`", "TIDEGATE_FOLLOW is no setting"),
    ("docs/bucket-fly.md", "fly scale count 2", "fly scale count 3", "lacks `fly scale count 2"),
    ("docs/bucket-fly.md", "tidegate token create --name", "tidegate token create --label", "has no --label"),
    ("docs/bucket-fargate.md", "\ntidegate queues list", "\ntidegate queue list", "no command"),
    ("docs/bucket-container-apps.md", "**Not tried on the platform.**", "", "does not say what was tried"),
    ("docs/bucket-container-apps.md", "export URL=", "URL=", "does not export URL"),
    ("docs/bucket-fargate.md", "## Remove", "## Delete", "has the sections"),
    ("docs/deploy-bucket.md", "](bucket-fly.md)", "](fly.md)", "has no link to bucket-fly.md"),
)
