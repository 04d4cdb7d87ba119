"""The wording of standing requests: what makes a sentence of a user a rule for later answers, and what it is about.

The patterns are matched against one sentence. A pattern for a word that is also common in other talk ("always",
"don't") asks for the place of the word: at the beginning of a clause, or before a verb that one uses to an assistant.
All quantifiers are bounded, so a match takes linear time.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_CLAUSE: Final = (
    r"(?:^|[,;:.!(\u2013\u2014-]\s*|\b(?:and|but|so|then|please|also|just|oh|ok|okay|way|first|second|third|finally|"
    r"that\s+you|on|forward|future)\s+)(?:please\s+|kindly\s+)?"
)
"""The beginning of a clause that asks for something."""

_VERB: Final = (
    r"(?:add|address\s+me|answer|apologi[sz]e|ask\s+(?:me|for|before|first)|assume|avoid|book|bring\s+up|buy|call\s+me|"
    r"capitali[sz]e|change|check|cite|commit|confirm|contact|convert|delete|deploy|disclose|discuss|double-check|edit|"
    r"email|end|explain|express|force-push|format|give\s+me|greet|include|install|keep|label|limit|list|mention|"
    r"merge|modify|offer|order|output|overwrite|prefix|propose|provide|publish|push|quote|recommend|refer\s+to|remind|"
    r"reply|report|respond|reveal|round|run|schedule|send|share|shorten|show|sign|speak|spell|start|stick\s+to|store|"
    r"suggest|summari[sz]e|talk\s+to\s+me|tag|translate|treat|use|verify|warn|wrap|write)\b"
)
"""Verbs that one uses to an assistant. "Tell" and "leave" are left out: people say "don't tell him" to each other."""

_STYLE: Final = (
    r"(?:abbreviations?|acronyms?|adverbs|amounts?|answers?|bullets?|bullet\s+points?|buzzwords|pleasantries|preambles?|introductions?|intros?|caps|clich[eé]s|code|"
    r"comments?|currency|currencies|dates?|disclaimers?|distances|emails|emojis?|exclamation\s+(?:marks|points)|"
    r"examples?|explanations?|footnotes|format(?:ting)?|greetings?|headings?|headers?|humou?r|indentation|jargon|"
    r"jokes|language|lists?|links?|markdown|measurements?|notation|numbers|output|paragraphs?|prices?|pronouns?|"
    r"quotes|replies|reply|responses?|sentences?|slang|small\s+talk|spelling|style|summaries|summary|tables?|tabs|"
    r"temperatures?|times?|timestamps|tone|units?|variables?|words)\b"
)
"""What a rule about the form of answers speaks of."""

_LANGUAGE: Final = (
    r"(?:arabic|bengali|chinese|czech|danish|dutch|english|finnish|french|german|greek|hebrew|hindi|hungarian|indonesian|"
    r"irish|italian|japanese|korean|latin|mandarin|norwegian|persian|polish|portuguese|romanian|russian|spanish|swahili|"
    r"swedish|thai|turkish|ukrainian|urdu|vietnamese|welsh|deutsch|englisch|französisch|spanisch|italienisch|français|"
    r"anglais|allemand|espagnol|español|inglés|francés|alemán)\b"
)

_LATER: Final = (
    r"\b(?:from\s+(?:now|today|here|this\s+point|tomorrow)\s+on(?:wards?)?|from\s+here\s+on\s+out|going\s+forward|"
    r"moving\s+forward|in\s+future\s*,|in\s+(?:the\s+)?future,?\s+(?:please|always|never|don't|do\s+not|answers?|"
    r"replies|messages|responses|i\s+want|i'd|you)\b|henceforth|until\s+(?:further\s+notice|i\s+(?:say|tell\s+you)\s+otherwise)|"
    r"for\s+the\s+rest\s+of\s+(?:this|our|the)\s+(?:chat|conversation|session|project|discussion)|"
    r"for\s+all\s+(?:future|your|further)\s|throughout\s+(?:this|our)\s+(?:chat|conversation|session)|"
    r"in\s+(?:all|each|every(?:\s+one)?)\s+(?:of\s+)?(?:your\s+|future\s+|my\s+)?(?:answers?|replies|reply|responses?|"
    r"messages?|emails?|summaries|summary)|by\s+default,?\s|as\s+a\s+(?:standing\s+|general\s+)?rule\b|"
    r"standing\s+(?:rule|instruction|request|order)|under\s+no\s+(?:circumstances?|conditions?)|(?:as\s+of|starting)\s+(?:today|now|tomorrow),?\s|unless\s+i\s+(?:ask|say|tell|request|"
    r"explicitly|specifically)|without\s+(?:asking\s+me|my\s+(?:ok|okay|approval|permission|consent|go-ahead)))"
)
"""Words that say for how long a rule holds."""

_NO_RULE_AFTER: Final = (
    r"(?!(?:again|a|about|an|any|as|at|be\s+the\s+same|because|been|before|better|both|better|but|can|could|did|"
    r"does|ever|fear|felt|found|fun|get\s+(?:old|tired)|gonna|good|got|had|has|happened|happy|have\s+i|heard|he|i|if|"
    r"in|is|it|knew|know|known|liked|loved|made|met|mind|mattered|more|nice|not|on|once|one|only|quite|really|said|"
    r"saw|say\s+never|seemed|seen|she|so|some|somebody|someone|something|surprised|that|the|there|they|this|thought|"
    r"to|told|too|took|trust|was|went|were|when|where|with|worked|would|you|your|\w+ing|\w{2,}(?<!ne)(?<!exc)(?<!emb)ed)"
    r"\b|[,.!?]|$)"
)
"""After "always" or "never" these words show that the clause tells something and asks for nothing."""


class Wording(NamedTuple):
    """One wording of standing requests."""

    strength: int
    """3: a prohibition or an allergy. 2: a rule or a name. 1: a preference."""
    words: frozenset[str]
    """A sentence without any of these words is not matched, which saves most of the time."""
    pattern: re.Pattern[str]


def _make_wording(strength: int, words: str, pattern: str) -> Wording:
    return Wording(strength, frozenset(words.split()), re.compile(pattern))


WORDINGS: Final = (
    # Prohibitions and allergies: what does most harm when it is forgotten.
    _make_wording(3, "never", rf"{_CLAUSE}never,?\s+(?:ever,?\s+)?{_NO_RULE_AFTER}\w"),
    _make_wording(
        3,
        "not never mustn't",
        r"\byou\s+(?:(?:must|may|should|shall)\s+(?:not|never)|mustn't|can\s+never|are\s+(?:never|not)\s+(?:allowed\s+)?"
        r"to)\s+\w",
    ),
    _make_wording(3, "ever", rf"{_CLAUSE}(?:don't|do\s+not|dont)\s+ever\s+\w"),
    _make_wording(
        3, "never want", r"\bi\s+(?:never|don't\s+ever)\s+want\s+(?:you\b|any\b|to\s+(?:see|read|hear)\s+any\b)"
    ),
    _make_wording(
        3,
        "circumstances circumstance condition conditions off-limits limits forbidden prohibited",
        r"\b(?:(?:under\s+no|not,\s+under\s+any|never,\s+under\s+any)\s+(?:circumstances?|conditions?)|off[ -]limits|"
        r"strictly\s+(?:forbidden|prohibited))\b",
    ),
    _make_wording(
        3,
        "allergic intolerant vegan vegetarian coeliac celiac diabetic",
        r"\bi(?:'m|\s+am)\s+(?:\w+\s+){0,2}(?:allergic|intolerant|vegan|vegetarian|coeliac|celiac|diabetic)\b",
    ),
    _make_wording(
        3,
        "allergy allergies intolerance coeliac celiac",
        r"\bi\s+have\s+(?:an?\s+)?(?:[\w-]+\s+){0,3}(?:allergy|allergies|intolerance|coeliac|celiac)\b",
    ),
    _make_wording(
        3,
        "allergisch allergique alérgico alérgica alergico alergica",
        r"\b(?:ich\s+bin|je\s+suis|soy)\s+(?:\w+\s+)?(?:allergisch|allergique|al[eé]rgic[oa])\b",
    ),
    _make_wording(3, "eat", r"\bi\s+(?:can't|cannot|don't|do\s+not|never)\s+eat\b(?!\s+(?:it|that|this|them)\b)"),
    # Rules for all later answers.
    _make_wording(
        2,
        "rule preference request instruction",
        r"^(?:[\w']+\s+){0,2}(?:rule|preference|request|instruction)(?:\s+(?:one|number\s+\w+|#?\d+))?\s*:\s*\w"
        r"|\bmy\s+rule\s+is\b",
    ),
    _make_wording(
        2,
        "important crucial vital essential critical",
        r"\b(?:important|crucial|vital|essential|critical)\s+(?:to|that\s+you)\s+(?:always|never)\b",
    ),
    _make_wording(
        2,
        "when if",
        rf"^(?:when|if)\s+you(?:'re|\s+are)?\s+(?:unsure|not\s+sure|{_VERB})[^,?]{{0,80}},\s*(?:please\s+)?"
        rf"(?:always\b|never\b|don't\b|do\s+not\b|say\b|{_VERB})",
    ),
    _make_wording(
        2,
        "should must",
        rf"^(?:all|your|the|any|every)?\s*(?:[\w-]+\s+)?{_STYLE}\s+(?:should|must)\s+(?:always\s+|never\s+|not\s+)?(?:be|end|"
        r"start|begin|have|use|include|contain|fit|follow|stay)\b",
    ),
    _make_wording(2, "always", rf"{_CLAUSE}always,?\s+{_NO_RULE_AFTER}\w"),
    _make_wording(
        2,
        "now today here point tomorrow forward future henceforth otherwise notice rest further throughout each every "
        "all circumstances circumstance condition conditions throughout "
        "default rule standing unless without",
        _LATER,
    ),
    _make_wording(
        2,
        "always",
        r"\b(?:you\s+(?:must|should|shall|have\s+to|need\s+to)\s+always|"
        r"i\s+always\s+(?:want|need|expect|like))\b",
    ),
    _make_wording(
        2, "must have need are", rf"\byou\s+(?:must|have\s+to|need\s+to|are\s+to)\s+{_VERB}(?!\s+(?:her|him|them)\b)"
    ),
    _make_wording(
        2,
        "time whenever when if",
        r"\b(?:every\s+time|each\s+time|whenever|when|if)\s+(?:i|we)\s+(?:ask|say|mention|send|write|give|paste|share|type|"
        r"request|upload|post|quote|talk\s+about)\b[^,?]{1,120},\s*(?:then\s+)?(?:(?:please|always|never|don't|do\s+not|"
        rf"you\s+(?:should|must))\s+)*(?:{_VERB}|give\b|tell\s+me\b)",
    ),
    _make_wording(2, "time whenever", rf"\b(?:every\s+time|each\s+time|whenever)\s+you\s+{_VERB}"),
    _make_wording(
        2,
        "don't dont not stop avoid refrain",
        rf"{_CLAUSE}(?:don't|do\s+not|dont|stop|avoid|refrain\s+from)\s+(?:[\w-]+\s+){{0,2}}{_STYLE}",
    ),
    _make_wording(
        2,
        "don't dont not",
        rf"{_CLAUSE}(?:don't|do\s+not|dont)\s+(?:give\s+me\s+(?:\w+\s+)?(?:advice|tips|warnings|lectures)\b|(?!(?:mention\s+it|ask\s+me|start|run|push|keep|stop|change|call\s+me|order|give\s+me|"
        rf"talk\s+to\s+me|show|check)\b){_VERB})",
    ),
    # How the user wants to be called.
    _make_wording(
        2, "name name's", r"\bmy\s+(?:(?:full|first|last|real)\s+)?name(?:'s|\s+is)\s+(?!not\b|on\b|in\b|the\b)\w"
    ),
    _make_wording(
        2,
        "call calls",
        r"(?:^|[,;:.!(]\s*|\b(?:you\s+can|please|and|but|just|everyone|friends|people|should|on|bitte)\s+)calls?\s+me\s+"
        r"(?:by\s+my\s+|[\"'\u201c]?(?!(?:later|back|tomorrow|tonight|crazy|when|if|up|soon|again|now|anytime|any|old|"
        r"stupid|asap|names|maybe|after|before|until|at|a|an|in|on|right|this|that|the|every|once|as\s+soon|and|but|or|from|"
        r"instead|to|for|with|your|my|his|her|so|whatever|what|names?)\b)[\w.]+(?:\s+[\w.]+)?[\"'\u201d]?(?:$|[.,;!)]|\s+(?:from|and|please|"
        r"instead|in|not|now|always|ok)\b))",
    ),
    _make_wording(
        2,
        "address refer pronouns go call",
        r"\b(?:address\s+me|(?:don't|do\s+not)\s+call\s+me\s+(?:by|mr|mrs|ms|miss|sir|madam|ma'am)\b|refer\s+to\s+the\s+\w+\s+(?:only\s+)?as|refer\s+to\s+me\s+as|my\s+(?:\w+\s+)?pronouns\s+are|i\s+go\s+by\s+(?!myself\b|the\s+(?!name\b)|"
        r"train|bus|car|bike|foot))",
    ),
    _make_wording(
        2,
        "nenn nenne nennen name heiße heisse appelle appelez appelle-moi appelez-moi m'appelle nom llámame llamame "
        "llamo nombre",
        r"\b(?:nenn(?:en?)?\s+(?:sie\s+)?mich|mein\s+name\s+ist|ich\s+hei(?:ß|ss)e|appelle[sz]?-moi|je\s+m'appelle|"
        r"mon\s+nom\s+est|ll[aá]mame|me\s+llamo|mi\s+nombre\s+es)\s+\w",
    ),
    # Preferences, and facts that the user asks to be remembered.
    _make_wording(
        1,
        "prefer preference",
        r"\b(?:i|we)(?:'d|\s+would)?\s+(?:(?:much|really|always|generally|usually|strongly|also|still|definitely)\s+)?prefer\b"
        r"|\bmy\s+(?:(?:strong|personal|general)\s+)?preference\s+(?:is|would\s+be)\b",
    ),
    _make_wording(
        1,
        "like want need rather",
        rf"\bi(?:'d|\s+would)?\s+(?:like|want|need|rather)\s+(?:for\s+)?you\s+(?:to\s+)?(?:always\b|never\b|only\b|not\b|"
        rf"didn't\b|{_VERB}(?<!keep))"
        rf"|\bi(?:'d|\s+would)\s+(?:like|rather)\s+you\s+(?:to\s+)?keep\b",
    ),
    _make_wording(
        1, "want", rf"\bi\s+(?:do\s+not|don't)\s+want\s+(?:you\s+to\s+(?:ever\b|{_VERB})|(?:to\s+see\s+)?any\b)"
    ),
    _make_wording(
        1,
        "want like need expect hate dislike stand",
        r"\bi(?:'d|\s+would)?\s+(?:always\s+)?(?:want|like|need|expect|hate|dislike|don't\s+like|do\s+not\s+like|can't\s+"
        r"stand)\s+(?:to\s+(?:see|get|have)\s+)?(?:all|my|your|every|any|short|long|brief|concise|detailed|simple|plain)\s+"
        rf"(?:the\s+)?(?:[\w-]+\s+)?{_STYLE}"
        r"|\bi\s+only\s+(?:want|need|accept|eat|drink|fly|read|use)\b",
    ),
    _make_wording(
        1,
        "remember mind forget",
        r"(?:^|[,;:.!]\s*|\b(?:and|but|please|also)\s+)(?:please\s+)?(?:remember|keep\s+in\s+mind|bear\s+in\s+mind|don't\s+"
        # What somebody shall remember of other things is a fact: quotations find it.
        r"forget|do\s+not\s+forget),?\s+(?:to\s+\w|that\s+(?:i|i'm|i've|i'd|you|your|we|no|all|each|every|any)\b)",
    ),
    _make_wording(
        1,
        "sure",
        rf"^(?:please\s+)?be\s+sure\s+to\s+{_VERB}|"
        r"\b(?:make|be)\s+sure\s+(?:that\s+)?(?:(?:you|to)\s+(?:always|never)\b|(?:all|every|your|each)\b)"
        rf"|\bmake\s+sure\s+(?:that\s+)?(?:to\s+|you\s+){_VERB}",
    ),
    _make_wording(
        1,
        "keep make",
        rf"{_CLAUSE}(?:keep|make)\s+(?:(?:your|all|the|every|my)\s+)?(?:[\w-]+\s+)?{_STYLE}"
        r"|^(?:please\s+)?keep\s+(?:it|things|everything)\s+(?:very\s+)?(?:short|brief|concise|simple|formal|informal|"
        r"professional|casual)\b",
    ),
    _make_wording(
        1,
        "be",
        r"(?:^|\byou\s+to\s+)(?:please\s+)?be\s+(?:as\s+|more\s+|very\s+)?(?:brief|concise|succinct|formal|informal|terse)\b",
    ),
    _make_wording(
        1,
        "use stick",
        rf"{_CLAUSE}(?:only\s+)?(?:use|stick\s+(?:to|with))\s+(?:only\s+)?(?!(?:the|this|these|those|that|it|a|an)\b)"
        rf"(?:(?:[\w/-]+\s+){{0,4}}{_STYLE}|(?:[\w/-]+\s+){{1,4}}throughout\b|(?:british|american|simple|plain)\s+english\b)",
    ),
    _make_wording(
        1,
        "answer reply respond speak talk write",
        rf"^(?:please\s+)?(?:only\s+)?(?:answer|reply|respond|speak|talk|write)\s+(?:to\s+me\s+)?(?:only\s+)?in\s+(?:\w+\s+)?"
        rf"{_LANGUAGE}"
        r"|^(?:please\s+)?(?:answer|reply|respond)\s+(?:to\s+me\s+)?(?:only|always|briefly|concisely|formally|in|with|using)"
        r"\b(?!\s+(?:yes|no|the\s+(?:letter|number|name))\b)",
    ),
    _make_wording(
        1,
        "no",
        rf"^no\s+(?:more\s+)?(?:[\w-]+\s+)?{_STYLE}(?:\s+or\s+\w+)?\s*(?:,?\s*(?:please|ever|thanks|at\s+all|in\s+.{{1,40}}))?"
        r"[.!]?$|^no\s+(?:more\s+)?[\w-]+(?:\s+[\w-]+){0,4},?\s+(?:please|ever)\b",
    ),
    _make_wording(1, "only please", rf"^(?:please\s+)?(?:[\w-]+\s+){{1,2}}{_STYLE}\s*,?\s*(?:only|please)[.!,]?$"),
    _make_wording(
        1,
        "only",
        rf"^(?:please\s+)?only\s+(?:book|buy|cite|mention|offer|order|propose|recommend|suggest|use)\b|^only\s+(?:[\w-]+\s+){{0,2}}{_STYLE}",
    ),
    _make_wording(2, "treat", rf"{_CLAUSE}treat\s+(?:everything|anything|all|every|any)\b"),
    _make_wording(1, "act behave", r"^please\s+(?:act|behave)\s+as\b"),
    _make_wording(1, "speak talk", r"^(?:please\s+)?(?:speak|talk)\s+to\s+me\s+(?:as|like)\b"),
    _make_wording(1, "everything", r"\bi\s+(?:want|need)\s+everything\s+in\b"),
    _make_wording(
        1, "skip leave omit", rf"^(?:please\s+)?(?:skip|leave\s+out|omit)\s+(?:all|the|your|any)\s+(?:\w+\s+)?{_STYLE}"
    ),
    _make_wording(1, "more", r"^no\s+more\s+than\s+(?:[a-z]+|\d+)\s+\w"),
    _make_wording(
        1,
        "stop",
        rf"{_CLAUSE}stop\s+(?:adding|apologi[sz]ing|calling\s+me|including|mentioning|recommending|repeating|suggesting|using)\b",
    ),
    # The same in German, French and Spanish.
    _make_wording(
        2,
        "ab von künftig zukunft",
        r"\b(?:ab\s+(?:jetzt|sofort|heute)|von\s+(?:nun|jetzt)\s+an|künftig|in\s+zukunft)\b",
    ),
    _make_wording(
        2,
        "immer nie niemals nur kein keine keinen keiner auf nicht",
        r"\b(?:antworte|schreibe?|sprich|verwende|benutze?|nutze?|schlage?|erwähne?|empfiehl|gib|zeige?)\b[^.?!]{0,60}\b(?:immer|"
        r"nie|niemals|nur|keine[nmr]?|auf\s+(?:deutsch|englisch|französisch|spanisch))\b"
        r"|\b(?:du\s+(?:darfst|sollst|musst)|sie\s+(?:dürfen|sollen|müssen))\s+[^.?!]{0,60}\b(?:nie|niemals|nicht|immer|"
        r"keine[nmr]?)\b|^bitte\s+(?:immer|nie|niemals|nur|keine[nmr]?)\b|^(?:immer|niemals)\s+\w",
    ),
    _make_wording(
        1,
        "bevorzuge möchte merk merke merken denk vergiss",
        r"\bich\s+(?:bevorzuge|möchte,?\s+dass\s+(?:du|sie))\b|\b(?:merke?\s+dir|denk\s+daran|vergiss\s+nicht|merken\s+sie\s+sich)\b",
    ),
    _make_wording(
        2,
        "partir dorénavant désormais adelante",
        r"\b(?:(?:à|a)\s+partir\s+(?:de\s+(?:maintenant|ahora|hoy)|d'aujourd)|dorénavant|désormais|de\s+ahora\s+en\s+adelante)",
    ),
    _make_wording(
        2,
        "toujours jamais en uniquement pas n'utilise n'utilisez n'oublie n'oubliez",
        r"\b(?:réponds|répondez|écris|écrivez|utilisez?|emploie)\b[^.?!]{0,40}\b(?:toujours|uniquement|en\s+(?:français|anglais|"
        r"allemand|espagnol))\b|(?:^|[,;:]\s*)(?:s'il\s+(?:te|vous)\s+plaît,?\s+)?n(?:e\s+|')[^.?!]{0,40}\bjamais\b"
        r"|\bn'(?:utilise|emploie|oublie)z?\s+pas\b|\b(?:tu\s+(?:ne\s+)?dois|vous\s+(?:ne\s+)?devez)\s+(?:toujours|jamais|pas)\b",
    ),
    _make_wording(
        1,
        "préfère évite évitez souviens-toi souvenez-vous rappelle-toi",
        r"\bje\s+préfère\b|^(?:évitez?|souviens-toi|souvenez-vous|rappelle-toi)\b",
    ),
    _make_wording(
        2,
        "siempre nunca jamás no en solo",
        r"\b(?:responde|escribe|usa|utiliza|contesta)\b[^.?!]{0,40}\b(?:siempre|solo|en\s+(?:español|inglés|francés|alemán))\b"
        r"|\b(?:siempre|nunca|jamás)\s+(?:me\s+)?(?:respond[ae]s?|us[ae]s?|utilices|menciones|sugieras|recomiendes|escrib[ae]s?|"
        r"digas)\b|\bno\s+(?:me\s+)?(?:uses|utilices|menciones|sugieras|recomiendes|olvides)\b",
    ),
    _make_wording(1, "prefiero recuerda", r"^(?:por\s+favor,?\s+)?(?:prefiero|recuerda\s+que)\b"),
)
"""Matched against a sentence in lower case with straight apostrophes. The strongest wording that matches counts."""

WITHDRAWAL_WORDS: Final = frozenset(
    {"again", "now", "all", "anyway", "forget", "ignore", "disregard", "drop", "lift", "cancel", "need", "have", "stop"}
)
WITHDRAWAL: Final = re.compile(
    r"\byou\s+(?:can|may)\s+(?:now\s+)?[^.?!]{1,80}\b(?:again|now|after\s+all|anyway)\b"
    r"|\b(?:is|are)\s+(?:now\s+)?(?:fine|ok|okay|allowed|welcome)\s+(?:again|now|after\s+all)\b"
    r"|\b(?:forget|ignore|disregard|drop|lift|cancel)\s+(?:about\s+)?(?:what\s+i\s+said\s+about|(?:the|my|that)\s+"
    r"(?:\w+\s+){0,4}(?:rule|ban|restriction|instruction|request|preference)|my\s+(?:earlier|previous))\b"
    r"|\b(?:you\s+(?:don't|do\s+not)|no)\s+(?:need|have)\s+to\s+[^.?!]{1,80}\b(?:any\s?more|any\s+longer)\b"
    r"|\byou\s+(?:can|may)\s+stop\s+\w+ing\b",
    re.IGNORECASE,
)
"""What takes an earlier rule back."""

ONCE_ONLY: Final = re.compile(
    r"\b(?:this\s+(?:time|once)|just\s+(?:this\s+)?once|for\s+now|for\s+this\s+(?:one|answer|question|reply|message)|"
    r"in\s+(?:this|your\s+next)\s+(?:answer|reply|message|response)|for\s+the\s+next\s+(?:answer|reply|message))\b",
    re.IGNORECASE,
)
"""A request for one answer is no standing request."""

LIST_HEADING: Final = re.compile(
    r"\b(?:rules|preferences|guidelines|instructions|constraints|requirements|dos\s+and\s+don'ts|house\s+style|"
    r"always|never|from\s+now\s+on|going\s+forward|remember|regeln|vorlieben|r(?:è|e)gles|reglas)\b[^\n]{0,80}:\s*$",
    re.IGNORECASE,
)
"""A line whose list items are rules, whatever their wording."""

FENCE: Final = re.compile(r"<\s*/?\s*(?:standing_requests|earlier_conversation|quoted)", re.IGNORECASE)
"""A sentence with such a tag is never kept: shown in a view, it could close the fence around it."""

_NAME_VALUE: Final = r"(?:\s+[\"'\u201c]?\w[\w.'\u2019-]*[\"'\u201d]?){1,2}"
SUBJECT_SLOTS: Final = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in {
        "name": rf"\b(?:(?:call|address)\s+me(?:\s+as)?|refer\s+to\s+me\s+as|i\s+go\s+by|nenn(?:en)?\s+(?:sie\s+)?mich|"
        rf"appelle[sz]?-moi|ll[aá]mame){_NAME_VALUE}",
        "own name": rf"\b(?:my\s+(?:\w+\s+)?name(?:'s|\s+is)|mein\s+name\s+ist|ich\s+hei(?:ß|ss)e|"
        rf"je\s+m['\u2019]appelle|mon\s+nom\s+est|me\s+llamo|mi\s+nombre\s+es){_NAME_VALUE}",
        "language": rf"\b(?:in|auf|en|to)\s+(?:\w+\s+)?{_LANGUAGE}",
        "units": r"\b(?:metric|imperial|celsius|fahrenheit)\b(?:\s+units?\b)?",
        "clock": r"\b(?:24|12)[- ]?hours?\b(?:\s+(?:clock|format|time|times|notation)\b)?|\bmilitary\s+time\b",
        "currency": r"\b(?:euros?|dollars?|pounds|eur|usd|gbp|yen|francs)\b",
    }.items()
)
"""Subjects with one value each, which the pattern includes: a later value replaces an earlier one."""
