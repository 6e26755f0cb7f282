"""Hooks of MkDocs: pages made from files outside docs/, and the reference of the public Python names.

Pages in docs/ link to files of the repository, as a code host shows them. On the site each of these files is a page:
Markdown as it is, other text in a block, a directory as a list.
"""

from __future__ import annotations

import ast
import html
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
SPAN = re.compile(r"`([^`\n]*\\\|[^`\n]*)`")
CODE = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)
NAMES = {
    "README.md": "readme.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "report-a-vulnerability.md",
}
LANGUAGES = {".py": "python", ".sh": "sh", ".yaml": "yaml", ".toml": "toml"}


def page_of(path: str) -> str:
    """The page of the site for a file or directory of the repository."""
    if path == "docs":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.endswith((".md", ".svg", ".png")):
        return NAMES.get(path, path)
    return f"{path}.md"


def linked(text: str, path: str) -> list[str]:
    """The files and directories of the repository that the text of the file at `path` links to."""
    targets = (match[2].partition("#")[0] for block in CODE.split(text)[::2] for match in LINK.finditer(block))
    found = (posixpath.normpath(posixpath.join(posixpath.dirname(path), each)) for each in targets if "://" not in each)
    return [each for each in found if (ROOT / each).exists()]


def shown(text: str, path: str) -> str:
    """The text of the file at `path` with links to pages of the site."""
    here = posixpath.dirname(page_of(path))

    def turned(match: re.Match[str]) -> str:
        name, hash_sign, fragment = match[2].partition("#")
        if "://" in name or not name:
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
        return match[1] + posixpath.relpath(page_of(target), here or ".") + hash_sign + fragment + match[3]

    def spanned(match: re.Match[str]) -> str:
        # A code host drops the backslash before a bar in a table's code; MkDocs shows the backslash.
        return "<code>" + html.escape(match[1].replace("\\|", "|")).replace("|", "&#124;") + "</code>"

    parts = CODE.split(text)
    return "".join(part if i % 2 else SPAN.sub(spanned, LINK.sub(turned, part)) for i, part in enumerate(parts))


def inside(path: str) -> list[str]:
    """The names of the files in a directory of the repository."""
    return sorted(each.name for each in (ROOT / path).iterdir() if each.is_file() and not each.name.startswith("_"))


def content(path: str) -> str:
    """The page that shows a file or a directory of the repository."""
    file = ROOT / path
    if file.is_dir():
        return shown(
            f"# {path}/\n\n" + "".join(f"- [{each}]({posixpath.basename(path)}/{each})\n" for each in inside(path)),
            path,
        )
    text = file.read_text()
    return (
        shown(text, path)
        if path.endswith(".md")
        else f"# {path}\n\n```{LANGUAGES.get(file.suffix, 'text')}\n{text}```\n"
    )


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of what is outside docs/, and of the public names."""
    waiting = [*NAMES, *(f"docs/{each.src_uri}" for each in files if each.src_uri.endswith(".md"))]
    seen = {*waiting, "docs"}
    while waiting:
        path = waiting.pop()
        file = ROOT / path
        if not path.startswith("docs/"):
            if file.suffix in (".svg", ".png"):
                files.append(File.generated(config, page_of(path), abs_src_path=str(file)))
                continue
            files.append(File.generated(config, page_of(path), content=content(path)))
        more = [f"{path}/{each}" for each in inside(path)] if file.is_dir() else []
        more += linked(file.read_text(), path) if file.suffix == ".md" else []
        waiting += [each for each in dict.fromkeys(more) if each not in seen]
        seen.update(more)
    files.append(File.generated(config, "api.md", content=reference()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A page of docs/ with links to pages of the site."""
    uri = page.file.src_uri
    return shown(markdown, f"docs/{uri}") if (ROOT / "docs" / uri).exists() else markdown


def reference() -> str:
    """The page of the public Python names, each from its docstring, by kind."""
    tree = ast.parse((ROOT / "recovery/__init__.py").read_text())
    home = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    [names] = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"
    ]
    kinds: dict[str, list[str]] = {
        "Flows and steps": [],
        "Sinks": [],
        "Operational state": [],
        "Other": [],
        "Errors": [],
    }
    for name in names:
        module = home.get(name, "recovery")
        if module == "recovery.errors":
            kinds["Errors"].append(name)
        elif module.startswith("recovery.sinks"):
            kinds["Sinks"].append(name)
        elif module.startswith(("recovery.operational", "recovery.pipeline", "recovery.spark.pipelines")):
            kinds["Operational state"].append(name)
        elif module.startswith(("recovery.spark", "recovery.flow", "recovery.config", "recovery.group_state")):
            kinds["Flows and steps"].append(name)
        else:
            kinds["Other"].append(name)
    parts = ["# Python names\n\nEvery public name of `recovery`, from its docstring. [flow-api.md](flow-api.md), "
             "[sinks.md](sinks.md) and [operational-state.md](operational-state.md) explain their use.\n"]  # fmt: skip
    for kind, members in kinds.items():
        parts.append(f"\n## {kind}\n\n" + "".join(f"::: {home.get(each, 'recovery')}.{each}\n\n" for each in members))
    parts.append("\n## Aggregates\n\n::: recovery.aggregates\n    options:\n      show_root_heading: false\n")
    return "".join(parts)
