"""Wait for a run, write its output, and return the exit code for its outcome."""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from fcntl import F_GETFL, fcntl
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from claude_batch.actor.request import is_unicode
from claude_batch.cli.cost import cost_line
from claude_batch.cli.interrupts import SIGNALS
from claude_batch.cli.options import ProviderOptions, import_provider
from claude_batch.cli.user_messages import (
    BadOutput,
    Exit,
    UnusableOutput,
    forget_stdout,
    on_terminal,
    require_stdout,
    say,
    unwritable,
)
from claude_batch.core.crash_points import CrashPoint, reach
from claude_batch.core.errors import (
    AccountHaltedError,
    ActorError,
    BatchTimeoutError,
    BudgetExceededError,
    EngineStoppedError,
    LedgerError,
)
from claude_batch.core.quantities import count_of
from claude_batch.core.terminal import visible, visible_json
from claude_batch.lifecycle.threads import DaemonThreads
from claude_batch.providers.export import (
    OF_LEDGER,
    chunks,
    descriptor_of,
    finals,
    format_of,
    is_of_folder,
    is_of_ledger,
    is_special,
    make_folder,
    probe,
    run_summary,
    unwritten_format,
    write_file,
    write_folder,
)
from claude_batch.providers.failure_report import may_be_retried
from claude_batch.providers.progress_reports import (
    LINES_APART,
    LookRate,
    Show,
    counts_line,
    display,
)

if TYPE_CHECKING:
    from claude_batch.ledger.deliveries import Forms, Outstanding
    from claude_batch.ledger.queries import Answer, Success
    from claude_batch.providers.batch import ClaudeBatchProvider
    from claude_batch.providers.export import Format
    from claude_batch.providers.run import Run
    from claude_batch.providers.status import RunStatus

_LOOK = 0.5
"""Seconds between two questions whether a wait has ended."""

_RESTS_PER_LOOK = 100
"""Pause of the display after it has read a run's status, relative to how long that took."""

_AnswerT = TypeVar("_AnswerT", bound="Answer | Success")

CONTACT_FAILURES = 3
"""Consecutive failures of a server that never answered, after which the run is parked."""

REPEATED = 0.5
"""Seconds after a signal in which another one is not a second request.

`timeout`, for example, sends its signal to the process and then to the process's group.
"""

_asked_to_park = threading.Event()
"""Set by the first signal, because Python may ignore the exception that it raises (in a `__del__`,
or in the callback of a weak reference).
"""


@contextmanager
def parkable() -> Generator[None]:
    """Raise `KeyboardInterrupt` on the first Ctrl-C, SIGTERM or SIGHUP; exit at once on the second.

    A later SIGHUP is ignored: a closed terminal sends several, and nobody asks to lose live calls.
    A signal that the parent ignores stays ignored, as in `interrupts.begin`.
    """
    first = 0.0

    def interrupt(*_: Any) -> None:
        nonlocal first
        first = time.monotonic()
        for number, _handler in before:
            signal.signal(number, signal.SIG_IGN if number == signal.SIGHUP else leave)
        _asked_to_park.set()
        raise KeyboardInterrupt

    def leave(*_: Any) -> None:
        if time.monotonic() - first >= REPEATED:
            os._exit(Exit.PARKED)

    import_provider()  # while a signal may still end the process at once
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread only
        return
    _asked_to_park.clear()
    handlers = [(number, signal.getsignal(number)) for number in SIGNALS]
    before = [each for each in handlers if each[1] is not signal.SIG_IGN]
    for number, _handler in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


class Printed(msgspec.Struct):
    """What a command has written to standard output."""

    lines: int = 0


class _NoContact(ActorError):
    """The server has never answered."""


class _NoTools(ActorError):
    """The run needs tools that this process does not have."""


def wait_and_deliver(
    provider: ClaudeBatchProvider,
    run: Run,
    output: str | None,
    options: ProviderOptions,
    *,
    is_due: Callable[[], bool] | None = None,
    forms: Forms | None = None,
    printed: Printed | None = None,
) -> Exit:
    """Wait for a run, show it, write its output once it is complete.

    ``is_due`` returns, after the wait, whether the output is still to be written; by default it is.
    ``forms`` and ``printed`` are as in `deliver`.

    If the user interrupts, or the server never answers, the provider is closed and everything is
    parked. Raises `BadOutput`, and any unexpected exception.
    """
    run.results_dir = None  # `deliver` writes it, after the output
    try:
        with display() as show:
            outcome = _wait(provider, run, show, options)

        def write_whole() -> None:
            if is_due is None or is_due():
                deliver(run, output, options, forms, printed=printed)

        return _conclude(provider, run, options, outcome, write_whole)
    except KeyboardInterrupt:
        return park(provider, run, options)


def awaited(calls: int) -> str:
    """Describe what an interrupted command waits for while live calls are in progress."""
    return (
        f"waiting for {count_of(calls, 'live call')}. An answer that comes after another interrupt "
        "is lost, and may be billed"
    )


def park(provider: ClaudeBatchProvider, run: Run, options: ProviderOptions) -> Exit:
    """Close the provider after an interrupt; report what goes on, and how to continue the run."""
    if options.sandbox:
        say(f"ending {run.id} (interrupt again to end at once)")
    elif calls := provider.live_calls:
        say(f"parking {run.id}; {awaited(calls)}")
    elif _is_sent(provider, run):
        say(f"parking {run.id}; its batches continue at the API (interrupt again to end at once)")
    else:
        say(f"parking {run.id} (interrupt again to end at once)")
    provider.close()
    say(f"{options.ended}; {options.how_to_go_on(run.id)}")
    return Exit.PARKED


def _is_sent(provider: ClaudeBatchProvider, run: Run) -> bool:
    provider.hurry()
    try:
        return provider.packed_requests(run.id).sent > 0
    except LedgerError:  # lost or locked; the run is parked all the same
        return False


def _conclude(
    provider: ClaudeBatchProvider,
    run: Run,
    options: ProviderOptions,
    outcome: RunStatus | BaseException,
    write: Callable[[], None],
) -> Exit:
    """Report the outcome once waiting has ended, and ``write`` it; return its exit code."""
    error = outcome if isinstance(outcome, BaseException) else None
    if isinstance(error, AccountHaltedError):
        say(f"halted: {options.at_end(str(error))}")
        if error.reason == "credentials":
            say(f"check the key in the variable {options.key_variable}")
        say(options.how_to_go_on(run.id))
        return Exit.HALTED
    if isinstance(error, BudgetExceededError):
        say(f"held: {options.at_end(str(error))}")
        say(cost_line(run.cost()))
        if options.sandbox:  # else the message names the command that raises the budget
            say(options.how_to_go_on(run.id, "a higher --budget"))
        return Exit.PARKED
    if isinstance(error, LedgerError) and error.fault in ("damaged", "version"):
        raise error
    if isinstance(error, _NoTools):
        provider.close()
        say(
            f"parked: the conversations of {run.id} wait for tools that this process does not "
            f"have: {error}"
        )
        return Exit.PARKED
    if isinstance(error, _NoContact | EngineStoppedError | LedgerError):
        go_on = options.how_to_go_on(run.id)
        if isinstance(error, _NoContact):
            go_on = how_to_reach(provider, run.id, options)
        provider.close()
        if options.sandbox:
            say(f"ended: {options.at_end(str(error))}. {go_on[0].upper()}{go_on[1:]}")
        else:
            say(f"parked: {options.completed(str(error))}. Everything stored is kept; {go_on}")
        return Exit.PARKED
    if error is not None and not isinstance(error, BatchTimeoutError):
        raise error
    # Counting a large run is expensive, so the status at the end of the wait is used throughout.
    if isinstance(outcome, BaseException):
        status = provider.status_without_this_process(run.id)
    else:
        status = outcome
    if error is not None:
        say(f"timed out: {options.at_end(str(error))}")
        waits = options.at_end(status.waiting_for) or "every request has ended"
        say(f"so far: {counts_line(status)}; {waits}")
        if not status.finished:
            say(options.how_to_go_on(run.id, "a longer --max-wait"))
            return Exit.PARKED
    write()
    say(f"{run.id} {status.state}: {counts_line(status)}")
    _say_failures(run, status, options)
    if status.deadline is not None and status.deadline.outcome is not None:
        say(f"its deadline was {status.deadline.outcome}")
    say(cost_line(run.cost(status=status)))
    if error is not None:
        return Exit.PARKED
    return Exit.FAILED if status.failed else Exit.OK


def how_to_reach(provider: ClaudeBatchProvider, run_id: str, options: ProviderOptions) -> str:
    """Return the hint on how to continue a run that has not reached the API."""
    if options.sandbox or not provider.contact.misplaced or provider.was_sent(run_id):
        return options.how_to_go_on(run_id)
    # A run keeps its base URL, so `resume` with another one would refuse it.
    typed = {name: text for name, text in options.typed.items() if name != "base_url"}
    cancel = msgspec.structs.replace(options, typed=typed).command("cancel", run_id)
    return (
        f"nothing of {run_id} was sent. Run `{cancel}`, and repeat this command with the right "
        "base URL"
    )


def _say_failures(run: Run, status: RunStatus, options: ProviderOptions) -> None:
    report = run.failures(status)
    if report.kinds:
        for line in report.lines():
            say(line)
        # With --sandbox, the ledger ends with the command.
        for line in () if options.sandbox else report.advice:
            say(options.completed(line))
        say(options.how_to_retry(status.run_id, retried=may_be_retried(status)))


def _wait(
    provider: ClaudeBatchProvider, run: Run, show: Show, options: ProviderOptions
) -> RunStatus | BaseException:
    """Wait until a run has ended; return its status, or the exception that ended the wait."""
    # In a thread, so that this one can show and be interrupted.
    threads = DaemonThreads(1, "claude-batch-wait")
    waiting = threads.submit(run.wait_sync)
    threads.close()
    rate = LookRate(rests=_RESTS_PER_LOOK, shortest=LINES_APART)  # no plain line is left out
    while True:
        if wait([waiting], _LOOK).done:
            return waiting.exception() or waiting.result()
        if _asked_to_park.is_set():
            raise KeyboardInterrupt
        contact = provider.contact
        trouble = ""
        if not contact.made and contact.failures:
            trouble = contact.last_failure
            if contact.failures >= CONTACT_FAILURES:
                return _NoContact(trouble)
        if rate.is_due(provider.version + contact.failures):
            begun = time.monotonic()
            if (missing := provider.missing_tools(run.id)) is not None:
                return _NoTools(missing)
            status = run.status()
            if not status.finished:  # its end is reported once, with the output
                progress = run.progress(status)
                waits = trouble or options.completed(status.waiting_for)
                show(replace(status, waiting_for=waits), progress)
            rate.rest(time.monotonic() - begun)


def deliver(
    run: Run,
    output: str | None,
    options: ProviderOptions,
    forms: Forms | None = None,
    *,
    is_just_named: bool = False,
    printed: Printed | None = None,
) -> None:
    """Write a finished run's output and mark the run as delivered.

    ``forms`` sets the formats; by default those stored with the run. With a folder for the results
    and no output, nothing goes to standard output. Raises `BadOutput`, also if another run has
    taken the output or the folder over, unless it ``is_just_named``; the results stay in the
    ledger. ``printed`` counts the lines on standard output.
    """
    reach(CrashPoint.BEFORE_DELIVERY)
    seen = run.last_ending()
    form, folder = run.forms() if forms is None else forms
    if form == "none":
        again = options.command("results", run.id)
        say(
            f"{run.id} is not written, because a later run writes to the same place. Its answers: "
            f"{again} -o OUT"
        )
        return
    whole = True
    try:
        if not is_just_named:
            _check_own_places(run, output, folder)
        if output is not None:
            _check_reach(output, options.location)  # it may be a link by now
        if output is not None or folder is None:
            final = _final(run, run.outputs)
            form = format_of(output, form)
            whole = write_output(final, output, form, options.location, printed=printed)
        if whole and folder is not None:
            status = run.status()
            summary = run_summary(status, run.cost(status=status))
            _write_folder(_final(run, run.answers), folder, summary, options.location)
    except BadOutput as error:
        if options.sandbox:
            raise BadOutput(f"{error}; {options.how_to_go_on(run.id, 'another -o')}") from None
        again = options.command("results", run.id)
        raise BadOutput(f"{error}. The results are kept. Write them with: {again} -o OUT") from None
    if not whole:
        return
    reach(CrashPoint.AFTER_RENAME_BEFORE_DELIVERED)
    wrote = None if output is None else os.path.abspath(output)
    places = None if is_just_named else (wrote, folder)
    is_delivered = run.mark_delivered(seen=seen, wrote=wrote, places=places)
    for written in (output, folder):
        if written is not None:
            say(f"wrote {written}")
    if not is_delivered:
        say(
            f"{run.id} was retried while it was written, so that new answers may be missing from "
            f"what was written; {options.how_to_go_on(run.id)}"
        )


def _check_own_places(run: Run, *places: str | None) -> None:
    for place in places:
        if place is None or descriptor_of(place) is not None:
            continue
        taker = run.output_taker(os.path.abspath(place))
        if taker is not None:
            raise BadOutput(f"{place}: now belongs to {taker}, a later run that writes to it")


def _write_folder(
    answers: Iterator[Answer], folder: str, summary: Mapping[str, Any] | None, location: str
) -> None:
    try:
        write_folder(answers, folder, summary, location)
    except OSError as error:
        raise BadOutput(_unwritable_folder(folder, error)) from None


def _final(run: Run, read: Callable[[int], Iterator[_AnswerT]]) -> Iterator[_AnswerT]:
    """Yield the answers of a finished run in order; ``read`` yields those from a position on.

    Another process may retry the failures while they are written; this waits for them.
    """
    position = 0
    while True:
        for answer in read(position):
            if not answer.state.is_final:
                break
            yield answer
            position = answer.position + 1
        else:
            return
        run.wait_sync()


def write_partial(
    run: Run, output: str | None, form: Format | None, location: str, folder: str | None = None
) -> None:
    """Write a run's results so far, without marking it as delivered. Raises `BadOutput`.

    ``location`` is the ledger's. A ``folder`` gets no summary, because it is not complete.
    """
    whole = True
    if output is not None or folder is None:
        whole = write_output(finals(run.outputs()), output, format_of(output, form), location)
        if output is not None:
            run.note_rewritten(output)
    if whole and folder is not None:
        _write_folder(finals(run.answers()), folder, None, location)
    for written in (output, folder):
        if whole and written is not None:
            say(f"wrote {written}")


def say_unfinished(run: Run, status: RunStatus) -> None:
    """Report how many requests of a run have no result yet."""
    left = sum(n for state, n in status.counts.items() if not state.is_final)
    have = count_of(left, "request has", "requests have")
    say(f"{run.id} is not finished: {have} no result yet")


# Outputs ------------------------------------------------------------------------------------------


def check_output(
    output: str | None, folder: str | None, form: Format | None, ledger: str, *, prints: bool = True
) -> None:
    """Check that OUT can be written in its format, before anything is paid for.

    ``prints``: without OUT and a folder, the answers go to standard output. Raises
    `UnusableOutput`.
    """
    for place, flag in ((output, "-o"), (folder, "--results-dir")):
        # The ledger stores absolute paths, so the name of the current directory counts too.
        if place is not None and not is_unicode(absolute := os.path.abspath(place)):
            raise UnusableOutput(
                f"{place}: the ledger cannot store the path {absolute}, because it is not UTF-8, "
                f"or because the locale is not; name another with {flag}"
            )
    if output is not None:
        check_writable(output, ledger)
        if not prints and descriptor_of(output) is not None:
            raise UnusableOutput(
                f"{output}: is open only in this command, and another one writes the answers; name "
                "a file with -o"
            )
    elif prints and folder is None:
        try:
            require_stdout()
        except BadOutput as error:
            raise UnusableOutput(f"{error}; name a file with -o") from None
    if (fault := unwritten_format(output, form)) is not None:
        raise UnusableOutput(f"{output}: {fault}")


def check_writable(output: str, ledger: str) -> None:
    """Check that a file can be written, and is none of the ``ledger``, because it is replaced.

    Raises `UnusableOutput`.
    """
    _check_reach(output, ledger)
    _check_is_file(output)
    try:
        if not is_special(output):
            probe(Path(os.path.realpath(output)))
    except OSError as error:
        raise UnusableOutput(f"{output}: cannot be written: {error.strerror}") from None


def _check_reach(output: str, ledger: str) -> None:
    """Check that OUT leads neither to the ledger nor to a descriptor that this process opened."""
    if is_of_ledger(output, ledger):
        raise UnusableOutput(f"{output}: {OF_LEDGER}; name another with -o")
    if (descriptor := descriptor_of(output)) is None:
        return
    with suppress(OSError):
        # Only descriptors of the parent process, such as a shell, are inheritable.
        if os.get_inheritable(descriptor) and fcntl(descriptor, F_GETFL) & os.O_ACCMODE:
            return
    raise UnusableOutput(f"{output}: is not open for writing; name a file with -o")


def _check_is_file(output: str) -> None:
    if os.path.isdir(output) or output.endswith(os.sep):
        raise UnusableOutput(f"{output}: is a directory; name a file with -o")


def check_sources(output: str | None, folder: str | None, sources: Iterable[str]) -> None:
    """Check that a command reads neither OUT nor one of the folder. Raises `UnusableOutput`."""
    if output is not None and (not os.path.exists(output) or is_special(output)):
        output = None  # it replaces nothing
    for source in sources:
        if (there := _stat_of(source)) is None:
            continue
        if output is not None and os.path.samestat(there, os.stat(output)):
            raise UnusableOutput(
                f"{output}: is read by this command, and would be replaced; name another with -o"
            )
        name, place = ("<stdin>", "/dev/stdin") if source == "-" else (source, source)
        if folder is not None and is_of_folder(folder, place):
            raise UnusableOutput(
                f"{name}: is read by this command, and would be replaced by a file of {folder}; "
                "name another folder with --results-dir"
            )


def _stat_of(source: str) -> os.stat_result | None:
    """Return the status of a file that the command reads; None if it is no file."""
    try:
        if source != "-":
            return os.stat(source)
        return None if sys.stdin is None else os.fstat(sys.stdin.fileno())
    except (OSError, ValueError):  # it is missing, or standard input is closed
        return None


def check_stored_output(run: Run, output: str | None, ledger: str) -> None:
    """Check that the output that a run was started with can be written. Raises `UnusableOutput`."""
    if output is not None:
        check_writable(output, ledger)
    check_folder(run.forms().results_dir)


def check_unchanged(provider: ClaudeBatchProvider, left: Outstanding, location: str) -> None:
    """Check that nobody has changed OUT since the run wrote it. Raises `UnusableOutput`.

    A process that died just after it had replaced OUT has not noted that; it is noted here.
    ``location`` is the ledger's.
    """
    if left.output is None or left.written is None or is_special(left.output):
        return
    from claude_batch.ledger.deliveries import changed_at

    try:
        there = os.stat(left.output)
    except FileNotFoundError:
        return  # it was moved, so that nothing is replaced
    except OSError as error:
        raise UnusableOutput(f"{left.output}: {error.strerror}") from None
    if changed_at(there) > left.written:
        run = provider.open_run(left.id)
        if _has_results_of(run, left.output, location):
            run.note_rewritten(left.output)
            return
        how = "was changed"
        if there.st_mtime <= left.written:
            how = "was moved there, or got another mode, owner or link,"
        raise UnusableOutput(
            f"{left.output}: {how} after {left.id} had written it, and would be replaced. "
            "Give it another name, then repeat the command"
        )


def _has_results_of(run: Run, output: str, location: str) -> bool:
    """Return whether a file has the run's results so far and nothing else."""
    form = run.forms().output_format
    form = format_of(output, None if form == "none" else form)
    pieces = chunks(finals(run.outputs()), form, location)
    with suppress(OSError), open(output, "rb") as there:
        return all(there.read(len(piece)) == piece for piece in pieces) and not there.read(1)
    return False


def check_folder(folder: str | None, output: str | None = None) -> None:
    """Create the folder, and check that it is writable. Raises `UnusableOutput`.

    OUT may be none of its files, because it would be replaced by one.
    """
    if folder is None:
        return
    if output is not None and is_of_folder(folder, output):
        raise UnusableOutput(
            f"{output}: would be replaced by a file of {folder}; name another with -o"
        )
    try:
        make_folder(folder)
    except OSError as error:
        raise UnusableOutput(_unwritable_folder(folder, error)) from None
    if output is not None:
        _check_is_file(output)  # the folder, or one above it, may just have been made there


def _unwritable_folder(folder: str, error: OSError) -> str:
    return f"{folder}: cannot write to this folder: {error.strerror}"


def write_output(
    answers: Iterable[Answer | Success],
    output: str | None,
    form: Format,
    location: str,
    *,
    printed: Printed | None = None,
) -> bool:
    """Write every answer as a line, in this format.

    A file appears only when it is complete and on disk. ``location`` is the ledger's, which
    commands in the errors name. ``output`` None means standard output; returns False if its reader
    closed it before the end. Raises `BadOutput`.
    """
    if output is None:
        content = chunks(answers, form, location)
        shown = _visible(content, form) if on_terminal() else content
        return _write_stdout(shown, printed or Printed())
    if os.path.exists(output) and stat.S_ISFIFO(os.stat(output).st_mode):
        say(f"writing to the pipe {output}, as fast as it is read")
    try:
        write_file(answers, output, form, location)
    except OSError as error:
        raise BadOutput(f"{output}: cannot be written: {error.strerror}") from None
    return True


def _write_stdout(content: Iterable[bytes], printed: Printed) -> bool:
    require_stdout()
    try:
        for chunk in content:
            sys.stdout.buffer.write(chunk)
            printed.lines += chunk.count(b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        forget_stdout()
        say(
            "standard output was closed before all results were written; they are kept in the "
            "ledger"
        )
        return False
    except OSError as error:
        raise unwritable(error) from None
    return True


def _visible(content: Iterable[bytes], form: Format) -> Iterator[bytes]:
    """Yield lines for a terminal, with the answers' control sequences escaped."""
    show = visible_json if form == "jsonl" else visible
    for chunk in content:
        yield show(chunk.decode("utf-8", "surrogatepass")).encode()
