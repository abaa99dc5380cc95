"""A character of a game describes itself as JSON: a schema leaves the model no other way to answer.

usage: json_answer.py model.gguf
"""

import json
import sys

import emberlm

FACTS = "Hanna the guard is at the lighthouse and has a white map. Olga the potter is at the pond and has a small apple."
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 20},
        "role": {"enum": ["guard", "baker", "fisher", "potter"]},
        "place": {"type": "string", "maxLength": 30},
        "item": {"type": "string", "maxLength": 30},
    },
    "required": ["name", "role", "place", "item"],
    "additionalProperties": False,
}


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with emberlm.Model(sys.argv[1]) as model, model.session() as session:
        session.set_json_schema(SCHEMA)
        answer = session.chat([{"role": "system", "content": FACTS}, {"role": "user", "content": "Describe Hanna as JSON."}])
    person = json.loads(answer.text)
    print(f"{person['name']} ({person['role']}) stands at {person['place']} with a {person['item']}.")


main()
