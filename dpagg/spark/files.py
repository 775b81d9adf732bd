"""Files on whatever file system Spark reaches, through Hadoop's own interface."""

from __future__ import annotations

import errno
import os
import secrets
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from dpagg.errors import ConfigError, EnvironmentFault

_UNFINISHED = ".unfinished"


def hadoop_path(spark: SparkSession, path: str) -> Any:
    """Return a Hadoop path."""
    jvm: Any = spark.sparkContext._jvm
    return jvm.org.apache.hadoop.fs.Path(path)


def file_system(spark: SparkSession, path: str) -> Any:
    """Return the file system of a path."""
    configuration = cast(Any, spark.sparkContext._jsc).hadoopConfiguration()
    return hadoop_path(spark, path).getFileSystem(configuration)


def qualified(spark: SparkSession, path: str) -> str:
    """Return a path with its file system, in one spelling: ``out``, ``./out/`` and its absolute path are the same.

    Raises
    ------
    EnvironmentFault
        If there is no such file system.
    """
    try:
        return str(file_system(spark, path).makeQualified(hadoop_path(spark, path)).toString())
    except Py4JError:
        raise EnvironmentFault(
            f"{path} is on no file system that Spark knows",
            remedy="Check the spelling of the scheme, and that its connector is among Spark's jars.",
        ) from None


def is_empty_folder(spark: SparkSession, path: str) -> bool:
    """Return whether the path is a folder without anything in it."""
    files = file_system(spark, path)
    where = hadoop_path(spark, path)
    return bool(files.getFileStatus(where).isDirectory()) and len(files.listStatus(where)) == 0


def read_bytes(spark: SparkSession, path: str) -> bytes:
    """Return what is in a file of a few megabytes; what Hadoop raises goes on."""
    jvm: Any = spark.sparkContext._jvm
    stream = file_system(spark, path).open(hadoop_path(spark, path))
    try:
        return bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
    finally:
        stream.close()


def read_text(spark: SparkSession, path: str) -> str | None:
    """Return the text of a small file, None if there is none or it isn't text."""
    try:
        return read_bytes(spark, path).decode()
    except (Py4JError, UnicodeDecodeError):
        return None


def write_bytes(spark: SparkSession, path: str, content: bytes) -> None:
    """Write a file of a few megabytes, over one that is there; what Hadoop raises goes on."""
    stream = file_system(spark, path).create(hadoop_path(spark, path), True)
    try:
        stream.write(content)
    finally:
        stream.close()


def write_text(spark: SparkSession, path: str, text: str) -> None:
    """Write a small file whole: to another name first, then moved."""
    files, partial = file_system(spark, path), f"{path}{_UNFINISHED}"
    write_bytes(spark, partial, text.encode())
    files.delete(hadoop_path(spark, path), False)
    files.rename(hadoop_path(spark, partial), hadoop_path(spark, path))


def staging_path(target: str) -> str:
    """Return a name beside the target for what isn't finished, one for each run; readers skip names with a dot."""
    parent, _, name = target.rstrip("/").rpartition("/")
    return f"{parent}/.{name}.{_host()}-{os.getpid()}-{secrets.token_hex(4)}{_UNFINISHED}"


def remove_abandoned(spark: SparkSession, target: str) -> None:
    """Remove what runs on this machine that were killed left beside the target."""
    parent, _, name = target.rstrip("/").rpartition("/")
    files = file_system(spark, target)
    with suppress(Py4JError):
        if not files.exists(hadoop_path(spark, parent)):
            return
        for status in files.listStatus(hadoop_path(spark, parent)):
            found = str(status.getPath().getName())
            prefix = f".{name}.{_host()}-"
            if found.startswith(prefix) and found.endswith(_UNFINISHED):
                owner = found.removeprefix(prefix).partition("-")[0]
                if owner.isdigit() and not _alive(int(owner)):
                    files.delete(status.getPath(), True)


def remove(spark: SparkSession, path: str) -> None:
    """Remove a folder of this run, if it is still there."""
    with suppress(Py4JError):
        file_system(spark, path).delete(hadoop_path(spark, path), True)


def remove_unlisted(spark: SparkSession, folder: str, listed: Iterable[str], ending: str) -> None:
    """Remove the files directly in a folder whose name has this ending and is not the name of one of those listed."""
    files, names = file_system(spark, folder), {each.rpartition("/")[2] for each in listed}
    for status in files.listStatus(hadoop_path(spark, folder)):
        name = str(status.getPath().getName())
        if name.endswith(ending) and name not in names:
            files.delete(status.getPath(), False)


def move_new(spark: SparkSession, source: str, target: str, shown: str) -> None:
    """Move a folder to a path where nothing is, in one step where the file system has one.

    On a mounted file system the folder is made durable first: what is there after a power cut is whole.

    Raises
    ------
    ConfigError
        If something is there by now.
    EnvironmentFault
        If it can't be moved.
    """
    taken = ConfigError(
        f"{shown} came into being while this run was under way, by another run perhaps; nothing of this run was kept",
        path="output.path",
        remedy="Run again: if it holds this very release, that is found.",
    )
    local = local_path(target)
    if local is not None:
        # The system's own rename refuses a folder that holds anything; Hadoop's would copy into it.
        try:
            make_durable(cast(str, local_path(source)))
            os.rename(cast(str, local_path(source)), local)
            _sync(os.path.dirname(local))
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise taken from None
            raise EnvironmentFault(
                f"the release could not be moved to {shown}: {error.strerror}", path="output.path"
            ) from None
        return
    files = file_system(spark, target)
    try:
        if files.exists(hadoop_path(spark, target)):
            raise taken
        moved = files.rename(hadoop_path(spark, source), hadoop_path(spark, target))
    except Py4JError:
        moved = False
    if not moved:
        raise EnvironmentFault(f"the release could not be moved to {shown}", path="output.path")


def local_path(uri: str) -> str | None:
    """Return the path of a folder on a mounted file system, None for one that is elsewhere."""
    # Hadoop writes paths as they are, without escapes.
    return "/" + uri.removeprefix("file:").lstrip("/") if uri.startswith("file:") else None


def make_durable(folder: str, since: float = 0.0) -> None:
    """Have a mounted file system write the files of a folder that changed at that time or later, and their names.

    Raises
    ------
    OSError
        If it can't; some say only now that the disk is full.
    """
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            path = os.path.join(parent, name)
            # Others may be at work in a ledger's folder: what they moved away is not ours.
            with suppress(FileNotFoundError, PermissionError):
                if os.stat(path).st_mtime >= since:
                    _sync(path)
        _sync(parent)
    _sync(os.path.dirname(folder))


@contextmanager
def locked(path: str) -> Iterator[bool | None]:
    """Hold a lock on a file of a mounted file system, made if it isn't there; it ends with the process at the latest.

    Yields
    ------
    bool or None
        Whether it is held; False if another one holds it, None where the file system knows no locks.

    Raises
    ------
    OSError
        If the file can't be made or opened.
    """
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:
        # Another user's: a disk of this machine locks it all the same.
        descriptor = os.open(path, os.O_RDONLY)
    held: bool | None = True
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held = False
        except OSError:
            held = None
        yield held
    finally:
        os.close(descriptor)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems have no such thing for a folder.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def _host() -> str:
    return "".join(character for character in socket.gethostname() if character.isalnum())[:16] or "host"


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
