"""Tools and the choice among them, in the forms of both protocols. Pure.

The Responses API has flat tools, `{"type": "function", "name": …}`, and namespaces of tools; Chat Completions has an
object in each tool, `{"type": "function", "function": {"name": …}}`. All other types of tools are hosted: the provider
runs them, or knows them without a schema. Only the Responses API has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from app.conversation.names import check_name
from app.dialects.items.item_kinds import join_tool_name
from app.dialects.request_body import UNSUPPORTED, build_missing_error, build_type_error, build_value_error
from app.errors import InvalidRequest

SCHEMA_MEMBERS: Final = {
    "function": ("name", "description", "parameters", "strict"),
    "custom": ("name", "description", "format"),
}
"""The types of tools that both protocols have, and the members of each."""
MAX_SHOWN_CHARS: Final = 64


class ListedTool(NamedTuple):
    """A tool of a Responses request."""

    path: str
    """Where the tool stands: ``tools[2]``, or ``tools[2].tools[0]`` in a namespace."""
    tool: Mapping[str, Any]
    namespace: Mapping[str, Any] | None = None
    """The tool with type `namespace` that has this tool; None if the tool is in no namespace."""
    is_first: bool = False
    """Whether the tool is the first one of its namespace."""

    @property
    def is_hosted(self) -> bool:
        kind = self.tool.get("type")
        return not isinstance(kind, str) or kind not in SCHEMA_MEMBERS

    @property
    def chat_name(self) -> str:
        """The name of the function for a provider without namespaces."""
        return join_tool_name(self.namespace and self.namespace.get("name"), self.tool.get("name"))


def list_tools(tools: object) -> list[ListedTool]:
    """Returns the tools of a decoded `tools` field in their order, those of namespaces among them. Values of other
    types than the protocol's are left out."""
    listed: list[ListedTool] = []
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        match tool:
            case {"type": "namespace", "tools": list(members)}:
                listed += [
                    ListedTool(f"tools[{index}].tools[{place}]", member, tool, place == 0)
                    for place, member in enumerate(members)
                    if isinstance(member, dict)
                ]
            case {}:
                listed.append(ListedTool(f"tools[{index}]", tool))
    return listed


def check_tools(tools: object, path: str = "tools") -> None:
    """Checks the tools of a Responses request as far as the gateway reads them; the provider checks the rest.

    Raises:
        InvalidRequest: `tools` is no array of tools with a type, or a tool that the client runs has no name.
    """
    if tools is None:
        return
    if not isinstance(tools, list):
        raise build_type_error(path, list)
    for index, tool in enumerate(tools):
        place = f"{path}[{index}]"
        if not isinstance(tool, dict):
            raise build_type_error(place, dict)
        kind = _check_member(tool, "type", str, place)
        if kind in SCHEMA_MEMBERS or kind == "namespace":
            _check_member(tool, "name", str, place)
        if kind == "namespace":
            check_tools(_check_member(tool, "tools", list, place), f"{place}.tools")


def check_tool_choice(choice: Any) -> None:
    """Checks the `tool_choice` of a Responses request.

    Raises:
        InvalidRequest: it is no mode and no object with a type, or lacks what its type needs.
    """
    match choice:
        case None | "none" | "auto" | "required":
            return
        case str():
            raise build_value_error("tool_choice", "must be `none`, `auto`, `required` or an object")
        case {"type": "allowed_tools"}:
            _check_member(choice, "mode", str, "tool_choice")
            check_tools(_check_member(choice, "tools", list, "tool_choice"), "tool_choice.tools")
        case {"type": "function" | "custom"}:
            _check_member(choice, "name", str, "tool_choice")
        case {}:
            _check_member(choice, "type", str, "tool_choice")
        case _:
            raise build_value_error("tool_choice", "must be a string or an object", "invalid_type")


def list_namespaced_names(tools: object) -> dict[str, tuple[str, str]]:
    """Returns, by the name that a provider of Chat Completions sees, the namespace and the name of each tool in a
    namespace: so the names in its calls can be restored."""
    return {
        one.chat_name: (str(one.namespace.get("name")), str(one.tool.get("name")))
        for one in list_tools(tools)
        if one.namespace is not None and not one.is_hosted
    }


def translate_tool_to_chat(listed: ListedTool) -> dict[str, Any] | None:
    """Returns a tool in the form of Chat Completions; None for a hosted tool."""
    if listed.is_hosted:
        return None
    tool, kind = listed.tool, listed.tool["type"]
    body = {name: tool[name] for name in SCHEMA_MEMBERS[kind] if tool.get(name) is not None}
    if listed.namespace is not None:
        body["name"] = listed.chat_name
        described = listed.namespace.get("description")
        # The namespace's description stands once, since it may be long and each tool costs tokens.
        if listed.is_first and isinstance(described, str) and described:
            about = f"About all functions {listed.namespace.get('name')}__*: {described}"
            own = body.get("description")
            body["description"] = f"{about}\n\n{own}" if own else about
    match body.get("format"):
        case {"type": "grammar", **grammar}:
            body["format"] = {"type": "grammar", "grammar": grammar}
    return {"type": kind, kind: body}


def translate_tools_to_chat(tools: object, dropped: list[str]) -> list[dict[str, Any]]:
    """Returns tools in the form of Chat Completions.

    Args:
        tools: the decoded field, as `check_tools` accepts it.
        dropped: gets the names of hosted tools and of members of tools that Chat Completions does not have.

    Raises:
        InvalidRequest: two tools would get the same name without their namespaces.
    """
    translated_tools: list[dict[str, Any]] = []
    paths: dict[str, str] = {}
    for listed in list_tools(tools):
        translated = translate_tool_to_chat(listed)
        if translated is None:
            dropped.append(f"`{listed.path}` ({shorten_name(listed.tool.get('type'))})")
            continue
        other = paths.setdefault(listed.chat_name, listed.path)
        if other != listed.path and (listed.namespace is not None or ".tools[" in other):
            raise InvalidRequest(
                f"The provider knows no namespaces, and without them {listed.path} has the name of {other}.",
                code="invalid_value",
                param=f"{listed.path}.name",
            )
        translated_tools.append(translated)
        dropped += list_unknown_members(listed.tool, ("type", *SCHEMA_MEMBERS[translated["type"]]), "tools[]")
    return translated_tools


def translate_tool_choice_to_chat(choice: Any, tools: object, dropped: list[str]) -> object:
    """Returns the choice in the form of Chat Completions; None if there is none.

    Args:
        choice: the decoded field, as `check_tool_choice` accepts it.
        tools: the decoded tools of the request.
        dropped: gets the names of hosted tools that were allowed.

    Raises:
        InvalidRequest: the choice forces a tool that a provider of Chat Completions does not have.
    """
    listed_tools = list_tools(tools)
    # Chat Completions refuses a choice without tools.
    has_tools = any(not listed.is_hosted for listed in listed_tools)
    match choice:
        case "none" | "auto":
            return choice if has_tools else None
        case "required" if has_tools:
            return choice
        case "required":
            raise _refuse_choice("requires a tool, and the request has no tool that this provider can call")
        case {"type": "function" | "custom" as kind}:
            return {"type": kind, kind: {"name": _find_chat_name(choice, listed_tools)}}
        case {"type": "allowed_tools", "mode": mode, "tools": list(allowed)}:
            kept = [one for one in allowed if one.get("type") in SCHEMA_MEMBERS]
            dropped += [
                f"`tool_choice.tools` ({shorten_name(one.get('type'))})"
                for one in allowed
                if one.get("type") not in SCHEMA_MEMBERS
            ]
            if not kept and mode != "auto":
                raise _refuse_choice("requires a tool, and allows none that this provider can call")
            if not kept:
                return "none" if has_tools else None
            references = [
                {"type": one["type"], one["type"]: {"name": _find_chat_name(one, listed_tools)}} for one in kept
            ]
            return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": references}}
        case {"type": kind}:
            raise _refuse_choice(f"forces the tool {shorten_name(kind)!r}, which this provider does not have")
    return None


def translate_tools_to_responses(tools: object, dropped: list[str]) -> list[dict[str, Any]]:
    """Returns tools of Chat Completions in the form of the Responses API.

    Args:
        tools: the decoded field.
        dropped: gets the names of tools of other types, and of members that the Responses API does not have.

    Raises:
        InvalidRequest: `tools` is no array of objects, or a tool lacks the object that its type needs.
    """
    if not isinstance(tools, list):
        raise build_type_error("tools", list)
    flat_tools: list[dict[str, Any]] = []
    for index, tool in enumerate(tools):
        path = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise build_type_error(path, dict)
        kind = tool.get("type") or "function"  # some clients leave the type out
        if not isinstance(kind, str) or kind not in SCHEMA_MEMBERS:
            dropped.append(f"`{path}` ({shorten_name(kind)})")
            continue
        body = _check_member(tool, kind, dict, path)
        known = SCHEMA_MEMBERS[kind]
        dropped += list_unknown_members(body, known, f"tools[].{kind}")
        dropped += list_unknown_members(tool, ("type", kind), "tools[]")
        flat: dict[str, Any] = {"type": kind, **{name: body[name] for name in known if body.get(name) is not None}}
        if kind == "function":
            # Both members are required there. Without `strict` a schema is not enforced in Chat Completions, and is in
            # the Responses API.
            flat = {"parameters": None, "strict": False, **flat}
        match flat.get("format"):
            case {"type": "grammar", "grammar": dict(grammar)}:
                flat["format"] = {"type": "grammar", **grammar}
        flat_tools.append(flat)
    return flat_tools


def translate_tool_choice_to_responses(choice: object) -> object:
    """Returns a choice of Chat Completions in the form of the Responses API; None if there is none.

    Raises:
        InvalidRequest: the choice has none of OpenAI's forms.
    """
    match choice:
        case None | "none" | "auto" | "required":
            return choice
        case {"type": "function", "function": {"name": str(name)}}:
            return {"type": "function", "name": name}
        case {"type": "custom", "custom": {"name": str(name)}}:
            return {"type": "custom", "name": name}
        case {"type": "allowed_tools", "allowed_tools": {"mode": str(mode), "tools": list(allowed)}}:
            references = [translate_tool_choice_to_responses(one) for one in allowed]
            if all(isinstance(one, dict) and "name" in one for one in references):
                return {"type": "allowed_tools", "mode": mode, "tools": references}
    raise build_value_error("tool_choice", "has no form that the Responses API knows")


def list_unknown_members(value: Mapping[str, Any], known: Sequence[str], path: str) -> list[str]:
    """Returns how warnings name the members of an object that the other protocol does not have. A member that is null
    or false asks for nothing."""
    return [
        f"`{path}.{shorten_name(name)}`"
        for name, member in value.items()
        if name not in known and member is not None and member is not False
    ]


def shorten_name(name: object) -> str:
    """Returns the name of a type or member for an error or a warning. A client may choose it at any length."""
    text = name if isinstance(name, str) else "no name"
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[: MAX_SHOWN_CHARS - 1]}…"


def _check_member(value: Mapping[str, Any], name: str, kind: type, path: str) -> Any:
    """Returns a member of an object.

    Raises:
        InvalidRequest: the member is missing, empty, of another type or no name; `param` names it.
    """
    member, param = value.get(name), f"{path}.{name}"
    if member is None or member == "":
        raise build_missing_error(param)
    if not isinstance(member, kind):
        raise build_type_error(param, kind)
    return check_name(member, param) if isinstance(member, str) else member


def _find_chat_name(reference: Mapping[str, Any], listed_tools: Sequence[ListedTool]) -> str:
    """Returns the name by which a provider of Chat Completions knows the tool that a choice names.

    A choice has no namespace in OpenAI's types, so a name that only one namespace has means the tool there.
    """
    name, namespace = reference.get("name"), reference.get("namespace")
    if namespace is not None:
        return join_tool_name(namespace, name)
    named = [listed for listed in listed_tools if listed.tool.get("name") == name and not listed.is_hosted]
    in_no_namespace = [listed for listed in named if listed.namespace is None]
    return (in_no_namespace or named)[0].chat_name if named else str(name)


def _refuse_choice(reason: str) -> InvalidRequest:
    return build_value_error("tool_choice", reason, UNSUPPORTED)
