"""Words that say nothing about a range of messages (`empty_summaries`), in six languages. Data."""

from __future__ import annotations

from typing import Final

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
    access anything apologies apologise apologize assisting controlled explicit harmful illegal inappropriate
    unsafe certainly decline declined desired guidelines happy help incomplete kindly language missing model no
    paste policies policy prefer regret regrettably sorry substance sure unable understood unfortunately upload
    violates visible abzulehnen anfrage benötige bereitstellen bitte brauche daher darf entschuldigung fehlt
    geben gern gerne gesprächsverlauf helfen ich ki leer leid leider liegen liegt mir möchte nennen schicken
    senden sobald soll sprachmodell teilen tun tut zusammen zusammenfassen zusammenzufassen accès aider désolé
    désolée dispose donner envoyer excuse fournir ia langage malheureusement mesure modèle peux précédente puis
    refuse regrette rien répondre résumer souhaite suis tant transmettre veuillez vide acceder acceso ajudar
    anterior ayudar ayudarte compartir consigo desculpas desculpe desea deseja dispongo disculpas eso favor
    forneça fornecer gustaría lamentablemente lamento lenguaje modelo nesta pasado pegar pedido perdón podría
    portanto posso proporciona proporcionar puedo resumir siento sinto solicitud tengo vacía vazia dabei
    bearbeiten fasse ihn
"""
"""English, German, French, Spanish and Portuguese: stop words, words for a conversation itself, and words of refusals.
Those of `search_terms.COMMON_WORDS` come in addition."""

UNSPECIFIC_CHINESE: Final = """
    用户 使用者 助手 助理 双方 对话 会话 聊天 交谈 谈话 讨论 谈论 交流 提到 提及 询问 回答 回复 问题 话题 主题
    内容 信息 消息 总结 摘要 概述 各种 多种 一些 几个 多个 不同 许多 很多 这段 本次 此次 这次 主要 进行 关于 以及
    并且 然后 没有 提供 可以 我们 他们 大家 之间 其中 相关 有关 方面 事情 事项 东西 围绕 涉及 包括 这个 那个 一个
    很 抱歉 对不起 无法 不能 我 请 请求 作为 人工智能 语言 模型 需要 之前 访问 为空 协助
    两个 一次 完成 结束 开始 已经 没 了 的 和 与 在 是 对 就 着 也 都 并 等 后 中 上 下 个
"""
"""Chinese words of both kinds. They are removed before the text is cut into pairs of characters."""
