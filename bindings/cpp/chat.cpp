// A chat in the terminal: each turn passes the whole conversation, of which only what is new is read.
// usage: chat model.gguf [system prompt] < questions

#include "emberlm.hpp"

#include <iostream>

int main(int argc, char **argv) try {
    if (argc < 2 || argc > 3) {
        std::cerr << "usage: chat model.gguf [system prompt]\n";
        return 2;
    }
    const auto model = emberlm::Model::load(argv[1]);
    emberlm::Session session(model);
    std::vector<emberlm::Message> messages;
    if (argc == 3) messages.push_back({"system", argv[2]});
    for (std::string line; std::cout << "> " << std::flush, std::getline(std::cin, line);) {
        messages.push_back({"user", line});
        const auto answer = session.chat(model, messages, {}, [](std::string_view text, const ember_token &) {
            std::cout << text << std::flush;
            return true;
        });
        std::cout << "\n";
        messages.push_back({"assistant", answer.text});
    }
    std::cout << "\n";
    return 0;
} catch (const emberlm::Error &error) {
    std::cerr << error.what() << "\n";
    return 1;
}
