"""Checks packaging/bucket and its pages:  check_bucket.py PROGRAM CFN_LINT CHECK_JSONSCHEMA [FOLDER]

First the files as they are: by the schemas of their platforms, and against the program and the pages. Then
copies with planted faults: the same checks must find each. With FOLDER, only the files, as a release has
them there: all of them, by the schemas and against the program.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bucket_check import Fault, agrees, container_app, fields, files, leaders, pages
from bucket_check.faults import FAULTS, OF_SCHEMAS, SOURCES
from bucket_check.program import Program

ROOT = Path(__file__).parent.parent
PROGRAM, CFN_LINT, CHECK_JSONSCHEMA = (str(Path(name).absolute()) for name in sys.argv[1:4])
MANIFESTS = [sys.executable, str(ROOT / "packaging/check_manifests.py")]
SCHEMAS = {
    files.FARGATE: [CFN_LINT],
    files.KUBERNETES: MANIFESTS,
    files.HOURS: MANIFESTS,
    files.COMPOSE: [CHECK_JSONSCHEMA, "--builtin-schema", "vendor.compose-spec"],
}


def valid(root, file):
    done = subprocess.run([*SCHEMAS[file], str(root / file)], capture_output=True, text=True)
    if done.returncode:
        raise Fault(f"{file}: {done.stdout}{done.stderr}")


def check_files(root, program):
    servers = files.read(root)
    fields.check(root)
    container_app.check(root)
    agrees.check(servers, program)
    leaders.check(root, servers)
    return servers


def check(root):
    program = Program(PROGRAM, root)
    servers = check_files(root, program)
    pages.check(root, program, servers)


def check_released(folder):
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert there == set(files.FILES), f"other files than in packaging/bucket: {there ^ set(files.FILES)}"
    for name in SCHEMAS:
        valid(folder, name)
    check_files(folder, Program(PROGRAM, ROOT))
    print(f"{len(there)} files")


def copy(to):
    for path in (*SOURCES, *files.FILES, *pages.PAGES):
        (to / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, to / path)


def missed(find, root, planted):
    """The planted faults that `find` does not find, or finds for another reason."""
    wrong = []
    for file, old, new, message in planted:
        path = root / file
        text = path.read_text()
        assert old in text, f"nothing to change in {file}: {old}"
        path.write_text(text.replace(old, new, 1))
        try:
            find(root, file)
            wrong.append(f"not found in {file}: {new!r}")
        except Fault as fault:
            if message not in str(fault):
                wrong.append(f"in {file}, {new!r} is found as: {fault}")
        path.write_text(text)
    return wrong


if sys.argv[4:]:
    check_released(Path(sys.argv[4]))
    sys.exit()
for name in SCHEMAS:
    valid(ROOT, name)
check(ROOT)
with tempfile.TemporaryDirectory() as folder:
    copy(Path(folder))
    check(Path(folder))
    wrong = missed(valid, Path(folder), OF_SCHEMAS)
    wrong += missed(lambda root, _: check(root), Path(folder), FAULTS)
assert not wrong, "\n".join(wrong)
planted = len(FAULTS) + len(OF_SCHEMAS)
print(f"{len(files.FILES)} files for a bucket, and {len(pages.PAGES)} pages; {planted} planted faults are found")
