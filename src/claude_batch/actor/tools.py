"""Python functions as tools of a model: their schemas, sources, and the results of calls.

The model receives a function's name, docstring and signature. Arguments are validated before the
call. An exception becomes a tool result with an error, so that the model can try again.
"""

from __future__ import annotations

import asyncio
import filecmp
import hashlib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache, update_wrapper
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

import msgspec
import pydantic_core
from pydantic import ValidationError, validate_call

from claude_batch.actor.output import problems_of
from claude_batch.core.errors import ActorConfigurationError
from claude_batch.core.settings import read_timeout
from claude_batch.core.user_functions import described, shortened

# Tool source --------------------------------------------------------------------------------------


def source_digest(module: str, folders: Iterable[str] = ()) -> str | None:
    """Return a hex digest of the files that importing a module runs, or None if not found.

    The files are the module's own and the ``__init__.py`` of each package around it, not what they
    import. ``folders`` are searched before Python's path. Nothing is imported: a module that is not
    loaded yet is only located.
    """
    digest = hashlib.blake2b(digest_size=16)
    try:
        files = _files(module, [*folders, *sys.path])
        for file in files:
            content = Path(file).read_bytes()
            digest.update(len(content).to_bytes(8))
            digest.update(content)
    except (OSError, ValueError):
        # ValueError: a name with a null character, from a ledger that another party wrote.
        return None
    return digest.hexdigest() if files else None


def _files(module: str, path: Sequence[str], *, anew: bool = False) -> list[str]:
    """Return the files of a dotted name, outermost package first; empty if a part is missing.

    ``anew``: as if nothing was loaded.
    """
    found: list[str] = []
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        loaded = None if anew else sys.modules.get(name)
        spec: ModuleSpec | None = None
        if loaded is None:
            spec = PathFinder.find_spec(name, path)
            file = None if spec is None else spec.origin
        else:
            file = getattr(loaded, "__file__", None)
        if file is not None:
            found.append(file)
        if depth == len(parts):
            return found if file is not None else []
        # A namespace package has a search path and no file.
        inner = getattr(loaded, "__path__", None) or (spec and spec.submodule_search_locations)
        if not inner:
            return []
        path = list(inner)
    return found


# Tools --------------------------------------------------------------------------------------------

DEFAULT_TIMEOUT = 300.0
"""Seconds that a function may take."""

_P = ParamSpec("_P")
_R = TypeVar("_R")

_Output = tuple[bytes, bool]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class Tool(Generic[_P, _R]):
    """A function that the model may call. Created by `tool`; callable like the function itself."""

    def __init__(
        self,
        function: Callable[_P, _R],
        *,
        name: str | None = None,
        description: str | None = None,
        repeatable: bool = False,
        timeout: str | float = DEFAULT_TIMEOUT,
    ) -> None:
        """Raises `ActorConfigurationError` for an object that cannot be a tool."""
        # Its attributes must never be those of the function: a tool that is not repeatable could
        # run twice.
        update_wrapper(self, function, updated=())
        for attribute, value in getattr(function, "__dict__", {}).items():
            if attribute not in self.__dict__ and not hasattr(Tool, attribute):
                self.__dict__[attribute] = value
        if not callable(function) or not hasattr(function, "__name__"):
            hint = "; a definition alone belongs into `options.tools`"
            raise ActorConfigurationError(
                f"{function!r} is not a function, so it cannot be a tool"
                f"{hint if isinstance(function, Mapping) else ''}"
            )
        self.function = function
        self.name: str = name or function.__name__
        if _NAME.fullmatch(self.name) is None:
            raise ActorConfigurationError(
                f"{self.name!r} is not a valid name for a tool; use at most 64 letters, digits, "
                "_ and -, with tool(name=…)"
            )
        if inspect.isasyncgenfunction(function):
            raise ActorConfigurationError(
                f"tool {self.name}: it is an asynchronous generator; return a list instead"
            )
        self.repeatable = repeatable
        self.timeout: float = read_timeout(f"tool {self.name}: timeout", timeout)
        self._description = description

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return self.function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        # A method stays a method: the tool of an object is made from the bound method.
        if instance is None:
            return self
        bound = cast("Any", self.function).__get__(instance, owner)
        return Tool(bound, **self.options)

    def __repr__(self) -> str:
        return f"<Tool {self.name}>"

    @property
    def options(self) -> dict[str, Any]:
        """The keywords of `tool` with which this one is made."""
        return {
            "name": self.name,
            "description": self._description,
            "repeatable": self.repeatable,
            "timeout": self.timeout,
        }

    @property
    def is_async(self) -> bool:
        """Return whether the function is asynchronous."""
        return inspect.iscoroutinefunction(self.function)

    @cached_property
    def definition(self) -> dict[str, Any]:
        """Return the tool definition for the API. Raises `ActorConfigurationError`."""
        from anthropic import beta_async_tool, beta_tool

        make = cast("Callable[..., Any]", beta_async_tool if self.is_async else beta_tool)
        try:
            made = make(self.function, name=self.name, description=self._description)
        except Exception as error:
            reason = str(error).partition("\n")[0]
            raise ActorConfigurationError(
                f"tool {self.name}: its signature has no JSON schema: {reason}"
            ) from None
        definition = cast("dict[str, Any]", made.to_dict())
        if definition["input_schema"].get("type") != "object":
            # The arguments of a call are an object, so each call would fail after it was paid for.
            raise ActorConfigurationError(
                f"tool {self.name}: the model passes arguments by name, but the function takes "
                "some by position only; remove `/` and `*args` from its signature"
            )
        if not definition.get("description"):
            definition.pop("description", None)
        return definition

    @cached_property
    def _validated(self) -> Callable[..., Any]:
        return validate_call(self.function)

    def run(self, arguments: bytes) -> _Output | Coroutine[Any, Any, _Output]:
        """Call the function with the arguments' JSON.

        Returns the result's content as JSON, and whether it is an error. An exception of the
        function is an error result.
        """
        if self.is_async:
            return self._awaited(lambda: self._called(arguments))
        try:
            value = self._called(arguments)
            if inspect.isawaitable(value):  # a decorator has hidden the `async def`
                return self._awaited(lambda: value)
            return self._result_text(value)
        except Exception as error:
            return self._fault(error)

    def _called(self, arguments: bytes) -> Any:
        return self._validated(**msgspec.json.decode(arguments, type=dict[str, Any]))

    async def _awaited(self, call: Callable[[], Awaitable[Any]]) -> _Output:
        try:
            return self._result_text(await call())
        except asyncio.CancelledError:
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            # The last two would end the event loop that all tools share.
            return self._fault(error)

    def failed(self, words: str) -> _Output:
        """Return an error result for the model."""
        return msgspec.json.encode(shortened(words)), True

    def _fault(self, error: BaseException) -> _Output:
        if isinstance(error, ValidationError) and error.title == getattr(
            self.function, "__name__", None
        ):
            return self.failed(f"wrong arguments: {problems_of(error)}")
        content = _blocks_of(getattr(error, "content", None))  # the SDK's ToolError has some
        if content is not None:
            return msgspec.json.encode(content), True
        return self.failed(described(error))

    @staticmethod
    def _result_text(value: object) -> _Output:
        """Convert a result for the API: text and blocks unchanged, all else as JSON."""
        content = "" if value is None else value
        if not isinstance(content, str):
            content = _blocks_of(value)
        if content is None:
            content = pydantic_core.to_json(value).decode()
        return msgspec.json.encode(content), False


_BLOCKS: dict[str, dict[str, type]] = {
    "text": {"text": str},
    "image": {"source": Mapping},
    "document": {"source": Mapping},
    "search_result": {"source": str, "title": str, "content": list},
}
"""The fields that a content block of a result needs. Rows of a table may have a ``type``, too."""


def _blocks_of(value: object) -> list[Any] | str | None:
    """Return a list of content blocks without blank texts, which the API refuses.

    An empty text if no block is left; None for a value that is no such list.
    """
    if not isinstance(value, list) or not value:
        return None
    blocks = cast("list[Any]", value)
    if not all(map(_is_block, blocks)):
        return None
    return [each for each in blocks if each["type"] != "text" or each["text"].strip()] or ""


def _is_block(value: object) -> bool:
    if not isinstance(value, Mapping):
        return False
    block = cast("Mapping[str, Any]", value)
    fields = _BLOCKS.get(str(block.get("type")))
    return fields is not None and all(
        isinstance(block.get(name), kind) for name, kind in fields.items()
    )


@overload
def tool(function: Callable[_P, _R], /) -> Tool[_P, _R]: ...
@overload
def tool(
    function: Callable[_P, _R],
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    repeatable: bool = False,
    timeout: str | float = DEFAULT_TIMEOUT,
) -> Tool[_P, _R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    repeatable: bool = False,
    timeout: str | float = DEFAULT_TIMEOUT,
) -> Callable[[Callable[_P, _R]], Tool[_P, _R]]: ...
def tool(
    function: Callable[..., Any] | None = None, /, **options: Any
) -> Tool[..., Any] | Callable[[Callable[..., Any]], Tool[..., Any]]:
    """Mark a function as a tool: ``@tool`` or ``@tool(repeatable=True, timeout="30s")``.

    ``repeatable``: the function may run again if its process was killed during the call. Otherwise
    its conversation stops with `ToolInterruptedError`. ``timeout``: its time limit (5 minutes).
    ``name`` and ``description`` replace the function's name and docstring. Raises
    `ActorConfigurationError`. A tool that is marked again keeps what is not given anew.
    """

    def make(function: Callable[..., Any]) -> Tool[..., Any]:
        if isinstance(function, Tool):
            inner = cast("Tool[..., Any]", function)
            return Tool(inner.function, **{**inner.options, **options})
        return Tool(function, **options)

    return make if function is None else make(function)


def as_tool(function: object) -> Tool[..., Any]:
    """Return a function, or one that `tool` has wrapped, as a tool."""
    if isinstance(function, Tool):
        return cast("Tool[..., Any]", function)
    return Tool(cast("Callable[..., Any]", function))


_offered: dict[str, dict[str, Tool[..., Any]]] = {}
"""The functions that this program or a loaded actor file offers to a model.

By ``module:function`` and the tool's name, because two tools may share a function and differ in
what they allow. Names in a ledger may resolve only to these functions.
"""


def _offer(place: str, tool: Tool[..., Any]) -> None:
    _offered.setdefault(place, {})[tool.name] = tool


class Toolset:
    """The functions of one actor, and the record with which other processes find them."""

    def __init__(self, tools: Sequence[Tool[..., Any]], folder: str | None = None) -> None:
        """``folder`` is the folder of the actor's file. Raises `ActorConfigurationError`."""
        self.tools: dict[str, Tool[..., Any]] = {}
        for each in tools:
            if each.name in self.tools:
                raise ActorConfigurationError(
                    f"two tools are called {each.name!r}; rename one with tool(name=…)"
                )
            self.tools[each.name] = each
            if (place := _place_of(each)) is not None:
                _offer(place, each)
        self.definitions: list[dict[str, Any]] = [each.definition for each in tools]
        """Tool definitions for the API."""
        self.remembered: str = msgspec.json.encode(
            [_remembered(each, folder) for each in tools]
        ).decode()
        """What any process needs to import the functions, as JSON."""


class _Remembered(msgspec.Struct):
    """What a process needs to import a function."""

    name: str
    function: str | None
    """``module:function``; None if no other process can import it."""
    folder: str | None
    """The folder from which its module is imported."""
    definition: str
    """Digest of the tool definition."""
    source: str | None = None
    """Digest of its module's files. Missing in a run that an older version stored."""


def _remembered(tool: Tool[..., Any], folder: str | None) -> _Remembered:
    place = _place_of(tool)
    if place is None:
        return _Remembered(tool.name, None, None, _digest(tool))
    source = source_digest(place.partition(":")[0])
    return _Remembered(tool.name, place, _folder_of(tool) or folder, _digest(tool), source)


def _digest(tool: Tool[..., Any]) -> str:
    encoded = msgspec.json.encode(tool.definition, order="deterministic")
    return hashlib.blake2b(encoded, digest_size=12).hexdigest()


def _place_of(tool: Tool[..., Any]) -> str | None:
    """Return ``module:function``, or None if no other process can import the function."""
    module = getattr(tool.function, "__module__", None)
    name = getattr(tool.function, "__qualname__", None)
    if not module or not name or module == "__main__":
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, Tool):
        marked = cast("Tool[..., Any]", found)
        # Other processes use the module's own mark, which must not allow more.
        allows_more = marked.repeatable and not tool.repeatable
        found = None if allows_more else marked.function
    return f"{module}:{name}" if found is tool.function else None


def _folder_of(tool: Tool[..., Any]) -> str | None:
    """Return the folder from which the function's module is imported."""
    module = sys.modules.get(tool.function.__module__)
    file = getattr(module, "__file__", None)
    if module is None or file is None:
        return None
    path = Path(file).resolve()
    depth = module.__name__.count(".") + (1 if path.name == "__init__.py" else 0)
    return str(path.parents[depth])


def import_tool(place: str, folders: Iterable[str] = ()) -> Tool[..., Any]:
    """Import ``module:function``; ``folders`` are searched before Python's path.

    Raises `ActorConfigurationError`.
    """
    return as_tool(_import(place, folders))


def offer_tools(place: str) -> list[str]:
    """Import a module, or one ``module:function``, and offer its functions to models.

    Runs in a ledger that name these functions can then call them in this process. Of a module,
    these are its public functions and tools. Returns their names. Raises `ActorConfigurationError`.
    """
    found = _import(place, [os.getcwd()])
    candidates: list[Any] = [found]
    if isinstance(found, ModuleType):
        candidates = [
            each
            for name, each in vars(found).items()
            if not name.startswith("_")
            and getattr(each, "__module__", None) == found.__name__
            and (isinstance(each, Tool) or inspect.isfunction(each))
        ]
    chosen = [as_tool(each) for each in candidates]
    offered = [(at, each) for each in chosen if (at := _place_of(each)) is not None]
    if not offered:
        raise ActorConfigurationError(
            f"tools {place}: it has no public function of its own; name MODULE or MODULE:FUNCTION"
        )
    for at, each in offered:
        _offer(at, each)
    return [each.name for _, each in offered]


def _import(place: str, folders: Iterable[str]) -> Any:
    module, _, name = place.partition(":")
    # First on the path during the import, as for a script of that folder; afterwards last, for what
    # the function itself imports.
    extra = list(dict.fromkeys(folders))
    sys.path[:0] = extra
    try:
        found: Any = importlib.import_module(module)
        beside, loaded = _files(module, extra[:1], anew=True), getattr(found, "__file__", None)
        # A project may be installed, and its sources lie beside the file as well.
        if beside and (loaded is None or not filecmp.cmp(beside[-1], loaded, shallow=False)):
            raise ImportError(
                f"{beside[-1]} has the name of another module, which is loaded already "
                f"({loaded or 'built in'}); rename one of them"
            )
        for part in name.split(".") if name else ():
            found = getattr(found, part)
    except Exception as error:
        raise ActorConfigurationError(
            f"tool {place}: it cannot be imported: {described(error)}"
        ) from None
    finally:
        for folder in extra:
            sys.path.remove(folder)
        sys.path.extend(folder for folder in extra if folder not in sys.path)
    return found


def functions_in(*places: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the ``module:function`` entries of the first ``tools`` in these mappings.

    All other entries are the host's.
    """
    entries: object = next((place["tools"] for place in places if "tools" in place), None)
    if not isinstance(entries, list | tuple):
        return ()
    return tuple(
        entry
        for entry in cast("Sequence[object]", entries)
        if isinstance(entry, str) and _FUNCTION.fullmatch(entry) is not None
    )


@lru_cache(maxsize=64)
def toolset_of(
    named: tuple[str, ...], folder: str | None, functions: tuple[Callable[..., Any], ...]
) -> Toolset | None:
    """Return the functions of an actor: those named in its file, and those passed in.

    The same object each time, because a caller's functions are identified by it. Raises
    `ActorConfigurationError`.
    """
    if not named and not functions:
        return None
    folders = [each for each in (folder, os.getcwd()) if each is not None]
    found = [import_tool(place, folders) for place in named]
    return Toolset([*found, *map(as_tool, functions)], folder)


class ToolFinder:
    """Finds the functions that a run of a ledger names.

    The writer of the ledger chose these names. So a name resolves only to a function that this
    program, or an actor file that it loaded, also offers to a model. Importing anything else runs
    code that the ledger chose, which needs the user's permission.
    """

    def __init__(self, *, imports: bool = False) -> None:
        """``imports``: whether functions are imported because the ledger names them."""
        self._imports = imports

    @property
    def offered(self) -> int:
        """Return the number of functions that this process offers to models.

        If it has changed, a function that was not found before may be available.
        """
        return sum(len(tools) for tools in _offered.values())

    def find(self, remembered: str) -> dict[str, Tool[..., Any]]:
        """Return the functions that a run names, by the tool names that its model uses.

        Raises `ActorConfigurationError` for a function that is missing here, differs here, or must
        not be imported; nothing of it has been imported then.
        """
        try:
            entries = msgspec.json.decode(remembered, type=list[_Remembered])
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise ActorConfigurationError(
                f"the ledger's list of its tools cannot be read ({error}); repeat the program or "
                "command that made the run"
            ) from None
        return {each.name: self._find(each) for each in entries}

    def _find(self, entry: _Remembered) -> Tool[..., Any]:
        place = entry.function
        if place is None:
            raise ActorConfigurationError(
                f"the function of the tool {entry.name} exists only in the process that made the "
                "run"
            )
        if (tools := _offered.get(place)) is not None:
            # A function that has got another name since is still the same function.
            found = tools.get(entry.name) or next(reversed(tools.values()))
            # Another project's function of the same name is a different function.
            if _folder_of(found) != entry.folder and _digest(found) != entry.definition:
                raise ActorConfigurationError(
                    f"{place} is not the function that the run was made with"
                )
            return found
        if not self._imports:
            raise ActorConfigurationError(
                f"only the ledger names the tool {place}, so it was not imported; repeat the "
                "program or command that made the run, or, if you trust everybody who can write "
                "to the ledger, use --allow-tools-from-ledger"
            )
        return self._imported(entry, place)

    @staticmethod
    def _imported(entry: _Remembered, place: str) -> Tool[..., Any]:
        folders = [entry.folder] if entry.folder else []
        if _FUNCTION.fullmatch(place) is None:
            raise ActorConfigurationError(f"tool {place!r}: write it as module:function")
        source = source_digest(place.partition(":")[0], folders)
        if source is None:
            raise ActorConfigurationError(f"tool {place}: there is no such module here")
        if source != entry.source:
            why = "its file has changed since the run was made"
            if entry.source is None:
                why = "the version that stored the run did not note its file"
            raise ActorConfigurationError(
                f"tool {place}: {why}, so it was not imported; repeat the program or command that "
                "made the run"
            )
        return import_tool(place, folders)
