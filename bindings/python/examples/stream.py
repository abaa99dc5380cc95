"""Continues a text and shows it while it is made.

usage: stream.py model.gguf [prompt]
"""

import sys

import emberlm


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    prompt = sys.argv[2] if len(sys.argv) == 3 else "Once upon a time, Mira the baker lived in Oakvale."
    sampling = emberlm.Sampling(temperature=0.8, seed=3)
    with emberlm.Model(sys.argv[1]) as model, model.session(sampling=sampling) as session:
        print(prompt, end="")
        for text in session.stream(model.tokenize(prompt), limit=200, stops=["\n\n"]):
            print(text, end="", flush=True)
        print()


main()
