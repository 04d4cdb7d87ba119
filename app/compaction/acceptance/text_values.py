"""Finds values in plain text by their shape, with the labels and units that the text gives them, and names. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

MAX_VALUE_CHARS = 200
"""A longer word is no value. The limit also bounds the time of the shapes' patterns, which may be quadratic in a word's
length."""
MAX_LABEL_DISTANCE_CHARS = 64
"""A label is searched in this many characters before its value."""
MAX_QUOTED_WORDS = 8
"""A longer quoted text is what somebody said, not a value."""
MIN_DISTINCTIVE_WORTH = 1.0
"""Values of shapes that are worth less are not searched for in tool results, and are never important: short numbers,
years, times, codes of capital letters. In prose they say nothing without a label or a unit."""
DATE_PHRASE_WORTH = 2.0

_UNSPACED_SCRIPTS = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uac00-\ud7af"
"""Characters of scripts that are written without spaces or attach endings to foreign words (Chinese, Japanese, Korean).
They end a word, so that an identifier between them is found."""
_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?|"
    r"Nov(?:ember)?|Dec(?:ember)?)"
)
_DATE_PHRASE = (
    rf"{_MONTH}\.? \d{{1,2}}(?:st|nd|rd|th)?(?:,? (?:19|20)\d\d)?\b"
    rf"|\d{{1,2}}(?:st|nd|rd|th)?(?: of)? {_MONTH}\b(?:,? (?:19|20)\d\d\b)?|{_MONTH},? (?:19|20)\d\d\b"
)
_LOWER_WORDS = r"(?<![^\s])(?:[a-z]+[,;]?(?: |\n))+"
_WORD = re.compile(
    rf"{_LOWER_WORDS}|(?P<date>\b(?:{_DATE_PHRASE}))"
    rf"|(?P<word>[$€£¥]?\d{{1,3}}(?:,\d{{3}})+(?:\.\d+)?%?|(?:[^\W{_UNSPACED_SCRIPTS}]|[./:@#%+~$€£¥&?=\\-])+)"
)
"""Ordinary words of the Latin alphabet are matched many at a time and passed over."""
_LEFT_TRIM_CHARS, _RIGHT_TRIM_CHARS = ":?=&%", ".:?=&-+~\\"

_VALUE_SHAPES: tuple[tuple[str, re.Pattern[str], float], ...] = (
    ("url", re.compile(r"(?:[a-z][a-z0-9+.-]*://|www\.)\S{3,}", re.IGNORECASE), 3.0),
    ("email", re.compile(r"[\w.+%-]+@[\w-]+(?:\.[\w-]+)+"), 3.0),
    ("timestamp", re.compile(r"\d{4}-\d{2}-\d{2}T[\d:.+Z-]*"), 1.0),
    ("date", re.compile(r"\d{4}-\d{2}-\d{2}|\d{1,2}[./]\d{1,2}[./]\d{2,4}|\d{4}/\d{1,2}/\d{1,2}"), 2.2),
    ("time", re.compile(r"\d{1,2}:\d{2}(?::\d{2})?(?:[ap]m|[+-]\d{1,2})?|\d{1,2}[ap]m", re.IGNORECASE), 0.9),
    ("amount", re.compile(r"[$€£¥]\d[\d.,]*\w?|\d[\d.,]*[€$£¥%]"), 2.0),
    ("year", re.compile(r"(?:19|20)\d\ds?"), 0.9),
    ("number", re.compile(r"[+-]?\d[\d.]*\d{3}|[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?"), 2.0),
    ("number", re.compile(r"[+-]?\d+\.\d+|[+-]?\d{2,3}"), 0.9),
    ("path", re.compile(r"(?:~|\.{1,2}|[A-Za-z]:)?[/\\][\w.@+~\\/-]*\w[\w.@+~\\/-]*|(?:[\w.@+-]+/){2,}[\w.@+-]*"), 2.2),
    ("path", re.compile(r"[\w.@+-]+/[\w.@+/-]*(?:\.\w{1,8}|\d)[\w.-]*"), 2.2),
    ("measure", re.compile(r"[+-]?\d+(?:\.\d+)?(?:[A-Za-z]{1,3}|(?:-[a-z]+)+)|\d+(?:-to)?-\d+[a-z]?"), 1.0),
    ("identifier", re.compile(r"(?=[^\d]*\d)(?=[\d\W_]*[^\W\d_])[#@]?\w[\w.:#-]{8,}\w"), 4.0),
    ("identifier", re.compile(r"(?=[^\d]*\d)(?=[\d\W_]*[^\W\d_])[#@]?\w[\w.:#-]{2,}\w|#\d+"), 3.0),
    ("identifier", re.compile(r"(?=[^\d]*\d)(?=[\d\W_]*[^\W\d_])[#@]?\w[\w.:#-]*\w|[A-Z0-9]+(?:[-_][A-Z0-9]+)+"), 1.6),
    ("code", re.compile(r"[A-Z]{3,10}"), 0.8),
    ("identifier", re.compile(r"_*[^\W_]+(?:_+[^\W_]+)+_*|\w+(?:\.\w+){1,6}|[a-z]+(?:[A-Z][a-z0-9]+)+|@\w{2,}"), 1.2),
)
"""Shapes of values: kind, pattern, worth. The first pattern that matches the whole word decides."""
_NO_VALUE = re.compile(r"\d+(?:st|nd|rd|th|TH)|[A-Za-z](?:\.[A-Za-z])+|[a-z]+\.[A-Z][a-z]*|\d+:[a-z].*")
"""Ordinals, numbers of lines, abbreviations such as "e.g", and two sentences without a space between them."""
_UNEXPLAINED = re.compile(r"\d+(?:\.\d+)?[A-Za-z]|\d+%|\d+(?:-to)?-\d+[a-z]?")
"""Measures that say nothing by themselves: "3x", "17%", "9-to-5"."""
_PLACE_IN_FILE = re.compile(r"(?<=\w\w):{1,2}\w[\w:-]*$")
_NUMERIC = re.compile(
    r"[$€£¥]\d[\d.,]*\w?|[+-]?(?:\d{1,4}|\d[\d,]*[.,][\d.,]*\d)(?:[A-Za-z]{1,3}|[%€$£¥]|(?:-[a-z]+)+)?"
)
"""Numbers and measures that are no identifiers: those have five digits or more, without separators."""

_COMMON = (
    "a about after again all already also always am an and any are around as at away back be because been before both "
    "but by can could did do does each either else even ever every few first for from get go going got had has have he "
    "her here hers him his how however i if in into is it its just last let like many may me might mine more most much "
    "my never next no not now of off often on once one only or other our ours out over own per please quite rather "
    "really right same she should since so some soon still such than that the their theirs them then there these they "
    "this those though through to today together tomorrow tonight too two under until up us very via was way we well "
    "were what when where whether which while who whole whom why will with within without would yes yesterday yet you "
    "your yours"
)
COMMON_WORDS = frozenset(_COMMON.split())
"""Words that are neither a label nor a unit, and no name at the beginning of a sentence."""
_NO_NAME_WORDS = (
    "absolutely according actually additionally afternoon alright anyway apr april ask assuming aug august awesome "
    "besides best boy bravo bye call cheers christ come congrats congratulations cool dad damn dear dec december "
    "definitely despite dr dude during evening everybody everyone exactly excellent feb february fine fri friday "
    "furthermore girl given god good goodbye gosh great greetings guys ha hello hence hey hi hmm honey huh jan "
    "january jesus jul july jun june kind listen look lord ma'am madam man mar march maybe meanwhile miss mom mon "
    "monday morning mr mrs ms nice night nope note nov november oct october oh ok okay perfect perhaps prof regards "
    "remember sat saturday say see sep sept september shall sincerely sir sorry sun sunday sure sweetie talk tell "
    "thank thanks therefore think thu thursday thus tue tuesday uh um unlike wait want wed wednesday welcome whenever "
    "wherever wow yeah yep yo "
)
_NO_NAMES = COMMON_WORDS.union(_NO_NAME_WORDS.split())
"""Words that are no names even if they are written with a capital letter: greetings, exclamations, titles, days."""

_LABEL_WORDS = r"[^\W\d_][\w-]*(?: [^\W\d_][\w-]*){0,2}"
_NAMING_NOUNS = (
    r"account|apartment|apt|batch|booking|branch|build|bus|case|chapter|channel|code|commit|confirmation|customer|"
    r"email|employee|episode|ext|extension|flight|gate|id|invoice|issue|item|key|level|line|lot|model|no|number|order|"
    r"page|phone|pin|platform|port|postcode|pr|ref|reference|release|reservation|revision|room|route|row|season|seat|"
    r"section|serial|size|sku|step|suite|table|ticket|token|track|tracking|train|unit|user|username|version|zip"
)
_LABEL = re.compile(
    # `order id: 7`, `**Order id:** 7`, `"order_id": 7`, `order_id = 7`
    rf"(?<![\w'’-])(?P<marked>{_LABEL_WORDS})[*_`\"')]{{0,3}} ?[:=][*_`\"'(\[ ]{{0,4}}$"
    # `my account number is 7`
    rf"|(?:\b(?:my|our|your|his|her|their|its|the)|\w['’]s) (?P<said>{_LABEL_WORDS}) (?:is|are|was|were)(?: now)? "
    r"[\"'`“*]{0,3}$"
    # `port 8080`, `order number 7`, `order #7`
    rf"|(?<![\w-])(?P<noun>(?:{_NAMING_NOUNS})(?: (?:number|no\.?|id|code))?) ?[\"'`“*#]{{0,3}}$",
    re.IGNORECASE,
)
_PLURAL = re.compile(r"[ -]([a-z]{2,13}[a-rt-z]s|people|children|men|women|feet|[mb]illion|thousand)(?![\w'’])")
_MAGNITUDE = re.compile(r"[ -]([mb]illion|trillion|thousand)(?![\w'’])")
_NOUN = re.compile(r" ([a-z]{3,15})(?![\w'’])")
_UNITS = (
    (re.compile(r"\d{1,4}|\d{1,3}(?:,\d{3})+|\d+\.\d+"), _PLURAL),
    (re.compile(r"[$€£¥][\d.,]+"), _MAGNITUDE),
    (re.compile(r"[\d.,]+%"), _NOUN),
)
"""Numbers that may have a unit, and the words that may be one: "38 years", "$2 million", "17% discount". A longer
number is an identifier."""
_QUOTED_TEXT = re.compile(r'"([^"\n]{2,80})"|“([^”\n]{2,80})”|「([^」\n]{2,80})」|`([^`\n]{2,80})`')
_SPEECH_ENDS = (".", "!", "?", ",", "…", "-")
_NAME_WORD = r"[A-Z][\w-]*"
_INTRODUCED_NAME = re.compile(
    rf"\b(?i:my name is|nickname is)\s+([^\W\d_][\w'’-]*(?:\s{_NAME_WORD}){{0,2}})"
    rf"|\b(?i:i am called|call me|named|called)\s+({_NAME_WORD}(?:\s{_NAME_WORD}){{0,2}})"
)
_CAPITALISED_RUN = re.compile(r"(?<![\w.@#/-])(?<!\w['’])[^\W\d_a-z][\w'’-]*(?: [^\W\d_a-z][\w'’-]*)*")
_HEADING_END = re.compile(r"[*_\"]{0,3}:")
_GAP_IN_SENTENCE = " \t*_([,;—–"
_TITLE_BEFORE = re.compile(r"\b(?:Mr|Mrs|Ms|Dr|Prof|St)\.? ?$")
LOWER_WORD = re.compile(r"[a-z]{2,}")


class TextValue(NamedTuple):
    """A value of a text.

    Attributes:
        label: what the text calls the value; blank if it does not.
        text: the value.
        unit: what a number counts, such as "years"; blank if there is a label or no such word.
        worth: the worth of its shape.
    """

    label: str
    text: str
    unit: str
    worth: float


def find_text_values(text: str) -> Iterator[TextValue]:
    """Yields the values of a text, in their order.

    A short number, a time or a year without a label or a unit is left out: nobody could tell what it stands for.
    """
    for match in _WORD.finditer(text):
        if match.lastgroup is None:
            continue
        if match.lastgroup == "date":
            yield TextValue("", match.group(), "", DATE_PHRASE_WORTH)
            continue
        raw = match.group()
        label, word = _split_assignment(raw.lstrip(_LEFT_TRIM_CHARS).rstrip(_RIGHT_TRIM_CHARS))
        # `src/app.py:12`, `tests/test_app.py::test_start`: a place in a file.
        word = _PLACE_IN_FILE.sub("", word) if "/" in word and "://" not in word else word
        worth = rate_word(word)
        if worth is None:
            continue
        label = label or _find_label(text, match.start())
        unit = "" if label or not raw.endswith(word) else _find_unit(text, match.end(), word)
        if label or unit or (worth >= MIN_DISTINCTIVE_WORTH and not _UNEXPLAINED.fullmatch(word)):
            yield TextValue(label, word, unit, worth)


def is_unexplained_number(value: TextValue) -> bool:
    """Whether a value is a number or a date in words that has neither label nor unit. Results have many of them."""
    is_number = " " in value.text or _NUMERIC.fullmatch(value.text) is not None
    return is_number and not value.label and not value.unit


def split_unit(text: str) -> tuple[str, str]:
    """Splits "38 years" into number and unit; the unit is blank for any other text."""
    word, _, unit = text.partition(" ")
    return (word, unit) if unit and _find_unit(text, len(word), word) == unit else (text, "")


def rate_word(word: str) -> float | None:
    """Returns the worth of a word by its shape; None for an ordinary word."""
    if len(word) < 2 or len(word) > MAX_VALUE_CHARS or " " in word or (word.isalpha() and word.islower()):
        return None
    if _NO_VALUE.fullmatch(word):
        return None
    for _, shape, worth in _VALUE_SHAPES:
        if shape.fullmatch(word):
            return worth
    return None


def _find_label(text: str, start: int) -> str:
    """Finds what a text calls the value that starts at `start`."""
    match = _LABEL.search(text, max(0, start - MAX_LABEL_DISTANCE_CHARS), start)
    if match is None:
        return ""
    # The first word of a text with a colon behind it is often the name of the speaker.
    if match.lastgroup == "marked" and match.start() == 0 and match.group("marked").istitle():
        return ""
    words = match.group(match.lastgroup or 0).split(" ")
    # In "note that my order id: 7" the label is what follows the last common word.
    first = max((at + 1 for at, word in enumerate(words) if word.casefold() in COMMON_WORDS), default=0)
    label = " ".join(words[first:])
    return label.casefold() if " " in label or label.istitle() else label


def _find_unit(text: str, end: int, word: str) -> str:
    for number, unit in _UNITS:
        if number.fullmatch(word):
            match = unit.match(text, end)
            return "" if match is None or match.group(1) in COMMON_WORDS else match.group(1)
    return ""


def _split_assignment(word: str) -> tuple[str, str]:
    """Splits `key=value` and `key:value` into key and value; the key is blank for any other word."""
    # The colon of a URL separates no key.
    if "://" in word:
        return "", word
    for sign in "=:":
        key, separator, value = word.partition(sign)
        if separator and value and key.replace("_", "").replace("-", "").isalpha() and len(key) > 1:
            return key, value.lstrip(_LEFT_TRIM_CHARS)
    return "", word


def find_proper_names(text: str) -> Iterator[str]:
    """Yields proper names: capitalised words inside a sentence, or several capitalised words in a row."""
    for match in _CAPITALISED_RUN.finditer(text):
        words = [_strip_possessive(word) for word in match.group().split(" ")]
        # What a colon follows is a heading, or the name of a speaker.
        if (_starts_sentence(text, match.start()) and len(words) == 1) or _HEADING_END.match(text, match.end()):
            continue
        # The first word of a sentence may be any word; "Hey Mel" and "Since Seattle" are one word each.
        yield from _split_names(words)


def _split_names(words: Sequence[str]) -> Iterator[str]:
    """Yields the names in a run of capitalised words: words that are no names separate them."""
    name: list[str] = []
    for word in [*words, ""]:
        if _is_name_word(word):
            name.append(word)
            continue
        if name:
            yield " ".join(name[:4])
        name = []


def _strip_possessive(word: str) -> str:
    return re.sub(r"['’]s$|-[a-z].*$|[-'’]+$", "", word)


def _is_name_word(word: str) -> bool:
    # The second character tells "Anna" from "AI-driven".
    return (
        2 < len(word) <= 40
        and word[0].isupper()
        and (word[1].islower() or word[1] in "'’")
        and re.fullmatch(r"[^\W\d_]+(?:['’-][^\W\d_]{2,})*", word) is not None
        and word.casefold() not in _NO_NAMES
    )


def _starts_sentence(text: str, start: int) -> bool:
    before = text[max(0, start - 24) : start].rstrip(_GAP_IN_SENTENCE)
    # Any sign but these may end a sentence, line breaks included; the full stop of a title does not.
    return not before or not (before[-1].isalnum() or _TITLE_BEFORE.search(before) is not None)


def find_quoted_texts(text: str) -> Iterator[str]:
    """Yields the texts between quotation marks or backticks that may be values. Whole sentences are speech."""
    for match in _QUOTED_TEXT.finditer(text):
        quoted = " ".join(next(filter(None, match.groups())).split())
        if quoted and not quoted.endswith(_SPEECH_ENDS) and quoted.count(" ") < MAX_QUOTED_WORDS:
            yield quoted


def find_introduced_names(text: str) -> Iterator[str]:
    """Yields the names after phrases such as "my name is" or "called"."""
    for match in _INTRODUCED_NAME.finditer(text):
        name = match.group(1) or match.group(2)
        if name.split()[0].casefold() not in _NO_NAMES:
            yield name
