from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.context.plan.outline import QuotedPassage
from app.context.quote.quotation_message import render_quotation_message
from app.context.user_text.user_text_message import USER_TEXT_END, USER_TEXT_LABEL
from app.context.view.view_rendering import SUMMARY_PREAMBLE, render_dropped_notice, render_summary_section
from app.dialects.body.message import ChatMessage
from app.errors import InvalidRequest
from app.simulator.extractive_summary import EMPTY_SUMMARY
from app.simulator.question_answering import UNKNOWN_ANSWER
from app.simulator.simulated_model import SimulatedAnswer, answer_request
from tests.simulator.counting import RoughCounter

HISTORY = [
    {"role": "system", "content": "You are a careful assistant. Deployments happen on Tuesdays."},
    {"role": "user", "content": "Hi, my name is Ada and I live in Lyon."},
    {"role": "assistant", "content": "Noted: Hi, my name is Ada and I live in Lyon."},
    {"role": "user", "content": "The staging server listens on port 8443. Its TLS certificate expires on 2027-03-01."},
    {"role": "assistant", "content": UNKNOWN_ANSWER},
    {"role": "user", "content": "Which port does the production server use?"},
    {"role": "user", "content": "ConnectionRefusedError in /srv/app/worker.py line 88 when running `make migrate`."},
    {"role": "assistant", "content": "Noted: that."},
]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "unit": {"enum": ["celsius", "kelvin"]},
                "note": {"type": "string"},
            },
            "required": ["city", "days", "unit"],
        },
    },
}


def ask(
    content: str, *, history: list[dict[str, Any]] | None = None, window: int = 8192, **fields: Any
) -> SimulatedAnswer:
    messages = [*(HISTORY if history is None else history), {"role": "user", "content": content}]
    return answer_request({"model": "sim", "messages": messages, **fields}, window=window, counter=RoughCounter())


@pytest.mark.parametrize(
    ("question", "fact"),
    [
        ("What is my name?", "Ada"),
        ("Where do I live?", "Lyon"),
        ("Which port does the staging server use?", "8443"),
        ("When does the certificate of that server expire?", "2027-03-01"),
        ("Which error did I get in worker.py?", "line 88"),
        ("On which day do deployments happen?", "Tuesdays"),
        ("remind me of the staging port", "8443"),
    ],
)
def test_a_question_is_answered_with_what_the_prompt_shows(question: str, fact: str) -> None:
    assert fact in str(ask(question).text)


@pytest.mark.parametrize("question", ["What is the capital of France?", "What is the name of my dog?"])
def test_what_the_prompt_does_not_show_is_not_known(question: str) -> None:
    assert str(ask(question).text).endswith(UNKNOWN_ANSWER)


def test_a_question_is_never_taken_for_an_answer() -> None:
    assert "?" not in str(ask("Which port does the production server use?").text)


def test_a_fact_in_the_same_message_as_the_question_counts() -> None:
    assert "violet" in str(ask("My favourite colour is violet. What is my favourite colour?", history=[]).text)


def test_a_statement_is_noted_in_one_sentence() -> None:
    assert ask("The build number is 4711.").text == "Noted: The build number is 4711."


def test_the_same_request_gets_the_same_answer() -> None:
    assert ask("What is my name?") == ask("What is my name?")


def test_a_tool_named_in_the_text_is_called_with_what_the_text_gives() -> None:
    answer = ask("Please use get_weather for Paris, 3 days, in kelvin.", tools=[WEATHER])
    assert answer.finish_reason == "tool_calls"
    assert answer.text is None
    [call] = answer.tool_calls
    assert call["function"]["name"] == "get_weather"
    assert orjson.loads(call["function"]["arguments"]) == {"city": "Paris", "days": 3, "unit": "kelvin"}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_demanded_tool_is_called_whatever_the_text_says(choice: object) -> None:
    assert ask("Hello.", tools=[WEATHER], tool_choice=choice).tool_calls


@pytest.mark.parametrize("fields", [{"tool_choice": "none"}, {}])
def test_no_tool_is_called_when_none_is_wanted(fields: dict[str, Any]) -> None:
    text = "use get_weather for Paris" if fields else "The weather is fine."
    assert not ask(text, tools=[WEATHER], **fields).tool_calls


def test_several_named_tools_are_called_at_once_unless_that_is_forbidden() -> None:
    other = {"type": "function", "function": {"name": "get_time"}}
    text = "use get_time and get_weather for Oslo"
    assert [call["function"]["name"] for call in ask(text, tools=[WEATHER, other]).tool_calls] == [
        "get_time",
        "get_weather",
    ]
    assert len(ask(text, tools=[WEATHER, other], parallel_tool_calls=False).tool_calls) == 1


def test_a_tool_result_is_told() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "use get_weather for Paris"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "21 degrees"},
    ]
    answer = answer_request(
        {"model": "sim", "messages": messages, "tools": [WEATHER]}, window=8192, counter=RoughCounter()
    )
    assert "21 degrees" in str(answer.text)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "x"}, {"role": "tool", "tool_call_id": "a", "content": "y"}],
        [{"role": "assistant", "tool_calls": [{"id": "a"}]}, {"role": "user", "content": "x"}],
        [
            {"role": "assistant", "tool_calls": [{"id": "a"}, {"id": "b"}]},
            {"role": "tool", "tool_call_id": "a", "content": ""},
        ],
    ],
)
def test_a_call_without_result_or_a_result_without_call_is_refused(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(InvalidRequest, match="tool_calls"):
        answer_request({"model": "sim", "messages": messages}, window=8192, counter=RoughCounter())


def test_a_stop_sequence_ends_the_answer_before_it() -> None:
    answer = ask("The build number is 4711.", stop=["number"])
    assert answer.text == "Noted: The build "
    assert answer.finish_reason == "stop"


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_an_answer_is_cut_at_its_limit(field: str) -> None:
    limits: dict[str, Any] = {field: 5}
    answer = ask("The build number is 4711 and nothing else matters.", **limits)
    assert answer.finish_reason == "length"
    assert 0 < answer.completion_tokens <= 5


def test_a_prompt_over_the_window_is_refused_in_openais_words() -> None:
    with pytest.raises(InvalidRequest) as caught:
        ask("word " * 2000, history=[], window=1000)
    assert caught.value.build_body() == {
        "error": {
            "message": "This model's maximum context length is 1000 tokens. However, your messages resulted in "
            "2507 tokens. Please reduce the length of the messages.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }
    }


def test_a_limit_that_does_not_fit_beside_the_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="in the completion"):
        ask("Hello.", window=1000, max_tokens=990)


def transcript_of(*entries: tuple[str, str], mark: str = "0a1b2c3d") -> str:
    lines = [f"--- {mark} [{at}] {who}\n{text}" for at, (who, text) in enumerate(entries)]
    return (
        f"Summarize this.\n<transcript {mark}>\n" + "\n".join(lines) + f"\n</transcript {mark}>\nWrite the summary now."
    )


def test_a_summary_keeps_the_facts_of_a_fenced_transcript_with_their_speakers() -> None:
    padding = "Thank you so much, that was quite helpful indeed and very kind too. " * 3
    text = transcript_of(
        ("user", padding + "The invoice number is INV-20931."),
        ("assistant", padding + "We decided to refund 45 EUR because the parcel was lost."),
        ("tool result of lookup", '{"order": "A-77", "status": "lost"}'),
    )
    answer = ask(text, max_tokens=200)
    assert answer.is_summary
    assert "- user: The invoice number is INV-20931." in str(answer.text)
    assert "- assistant: We decided to refund 45 EUR" in str(answer.text)
    assert "A-77" in str(answer.text)
    assert "Thank you" not in str(answer.text)


def test_a_summary_stays_within_its_limit_and_is_not_cut_off() -> None:
    text = transcript_of(*[("user", f"Fact number {n} is {n * 7919}.") for n in range(300)])
    answer = ask(text, max_tokens=100)
    assert answer.completion_tokens <= 100
    assert answer.finish_reason == "stop"


def test_asking_to_summarize_a_conversation_summarizes_what_came_before() -> None:
    answer = ask("Please summarize our conversation so far.")
    assert answer.is_summary
    assert "8443" in str(answer.text)


def test_talking_about_a_summary_asks_for_none() -> None:
    assert not ask("The summary of the meeting got lost.").is_summary


def test_an_empty_transcript_still_gets_a_sentence() -> None:
    assert ask(transcript_of(("user", "…"))).text == EMPTY_SUMMARY


def test_facts_of_a_summary_can_be_recalled_from_it() -> None:
    padding = "I am so glad that you can help with this, it makes everything a lot easier for all of them. "
    facts = [f"The locker of colleague Number{n} has code {n * 7919}." for n in range(20)]
    text = transcript_of(*[("user", padding + fact) for fact in facts])
    summary = str(ask(text, max_tokens=2000).text)
    history = [{"role": "user", "content": f"Summary of the earlier conversation:\n{summary}"}]
    assert str(13 * 7919) in str(ask("What is the code of Number13's locker?", history=history).text)


@given(st.text(max_size=300))
def test_any_text_gets_an_answer(text: str) -> None:
    assert ask(text).text


def test_a_summary_in_front_of_a_question_is_context_and_no_wish_for_a_summary() -> None:
    summary = (
        "Summary of earlier conversation.\n- user: The code is 81.\n- user: Why?\n- assistant: Noted.\n- user: Go."
    )
    answer = ask(f"{summary}\n\nWhat is the code?", history=[])
    assert not answer.is_summary
    assert answer.text == "The code is 81."


@pytest.mark.parametrize(
    "said",
    ["- user: The code is 81.", "- assistant: Noted: The code is 81.", "* The code is 81.", "User: The code is 81."],
)
def test_what_is_recalled_is_said_without_labels(said: str) -> None:
    assert ask("What is the code?", history=[{"role": "user", "content": said}]).text == "The code is 81."


def test_of_a_long_statement_the_sentence_that_tells_most_is_noted() -> None:
    padding = "I went through all of it again with the others, and nobody had anything against it. " * 3
    assert ask(f"{padding}The build number is 4711.").text == "Noted: The build number is 4711."


@pytest.mark.parametrize(
    "question", ["What is the weight?", "What is the weight of the parcel?", "What does it weigh?"]
)
def test_a_word_of_the_same_family_answers_a_question(question: str) -> None:
    history = [{"role": "user", "content": "The parcel weighs 31 kg. It is blue."}]
    assert ask(question, history=history).text == "The parcel weighs 31 kg."


def test_a_title_ends_no_sentence() -> None:
    history = [{"role": "user", "content": "The parcel for Ms. Berg goes to Oslo. It is blue."}]
    assert ask("Where does the parcel go?", history=history).text == "The parcel for Ms. Berg goes to Oslo."


def test_of_two_facts_the_one_that_shares_most_words_is_told_alone() -> None:
    history = [{"role": "user", "content": "Alice lives in Oslo. Bob lives in Rome."}]
    assert ask("Where does Bob live?", history=history).text == "Bob lives in Rome."


def test_nothing_that_the_gateway_writes_around_facts_is_told() -> None:
    passage = QuotedPassage(seq=0, spans=((0, 24), (40, 64)), date="2026-11-25")
    said = ChatMessage.from_text("user", "The parcel weighs 31 kg. It goes by sea. The weight of the box is 2.")
    summary = SUMMARY_PREAMBLE + render_summary_section("- user: The parcel weighs 31 kg.", through_turn=2)
    frames = [
        render_quotation_message([(passage, said)]).text,
        summary + render_dropped_notice(3),
        f"{USER_TEXT_LABEL}- The parcel weighs 31 kg.\n{USER_TEXT_END}",
    ]
    for frame in frames:
        history = [{"role": "user", "content": frame}]
        assert ask("What is the weight of the parcel?", history=history).text == "The parcel weighs 31 kg."
        assert ask("What is in the conversation's background message?", history=history).text == UNKNOWN_ANSWER


@pytest.mark.parametrize("question", ["How is the weather in Oslo?", "Tell me the weather in Oslo"])
def test_a_question_that_a_tool_is_made_for_calls_it(question: str) -> None:
    [call] = ask(question, tools=[WEATHER], history=[]).tool_calls
    assert call["function"]["name"] == "get_weather"
    assert orjson.loads(call["function"]["arguments"])["city"] == "Oslo"
    assert not ask("How is Ada?", tools=[WEATHER], history=[]).tool_calls
