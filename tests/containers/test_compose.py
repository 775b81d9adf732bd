"""The compose file's cluster comes up from the Dockerfile, runs the demo, and keeps strangers out."""

from __future__ import annotations

import json
import re
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.containers.engine import IMAGE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]

CANARY = "canary-5b0f3c2d"
# Of a driver that gets no executor from the workers, because it asks for more than they have.
LONELY_DRIVER = f"""
import socket
from pyspark import SparkContext

context = SparkContext()
print(context.applicationId, flush=True)
told = "{CANARY}"
print(context.parallelize(range(4), 4).map(lambda _: (socket.gethostname(), len(told))).collect(), flush=True)
context.stop()
"""
# Of Linux; Python has no names for them.
SOL_PACKET, PACKET_ADD_MEMBERSHIP, PACKET_MR_PROMISC = 263, 1, 1
DRIVER_PORT = "7200"
# What Spark on Kubernetes hands to an executor's Java, in variables.
JAVA_OPTIONS = (
    f"-Dspark.driver.port={DRIVER_PORT}",
    "-Dspark.authenticate=true",
    "-Dspark.network.crypto.enabled=true",
    "-Dspark.network.crypto.authEngineVersion=2",
    "-Dspark.network.crypto.cipher=AES/GCM/NoPadding",
    "-Dspark.io.encryption.enabled=true",
    "--add-modules=jdk.incubator.vector",
)


def test_the_image(engine):
    (image,) = json.loads(engine.run("podman", "image", "inspect", IMAGE))
    assert image["Config"]["User"] == "10001:10001"
    assert image["Healthcheck"]["Test"] == ["CMD", "python", "/opt/dpagg/bin/health.py"]
    assert image["Size"] < 1.7e9
    # Nothing of the place where it was built: the mounts of the build left neither files nor words.
    listed = engine.run(
        "podman", "run", "--rm", IMAGE, "sh", "-c", "ls /etc/pip.conf /etc/ssl/certs /secret 2>&1 || true"
    )
    assert "No such file" in listed and "ca-certificates.crt" not in listed and "spark" not in listed
    history = engine.run("podman", "history", "--no-trunc", "--format", "{{.CreatedBy}}", IMAGE)
    assert not re.search(r"(?i)https?://|password|token", history)
    assert engine.run("podman", "run", "--rm", IMAGE, "dpagg", "--version").startswith("dpagg ")
    assert engine.run("podman", "run", "--rm", IMAGE, "python", "bin/health.py", check=False) == "0"


def test_the_demo_runs_on_the_cluster_to_its_end(project):
    assert project.ended("submit", 1500) == 0, project.logs("submit")[-3000:]
    said = project.logs("submit")
    assert "200,000 impressions" in said and "Read the promise" in said
    application = re.search(r"Registered app demo.py with ID (app-\S+)", project.logs("master"))
    assert application is not None
    for worker in ("worker-1", "worker-2"):
        assert application[1] in project.execute(worker, "ls", "/scratch/work")
        made = project.execute(worker, "ls", "/data/demo").split()
        assert {"aggregate.yaml", "aggregates", "impressions.parquet", "model.html", "model.json"} <= set(made)
    # Verified by another process, of the files on the shared volume alone.
    verified = project.execute("worker-1", "dpagg", "certificate", "verify", "/data/demo/aggregates", "--json")
    assert json.loads(verified)["holds"] is True


def test_the_web_interface_is_for_this_machine(project):
    asked = ("inspect", "--format", "{{json .NetworkSettings.Ports}}", project.container("master"))
    ports = json.loads(project.engine.run("podman", *asked))
    assert ports["8080/tcp"] == [{"HostIp": "127.0.0.1", "HostPort": str(project.port)}]


def test_the_secret_is_where_it_has_to_be_only(project):
    secret = project.execute("master", "cat", "/secret/spark").strip()
    assert re.fullmatch("[0-9a-f]{64}", secret)
    for service in ("secret", "master", "worker-1", "worker-2", "submit"):
        assert secret not in project.logs(service)
        assert secret not in project.engine.run("podman", "inspect", project.container(service))
    for service in ("master", "worker-1", "worker-2"):
        words = project.execute(service, "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        assert "org.apache.spark.deploy" in words and secret not in words
        search = ("exec", project.container(service), "grep", "-rlsF", secret, "/scratch", "/data", "/opt")
        assert project.engine.run("podman", *search, check=False) == "1"  # grep found nothing


def test_who_does_not_know_the_secret_gets_no_executor(project):
    """The same driver without the secret, and with another one, on the same network."""
    submit = ("spark-submit", "--conf", "spark.driver.memory=512m", "--conf", "spark.executor.memory=512m")
    for given in ((), ("--conf", "spark.authenticate=true", "--conf", f"spark.authenticate.secret={'0' * 64}")):
        done = subprocess.run(
            [
                *("podman", "run", "--rm", "--network", project.network, "-e", "SPARK_CONF_DIR=/tmp", IMAGE),
                *(*submit, "--master", "spark://master:7077", *given),
                *("/opt/dpagg/jobs/demo.py", "--out", "/tmp/demo"),
            ],
            capture_output=True,
            text=True,
            env=project.engine.environment,
            timeout=600,
            check=False,
        )
        assert done.returncode == 5, done.stderr[-3000:]
    assert len(re.findall("Registered app", project.logs("master"))) == 1


def test_the_image_serves_as_an_executor_of_kubernetes_and_nothing_crosses_the_network_readable(project, tmp_path):
    """Started with the variables that Spark gives a pod, it joins a driver, which gets its results from it."""
    engine = project.engine
    script = tmp_path / "driver.py"
    script.write_text(LONELY_DRIVER)
    script.chmod(0o644)
    tmp_path.chmod(0o755)
    secret = project.execute("master", "cat", "/secret/spark").strip()
    driver, pod = f"{project.name}-driver", f"{project.name}-pod"
    try:
        with captured(engine, project.network) as seen:
            started = subprocess.Popen(
                [
                    *("podman", "run", "--rm", "--name", driver, "--network", project.network),
                    *("-v", f"{project.name}_secret:/secret:ro", "-v", f"{script}:/driver.py:ro"),
                    *("-e", "SPARK_DEFAULTS=spark.master spark://master:7077", IMAGE, "spark-submit"),
                    *("--conf", "spark.executor.memory=100g", "--conf", "spark.executor.cores=1"),
                    *("--conf", "spark.driver.memory=512m", "--conf", f"spark.driver.port={DRIVER_PORT}", "/driver.py"),
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=engine.environment,
            )
            assert started.stdout is not None
            application = started.stdout.readline().strip()
            assert application.startswith("app-")
            variables = {
                "SPARK_DRIVER_URL": f"spark://CoarseGrainedScheduler@{project.address(driver)}:{DRIVER_PORT}",
                "SPARK_EXECUTOR_ID": "7",
                "SPARK_EXECUTOR_CORES": "1",
                "SPARK_EXECUTOR_MEMORY": "512m",
                "SPARK_APPLICATION_ID": application,
                "SPARK_RESOURCE_PROFILE_ID": "0",
                "SPARK_EXECUTOR_POD_NAME": "pod-7",
                "SPARK_EXECUTOR_POD_IP": "pod-7",
                "_SPARK_AUTH_SECRET": secret,
                **{f"SPARK_JAVA_OPT_{number}": option for number, option in enumerate(JAVA_OPTIONS)},
            }
            given = [word for name, value in variables.items() for word in ("-e", f"{name}={value}")]
            where = ("--name", pod, "--hostname", "pod-7", "--network", project.network)
            engine.run("podman", "run", "--rm", *where, *given, IMAGE, "executor", seconds=300)
            answer, _ = started.communicate(timeout=120)
            assert started.returncode == 0
            assert answer.strip() == repr([("pod-7", len(CANARY))] * 4)
            # What is readable, the capture sees.
            page = f"http://{project.address(project.container('master'))}:8080"
            inside = f"import urllib.request as r; r.urlopen('{page}').read()"
            project.execute("worker-1", "python", "-c", inside)
    finally:
        engine.run("podman", "rm", "--force", "--ignore", driver, pod, check=False)
    assert len(seen) > 100_000
    assert b"Spark Master at spark://master:7077" in seen
    assert CANARY.encode() not in seen and secret.encode() not in seen


@contextmanager
def captured(engine, network) -> Iterator[bytearray]:
    """Gather all that crosses the bridge of a network."""
    (found,) = json.loads(engine.run("podman", "network", "inspect", network))
    seen, ended = bytearray(), threading.Event()
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as tap:
        tap.bind((found["network_interface"], 0))
        # Else the bridge shows only what is for this machine itself.
        index = socket.if_nametoindex(found["network_interface"])
        tap.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, struct.pack("iHH8s", index, PACKET_MR_PROMISC, 0, b""))
        tap.settimeout(0.2)

        def gather() -> None:
            while not ended.is_set():
                try:
                    seen.extend(tap.recv(65_536)[54:])  # without the headers, so that what follows is in one piece
                except TimeoutError:
                    continue

        thread = threading.Thread(target=gather)
        thread.start()
        try:
            yield seen
        finally:
            ended.set()
            thread.join()


def test_the_image_serves_as_a_driver_of_kubernetes(engine):
    given = ("-e", "SPARK_DRIVER_BIND_ADDRESS=127.0.0.1", "-e", "SPARK_CONF_DIR=/nowhere")
    asked = ("--master", "local[1]", "--class", "org.apache.spark.deploy.PythonRunner")
    job = ("local:///opt/dpagg/jobs/demo.py", "--help")
    shown = engine.run("podman", "run", "--rm", *given, IMAGE, "driver", *asked, *job)
    assert "Usage: dpagg demo" in shown
