"""Types that scenarios ask answers in; in a module, so that what holds one can be pickled."""

from __future__ import annotations

import datetime as dt
import enum
import os
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasPath, BaseModel, Field, field_serializer, field_validator, model_validator


class Currency(enum.Enum):
    EUR = "EUR"
    USD = "USD"


class Line(BaseModel):
    what: str
    price: Decimal = Field(ge=0)


class Card(BaseModel):
    kind: Literal["card"]
    number: str = Field(max_length=500)


class Transfer(BaseModel):
    kind: Literal["transfer"]
    bank: str


class Invoice(BaseModel):
    """Everything that a schema may hold: nested, lists, enums, optionals, unions, dates."""

    number: str
    issued: dt.date
    paid_at: dt.datetime | None = None
    currency: Currency
    lines: list[Line]
    discounts: list[Line] | None = None
    payment: Annotated[Card | Transfer, Field(discriminator="kind")]
    total: int | float


class Flat(BaseModel):
    number: str
    total: float


class Known(BaseModel):
    """Elsewhere, its value lies at a path, which no schema can name."""

    first: str = Field(validation_alias=AliasPath("names", 0))


class Gross(BaseModel):
    """The alias of one field is the name of the other."""

    gross: int = Field(alias="total")
    total: int | None = Field(None, alias="net_total")


class Receipt(BaseModel):
    """Flat: scalars, and lists of scalars."""

    number: str = Field(description="As printed")
    issued: dt.date
    total: Decimal
    currency: Currency
    paid: bool | None
    tags: list[str] = []
    note: str | None = None


class Wiki(BaseModel):
    """Flat: what a page of a wiki says, and the names of others."""

    summary: str
    tags: list[str]
    page: int


class Rating(BaseModel):
    """Literals of several types."""

    stars: Literal[1, 2, "n/a"]
    marks: list[Literal[True, 3, "1"]] = []
    score: float | Literal["none"]


class Seller(BaseModel):
    name: str
    vat: str | None


class Item(BaseModel):
    """A line of the order, without its total."""

    what: str
    price: Decimal
    marks: list[str] = []


class Order(BaseModel):
    """Nested: an object, a list of objects, and one of several objects."""

    number: str
    seller: Seller | None
    items: list[Item] = Field(description="In the order of the document")
    payment: Card | Transfer | None = None
    grid: list[list[int]] = []


class Mixed(BaseModel):
    """A field that is an object or a text, which no label can tell apart."""

    number: str
    of: list[Line | str]


class Node(BaseModel):
    name: str
    children: list[Node] = []


class Book(BaseModel):
    pages: list[Node]


class Prices(BaseModel):
    of: dict[str, float]


class Pair(BaseModel):
    both: tuple[int, str]


class Whatever(BaseModel):
    inner: list[Any]


class Picky(BaseModel):
    """What no schema can say, and every answer of the sandbox breaks."""

    number: str
    total: float

    @field_validator("number")
    @classmethod
    def _digits(cls, number: str) -> str:
        if not number.isdigit():
            raise ValueError("has other characters than digits")
        return number


class Wordy(BaseModel):
    """Its validator lists all numbers that there are."""

    number: str

    @field_validator("number")
    @classmethod
    def _known(cls, number: str) -> str:
        raise ValueError(f"is not one of {[*range(5000)]}")


class Considered(BaseModel):
    """Judged as soon as a file says so."""

    FOLDER: ClassVar[str] = "CONSIDERED_FOLDER"

    number: str
    total: float

    @model_validator(mode="after")
    def _consider(self) -> Considered:
        folder = Path(os.environ[self.FOLDER])
        (folder / "begun").touch()
        while not (folder / "decided").exists():
            time.sleep(0.01)
        return self


class Deliberate(BaseModel):
    """Judged slowly, but read at once."""

    word: str

    @field_validator("word")
    @classmethod
    def _deliberate(cls, word: str) -> str:
        if threading.current_thread().name.startswith("claude-batch-judge"):
            time.sleep(3)
        return word


class Stuck(BaseModel):
    """Never judged: it waits in the system, where no interpreter wakes it."""

    number: str

    @model_validator(mode="after")
    def _wait(self) -> Stuck:
        folder = Path(os.environ[Considered.FOLDER])
        os.mkfifo(folder / "never")
        (folder / "begun").touch()
        (folder / "never").read_bytes()
        return self


class Stubborn(BaseModel):
    """What nobody can validate."""

    number: int

    @model_validator(mode="before")
    @classmethod
    def _break(cls, data: Any) -> Any:
        raise RuntimeError("a validator with a mistake")


class Quitting(BaseModel):
    """What ends the program that validates it."""

    number: int

    @model_validator(mode="before")
    @classmethod
    def _exit(cls, data: Any) -> Any:
        raise SystemExit("no answer is good enough")


class Priced(BaseModel):
    """Its validator and its serializer raise what Pydantic does not convert."""

    PRICES: ClassVar[dict[str, int]] = {"12": 7}

    number: str
    total: float

    @field_validator("number")
    @classmethod
    def _priced(cls, number: str) -> str:
        if number == "odd":
            return number
        _ = cls.PRICES[number]
        return number

    @field_serializer("number")
    def _written(self, number: str) -> int:
        return self.PRICES[number]


class Odd(BaseModel):
    call: Callable[[int], int]


class Alien:
    """Nothing that Pydantic knows."""
