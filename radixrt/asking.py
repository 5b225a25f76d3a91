"""How an engine's client asks: a request is opened, its message sent, its answer awaited, by a thread or by a task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from radixrt.connection import AsyncInbox, Connection, Inbox, SyncInbox
from radixrt.errors import Aborted
from radixrt.messages import Abort, FromClient
from radixrt.questions import Question, Submission, expect, seconds
from radixrt.streams import AsyncDeltaStream, DeltaStream

Answer = TypeVar("Answer")


class Asker:
    """Asks over a connection, for one tenant (None: nobody's part of the tree)."""

    def __init__(self, connection: Connection, tenant: str | None = None) -> None:
        self._connection = connection
        self._tenant = tenant

    def ask(self, question: Question[Answer] | Submission[Answer]) -> Answer:
        if isinstance(question, Submission):
            return question.read(list(self.stream(question)))
        inbox = SyncInbox()
        with self._open(question, inbox):
            item = inbox.get(question.timeout)
        return question.read(expect(item, question.answered_by))

    async def aask(self, question: Question[Answer] | Submission[Answer]) -> Answer:
        if isinstance(question, Submission):
            return question.read([delta async for delta in self.astream(question)])
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
            words = f"the request took longer than {question.timeout} s and was cancelled"
            raise Aborted(words, code="timeout") from None
        finally:
            self._connection.forget(number)
            if not answered:  # nobody waits for it any more
                self._connection.send(Abort(request_id=number))

    def _own(self, message: FromClient) -> FromClient:
        """The message, about this tenant's part of the tree where it is about one."""
        if self._tenant is None or "tenant" not in message.__struct_fields__:
            return message
        return msgspec.structs.replace(message, tenant=self._tenant)
