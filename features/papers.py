"""Small real documents for scenarios, made from nothing: PDFs, DOCX, the beginnings of images."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from typing import Any


def pdf(
    words: str,
    *,
    pages: int = 1,
    encrypted: bool = False,
    packed: bool = False,
    ballast: int = 0,
) -> bytes:
    """A PDF that says the same on each page; `packed` as newer writers do, in streams.

    `ballast`: bytes of a picture that no page shows.
    """
    drawn = f"BT /F1 24 Tf 72 720 Td ({words}) Tj ET".encode()
    kids = " ".join(f"{5 + n} 0 R" for n in range(pages)).encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%b] /Count %d >>" % (kids, pages),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<< /Length %d >>\nstream\n%b\nendstream" % (len(drawn), drawn),
    ]
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R"
    page += b" /Resources << /Font << /F1 3 0 R >> >> >>"
    objects += [page] * pages
    if ballast:
        objects.append(b"<< /Length %d >>\nstream\n%b\nendstream" % (ballast, b"\0" * ballast))
    secret = b" /Encrypt << /Filter /Standard /V 1 /R 2 >>" if encrypted else b""
    return _packed(objects, secret) if packed else _plain(objects, secret)


def _stream(data: bytes, **entries: Any) -> Any:
    """A compressed stream of pypdf's, with these entries of its dictionary."""
    from pypdf.generic import NameObject, StreamObject

    made = StreamObject()
    made.set_data(data)
    made.update({NameObject(f"/{name}"): value for name, value in entries.items()})
    return made.flate_encode()


def elaborate_pdf(kind: str) -> bytes:
    """A PDF of one page whose text is hard to find: `kind` says where it is."""
    from pypdf import PdfWriter
    from pypdf.generic import (
        ArrayObject,
        DictionaryObject,
        NameObject,
        NumberObject,
        TextStringObject,
    )

    def names(**entries: Any) -> Any:
        return DictionaryObject({NameObject(f"/{name}"): held for name, held in entries.items()})

    writer = PdfWriter()
    page = writer.add_blank_page(600, 800)
    content, fonts, forms, others = b"", {}, {}, {}
    text = b"(0123456789) Tj\n" * 1000
    if kind == "hexadecimal codes of two bytes":
        fonts["F"] = names(
            Subtype=NameObject("/Type0"),
            Encoding=NameObject("/Identity-H"),
            ToUnicode=writer._add_object(_stream(b"beginbfchar <0041> <0041> endbfchar")),
        )
        content = b"<00410041> Tj\n" * 1000
    elif kind == "ligatures":
        mapped = _stream(b"1 beginbfchar <01> <006600660069> endbfchar")
        fonts["F"] = names(Subtype=NameObject("/Type1"), ToUnicode=writer._add_object(mapped))
        content = text
    elif kind == "names of glyphs":
        glyphs = [NumberObject(1), *map(NameObject, ("/f_f_i", "/uni00410042004300440045"))]
        encoding = names(Differences=ArrayObject(glyphs))
        fonts["F"] = names(Subtype=NameObject("/Type1"), Encoding=encoding)
        content = text
    elif kind == "a form drawn 20 times inside of another":
        inner = writer._add_object(_stream(text, Subtype=NameObject("/Form")))
        outer = _stream(
            b"/A Do " * 10, Subtype=NameObject("/Form"), Resources=names(XObject=names(A=inner))
        )
        forms["Fm1"] = writer._add_object(outer)
        content = b"/Fm#31 Do /Fm1 Do"
    elif kind == "a form that draws itself":
        form = _stream(b"/A Do", Subtype=NameObject("/Form"))
        reference = writer._add_object(form)
        form[NameObject("/Resources")] = names(XObject=names(A=reference))
        forms["A"], content = reference, b"/A Do"
    elif kind == "a comment":
        appearance = writer._add_object(_stream(text, Subtype=NameObject("/Form")))
        states = names(On=writer._add_object(_stream(b"(on) Tj", Subtype=NameObject("/Form"))))
        comment = names(
            Contents=TextStringObject("é" * 1000),
            AP=names(N=appearance, D=states),
            V=NumberObject(1),
        )
        page[NameObject("/Annots")] = ArrayObject([writer._add_object(comment)])
    elif kind == "a replacement of what is shown":
        others["Properties"] = names(P=names(ActualText=TextStringObject("a" * 10_000)))
        content = b"/Span /P BDC (x) Tj EMC"
    elif kind == "a replacement of what its structure holds":
        replacing = names(ActualText=TextStringObject("a" * 10_000))
        writer.root_object[NameObject("/StructTreeRoot")] = writer._add_object(replacing)
    elif kind == "a replacement that stands elsewhere":
        elsewhere = names(ActualText=writer._add_object(TextStringObject("a" * 10_000)))
        writer.root_object[NameObject("/StructTreeRoot")] = elsewhere
    elif kind == "letters that are texts":
        drawn = writer._add_object(_stream(text))
        fonts["F"] = names(Subtype=NameObject("/Type3"), CharProcs=names(a=drawn))
        content = b"(a) Tj"
    elif kind == "a stream that unpacks to 20 MB":
        content = b" " * 20_000_000
    elif kind == "many streams that unpack to 80 MB":
        parts = [writer._add_object(_stream(b" " * 10_000_000)) for _ in range(8)]
        page[NameObject("/Contents")] = ArrayObject(parts)
    if content:
        page[NameObject("/Contents")] = writer._add_object(_stream(content))
    page[NameObject("/Resources")] = names(Font=names(**fonts), XObject=names(**forms), **others)
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def _plain(objects: list[bytes], secret: bytes) -> bytes:
    out, places = bytearray(b"%PDF-1.4\n"), list[int]()
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer\n<< /Size %d /Root 1 0 R%b >>\n" % (len(objects) + 1, secret)
    return bytes(out) + b"startxref\n%d\n%%%%EOF\n" % start


def _packed(objects: list[bytes], secret: bytes) -> bytes:
    loose = {4}
    inside = [(n, body) for n, body in enumerate(objects, 1) if n not in loose]
    at, index, bodies = 0, b"", b""
    for number, body in inside:
        index += b"%d %d " % (number, at)
        bodies += body + b" "
        at = len(bodies)
    stream = zlib.compress(index + bodies)
    out = bytearray(b"%PDF-1.5\n")
    places: dict[int, tuple[int, int, int]] = {0: (0, 0, 65535)}
    holder = len(objects) + 1
    places[4] = (1, len(out), 0)
    out += b"4 0 obj\n%b\nendobj\n" % objects[3]
    places[holder] = (1, len(out), 0)
    out += b"%d 0 obj\n<< /Type /ObjStm /N %d /First %d" % (holder, len(inside), len(index))
    out += b" /Filter /FlateDecode /Length %d >>\nstream\n" % len(stream)
    out += stream + b"\nendstream\nendobj\n"
    for place, (number, _) in enumerate(inside):
        places[number] = (2, holder, place)
    start = len(out)
    places[holder + 1] = (1, start, 0)
    rows = zlib.compress(b"".join(struct.pack(">BIH", *places[n]) for n in sorted(places)))
    out += b"%d 0 obj\n<< /Type /XRef /Size %d /W [1 4 2]" % (holder + 1, holder + 2)
    out += b" /Root 1 0 R%b /Filter /FlateDecode /Length %d >>\nstream\n" % (secret, len(rows))
    return bytes(out) + rows + b"\nendstream\nendobj\nstartxref\n%d\n%%%%EOF\n" % start


def image(kind: str, width: int, height: int) -> bytes:
    """The beginning of an image, as far as its size is told."""
    if kind == "png":
        head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + b"\0" * 20
    if kind == "gif":
        return b"GIF89a" + struct.pack("<HH", width, height) + b"\0" * 20
    if kind in ("jpeg", "jpeg-filled"):  # each marker may follow any number of fill bytes
        fill = b"\xff" * 3 if kind == "jpeg-filled" else b""
        frame = fill + b"\xff\xc0" + struct.pack(">HBHH", 17, 8, height, width) + b"\0" * 12
        return b"\xff\xd8\xff\xe0" + struct.pack(">H", 4) + b"\0\0" + frame
    chunks = {
        "webp-x": b"VP8X\x0a\0\0\0\0\0\0\0"
        + (width - 1).to_bytes(3, "little")
        + (height - 1).to_bytes(3, "little"),
        "webp-l": b"VP8L\0\0\0\0\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14),
        "webp": b"VP8 \0\0\0\0\0\0\0\x9d\x01\x2a" + struct.pack("<HH", width, height),
    }
    return b"RIFF\0\0\0\0WEBP" + chunks[kind] + b"\0" * 20


_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"


def docx(words: str, cells: tuple[str, ...] = (), *, body: str | None = None) -> bytes:
    """A DOCX of one paragraph and a table of one row; `body` is its XML where that is broken."""
    run = "<w:p><w:r><w:t>{}</w:t></w:r></w:p>"
    row = "".join(f"<w:tc>{run.format(cell)}</w:tc>" for cell in cells)
    table = f"<w:tbl><w:tr>{row}</w:tr></w:tbl>" if cells else ""
    text = run.format(words) if words else ""
    whole = f'<w:document xmlns:w="{_WORD}"><w:body>{text}{table}</w:body></w:document>'
    types = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types">'
        f'<Override PartName="/word/document.xml" ContentType="{types}"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship Id="r1" '
        f'Type="{_OFFICE}" Target="word/document.xml"/></Relationships>',
        "word/document.xml": whole if body is None else body,
    }
    if body is not None and "r:embed" in body:
        picture = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/image"
        parts["word/_rels/document.xml.rels"] = (
            f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship Id="r1" '
            f'Type="{picture}" Target="media/a.png"/></Relationships>'
        )
        parts["word/media/a.png"] = "a picture"
    if body is not None and "w:numId" in body:
        parts["word/_rels/document.xml.rels"] = (
            f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship Id="r1" '
            f'Type="{_OFFICE.rpartition("/")[0]}/numbering" Target="numbering.xml"/>'
            "</Relationships>"
        )
        level = '<w:lvl w:ilvl="{}"><w:numFmt w:val="bullet"/></w:lvl>'
        parts["word/numbering.xml"] = (
            f'<w:numbering xmlns:w="{_WORD}"><w:abstractNum w:abstractNumId="0">'
            f"{level.format(0)}{level.format(1)}</w:abstractNum>"
            '<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num></w:numbering>'
        )
    return packed_files(parts)


def packed_files(parts: dict[str, str]) -> bytes:
    """A ZIP of these files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, text in parts.items():
            packed.writestr(zipfile.ZipInfo(name), text)
    return out.getvalue()


def with_password() -> bytes:
    """The beginning of what Office writes around a file with a password."""
    return (
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 504 + "EncryptedPackage".encode("utf-16-le")
    )
