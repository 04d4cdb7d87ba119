"""Words by which a summary is recognised that says nothing (`empty_summaries`): of six languages. Data."""

from __future__ import annotations

from typing import Final

_ASKS: Final = r"(?:please|kindly|could you|can you|would you|once you|if you)\b.{0,40}?\b"
_NO: Final = (
    r"(?:there (?:is|was|are|were|do(?:es)?n['’]t|do(?:es)? not)|there['’]s|it (?:seems|appears|looks)|nothing|no)"
    r"\b.{0,40}?\b"
)
_RANGE: Final = r"(?:conversation|transcript|chat|text|material|input|messages?)\b"
_BITTE: Final = r"(?:bitte|könn(?:ten|en) sie|kannst du|sobald)\b.{0,60}?\b"
_KEIN: Final = r"(?:es )?(?:gibt|gab|wurden?|liegen|nichts|keine?)\b.{0,60}?\b"
_VEUILLEZ: Final = r"(?:veuillez|merci de|pourriez-vous|pouvez-vous|peux-tu|s['’]il (?:vous|te) pla[iî]t)\b.{0,40}?"
_POR_FAVOR: Final = r"(?:por favor|podrías?|puedes?|¿?podría|poderia|você pode)\b.{0,40}?"
_NO_HAY: Final = r"(?:no hay|no había|não há|não havia|nada|ningún|nenhuma?)\b.{0,60}?"
NO_SUMMARY_SENTENCES: Final = (
    # English: apologies, inability, a call for the material, an empty range, offers, announcements
    r"(?:i['’]?m |i am |we are )?(?:very |so |truly )?sorry\b|(?:my )?apologies\b|as an? (?:ai|large|language)\b",
    r"(?:i|we) (?:apologi[sz]e|regret|decline|must decline|have to decline|prefer not|have no|need|see no)\b",
    r"(?:unfortunately|regrettably),?\s+(?:i|we|there)\b",
    r"(?:i|we) (?:can ?not|can['’]t|could(?:n['’]t| not)|won['’]t|will not|am (?:not|unable)|are (?:not|unable))\b",
    r"(?:i|we) (?:do(?:n['’]t| not)|did(?:n['’]t| not)|understand)\b|understood\b|(?:sure|certainly|of course)\b",
    r"(?:i|we)(?:['’](?:ll|d)| will| would) (?:be (?:happy|glad)|need|gladly)\b|happy to\b|let me know\b",
    rf"{_ASKS}(?:provide|share|paste|send|supply|upload|give me|like me|want me|have more|tell me)\b",
    rf"{_NO}(?:summari[sz]e|{_RANGE}|content\b|report\b)",
    rf"(?:the|this|that|your)\b.{{0,30}}?\b{_RANGE}.{{0,40}}?\b(?:empty|blank|missing|incomplete|cut off)\b",
    rf"(?:the|this|that|your)\b.{{0,30}}?\b{_RANGE}.{{0,40}}?\bnot (?:included|provided|visible|attached)\b",
    r"(?:how|what) (?:can|may|else|would)\b.{0,30}?\b(?:help|assist|do|like)\b",
    r"(?:here|below)(?:['’]s| is| are)\b.{0,30}\bsummary\b|(?:this|your|the) request violates\b|n/a\b",
    r"my (?:guidelines|policy|policies|instructions)\b|it (?:looks|seems) like you\b",
    # German
    r"(?:es )?tut mir (?:sehr )?leid\b|entschuldigung\b|leider\b|als (?:ki|künstliche|sprachmodell)\b|gerne?\b",
    r"ich (?:kann|darf|möchte|werde|bin|habe|sehe|muss)\b.{0,60}?\b(?:nicht|kein\w*|ablehnen)\b",
    r"ich (?:benötige|brauche)\b|mir (?:liegt|liegen|fehlt|fehlen)\b",
    rf"{_BITTE}(?:geben|gib|senden?|teilen?|stellen?|füge?n?|schicken?|übermitteln?|nennen|bereit\w*|vorlieg\w*)\b",
    rf"{_KEIN}(?:zusammenzufassen|zusammenfass\w*|nachricht\w*|unterhaltung|gespräch\w*|inhalt\w*|verlauf|text)\b",
    r"(?:das|die|der|dieser?|dieses) (?:\w*gespräch|unterhaltung|konversation|chat|\w*verlauf)\b.{0,30}?\bleer\b",
    # French
    r"(?:je suis )?(?:vraiment |sincèrement )?désolée?\b|malheureusement\b|toutes mes excuses\b|en tant qu['’e]",
    r"je (?:m['’]excuse|regrette|refuse|dois décliner)\b|je n['’](?:ai|arrive)\b",
    r"je ne (?:peux|suis|dispose|vois|souhaite|saurais)\b",
    rf"{_VEUILLEZ}(?:fourni|partage|colle|envoye|transme|donne|indique|communique)",
    r"(?:il n['’]y a(?:vait)?|aucune?|rien)\b.{0,60}?(?:résum|conversation|message|contenu|texte|échange)",
    r"(?:la|le|cette|ce|l['’]) ?(?:conversation|échange|texte|transcription|discussion|chat)\b.{0,25}?\bvide",
    # Spanish and Portuguese
    r"lo (?:siento|lamento)\b|(?:le |te )?pido disculpas\b|disculp[ae]|perdón\b|desculp[ea]|peço desculpas?\b",
    r"(?:lamentable|desafortunada|infeliz)mente\b|(?:eu )?(?:sinto muito|lamento)\b",
    r"com[oa] (?:un |um )?(?:modelo|ia|inteligencia|inteligência)\b",
    r"(?:yo |eu )?no (?:puedo|tengo|me es|es posible|dispongo|he|veo|estoy|fue)\b",
    r"(?:eu )?não (?:posso|consigo|tenho|é possível|recebi|vejo|estou|foi)\b",
    rf"{_POR_FAVOR}(?:proporcion|compart|peg|env[ií]|facilit|forne|cole)",
    rf"{_NO_HAY}(?:resumir|conversa|mensaje|mensage|contenido|conteúdo|texto)",
    r"(?:la|el|esta|este) (?:conversación|texto|chat|transcripción|diálogo|historial)\b.{0,25}?\bvac[ií][oa]",
    r"(?:a|o|esta|este) (?:conversa|texto|chat|transcrição|diálogo|histórico)\b.{0,25}?\bvazi[oa]",
    # Chinese
    r"我?(?:很|非常|十分)?(?:抱歉|对不起|不好意思|遗憾)|作为(?:一个|一名)?(?:AI|人工智能|语言模型)|好的",
    r"我?(?:目前|暂时)?(?:无法|不能|没法|不便|拒绝|没有(?:看到|收到))",
    r"(?:请|如果)(?:您|你)?(?:先|能)?(?:提供|分享|粘贴|发送|给出|把|将|告诉)",
    r".{0,8}(?:没有|暂无|并无|不存在|未提供).{0,14}(?:对话|内容|消息|聊天|总结|摘要|记录)",
    r".{0,8}(?:对话|内容|聊天记录|记录|文本).{0,6}(?:为空|是空|空白)",
)
"""Patterns for the beginning of a sentence that is a refusal, or talk about the task of summarizing."""

UNSPECIFIC_WORDS: Final = """
    am ai among amongst answer answered answers around aside ask asked asking aspect assist assistance assistant
    because become began begin between both bring brief briefly came chat chatted comment common concern
    concerned constraint constraints contain content context continue continued contribution conversation
    convers course cover covered cross decision decisions deal dealt detail details dialogue different discuss
    discussed discussion empty end ended engage engaged etc everyone everything exchange exchanged exchanges
    explain explained expressed far feel felt fine finish follow followed following forth found full further
    general generally goal good great hello idea ideas important include included including info information
    input interaction involve involved involving kind large later less little long look lot main make made
    manner many material matter matters mean meaningful meet mention message messages mere new next nice none
    note noted notable nothing numerous occur offer offered opinion output overall overview part participant
    participants perspective point points possible present previous proceed progress provide provided provides
    put question questions quite rather read reader reason receive related relevant remain reply replied report
    request requested requests resolve resolved respond responded responds response round several shared
    significant simple simply since sort speak specific spoke spoken start started statement step steps still
    subject subjects such suggest sum summaries summary summarise summarised summarize summarized take taken
    talk talked talking task term text throughout thought together topic topics touch touched toward transcript
    try turn two type understand understanding unspecified unknown useful user users usual various verbatim view
    viewpoint views way whatever whole wide without word words work write written year
    aber alle allem allen aller alles als also an andere anderen antwort antwortete antworten assistent auch auf
    aus austausch ausgetauscht bei beiden beantwortet besprochen bin bis da damit dann darin darüber das dass
    davon dazu dem den denen der deren des dessen die dies diese diesem diesen dieser dieses doch dort durch ein
    eine einem einen einer eines einige einigen er es etwas euch fragen frage fragte fragt für gab gegeben geht
    gespräch gespräche gesprochen gestellt gibt gut haben hat hatte hatten hier hin ihm ihn ihnen ihr ihre ihren
    im in informationen inhalt inhalte insgesamt ist ja jede jeder jedes kann kein keine keinen können konnte
    konversation man mehr mehrere mein mit miteinander nach nachricht nachrichten nicht nichts noch nun nur
    nutzer ob oder ohne punkte sehr sein seine sich sie sind so sowie statt themen thema über um und
    unterhaltung unterhielten uns verlauf verschiedene verschiedenen verschiedener viel viele vielen vom von vor
    wann war waren was weil weiter wenn wer werden wie wieder wir wird wo wurde wurden zu zum zur
    zusammenfassung zusammengefasst zwei zwischen benutzer benutzerin dinge à afin ainsi ailleurs alors après
    assistante au aucun aussi autre autres aux avec avoir bien bref cadre ce cela celui ces cet cette chaque
    chose choses comme contenu contre dans de demandé demande depuis deux différents différentes discuté
    discutent divers diverses donc dont du elle elles en encore échange échangé échanges entre est et été être
    eu fait faire fois général il ils je la le les leur leurs lors lui mais même moins ne ni nos notre nous on
    ont ou où par parlé parle pas peu plus plusieurs pour qu que quelques qui réponse réponses répondu résumé sa
    sans se ses si son sont sous sujet sujets sur texte tous tout toute toutes traité très un une utilisateur
    utilisatrice vers vous y abordé aborde lieu cours interlocuteurs a abordó abordaron al algo algunos algunas
    antes aquí asistente así asunto aunque cada casi como con contenido contra conversación conversan
    conversaron cosas cual cuando del desde después diferentes distintos donde dos durante e el ella ellos era
    esa ese esta está estaba este esto fin fue fueron ha habla habló hablaron hacer han hasta hay hizo
    intercambio intercambiaron las lo los más me mensaje mensajes mi mismo muchas muchos muy nada no o otra
    otras otro otros para pero poco por porque pregunta preguntas preguntó puede quien respondió respuesta
    respuestas resumen ser sí sin sobre su sus también tanto tema temas tiene todo todos trata trató tratan tu
    una uno unos usuario usuaria varias varios ya partes información ao aos as assim assistente assunto assuntos
    até com conteúdo conversa conversaram conversas coisas diferente diversos diversas do duas ela ele eles em
    essa esse estão falou falaram foi foram há houve informações isso isto já mas mensagem mensagens mesmo muito
    muitas muitos na nas não nem num numa onde os outra outras outro outros pela pelas pelo pelos pergunta
    perguntas perguntou qual quando quanto quem resposta respostas resumo respondeu sem seu seus sua suas também
    tem tópicos teve todas troca trocaram tratou uma usuário usuária utilizador várias vários você
"""
"""English, German, French, Spanish and Portuguese: stop words, and words for a conversation itself. Those of
`search_terms.COMMON_WORDS` come in addition."""

UNSPECIFIC_CHINESE: Final = """
    用户 使用者 助手 助理 双方 对话 会话 聊天 交谈 谈话 讨论 谈论 交流 提到 提及 询问 回答 回复 问题 话题 主题
    内容 信息 消息 总结 摘要 概述 各种 多种 一些 几个 多个 不同 许多 很多 这段 本次 此次 这次 主要 进行 关于 以及
    并且 然后 没有 提供 可以 我们 他们 大家 之间 其中 相关 有关 方面 事情 事项 东西 围绕 涉及 包括 这个 那个 一个
    两个 一次 完成 结束 开始 已经 没 了 的 和 与 在 是 对 就 着 也 都 并 等 后 中 上 下 个
"""
"""Chinese words of both kinds. They are removed before the text is cut into pairs of characters."""
