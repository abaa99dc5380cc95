#!/usr/bin/env python3
"""Renders chat templates with the environment of the transformers library and stores the texts.

    make_chat.py FOLDER    renders every *.jinja of FOLDER with every conversation into published.jsonl.xz
                           (the templates are their publishers' and stay where they are)
    make_chat.py           renders the templates of features.py into features.jsonl.xz

Each line is {"template", "name", "document", "text" or "error"}; documents of published.jsonl.xz are those
of conversations.jsonl.xz, by name. Made with transformers 5.23.0 and Jinja2 3.1.6.
"""
import datetime
import json
import lzma
import pathlib
import sys

import transformers.utils.chat_template_utils as utils

from conversations import CONVERSATIONS, EXTRA
from features import FEATURES

HERE = pathlib.Path(__file__).parent
NOW = datetime.datetime(2024, 7, 26, 15, 4, 5)
TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


utils.datetime = Clock


def render(template, document):
    given = {"tools": None, "documents": None, "add_generation_prompt": False, **TOKENS, **document}
    try:
        return {"text": utils._compile_jinja_template(template).render(**given)}
    except Exception as error:
        kind = type(error).__name__
        return {"error": str(error) if kind == "TemplateError" else "", "kind": kind}


def write(name, lines):
    opened = lzma.open if name.endswith(".xz") else open
    with opened(HERE / name, "wt", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def main():
    if len(sys.argv) < 2:
        lines = [{"template": template, "document": document, **render(template, document)} for template, document in FEATURES]
        write("features.jsonl.xz", lines)
        return
    documents = {name: {"messages": messages} for name, messages in CONVERSATIONS.items()} | EXTRA
    documents |= {name + "+prompt": {**document, "add_generation_prompt": True} for name, document in documents.items()}
    write("conversations.jsonl.xz", [{"name": name, "document": document} for name, document in documents.items()])
    lines = []
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.jinja")):
        template = path.read_text()
        for name, document in documents.items():
            lines.append({"template": path.stem, "name": name, **render(template, document)})
    write("published.jsonl.xz", lines)


main()
