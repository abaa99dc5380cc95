/* Random sequences of calls of every function, and what must hold for each of them.
 *
 *     calls MODEL [--calls N] [--seed N] [--sequence N] [--show] [--without-level]
 *
 * The calls are divided into sequences of some hundred, each with handles of its own and a random seed made of the seed of the
 * run; two of three are made by one thread, the others by two to four that share models, sessions and streams. Of each call:
 *
 * - the status is one that the function's comment in the header names, and, where all is known about the arguments, the one
 *   that must come;
 * - the error struct has the status and a message; outputs are written on success alone, and nothing beside them;
 * - sessions stand where they should; a session that a call left alone, or that it failed with, goes on as a copy of it
 *   from before (a random choice of calls);
 * - nothing is printed, and after each sequence the process has as many blocks of memory, mappings, threads and files as before.
 *
 * --sequence repeats one sequence alone. CALLS_DEFECT plants a defect in this program, which has to be found.  */
#include "calls.h"
#include "header.h"
#include "level.h"
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

const std::vector<Function> FUNCTIONS = {
    {"ember_abi_version", 1, calls::abi_version},
    {"ember_version", 1, calls::version},
    {"ember_version_number", 1, calls::version_number},
    {"ember_status_name", 2, calls::status_name},
    {"ember_set_log_callback", 4, calls::set_log_callback},
    {"ember_device_count", 2, calls::device_count},
    {"ember_device_info", 3, calls::device_info},
    {"ember_model_load", 5, calls::load_model},
    {"ember_model_load_from", 5, calls::load_model_from},
    {"ember_model_info", 6, calls::model_info},
    {"ember_model_part_info", 4, calls::model_part_info},
    {"ember_model_metadata", 6, calls::metadata},
    {"ember_model_metadata_key", 4, calls::metadata_key},
    {"ember_tokenizer_info", 4, calls::tokenizer_info},
    {"ember_end_tokens", 4, calls::end_tokens},
    {"ember_supported", 2, calls::supported},
    {"ember_model_free", 4, calls::free_model},
    {"ember_session_set_sampling", 12, calls::set_sampling},
    {"ember_session_logprobs", 12, calls::logprobs},
    {"ember_session_create", 14, calls::create_session},
    {"ember_session_info", 10, calls::session_info},
    {"ember_session_position", 10, calls::position},
    {"ember_session_rewind", 14, calls::rewind},
    {"ember_session_fork", 10, calls::fork},
    {"ember_session_logits", 14, calls::logits},
    {"ember_session_interrupt", 12, calls::interrupt},
    {"ember_session_clear_interrupt", 12, calls::clear_interrupt},
    {"ember_session_tokens", 10, calls::session_tokens},
    {"ember_session_sync", 16, calls::sync},
    {"ember_generate", 16, calls::generate},
    {"ember_session_free", 14, calls::free_session},
    {"ember_prefill", 70, calls::prefill},
    {"ember_prefill_start", 16, calls::prefill_start},
    {"ember_prefill_poll", 40, calls::prefill_poll},
    {"ember_decode", 50, calls::decode},
    {"ember_decode_start", 12, calls::decode_start},
    {"ember_decode_start_n", 12, calls::decode_start_n},
    {"ember_decode_poll", 50, calls::decode_poll},
    {"ember_decode_batch", 16, calls::decode_batch},
    {"ember_decode_batch_start", 12, calls::decode_batch_start},
    {"ember_generate_start", 20, calls::generate_start},
    {"ember_generate_next", 40, calls::generate_next},
    {"ember_generate_finish", 24, calls::generate_end},
    {"ember_session_set_event", 8, calls::set_event},
    {"ember_session_model", 3, calls::session_model},
    {"ember_event_create", 4, calls::create_event},
    {"ember_event_handle", 3, calls::event_handle},
    {"ember_event_clear", 4, calls::clear_event},
    {"ember_event_free", 3, calls::free_event},
    {"ember_group_create", 4, calls::create_group},
    {"ember_group_id", 3, calls::group_id},
    {"ember_group_free", 3, calls::free_group},
    {"ember_model_load_start", 4, calls::start_load},
    {"ember_load_poll", 12, calls::poll_load},
    {"ember_load_cancel", 2, calls::cancel_load},
    {"ember_load_free", 4, calls::free_load},
    {"ember_session_save", 6, calls::save},
    {"ember_session_save_to", 6, calls::save_to},
    {"ember_session_restore", 6, calls::restore},
    {"ember_session_restore_from", 8, calls::restore_from},
    {"ember_session_state_info", 6, calls::state_info},
    {"ember_session_erase", 12, calls::erase},
    {"ember_session_evict", 8, calls::evict},
    {"ember_session_resume", 6, calls::resume},
    {"ember_model_evict", 4, calls::evict_model},
    {"ember_model_resume", 4, calls::resume_model},
    {"ember_session_set_grammar", 4, calls::set_grammar},
    {"ember_session_set_speculation", 5, calls::set_speculation},
    {"ember_session_speculation_info", 5, calls::speculation_info},
    {"ember_model_estimate", 5, calls::estimate},
    {"ember_model_estimate_part", 3, calls::estimate},
    {"ember_session_profile", 6, calls::profile},
    {"ember_tokenize", 12, calls::tokenize},
    {"ember_tokenize_with", 8, calls::tokenize_with},
    {"ember_detokenize", 10, calls::detokenize},
    {"ember_token_text", 10, calls::token_text},
    {"ember_token_is_end", 8, calls::token_is_end},
    {"ember_text_stream_create", 8, calls::create_stream},
    {"ember_text_stream_push", 16, calls::push},
    {"ember_text_stream_finish", 8, calls::finish},
    {"ember_text_stream_info", 6, calls::stream_info},
    {"ember_text_stream_free", 6, calls::free_stream},
    {"ember_adapter_load", 8, calls::load_adapter},
    {"ember_adapter_info", 8, calls::adapter_info},
    {"ember_adapter_free", 2, calls::free_adapter},
    {"ember_session_set_adapters", 5, calls::set_adapters},
    {"ember_embedder_create", 4, calls::create_embedder},
    {"ember_embedder_info", 4, calls::embedder_info},
    {"ember_embed", 6, calls::embed},
    {"ember_embed_tokens", 6, calls::embed_tokens},
    {"ember_rerank", 4, calls::rerank},
    {"ember_embedder_interrupt", 2, calls::interrupt_embedder},
    {"ember_embedder_free", 3, calls::free_embedder},
    {"ember_chat_format", 6, calls::chat_format},
    {"ember_chat_tokenize", 6, calls::chat_tokenize},
};

static const int PER_SEQUENCE = 400;
/* A call that takes longer hangs. */
static const int PATIENCE_S = 120;

/* --- files --- */

static std::string read_file(const std::string &path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

static void write_file(const std::string &path, const std::string &bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
}

/* Damaged models: some must not load, others may. */
static void make_files(uint64_t seed) {
    Random random{seed};
    std::string tiny = read_file(run.tiny);
    run.tiny_bytes = tiny;
    if (tiny.size() < 10000) {
        fprintf(stderr, "%s cannot be read; run this in the repository\n", run.tiny.c_str());
        exit(2);
    }
    auto bad = [&](const char *name, const std::string &bytes) {
        run.bad_paths.push_back(run.scratch + "/" + name);
        write_file(run.bad_paths.back(), bytes);
    };
    bad("empty", "");
    bad("text", "Once upon a time");
    bad("magic", "GGUF");
    for (int i = 0; i < 5; i++) bad(("cut-" + std::to_string(i)).c_str(), tiny.substr(0, 8 + random.below(tiny.size() - 8)));
    run.bad_paths.insert(run.bad_paths.end(), {run.scratch, run.scratch + "/none", "/dev/null", "", "\xff", std::string("a\0b", 3)});
    for (int i = 0; i < 12; i++) {
        std::string bytes = tiny;
        for (int n = 0; n < 3; n++) bytes[24 + random.below(3000)] ^= char(1 << random.below(8));
        run.odd_models.push_back(run.scratch + "/odd-" + std::to_string(i));
        write_file(run.odd_models.back(), bytes);
    }
    std::filesystem::create_directory(run.scratch + "/folder");
    for (const char *name : {"config.json", "model.safetensors"})
        write_file(run.scratch + "/folder/" + name, read_file(std::string("tests/data/families/mistral/") + name));
    write_file(run.scratch + "/folder/tokenizer.json", read_file("tests/memory/tokenizer.json"));
    run.folder = run.scratch + "/folder";
}

/* --- sequences --- */

static std::shared_ptr<Model> load(const std::string &path) {
    ember_model_options o = {};
    ember_model *handle;
    ember_error err;
    o.struct_size = sizeof o;
    o.threads = 2;
    if (ember_model_load(path.data(), path.size(), &o, &handle, &err)) failed("%s does not load: %s", path.c_str(), err.message);
    return describe(handle, true);
}

void session_calls_begin(World &w) {
    if (w.commons) return;
    w.models.push_back(load(run.tiny));
    if (w.random.chance(60)) w.models.push_back(load(run.hamlet));
}

static void sequence(uint64_t seed, long n_calls) {
    Random random{seed};
    std::atomic<long> limit{run.progress->calls + n_calls};
    if (random.chance(66)) {
        World world(random.next(), nullptr, 0);
        world.steps(limit);
        world.free_all();
    } else {
        Commons commons;
        commons.models = {load(run.tiny), load(run.hamlet)};
        std::vector<std::unique_ptr<World>> worlds;
        std::vector<std::thread> threads;
        for (size_t n = 2 + random.below(3); n > 0; n--) worlds.push_back(std::make_unique<World>(random.next(), &commons, n - 1));
        for (auto &world : worlds) threads.emplace_back([&world, &limit] { world->steps(limit); });
        for (auto &thread : threads) thread.join();
        for (auto &world : worlds) world->free_all();
        for (auto *s : commons.sessions)
            if (ember_session_free(s)) failed("a session that threads shared cannot be freed");
        for (auto *s : commons.streams)
            if (ember_text_stream_free(s)) failed("a text stream that threads shared cannot be freed");
        for (auto &m : commons.models)
            if (ember_model_free(m->handle)) failed("a model that threads shared cannot be freed");
    }
    if (run.borrowed != run.released) failed("of %ld files in memory that models borrowed, %ld were released", run.borrowed.load(), run.released.load());
    if (ember_set_log_callback(nullptr, nullptr, EMBER_LOG_DEBUG, nullptr)) failed("the log cannot be turned off");
}

/* What the library keeps for good is made here: tables of handles, the list of devices, variables of the thread. */
static void warm_up() {
    auto model = load(run.hamlet);
    std::vector<ember_session *> sessions(100);
    std::vector<ember_text_stream *> streams(100);
    std::vector<std::shared_ptr<Model>> models;
    for (auto &s : sessions)
        if (ember_session_create(model->handle, nullptr, &s, nullptr)) failed("no session");
    for (auto &s : streams)
        if (ember_text_stream_create(model->handle, nullptr, &s, nullptr)) failed("no text stream");
    for (int i = 0; i < 20; i++) models.push_back(load(run.tiny));
    for (auto *s : sessions) ember_session_free(s);
    for (auto *s : streams) ember_text_stream_free(s);
    for (auto &m : models) ember_model_free(m->handle);
    ember_model_free(model->handle);
}

/* What a sequence leaves behind. */
static level sequence_grows(uint64_t seed) {
    level before = level_now();
    sequence(seed, PER_SEQUENCE);
    static void *volatile leaked;
    if (run.defect == Defect::Leak) leaked = malloc(10);
    (void)leaked;
    level after = level_now();
    /* Threads that have ended leave the list of the system a moment later. */
    for (int wait = 0; wait < 100 && after.threads > before.threads; wait++) {
        usleep(10000);
        after = level_now();
    }
    return {after.blocks - before.blocks, after.bytes - before.bytes, after.mapped - before.mapped, after.threads - before.threads,
            after.files - before.files};
}

static bool any(const level &l) { return l.blocks > 0 || l.mapped > 0 || l.threads > 0 || l.files > 0; }

static int output;

static void child(uint64_t seed, long n_calls, long only, bool show, bool with_level) {
    Progress &p = *run.progress;
    run.documented = documented("include");
    for (const auto &[name, statuses] : run.documented) run.functions.push_back(name);
    for (const Function &f : FUNCTIONS)
        if (!run.documented.count(f.name)) failed("%s is not in the header", f.name);
    if (run.functions.size() != FUNCTIONS.size()) failed("the header has %zu functions, the table %zu", run.functions.size(), FUNCTIONS.size());
    if (!show) {
        dup2(output, 1);
        dup2(output, 2);
    }
    warm_up();
    /* Sequences that are not counted, for what a first use makes for good. */
    for (int i = 0; i < 6 && only < 0; i++) {
        p.sequence = -1 - i;
        sequence(uint64_t(i) * 77 + 5, 200);
    }
    long before_calls = p.calls;
    for (long i = only < 0 ? 0 : only; p.calls - before_calls < n_calls; i++) {
        p.sequence = i;
        /* What is made once for good grows once; what is lost is lost each time. */
        level grown = sequence_grows(seed * 1000003 + uint64_t(i));
        for (int again = 0; again < 3 && with_level && any(grown); again++) grown = sequence_grows(seed * 1000003 + uint64_t(i));
        if (with_level && any(grown))
            failed("each time that all is freed, there are %+ld blocks with %+ld bytes, %+ld mapped bytes, %+ld threads, %+ld files",
                   grown.blocks, grown.bytes, grown.mapped, grown.threads, grown.files);
        if (!show && lseek(output, 0, SEEK_END) > 0) {
            char said[400] = "";
            if (pread(output, said, sizeof said - 1, 0) < 0) said[0] = 0;
            failed("something was printed: %s", said);
        }
        if (only >= 0) break;
    }
    if (only >= 0) return;
    /* A run that is long enough calls everything, and everything works once. */
    for (size_t f = 0; f < FUNCTIONS.size() && n_calls >= 20000; f++)
        /* No model here scores pairs: its errors are tested, tests/models/embeddings.rs has the rest. */
        if (!p.counts[f][EMBER_OK] && strcmp(FUNCTIONS[f].name, "ember_rerank")) failed("%s never succeeded", FUNCTIONS[f].name);
}

/* --- the parent --- */

static int report(int status, uint64_t seed) {
    Progress &p = *run.progress;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && !p.failed) return 0;
    std::vector<const Progress::Line *> lines;
    for (auto &of_thread : p.line)
        for (auto &line : of_thread)
            if (line.number > p.lines - Progress::LINES) lines.push_back(&line);
    std::sort(lines.begin(), lines.end(), [](auto *a, auto *b) { return a->number < b->number; });
    for (auto *line : lines) printf("    %.*s\n", int(sizeof line->text), line->text);
    if (p.failed) printf("FAILED: %s\n", p.failure);
    else if (WIFSIGNALED(status)) printf("FAILED: the process died of signal %d\n", WTERMSIG(status));
    else printf("FAILED: the process ended with %d\n", WEXITSTATUS(status));
    printf("in sequence %ld; repeat it with --seed %llu --sequence %ld\n", p.sequence.load(), (unsigned long long)seed, p.sequence.load());
    return 1;
}

static int watch(pid_t pid) {
    int status;
    long calls = -1;
    for (int waited = 0;; usleep(20000)) {
        pid_t ended = waitpid(pid, &status, WNOHANG);
        if (ended == pid) return status;
        if (ended < 0 && errno != EINTR) exit(2);
        if (run.progress->calls != calls) waited = 0;
        calls = run.progress->calls;
        int patience = run.defect == Defect::Hang ? 3 : PATIENCE_S;
        if (++waited > patience * 50) {
            if (!run.progress->failed.exchange(1)) snprintf(run.progress->failure, 200, "nothing ended for %d s", patience);
            kill(pid, SIGABRT);
        }
    }
}

int main(int argc, char **argv) {
    static const char *const DEFECTS[] = {"none", "status", "output", "guard", "message", "position", "twin", "print", "leak", "crash", "hang"};
    long n_calls = 100000, only = -1;
    uint64_t seed = std::random_device{}();
    bool show = false, with_level = true;
    for (int i = 1; i < argc; i++) {
        std::string a = argv[i];
        if (a == "--calls" && i + 1 < argc) n_calls = atol(argv[++i]);
        else if (a == "--seed" && i + 1 < argc) seed = strtoull(argv[++i], nullptr, 10);
        else if (a == "--sequence" && i + 1 < argc) only = atol(argv[++i]);
        else if (a == "--show") show = true;
        else if (a == "--without-level") with_level = false;
        else run.hamlet = a;
    }
    if (run.hamlet.empty()) {
        fprintf(stderr, "usage: calls MODEL [--calls N] [--seed N] [--sequence N] [--show] [--without-level]\n");
        return 2;
    }
    /* Stacks of ended threads that are kept for the next ones would look like leaks. */
    if (!getenv("GLIBC_TUNABLES")) {
        setenv("GLIBC_TUNABLES", "glibc.pthread.stack_cache_size=0", 1);
        execv("/proc/self/exe", argv);
    }
    if (const char *name = getenv("CALLS_DEFECT")) {
        for (int i = 0; i < 11; i++)
            if (!strcmp(name, DEFECTS[i])) run.defect = Defect(i);
        printf("with a planted defect: %s\n", DEFECTS[int(run.defect)]);
    }
    char scratch[] = "/tmp/emberlm-calls-XXXXXX", file[] = "/tmp/emberlm-calls-output-XXXXXX";
    output = mkstemp(file);
    unlink(file);
    void *memory = mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (output < 0 || memory == MAP_FAILED || !mkdtemp(scratch)) {
        perror("calls");
        return 2;
    }
    run.progress = new (memory) Progress();
    run.scratch = scratch;
    run.tiny = "tests/data/families/llama_plain.gguf";
    run.other = "tests/data/families/qwen2/model.gguf";
    make_files(seed);
    printf("seed %llu, %ld calls\n", (unsigned long long)seed, n_calls);
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0) {
        perror("fork");
        return 2;
    }
    if (pid == 0) {
        child(seed, n_calls, only, show, with_level);
        exit(0);
    }
    int result = report(watch(pid), seed);
    Progress &p = *run.progress;
    std::filesystem::remove_all(scratch);
    if (result) return result;
    for (size_t f = 0; f < FUNCTIONS.size(); f++) {
        printf("%-28s", FUNCTIONS[f].name);
        for (int s = 0; s < Progress::STATUSES; s++)
            if (p.counts[f][s]) printf(" %s %ld", s ? ember_status_name(s) + 6 : "OK", p.counts[f][s].load());
        printf("\n");
    }
    printf("%ld calls in %ld sequences, none failed\n", p.calls.load(), p.sequence.load() + 1);
    return 0;
}
