"""Samples for the acceptance of summaries: refusals and empty phrases, and short talks with honest summaries."""

from __future__ import annotations

from typing import Final

EMPTY_SUMMARIES: Final = (
    # English
    "I'm sorry, but I can't help with that request.",
    "I'm sorry, but I can’t assist with that.",
    "The conversation is empty, so there is nothing to summarize.",
    "Please provide the conversation you would like me to summarize.",
    "I cannot summarize this conversation because it contains content about controlled substances.",
    "As an AI language model, I don't have access to the earlier messages.",
    "Sure! Here is a summary of the conversation:",
    "The user and the assistant discussed various topics.",
    "This is a summary of the conversation between a user and an AI assistant.",
    "Fine.",
    "Understood. Let me know if you need anything else!",
    "No content to summarize.",
    "I don't see any transcript in your message. Could you please paste it here?",
    "Summary: none.",
    # German
    "Es tut mir leid, aber dabei kann ich nicht helfen.",
    "Tut mir leid, ich kann diese Anfrage nicht bearbeiten.",
    "Bitte geben Sie den Gesprächsverlauf an, den ich zusammenfassen soll.",
    "Das Gespräch ist leer, daher gibt es nichts zusammenzufassen.",
    "Ich kann dieses Gespräch nicht zusammenfassen.",
    "Der Nutzer und der Assistent haben sich über verschiedene Themen ausgetauscht.",
    "Mir liegen keine Nachrichten vor.",
    "Gerne! Sobald Sie mir den Text senden, fasse ich ihn zusammen.",
    # French
    "Je suis désolé, mais je ne peux pas vous aider avec cette demande.",
    "Désolée, je ne peux pas répondre à cette demande.",
    "Veuillez fournir la conversation à résumer.",
    "La conversation est vide, il n'y a rien à résumer.",
    "L'utilisateur et l'assistant ont discuté de plusieurs sujets.",
    "En tant qu'assistant IA, je n'ai pas accès aux messages précédents.",
    "Je ne suis pas en mesure de résumer cet échange.",
    "Il n'y a aucun message dans cette conversation.",
    # Spanish
    "Lo siento, pero no puedo ayudar con esa solicitud.",
    "Lo siento, no puedo ayudarte con eso.",
    "Por favor, proporciona la conversación que deseas resumir.",
    "La conversación está vacía, así que no hay nada que resumir.",
    "El usuario y el asistente hablaron de varios temas.",
    "No puedo resumir esta conversación.",
    "Como modelo de lenguaje, no tengo acceso a los mensajes anteriores.",
    "No hay contenido para resumir.",
    # Portuguese
    "Desculpe, mas não posso ajudar com esse pedido.",
    "Sinto muito, não consigo ajudar com isso.",
    "Por favor, forneça a conversa que deseja resumir.",
    "A conversa está vazia, portanto não há nada para resumir.",
    "O usuário e o assistente conversaram sobre vários assuntos.",
    "Não há mensagens nesta conversa.",
    # Chinese
    "很抱歉，我无法协助完成该请求。",
    "对不起，我不能总结这段对话。",
    "请提供需要总结的对话内容。",
    "对话内容为空，没有可以总结的信息。",
    "用户和助手讨论了一些话题。",
    "作为一个人工智能助手，我无法访问之前的消息。",
)
"""Fifty answers of models that must not become summaries."""

TALKS: Final = (
    (
        "Invoices begin at INV-70031. Please help me to move billing to Berlin on 3 May, and to empty the queue.",
        "I'm sorry, I can't help with that request: the billing server in Berlin refuses my key. Here is the script.",
        (
            "Invoices begin at INV-70031; billing moves to Berlin on 3 May.",
            "The user wants a script that empties the queue.",
            "The assistant was sorry that it could not help: the Berlin server refuses its key.",
            "I can't reach the billing server. A script exists.",
            "User: move billing. Assistant: I'm sorry, I can't help with that request.",
            "- billing → Berlin, 3 May\n- key refused",
        ),
    ),
    (
        "Unser Aufzug klemmt seit Dienstag im dritten Stock. Bitte senden Sie die Störungsmeldung an Frau Kluge.",
        "Leider kann ich keine Nachricht senden. Die Störungsmeldung lautet: Aufzug defekt, dritter Stock.",
        (
            "Der Aufzug klemmt seit Dienstag im dritten Stock.",
            "Leider konnte die Störungsmeldung nicht gesendet werden. Empfängerin: Frau Kluge.",
            "Gewünscht: Störungsmeldung an Frau Kluge.",
            "The lift is stuck on the third floor; Frau Kluge is to be told.",
        ),
    ),
    (
        "Le train pour Lyon part à 8 h 12. Je ne mange pas de viande. Pouvez-vous réserver une table près de la gare ?",
        "Je ne peux pas réserver, mais le restaurant Chez Paul sert des plats végétariens.",
        (
            "Train pour Lyon à 8 h 12, repas sans viande.",
            "L'utilisateur cherche un restaurant végétarien près de la gare ; Chez Paul convient.",
            "Je ne peux pas réserver. Restaurant proposé : Chez Paul.",
        ),
    ),
    (
        "Mi gata Luna toma media pastilla de metimazol cada doce horas. ¿Puedo darle atún?",
        "Sí, un poco de atún sin sal. Consulte a su veterinaria antes de cambiar la dosis de metimazol.",
        (
            "La gata Luna toma metimazol cada doce horas.",
            "Puede comer atún sin sal.",
            "El asistente recomendó consultar a la veterinaria.",
        ),
    ),
    (
        "O contrato com a oficina termina em março. Não há garantia para os pneus novos.",
        "Então peça à oficina uma garantia por escrito antes de março.",
        (
            "O contrato com a oficina termina em março.",
            "Não há garantia para os pneus.",
            "Pedir garantia por escrito.",
        ),
    ),
    (
        "我的猫叫团团，对鸡肉过敏。下周三要去北京出差，请推荐一家寄养的地方。",
        "北京路的安心宠物店可以寄养，注意不要喂鸡肉。",
        (
            "用户的猫团团对鸡肉过敏。",
            "下周三去北京出差，推荐安心宠物店寄养。",
            "抱歉无法预订。已推荐安心宠物店。",
            "The user's cat is allergic to chicken; boarding is needed for a trip to Beijing.",
        ),
    ),
)
"""What the user said, what the assistant said, and honest summaries of both."""
