"""Where every random number of a release comes from: one secret, one cryptographic stream a purpose."""

from __future__ import annotations

import hashlib
import secrets
import struct
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from randomgen import HC128

_SECRET_BYTES = 32


class Secret:
    """The 256-bit secret of one release.

    Every stream of the release is keyed by it, so whoever knows it can redraw the weights. It is drawn on the
    driver, travels to tasks in their closure only, and prints as ``Secret(hidden)``.

    Parameters
    ----------
    key : bytes
        32 bytes. Use `Secret.fresh` for a release; `Secret.insecure` for tests and papers only.
    is_private : bool
        False if the key can be guessed, which the certificate then says.

    Raises
    ------
    ValueError
        If the key does not have 32 bytes.
    """

    __slots__ = ("_key", "is_private")

    def __init__(self, key: bytes, *, is_private: bool) -> None:
        if len(key) != _SECRET_BYTES:
            raise ValueError(f"a secret has {_SECRET_BYTES} bytes, this one {len(key)}")
        self._key = key
        self.is_private = is_private

    @classmethod
    def fresh(cls) -> Secret:
        """Return a new secret from the operating system."""
        return cls(secrets.token_bytes(_SECRET_BYTES), is_private=True)

    @classmethod
    def insecure(cls, seed: int) -> Secret:
        """Return the secret that belongs to a public seed: reproducible, and therefore not private."""
        return cls(hashlib.blake2b(b"%d" % seed, digest_size=_SECRET_BYTES).digest(), is_private=False)

    def stream(self, release_id: str, purpose: str, index: int) -> np.random.Generator:
        """Return the generator of one stream of the release.

        Its 256-bit HC-128 key and nonce are keyed BLAKE2b of (release id, purpose, index), so streams of different
        purposes, partitions or bags are independent as far as BLAKE2b is a pseudo-random function, and a task that
        runs again draws the same numbers.

        Parameters
        ----------
        release_id : str
            Identifies the release, so that no two releases share a stream even under an insecure seed.
        purpose : str
            What the numbers are for, for example ``"weights"``.
        index : int
            Partition, bag or chunk number, at least 0.

        Returns
        -------
        numpy.random.Generator
            A fresh generator at the start of the stream.
        """
        words = (release_id.encode(), purpose.encode())
        message = b"".join(struct.pack("<Q", len(word)) + word for word in words) + struct.pack("<Q", index)
        digest = hashlib.blake2b(message, key=self._key, digest_size=_SECRET_BYTES, person=b"dpagg.stream").digest()
        return np.random.Generator(HC128(key=np.frombuffer(digest, dtype="<u8")))

    def ranks(self, release_id: str, keys: Iterable[bytes]) -> NDArray[np.int64]:
        """Return the secret rank of each row key: keyed BLAKE2b of it, a new permutation of the rows each release.

        Parameters
        ----------
        release_id : str
            Identifies the release.
        keys : iterable of bytes
            Row keys, each of which identifies a row.

        Returns
        -------
        ndarray of int64, shape (k, 2)
            Rows are ordered by the first number, which is at least 0; the second one parts two rows that share it.
        """
        name = release_id.encode()
        # The name and its length come first, so that no name and key run into each other.
        begun = hashlib.blake2b(key=self._key, digest_size=16, person=b"dpagg.rank")
        begun.update(struct.pack("<Q", len(name)) + name)
        copy = begun.copy

        def digest(key: bytes) -> bytes:
            hasher = copy()
            hasher.update(key)
            return hasher.digest()

        numbers = np.frombuffer(b"".join(map(digest, keys)), dtype="<u8").reshape(-1, 2) >> np.uint64(1)
        return numbers.astype(np.int64)

    def __repr__(self) -> str:
        """Hide the key."""
        return "Secret(hidden)"

    def __reduce__(self) -> tuple[object, tuple[bytes, bool]]:
        """Let the secret travel in a task's closure."""
        return _restore, (self._key, self.is_private)


def _restore(key: bytes, is_private: bool) -> Secret:
    return Secret(key, is_private=is_private)
