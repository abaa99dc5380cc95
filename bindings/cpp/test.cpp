// Compares what emberlm.hpp does with what the C library answers (reference.c), and its errors with what they must be.
// usage: test model.gguf reference.txt

#include "emberlm.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <thread>
#include <type_traits>

namespace {

int checks = 0, failures = 0;

void expect(bool right, const std::string &what) {
    checks++;
    if (right) return;
    failures++;
    std::cerr << "FAILED: " << what << "\n";
}

/// That a call throws Error with this status.
template <class Call> void expect_error(ember_status want, const std::string &what, Call call) {
    try {
        call();
        expect(false, what + ": nothing was thrown");
    } catch (const emberlm::Error &error) {
        expect(error.status() == want, what + ": " + error.what());
        expect(error.name() == std::string(ember_status_name(want)), what + ": name " + error.name());
        expect(std::string(error.what()).find(error.name()) == 0, what + ": what() begins with the name");
    }
}

std::map<std::string, std::string> read_reference(const char *path) {
    std::map<std::string, std::string> values;
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
        const auto equals = line.find('=');
        std::string value = line.substr(equals + 1);
        for (std::size_t at; (at = value.find("\\n")) != std::string::npos;) value.replace(at, 2, "\n");
        values[line.substr(0, equals)] = value;
    }
    return values;
}

emberlm::Tokens parse(const std::string &list) {
    emberlm::Tokens tokens;
    std::istringstream in(list);
    std::string number;
    while (std::getline(in, number, ',')) tokens.push_back(static_cast<emberlm::Token>(std::stoul(number)));
    return tokens;
}

struct Fixture {
    std::string path;
    std::map<std::string, std::string> reference;
    emberlm::Model model;
    emberlm::Tokens prompt;
};

void test_versions(Fixture &f) {
    expect(emberlm::version() == f.reference["version"], "version");
    emberlm::detail::require_abi();
    expect(emberlm::version_number() == EMBER_VERSION_NUMBER, "version number");
    try {
        emberlm::detail::require_abi(EMBER_ABI_VERSION + 1);
        expect(false, "another ABI was taken");
    } catch (const emberlm::VersionError &error) {
        expect(std::strstr(error.what(), ("ABI " + std::to_string(EMBER_ABI_VERSION + 1)).c_str()) != nullptr, error.what());
    }
    expect(emberlm::supported(EMBER_CAN_CPU) && emberlm::supported(EMBER_CAN_GGUF), "capabilities");
    bool cpu = false;
    for (const ember_device_details &device : emberlm::devices()) cpu |= device.kind == EMBER_DEVICE_CPU && device.usable == 1;
    expect(cpu, "the CPU is among the devices");
}

void test_model(Fixture &f) {
    expect(f.model.info().vocab_size == 1424, "vocab_size");
    expect(f.model.metadata("general.architecture") == "llama", "metadata");
    const auto keys = f.model.metadata_keys();
    expect(keys.size() == f.model.info().metadata_count && keys.size() > 10, "metadata keys");
    expect_error(EMBER_MISSING_KEY, "a key that is not there", [&] { f.model.metadata("no.such.key"); });
    expect(f.prompt == parse(f.reference["greedy_prompt"]), "tokenize");
    const std::uint32_t stop = 0;
    expect(f.model.tokenize(f.reference["story"], 0, &stop) == f.prompt, "tokenize with options");
    expect(f.model.detokenize(f.prompt, EMBER_DETOKENIZE_SKIP_SPECIAL) == f.reference["story"], "detokenize");
    const auto ends = f.model.end_tokens();
    expect(!ends.empty() && ends.size() == f.model.tokenizer_info().end_token_count, "end tokens");
    for (const auto token : ends) expect(f.model.is_end(token), "is_end");
    expect(f.model.token_text(f.prompt[1]) == "Once", "token_text: " + f.model.token_text(f.prompt[1]));
    expect(emberlm::estimate(f.path).context == 2048, "estimate");
    const auto whole = f.model.parts();
    expect(whole.size() == 1 && whole[0].layer_count == f.model.info().layer_count, "a model on one device");
    emberlm::ModelOptions shared;
    std::uint32_t cpu = 0;
    while (emberlm::devices()[cpu].kind != EMBER_DEVICE_CPU) cpu++;
    shared.devices = {cpu, cpu};
    shared.device_layers = {2, 0};
    const auto estimates = emberlm::estimate_parts(f.path, shared);
    const auto parts = emberlm::Model::load(f.path, shared).parts();
    expect(parts.size() == 2 && parts[1].first_layer == 2 && estimates.size() == 2 && estimates[1].first_layer == 2, "parts");
    shared.device_layers = {1000, 0};
    expect_error(EMBER_INVALID_ARGUMENT, "more layers than there are", [&] { emberlm::Model::load(f.path, shared); });
    f.model.evict();
    f.model.resume();
    expect_error(EMBER_INVALID_TOKEN, "a token that is none", [&] { f.model.token_text(4000000000u); });
    expect_error(EMBER_FILE_NOT_FOUND, "no file", [] { emberlm::Model::load("no such file"); });
    expect_error(EMBER_UNKNOWN_FORMAT, "a folder", [] { emberlm::Model::load("/"); });
    expect_error(EMBER_INVALID_UTF8, "bytes that are no text", [&] { f.model.tokenize("\xff\xfe"); });
}

void test_sources(Fixture &f) {
    std::ifstream file(f.path, std::ios::binary);
    auto bytes = std::make_shared<std::vector<unsigned char>>(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    const auto tell = [&](const emberlm::Model &model) {
        emberlm::Session session(model);
        return session.generate(f.prompt, {40}).text;
    };
    expect(tell(emberlm::Model::from_memory(bytes->data(), bytes->size())) == f.reference["greedy_text"], "from memory");
    std::weak_ptr<std::vector<unsigned char>> weak = bytes;
    expect(tell(emberlm::Model::from_reader(bytes->size(), [&](std::uint64_t offset, void *to, std::size_t count) {
               std::memcpy(to, bytes->data() + offset, count);
               return true;
           })) == f.reference["greedy_text"], "from a function");
    expect_error(EMBER_IO, "a reader that fails", [&] {
        emberlm::Model::from_reader(bytes->size(), [](std::uint64_t, void *, std::size_t) { return false; });
    });
    try {
        emberlm::Model::from_reader(bytes->size(), [](std::uint64_t, void *, std::size_t) -> bool { throw std::logic_error("mine"); });
        expect(false, "a reader that throws");
    } catch (const std::logic_error &error) {
        expect(std::string(error.what()) == "mine", "the reader's exception");
    }
    {
        auto model = emberlm::Model::from_shared(std::move(bytes));
        expect(!weak.expired(), "the bytes live with the model");
        expect(tell(model) == f.reference["greedy_text"], "from shared bytes");
    }
    expect(weak.expired(), "the bytes go with the model");
    expect_error(EMBER_UNKNOWN_FORMAT, "shared bytes that are no model", [] {
        emberlm::Model::from_shared(std::make_shared<std::vector<unsigned char>>(1000, static_cast<unsigned char>('x')));
    });
    float last = -1;
    int heard = 0;
    emberlm::ModelOptions options;
    options.progress = [&](float fraction) { return heard++, last = fraction, true; };
    emberlm::Model::load(f.path, options);
    expect(heard > 0 && last == 1.0f, "progress");
    options.progress = [](float) { return false; };
    expect_error(EMBER_CANCELLED, "progress that ends the load", [&] { emberlm::Model::load(f.path, options); });
    options.progress = [](float) -> bool { throw std::logic_error("mine"); };
    try {
        emberlm::Model::load(f.path, options);
        expect(false, "progress that throws");
    } catch (const std::logic_error &) {
        expect(true, "");
    }
}

void test_answers(Fixture &f) {
    const auto want = parse(f.reference["greedy_tokens"]);
    emberlm::Session session(f.model);
    session.prefill(f.prompt);
    for (const auto token : want) expect(session.decode() == token, "greedy token");
    expect(session.position() == f.prompt.size() + want.size() && session.info().position == session.position(), "position");
    expect(session.tokens(f.prompt.size()) == want, "tokens of the session");
    auto fork = session.fork();
    expect(fork.decode() == session.decode(), "a fork goes on alike");

    session.rewind(0);
    std::string pieces;
    auto made = session.generate(f.prompt, {40}, [&](std::string_view text, const ember_token &) { return pieces += text, true; });
    expect(made.text == f.reference["greedy_text"] && pieces == made.text, "generate: " + made.text);
    expect(made.end == EMBER_END_LIMIT && made.token_count == 40 && made.position == f.prompt.size(), "its details");
    session.rewind(0);
    emberlm::GenerateOptions until;
    until.stops = {"xyz", "brush"};
    made = session.generate(f.prompt, until);
    expect(made.end == EMBER_END_STOP && made.stop == 1 && made.text == " One cold morning, she lost her blue ", "a stop string: " + made.text);
    session.rewind(0);
    made = session.generate(f.prompt, {40}, [](std::string_view, const ember_token &) { return false; });
    expect(made.end == EMBER_END_CALLBACK && made.token_count == 1, "a callback that ends it");
    session.rewind(0);
    try {
        session.generate(f.prompt, {40}, [](std::string_view, const ember_token &) -> bool { throw std::logic_error("mine"); });
        expect(false, "a callback that throws");
    } catch (const std::logic_error &) {
        expect(session.position() == f.prompt.size() + 1, "the token that was made is there");
    }

    emberlm::SessionOptions options;
    options.sampling.temperature = 0.8f;
    options.sampling.seed = 3;
    options.sampling.logprobs = 4;
    emberlm::Session drawn(f.model, options);
    drawn.prefill(f.prompt);
    for (const auto token : parse(f.reference["drawn_tokens"])) expect(drawn.decode() == token, "drawn token");
    const auto probable = drawn.logprobs();
    expect(probable.tokens.size() == 4 && probable.logprobs[0] >= probable.logprobs[3] && probable.chosen <= 0, "logprobs");
    drawn.set_sampling({});
    drawn.rewind(f.prompt.size());
    expect(drawn.decode() == want[0], "greedy after set_sampling");
    emberlm::Sampling banned;
    banned.banned = {want[0]};
    banned.dry_multiplier = 1;
    banned.dry_breakers = {{"\n", {}}, {"", {5}}};
    drawn.set_sampling(banned);
    drawn.rewind(f.prompt.size());
    expect(drawn.decode() != want[0], "a banned token");
    drawn.rewind(f.prompt.size());
    const auto logits = drawn.logits();
    std::size_t best = 0;
    for (std::size_t i = 0; i < logits.size(); i++) best = logits[i] > logits[best] ? i : best;
    expect(best == want[0], "the greatest logit");
    expect(!drawn.profile().empty(), "profile");
}

void test_chat_and_json(Fixture &f) {
    emberlm::Session session(f.model);
    std::vector<emberlm::Message> messages{{"user", "What is 2 plus 3?"}};
    expect(f.model.chat_tokenize(messages) == parse(f.reference["chat_prompt"]), "chat tokens");
    auto answer = session.chat(f.model, messages, {100});
    expect(answer.text == f.reference["chat_text"] && answer.end == EMBER_END_TOKEN, "chat: " + answer.text);
    messages.push_back({"assistant", answer.text});
    messages.push_back({"user", "say \"a\\b\"\n\x01 <|end|>"});
    expect(f.model.chat_format(emberlm::conversation(messages)).find("say \"a\\b\"\n\x01 <|end|>") != std::string::npos, "chat_format");
    const auto longer = f.model.chat_tokenize(messages);
    expect(session.sync(longer) > parse(f.reference["chat_prompt"]).size(), "sync keeps the first turn");
    expect(session.tokens() == longer, "and holds the second");
    emberlm::ChatOptions own;
    own.source = "{{ messages[0].content }}!";
    expect(f.model.chat_format(emberlm::conversation(messages), own) == "What is 2 plus 3?!", "a template of one's own");
    expect_error(EMBER_INVALID_ARGUMENT, "JSON that is none", [&] { f.model.chat_tokenize("nonsense"); });

    emberlm::Session json(f.model);
    json.set_json_schema(f.reference["schema"]);
    emberlm::GenerateOptions options;
    options.new_text = true;
    expect(json.generate(f.model.chat_tokenize(f.reference["facts"]), options).text == f.reference["json_text"], "JSON");
    json.rewind(0);
    json.set_grammar(EMBER_GRAMMAR_REGEX, "[0-9]{3}");
    const auto digits = json.generate(f.prompt).text;
    expect(digits.size() == 3 && digits.find_first_not_of("0123456789") == std::string::npos, "regex: " + digits);
    json.clear_grammar();
    json.rewind(0);
    json.draft_by_model(f.model, 4);
    json.set_json_schema(f.reference["schema"]);
    expect(json.generate(f.model.chat_tokenize(f.reference["facts"]), options).text == f.reference["json_text"], "JSON with drafts");
    const auto speculation = json.speculation_info();
    expect(speculation.source == EMBER_DRAFTS_MODEL && speculation.max_drafts == 4, "drafts");
    json.draft_by_ngrams();
    json.stop_drafting();
    expect_error(EMBER_INVALID_ARGUMENT, "too many drafts", [&] { json.draft_by_ngrams(99); });
    json.clear_grammar();
    expect_error(EMBER_GRAMMAR, "a schema that is none", [&] { json.set_json_schema("{\"type\": 5}"); });
}

void test_adapters(Fixture &f, const std::string &state) {
    const std::string model = f.path, path = model.substr(0, model.rfind('/') + 1) + "../tests/data/adapters/hamlet.gguf";
    emberlm::Adapter adapter(f.model, path);
    const ember_adapter_details info = adapter.info();
    expect(info.rank == 2 && info.tensor_count == 8 && std::string(info.name) == "hamlet, disturbed", "facts about an adapter");
    emberlm::Session plain(f.model), session(f.model);
    session.set_adapters({{&adapter, 1.0f}});
    for (emberlm::Session *s : {&plain, &session}) s->prefill(f.prompt);
    expect(plain.logits() != session.logits(), "an adapter changes logits");
    session.save(state);
    expect(emberlm::state_info(state).adapter_fingerprints[0] == info.fingerprint, "a saved session names its adapter");
    expect_error(EMBER_STATE_FOREIGN, "restored without its adapter", [&] { emberlm::Session::restore(f.model, state); });
    emberlm::RestoreOptions options;
    options.adapters = {{&adapter, 1.0f}};
    emberlm::Session restored = emberlm::Session::restore(f.model, state, options);
    expect(restored.logits() == session.logits(), "restored with its adapter");
    std::remove(state.c_str());
    adapter.close();
    const auto before = session.logits();
    expect_error(EMBER_INVALID_HANDLE, "a freed adapter", [&] { session.set_adapters({{&adapter, 1.0f}}); });
    session.set_adapters({}, true);
    expect(session.logits() == before, "what is kept");
    restored.set_adapters({});
    expect(restored.logits() == plain.logits(), "no adapters any more");
    expect_error(EMBER_FILE_NOT_FOUND, "no adapter", [&] { emberlm::Adapter(f.model, path + ".none"); });
}

void test_embedder(Fixture &f) {
    emberlm::EmbedderOptions options;
    options.pooling = EMBER_POOLING_MEAN;
    emberlm::Embedder embedder(f.model, options);
    const std::size_t width = embedder.info().dimension;
    const std::vector<std::string> texts{"Once upon a time", "the king"};
    const auto both = embedder.embed(texts);
    expect(width > 0 && both.size() == 2 * width, "two vectors");
    const auto second = embedder.embed(texts[1]);
    expect(std::equal(second.begin(), second.end(), both.begin() + std::ptrdiff_t(width)), "a vector does not depend on its neighbours");
    expect(embedder.embed(std::vector<emberlm::Tokens>{f.model.tokenize(texts[0]), f.model.tokenize(texts[1])}) == both, "vectors of tokens");
    try {
        embedder.rerank("a", texts);
        expect(false, "vectors were taken for scores");
    } catch (const emberlm::Error &error) {
        expect(error.status() == EMBER_INVALID_ARGUMENT, error.what());
    }
    embedder.interrupt();
    try {
        embedder.embed(texts);
        expect(false, "an interrupt was lost");
    } catch (const emberlm::Error &error) {
        expect(error.status() == EMBER_INTERRUPTED, error.what());
    }
    embedder.close();
    const std::string model = f.path, path = model.substr(0, model.rfind('/') + 1) + "../tests/data/adapters/hamlet.gguf";
    emberlm::Adapter adapter(f.model, path);
    options.adapters = {{&adapter, 1.0f}};
    emberlm::Embedder adapted(f.model, options);
    adapter.close();
    expect(adapted.embed(texts) != both, "an adapter changes vectors");
    expect_error(EMBER_INVALID_HANDLE, "an embedder with a freed adapter", [&] { emberlm::Embedder(f.model, options); });
}

void test_streams(Fixture &f) {
    emberlm::TextStream stream(f.model, {"brush"}, true);
    std::string text;
    for (const auto token : parse(f.reference["greedy_tokens"])) text += stream.push(token);
    expect(text == " One cold morning, she lost her blue " && stream.info().stopped == 1, "text stream: " + text);
    expect(stream.finish().empty() && stream.info().stopped == 0, "finish");
    text = stream.push(parse(f.reference["json_tokens"]));
    expect(text + stream.finish() == f.reference["json_text"], "used again");
    stream.close();
    expect_error(EMBER_INVALID_HANDLE, "a closed stream", [&] { stream.push(1); });
}

void test_started(Fixture &f) {
    const auto want = parse(f.reference["greedy_tokens"]);
    emberlm::Session session(f.model);
    session.prefill_start(f.prompt);
    emberlm::Session::Progress progress{false, 0};
    while (!(progress = session.prefill_poll()).done) std::this_thread::yield();
    expect(progress.evaluated == f.prompt.size(), "started prefill");
    session.decode_start(3);
    expect_error(EMBER_DECODE_PENDING, "decode before poll", [&] { session.decode(); });
    for (int i = 0; i < 3; i++) {
        std::optional<emberlm::Token> token;
        while (!(token = session.decode_poll())) std::this_thread::yield();
        expect(*token == want[static_cast<std::size_t>(i)], "started token");
    }
    expect_error(EMBER_NOTHING_PENDING, "poll without start", [&] { session.decode_poll(); });

    auto other = session.fork();
    emberlm::Session *both[] = {&session, &other};
    expect(emberlm::decode_batch({both, both + 2}) == emberlm::Tokens(2, want[3]), "batch");
    expect_error(EMBER_INVALID_ARGUMENT, "a session twice", [&] { emberlm::decode_batch({&session, &session}); });
}

void test_states(Fixture &f, const std::string &file) {
    const auto want = parse(f.reference["greedy_tokens"]);
    emberlm::Session session(f.model);
    session.prefill(f.prompt);
    session.save(file);
    expect(emberlm::state_info(file).position == f.prompt.size(), "state_info");
    auto restored = emberlm::Session::restore(f.model, file);
    std::remove(file.c_str());
    expect(restored.decode() == want[0], "restored");
    std::string bytes;
    session.save_to([&](const void *from, std::size_t count) { return bytes.append(static_cast<const char *>(from), count), true; },
                    EMBER_STATE_TOKENS);
    std::size_t at = 0;
    auto again = emberlm::Session::restore_from(f.model, [&](void *to, std::size_t capacity) {
        const auto count = std::min(capacity, bytes.size() - at);
        std::memcpy(to, bytes.data() + at, count);
        at += count;
        return count;
    });
    expect(again.decode() == want[0], "restored from memory");
    expect_error(EMBER_CANCELLED, "saving that is ended", [&] { session.save_to([](const void *, std::size_t) { return false; }); });
    try {
        emberlm::Session::restore_from(f.model, [](void *, std::size_t) -> std::size_t { throw std::logic_error("mine"); });
        expect(false, "a source that throws");
    } catch (const std::logic_error &) {
        expect(true, "");
    }
    expect_error(EMBER_FILE_NOT_FOUND, "no state", [&] { emberlm::Session::restore(f.model, file); });
    session.evict();
    session.resume();
    session.erase(2, 3);
    auto shorter = f.prompt;
    shorter.erase(shorter.begin() + 2, shorter.begin() + 5);
    expect(session.tokens() == shorter, "erase");
}

void test_life(Fixture &f) {
    static_assert(!std::is_copy_constructible_v<emberlm::Session> && !std::is_copy_assignable_v<emberlm::Model>);
    static_assert(std::is_nothrow_move_constructible_v<emberlm::Session> && std::is_nothrow_move_assignable_v<emberlm::TextStream>);
    auto model = emberlm::Model::load(f.path);
    emberlm::Session session(model);
    model.close();
    model.close();
    expect_error(EMBER_INVALID_HANDLE, "a closed model", [&] { model.info(); });
    session.prefill(f.prompt);
    expect(session.decode() == parse(f.reference["greedy_tokens"])[0], "a session outlives its model's handle");
    ember_session *raw = session.get();
    emberlm::Session moved = std::move(session);
    expect_error(EMBER_INVALID_HANDLE, "a session that was moved from", [&] { session.decode(); });
    moved.close();
    expect_error(EMBER_INVALID_HANDLE, "a closed session", [&] { moved.decode(); });
    expect_error(EMBER_INVALID_HANDLE, "interrupt of a closed session", [&] { moved.interrupt(); });
    std::size_t position = 0;
    expect(ember_session_position(raw, &position, nullptr) == EMBER_INVALID_HANDLE, "its C handle is invalid");
    {
        emberlm::Session scoped(f.model);
        raw = scoped.get();
    }
    expect(ember_session_position(raw, &position, nullptr) == EMBER_INVALID_HANDLE, "a destructor frees");
    emberlm::Session a(f.model), b(f.model);
    raw = a.get();
    a = std::move(b);
    expect(ember_session_position(raw, &position, nullptr) == EMBER_INVALID_HANDLE, "an assignment frees");
    expect(a.position() == 0, "and takes over");
    try {
        a.prefill({1, 2, 4000000000u});
        expect(false, "a token that is none");
    } catch (const emberlm::Error &error) {
        expect(error.status() == EMBER_INVALID_TOKEN && error.index() == 2 && !error.message().empty(), "the index of the token");
    }
}

void test_groups(Fixture &f) {
    emberlm::Group first({0, 2, 500, "", ""});
    const std::string id = first.id();
    emberlm::Group second({1, 2, 0, "", id});
    expect(second.id() == id && !id.empty(), "ranks of a group have one id");
    expect_error(EMBER_INVALID_ARGUMENT, "a rank that cannot be", [&] { emberlm::Group({2, 2, 0, "", id}); });
    expect_error(EMBER_INVALID_ARGUMENT, "an address of all", [&] { emberlm::Group({0, 2, 0, "0.0.0.0", ""}); });
    emberlm::ModelOptions options;
    options.group = &first;
    expect_error(EMBER_UNSUPPORTED, "a share of each layer on a CPU", [&] { emberlm::Model::load(f.path, options); });
    expect_error(EMBER_INVALID_ARGUMENT, "a group that was used", [&] { emberlm::Model::load(f.path, options); });
}

void test_background(Fixture &f) {
    emberlm::Event event;
    expect(event.native() >= 0, "an event has a handle");
    emberlm::Load load(f.path, {}, &event);
    std::optional<emberlm::Model> loaded;
    float fraction = -1;
    while (!(loaded = load.poll(&fraction))) std::this_thread::yield();
    expect(fraction == 1, "a load that has ended");
    expect_error(EMBER_NOTHING_PENDING, "the end of a load, again", [&] { load.poll(); });
    load.cancel();
    expect_error(EMBER_FILE_NOT_FOUND, "a load of nothing", [&] {
        emberlm::Load none("no such file");
        while (!none.poll()) std::this_thread::yield();
    });
    emberlm::Session session(*loaded), other(*loaded);
    event.clear();
    session.set_event(&event);
    const auto want = other.generate(f.prompt, {8});
    for (const bool wait : {true, false}) {
        std::string text;
        session.rewind(0);
        session.generate_start(f.prompt, {8});
        expect_error(EMBER_DECODE_PENDING, "a decode beside a generation", [&] { session.decode(); });
        for (;;) {
            const auto piece = session.next_piece(wait);
            if (!piece) {
                std::this_thread::yield();
                continue;
            }
            text += piece->text;
            if (piece->is_last()) break;
        }
        const auto got = session.finish();
        expect(text == want.text && got.end == want.end && got.token == want.token, "pieces that are pulled");
    }
    session.set_event(nullptr);
    emberlm::decode_batch_start({&session, &other});
    std::optional<emberlm::Token> a, b;
    while (!(a = session.decode_poll()) || !(b = other.decode_poll()))
        if (a) break;
    while (!b) b = other.decode_poll();
    expect(*a == *b, "a batch that was started");
    const auto token = session.decode_token();
    expect(token.id == other.decode() && token.status == EMBER_OK, "a token");
    emberlm::Session empty(*loaded);
    const auto each = emberlm::decode_each({&session, &empty});
    expect(each[0].status == EMBER_OK && each[0].id == other.decode() && each[1].status == EMBER_NO_INPUT, "a status for each session");
    loaded->close();
    expect(session.model().info().vocab_size == session.info().vocab_size, "a session knows its model");
}

void test_threads(Fixture &f) {
    emberlm::Session session(f.model);
    int busy = 0;
    session.generate(f.prompt, {3}, [&](std::string_view, const ember_token &) {
        std::thread([&] {
            try {
                session.decode();
            } catch (const emberlm::Error &error) {
                busy += error.status() == EMBER_BUSY;
            }
        }).join();
        return true;
    });
    expect(busy == 3, "a session in use is busy");
    session.rewind(0);
    const auto made = session.generate(f.prompt, {}, [&](std::string_view, const ember_token &) {
        session.interrupt();
        return true;
    });
    expect(made.end == EMBER_END_INTERRUPTED, "interrupt");
    session.interrupt();
    expect_error(EMBER_INTERRUPTED, "an interrupt stays", [&] { session.prefill(f.prompt); });
    session.interrupt();
    session.clear_interrupt();
    session.rewind(0);
    session.prefill(f.prompt);

    std::atomic<int> equal{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++)
        threads.emplace_back([&] {
            emberlm::Session own(f.model);
            equal += own.generate(f.prompt, {40}).text == f.reference["greedy_text"];
        });
    for (auto &thread : threads) thread.join();
    expect(equal == 4, "sessions on threads");
}

void test_log(Fixture &f) {
    std::atomic<int> messages{0};
    emberlm::set_log([&](ember_log_level, std::string_view text) {
        messages += !text.empty();
        throw std::logic_error("dropped");
    });
    emberlm::Model::load(f.path);
    const int heard = messages;
    expect(heard > 0, "log");
    emberlm::set_log(nullptr);
    emberlm::Model::load(f.path);
    expect(messages == heard, "log turned off");
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 3) {
        std::cerr << "usage: test model.gguf reference.txt\n";
        return 2;
    }
    try {
        Fixture f{argv[1], read_reference(argv[2]), emberlm::Model::load(argv[1]), {}};
        f.prompt = f.model.tokenize(f.reference["story"]);
        test_versions(f);
        test_model(f);
        test_sources(f);
        test_answers(f);
        test_chat_and_json(f);
        test_streams(f);
        test_adapters(f, std::string(argv[0]) + ".adapted");
        test_embedder(f);
        test_started(f);
        test_states(f, std::string(argv[0]) + ".state");
        test_life(f);
        test_groups(f);
        test_background(f);
        test_threads(f);
        test_log(f);
    } catch (const std::exception &error) {
        std::cerr << "FAILED: " << error.what() << "\n";
        return EXIT_FAILURE;
    }
    std::cout << checks << " checks, " << failures << " failures\n";
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
