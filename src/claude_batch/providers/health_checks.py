"""What `claude-batch doctor` checks at no cost: the ledger, the disk, versions, clock, API and key.

Nothing is changed: the ledger is only read, and the file that tests the disk is removed again.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import platform
import shutil
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from claude_batch._version import __version__
from claude_batch.core.errors import ActorConfigurationError, LedgerError
from claude_batch.core.files import create_beside, sibling
from claude_batch.core.quantities import count_of, roughly
from claude_batch.core.settings import (
    command_naming,
    default_state_dir,
    has_ledger,
    on_server,
    without_password,
)
from claude_batch.ledger import queries
from claude_batch.ledger.backends.sqlite import path_of
from claude_batch.ledger.backends.sqlite_file import (
    SQLITE_VERSION,
    Examined,
    examine,
    file_lock,
    leader_lock_files,
    owner_of,
    take,
    version_fault,
    why_forbidden,
)
from claude_batch.ledger.high_water import is_known, mark_file, read_mark
from claude_batch.ledger.schema import SCHEMA_VERSION
from claude_batch.ledger.store import MOVED_TO, Ledger, exists_on_server, identity_of
from claude_batch.ledger.workspaces import UNPROBED, remedy_of
from claude_batch.providers.engine_access import find_credentials
from claude_batch.wire.batches_client import base_url_advice
from claude_batch.wire.connection import Connection, CredentialFault, Unreachable
from claude_batch.wire.inbound import Redaction, header_word, server_time

Level = Literal["ok", "warning", "fault"]

Cause = Literal["ledger", "halted", "other"]
"""The subject of a fault, which decides the exit code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check."""

    check: str
    level: Level
    message: str
    remedy: str = ""
    """The remedy; empty if nothing has to be done."""
    cause: Cause = "other"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {name: value for name, value in asdict(self).items() if name != "cause"}


def _ok(check: str, message: str) -> Finding:
    return Finding(check=check, level="ok", message=message)


def _warning(check: str, message: str, remedy: str = "") -> Finding:
    return Finding(check=check, level="warning", message=message, remedy=remedy)


def _fault(check: str, message: str, remedy: str = "", cause: Cause = "other") -> Finding:
    return Finding(check=check, level="fault", message=message, remedy=remedy, cause=cause)


def _ledger_fault(check: str, message: str, remedy: str = "") -> Finding:
    return _fault(check, message, remedy, cause="ledger")


# The ledger ---------------------------------------------------------------------------------------


def check_ledger(location: str) -> Iterator[Finding]:
    """Yield what is found about a ledger and its disk."""
    if on_server(location):
        yield from _check_server(location)
        return
    try:
        path = path_of(location)
    except LedgerError as error:
        yield _ledger_fault("ledger", str(error))
        return
    if not has_ledger(str(path)) or (os.path.isfile(path) and not _size(path)):
        yield _ok("ledger", f"none at {path} yet; `claude-batch run` creates it")
        if (fault := _check_state_dir()) is not None:
            yield fault
        yield from _check_disk(path, 0)
        return
    try:
        examined = examine(path)
    except LedgerError as error:
        yield _ledger_fault("ledger", str(error))
    else:
        if (why := why_forbidden(path)) is not None:
            remedy = "Run the command as the owner, or correct the owner or the mode of the file"
            yield _ledger_fault("access", why, remedy)
        yield from _check_content(path, examined, location)
        yield _check_drivers(path)
    yield from _check_disk(path, _size(path))


_TO_WRITE = (
    ("its setting default_transaction_read_only forbids writing", "Correct the setting"),
    ("its user may not write its tables", "Grant the user all rights on the tables of its schema"),
    (
        "its user may not create temporary tables, and every run needs them",
        "Grant the user TEMPORARY on the database",
    ),
)
"""What a ledger on a server may lack (`queries.may_write_on_server`), with the remedies."""


def _check_server(location: str) -> Iterator[Finding]:
    try:
        if not exists_on_server(location):
            shown = without_password(location)
            yield _ok("ledger", f"none at {shown} yet; `claude-batch run` creates it")
            return
        ledger = Ledger(location)
    except LedgerError as error:
        yield _ledger_fault("ledger", str(error))
        return
    try:
        yield _ok("ledger", f"{ledger.location}, {_megabytes(ledger.size().data)}")
        if (weakness := ledger.weakness()) is not None:
            yield _warning("ledger", *weakness)
        with ledger.read() as tx:
            facts, rows = queries.metadata_of(tx), queries.workspaces_of(tx)
            waiting = queries.waiting_workspaces(tx)
            rights = queries.may_write_on_server(tx)
        for may, (why, remedy) in zip(rights, _TO_WRITE, strict=True):
            if not may:
                yield _ledger_fault("access", why, remedy)
        yield from _check_facts(facts, rows, waiting, location)
        workers = ledger.workers()
    except LedgerError as error:
        yield _ledger_fault("ledger", str(error))
        return
    finally:
        ledger.close()
    driving = count_of(
        sum(1 for each in workers if each.drives), "process drives", "processes drive"
    )
    yield _ok("driver", f"{driving} the ledger now, of {len(workers)} that use it")


_RECOVER = "claude-batch ledger recover"
_USE_A_BACKUP = (
    "Move the file away together with its -wal file, put a backup in its place, then run: "
)


def _check_content(path: Path, examined: Examined, location: str) -> Iterator[Finding]:
    meta = examined.meta
    version = meta.get("schema_version", "")
    if not version.isdigit() or not meta.keys() >= {"incarnation", "salt"}:
        yield _ledger_fault(
            "ledger", f"{path} is not a ledger of claude-batch", "Name another with --ledger"
        )
        return
    if MOVED_TO in meta:
        yield _ledger_fault(
            "ledger",
            f"{path} was moved to {meta[MOVED_TO]}",
            "Name the new one with --ledger or CLAUDE_BATCH_LEDGER",
        )
        return
    yield _ok("ledger", f"{path}, {_megabytes(_size(path))}")
    if examined.damage:
        yield _ledger_fault(
            "integrity",
            "; ".join(examined.damage),
            _USE_A_BACKUP + command_naming(_RECOVER, location),
        )
    else:
        yield _ok("integrity", "SQLite found no damage")
    yield from _check_facts(meta, examined.workspaces, examined.waiting, location)


def _megabytes(size: int) -> str:
    return f"{size / 1_000_000:,.1f} MB"


def _check_facts(
    meta: Mapping[str, str], workspaces: list[dict[str, Any]], waiting: set[int], location: str
) -> Iterator[Finding]:
    """Yield what the ledger's own rows show; ``workspaces`` and ``waiting`` as below."""
    yield _check_version(int(meta["schema_version"]))
    yield _check_mark(meta, location)
    yield from _check_workspaces(workspaces, waiting, location)


def _check_version(version: int) -> Finding:
    words = f"schema version {version}"
    if version > SCHEMA_VERSION:
        return _ledger_fault(
            "schema",
            f"{words}, but this claude-batch writes {SCHEMA_VERSION}",
            "Use the claude-batch that wrote it",
        )
    if version < SCHEMA_VERSION:
        words += f"; the next command migrates it to {SCHEMA_VERSION}, and keeps a copy"
    return _ok("schema", words)


def _check_state_dir() -> Finding | None:
    """Return the fault of the mark's folder if no mark can be written in it."""
    try:
        folder = there = default_state_dir()
    except LedgerError as error:
        return _ledger_fault("mark", str(error))
    while not owner_of(there):
        there = there.parent
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return None
    return _ledger_fault(
        "mark",
        f"none can be written in {folder}, and nothing is sent without one: {there} belongs to "
        f"{owner_of(there)}",
        "Correct the permissions, or name another folder with CLAUDE_BATCH_STATE_DIR",
    )


def _check_mark(meta: Mapping[str, str], location: str) -> Finding:
    if (fault := _check_state_dir()) is not None:
        return fault
    path = mark_file(identity_of(meta["salt"]))
    try:
        mark = read_mark(path)
    except LedgerError as error:
        return _ledger_fault("mark", str(error))
    if mark is None:
        return _ok("mark", "none yet; the first batch creates it")
    incarnations = {meta["incarnation"], *meta.get("former_incarnations", "").split()}
    if not is_known(mark, frozenset(incarnations), int(meta.get("posts", 0))):
        return _fault(
            "mark",
            f"the ledger has forgotten sendings that {path} counts: it was restored, or copied "
            "without its -wal file",
            command_naming(_RECOVER, location),
            cause="halted",
        )
    ahead = mark.written - time.time()
    if ahead > _MOST_SKEW:
        words = f"it was written {roughly(ahead)} in the future, so the clock was set back"
        return _warning("mark", words, "Set the clock")
    return _ok("mark", "the ledger has every sending that it counts")


def _check_workspaces(
    workspaces: list[dict[str, Any]], waiting: set[int], location: str
) -> Iterator[Finding]:
    """Yield the halts that keep requests from being sent, now or later.

    ``waiting`` has the ids of the workspaces in which requests have no outcome yet. Without one,
    most halts mean nothing: the next command tries again at once.
    """
    for row in workspaces:
        where, reason = row.get("base_url"), row.get("halt_reason")
        words = row.get("halt_message") or reason
        if row.get("behind") is not None or reason == "ledger_behind":
            # No other command ends this halt, whatever halted it before.
            why = f": {words}" if reason == "ledger_behind" else ""
            yield _fault(
                "sending",
                f"halted at {where} until the ledger is recovered{why}",
                command_naming(_RECOVER, location),
                cause="halted",
            )
        elif row.get("halted") is not None and (row["id"] in waiting or reason in UNPROBED):
            yield _fault(
                "sending",
                f"halted at {where}: {words}",
                f"Correct the cause, then run: {command_naming(remedy_of(reason), location)}",
                cause="halted",
            )


def _check_drivers(path: Path) -> Finding:
    """Report whether a process drives the ledger, by the locks of those that have driven it."""
    try:
        taken = [each for each in leader_lock_files(path) if not _is_free(each, path)]
    except (LedgerError, OSError) as error:
        return _ledger_fault("driver", str(error))
    words = "no process drives the ledger now"
    if taken:
        words = f"{count_of(len(taken), 'process drives', 'processes drive')} the ledger now"
    return _ok("driver", words)


def _is_free(lock_file: Path, ledger: Path) -> bool:
    lock = file_lock(lock_file)
    if not take(lock, ledger):
        return False
    lock.release()
    return True


def _size(path: Path) -> int:
    """Return the bytes of a ledger and its log, as far as they can be looked for."""
    size = 0
    for each in (path, sibling(path, "-wal")):
        with suppress(OSError):
            size += each.stat().st_size
    return size


# The disk -----------------------------------------------------------------------------------------

_LEAST_FREE = 100_000_000
"""Bytes. A batch of large documents has 256 MB, but most have less than this."""

_SLOW_SYNC = 1.0
"""Seconds. Each batch waits for several syncs."""


def _check_disk(path: Path, size: int) -> Iterator[Finding]:
    folder = path.resolve().parent
    while not owner_of(folder):
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    words = f"{free / 1_000_000:,.0f} MB free in {folder}"
    if free < _LEAST_FREE:
        yield _fault("disk", words, "Make room on the disk")
    elif free < size:
        yield _warning(
            "disk",
            f"{words}, which is less than the ledger's {size / 1_000_000:,.0f} MB",
            "Make room for a backup, and for the copy that a migration keeps",
        )
    else:
        yield _ok("disk", words)
    yield _check_sync(folder)


def _check_sync(folder: Path) -> Finding:
    begun = time.monotonic()
    try:
        descriptor, probe = create_beside(folder / "doctor", "probe")
        try:
            os.write(descriptor, bytes(4096))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
            probe.unlink()
    except OSError as error:
        return _fault(
            "sync",
            f"no file can be written and synced in {folder}: {error.strerror}",
            "Correct the permissions or the disk, or name another ledger with --ledger",
        )
    took = time.monotonic() - begun
    words = f"a file was written and synced in {took * 1000:,.0f} ms"
    if took > _SLOW_SYNC:
        return _warning("sync", words, "Move the ledger to a faster disk")
    return _ok("sync", words)


# Versions -----------------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    """Return the versions that a report names."""
    return {
        "claude-batch": __version__,
        "Python": platform.python_version(),
        "anthropic": importlib.metadata.version("anthropic"),
        "SQLite": SQLITE_VERSION,
        "system": f"{platform.system()} {platform.machine()}",
    }


def check_versions(location: str) -> Finding:
    """Return the versions in use, or that SQLite is too old for a ledger."""
    if not on_server(location) and (why := version_fault()):
        return _ledger_fault("versions", why)
    found = ", ".join(f"{name} {version}" for name, version in versions().items())
    return _ok("versions", found)


# The API and the clock ----------------------------------------------------------------------------

_CALL_SECONDS = 30.0

_MOST_SKEW = 60.0
"""Seconds between this machine's clock and the server's above which times become misleading."""


async def check_api(base_url: str | None, api_key_env: str | None) -> list[Finding]:
    """Return whether the API can be reached, the clock, and whether the API accepts the key.

    The two calls list batches, one without a key and one with it. They are not billed.
    """
    findings = await _check_way(base_url)
    if findings[0].level == "ok":
        findings.append(await _check_key(base_url, api_key_env))
    return findings


async def _check_key(base_url: str | None, api_key_env: str | None) -> Finding:
    remedy = "Correct the key in ANTHROPIC_API_KEY, or name its variable with --api-key-env"
    try:
        given = find_credentials(base_url, None, api_key_env)
        connection = Connection(base_url=given.get("base_url"), api_key=given.get("api_key"))
    except (ActorConfigurationError, CredentialFault) as error:
        return _fault("key", str(error), remedy)
    try:
        if not connection.credential:
            return _ok(
                "key", "none is set; sending needs one (ANTHROPIC_API_KEY, or --api-key-env)"
            )
        async with asyncio.timeout(_CALL_SECONDS):
            response = await connection.send("GET", "/v1/messages/batches", params={"limit": 1})
    except (Unreachable, TimeoutError) as error:
        why = _reason(error, connection.redaction)
        return _warning("key", f"it was not checked: {why}", "Try again")
    finally:
        await connection.aclose()
    if response.is_success:
        name = header_word(response.headers, "anthropic-workspace-id")
        return _ok("key", f"the API accepts it{'' if name is None else f', in workspace {name}'}")
    fault = connection.fault_of(response)
    words = f"HTTP {fault.status}: {fault.message}"
    if fault.account_reason is None:
        return _warning("key", f"it was not checked: {words}")
    return _fault("key", words, remedy, cause="halted")


async def _check_way(base_url: str | None) -> list[Finding]:
    try:
        connection = Connection(base_url=base_url, api_key="")
    except ActorConfigurationError as error:
        return [_fault("api", str(error))]
    where = connection.base_url
    try:
        async with asyncio.timeout(_CALL_SECONDS):
            sent = time.time()
            response = await connection.send("GET", "/v1/messages/batches", params={"limit": 1})
            received = time.time()
    except Unreachable as error:
        return [_unreachable(where, error, connection.redaction)]
    except TimeoutError as error:
        return [_unreachable(where, error, connection.redaction, f"{_CALL_SECONDS:g} s")]
    finally:
        await connection.aclose()
    status = response.status_code
    fault = connection.fault_of(response)
    words = f"{where} answers with HTTP {status}"
    if status == 401 and fault.error_type is not None:
        found = _ok("api", f"{words}, as it must without a key")
    elif response.is_success:
        found = _ok("api", f"{words}, also without a key")
    elif fault.passes:
        found = _warning(
            "api",
            f"{words}: {fault.message}",
            "Try again later; https://status.claude.com reports outages",
        )
    else:
        remedy = "Check the base URL (--base-url, ANTHROPIC_BASE_URL), and any proxy"
        if status == 404:
            advice = base_url_advice(where)
            remedy = f"{advice[0].upper()}{advice[1:]}, or check any proxy"
        found = _fault(
            "api",
            f"{words} where the Message Batches API answers with 401: {fault.message}",
            remedy,
        )
    now = server_time(response.headers)
    return [found] if now is None else [found, _check_clock(now - (sent + received) / 2)]


_PHASES: Mapping[type[BaseException], tuple[str, str]] = {
    socket.gaierror: ("its name cannot be resolved", "Check the name, the network and the DNS"),
    ssl.SSLError: (
        "TLS failed",
        "Check the clock, and the certificates of a proxy that inspects TLS (SSL_CERT_FILE)",
    ),
    TimeoutError: ("no answer came in time", "Check the network, the firewall and any proxy"),
    ConnectionRefusedError: ("the connection was refused", "Check the address and the port"),
}
"""The phase in which a call failed, by the innermost error."""


def _unreachable(
    where: str, error: Exception, redaction: Redaction, reason: str | None = None
) -> Finding:
    words, remedy = "no connection", "Check the network, the base URL and any proxy"
    inner: BaseException | None = error
    while inner is not None:
        for kind, known in _PHASES.items():
            if isinstance(inner, kind):
                words, remedy = known
        inner = inner.__cause__ or inner.__context__
    if redaction.proxy is not None:
        remedy += "; the proxy is named by HTTPS_PROXY, HTTP_PROXY or ALL_PROXY"
    message = f"{where} cannot be reached: {words} ({reason or _reason(error, redaction)})"
    return _fault("api", message, remedy)


def _reason(error: Exception, redaction: Redaction) -> str:
    return error.reason if isinstance(error, Unreachable) else redaction.reason(error)


def _check_clock(ahead: float) -> Finding:
    """Return the finding for a server that is ``ahead`` seconds ahead of this machine."""
    # The server's time has whole seconds.
    off = max(0.0, abs(ahead) - 1)
    if off <= _MOST_SKEW:
        return _ok("clock", "agrees with the server's")
    relation = "behind" if ahead > 0 else "ahead of"
    return _warning(
        "clock",
        f"{roughly(off)} {relation} the server's",
        "Set the clock; budgets by day, deadlines and schedules follow it",
    )
