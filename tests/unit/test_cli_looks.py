"""What the commands print fits a terminal of 80 columns, and has no codes where nobody wants them."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import termios
import tty

import pytest
import typer

from dpagg.cli import app, run
from dpagg.cli.output import report_found, wrapped
from tests.unit.report.examples import example_certificate

PROGRAM = "from dpagg.cli import main; main()"


def commands():
    """Every command and group, as one types it."""

    def below(command, typed):
        yield typed
        for name, each in getattr(command, "commands", {}).items():
            yield from below(each, (*typed, name))

    return list(below(typer.main.get_command(app), ()))


def on_a_terminal(*arguments, **environment):
    """Run a command on a terminal of 80 columns; its exit code and all that it wrote."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    termios.tcsetwinsize(theirs, (24, 80))
    clean = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "FORCE_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=clean | {"TERM": "xterm-256color"} | environment,
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # how Linux says that the other end was closed
            break
        if not part:
            break
        written += part
    os.close(ours)
    return process.wait(1500), written.decode()


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    folder = tmp_path_factory.mktemp("aggregates")
    (folder / "_certificate.json").write_text(json.dumps(example_certificate()))
    return folder


@pytest.mark.parametrize("typed", commands(), ids=" ".join)
def test_help_fits_80_columns_and_is_whole(typed, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*typed, "--help"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown and "..." not in shown.split("\n", 1)[1], "a summary was cut: give a short_help"


def test_tables_and_words_fit_80_columns_in_a_pipe(release, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for arguments in (["certificate", "show"], ["certificate", "verify"]):
        run([*arguments, str(release)])
        shown = capsys.readouterr().out
        assert shown.count("\n") > 20 and max(map(len, shown.splitlines())) <= 80
        assert "\x1b" not in shown
        assert not any(line.endswith(" ") for line in shown.splitlines())


def test_on_a_terminal_there_is_colour_and_no_color_is_obeyed(release):
    code, colourful = on_a_terminal("doctor")
    assert code == 0 and "\x1b[" in colourful
    code, plain = on_a_terminal("doctor", NO_COLOR="1")
    assert code == 0 and "\x1b" not in plain and "looking …" in plain
    without = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", colourful).replace("\r", "\n")
    assert max(map(len, without.splitlines())) <= 80 and max(map(len, plain.splitlines())) <= 80
    code, dumb = on_a_terminal("certificate", "verify", release, TERM="dumb")
    assert code == 0 and "\x1b" not in dumb


def test_a_fault_is_marked_on_a_terminal_and_plain_elsewhere(tmp_path, capsys):
    code, shown = on_a_terminal("report", tmp_path / "none")
    assert code == 4 and "\x1b[1;31mdpagg:" in shown
    words = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).split("\n")
    assert len(words) > 2 and "Name one release or model" in " ".join(line.strip() for line in words)
    assert run(["report", str(tmp_path / "none")]) == 4
    caught = capsys.readouterr()
    assert caught.err.startswith("dpagg: there is no ") and "\x1b" not in caught.err and caught.out == ""


@pytest.mark.parametrize("arguments", [["show"], ["show", "--json"], ["verify"]])
def test_an_encoding_without_greek_ends_nothing(release, arguments):
    command = [sys.executable, "-c", PROGRAM, "certificate", *arguments, str(release)]
    done = subprocess.run(command, capture_output=True, timeout=1500, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode in (0, 3) and done.stderr == b""
    done.stdout.decode("ascii")
    if "--json" in arguments:
        assert json.loads(done.stdout) == example_certificate()


def test_square_brackets_are_no_markup(tmp_path, capsys):
    report_found({"path": "/data/[bold]x[/bold]/price[usd]"}, as_json=False, title="made [red]today[/red]")
    shown = capsys.readouterr().out
    assert "/data/[bold]x[/bold]/price[usd]" in shown and "made [red]today[/red]" in shown
    run(["report", str(tmp_path / "price[usd]")])
    assert "price[usd]" in capsys.readouterr().err


def test_long_words_are_broken_and_not_cut(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    report_found({"path": "/" + "x" * 200}, as_json=False, title="")
    assert capsys.readouterr().out.count("x") == 200


def test_a_sentence_over_a_table_is_broken_at_words_and_parts_are_named(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    report_found({"rows_left_out": {"missing_feature": 3}}, as_json=False, title="one of those words " * 4)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 40 and not any(line.endswith(" ") for line in shown.splitlines())
    assert "rows left out: missing feature │ 3" in shown


def test_continued_lines_stand_under_their_words():
    text = "name         " + "word " * 20 + "\n  - " + "item " * 20 + "\n\nplain " + "text " * 20
    lines = wrapped(text, 40).splitlines()
    assert all(len(line) <= 40 for line in lines)
    assert lines[1].startswith(" " * 13 + "word") and lines[0].startswith("name         word")
    bullet = next(place for place, line in enumerate(lines) if line.startswith("  - "))
    assert lines[bullet + 1].startswith("    item")
    assert lines[-1].startswith("text") and "" in lines
