"""Configurations as users write and mistype them."""

from __future__ import annotations

import copy
import datetime
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpagg.config import AggregateConfig, BoundedLeastSquaresConfig, load_config, parse_config, parse_settings
from dpagg.errors import ConfigError
from dpagg.kernels.encoding import Categorical, Constant, Hashed, Label, Numeric

CONF = Path(__file__).resolve().parents[2] / "conf"

DOCUMENTED = """
input:   {path: data/impressions, format: parquet, row_id: impression_id}
schema:
  intercept: true
  features:
    - {name: price,  type: numeric, lower: 0, upper: 500, missing: indicator}
    - {name: device, type: categorical, categories: [mobile, desktop, tablet], other: true}
    - {name: shop,   type: hashed, buckets: 32}
  label: {name: sale_amount, lower: 0, upper: 100, missing: {constant: 0}}
mechanism: {name: wtd-flag, num_bags: auto}
privacy:   {epsilon: 1.0, delta: 1.0e-8, floor: {kind: noise}}
output:    {path: out/aggregates}
"""


def documented() -> dict[str, Any]:
    content = yaml.safe_load(DOCUMENTED)
    assert isinstance(content, dict)
    return content


def changed(path: list[str | int], value: Any) -> dict[str, Any]:
    content = documented()
    part: Any = content
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    return content


def load(tmp_path: Path, text: str, settings: dict[str, str] | None = None) -> AggregateConfig:
    file = tmp_path / "c.yaml"
    file.write_text(text, encoding="utf-8")
    return load_config(file, "aggregate", settings)


def test_the_documented_configuration(tmp_path: Path) -> None:
    config = load(tmp_path, DOCUMENTED)
    assert config.encoding.features == (
        Numeric("price", 0, 500, "indicator"),
        Categorical("device", ("mobile", "desktop", "tablet"), other=True),
        Hashed("shop", 32),
    )
    assert config.encoding.label == Label("sale_amount", 0, 100, 0)
    assert config.encoding.num_columns == 1 + 2 + 3 + 31
    assert config.mechanism.num_bags == "auto" and config.privacy.leverage_cap_factor == 10
    assert config.privacy.floor.kind == "noise" and config.performance.engine == "auto"
    assert config.input.path == "data/impressions" and config.output.path == "out/aggregates"


@pytest.mark.parametrize(
    ("path", "value", "said_path", "words"),
    [
        (["privcy"], 1, "privcy", "Did you mean privacy?"),
        (["privacy", "epsilonn"], 1, "privacy.epsilonn", "Did you mean epsilon?"),
        (["privacy", "Delta"], 1, "privacy.Delta", "Did you mean delta?"),
        (["schema", "features", 0, "upperbound"], 1, "schema.features[0].upperbound", "Did you mean upper?"),
        (["mechanism", "bags"], 1, "mechanism.bags", "Did you mean num_bags?"),
        (["output", "zzzz"], 1, "output.zzzz", "Known here: path."),
        (["privacy", "epsilon"], 0, "privacy.epsilon", "0 is given, expected greater than 0"),
        (["privacy", "epsilon"], -1.5, "privacy.epsilon", "-1.5"),
        (["privacy", "epsilon"], float("nan"), "privacy.epsilon", "finite"),
        (["privacy", "epsilon"], float("inf"), "privacy.epsilon", "finite"),
        (["privacy", "epsilon"], True, "privacy.epsilon", "not true or false"),
        (["privacy", "delta"], 0, "privacy.delta", "greater than 0"),
        (["privacy", "delta"], 1, "privacy.delta", "less than 1"),
        (["privacy", "delta"], "tiny", "privacy.delta", "'tiny' is given, expected a valid number"),
        (["privacy", "leverage_cap_factor"], 1, "privacy.leverage_cap_factor", "greater than 1"),
        (["privacy", "unit"], {"column": "user"}, "privacy.unit.max_rows", ""),
        (["privacy", "unit"], {"column": "user", "max_rows": 0}, "privacy.unit.max_rows", ""),
        (["privacy", "floor"], {"kind": "private", "budget_share": 1}, "privacy.floor.budget_share", ""),
        (["privacy", "floor"], {"kind": "noisy"}, "privacy.floor.kind", "Did you mean noise?"),
        (["privacy", "floor"], {"kind": "assume"}, "privacy.floor.mean_squared_residual", "required"),
        (["privacy", "floor"], "noise", "privacy.floor", "expected a mapping"),
        (["ledger"], {"path": "out/ledger", "dataset": "ads"}, "ledger.partition", "required"),
        (["input", "tables"], {"imp": "a"}, "input.tables", "belong together"),
        (["input"], {"format": "delta"}, "input.path", "a required key is missing"),
        (["input"], {"format": "delta", "tables": {}, "sql": "SELECT 1"}, "input.tables", "no table"),
        (
            ["input"],
            {"format": "delta", "tables": {"a": "b"}, "path": "c", "sql": "SELECT 1"},
            "input.path",
            "a path and tables",
        ),
        (
            ["input"],
            {"format": "delta", "tables": {"a": {"paht": "b"}}, "sql": "SELECT 1"},
            "input.tables.a.paht",
            "unknown key",
        ),
        (
            ["input"],
            {"format": "parquet", "path": "a", "attribution_window": {"event_date": "28.11.", "days": 3}},
            "input.attribution_window.event_date",
            "expected a date",
        ),
        (
            ["ledger"],
            {"path": "p", "dataset": "a", "partition": "d", "budget": {"epsilon": 1}},
            "ledger.budget.delta",
            "",
        ),
        (["ledger"], None, "ledger", "would charge nothing"),
        (["mechanism"], {"name": "sampled-wtd-flag"}, "mechanism.bag_size", "required"),
        (["mechanism"], {"name": "sampled-wtd-flag", "bag_size": 37}, "mechanism.bag_size", "37 encoded columns"),
        (["mechanism"], {"name": "sampled-wtd-flag", "bag_size": "auto"}, "mechanism.bag_size", "'auto'"),
        (["mechanism"], {"name": "sampled-noisy-wtd-lag", "bag_size": 9}, "mechanism.noised_fraction", "required"),
        *(
            (["mechanism"], {"name": "sampled-noisy-wtd-lag", "bag_size": 9, "noised_fraction": 0.5} | change, *said)
            for change, *said in (
                ({"noised_fraction": 0}, "mechanism.noised_fraction", "greater than 0"),
                ({"noised_fraction": 1.1}, "mechanism.noised_fraction", "less than or equal to 1"),
                ({"noised_fraction": 0.1}, "mechanism.noised_fraction", "no label would get noise"),
                ({"noise_std": 0}, "mechanism.noise_std", "0 is given, expected a positive number, or auto"),
                ({"noise_std": "none"}, "mechanism.noise_std", "'none'"),
                ({"noise_std": True}, "mechanism.noise_std", "true"),
                ({"weight_cap": -1}, "mechanism.weight_cap", "expected a positive number, or auto, or none"),
                ({"weight_cap": float("inf")}, "mechanism.weight_cap", "expected a positive number"),
            )
        ),
        (["mechanism"], {"name": "wtdflag"}, "mechanism.name", "Did you mean wtd-flag?"),
        (["mechanism"], {}, "mechanism.name", "expected one of sampled-noisy-wtd-lag, "),
        (["mechanism", "num_bags"], 0, "mechanism.num_bags", "whole number from 1, or auto"),
        (["mechanism", "num_bags"], 2.5, "mechanism.num_bags", "2.5"),
        (["mechanism", "num_bags"], "many", "mechanism.num_bags", "'many'"),
        (
            ["mechanism"],
            {"name": "unweighted-sums", "num_bags": 9},
            "mechanism.i_know_this_is_not_private",
            "epsilon is infinite",
        ),
        (["schema", "features", 0, "lower"], 500, "schema.features[0].lower", "not below"),
        (["schema", "features", 0, "lower"], 501, "schema.features[0].lower", "not below"),
        (["schema", "features", 0, "lower"], float("nan"), "schema.features[0].lower", "finite"),
        (["schema", "features", 0, "upper"], float("inf"), "schema.features[0].upper", "finite"),
        (["schema", "features", 0, "upper"], None, "schema.features[0].upper", "nothing is given"),
        (["schema", "features", 0, "missing"], "mean", "schema.features[0].missing", "expected drop"),
        (
            ["schema", "features", 0, "missing"],
            {"constant": 501},
            "schema.features[0].missing.constant",
            "between the declared bounds",
        ),
        (
            ["schema", "features", 0, "missing"],
            {"konstant": 5},
            "schema.features[0].missing.konstant",
            "Did you mean constant?",
        ),
        (["schema", "features", 0, "type"], "number", "schema.features[0].type", "Did you mean numeric?"),
        (["schema", "features", 1, "categories"], [], "schema.features[1].categories", "no category"),
        (["schema", "features", 1, "categories"], ["a", "b", "a"], "schema.features[1].categories", "twice"),
        (["schema", "features", 1, "categories"], ["a", True], "schema.features[1].categories[1]", "quotes"),
        (["schema", "features", 1, "categories"], [1.5], "schema.features[1].categories[0]", "quotes"),
        (
            ["schema", "features", 1, "categories"],
            [datetime.date(2026, 1, 2)],
            "schema.features[1].categories[0]",
            "quotes",
        ),
        (["schema", "features", 1, "categories"], "a", "schema.features[1].categories", "expected a list"),
        (["schema", "features", 1, "name"], "Price", "schema.features[1].name", "twice"),
        (["schema", "features", 1, "name"], "", "schema.features[1].name", "expected text"),
        (["schema", "features", 1, "name"], 7, "schema.features[1].name", "put it in quotes"),
        (["schema", "features", 2, "buckets"], 1, "schema.features[2].buckets", "from 2"),
        (["schema", "features"], {"a": 1}, "schema.features", "a mapping is given, expected a list"),
        (["schema", "label", "upper"], 0, "schema.label.lower", "not below"),
        (["schema", "label", "upper"], float("inf"), "schema.label.upper", "finite"),
        (["schema", "label", "missing"], "drop", "schema.label.missing", "would tell the label"),
        (["schema", "label", "missing"], {"constant": 101}, "schema.label.missing.constant", "between"),
        (["schema", "label", "name"], "price", "schema.label.name", "as well as the label"),
        (["input", "row_id"], "Sale_Amount", "input.row_id", "is the label too"),
        (["input", "row_id"], "shop", "input.row_id", "is a feature too"),
        (
            ["input", "format"],
            "orc",
            "input.format",
            "'orc' is given, expected 'parquet', 'delta', 'csv', 'json' or 'fixed-width'",
        ),
        (["input", "header"], False, "input.header", "this is for csv"),
        (["input", "version"], 3, "input.version", "only a Delta table"),
        (["input", "sql"], "SELECT 1", "input.sql", "belong together"),
        (["input", "path"], " ", "input.path", "expected text"),
        (["performance"], {"engine": "fast"}, "performance.engine", "'rows' or 'factor'"),
        (["performance"], {"num_partitions": 0}, "performance.num_partitions", "greater than or equal to 1"),
        (["schema"], 3, "schema", "3 is given, expected a mapping"),
    ],
)
def test_what_is_wrong_is_said_with_its_path(path: list[str | int], value: Any, said_path: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(changed(path, value), "aggregate")
    assert refused.value.path == said_path, str(refused.value)
    assert words in str(refused.value)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("section", ["input", "schema", "mechanism", "privacy", "output"])
def test_every_section_is_required(section: str) -> None:
    content = documented()
    del content[section]
    with pytest.raises(ConfigError, match="required key is missing") as refused:
        parse_config(content, "aggregate")
    assert refused.value.path == section


def test_a_label_needs_bounds_and_a_constant() -> None:
    for key in ("lower", "upper", "missing"):
        content = documented()
        del content["schema"]["label"][key]
        with pytest.raises(ConfigError, match="required key is missing") as refused:
            parse_config(content, "aggregate")
        assert refused.value.path == f"schema.label.{key}"
        # A first-time user is told what belongs there.
        assert ("constant: NUMBER" if key == "missing" else f"Declared {key} bound") in str(refused.value)


def test_a_mechanism_of_the_other_command_is_pointed_to_it() -> None:
    with pytest.raises(ConfigError, match=r"a mechanism of dpagg aggregate\. To fit what"):
        parse_config(documented(), "fit")
    with pytest.raises(ConfigError, match="a mechanism of dpagg fit"):
        parse_config(changed(["mechanism"], {"name": "adassp"}), "aggregate")


def test_several_faults_are_all_named() -> None:
    content = changed(["privacy", "epsilon"], -1)
    content["privacy"]["delta"] = 2
    content["inputs"] = {"path": "secret-looking-section"}
    with pytest.raises(ConfigError) as refused:
        parse_config(content, "aggregate")
    text = str(refused.value)
    assert all(path in text for path in ("inputs", "privacy.epsilon", "privacy.delta"))
    assert "secret-looking-section" not in text


def test_long_values_are_cut_short() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(changed(["privacy", "epsilon"], "x" * 5000), "aggregate")
    assert len(str(refused.value)) < 300


def test_engine_rows_needs_a_row_key() -> None:
    content = changed(["performance"], {"engine": "rows"})
    parse_config(content, "aggregate")
    del content["input"]["row_id"]
    with pytest.raises(ConfigError, match="needs its key") as refused:
        parse_config(content, "aggregate")
    assert refused.value.path == "performance.engine"


def test_csv_settings() -> None:
    csv = {
        "path": "t.csv.gz",
        "format": "csv",
        "header": False,
        "delimiter": "\t",
        "column_names": ["a", "b"],
    }
    assert parse_config(changed(["input"], csv), "aggregate").input.column_names == ("a", "b")
    for change, words in (
        ({"header": True}, "names its columns itself"),
        ({"column_names": ["a", "A"]}, "twice"),
    ):
        with pytest.raises(ConfigError, match=words) as refused:
            parse_config(changed(["input"], csv | change), "aggregate")
        assert refused.value.path == "input.column_names"


def test_choices_that_are_accepted() -> None:
    none = parse_config(changed(["privacy", "leverage_cap_factor"], "none"), "aggregate")
    assert none.privacy.leverage_cap_factor is None
    floor = {"kind": "assume", "mean_squared_residual": 0.3}
    assert parse_config(changed(["privacy", "floor"], floor), "aggregate").privacy.floor.kind == "assume"
    sums = {"name": "unweighted-sums", "num_bags": 9, "i_know_this_is_not_private": True}
    assert parse_config(changed(["mechanism"], sums), "aggregate").mechanism.num_bags == 9
    numbers = parse_config(changed(["schema", "features", 1, "categories"], [1, 2, "x"]), "aggregate")
    assert numbers.encoding.features[1] == Categorical("device", ("1", "2", "x"), other=True)
    constant = parse_config(changed(["schema", "features", 0, "missing"], {"constant": 7}), "aggregate")
    assert constant.encoding.features[0] == Numeric("price", 0, 500, Constant(7.0))


# Files


def test_scalars_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    text = DOCUMENTED.replace("[mobile, desktop, tablet]", "[no, 12:30, 010, 2026-01-02, 7]")
    config = load(tmp_path, text.replace("1.0e-8", "1e-8"))
    assert config.privacy.delta == 1e-8
    assert config.encoding.features[1] == Categorical("device", ("no", "12:30", "010", "2026-01-02", "7"), other=True)


def test_names_come_from_set_then_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = DOCUMENTED.replace("data/impressions", '"${ROOT}/day=${DAY}"').replace("epsilon: 1.0", 'epsilon: "${E}"')
    monkeypatch.setenv("ROOT", "s3a://bucket/x")
    monkeypatch.setenv("DAY", "2020-01-01")
    config = load(tmp_path, text, {"DAY": "2026-11-28", "E": "0.5"})
    assert config.input.path == "s3a://bucket/x/day=2026-11-28"
    assert config.privacy.epsilon == 0.5
    monkeypatch.delenv("ROOT")
    with pytest.raises(ConfigError, match=r"\$\{ROOT\} has no value.*--set ROOT=VALUE") as refused:
        load(tmp_path, text, {"DAY": "2026-11-28", "E": "0.5"})
    assert refused.value.path == "input.path"
    with pytest.raises(ConfigError, match="letters, digits"):
        load(tmp_path, DOCUMENTED.replace("data/impressions", '"${A-B}"'))


def test_a_setting_that_nothing_uses_is_refused(tmp_path: Path) -> None:
    text = DOCUMENTED.replace("data/impressions", '"${DAY}"')
    with pytest.raises(ConfigError, match="nowhere says"):
        load(tmp_path, text, {"DAY": "1", "EPSILON": "0.1"})


def test_a_value_can_bring_no_section_with_it(tmp_path: Path) -> None:
    text = DOCUMENTED.replace("data/impressions", '"${P}"')
    config = load(tmp_path, text, {"P": "x}\nprivacy: {epsilon: 99"})
    assert config.privacy.epsilon == 1.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("input: [1", "not valid YAML at line 1"),
        ("output: {path: out/${DAY}}", "has to be in quotes"),
        (DOCUMENTED + "privacy: {epsilon: 50, delta: 1e-8}\n", "a key comes twice"),
        (DOCUMENTED.replace("epsilon: 1.0", "epsilon: 1.0, epsilon: 50"), "a key comes twice"),
        ("- a list", "expected a mapping"),
        ("", "expected a mapping"),
        ("a: !!python/object/apply:os.getcwd []", "not valid YAML"),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(tmp_path, text)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_config(tmp_path / "none.yaml", "aggregate")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path, "aggregate")
    (tmp_path / "c.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "c.yaml", "aggregate")


def test_settings_are_name_value_pairs() -> None:
    assert parse_settings(["A=1", "B=x=y", "C="]) == {"A": "1", "B": "x=y", "C": ""}
    for wrong in (["A"], ["=1"], ["A-B=1"], ["A=1", "A=2"]):
        with pytest.raises(ConfigError, match="--set"):
            parse_settings(wrong)


def test_settings_cannot_be_changed_afterwards() -> None:
    config = parse_config(documented(), "aggregate")
    with pytest.raises(Exception, match="frozen"):
        config.privacy.epsilon = 5.0  # type: ignore[misc]


# Digest


def test_digest_covers_everything_but_performance() -> None:
    base = parse_config(documented(), "aggregate")
    same = changed(["performance"], {"engine": "factor", "num_partitions": 7})
    assert parse_config(same, "aggregate").digest() == base.digest()
    # Defaults written out and another spelling of a number are the same configuration.
    spelled = changed(["privacy", "leverage_cap_factor"], 10)
    spelled["privacy"]["epsilon"] = "1"
    spelled["input"]["header"] = True
    assert parse_config(spelled, "aggregate").digest() == base.digest()
    others = [
        (["input", "path"], "x"),
        (["input", "row_id"], "other_id"),
        (["schema", "intercept"], False),
        (["schema", "features", 0, "upper"], 501),
        (["schema", "features", 1, "categories"], ["desktop", "mobile", "tablet"]),
        (["schema", "label", "missing"], {"constant": 1}),
        (["mechanism", "num_bags"], 100),
        (["privacy", "epsilon"], 1.0000001),
        (["privacy", "leverage_cap_factor"], "none"),
        (["privacy", "floor"], {"kind": "assume", "mean_squared_residual": 1}),
        (["output", "path"], "x"),
    ]
    digests = {parse_config(changed(list(path), value), "aggregate").digest() for path, value in others}
    assert len(digests | {base.digest()}) == len(others) + 1


def test_public_dict_is_a_configuration_again() -> None:
    config = parse_config(documented(), "aggregate")
    content = config.public_dict()
    assert content["schema"]["label"]["missing"] == {"constant": 0.0}
    assert parse_config(copy.deepcopy(content), "aggregate") == config


# Fits


def test_fits() -> None:
    content: dict[str, Any] = {"release": {"path": "r"}, "output": {"path": "m.json"}}
    assert parse_config(content, "fit").method.name == "least-squares"
    bounded = parse_config(content | {"method": {"name": "bounded-least-squares", "norm_bound": "2"}}, "fit").method
    assert isinstance(bounded, BoundedLeastSquaresConfig) and bounded.norm_bound == 2.0
    for method, path, words in (
        ({"name": "bounded-least-squares"}, "method.norm_bound", "required"),
        ({"name": "bounded-least-squares", "norm_bound": 0}, "method.norm_bound", "greater than 0"),
        ({"name": "least-squares", "norm_bound": 1}, "method.norm_bound", "unknown key"),
        ({"name": "ihm"}, "method.name", "a mechanism of dpagg fit"),
    ):
        with pytest.raises(ConfigError, match=words) as refused:
            parse_config(content | {"method": method}, "fit")
        assert refused.value.path == path


# Shipped files


@pytest.mark.parametrize(("name", "features"), [("protein", 9), ("bike", 17)])
def test_shipped_experiments(name: str, features: int) -> None:
    config = load_config(CONF / "experiments" / f"{name}.yaml", "aggregate", {"DATA": "/d"})
    assert config.input.path == f"/d/{name}/data.csv.gz"
    assert config.encoding.num_columns == features + 1
    assert config.input.column_names is not None
    names = [feature.name for feature in config.encoding.features]
    assert [*names, config.encoding.label.name] == list(config.input.column_names)
    assert (config.privacy.epsilon, config.privacy.delta) == (1.0, 1e-8)
    fit = load_config(CONF / "experiments" / f"{name}_fit.yaml", "fit")
    assert fit.release.path == config.output.path


def test_importing_the_configuration_loads_no_spark() -> None:
    code = "import sys, dpagg.config; assert not {'pyspark', 'sklearn', 'jax'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=CONF.parent)


def test_the_configuration_of_a_training_in_conf_says_the_defaults():
    given = load_config(CONF / "train.yaml", "train")
    least = parse_config({"release": {"path": "out/bags"}, "output": {"path": "out/network"}}, "train")
    assert given == least
    free = parse_config(
        {"release": {"path": "r"}, "output": {"path": "o"}, "network": {"lipschitz": "none", "output_bound": "none"}},
        "train",
    )
    assert free.network.lipschitz is None and free.network.output_bound is None
    assert free.digest() != least.digest()
