"""Markdown documents as tests read them: fenced blocks with their marks, commands, links.

What stands after the language of a fence says what a test does with it; readers do not see it.

- ``bash``: each line is run as a command. It has to end with 0, or with N where its comment says ``exit code N``.
- ``python``: run; the blocks of a document share their names.
- ``yaml FILE``: written to that file, for the commands that follow. Without FILE: its keys have to be settings.
- ``text output``: lines of what the command before printed, in order; ``…`` stands for anything.
- no language: not run; commands in it are looked at as with ``elsewhere``.
- with ``slow``: run by ``make test-slow`` only. With ``elsewhere`` (a cluster, a scheduler): not run, but files, make
  targets, commands and options have to be there.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[1]
# Documents whose blocks are run, in an order in which each finds what those before it made.
CHAINS = {
    "README": ["README.md"],
    "first": ["conf/README.md", "dpagg/report/README.md"],
    "schedule": ["jobs/README.md", "dpagg/ledger/README.md"],
    "papers": ["dpagg/regression/README.md"],
    "networks": ["dpagg/neural/README.md"],
    "label tables": ["dpagg/experiments/label_tables/README.md"],
}
FOLLOWED = {Path(document) for chain in CHAINS.values() for document in chain}
LANGUAGES = {"", "bash", "python", "yaml", "text", "crontab", "dockerfile"}
MARKS = {"slow", "elsewhere", "output"}
_MARKDOWN = MarkdownIt("commonmark").enable("table")


def documents():
    """Markdown files of the project, as paths below its root."""
    left_out = ("build", "spark-warehouse")
    found = (path.relative_to(ROOT) for path in ROOT.rglob("*.md"))
    return sorted(each for each in found if not each.parts[0].startswith(".") and each.parts[0] not in left_out)


@cache
def tokens(document):
    """Tokens of a document, those inside of lines and table cells too."""
    whole = _MARKDOWN.parse((ROOT / document).read_text(encoding="utf-8"))
    return [inner for token in whole for inner in (token, *(token.children or ()))]


@dataclass(frozen=True)
class Fence:
    document: Path
    line: int
    language: str
    marks: frozenset[str]
    file: str | None
    text: str

    @property
    def where(self):
        return f"{self.document}:{self.line}"

    @property
    def is_run(self):
        return self.language in ("bash", "python") and "elsewhere" not in self.marks


def fences(document):
    for token in tokens(document):
        if token.type == "fence":
            language, *marks = token.info.split() or [""]
            file = next((word for word in marks if "." in word), None)
            yield Fence(document, token.map[0] + 1, language, frozenset(marks) - {file}, file, token.content)


def commands(fence):
    """Command lines of a fence, continued ones joined; comments stay."""
    lines = fence.text.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def words(line):
    """The words of a command, without a comment (a # inside of a word begins none)."""
    return shlex.split(re.sub(r"\s#\s.*", "", line))


def exit_code(line):
    found = re.search(r"#.*\bexit code (\d+)", line)
    return int(found.group(1)) if found else 0


class Reader:
    """Somebody who goes through documents and does what they say, in the current directory.

    ``in_shell``: every command in a shell of its own, as it is typed; otherwise those of dpagg in this process.
    ``is_patient``: slow blocks too.
    """

    def __init__(self, *, in_shell=False, is_patient=False):
        self._in_shell = in_shell
        self._is_patient = is_patient
        self._printed = ""

    def follow(self, document):
        names = {"__name__": "__main__"}
        for fence in fences(document):
            if "elsewhere" in fence.marks or ("slow" in fence.marks and not self._is_patient):
                self._printed = None
            elif fence.language == "yaml" and fence.file is not None:
                Path(fence.file).parent.mkdir(parents=True, exist_ok=True)
                Path(fence.file).write_text(fence.text)
            elif fence.language == "python":
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    exec(compile(fence.text, fence.where, "exec"), names)
                self._printed = out.getvalue()
            elif fence.language == "bash":
                for line in commands(fence):
                    code, self._printed = self._do(line)
                    assert code == exit_code(line), f"{fence.where}: {line.strip()} ends with {code}\n{self._printed}"
            elif fence.language == "text" and "output" in fence.marks and self._printed is not None:
                self._compare(fence)

    def _do(self, line):
        command, *arguments = words(line)
        if (command, *arguments[:1]) == ("dpagg", "audit"):
            # Of fresh draws one run in some thousands refutes a true claim, which is not what is tested.
            line, arguments = f"{line} --insecure-seed 1", [*arguments, "--insecure-seed", "1"]
        if command == "dpagg" and not self._in_shell:
            from dpagg.cli import run

            with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
                code = run(arguments)
            return code, out.getvalue()
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", line],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1500,
            env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        return done.returncode, done.stdout

    def _compare(self, fence):
        place, printed = 0, re.sub(" +", " ", self._printed)  # the width of a column says nothing
        for line in filter(str.strip, fence.text.splitlines()):
            wanted = ".*?".join(map(re.escape, re.sub(" +", " ", line.strip()).split("…")))
            found = re.compile(wanted).search(printed, place)
            assert found, f"{fence.where}: {line.strip()!r} is not printed (there) but\n{self._printed}"
            place = found.end()
