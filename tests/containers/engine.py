"""The image and the compose file, built and run by podman: no daemon, no registry of images, a store of its own.

The base image is made by debootstrap and tagged with the name in the Dockerfile. Everything stays under one folder, and
networks and containers carry a name of their own, so that other containers of this machine are left alone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE_FILE = ROOT / "docker" / "compose.yaml"
NEEDED = ("podman", "buildah", "runc", "debootstrap")
IMAGE = "localhost/dpagg-check:latest"


def missing() -> str | None:
    """What this machine lacks, in words."""
    lacks = [name for name in NEEDED if shutil.which(name) is None]
    if compose_command() is None:
        lacks.append("podman-compose")
    if os.geteuid() != 0:
        lacks.append("root's rights, for debootstrap and networks")
    return ", ".join(lacks) or None


def compose_command() -> str | None:
    beside = Path(sys.executable).parent / "podman-compose"
    return str(beside) if beside.is_file() else shutil.which("podman-compose")


class Engine:
    """Podman with a store of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.log = home / "log"
        (home / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{home}/store"\nrunroot = "{home}/run"\n'
        )
        # Limits as they are: raising them needs a capability that a container around this one may not have.
        (home / "containers.conf").write_text(
            "[containers]\ndefault_ulimits = []\n"
            '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        )
        self.environment = os.environ | {
            "CONTAINERS_STORAGE_CONF": str(home / "storage.conf"),
            "CONTAINERS_CONF": str(home / "containers.conf"),
            "DPAGG_IMAGE": IMAGE,
        }

    def run(self, *command: str | Path, check: bool = True, seconds: float = 1800.0, **more: Any) -> str:
        """Run a command in this engine's environment; return what it writes to standard output."""
        words = [str(word) for word in command]
        with self.log.open("a") as log:
            log.write(f"$ {' '.join(words)}\n")
            log.flush()
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                timeout=seconds,
                check=False,
                env=self.environment | more.get("env", {}),
                cwd=ROOT,
            )
            log.write(done.stdout)
        assert not check or done.returncode == 0, f"{' '.join(words)}: {done.returncode}\n{self.tail()}"
        return done.stdout if check else str(done.returncode)

    def tail(self) -> str:
        return self.log.read_text()[-2000:]

    def build(self) -> None:
        """Build the Dockerfile on a base that offers what the one named there does."""
        base = re.search(r"^ARG BASE=(debian:(\w+)-[^@\s]+)@", (ROOT / "docker/Dockerfile").read_text(), re.MULTILINE)
        assert base is not None
        name, suite = base.groups()
        tree = self.home / "base"
        self.run("debootstrap", "--variant=minbase", suite, tree)
        archive = self.home / "base.tar"
        self.run("tar", "-C", tree, "-cf", archive, ".")
        self.run("podman", "import", archive, f"docker.io/library/{name}")
        shutil.rmtree(tree)
        archive.unlink()
        # How this machine reaches packages is its own affair: mounted while it builds, and in no layer.
        secrets = [f"--secret=id=ca,src={place}" for place in [ssl.get_default_verify_paths().cafile] if place]
        settings = os.environ.get("PIP_CONFIG_FILE", "/etc/pip.conf")
        if Path(settings).is_file():
            secrets.append(f"--secret=id=pip,src={settings}")
        mirror = os.environ.get("DEFAULT_ARTIFACT_REPOSITORY")
        self.run(
            *("buildah", "bud", "--pull-never", "--isolation", "chroot", "--network", "host", "--format", "docker"),
            *(f"--build-arg=BASE={name}", *secrets),
            *([f"--build-arg=DEFAULT_ARTIFACT_REPOSITORY={mirror}"] if mirror else []),
            *("-f", "docker/Dockerfile", "-t", IMAGE, "."),
        )

    def close(self) -> None:
        """Remove all containers of this store, and the store."""
        self.run("podman", "rm", "--all", "--force", check=False)
        for mounted in (self.home / "store" / "overlay").glob("*/merged"):
            subprocess.run(["umount", str(mounted)], capture_output=True, check=False)
        subprocess.run(["umount", str(self.home / "store" / "overlay")], capture_output=True, check=False)
        shutil.rmtree(self.home / "store", ignore_errors=True)


class Project:
    """The services of the compose file, each started by podman-compose once what it waits for is there.

    podman-compose leaves ``service_healthy`` out with podman before 4.6, so the conditions are looked at here.
    """

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine, self.name = engine, name
        self.services: Mapping[str, Any] = yaml.safe_load(COMPOSE_FILE.read_text())["services"]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        engine.environment["DPAGG_MASTER_PORT"] = str(self.port)

    @property
    def network(self) -> str:
        return f"{self.name}_default"

    def container(self, service: str) -> str:
        return f"{self.name}_{service}_1"

    def up(self, service: str) -> None:
        """Start a service, and first those that it needs, in the order and under the conditions of the file."""
        for other, how in self.services[service].get("depends_on", {}).items():
            if not self.state(other):
                self.up(other)
            self._wait(other, how["condition"])
        self._compose("up", "--detach", "--no-deps", "--no-build", service)

    def down(self) -> None:
        self._compose("down", "--volumes", check=False)

    def address(self, container: str) -> str:
        """Address of a container in the network of this project."""
        networks = self.engine.run("podman", "inspect", "--format", "{{json .NetworkSettings.Networks}}", container)
        found: str = json.loads(networks)[self.network]["IPAddress"]
        return found

    def state(self, service: str) -> dict[str, Any]:
        """State of its container; empty if there is none."""
        command = ("podman", "container", "inspect", "--format", "{{json .State}}", self.container(service))
        with suppress(AssertionError):
            found: dict[str, Any] = json.loads(self.engine.run(*command))
            return found
        return {}

    def ended(self, service: str, seconds: float) -> int:
        """Wait until it ends; return its exit code."""
        for _ in _seconds(seconds):
            state = self.state(service)
            if state["Status"] == "exited":
                return int(state["ExitCode"])
        raise AssertionError(f"{service} runs after {seconds} s\n{self.logs(service)[-3000:]}")

    def logs(self, service: str) -> str:
        command = ["podman", "logs", self.container(service)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=self.engine.environment)
        return done.stdout + done.stderr

    def execute(self, service: str, *command: str) -> str:
        return self.engine.run("podman", "exec", self.container(service), *command)

    def _wait(self, service: str, condition: str) -> None:
        if condition == "service_completed_successfully":
            assert self.ended(service, 60) == 0, self.logs(service)
            return
        assert condition == "service_healthy"
        for _ in _seconds(180):
            if self.engine.run("podman", "healthcheck", "run", self.container(service), check=False) == "0":
                return
            assert self.state(service)["Status"] == "running", self.logs(service)[-3000:]
        raise AssertionError(f"{service} is not healthy\n{self.logs(service)[-3000:]}")

    def _compose(self, *words: str, check: bool = True) -> str:
        command = compose_command()
        assert command is not None
        return self.engine.run(command, "-f", COMPOSE_FILE, "-p", self.name, *words, check=check)


def _seconds(limit: float) -> Iterator[None]:
    end = time.monotonic() + limit
    while time.monotonic() < end:
        yield
        time.sleep(1)
