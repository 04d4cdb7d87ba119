"""An application with a gateway beside it, standard library only: it knows OPENAI_BASE_URL and nothing else."""

import json
import os
import urllib.request

REQUEST = urllib.request.Request(  # noqa: S310 - the address is the operator's
    f"{os.environ['OPENAI_BASE_URL']}/chat/completions",  # noqa: TID251 - this is an application, not the gateway
    data=json.dumps(
        {
            "model": os.environ.get("MODEL", "gpt-4o-mini"),  # noqa: TID251 - likewise
            "messages": [{"role": "user", "content": "Say hello."}],
        }
    ).encode(),
    headers={
        "Content-Type": "application/json",
        "Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}",  # noqa: TID251 - likewise
    },
)

with urllib.request.urlopen(REQUEST, timeout=60) as response:  # noqa: S310 - likewise
    answer = json.load(response)
print(answer["choices"][0]["message"]["content"])  # noqa: T201 - its output
print(f"The model saw: {answer['context_status']}")  # noqa: T201 - likewise
