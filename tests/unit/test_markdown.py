"""What the documents say exists: files, anchors, commands with their options, make targets, settings."""

from __future__ import annotations

import ast
import re
import urllib.error
import urllib.request
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import typer
import yaml

from dpagg.cli import app
from tests.guides import FOLLOWED, LANGUAGES, MARKS, ROOT, Reader, commands, documents, fences, tokens, words
from tests.reference import CONFIGURATIONS

_COMMAND = typer.main.get_command(app)
WRITTEN = Path("dpagg/REFERENCE.md")  # by a program, from what is tested elsewhere
PROJECT = ("conf", "docker", "dpagg", "jobs", "tests")


@pytest.mark.parametrize("document", documents(), ids=str)
def test_links_lead_somewhere(document):
    for target in links(document):
        url = urlsplit(target)
        if url.scheme:
            assert url.scheme == "https" and "." in url.netloc and " " not in target, target
            continue
        path = (ROOT / document.parent / url.path).resolve() if url.path else ROOT / document
        assert path.exists(), f"{document} leads to {target}"
        if url.fragment:
            assert url.fragment in anchors(path.relative_to(ROOT)), f"{document} leads to {target}"


@pytest.mark.parametrize("document", documents(), ids=str)
def test_paths_of_the_project_that_are_named_exist(document):
    named = (token.content for token in tokens(document) if token.type == "code_inline")
    paths = [name for name in named if re.fullmatch(rf"({'|'.join(PROJECT)})/[\w./-]+", name)]
    # NAME stands for any; a path may also be meant from where the document is.
    missing = [name for name in paths if "NAME" not in name and not (ROOT / name).exists()]
    assert [name for name in missing if not (ROOT / document.parent / name).exists()] == []


@pytest.mark.slow
def test_pages_elsewhere_are_there():
    for target in sorted({each for document in documents() for each in links(document) if urlsplit(each).scheme}):
        request = urllib.request.Request(target, headers={"User-Agent": "Mozilla/5.0"})
        try:
            urllib.request.urlopen(request, timeout=20).close()
        except urllib.error.HTTPError as error:
            # A page that asks who is there, or a server that has a bad day, is there.
            assert error.code in (401, 403, 429) or error.code >= 500, f"{target}: {error.code}"
        except OSError as error:
            pytest.skip(f"no way to {urlsplit(target).netloc} from here ({type(error).__name__})")


@pytest.mark.parametrize("document", documents(), ids=str)
def test_blocks_are_followed_or_said_to_be_for_elsewhere(document):
    if document == WRITTEN:
        return
    for fence in fences(document):
        assert fence.language in LANGUAGES and fence.marks <= MARKS, f"{fence.where}: {fence.language} {fence.marks}"
        assert not fence.is_run or document in FOLLOWED, f"{fence.where}: nobody follows {document}"
        if fence.language in ("", "bash"):
            for line in commands(fence):
                check_command(line, fence.where)
        elif fence.language == "crontab":
            for line in commands(fence):
                *when, command = line.split(maxsplit=5)
                assert len(when) == 5, fence.where
                check_command(command.replace("\\%", "%"), fence.where)
        elif fence.language == "python":
            for text in ast.walk(ast.parse(fence.text)):
                if isinstance(text, ast.Constant) and str(text.value).startswith("dpagg "):
                    check_command(text.value, fence.where)
        elif fence.language == "yaml" and "elsewhere" not in fence.marks:
            check_settings(yaml.safe_load(fence.text), fence.where)


def test_the_checks_notice():
    check_command("dpagg aggregate x.yaml --set a=b --backfill 2026-01-01:2026-01-02", "here")
    check_command("spark-submit --master local jobs/fit.py --config x.yaml --json", "here")
    for line in (
        "dpagg agregate x.yaml",
        "dpagg aggregate x.yaml --sett a=b",
        "dpagg aggregate",
        "dpagg ledger shw PATH",
        "spark-submit --master local jobs/aggregates.py --config x.yaml",
        "spark-submit jobs/aggregate.py --config x.yaml --out y",
        "make dmeo",
        "python -m dpagg.spark.jva",
        "dpagg fit conf/fitt.yaml",
    ):
        with pytest.raises(AssertionError, match="here: "):
            check_command(line, "here")
    check_settings({"privacy": {"epsilon": 1}}, "here")
    for wrong in ({"privacy": {"epsilom": 1}}, {"schema": {"features": [{"nam": "a"}]}}):
        with pytest.raises(AssertionError, match="here: "):
            check_settings(wrong, "here")


def links(document):
    """Where links and images of a document lead."""
    for token in tokens(document):
        target = token.attrs.get("href") if token.type == "link_open" else token.attrs.get("src")
        if target and token.type in ("link_open", "image"):
            yield str(target)


def anchors(document):
    """Anchors of the headings of a document, as GitHub makes them."""
    found, heading = [], False
    for token in tokens(document):
        if heading:
            text = "".join(part.content for part in token.children)
            name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            found.append(f"{name}-{found.count(name)}" if name in found else name)
        heading = token.type == "heading_open"
    return found


def check_command(line, where):
    """Everything in a command that the project can know about has to be there."""
    try:
        typed = words(re.sub(r"\$\([^()]*\)", "VALUE", line))  # what another command prints
    except ValueError:  # no command, but a figure in letters
        typed = []
    while typed and re.fullmatch(r"[A-Za-z_]\w*=.*", typed[0]):
        typed.pop(0)
    head = typed[0] if typed else ""
    if head == "dpagg":
        check_options(typed[1:], line, where)
    elif head == "spark-submit":
        place = next((place for place, word in enumerate(typed) if word.endswith(".py") and "/" in word), None)
        # In an image or on a node jobs lie elsewhere, under the same name.
        job = None if place is None else ROOT / "jobs" / Path(typed[place]).name
        assert job is not None and job.exists(), f"{where}: no such job: {line}"
        rest = typed[place + 1 :]
        assert "--config" not in rest[1:], f"{where}: --config FILE comes first: {line}"
        check_options([Path(typed[place]).stem, *rest[rest[:1] == ["--config"] :]], line, where)
    elif head == "make":
        targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        asked = {word for word in typed[1:] if "=" not in word}
        assert asked <= targets, f"{where}: no such target: {line}"
    elif head.rpartition("/")[2].startswith("python") and typed[1:2] == ["-m"]:
        assert find_spec(typed[2]) is not None, f"{where}: no such module: {line}"
    for word in typed:
        if word.partition("/")[0] in PROJECT and "/" in word and "$" not in word:
            assert (ROOT / word).exists(), f"{where}: no {word}: {line}"


def check_options(words, line, where):
    """Parse a command of dpagg as the command line does, without running it."""
    command, context = _COMMAND, None
    try:
        while True:
            context = command.make_context(command.name, list(words), parent=context)
            if not hasattr(command, "resolve_command"):
                return
            _, command, words = command.resolve_command(context, context._protected_args + context.args)
    except Exception as error:
        raise AssertionError(f"{where}: {getattr(error, 'message', error)}: {line}") from None


def check_settings(content, where):
    """Every key has to be one of a configuration."""
    for path in given(content):
        assert known_settings().fullmatch(path), f"{where}: no setting {path}"


@cache
def known_settings():
    known = {path for model in CONFIGURATIONS.values() for path in paths(model.model_json_schema())}
    return re.compile("|".join(re.escape(each).replace("NAME", "[^.]+") for each in known))


def given(content, path=""):
    if isinstance(content, dict):
        for key, value in content.items():
            inner = f"{path}.{key}" if path else key
            yield inner
            yield from given(value, inner)
    elif isinstance(content, list):
        for value in content:
            yield from given(value, path)


def paths(schema, node=None, path=""):
    """Dotted keys of a JSON schema."""
    node = schema if node is None else node
    if "$ref" in node:
        yield from paths(schema, schema["$defs"][node["$ref"].rpartition("/")[2]], path)
    for key, inner in node.get("properties", {}).items():
        yield (below := f"{path}.{key}" if path else key)
        yield from paths(schema, inner, below)
    inside = [*node.get("anyOf", ()), *node.get("oneOf", ()), node.get("items")]
    for inner in filter(None, inside):
        yield from paths(schema, inner, path)
    for inner in (*node.get("patternProperties", {}).values(), node.get("additionalProperties")):
        if isinstance(inner, dict):
            yield f"{path}.NAME"
            yield from paths(schema, inner, f"{path}.NAME")


def test_a_reader_notices(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = {
        "yaml a/b.yaml": "x: 1",
        "bash": "dpagg report none  # exit code 4: nothing there\ncat a/b.yaml",
        "text output": "x:   …",
        "bash slow": "false",
        "python": "print(7)",
        "text  output": "7",
    }
    good = "\n".join(f"```{info}\n{text}\n```\n" for info, text in blocks.items())
    (tmp_path / "good.md").write_text(good)
    Reader().follow(tmp_path / "good.md")
    changes = {"x:   …": "y:", "exit code 4": "no fault", "(7)": "(8)"}
    for place, (old, new) in enumerate(changes.items()):
        (tmp_path / f"{place}_wrong.md").write_text(good.replace(old, new))
        with pytest.raises(AssertionError, match=r"wrong\.md:"):
            Reader().follow(tmp_path / f"{place}_wrong.md")
    with pytest.raises(AssertionError, match="false ends with 1"):
        Reader(is_patient=True).follow(tmp_path / "good.md")
