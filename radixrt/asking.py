"""How an engine's client asks: a request is opened, its message sent, its answer awaited, by a thread or by a task."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from radixrt.connection import AsyncInbox, Connection, Inbox, SyncInbox
from radixrt.errors import Aborted
from radixrt.messages import Abort, FromClient
from radixrt.questions import Asked, Question, Questions, Submission, expect, seconds
from radixrt.streams import AsyncDeltaStream, DeltaStream

Answer = TypeVar("Answer")


class Asker:
    """Asks over a connection, for one tenant (None: nobody's part of the tree)."""

    def __init__(self, connection: Connection, tenant: str | None = None) -> None:
        self._connection = connection
        self._tenant = tenant

    def ask(self, question: Asked[Answer]) -> Answer:
        if isinstance(question, Submission):
            return question.read(list(self.stream(question)))
        if isinstance(question, Questions):
            several, answers = [SyncInbox() for _ in question.messages], list[Any]()
            left = _countdown(question.timeout)
            with self._open_all(question, several, answers):
                for one in several:
                    answers.append(expect(one.get(left()), question.answered_by))
            return question.read(answers)
        inbox = SyncInbox()
        with self._open(question, inbox):
            item = inbox.get(question.timeout)
        return question.read(expect(item, question.answered_by))

    async def aask(self, question: Asked[Answer]) -> Answer:
        if isinstance(question, Submission):
            return question.read([delta async for delta in self.astream(question)])
        if isinstance(question, Questions):
            several, answers = [AsyncInbox() for _ in question.messages], list[Any]()
            left = _countdown(question.timeout)
            with self._open_all(question, several, answers):
                for one in several:
                    answers.append(expect(await one.get(left()), question.answered_by))
            return question.read(answers)
        inbox = AsyncInbox()
        with self._open(question, inbox):
            item = await inbox.get(question.timeout)
        return question.read(expect(item, question.answered_by))

    def stream(self, submission: Submission[Any]) -> DeltaStream:
        inbox = SyncInbox()
        number = self._submit(submission, inbox)
        return DeltaStream(self._connection, number, inbox, submission.samples, submission.timeout)

    def astream(self, submission: Submission[Any]) -> AsyncDeltaStream:
        inbox = AsyncInbox()
        number = self._submit(submission, inbox)
        return AsyncDeltaStream(self._connection, number, inbox, submission.samples, submission.timeout)

    def _submit(self, submission: Submission[Any], inbox: Inbox) -> int:
        """Send a request; its number."""
        number = self._connection.open(inbox)
        try:
            self._connection.send(self._own(submission.message(number)))
        except BaseException:
            self._connection.forget(number)
            raise
        return number

    @contextmanager
    def _open(self, question: Question[Any], inbox: Inbox) -> Iterator[None]:
        """Around the wait for the answer of a question, which is sent first."""
        seconds(question.timeout)
        number = self._connection.open(inbox)
        answered = False
        try:
            self._connection.send(self._own(question.message(number)))
            yield
            answered = True
        except TimeoutError:
            raise _late(question.timeout) from None
        finally:
            self._connection.forget(number)
            if not answered:  # nobody waits for it any more
                self._connection.send(Abort(request_id=number))

    @contextmanager
    def _open_all(
        self, questions: Questions[Any], inboxes: Sequence[Inbox], answers: Sequence[object]
    ) -> Iterator[None]:
        """Around the wait for all `answers`; at the end nothing stays open."""
        numbers: list[int] = []
        try:
            for message, inbox in zip(questions.messages, inboxes, strict=True):
                numbers.append(self._connection.open(inbox))
                self._connection.send(self._own(message(numbers[-1])))
            yield
        except TimeoutError:
            raise _late(questions.timeout) from None
        finally:
            for number in numbers:
                self._connection.forget(number)
            for number in numbers[len(answers) :]:
                self._connection.send(Abort(request_id=number))

    def _own(self, message: FromClient) -> FromClient:
        """The message, about this tenant's part of the tree where it is about one."""
        if self._tenant is None or "tenant" not in message.__struct_fields__:
            return message
        return msgspec.structs.replace(message, tenant=self._tenant)


def _countdown(timeout: float | None) -> Callable[[], float | None]:
    """Seconds that are left of `timeout`, from now on."""
    end = time.monotonic() + (timeout or 0.0)
    return lambda: None if timeout is None else max(end - time.monotonic(), 0.0)


def _late(timeout: float | None) -> Aborted:
    return Aborted(f"the request took longer than {timeout} s and was cancelled", code="timeout")
