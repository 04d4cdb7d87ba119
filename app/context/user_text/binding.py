"""Rates how much a sentence of a user binds later answers. Pure.

Form comes before vocabulary: list items and short messages bind in every language. The words are few, of several
languages, and most count only where they make a command. A sentence that is missed is lost only where not all user
text fits; one that is taken by mistake costs its tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

BINDS: Final = 2
"""A prohibition, a rule, a name, an allergy, or what takes such a sentence back."""
MAY_BIND: Final = 1
"""A command, a list item, or a short message."""
MAX_RATED_CHARS: Final = 400
"""Longer sentences tell something."""
MAX_SHORT_MESSAGE_CHARS: Final = 120

LIST_ITEM: Final = re.compile(r"\s*(?:[-*\u2022\u2013+]|\(?\d{1,2}[.)]|\(?[a-z][.)])\s+", re.IGNORECASE)
LIST_ITEM_LINE: Final = re.compile(rf"^{LIST_ITEM.pattern}", re.IGNORECASE | re.MULTILINE)
_CLAUSE: Final = (
    r"(?:^|[,;:.!?(\u2013\u2014]\s*|\s-\s+|\b(?:and|but|so|then|also|just|actually|instead|on|please|bitte|und|aber|et|"
    r"mais|por\s+favor|per\s+favore)\s+)"
)
"""The beginning of a clause that may be a command."""
_PATTERNS: Final[Mapping[str, str]] = {
    "prohibition": rf"{_CLAUSE}(?:always|never(?!\s+mind)|don't|do\s+not|avoid|no\s+longer|no\s+more|stop(?=\s+\w+ing)|"
    r"only\s+(?!the\b|a\b|then\b)|under\s+no)\b|\boff[- ]limits\b|\bstrictly\b",
    "obligation": r"(?<!\bi\s)\bmust\s+(?!have\b)\w|\b(?:shall|may|can|should)\s+(?:always|never|not|only|now|again)\b|"
    r"\b(?:you|your|answers?|replies|responses?|texts?|messages?|letters?|lists?|code|it|they|this|that)\s+"
    r"(?:must|shall|should|may|can|need|have\s+to|don't|do\s+not|are\s+to)\b",
    "scope": r"\bfrom\s+(?:now|today|here|this\s+point|tomorrow)\s+on|\bgoing\s+forward\b|\bin\s+(?:the\s+)?future\b|"
    r"\buntil\s+further\b|\bat\s+all\s+times\b|\bwhenever\s+you\b|\bunless\s+i\b|\bwithout\s+(?:asking|my)\b|"
    r"\bask(?:ing)?\s+me\s+(?:first|before)\b|\b(?:ab|von)\s+(?:jetzt|sofort|nun|heute)\b|\bkünftig|\bin\s+zukunft\b|"
    r"\b(?:à|a)\s+partir\s+(?:de\b|d')|\bdésormais\b|\bdorénavant\b|\bde\s+ahora\b|\bde\s+agora\b|\bd'ora\s+in\b",
    "name": r"\b(?:call|address)\s+me\b|\brefer\s+to\s+me\b|\bmy\s+(?:full\s+)?name\b|\bi\s+go\s+by\b|"
    r"\bnenn(?:e|en\s+sie|t)?\s+mich\b|\bich\s+hei(?:ß|ss)e\b|\bappelle[sz]?-moi\b|\bje\s+m'appelle\b|\bll[aá]m[ae]+me\b|"
    r"\bme\s+llam[oae]\b|\bchiamami\b|\bmi\s+chiamo\b|\bchama-me\b|\bme\s+chame\b",
    "preference": r"\ball?[eé]rgi|\bintoleran|\bvegan|\bv[eé]g[eé]tari|\bhalal\b|\bkosher\b|"
    r"\bi(?:'d)?\s+(?:would\s+)?(?:prefer|hate|can(?:'t|not)\s+(?:stand|eat))\b|\bich\s+(?:bevorzuge|hasse|mag\s+kein)|"
    r"\bje\s+(?:préfère|déteste)\b|\bpref(?:iero|erisco|iro)\b|\b(?:odio|odeio|detesto)\b",
    "german": r"\b(?:immer|nie|niemals|keinesfalls|darfst|sollst|dürfen\s+sie)\b|^(?:bitte\s+)?kein|"
    r"\bmuss\b.*\bwerden\b|\bbleib(?:t|en)\b.*\bun\w",
    "romance": r"\b(?:toujours|jamais|siempre|nunca|jam[aá]s|sempre)\b|\bmai\s+\w|"
    r"^(?:por\s+favor,?\s+|s'il\s+(?:te|vous)\s+plaît,?\s+)?(?:no|não|non|ne|n'\w+)\s+\w|"
    r"\b(?:tu|vous)\s+(?:dois|devez|peux|pouvez)\b|\b(?:puedes|debes|devi|puoi|podes|deves)\b",
    "other scripts": r"\b(?:всегда|никогда|нельзя)\b|[必别別不][须須要得再许許]|[总總]是|永[远遠]|禁止|"
    r"必ず|常に|ください|ないで",
    "withdrawal": rf"{_CLAUSE}(?:forget|ignore|disregard|drop|scrap|cancel|lift|back\s+to)\b",
    "change": r"\bno\s+need\b|\bchanged?\s+my\s+mind\b|\bneed\s+not\b|\bneedn't\b|\bno\s+longer\b|\bworks\s+now\b|"
    r"\bcan\s+\w+\s+[^.!?]{1,60}\sagain\b|\b(?:is|are|'s)\s+(?:now\s+)?(?:fine|ok|okay|allowed|welcome|(?:not\s+)?possible)\b|"
    r"\bvergiss\b|\bnicht\s+mehr\b|\bwieder\b|\boublie[zr]?\b|\bfinalement\b|\bde\s+nouveau\b|\bolvida\b|\bya\s+no\b|"
    r"\bde\s+nuevo\b|\bdi\s+nuovo\b|\bnon\s+più\b|\bdimentica\b|\besquece\b|\bde\s+novo\b",
}
_BINDING: Final = tuple(map(re.compile, _PATTERNS.values()))
"""Each for itself, and for text in lower case: so the search is four times as fast as that for one long pattern."""
_COMMAND: Final = re.compile(
    r"^(?:\W*(?:please|and|also|so|ok|okay|bitte|merci\s+de|por\s+favor|per\s+favore|veuillez)\W+)*"
    r"(?:add|answer|ask|assume|begin|cite|end|explain|format|give|greet|include|keep(?!\s+in\s+mind)|leave|limit|list|"
    r"log|mention|name|offer|prefer|put|quote|refer|reply|respond|return|round|run|say|show|sign|skip|sort|speak|spell|"
    r"stick|suggest|translate|treat|use|warn|write|antworte|schreibe?|sprich|verwende|benutze?|nutze?|nenne?|halte|"
    r"vermeide|répond[sz]|répondez|écri[st]|écrivez|utilisez?|évitez?|gardez?|responde|escribe|usa|utiliza|evita|"
    r"rispondi|scrivi|mantieni|responda|escreva|evite)\b|^(?:no|without|kein\w*|ohne|sans|sin|sem|senza)\s"
)


def rate_sentence(text: str, *, is_list_item: bool = False, is_whole_message: bool = False) -> int:
    """Returns `BINDS`, `MAY_BIND`, or 0 for a sentence that binds nothing.

    Args:
        is_whole_message: the user said nothing else in the message.
    """
    if len(text) > MAX_RATED_CHARS or text.endswith(("?", "\uff1f")):
        return 0
    text = text.replace("\u2019", "'").lower()
    if any(pattern.search(text) for pattern in _BINDING):
        return BINDS
    is_short = is_whole_message and len(text) <= MAX_SHORT_MESSAGE_CHARS
    return MAY_BIND if is_list_item or is_short or _COMMAND.match(text) else 0
