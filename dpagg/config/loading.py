"""From a YAML file to a validated model, and from whatever is wrong in it to one `ConfigError`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_args, overload

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dpagg.config.fitting import SOLVERS, PrivateFitConfig
from dpagg.config.models import AggregateConfig, FitConfig
from dpagg.config.training import TrainConfig
from dpagg.config.wording import dotted, nearest, shown, suggestion
from dpagg.errors import ConfigError

M = TypeVar("M", bound=BaseModel)
Kind: TypeAlias = Literal["aggregate", "fit", "train"]
AnyFitConfig: TypeAlias = FitConfig | PrivateFitConfig
AnyConfig: TypeAlias = AggregateConfig | AnyFitConfig | TrainConfig

# Only a fit of a table has these sections.
_OF_A_TABLE = ("input", "schema", "privacy", "mechanism")
_NAME = re.compile(r"\$\{([^{}]*)\}")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@overload
def load_config(
    path: str | Path, kind: Literal["aggregate"], settings: Mapping[str, str] | None = None
) -> AggregateConfig: ...
@overload
def load_config(path: str | Path, kind: Literal["fit"], settings: Mapping[str, str] | None = None) -> AnyFitConfig: ...
@overload
def load_config(path: str | Path, kind: Literal["train"], settings: Mapping[str, str] | None = None) -> TrainConfig: ...
def load_config(path: str | Path, kind: Kind, settings: Mapping[str, str] | None = None) -> AnyConfig:
    """Read a configuration file.

    ``${NAME}`` in a value becomes ``settings[NAME]``, else the environment variable of that name.
    Paths stay as they are written: relative ones count from the current directory.

    Parameters
    ----------
    path
        The YAML file, UTF-8.
    kind
        Which configuration it is.
    settings
        What ``--set NAME=VALUE`` gave.

    Raises
    ------
    ConfigError
        If the file can't be read, isn't plain YAML, uses a name without a value, or isn't valid.
        A setting that nothing in the file uses is refused too: it would be ignored in silence.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"the configuration file {str(path)!r} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the configuration file {str(path)!r} cannot be read ({type(error).__name__})",
            remedy="It has to be a readable UTF-8 file.",
        ) from None
    try:
        content = yaml.load(text, _Loader)
    except RecursionError:
        raise ConfigError(f"the configuration file {str(path)!r} is nested too deeply, or within itself") from None
    except yaml.YAMLError as error:
        raise ConfigError(
            f"the configuration file {str(path)!r} is not valid YAML{_place(error)}",
            remedy="Inside braces or brackets a value with ${NAME} has to be in quotes." if "${" in text else None,
        ) from None
    given = dict(settings or {})
    used: set[str] = set()
    content = _substituted(content, given, used, ())
    for name in given:
        if name not in used:
            raise ConfigError(
                f"--set gives {name!r}, but the configuration nowhere says ${{{name}}}",
                remedy=suggestion(name, used) if used else "Write it where the value belongs, or drop --set.",
            )
    return parse_config(content, kind)


@overload
def parse_config(content: object, kind: Literal["aggregate"]) -> AggregateConfig: ...
@overload
def parse_config(content: object, kind: Literal["fit"]) -> AnyFitConfig: ...
@overload
def parse_config(content: object, kind: Literal["train"]) -> TrainConfig: ...
@overload
def parse_config(content: object, kind: Kind) -> AnyConfig: ...
def parse_config(content: object, kind: Kind) -> AnyConfig:
    """Validate a configuration given as nested mappings; a fit is one of a release or one of a table.

    Raises
    ------
    ConfigError
        With the path of the first setting that is wrong, what was given and what was expected.
    """
    if not isinstance(content, Mapping):
        raise ConfigError(
            f"the configuration is {shown(content)}, expected a mapping of sections",
            remedy=f"Known here: {', '.join(_keys(_models(kind)))}.",
        )
    model: type[AnyConfig] = _models(kind)[0]
    if kind == "fit" and any(name in content for name in _OF_A_TABLE):
        model = PrivateFitConfig
    return validated(content, model)


def validated(content: object, model: type[M]) -> M:
    """Validate nested mappings as a model; raises as `parse_config`."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise _converted(error, model) from None


def _models(kind: Kind) -> list[type[AnyConfig]]:
    models: dict[Kind, list[type[AnyConfig]]] = {
        "aggregate": [AggregateConfig],
        "fit": [FitConfig, PrivateFitConfig],
        "train": [TrainConfig],
    }
    return models[kind]


def parse_settings(pairs: Iterable[str]) -> dict[str, str]:
    """Return the names and values of ``NAME=VALUE`` texts.

    Raises
    ------
    ConfigError
        If a text has another form or a name comes twice.
    """
    settings: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not _PLAIN_NAME.fullmatch(name):
            raise ConfigError(f"--set is given {shown(pair)}, expected NAME=VALUE")
        if name in settings:
            raise ConfigError(f"--set gives {name!r} twice", remedy="Give it once.")
        settings[name] = value
    return settings


class _Loader(yaml.SafeLoader):
    """Safe YAML with the scalars of YAML 1.2, which a configuration needs.

    YAML 1.1 reads ``no`` as false, ``010`` as 8, ``12:30`` as 750 and ``1e-8`` as text, and the parser
    lets a later key replace an earlier one.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, "a key comes twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


# Its own table of resolvers instead of a copy of the one for YAML 1.1.
_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),
    (
        "float",
        r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _first)


def _place(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None)
    said = ": a key comes twice" if problem == "a key comes twice" else ""
    return f" at line {mark.line + 1}, column {mark.column + 1}{said}" if mark is not None else said


def _substituted(value: Any, given: Mapping[str, str], used: set[str], location: tuple[str | int, ...]) -> Any:
    if isinstance(value, Mapping):
        return {key: _substituted(item, given, used, (*location, str(key))) for key, item in value.items()}
    if isinstance(value, list):
        return [_substituted(item, given, used, (*location, place)) for place, item in enumerate(value)]
    if not isinstance(value, str):
        return value

    def replacement(match: re.Match[str]) -> str:
        name = match.group(1)
        if not _PLAIN_NAME.fullmatch(name):
            raise ConfigError(
                f"{shown(match.group(0))} is given, expected a name of letters, digits and underscores",
                path=dotted(location),
            )
        found = given.get(name, os.environ.get(name))
        if found is None:
            raise ConfigError(
                f"${{{name}}} has no value",
                path=dotted(location),
                remedy=f"Give --set {name}=VALUE or set the environment variable {name}.",
            )
        used.add(name)
        return found

    return _NAME.sub(replacement, value)


def _converted(error: ValidationError, model: type[BaseModel]) -> ConfigError:
    # A mistyped key shows twice, as unknown and as missing: the unknown one comes with a suggestion.
    everything = sorted(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
    found = [_one(details, model) for details in everything]
    first = found[0]
    others = list(dict.fromkeys(other.path for other in found[1:] if other.path not in (None, first.path)))
    if others:
        also = f"Also wrong: {', '.join(str(path) for path in others[:8])}{' …' if len(others) > 8 else ''}."
        first = ConfigError(first.message, path=first.path, remedy=f"{first.remedy} {also}" if first.remedy else also)
    return first


def _one(details: ErrorDetails, model: type[BaseModel]) -> ConfigError:
    location, holders, inside = _resolved(details["loc"], model)
    kind, given, context = details["type"], details["input"], details.get("ctx", {})
    path = dotted(location)
    if kind == "dpagg":
        field = context["field"]
        if field:
            path = f"{path}.{field}" if path else field
        return ConfigError(context["message"], path=path, remedy=context["remedy"])
    if kind == "extra_forbidden":
        return ConfigError("unknown key", path=path, remedy=suggestion(str(location[-1]), _keys(holders)))
    if kind == "missing":
        return ConfigError("a required key is missing", path=path, remedy=_meaning(holders, str(location[-1])))
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        key = context["discriminator"].strip("'")
        known = sorted({word for each in inside for word in _words(each, key)})
        choices = f"expected one of {', '.join(known)}"
        path = f"{path}.{key}"
        if kind == "union_tag_not_found":
            return ConfigError(f"a required key is missing, {choices}", path=path)
        tag = context["tag"]
        if tag in SOLVERS and key == "name":
            remedy = "It is a mechanism of dpagg fit, with input, schema and privacy instead of release."
            return ConfigError(f"{tag!r} is given, {choices}", path=path, remedy=remedy)
        close = nearest(tag, known)
        return ConfigError(
            f"{shown(tag)} is given, {choices}", path=path, remedy=f"Did you mean {close}?" if close else None
        )
    expected = details["msg"].replace("Input should be", "expected", 1)
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        expected = "expected a mapping"
    elif kind == "tuple_type":
        expected = "expected a list"
    elif kind in ("string_pattern_mismatch", "string_too_short", "string_type"):
        expected = "expected text"
        if isinstance(given, int | float):
            expected += " (put it in quotes)"
    elif not expected.startswith("expected"):
        expected = f"which is refused: {expected[:1].lower()}{expected[1:]}"
    return ConfigError(f"{shown(given)} is given, {expected}", path=path)


def _resolved(
    raw: tuple[str | int, ...], content: type[BaseModel]
) -> tuple[list[str | int], list[type[BaseModel]], list[type[BaseModel]]]:
    """Location without the tags of unions, the models that hold its last key, and the models inside it."""
    location: list[str | int] = []
    holders: list[type[BaseModel]] = []
    inside: list[type[BaseModel]] = [content]
    for part in raw:
        if isinstance(part, int):
            location.append(part)
            continue
        tagged = [each for each in inside if _has_word(each, part)]
        if part.startswith("~") or (tagged and part not in _keys(inside)):
            inside = tagged or inside
            continue
        location.append(part)
        holders = inside
        inside = [
            found
            for each in inside
            for name, field in each.model_fields.items()
            if (field.alias or name) == part
            for found in _models_in(field.annotation)
        ]
    return location, holders, inside


def _keys(models: Iterable[type[BaseModel]]) -> list[str]:
    names = {field.alias or name: None for each in models for name, field in each.model_fields.items()}
    return list(names)


def _meaning(models: Iterable[type[BaseModel]], key: str) -> str | None:
    """Return what a key is for, as its section describes it."""
    fields = (field for each in models for name, field in each.model_fields.items() if (field.alias or name) == key)
    return next((" ".join(field.description.split()) for field in fields if field.description), None)


def _words(model: type[BaseModel], key: str) -> tuple[str, ...]:
    field = model.model_fields.get(key)
    return get_args(field.annotation) if field is not None else ()


def _has_word(model: type[BaseModel], word: str) -> bool:
    return any(word in _words(model, key) for key in ("type", "name", "kind"))


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for argument in get_args(annotation) for found in _models_in(argument)]
