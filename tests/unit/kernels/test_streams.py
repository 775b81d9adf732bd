"""Streams: one secret, independent numbers a purpose, and nothing that shows the secret."""

import logging
import pickle

import numpy as np
import pytest
from scipy import stats

from dpagg.kernels.streams import Secret


def test_a_stream_is_the_same_after_a_journey_to_a_task():
    secret = Secret.insecure(7)
    there = pickle.loads(pickle.dumps(secret))
    np.testing.assert_array_equal(
        secret.stream("release", "weights", 3).standard_normal(50),
        there.stream("release", "weights", 3).standard_normal(50),
    )
    assert there.is_private is False


@pytest.mark.parametrize("other", [("other", "weights", 3), ("release", "noise", 3), ("release", "weights", 4)])
def test_release_purpose_and_index_each_change_the_stream(other):
    secret = Secret.insecure(7)
    first = secret.stream("release", "weights", 3).standard_normal(20_000)
    second = secret.stream(*other).standard_normal(20_000)
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(20_000)
    assert not np.isin(first, second).any()


def test_words_of_a_stream_cannot_be_shifted_into_each_other():
    secret = Secret.insecure(7)
    first = secret.stream("ab", "c", 0).integers(0, 2**63, 4)
    assert not np.array_equal(first, secret.stream("a", "bc", 0).integers(0, 2**63, 4))


def test_normals_are_standard_normal():
    # Kolmogorov-Smirnov at 4e5 draws sees a scale that is off by two percent on either side.
    draws = Secret.insecure(1).stream("r", "weights", 0).standard_normal(400_000)
    assert stats.kstest(draws, "norm").pvalue > 1e-4
    assert stats.kstest(draws * 1.02, "norm").pvalue < 1e-4
    assert stats.kstest(draws * 0.98, "norm").pvalue < 1e-4


def test_fresh_secrets_differ_and_are_private():
    first, second = Secret.fresh(), Secret.fresh()
    assert first.is_private and second.is_private
    assert first.stream("r", "w", 0).integers(0, 2**63) != second.stream("r", "w", 0).integers(0, 2**63)


def test_no_way_of_showing_a_secret_shows_its_key(caplog):
    secret = Secret(bytes(range(32)), is_private=True)
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("test").warning("%s %r %s", secret, secret, [secret])
    shown = caplog.text + repr({"secret": secret}) + f"{secret}"
    assert "hidden" in shown
    assert bytes(range(8, 16)).hex() not in shown and "\\x08" not in shown
    assert not hasattr(secret, "__dict__")


def test_a_short_key_is_refused_without_being_shown():
    with pytest.raises(ValueError, match="32 bytes") as caught:
        Secret(b"short-key", is_private=True)
    assert "short-key" not in str(caught.value)
