"""Detects which of a request's messages an earlier attempt has stored already."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from app.context.view.client_versions import ClientVersions
from app.conversation.conversation_types import Conversation, LogMessage
from app.conversation.item import TOOL_RESULT_ROLES, Item
from app.pipeline.resolve.answer_replay import StoredAnswers
from app.pipeline.resolve.client_history import ClientHistory
from app.pipeline.resolve.tool_outputs import list_call_ids, read_output_call_id
from app.pipeline.turn.chat_request import ChatRequest
from app.pipeline.turn.resolved_request import BROKEN_OFF, UNANSWERED_MESSAGES
from app.store.contract.conversations import ConversationStore


class RetryDetector:
    """Compares a request's messages with the end of a conversation's log."""

    def __init__(self, store: ConversationStore, stored_answers: StoredAnswers) -> None:
        self._store = store
        self._stored_answers = stored_answers

    async def is_unanswered_retry(self, conversation: Conversation, messages: Sequence[Item]) -> bool:
        """Returns whether the log ends with exactly these messages, stored by an attempt that got no answer."""
        count = len(messages)
        if not count or int(conversation.state.get(UNANSWERED_MESSAGES, 0)) < count:
            return False
        log_tail = await self._store.read_log(
            conversation, conversation.head_seq + 1 - count, conversation.head_seq + 1
        )
        return _are_equal_messages(log_tail, messages)

    async def find_lost_answer(
        self,
        request: ChatRequest,
        conversation: Conversation,
        messages: Sequence[Item],
        versions: ClientVersions,
    ) -> LogMessage | None:
        """Returns the answer that the log ends with, if it answers exactly this append and its client did not get it;
        else None. The append is then answered anew, and its messages are not stored twice (docs/decisions/0036).

        Either the answer broke off, and the request is the same. Or the append brings only tool results that this
        answer answers: a call has one result. If the guess is wrong, the client's repeated words are missing in its
        log, and the model is not shown the beginning of an answer that the client kept.

        Args:
            messages: the new messages of the request.
            versions: what the client shows in the place of log messages. Lost answers are left out there already.
        """
        brings_results = bool(messages) and all(map(_is_result, messages))
        if conversation.head_seq < 0 or not (brings_results or conversation.state.get(BROKEN_OFF)):
            return None
        asked_end = conversation.head_seq
        while versions.is_omitted(asked_end - 1):
            asked_end -= 1
        first_seq = max(0, asked_end - len(messages))
        entries = await self._store.read_log(conversation, first_seq, conversation.head_seq + 1)
        answer = entries[-1]
        if answer.message.role != "assistant" or answer.seq in conversation.redacted_seqs:
            return None
        if answer.incomplete and await self._stored_answers.is_answer_to(answer, request):
            return answer
        asked = entries[: asked_end - first_seq]
        call_ids = [read_output_call_id(message) for message in messages]
        repeats_results = (
            brings_results
            and _are_equal_messages(asked, messages)
            and [read_output_call_id(entry.message) for entry in asked] == call_ids
            and list_call_ids(answer.message).isdisjoint(call_ids)
        )
        return answer if repeats_results else None

    async def find_replaced_messages(
        self, conversation: Conversation, messages: Sequence[Item], versions: ClientVersions
    ) -> Sequence[LogMessage]:
        """Returns the messages at the end of the log that these messages replace: the client carried calls out anew
        after an attempt without an answer. These are the older results of the same calls; or the whole attempt, if it
        has other messages, which are repeated. The model is shown the new results only, because providers refuse two
        results of one call. If the guess is wrong, the model is not shown an older result of a call that has a newer
        one; the log keeps it."""
        unanswered = int(conversation.state.get(UNANSWERED_MESSAGES, 0))
        if not unanswered or not any(map(_is_result, messages)):
            return ()
        first_seq = max(0, conversation.head_seq - unanswered)
        entries = await self._store.read_log(conversation, first_seq, conversation.head_seq + 1)
        if any(len(list_call_ids(one.message)) != len(one.message.calls) for one in entries):
            return ()  # the provider gives several calls one id
        tail = entries[-unanswered:]
        new_ids = {one.result_for for one in takewhile(_is_result, messages)} - {None}
        results = takewhile(lambda entry: _is_result(entry.message), reversed(tail))
        older = [one for one in results if one.message.result_for in new_ids and not versions.is_omitted(one.seq)]
        if older:
            return older
        for start in range(max(0, len(tail) - len(messages)), len(tail)):
            attempt = [entry.message for entry in tail[start:]]
            if _is_same_attempt(attempt, messages[: len(attempt)]) and not _are_equal_messages(tail[start:], messages):
                return tail[start:]
        return ()

    async def count_repeated_messages(
        self,
        request: ChatRequest,
        conversation: Conversation,
        messages: Sequence[Item],
        *,
        last_seq: int | None = None,
    ) -> int:
        """Returns how many of the first messages of a request are the end of the log.

        Agents send all messages of a run again after each tool call. In Chat Completions, the last repeated message is
        an assistant message, or several questions repeat the newest ones of the log. In the Responses API, clients may
        leave the answers out, because the provider has them; then an output shows where the log ends. A single question
        shows nothing: a user may say it again.

        After the repeated messages, the log may have messages that an attempt without an answer stored. They are
        repeated, too, if the request has them in the same place and goes on after them: the answer was given, but could
        not be stored.

        Args:
            last_seq: where the log ends for this request; by default, at its head.
        """
        is_chat = request.protocol != "responses"
        counts = [
            count
            for count in range(len(messages), 0, -1)
            if messages[count - 1].role in (("assistant",) if is_chat else ("assistant", "tool"))
            or (not is_chat and count < len(messages))
        ]
        if is_chat and last_seq is None and all(message.role == "user" for message in messages):
            return await self._count_repeated_questions(conversation, messages)
        if not counts:
            return 0
        unanswered_counts = {0}
        if last_seq is None:
            last_seq = conversation.head_seq
            unanswered_counts.add(min(int(conversation.state.get(UNANSWERED_MESSAGES, 0)), len(messages)))
        log_count = max(unanswered_counts) + (counts[0] if is_chat else 2 * len(messages))
        first_seq = max(0, last_seq + 1 - log_count)
        log = [entry.message for entry in await self._store.read_log(conversation, first_seq, last_seq + 1)]
        comparison = _LogComparison(log, messages, starts_log=first_seq == 0, is_chat=is_chat)
        # The longest repetition counts.
        for count in counts:
            for unanswered in unanswered_counts:
                if comparison.is_repetition(count, len(log) - unanswered):
                    return count + comparison.count_repeated_end(count, unanswered)
        return 0

    async def _count_repeated_questions(self, conversation: Conversation, messages: Sequence[Item]) -> int:
        """Returns how many of the first of several questions are the newest of the log: their answers were lost, or the
        client sends all its questions again. The last one is new."""
        if len(messages) < 2:
            return 0
        entries = await self._store.read_log(conversation, 0, conversation.head_seq + 1)
        asked = [_canonical_bytes(message) for message in messages[:-1]]
        known = [_canonical_bytes(one.message) for one in entries if one.message.role != "assistant"]
        counts = range(min(len(asked), len(known)), 0, -1)
        return next((count for count in counts if known[-count:] == asked[:count]), 0)

    async def is_resent_tail(
        self, request: ChatRequest, named_conversation: Conversation, client_history: ClientHistory
    ) -> bool:
        """Returns whether an appending client sends the newest part of the log again, as an agent does after a tool
        call. A history that is the whole log is a resend."""
        if (
            request.context.mode != "auto"
            or request.continuation.is_chat_ui
            or named_conversation.mode == "resend"
            or not client_history.may_contain_answer
        ):
            return False
        count = await self.count_repeated_messages(request, named_conversation, client_history.messages)
        # A history that repeats the whole log is a resend. One without a message after the repeated ones has nothing to
        # append.
        if count:
            return count <= named_conversation.head_seq and count < len(client_history.messages)
        # No message repeats. The request can still be a retry of an append whose answer is stored.
        return await self._stored_answers.find_retry_answer(named_conversation, request) is not None


class _LogComparison:
    """Compares the first messages of a request with the end of a log.

    Args:
        log: the end of the log.
        starts_log: whether `log` is the whole log.
        is_chat: whether the request has all answers, as in Chat Completions. In the Responses API, a request may leave
            out answers of the log.
    """

    def __init__(self, log: Sequence[Item], messages: Sequence[Item], *, starts_log: bool, is_chat: bool) -> None:
        self._log = log
        self._messages = messages
        self._starts_log = starts_log
        self._is_chat = is_chat
        self._log_keys = [self._make_key(message) for message in log]
        self._message_keys = [self._make_key(message) for message in messages]

    def is_repetition(self, count: int, log_end: int) -> bool:
        """Returns whether the first `count` messages of the request are surely the end of the log.

        Args:
            log_end: how many messages of `log` count.
        """
        places = self._find_places(count, log_end)
        if places is None:
            return False
        if self._messages[count - 1].role == "assistant" and places.stop == log_end:
            return True
        if self._is_chat:
            return False
        left_out, rest = self._log[places.stop : log_end], self._messages[count:]
        if not rest:
            # The log ends with an answer that the request leaves out, so the request would bring nothing new.
            return not left_out and self._messages[count - 1].role == "tool"
        return (
            self._messages[count - 1].role in ("assistant", "tool")
            or (bool(left_out) and rest[0].role == "tool")
            or (self._starts_log and places.start == 0)
        )

    def count_repeated_end(self, count: int, unanswered: int) -> int:
        """Returns how many of the messages after the first `count` are the last ones of the log, of which `unanswered`
        have no answer. The request goes on after them."""
        rest = self._message_keys[count:-1]
        sizes = range(min(len(rest), unanswered), 0, -1)
        return next((size for size in sizes if rest[:size] == self._log_keys[-size:]), 0)

    def _find_places(self, count: int, log_end: int) -> range | None:
        """Returns the range of `log` that the first messages of the request repeat, or None if they do not. After the
        range come only answers that the request leaves out."""
        first, stop = log_end, None
        for index in reversed(range(count)):
            first -= 1
            while first >= 0 and not self._is_same(index, first):
                if self._is_chat or self._log[first].role != "assistant":
                    return None
                first -= 1
            if first < 0:
                return None
            stop = first + 1 if stop is None else stop
        return None if stop is None else range(first, stop)

    def _is_same(self, index: int, log_index: int) -> bool:
        """Returns whether a message of the request repeats a message of the log. In the Responses API, the text of an
        answer may come back without its calls."""
        if self._message_keys[index] == self._log_keys[log_index]:
            return True
        message, logged = self._messages[index], self._log[log_index]
        if self._is_chat or not message.role == logged.role == "assistant":
            return False
        return not message.calls_tools and bool(message.text) and message.text == logged.text

    def _make_key(self, message: Item) -> tuple[bytes, str | None]:
        has_call_id = not self._is_chat and message.role == "tool"
        return _canonical_bytes(message), read_output_call_id(message) if has_call_id else None


def _is_result(message: Item) -> bool:
    return message.role in TOOL_RESULT_ROLES


def _is_same_attempt(attempt: Sequence[Item], messages: Sequence[Item]) -> bool:
    """Returns whether messages have results of the same calls as an earlier attempt, in any order, and equal others."""
    ids, new_ids = (sorted(one.result_for or "" for one in part if _is_result(one)) for part in (attempt, messages))
    others, new_others = (
        [_canonical_bytes(one) for one in part if not _is_result(one)] for part in (attempt, messages)
    )
    return ids == new_ids and all(ids) and bool(ids) and others == new_others


def _are_equal_messages(entries: Sequence[LogMessage], messages: Sequence[Item]) -> bool:
    """Compares messages by their canonical form. A message without a canonical form (the chain skips it) is compared by
    its bytes."""
    return [_canonical_bytes(entry.message) for entry in entries] == [_canonical_bytes(message) for message in messages]


def _canonical_bytes(message: Item) -> bytes:
    return message.canonical_form or message.raw
