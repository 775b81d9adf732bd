"""Spark itself knows every key of conf/spark and can read its value, so that a mistyped one cannot pass unseen."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import IllegalArgumentException

CONF = Path(__file__).resolve().parents[2] / "conf" / "spark"
# Spark registers its settings when these are loaded.
REGISTERS = (
    "org.apache.spark.internal.config.package$",
    "org.apache.spark.internal.config.Deploy$",
    "org.apache.spark.internal.config.Network$",
    "org.apache.spark.internal.config.Python$",
    "org.apache.spark.internal.config.UI$",
    "org.apache.spark.internal.config.Worker$",
    "org.apache.spark.deploy.k8s.Config$",
    "org.apache.spark.deploy.yarn.config.package$",
)
# The network layer reads these without registering them.
OF_THE_NETWORK = {"spark.network.crypto.authEngineVersion", "spark.network.crypto.cipher"}
# What spark-submit takes out of the file before there is a configuration.
OF_SUBMIT = {"spark.master"}


@pytest.fixture
def registered(spark):
    """Return a function that gives Spark's own entry of a key, or None."""
    jvm = spark.sparkContext._jvm
    for name in REGISTERS:
        jvm.java.lang.Class.forName(name)
    return jvm.org.apache.spark.internal.config.ConfigEntry.findEntry


def settings(spark, name):
    """The file as spark-submit reads it."""
    found = spark.sparkContext._jvm.org.apache.spark.util.Utils.getPropertiesFromFile(str(CONF / f"{name}.conf"))
    pairs = found.iterator()
    read = {}
    while pairs.hasNext():
        pair = pairs.next()
        read[pair._1()] = pair._2()
    return read


@pytest.mark.parametrize("name", ["standalone", "yarn", "kubernetes"])
def test_spark_knows_each_key_and_reads_its_value(spark, registered, name):
    read = settings(spark, name)
    assert read["spark.authenticate"] == "true" and len(read) > 12
    for key, value in read.items():
        if key in OF_THE_NETWORK | OF_SUBMIT:
            continue
        entry = registered(key)
        assert entry is not None, key
        entry.valueConverter().apply(value)  # raises where the value has no meaning


@pytest.mark.parametrize("name", ["standalone", "yarn", "kubernetes"])
def test_the_network_layer_takes_the_ciphers(spark, name):
    jvm = spark.sparkContext._jvm
    read = settings(spark, name)
    network = jvm.org.apache.spark.network.util
    values = jvm.java.util.HashMap()
    for key, value in read.items():
        values.put(key, value)
    conf = network.TransportConf("rpc", network.MapConfigProvider(values))
    assert conf.encryptionEnabled() is True
    assert conf.authEngineVersion() == 2
    assert conf.cipherTransformation() == "AES/GCM/NoPadding"
    # Neither is what Spark does by itself.
    default = network.TransportConf("rpc", network.MapConfigProvider.EMPTY)
    assert (default.authEngineVersion(), default.cipherTransformation()) != (2, "AES/GCM/NoPadding")


def test_the_check_notices(registered):
    assert registered("spark.network.crypto.enable") is None
    with pytest.raises(IllegalArgumentException):
        registered("spark.task.maxFailures").valueConverter().apply("many")
