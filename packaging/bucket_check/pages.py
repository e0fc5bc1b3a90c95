"""The pages of docs/: what they quote, the rights and names in them, and what they must say."""

import itertools
import re
import textwrap

from . import want
from .files import APP_HOURS, CLOUD_RUN, COMPOSE, CONTAINER_APPS, FARGATE, FILES, FLY, HOURS, KUBERNETES, variables

# The files of each page, and texts that its quotations must contain.
PAGES = {
    "docs/bucket-cloud-run.md": ((CLOUD_RUN,), ("scalingMode: manual", "path: /readyz")),
    "docs/bucket-container-apps.md": ((CONTAINER_APPS, APP_HOURS), ("maxReplicas: 2", "path: /readyz", "type: cron")),
    "docs/bucket-fly.md": ((FLY,), ('path = "/readyz"', 'strategy = "immediate"', 'auto_stop_machines = "off"')),
    "docs/bucket-fargate.md": ((FARGATE,), ("MaximumPercent: 100", "s3:ListBucket")),
    "docs/bucket-kubernetes.md": ((KUBERNETES, HOURS), ("path: /readyz", "type: OnDelete", "type: cron")),
}
HUB = "docs/deploy-bucket.md"
OF_CLOUD_RUN = "docs/bucket-cloud-run.md"
OF_FLY = "docs/bucket-fly.md"
# The rights on each kind of bucket: how they are found in a page, and those that a server needs.
RIGHTS = (
    (r"storage\.objects\.(\w+)", {"create", "delete", "get", "list"},
     ("docs/bucket-cloud-run.md", "docs/bucket-kubernetes.md")),
    (r"(?:\$BLOBS|blobs)/(\w+)", {"read", "write", "delete"},
     ("docs/bucket-container-apps.md", "docs/bucket-kubernetes.md")),
    (r"s3:(\w+)", {"GetObject", "PutObject", "DeleteObject", "ListBucket"},
     ("docs/bucket-fly.md", "docs/bucket-fargate.md", "docs/bucket-kubernetes.md")),
)
# Variables of the command line, which are no settings.
COMMAND_VARIABLES = {"TIDEGATE_URL", "TIDEGATE_TOKEN"}
SECTIONS = (
    "## Start", "## One leads", "## Watch", "## Replace a version", "## Scale to zero", "## Cost", "## Remove",
    "## What was checked",
)
MARK = re.compile(r"<!-- from (\S+) -->\n```(\w+)\n(.*?)```", re.DOTALL)


def is_part(quoted, text):
    """Whether these lines follow each other in `text`, indented as a whole."""
    lines, wanted = text.splitlines(), textwrap.dedent(quoted).splitlines()
    parts = (lines[at:at + len(wanted)] for at in range(len(lines)))
    return any(textwrap.dedent("\n".join(part)).splitlines() == wanted for part in parts)


def quotations(root, page, text, files, wanted):
    """Each block of a file's language is quoted from one of the page's files, as it is there."""
    blocks = re.findall(r"^```(?:yaml|toml|json)\n", text, re.MULTILINE)
    marked = MARK.findall(text)
    want(len(blocks) == len(marked), f"{page}: {len(blocks)} blocks, and {len(marked)} with their file")
    for file, _, quoted in marked:
        want(file in files, f"{page} quotes {file}")
        want(is_part(quoted, (root / file).read_text()), f"{page}: this is not in {file}:\n{quoted}")
    whole = "".join(quoted for _, _, quoted in marked)
    for part in wanted:
        want(part in whole, f"{page} does not quote {part!r}")


def names(program, page, text):
    """Settings, and the commands of the program with their flags, exist."""
    for name in set(re.findall(r"\bTIDEGATE_[A-Z_]*[A-Z]\b", text)):
        want(name in program.variables | COMMAND_VARIABLES, f"{page}: {name} is no setting")
    for setting in re.findall(r"`([a-z]+(?:_[a-z]+)*_seconds)`", text):
        want(f"TIDEGATE_{setting.upper()}" in program.variables, f"{page}: {setting} is no setting")
    for command in commands(text):
        words = list(itertools.takewhile(lambda word: not word.startswith("-"), command))
        flags = [word.split("=")[0] for word in command if word.startswith("-")]
        known = program.flags_of(words)
        want(known is not None, f"{page}: `tidegate {' '.join(words)}` is no command")
        for flag in flags:
            want(flag in known, f"{page}: `tidegate {' '.join(words)}` has no {flag}")


def commands(text):
    """The words after `tidegate` of each command in the page's scripts."""
    for script in re.findall(r"^```sh,no-run\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for command in re.split(r"\n|;|&&| & |\|", re.sub(r"\s#.*", "", script)):
            words = command.removeprefix("until ").split()
            if words and words[0] == "tidegate":
                yield words[1:]


def check(root, program, servers):
    hub = (root / HUB).read_text()
    linked = set()
    for page, (files, wanted) in PAGES.items():
        text = (root / page).read_text()
        quotations(root, page, text, files, wanted)
        names(program, page, text)
        want("**Not tried on the platform.**" in text, f"{page} does not say what was tried")
        headings = [line for line in text.splitlines() if line in SECTIONS]
        want(headings == list(SECTIONS), f"{page} has the sections {headings}")
        for file in files:
            want(f"](../{file})" in text, f"{page} has no link to {file}")
            linked.add(file)
            # Those of the stack are its own parameters and resources.
            for name in variables((root / file).read_text()) if file != FARGATE else ():
                exported = re.search(rf"^ *export (?:[^=\n]+=\S+ )*{name}=", text, re.MULTILINE)
                want(exported, f"{page} does not export {name}")
        name = page.removeprefix("docs/")
        want(f"]({name})" in hub, f"{HUB} has no link to {name}")
    app = servers[FLY]
    scaled = f"fly scale count {app.count} --region {app.document['primary_region']}\n"
    want(scaled in (root / OF_FLY).read_text(), f"{OF_FLY} lacks `{scaled.strip()}`")
    text = (root / COMPOSE).read_text()
    for name in variables(text):
        want(f"#   {name}=" in text, f"{COMPOSE} does not say how to make {name}")
    # Cloud Run answers some paths that end with z itself.
    text = (root / OF_CLOUD_RUN).read_text()
    want(not re.search(r"\$URL/\w*z\b", text), f"{OF_CLOUD_RUN} requests a path that ends with z")
    want(["health"] not in commands(text), f"{OF_CLOUD_RUN} uses `tidegate health`, which requests /readyz")
    want(f"](../{COMPOSE})" in hub, f"{HUB} has no link to {COMPOSE}")
    want(linked | {COMPOSE} == set(FILES), f"no page has {set(FILES) - linked}")
    there = {str(path.relative_to(root)) for path in (root / "packaging/bucket").rglob("*") if path.is_file()}
    want(there == set(FILES), f"packaging/bucket has other files: {there ^ set(FILES)}")
    for pattern, rights, pages in RIGHTS:
        for page in pages:
            found = set(re.findall(pattern, (root / page).read_text()))
            want(found == rights, f"{page}: the rights {found ^ rights} of {pattern}")
