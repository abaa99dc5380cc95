#include "header.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>

using Statuses = std::set<ember_status>;

static std::string read_headers(const std::string &folder) {
    std::string text;
    std::set<std::filesystem::path> files;
    for (const auto &entry : std::filesystem::directory_iterator(folder))
        if (entry.path().extension() == ".h") files.insert(entry.path());
    for (const auto &path : files) {
        std::ifstream in(path);
        text.append(std::istreambuf_iterator<char>(in), {});
    }
    if (text.empty()) {
        fprintf(stderr, "%s has no header\n", folder.c_str());
        exit(2);
    }
    return text;
}

/* The numbers of all names. */
static std::map<std::string, ember_status> names() {
    std::map<std::string, ember_status> all;
    for (ember_status status = 0; status < 256; status++) {
        std::string name = ember_status_name(status);
        if (name != "EMBER_UNKNOWN") all[name] = status;
    }
    return all;
}

static std::vector<std::string> words(const std::string &text, const char *pattern) {
    std::vector<std::string> found;
    std::regex regex(pattern);
    for (std::sregex_iterator i(text.begin(), text.end(), regex), end; i != end; ++i) found.push_back(i->str());
    return found;
}

std::map<std::string, Statuses> documented(const std::string &folder) {
    const std::string text = read_headers(folder);
    const auto statuses = names();
    auto of = [&](const std::string &part) {
        Statuses found;
        for (const auto &word : words(part, "EMBER_[A-Z0-9_]+"))
            if (auto it = statuses.find(word); it != statuses.end()) found.insert(it->second);
        return found;
    };

    /* Those of the overview: the sentence that ends with "can come from every function". */
    size_t all_end = text.find("can come from every");
    size_t all_start = text.rfind("by itself.", all_end);
    if (all_end == std::string::npos || all_start == std::string::npos) {
        fprintf(stderr, "the header does not say what every function may return\n");
        exit(2);
    }
    Statuses common = of(text.substr(all_start, all_end - all_start));
    common.insert(EMBER_OK);

    std::map<std::string, std::string> sections;
    std::map<std::string, Statuses> table;
    std::regex declaration(R"(\n(?:ember_status|uint32_t|const char \*) ?\*?(ember_[a-z0-9_]+)\()");
    for (std::sregex_iterator i(text.begin(), text.end(), declaration), end; i != end; ++i) {
        std::string name = (*i)[1];
        size_t at = size_t(i->position()), start = text.rfind("/**", at), close = text.rfind("*/", at);
        std::string comment = close != std::string::npos && at - close < 4 ? text.substr(start, close - start) : "";
        size_t errors = comment.find("Errors:");
        sections[name] = errors == std::string::npos ? "" : comment.substr(errors);
        table[name] = of(sections[name]);
        /* Not an error, so it is told elsewhere. */
        if (comment.find("`EMBER_PENDING`") != std::string::npos) table[name].insert(EMBER_PENDING);
    }
    /* What a function takes over from others, until nothing is added. */
    for (bool grown = true; grown;) {
        grown = false;
        for (auto &[name, own] : table) {
            size_t before = own.size();
            for (const auto &other : words(sections[name], "ember_[a-z0-9_]+"))
                if (auto it = table.find(other); it != table.end())
                    for (ember_status status : it->second)
                        if (status != EMBER_PENDING) own.insert(status);
            grown |= own.size() > before;
        }
    }
    for (auto &[name, own] : table) own.insert(common.begin(), common.end());
    return table;
}
