"""A preprocessor of mdBook: links that leave the book lead to the repository.

A page may link to `../infra/README.md`, which works where the repository is browsed. The built book
does not contain that file, so the link becomes an absolute one.
"""

import json
import posixpath
import re
import sys

LINK = re.compile(r"\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")


def rewrite(chapter, repository):
    folder = posixpath.join("docs", posixpath.dirname(chapter["path"]))

    def absolute(match):
        target = posixpath.normpath(posixpath.join(folder, match[1]))
        inside = target.startswith("docs/")
        return match[0] if inside else f"]({repository}/blob/main/{target}{match[2] or ''})"

    chapter["content"] = LINK.sub(absolute, chapter["content"])


def walk(items, repository):
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter:
            if chapter.get("path"):
                rewrite(chapter, repository)
            walk(chapter["sub_items"], repository)


if __name__ == "__main__" and sys.argv[1:2] != ["supports"]:
    context, book = json.load(sys.stdin)
    walk(book["items"], context["config"]["output"]["html"]["git-repository-url"])
    json.dump(book, sys.stdout)
