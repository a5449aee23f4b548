"""What the end of a live call means for its request, and the row that stores it.

A call ends in one of three ways:

- An **answer** is stored like a line of a batch.
- A **definite no** is a failed connection, or an answer in
  `claude_batch.wire.error_table.NOT_BILLED`. If the error is transient, the request is queued
  again; otherwise it ends as errored.
- **Anything else** makes the request ``lost``, for example a 500 response or a driver that dies
  during a call. The call may have been billed, so it is repeated only on explicit order.

With ``live_retry: always``, an error in the API's own format counts like the same error in a
batch's results, whether or not it was billed. Budgets count such a call as paid.
"""

from __future__ import annotations

import msgspec

from claude_batch.core.outcome import Disposition, Outcome
from claude_batch.core.quantities import roughly
from claude_batch.ledger.live_calls import Waiting
from claude_batch.ledger.stored_results import NewResult
from claude_batch.lifecycle.collection import result_row_of
from claude_batch.money.prices import Prices
from claude_batch.wire.encoding import custom_id
from claude_batch.wire.error_table import SendVerdict
from claude_batch.wire.live_client import LiveAnswer
from claude_batch.wire.messages import (
    LineError,
    ResultLine,
    decode_line,
    errored_line,
    succeeded_line,
)

NOT_SENT = (Outcome.NOT_SENT, Disposition.RETRY)
ACCOUNT = (Outcome.NOT_SENT, Disposition.ACCOUNT)
_LOST = (Outcome.MISSING, Disposition.FINAL)


def outcome_of(
    answer: LiveAnswer, retry: str = "safe", decided: Disposition | None = None
) -> tuple[Outcome, Disposition]:
    """Return what the end of a call means for its request, in the words of a batch's result.

    ``decided`` is what the user's function has decided about `LiveAnswer.request_fault`.
    ``retry`` is the run's ``live_retry``: ``safe`` allows another attempt only after a definite no,
    ``always`` also after an error in the API's own format. A definite no that passes leaves the
    request unsent; if it is the fault of the account, or of the way there, sending halts.
    """
    if answer.is_answered:
        return Outcome.SUCCEEDED, Disposition.FINAL
    fault = answer.fault
    if fault is None:
        if not answer.never_left:
            return _LOST
        return ACCOUNT if answer.no_credential else NOT_SENT
    verdict = fault.verdict
    if verdict is SendVerdict.UNKNOWN and not (retry == "always" and fault.from_api):
        return _LOST
    if fault.account_reason is not None or fault.is_redirect:
        return ACCOUNT
    if verdict is SendVerdict.WAIT:
        return NOT_SENT
    if decided is Disposition.ACCOUNT:
        return ACCOUNT
    return Outcome.ERRORED, decided or fault.disposition


class LiveCall(msgspec.Struct, eq=False):
    """One call that was claimed in the ledger."""

    request: Waiting
    sending: int
    batch_id: int
    left: float
    failures: int
    """Number of consecutive failures that were known when the call was sent."""
    model: str
    probed: float | None
    """When the halt began that the call probes; None if there was no halt."""


class Answers:
    """Makes the rows that store how calls ended."""

    def __init__(self, incarnation: str, prices: Prices) -> None:
        """``incarnation`` is that of the ledger."""
        self._incarnation = incarnation
        self._prices = prices

    def success(self, call: LiveCall, answer: LiveAnswer, now: float) -> NewResult:
        """Return the row of an answer, in the format of a batch's, so that one reader has both."""
        identifier, malformed = self._custom_id(call), answer.malformed
        raw = succeeded_line(identifier, answer.raw, answer.request_id)
        if malformed is None:
            line = decode_line(raw)
        else:
            # The line may be unreadable, so it cannot be parsed for its custom id.
            line = ResultLine(
                identifier,
                "succeeded",
                Disposition.MALFORMED,
                malformed.usage,
                model=malformed.model,
                fault=malformed.problem,
            )
        return self._row(call, line, raw, now)

    def error(
        self, call: LiveCall, answer: LiveAnswer, disposition: Disposition, now: float
    ) -> NewResult:
        """Return the row of an error of the API, or of a response that cannot be read."""
        identifier, fault, request_id = self._custom_id(call), answer.fault, answer.request_id
        error_type = (fault and fault.error_type) or f"http_{answer.status}"
        words = answer.reason if fault is None else fault.message
        error = LineError(error_type, words, request_id, None)
        line = ResultLine(identifier, "errored", disposition, error=error)
        raw = errored_line(identifier, error_type, words, request_id)
        return self._row(call, line, raw, now)

    def _custom_id(self, call: LiveCall) -> str:
        return custom_id(call.request.id, self._incarnation, call.sending)

    def _row(self, call: LiveCall, line: ResultLine, raw: bytes, now: float) -> NewResult:
        seq, sending = call.request.seq, call.sending
        return result_row_of(
            line, raw, seq, sending, call.batch_id, self._prices, batch=False, at=now
        )


def words_of(answer: LiveAnswer) -> str:
    """Describe why a call has no answer, and the pause that follows."""
    words = answer.reason if answer.fault is None else answer.fault.describe()
    if answer.pause > 1:
        words += f"; live calls to this model pause for {roughly(answer.pause)}"
    return words


def unanswered_words(note: str) -> str:
    """Describe the last live call of a run for a person who waits, given `words_of` it."""
    return f"the last live call was not answered: {note}"
