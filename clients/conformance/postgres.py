"""Runs a check of enqueues in transactions, next to Postgres and a server of tidegate on it.

    postgres.py --program TIDEGATE -- COMMAND...

COMMAND gets `TIDEGATE_URL`, and the address of Postgres in the variables of libpq. Its role `shop`
has the rights that `docs/transactions.md` grants, and a schema of its own. There is the type
`letter`. The exit code is COMMAND's, or 69 if this machine has no Postgres.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import pwd
import re
import signal
import subprocess
import sys
import tempfile
import time

import psycopg
from driver import WAIT_SECONDS, Server

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs/transactions.md"
NO_POSTGRES = 69
# It listens on a socket alone, in whose name the port is.
PORT = 5432
SETTINGS = "listen_addresses = ''\nfsync = off\nshared_buffers = 64MB\n"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    programs = programs_of_postgres()
    if programs is None:
        return NO_POSTGRES
    with tempfile.TemporaryDirectory(prefix="tidegate-pg-") as directory:
        postgres = start(programs, pathlib.Path(directory))
        try:
            return run(args.command, args.program, directory)
        finally:
            postgres.send_signal(signal.SIGINT)
            postgres.wait()


def programs_of_postgres() -> pathlib.Path | None:
    """The folder of the programs: Debian's newest, one on the PATH, or that of `./test`."""
    debian = pathlib.Path("/usr/lib/postgresql").glob("*/bin")
    places = sorted(debian, key=lambda place: float(place.parent.name), reverse=True)
    places += map(pathlib.Path, os.environ["PATH"].split(os.pathsep))
    for place in [*places, ROOT / "target/tools/bin"]:
        if all((place / name).exists() for name in ("initdb", "postgres")):
            # A link may be where the user of the server cannot read it.
            return (place / "initdb").resolve().parent
    return None


def user_of_postgres() -> dict:
    """Options of a process of Postgres, which refuses root."""
    if os.getuid() != 0:
        return {}
    names = {user.pw_name: user for user in pwd.getpwall()}
    user = names.get("postgres") or names["nobody"]
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def start(programs: pathlib.Path, folder: pathlib.Path) -> subprocess.Popen:
    """Start Postgres with its data and its socket in `folder`, and wait until it answers."""
    user, data = user_of_postgres(), folder / "data"
    if user:
        os.chown(folder, user["user"], user["group"])
    initdb = [programs / "initdb", "-D", data, "-U", "tidegate", "-A", "trust", "-E", "UTF8"]
    subprocess.run(
        [*initdb, "--locale=C", "--no-sync"],
        cwd="/",
        check=True,
        stdout=subprocess.DEVNULL,
        **user,
    )
    with (data / "postgresql.auto.conf").open("a") as file:
        file.write(SETTINGS)
    log = folder / "postgres.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [programs / "postgres", "-D", data, "-k", folder, "-p", str(PORT)],
            cwd="/",
            stderr=out,
            **user,
        )
    until = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            psycopg.connect(**address(folder), user="tidegate").close()
            return process
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > until:
                process.kill()
                sys.exit(f"Postgres did not start: {log.read_text()}")
            time.sleep(0.02)


def address(folder: str | pathlib.Path) -> dict:
    return {"host": str(folder), "port": PORT, "dbname": "postgres"}


def run(command: list[str], program: str, folder: str) -> int:
    host = folder.replace("/", "%2F")
    store = f"postgres://tidegate@{host}:{PORT}/postgres?sslmode=disable"
    with tempfile.TemporaryDirectory(prefix="tidegate-pg-server-") as directory:
        server = Server(program, directory, store)
        server.start()
        try:
            status, answer = server.call("PUT", "/v1/job-types/letter", {})
            if status >= 300:
                sys.exit(f"the type letter cannot be made: {answer}")
            with psycopg.connect(**address(folder), user="tidegate") as connection:
                connection.execute("CREATE ROLE shop LOGIN")
                connection.execute("CREATE SCHEMA AUTHORIZATION shop")
                for grant in re.findall(r"^GRANT .* TO shop;$", PAGE.read_text(), re.MULTILINE):
                    connection.execute(grant)
            env = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "TIDEGATE_"))}
            env |= {"PGHOST": folder, "PGDATABASE": "postgres", "PGUSER": "shop"}
            env["TIDEGATE_URL"] = server.url
            return subprocess.run(command, env=env).returncode
        finally:
            server.end(signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
