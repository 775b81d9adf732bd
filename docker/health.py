"""Exit code 0 if the part of Spark that runs in this container can do its work, for HEALTHCHECK.

A master answers that it is alive, a worker that a master has registered it. Anything else is healthy while it runs.
"""

from __future__ import annotations

import json
import socket
import sys
import urllib.request
from pathlib import Path
from typing import Any

PACKAGE = "org.apache.spark.deploy"


def is_running(name: str) -> bool:
    """Whether a process of this container has the class as an argument."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        if name.encode() in words:
            return True
    return False


def state(port: int) -> dict[str, Any]:
    """Return what the web interface says of itself."""
    with urllib.request.urlopen(f"http://{socket.gethostname()}:{port}/json/", timeout=4) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def main() -> bool:
    """Ask the part that runs here."""
    try:
        if is_running(f"{PACKAGE}.master.Master"):
            return bool(state(8080)["status"] == "ALIVE")
        if is_running(f"{PACKAGE}.worker.Worker"):
            return bool(state(8081)["masterurl"])
    except (OSError, ValueError):
        return False
    return True


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
