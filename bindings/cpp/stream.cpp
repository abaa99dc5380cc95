// Continues a text and shows it while it is made.
// usage: stream model.gguf [prompt]

#include "emberlm.hpp"

#include <iostream>

int main(int argc, char **argv) try {
    if (argc < 2 || argc > 3) {
        std::cerr << "usage: stream model.gguf [prompt]\n";
        return 2;
    }
    const std::string prompt = argc == 3 ? argv[2] : "Once upon a time, Mira the baker lived in Oakvale.";
    const auto model = emberlm::Model::load(argv[1]);
    emberlm::SessionOptions options;
    options.sampling.temperature = 0.8f;
    options.sampling.seed = 3;
    emberlm::Session session(model, options);

    emberlm::GenerateOptions until;
    until.limit = 200;
    until.stops = {"\n\n"};
    std::cout << prompt;
    const auto story = session.generate(model.tokenize(prompt), until, [](std::string_view text, const ember_token &) {
        std::cout << text << std::flush;
        return true;
    });
    std::cout << "\n[" << story.token_count << " tokens]\n";
    return 0;
} catch (const emberlm::Error &error) {
    std::cerr << error.what() << "\n";
    return 1;
}
