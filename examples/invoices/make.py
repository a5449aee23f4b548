"""Make the PDFs beside this program from the texts: one page each, in a typewriter's letters.

python examples/invoices/make.py
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent


def pdf_of(text: str) -> bytes:
    """A PDF of one A4 page with these lines, which are ASCII."""
    shown = [
        line.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
        for line in text.splitlines()
    ]
    drawn = "BT /F1 10 Tf 14 TL 50 780 Td " + " ".join(f"({line}) Tj T*" for line in shown) + " ET"
    bodies = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        (
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 5 0 R "
            "/Resources << /Font << /F1 4 0 R >> >> >>"
        ),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Courier >>",
        f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream",
    ]
    out, places = "%PDF-1.4\n", list[int]()
    for number, body in enumerate(bodies, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n"
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    end = f"trailer\n<< /Size {len(bodies) + 1} /Root 1 0 R >>\nstartxref\n{len(out)}\n%%EOF\n"
    return f"{out}xref\n0 {len(bodies) + 1}\n0000000000 65535 f \n{table}{end}".encode("ascii")


if __name__ == "__main__":
    for path in sorted(HERE.glob("*.txt")):
        path.with_suffix(".pdf").write_bytes(pdf_of(path.read_text("utf-8")))
        print(path.with_suffix(".pdf").name)
