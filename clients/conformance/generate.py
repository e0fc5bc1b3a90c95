"""Writes the types and the defaults of the clients from a server, or checks that they agree.

    generate.py URL --write    writes the types and defaults of clients/*/
    generate.py URL --check    exit code 1 if a committed file differs

URL is a server that `tidegate dev` started: the defaults of queues and types are those that it
gives to an empty configuration. The types of TypeScript come from openapi-typescript.
`clients/check --generate` runs both.
"""

from __future__ import annotations

import argparse
import graphlib
import json
import keyword
import pathlib
import re
import subprocess
import sys
import textwrap
import urllib.request

CLIENTS = pathlib.Path(__file__).resolve().parent.parent
PYTHON_TYPES = CLIENTS / "python/src/tidegate/types.py"
PYTHON_DEFAULTS = CLIENTS / "python/src/tidegate/defaults.py"
TS_DEFAULTS = CLIENTS / "typescript/src/defaults.ts"
GO_TYPES = CLIENTS / "go/api/types.go"
GO_DEFAULTS = CLIENTS / "go/defaults.go"
RUST_DEFAULTS = CLIENTS / "rust/src/defaults.rs"
GENERATED = "Generated from /openapi.json by clients/conformance/generate.py: do not edit."
DEFAULTS_OF = "Generated from a server by clients/conformance/generate.py: do not edit."
REF = "#/components/schemas/"
LANGUAGES = ["python", "typescript", "go", "rust"]
# A schema or a property without an explicit type, such as any value.
JSON = {
    "string": ("str", "string"),
    "integer": ("int", "int64"),
    "number": ("float", "float64"),
    "boolean": ("bool", "bool"),
}


def call(url: str, method: str = "GET", body: object = None) -> object:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read() or b"null")


def ref(schema: dict) -> str | None:
    return schema["$ref"].removeprefix(REF) if "$ref" in schema else None


def kinds(schema: dict) -> list[str]:
    kind = schema.get("type", [])
    return [kind] if isinstance(kind, str) else list(kind)


def nullable(schema: dict) -> bool:
    return "null" in kinds(schema) or any(nullable(part) for part in schema.get("anyOf", []))


# Python


def python_type(schema: dict) -> str:
    if name := ref(schema):
        return name
    if "enum" in schema:
        values = ", ".join(json.dumps(value) for value in schema["enum"])
        base = f"Literal[{values}]"
        return f"{base} | None" if "null" in kinds(schema) else base
    if "anyOf" in schema:
        parts = dict.fromkeys(python_type(part) for part in schema["anyOf"])
        return " | ".join(parts)
    parts = []
    for kind in kinds(schema):
        if kind == "null":
            continue
        if kind == "array":
            parts.append(f"list[{python_type(schema.get('items', {}))}]")
        elif kind == "object":
            values = schema.get("additionalProperties", {})
            parts.append(f"dict[str, {python_type(values) if isinstance(values, dict) else 'Any'}]")
        else:
            parts.append(JSON[kind][0])
    if "null" in kinds(schema):
        parts.append("None")
    return " | ".join(parts) or "Any"


def python_types(schemas: dict) -> str:
    out = [
        f'"""The types of the HTTP API.\n\n{GENERATED}\n"""',
        "",
        "from __future__ import annotations",
        "",
        "from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union",
        "",
        "if TYPE_CHECKING:",
        "    from typing_extensions import NotRequired",
        "",
    ]
    aliases = []
    for name, schema in sorted(schemas.items()):
        if "properties" not in schema:
            text = python_type(schema)
            if " | " in text and "[" not in text:
                text = f"Union[{text.replace(' | ', ', ')}]"
            aliases.append((name, text, schema))
            continue
        required = set(schema.get("required", []))
        fields = []
        for field, inner in sorted(schema["properties"].items()):
            text = python_type(inner)
            fields.append((field, text if field in required else f"NotRequired[{text}]", inner))
        if any(keyword.iskeyword(field) or not field.isidentifier() for field, _, _ in fields):
            inside = "".join(f"        {json.dumps(f)}: {json.dumps(t)},\n" for f, t, _ in fields)
            out.append(f'\n{name} = TypedDict(\n    "{name}",\n    {{\n{inside}    }},\n)')
            out.append(docstring(schema, ""))
            continue
        out.append(f"\nclass {name}(TypedDict):")
        out.append(docstring(schema, "    "))
        for field, text, inner in fields:
            out.append(f"    {field}: {text}")
            if inner.get("description"):
                out.append(docstring(inner, "    "))
        out.append("")
    out.append("\nif TYPE_CHECKING:")
    # An alias follows those that it names.
    names = {name for name, _, _ in aliases}
    uses = {name: set(re.findall(r"\w+", text)) & names for name, text, _ in aliases}
    aliases = [
        by_name[name]
        for by_name in [{alias[0]: alias for alias in aliases}]
        for name in graphlib.TopologicalSorter(uses).static_order()
    ]
    for name, text, schema in aliases:
        out.append(f"    {name} = {text}")
        if schema.get("description"):
            out.append(docstring(schema, "    "))
    return "\n".join(line for line in out if line is not None) + "\n"


def docstring(schema: dict, indent: str) -> str:
    text = " ".join(schema.get("description", "").split()).replace("\\", "\\\\") or "An object."
    lines = textwrap.wrap(text, 96 - len(indent), break_long_words=False)
    if len(lines) == 1 and len(lines[0]) < 90 - len(indent):
        return f'{indent}"""{lines[0]}"""'
    inside = ("\n" + indent).join(lines)
    return f'{indent}"""{inside}\n{indent}"""'


# Go

INITIALS = {"id": "ID", "url": "URL", "arn": "ARN", "ttl": "TTL", "http": "HTTP"}


def go_name(name: str) -> str:
    return "".join(INITIALS.get(part, part[:1].upper() + part[1:]) for part in name.split("_"))


def go_type(schema: dict, schemas: dict, optional: bool) -> str:
    plain = go_plain(schema, schemas)
    if plain.startswith(("[]", "map[")) or plain in ("json.RawMessage", "any"):
        return plain
    return f"*{plain}" if optional or nullable(schema) else plain


def go_plain(schema: dict, schemas: dict) -> str:
    if name := ref(schema):
        target = schemas[name]
        if "properties" in target or ("enum" in target and "anyOf" not in target):
            return name
        return go_plain(target, schemas)
    parts = [part for part in schema.get("anyOf", []) if kinds(part) != ["null"]]
    if parts:
        return go_plain(parts[0], schemas) if len(parts) == 1 else "any"
    present = [kind for kind in kinds(schema) if kind != "null"]
    if len(present) != 1:
        return "json.RawMessage" if not present else "any"
    kind = present[0]
    if kind == "array":
        return f"[]{go_plain(schema.get('items', {}), schemas)}"
    if kind == "object":
        values = schema.get("additionalProperties", {})
        inner = go_plain(values, schemas) if isinstance(values, dict) and values else "any"
        return f"map[string]{inner}"
    return JSON[kind][1]


def go_types(schemas: dict) -> str:
    out = [
        f"// {GENERATED}".replace("Generated", "Code generated").replace(
            ": do not edit.", ". DO NOT EDIT."
        ),
        "",
        "// Package api has the types of the HTTP API.",
        "package api",
        "",
        'import "encoding/json"',
        "",
    ]
    for name, schema in sorted(schemas.items()):
        if "properties" in schema:
            required = set(schema.get("required", []))
            out += [
                go_comment(f"{name}: " + (schema.get("description") or "an object."), ""),
                f"type {name} struct {{",
            ]
            for field, inner in sorted(schema["properties"].items()):
                if inner.get("description"):
                    out.append(go_comment(inner["description"], "\t"))
                optional = field not in required
                tag = f'`json:"{field}{",omitempty" if optional else ""}"`'
                out.append(f"\t{go_name(field)} {go_type(inner, schemas, optional)} {tag}")
            out += ["}", ""]
        elif "enum" in schema and "anyOf" not in schema:
            out += [
                go_comment(f"{name}: " + schema.get("description", "a word."), ""),
                f"type {name} string",
                "",
                f"// The values of {name}.",
                "const (",
            ]
            out += [f'\t{name}{go_name(value)} {name} = "{value}"' for value in schema["enum"]]
            out += [")", ""]
    return "\n".join(out)


def go_comment(text: str, indent: str) -> str:
    lines = textwrap.wrap(" ".join(text.split()), 96, break_long_words=False)
    return "\n".join(f"{indent}// {line}" for line in lines)


def gofmt(text: str) -> str:
    root = subprocess.run(["go", "env", "GOROOT"], capture_output=True, text=True, check=True)
    program = pathlib.Path(root.stdout.strip(), "bin", "gofmt")
    ran = subprocess.run([program], input=text, capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"gofmt: {ran.stderr}")
    return ran.stdout


# Defaults


def defaults(url: str, schemas: dict) -> dict[str, dict]:
    """Every setting of each kind, with the value that an empty configuration gives it."""
    name = "tidegate-client-defaults"
    kinds_of = {
        "queue": ("queues", "QueueConfig", {}),
        "job type": ("job-types", "TypeConfig", {}),
        "schedule": ("schedules", "NewSchedule", {"type": name, "cron": "0 3 * * *"}),
    }
    found: dict[str, dict] = {}
    for kind, (route, schema, body) in kinds_of.items():
        call(f"{url}/v1/{route}/{name}", "PUT", body)
        answer = call(f"{url}/v1/{route}/{name}")
        assert isinstance(answer, dict)
        found[kind] = {
            field: None if field in body else answer.get(field)
            for field in sorted(schemas[schema]["properties"])
        }
    for kind in reversed(kinds_of):
        call(f"{url}/v1/{kinds_of[kind][0]}/{name}", "DELETE")
    found["trigger"] = dict.fromkeys(sorted(schemas["TriggerConfig"]["properties"]))
    return found


def python_defaults(found: dict) -> str:
    text = f'"""The defaults of configurations.\n\n{DEFAULTS_OF}\n"""\n\nfrom typing import Any\n\n'
    return text + f"DEFAULTS: dict[str, dict[str, Any]] = {python_literal(found, 0)}\n"


def python_literal(value: object, depth: int) -> str:
    if isinstance(value, dict) and value:
        pad = "    " * (depth + 1)
        inside = "".join(
            f"{pad}{json.dumps(key)}: {python_literal(item, depth + 1)},\n"
            for key, item in value.items()
        )
        return "{\n" + inside + "    " * depth + "}"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def ts_defaults(found: dict) -> str:
    text = json.dumps(found, indent=2)
    return (
        f"// {DEFAULTS_OF}\n\n/** What an empty configuration of each kind has. */\n"
        f"export const DEFAULTS: Record<string, Record<string, unknown>> = {text};\n"
    )


def go_defaults(found: dict) -> str:
    return (
        f"// Code generated by clients/conformance/generate.py. DO NOT EDIT.\n\n"
        "package tidegate\n\n// defaultsJSON is what an empty configuration of each kind has.\n"
        f"const defaultsJSON = `{json.dumps(found, indent=1)}`\n"
    )


def rust_defaults(found: dict) -> str:
    return (
        f"//! The defaults of configurations.\n//!\n//! {DEFAULTS_OF}\n\n"
        "/// What an empty configuration of each kind has.\n"
        f'pub(crate) const DEFAULTS: &str = r#"{json.dumps(found, indent=1)}"#;\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true")
    mode.add_argument("--check", action="store_true")
    parser.add_argument("--language", choices=LANGUAGES, action="append")
    args = parser.parse_args()
    document = call(f"{args.url}/openapi.json")
    assert isinstance(document, dict)
    schemas = document["components"]["schemas"]
    languages = args.language or LANGUAGES
    found = defaults(args.url, schemas)
    files = {}
    if "python" in languages:
        files[PYTHON_TYPES] = python_types(schemas)
        files[PYTHON_DEFAULTS] = python_defaults(found)
    if "typescript" in languages:
        files[TS_DEFAULTS] = ts_defaults(found)
    if "go" in languages:
        files[GO_TYPES] = gofmt(go_types(schemas))
        files[GO_DEFAULTS] = gofmt(go_defaults(found))
    if "rust" in languages:
        files[RUST_DEFAULTS] = rust_defaults(found)
    wrong = []
    for file, text in files.items():
        if args.check:
            if not file.exists() or file.read_text() != text:
                wrong.append(str(file.relative_to(CLIENTS)))
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    if wrong:
        sys.exit(f"{', '.join(wrong)}: not as the server's document; run clients/check --generate")


if __name__ == "__main__":
    main()
