"""The reference of names, settings and commands, written from docstrings: ``make reference``.

Own code, since what it describes is no module tree: settings come from pydantic's JSON schema, commands from typer.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from importlib import import_module
from pathlib import Path

import typer
from pydantic import BaseModel
from typer.cli import get_docs_for_click

import dpagg
from dpagg.cli import app
from dpagg.config import AggregateConfig, FitConfig, PrivateFitConfig, TrainConfig

FILE = Path(__file__).resolve().parents[1] / "dpagg" / "REFERENCE.md"

# What users call, as module and name; each is documented whole.
INTERFACES = [f"dpagg:{name}" for name in dpagg.__all__] + [
    "dpagg.spark.ml:HessianMixingRegression",
    "dpagg.spark.ml:HessianMixingRegressionModel",
]
CONFIGURATIONS = {
    "dpagg aggregate and dpagg plan": AggregateConfig,
    "dpagg fit on a release": FitConfig,
    "dpagg fit on a table": PrivateFitConfig,
    "dpagg train": TrainConfig,
}
HEAD = """# Reference

Names, settings and commands, as the code describes them. `make reference` writes this file, and a test fails when it
is not what the code says. The guides are listed in the [README](../README.md#guides).

"""
_SIGNS = {"gt": ">", "exclusiveMinimum": ">", "ge": "≥", "minimum": "≥"}
_SIGNS |= {"lt": "<", "exclusiveMaximum": "<", "le": "≤", "maximum": "≤"}
_NULL = {"type": "null"}
_KINDS = {"integer": "whole number", "number": "number", "string": "text", "null": "none", "object": "mapping"}


def reference():
    """Return the text of the file."""
    return HEAD + "\n".join(["## Names\n", *names(), "## Settings\n", *settings(), "## Commands\n", *commands()])


def sections(text):
    """The numpydoc sections of a docstring by name; what comes before the first has none."""
    parts = re.split(r"^(\w[\w ]*)\n-{3,}\n", inspect.cleandoc(text), flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def names():
    for each in INTERFACES:
        module, _, name = each.partition(":")
        value = getattr(import_module(module), name)
        yield f"### `{module}.{name}`\n"
        if inspect.isclass(value) and issubclass(value, BaseModel):
            yield f"{docstring(value)}\n\nIts keys are [settings](#settings).\n"
            continue
        yield f"{signature(name, value)}\n\n{docstring(value)}\n"
        for inner, member in vars(value).items() if inspect.isclass(value) else ():
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if inner.startswith("_") or not inspect.isfunction(function):
                continue
            taken = "" if isinstance(member, property) else re.sub(r"^\((self|cls)(, )?", "(", spelled(function))
            yield f"**`{inner}{taken}`**: {docstring(function)}\n"


def signature(name, value):
    whole = f"{name}{spelled(value)}".removesuffix(" -> None" if inspect.isclass(value) else "")
    if len(whole) > 100:
        # One argument a line: a comma and a name with its type, or a star, begin the next.
        inside, _, end = whole.partition("(")[2].rpartition(")")
        taken = re.split(r", (?=\w+: |\*, )", inside)
        whole = f"{name}(\n" + "".join(f"    {each},\n" for each in taken) + f"){end}"
    return f"```python\n{whole}\n```"


def spelled(value):
    """A signature; annotations are text in this code, and would stand in quotes."""
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(value)))
    return re.sub(r"= <.*?>(?=[,)])(?: at 0x\w+>)?", "= ...", text)


def docstring(value):
    found = sections(vars(value)["__doc__"] if inspect.isclass(value) else value.__doc__)
    parts = [marked(found.pop("")).strip()]
    for title, text in found.items():
        is_list = title in ("Parameters", "Attributes", "Returns", "Raises", "Yields")
        parts.append(f"*{title}*\n\n{entries(text) if is_list else marked(text).strip()}")
    return "\n\n".join(parts)


def entries(text):
    """Names with what they are, from lines that begin at the margin and what is indented below them."""
    items = re.split(r"^(?=\S)", text, flags=re.MULTILINE)
    lines = []
    for item in filter(str.strip, items):
        head, _, below = item.partition("\n")
        name, _, kind = head.partition(" : ")
        meaning = " ".join(marked(textwrap.dedent(below)).split())
        lines.append(f"- `{name.strip()}`{f' ({marked(kind)})' if kind else ''}{': ' + meaning if meaning else ''}")
    return "\n".join(lines)


def marked(text):
    """Double backticks are code in docstrings, single ones names."""
    return text.replace("``", "`")


def settings():
    seen: set[tuple[str, str]] = set()
    yield "Keys of a configuration file. A section that several kinds of configuration share is described once.\n"
    for title, model in CONFIGURATIONS.items():
        schema = model.model_json_schema(mode="serialization")
        yield f"### {title}\n\n{marked(schema['description'])}\n"
        yield from tables("", schema, schema["$defs"], seen)


def tables(path, section, definitions, seen):
    """A table of a section's keys, then the sections below it; what was shown before is not shown again."""
    yield "| key | takes | default | |\n|---|---|---|---|"
    below = []
    for key, field in section["properties"].items():
        inner = [each["$ref"].rpartition("/")[2] for each in references(field)]
        place = f"{path}{key}{'[]' if field.get('type') == 'array' else ''}{'.NAME' if is_named(field) else ''}"
        below += [(place, name, len(inner) > 1) for name in inner]
        default = "required" if key in section.get("required", ()) else shown(field.get("default"))
        meaning = " ".join(field["description"].split()).replace("|", "\\|")
        yield f"| `{path}{key}` | {takes(field)} | {default} | {meaning} |"
    yield ""
    for where, name, is_one_of in below:
        inner = definitions[name]
        if name.startswith("_") or (where, name) in seen:
            continue
        seen.add((where, name))
        word = next((field["const"] for field in inner["properties"].values() if "const" in field), None)
        key = next((key for key, field in inner["properties"].items() if "const" in field), None)
        kind = f" with `{key}: {word}`" if is_one_of and word else ""
        yield f"#### `{where}`{kind}\n\n{marked(inner['description'])}\n"
        yield from tables(f"{where}.", inner, definitions, seen)


def is_named(field):
    """Whether a field is a mapping whose keys the user names."""
    return "patternProperties" in field or any(is_named(each) for each in field.get("anyOf", ()))


def references(field):
    """Sections that may stand in a field."""
    if "$ref" in field:
        return [field]
    inside = [*field.get("anyOf", ()), *field.get("oneOf", ()), *field.get("patternProperties", {}).values()]
    inside += [field["items"]] if isinstance(field.get("items"), dict) else []
    return [found for each in inside for found in references(each)]


def takes(field):
    if "$ref" in field or "patternProperties" in field:
        return "mapping"
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return " or ".join(f"`{word}`" for word in field["enum"])
    if "items" in field:
        return f"list of {takes(field['items'])}"
    if field.get("type") == "boolean":
        return "`true` or `false`"
    if choices := field.get("anyOf", field.get("oneOf")):
        is_optional = field.get("default") is None
        return " or ".join(dict.fromkeys(takes(each) for each in choices if not (is_optional and each == _NULL)))
    limits = [f"{_SIGNS[key]} {bound:,}" for key, bound in field.items() if key in _SIGNS]
    return " ".join([_KINDS[field["type"]], ", ".join(limits)]).strip()


def shown(default):
    if default is None:
        return "none"
    if isinstance(default, dict):  # of a section: its own table has the defaults
        named = {key: default[key] for key in ("name", "kind") if key in default}
        return f"`{{{', '.join(f'{key}: {word}' for key, word in named.items())}}}`" if named else ""
    if isinstance(default, list | tuple):
        return f"`[{', '.join(map(str, default))}]`"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def commands():
    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="dpagg")
    text = get_docs_for_click(obj=command, ctx=context, name="dpagg", title="dpagg")
    text = re.sub(r"\* `--(help|install-completion|show-completion)`: .*\n", "", text.partition("\n")[2])
    text = text.replace("\n**Options**:\n\n\n", "\n")
    # One level below the document's own headings.
    yield re.sub(r"^(#+) ", r"#\1 ", text.strip() + "\n", flags=re.MULTILINE)


if __name__ == "__main__":
    FILE.write_text(reference(), encoding="utf-8")
    sys.stdout.write(f"{FILE}: {len(FILE.read_text().splitlines())} lines\n")
