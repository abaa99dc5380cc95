// A character of a game describes itself as JSON: a schema leaves the model no other way to answer.
// usage: json model.gguf

#include "emberlm.hpp"

#include <iostream>

int main(int argc, char **argv) try {
    if (argc != 2) {
        std::cerr << "usage: json model.gguf\n";
        return 2;
    }
    const auto model = emberlm::Model::load(argv[1]);
    emberlm::Session session(model);
    session.set_json_schema(R"({
        "type": "object",
        "properties": {
            "name":  {"type": "string", "minLength": 1, "maxLength": 20},
            "role":  {"enum": ["guard", "baker", "fisher", "potter"]},
            "place": {"type": "string", "maxLength": 30},
            "item":  {"type": "string", "maxLength": 30}
        },
        "required": ["name", "role", "place", "item"],
        "additionalProperties": false
    })");
    const auto answer = session.chat(
        model, {{"system", "Hanna the guard is at the lighthouse and has a white map. Olga the potter is at the pond and has a small apple."},
                {"user", "Describe Hanna as JSON."}});
    std::cout << answer.text << "\n";
    return 0;
} catch (const emberlm::Error &error) {
    std::cerr << error.what() << "\n";
    return 1;
}
