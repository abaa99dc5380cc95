"""A chat in the terminal: each turn passes the whole conversation, of which only what is new is read.

usage: chat.py model.gguf [system prompt] < questions
"""

import sys

import emberlm


def show(text: str, token: emberlm.Token | None) -> None:
    print(text, end="", flush=True)


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    messages = [{"role": "system", "content": words} for words in sys.argv[2:]]
    with emberlm.Model(sys.argv[1]) as model, model.session() as session:
        while True:
            try:
                messages.append({"role": "user", "content": input("> ")})
            except EOFError:
                break
            answer = session.chat(messages, on_text=show)
            print()
            messages.append({"role": "assistant", "content": answer.text})
    print()


main()
