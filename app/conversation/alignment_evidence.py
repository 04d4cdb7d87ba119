"""Decides whether an alignment proves that a history belongs to a log."""

from __future__ import annotations

from app.conversation.alignment import Alignment

MIN_ALIGNED_SHARE = 0.5
"""The share of the client's other messages that must be in the log before a conversation is recognised by its
answers."""


def proves_same_conversation(alignment: Alignment) -> bool:
    """Returns whether answers alone, without an id, prove that a history belongs to a log.

    Two long answers of ours must have come back, or one answer with call ids that no other conversation has. Half of
    the client's other messages must be in the log. Of the history's answers, the log must know the newest and most of
    the others: two people who got two equal answers have gone on differently since.

    Two people who asked the same questions and got the same two long answers, and nothing else since, cannot be told
    apart here. The caller prefers an exact chain, and treats a tie as no match.
    """
    known = alignment.returned_answer_count + alignment.returned_call_id_count
    return (
        (alignment.returned_answer_count >= 2 or alignment.returned_call_id_count >= 1)
        and alignment.aligned_client_share >= MIN_ALIGNED_SHARE
        and not alignment.is_newest_answer_unknown
        and alignment.unknown_answer_count <= known
    )


def covers_whole_log(alignment: Alignment) -> bool:
    """Returns whether a history is the whole log, except for notes and for answers that came back in a known version:
    cut short, another choice, or joined with their prefill.

    The head's answer may come back in other words, if an earlier long answer of ours came back.
    """
    old = [one for one in alignment.message_alignments[: alignment.first_new_index] if one.kind != "note"]
    rewritten = {one.seq for one in old if one.kind == "rewritten"}
    is_head_reworded = (
        rewritten == {alignment.last_seq}
        and alignment.unknown_answer_count == 1
        and alignment.returned_answer_count >= 1
    )
    return (
        alignment.continues_log
        and bool(rewritten)
        and len(old) == len(rewritten) + sum(one.kind == "same" for one in old)
        and all(first == past - 1 and past in rewritten for first, past in alignment.omitted_ranges)
        and (alignment.reworded_count == 0 or is_head_reworded)
    )


def confirms_conversation_hint(alignment: Alignment) -> bool:
    """Returns whether a history continues the log that a client's own session id names: the log's newest user message
    and one more message came back, or our newest answer came back as the client's summary; and the history has no
    answer that the log does not have.

    A session id alone is not enough, because sub-agents with other histories share it.
    """
    same = sum(aligned.kind == "same" for aligned in alignment.message_alignments)
    if alignment.unknown_answer_count > 0:
        return False
    return alignment.is_compacted_by_client or (
        alignment.has_newest_user_message and same >= 2 and alignment.aligned_client_share >= MIN_ALIGNED_SHARE
    )
