"""Runs the programs of `clients/README.md`, section "Write a worker", as they are printed.

    readme.py --program TIDEGATE --language NAME -- COMMAND...

The first block of a language is the worker, the second enqueues a job and prints its result.
COMMAND gets the path of the folder with the files of both, and `work` or `enqueue`. Those of Rust
are built before: they are the examples `letter_worker` and `letter_enqueue` of the package, with
which the blocks are compared. The page `docs/worker.md` has the same blocks.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

from driver import Server

CLIENTS = pathlib.Path(__file__).resolve().parent.parent
README = CLIENTS / "README.md"
PAGE = CLIENTS.parent / "docs/worker.md"
RUST = {"work": "letter_worker", "enqueue": "letter_enqueue"}
WANTED = "sent to ann@example.com"
SUFFIXES = {
    "python": ("Python", "py"),
    "typescript": ("TypeScript", "ts"),
    "go": ("Go", "go"),
    "rust": ("Rust", "rs"),
}
GO_MAIN = """package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	tidegate "github.com/tidegate/tidegate/clients/go"
	"github.com/tidegate/tidegate/clients/go/api"
)

WORKER

func enqueue(ctx context.Context, client *tidegate.Client) error {
	JOB
	fmt.Println(result)
	return err
}

func main() {
	ctx := context.Background()
	client, err := tidegate.NewClient(tidegate.ClientOptions{})
	if err == nil && os.Args[2] == "work" {
		err = work(ctx)
	} else if err == nil {
		err = enqueue(ctx, client)
	}
	if err != nil {
		log.Fatal(err)
	}
}
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--language", required=True, choices=list(SUFFIXES))
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    heading, suffix = SUFFIXES[args.language]
    section = re.search(rf"\n### {heading}\n(.*?)\n##", README.read_text(), re.DOTALL)
    blocks = re.findall(r"```\w+\n(.*?)```", section[1], re.DOTALL) if section else []
    if len(blocks) != 2:
        sys.exit(f"README.md has {len(blocks)} programs in {heading}, not a worker and an enqueue")
    page = PAGE.read_text()
    for block in blocks:
        if block not in page:
            sys.exit(f"docs/worker.md has another program in {heading}, without this:\n{block}")
    if args.language == "rust":
        for name, block in zip(RUST.values(), blocks, strict=True):
            text = (CLIENTS / f"rust/examples/{name}.rs").read_text()
            # The first line says what the file is.
            if text.partition("\n\n")[2] != block:
                sys.exit(f"README.md: a program in Rust differs from rust/examples/{name}.rs")
    with tempfile.TemporaryDirectory(prefix="tidegate-readme-") as directory:
        folder = pathlib.Path(directory)
        if args.language == "go":
            text = GO_MAIN.replace("WORKER", blocks[0]).replace("JOB", blocks[1])
            (folder / "main.go").write_text(text)
        else:
            for name, block in zip(("work", "enqueue"), blocks, strict=True):
                (folder / f"{name}.{suffix}").write_text(block)
        server = Server(args.program, directory)
        server.start()
        try:
            run(args.command, folder, server)
        finally:
            server.end()
    print(f"{args.language}: the programs of README.md run as printed")


def run(command: list[str], folder: pathlib.Path, server: Server) -> None:
    env = {**os.environ, "TIDEGATE_URL": server.url}
    with subprocess.Popen([*command, str(folder), "work"], env=env) as worker:
        try:
            while server.call("GET", "/v1/job-types/letter")[0] != 200:
                if worker.poll() is not None:
                    sys.exit(f"the worker ended with {worker.returncode}")
            enqueue = [*command, str(folder), "enqueue"]
            out = subprocess.run(
                enqueue, env=env, timeout=60, check=True, stdout=subprocess.PIPE, text=True
            ).stdout
            if out.strip() != WANTED:
                sys.exit(f"the result is {out!r}")
            worker.send_signal(signal.SIGTERM)
            if worker.wait(20) != 0:
                sys.exit(f"the worker ended with {worker.returncode}")
        finally:
            worker.kill()


if __name__ == "__main__":
    main()
