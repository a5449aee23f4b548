"""Steps of documents that are small, and unpack to more than a machine can bear."""

from __future__ import annotations

import io
import json
import os
import resource
import socket
import subprocess
import sys
import zipfile
import zlib
from base64 import b64encode
from typing import Any
from unittest import mock

import papers
from behave import given, then, when
from behave.runner import Context
from cli_steps import keep_end
from tables import rule

from claude_batch.actor import docx
from claude_batch.actor.documents import Document, messages_with
from claude_batch.core import limited
from claude_batch.core.limited import run_limited
from claude_batch.wire import bounds
from claude_batch.wire.bounds import pdf_tokens, token_bound

SECONDS, MEMORY = 60, 2_000_000_000
"""Of processor time and of address space that a bounded command may use."""

_END = b"\nstartxref\n0\n%%EOF\n"
_STREAM = b"1 0 obj\n<< /Type /ObjStm /N 1 /First 4 /Length %d >>\nstream\n%b\nendstream\nendobj\n"
_WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'


def _docx(inside: str) -> bytes:
    plain = papers.docx("", body=f"<w:document {_WORD}><w:body>{inside}</w:body></w:document>")
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(plain)) as stored,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in stored.namelist():
            packed.writestr(name, stored.read(name))
    return out.getvalue()


def _large_docx(size: int) -> bytes:
    paragraph = "<w:p><w:r><w:t>a</w:t></w:r></w:p>" + " " * 30
    if size > 200_000_000:
        return _with_part("word/document.xml", size)
    return _docx(paragraph * (size // len(paragraph)))


def _wide_docx(size: int) -> bytes:
    # One wide character makes four bytes of each: memory is full long before the time is over.
    paragraph = f"<w:p><w:r><w:t>{'a' * 8000}\N{GRINNING FACE}</w:t></w:r></w:p>"
    return _docx(paragraph * (size // len(paragraph)))


def _with_part(name: str, size: int) -> bytes:
    out = io.BytesIO()
    with (
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed,
        packed.open(name, "w") as part,
    ):
        for _ in range(size // 1_000_000):
            part.write(b" " * 1_000_000)
    return out.getvalue()


def _many_files(count: int) -> bytes:
    return papers.packed_files({f"{number}": "" for number in range(count)})


def _streams(count: int, size: int) -> bytes:
    packed = zlib.compress(b" " * size, 9)
    return b"%PDF-1.5\n" + _STREAM % (len(packed), packed) * count + _END


def _tree(kids: str, depth: int) -> bytes:
    """A page tree in which each node has one other node as its kid, again and again."""
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>"]
    for number in range(2, depth + 2):
        kid = f"{number + 1} 0 R " * 10
        objects.append(f"<< /Type /Pages /Count 1 /Kids [{kid}] >>".encode())
    objects.append(b"<< /Type /Page /MediaBox [0 0 9 9] >>")
    return papers._plain(objects, b"")


BOMBS: dict[str, Any] = {
    "a PDF of 20000 nodes of the page tree, none closed": lambda: (
        b"%PDF-1.4\n" + b"<</Type /Pages" * 20_000 + _END
    ),
    "a PDF of 20000 nodes of the page tree, in each other": lambda: (
        b"%PDF-1.4\n" + b"<</Type /Pages" * 20_000 + b">>" * 20_000 + _END
    ),
    "a PDF that marks 300000 object streams without one": lambda: (
        b"%PDF-1.4\n" + b"/ObjStm " * 300_000 + _END
    ),
    "a PDF of 700 object streams of 4 MB": lambda: _streams(700, 4_000_000),
    "a PDF of 110000 empty object streams": lambda: _streams(110_000, 0),
    "a PDF of 5000000 brackets": lambda: b"%PDF-1.4\n<</Type /Pages>>" + b"<<>>" * 2_500_000 + _END,
    "a DOCX of 300 MB unpacked": lambda: _large_docx(300_000_000),
    "a DOCX of 180 MB of wide text": lambda: _wide_docx(180_000_000),
    "a DOCX of 300 KB unpacked": lambda: _large_docx(300_000),
    "a ZIP of 30000 files": lambda: _many_files(30_000),
    "a DOCX of 200000 levels": lambda: _docx("<w:p>" * 200_000 + "</w:p>" * 200_000),
    "a DOCX whose fields take quadratic time": lambda: _docx(
        "<w:p>" + '<w:r><w:fldChar w:fldCharType="begin"/></w:r>' * 60_000 + "</w:p>"
    ),
    "ten pages in ten, ten levels deep": lambda: _tree("10", 10),
    "200000 levels deep": lambda: papers._plain(
        [b"<< /Type /Catalog /Pages 2 0 R >>", b"[" * 200_000 + b"]" * 200_000], b""
    ),
}


@given('a document "{name}" that is {bomb}')
def _(context: Context, name: str, bomb: str) -> None:
    data = BOMBS[bomb]()
    assert len(data) < 25_000_000, len(data)  # all of them are smaller than a request may be
    (context.tmp / name).write_bytes(data)


def _bound() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


@when('a bounded command estimates a prompt about "{name}"')
def _(context: Context, name: str) -> None:
    line = {"prompt": "What does it say?", "documents": [name]}
    (context.tmp / "asks.jsonl").write_text(json.dumps(line) + "\n")
    command = ("estimate", "--offline", "--model", "claude-haiku-4-5", "asks.jsonl")
    done = subprocess.run(
        [sys.executable, "-m", "claude_batch", *command],
        cwd=context.tmp,
        capture_output=True,
        text=True,
        timeout=280,
        preexec_fn=_bound,
    )
    keep_end(context, done.returncode, done.stdout, done.stderr)


@rule("documents whose reading may take 3 seconds are read")
def _(context: Context, name: str, document: str) -> dict[str, str]:
    path = context.tmp / name
    path.write_bytes(BOMBS[document]())
    with mock.patch.object(docx, "SECONDS", 3.0):
        asked = [{"role": "user", "content": "Look"}]
        messages_with([Document(path)], asked, model="claude-haiku-4-5", citations=False)
    return {}


# The process that reads ---------------------------------------------------------------------------


def _limited(name: str, data: bytes = b"", seconds: float = 2.0) -> bytes:
    return run_limited(f"limited_work:{name}", data, seconds=seconds)


def _kill() -> None:
    process = limited._process
    assert process is not None
    process._process.kill()
    process._process.wait()


@then("5 ordinary PDFs are counted by one process, and by another one after it was killed")
def _(context: Context) -> None:
    pids = set[bytes]()
    for pages in range(1, 6):
        assert pdf_tokens(papers.pdf("hello", pages=pages))
        pids.add(_limited("pid_of"))
    [pid] = pids
    _kill()
    assert pdf_tokens(papers.pdf("hello"))
    assert _limited("pid_of") != pid


@then("the process that counts has no key, and a fork starts its own")
def _(context: Context) -> None:
    os.environ |= dict.fromkeys(("ANTHROPIC_API_KEY", "MY_KEY", "PGPASSWORD"), "sk-secret")
    _kill()
    assert _limited("secrets_of") == b""
    own = _limited("pid_of")
    if (child := os.fork()) == 0:
        try:
            code = 2
            code = 0 if _limited("pid_of") not in (own, b"") else 1
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    assert status == 0, status
    assert _limited("pid_of") == own


@then("a program without a Python of its own runs the function itself")
def _(context: Context) -> None:
    with mock.patch.object(sys, "frozen", True, create=True):
        assert int(_limited("pid_of")) == os.getpid()


@then(
    "in a program whose sockets have a default timeout, one process echoes 1,000,000 bytes, "
    "then 10 bytes, and again"
)
def _(context: Context) -> None:
    context.add_cleanup(socket.setdefaulttimeout, socket.getdefaulttimeout())
    socket.setdefaulttimeout(30)
    _kill()
    pids = set[bytes]()
    for size in (1_000_000, 10, 1_000_000, 10):
        assert len(_limited("prints", b"x" * size)) == size
        pids.add(_limited("pid_of"))
    assert len(pids) == 1, pids


@rule("the tokens of a PDF are known or not,")
def _(pdf: str) -> dict[str, bool]:
    is_ordinary, python = pdf.startswith("ordinary"), sys.executable
    data = papers.pdf("hello") if is_ordinary else BOMBS[pdf]()
    if pdf.startswith("ordinary, "):
        _kill()
        bounds._bounds.clear()
        python = "/bin/true" if pdf.endswith("ends at once") else "/nowhere/python"
    source = {"type": "base64", "media_type": "application/pdf", "data": b64encode(data).decode()}
    content = [{"type": "document", "source": source}]
    params = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": content}]}
    with mock.patch.object(sys, "executable", python):
        found = token_bound(json.dumps(params, separators=(",", ":")).encode())
    return {"known": not found.media.unknown}


@rule("a limited function is refused")
def _(does: str) -> dict[str, str]:
    try:
        _limited(does)
    except ValueError as error:
        assert _limited("prints", b"what is asked next") == b"what is asked next"
        return {"kind": type(error).__name__, "problem": str(error)}
    raise AssertionError("it was taken")
