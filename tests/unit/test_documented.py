"""Every public name says what it is, takes, returns and raises."""

from __future__ import annotations

import inspect
import pkgutil
import re
from dataclasses import is_dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import get_args

import pytest
import typer
from pydantic import BaseModel

import dpagg
from dpagg.cli import app
from tests.reference import CONFIGURATIONS, FILE, INTERFACES, reference, sections

NEEDS = {"dpagg.neural": "jax", "dpagg.interfaces.estimator": "sklearn"}


def modules():
    return [each.name for each in pkgutil.walk_packages(dpagg.__path__, "dpagg.") if not each.name.endswith("__main__")]


def public(module):
    for name, value in vars(module).items():
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__:
            if inspect.isclass(value) or inspect.isfunction(value):
                yield name, value


def listed(section):
    """Names that a section describes: lines that do not begin with a space, up to their colon."""
    lines = [line for line in section.splitlines() if line and not line.startswith(" ")]
    return {name.strip().lstrip("*") for line in lines for name in line.partition(" :")[0].split(",")}


def undocumented(function, found):
    skipped = {"self", "cls"}
    taken = {name for name in inspect.signature(function).parameters if name not in skipped}
    described = set().union(*(listed(found.get(name, "")) for name in ("Parameters", "Attributes")))
    return taken - described


def faults(name, value):
    text = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    if not text:
        return [f"{name} has no docstring"]
    found, problems = sections(text), []
    if not found[""].splitlines()[0].rstrip().endswith((".", ":")):
        problems.append(f"{name}: its first line is no sentence")
    if inspect.isfunction(value):
        if missing := undocumented(value, found):
            problems.append(f"{name}: {sorted(missing)} are not described")
        if inspect.signature(value).return_annotation not in ("None", "Any", inspect.Signature.empty, None):
            words = "Returns" in found or re.match(r"Return|Read|Make|Say", found[""]) is not None
            if not words:
                problems.append(f"{name}: what it returns is not described")
        return problems
    if is_dataclass(value) or (not issubclass(value, BaseModel) and "__init__" in vars(value)):
        if missing := {each for each in undocumented(value, found) if not each.startswith("_")}:
            problems.append(f"{name}: {sorted(missing)} are not described")
    for inner, member in vars(value).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if not inner.startswith("_") and inspect.isfunction(function) and not function.__doc__:
            problems.append(f"{name}.{inner} has no docstring")
    return problems


@pytest.mark.parametrize("name", INTERFACES)
def test_interfaces_are_documented_whole(name):
    module, _, attribute = name.partition(":")
    assert faults(name, getattr(import_module(module), attribute)) == []


def test_every_module_and_public_name_has_a_docstring():
    found = []
    for name in modules():
        needed = next((library for place, library in NEEDS.items() if name.startswith(place)), None)
        if needed is not None and find_spec(needed) is None:
            continue
        module = import_module(name)
        if not module.__doc__:
            found.append(name)
        found += [f"{name}.{each}" for each, value in public(module) if not value.__doc__]
    assert found == []


def settings_in(annotation):
    """Sections of a configuration below an annotation."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from settings_in(field.annotation)
    for inner in get_args(annotation):
        yield from settings_in(inner)


def test_every_setting_says_what_it_is():
    found = {section for model in CONFIGURATIONS.values() for section in settings_in(model)}
    assert len(found) > 30
    fields = [(each.__name__, name, field) for each in found for name, field in each.model_fields.items()]
    assert [f"{section}.{name}" for section, name, field in fields if not (field.description or "").endswith(".")] == []


def test_every_argument_of_a_command_says_what_it_is():
    found, open_commands = [], [("dpagg", typer.main.get_command(app))]
    for name, command in open_commands:  # which grows on the way
        open_commands += [(f"{name} {inner}", each) for inner, each in getattr(command, "commands", {}).items()]
        silent = [each.name for each in command.params if not (each.help or "").endswith((".", ")"))]
        found += [f"{name}: {each}" for each in silent] + ([] if command.help else [f"{name} has no help"])
    assert len(open_commands) > 15 and found == []


def test_the_reference_is_what_the_code_says():
    pytest.importorskip("sklearn")
    assert FILE.read_text(encoding="utf-8") == reference(), "run make reference, and look at what it changed"


def test_the_check_notices():
    def undescribed(a: int, b: int) -> int:
        """Return the sum.

        Parameters
        ----------
        a : int
            One.
        """
        return a + b

    assert faults("f", undescribed) == ["f: ['b'] are not described"]
    assert faults("g", lambda: None) == ["g has no docstring"]
