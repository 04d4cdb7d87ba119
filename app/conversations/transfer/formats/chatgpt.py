"""Parses `conversations.json` of a ChatGPT data export: trees of nodes, of which one path is the current one. Pure.

What a chat shows is imported: the texts of the user and the assistant, in order, with their times. Paths that were left
by editing a question or regenerating an answer become branches. Tool calls and results, code that was run, reasoning
and hidden messages are left out, and counted in a warning.

The format has no specification; this parser follows exports from 2023 to 2026.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from app.conversations.transfer.formats.imported_conversation import (
    ImportedBranch,
    ImportedConversation,
    ImportedMessage,
    build_warning,
    decode_json,
    expect_array,
    expect_object,
    field_location,
    invalid_file_error,
    parse_unix_seconds,
)
from app.dialects.chat.message import ChatMessage

EXPECTED: Final = "a conversation of a ChatGPT export: an object with a 'mapping'"
EXPECTED_NODE: Final = "a node: an object with 'parent' and 'message'"
TEXT_CONTENT_TYPES: Final = ("text", "multimodal_text")
"""Types of content that a chat shows."""
MAX_BRANCHES: Final = 64
OMITTED_TEXT: Final = "[{kind} left out]"
PART_KINDS: Final = {"image_asset_pointer": "image", "audio_asset_pointer": "audio", "video_container": "video"}

Nodes = Mapping[str, Mapping[str, Any]]


def parse_chatgpt_export(texts: Sequence[tuple[str, bytes]]) -> list[ImportedConversation]:
    """Parses the conversations of an export; empty ones are left out.

    Args:
        texts: the JSON text of each conversation, after its location for errors.

    Raises:
        InvalidRequest: a text is no conversation of a ChatGPT export.
    """
    conversations = [
        _parse_conversation(expect_object(decode_json(raw, where, EXPECTED), where, EXPECTED), where)
        for where, raw in texts
    ]
    return [conversation for conversation in conversations if conversation.messages]


def _parse_conversation(fields: Mapping[str, Any], location: str) -> ImportedConversation:
    tree = _MessageTree(
        expect_object(fields.get("mapping"), field_location(location, "mapping"), "an object of nodes by their id"),
        location,
    )
    warnings: list[str] = []
    leaf = fields.get("current_node")
    if not isinstance(leaf, str) or leaf not in tree.nodes:
        leaf = tree.find_newest_leaf()
        warnings.append(build_warning(location, "'current_node' names no node; the newest path was taken."))
    if leaf is None:
        return ImportedConversation(messages=(), location=location)
    paths, too_many = _select_message_paths(tree, leaf)
    if too_many:
        warnings.append(
            build_warning(location, f"{too_many} further branches were left out; {MAX_BRANCHES} were kept.")
        )
    title = fields.get("title")
    return ImportedConversation(
        messages=tuple(paths[0]) if paths else (),
        location=location,
        title=title if isinstance(title, str) and title else None,
        created_at=parse_unix_seconds(fields.get("create_time")),
        branches=tuple(_build_branches(paths)),
        warnings=(*warnings, *tree.build_warnings()),
    )


def _select_message_paths(tree: _MessageTree, current: str) -> tuple[list[list[ImportedMessage]], int]:
    """Returns the chat messages of the current path and, oldest first, of the paths to the other leaves; and how many
    paths were left out. Paths without messages are skipped, and paths with the same messages are returned once."""
    leaves = [current, *(leaf for leaf in tree.leaves if leaf != current)]
    paths = {_message_path_key(path): path for leaf in leaves if (path := tree.read_path_messages(leaf))}
    kept_paths = list(paths.values())[: MAX_BRANCHES + 1]
    return kept_paths, len(paths) - len(kept_paths)


def _message_path_key(path: Sequence[ImportedMessage]) -> tuple[str, ...]:
    return tuple(one.location for one in path)


def _build_branches(paths: Sequence[Sequence[ImportedMessage]]) -> list[ImportedBranch]:
    """Makes each path after the first a branch of the earlier path with which it shares the most messages. A path that
    is the beginning of another one is skipped."""
    branches: list[ImportedBranch] = []
    standing = list(paths[:1])
    for path in paths[1:]:
        shared = [_count_shared_messages(path, other) for other in standing]
        if max(shared) == len(path):
            continue
        of = shared.index(max(shared))
        branches.append(ImportedBranch(parent_index=of, shared_messages=shared[of], messages=tuple(path[shared[of] :])))
        standing.append(path)
    return branches


def _count_shared_messages(first_path: Sequence[ImportedMessage], second_path: Sequence[ImportedMessage]) -> int:
    count = 0
    for first_message, second_message in zip(first_path, second_path, strict=False):
        if first_message.location != second_message.location:
            break
        count += 1
    return count


class _MessageTree:
    """The nodes of one conversation."""

    def __init__(self, nodes: Mapping[str, Any], location: str) -> None:
        self._where = location
        self.nodes: Nodes = {
            name: expect_object(node, self._node_path(name), EXPECTED_NODE) for name, node in nodes.items()
        }
        self._messages: dict[str, ImportedMessage | None] = {}
        self._omitted_counts: Counter[str] = Counter()
        self._parents = {name: self._read_parent(name) for name in self.nodes}
        parents = set(self._parents.values())
        self.leaves = sorted((name for name in self.nodes if name not in parents), key=self._read_time)

    def _read_parent(self, name: str) -> str | None:
        parent = self.nodes[name].get("parent")
        if parent is None or (isinstance(parent, str) and parent in self.nodes):
            return parent
        raise invalid_file_error(f"{self._node_path(name)}.parent", "the id of a node, or null")

    def find_newest_leaf(self) -> str | None:
        return self.leaves[-1] if self.leaves else None

    def read_path_messages(self, leaf: str) -> list[ImportedMessage]:
        """Returns the chat messages on the path from the root to a node.

        Raises:
            InvalidRequest: a node is its own ancestor.
        """
        path: dict[str, None] = {}
        name: str | None = leaf
        while name is not None:
            if name in path:
                raise invalid_file_error(
                    f"{self._node_path(name)}.parent", "a node that does not descend from this one"
                )
            path[name] = None
            name = self._parents[name]
        messages_on_path = (self._parse_node_cached(name) for name in reversed(path))
        return [message for message in messages_on_path if message is not None]

    def build_warnings(self) -> list[str]:
        """Returns a warning that counts what was left out, by kind; none if nothing was."""
        counts_text = ", ".join(f"{count} {kind}" for kind, count in sorted(self._omitted_counts.items()))
        return [build_warning(self._where, f"left out: {counts_text}.")] if counts_text else []

    def _node_path(self, name: str) -> str:
        return field_location(self._where, f"mapping[{name!r}]")

    def _read_time(self, name: str) -> float:
        message = self.nodes[name].get("message")
        moment = message.get("create_time") if isinstance(message, dict) else None
        return float(moment) if isinstance(moment, int | float) else 0.0

    def _parse_node_cached(self, name: str) -> ImportedMessage | None:
        if name not in self._messages:
            self._messages[name] = self._parse_node(name)
        return self._messages[name]

    def _parse_node(self, name: str) -> ImportedMessage | None:
        """Returns the chat message of a node; None if the chat does not show it."""
        location = self._node_path(name)
        message = self.nodes[name].get("message")
        if message is None:
            return None
        raw_message = expect_object(message, f"{location}.message", "a message, or null")
        content = raw_message.get("content")
        if not isinstance(content, dict):
            raise invalid_file_error(f"{location}.message.content", "an object with a 'content_type'")
        role, kind = _read_role(raw_message), content.get("content_type")
        if role not in ("user", "assistant") or kind not in TEXT_CONTENT_TYPES or not _is_message_visible(raw_message):
            if _has_omitted_content(content):
                self._omitted_counts[_describe_omitted_kind(role, kind, raw_message)] += 1
            return None
        text = self._read_text(content, f"{location}.message.content.parts")
        if not text:
            return None
        return ImportedMessage(
            ChatMessage.from_body({"role": role, "content": text}), location, _read_created_at(raw_message)
        )

    def _read_text(self, content: Mapping[str, Any], location: str) -> str:
        """Returns the text of a message; for a message without text a note that names its attachments."""
        parts = expect_array(content.get("parts"), location, "an array of parts")
        texts, kinds = [], []
        for part in parts:
            text = part if isinstance(part, str) else part.get("text") if isinstance(part, dict) else None
            if isinstance(text, str):
                texts.append(text)
            elif isinstance(part, dict):
                kinds.append(PART_KINDS.get(str(part.get("content_type")), "attachment"))
        self._omitted_counts.update(f"{kind} parts" for kind in kinds)
        said = "\n".join(text for text in texts if text)
        return said or "\n".join(OMITTED_TEXT.format(kind=kind) for kind in kinds)


def _read_role(message: Mapping[str, Any]) -> str:
    author = message.get("author")
    return str(author.get("role")) if isinstance(author, dict) else ""


def _is_message_visible(message: Mapping[str, Any]) -> bool:
    """Returns whether the chat shows a message: not if it is hidden or addressed to a tool."""
    metadata = message.get("metadata")
    hidden = isinstance(metadata, dict) and metadata.get("is_visually_hidden_from_conversation") is True
    return not hidden and message.get("recipient", "all") in ("all", None) and message.get("weight", 1) != 0


def _has_omitted_content(content: Mapping[str, Any]) -> bool:
    """Returns whether a message that is left out has content. Every chat begins with an empty system message, which
    needs no warning."""
    parts = content.get("parts")
    return any(parts) if isinstance(parts, list) else True


def _describe_omitted_kind(role: str, kind: object, message: Mapping[str, Any]) -> str:
    if role == "tool" or message.get("recipient", "all") not in ("all", None):
        return "tool calls and results"
    if role not in ("user", "assistant") or kind in TEXT_CONTENT_TYPES:
        return "hidden or system messages"
    return f"messages of kind {str(kind)[:40]!r}"


def _read_created_at(message: Mapping[str, Any]) -> datetime | None:
    return parse_unix_seconds(message.get("create_time"))
