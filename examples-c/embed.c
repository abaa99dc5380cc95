/* Search over sentences: the lines of a file that mean most nearly what a question means, by an embedding model.
 * usage: embed MODEL QUESTION < lines.txt        (without lines: some of its own) */
#include <emberlm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 10000, LINE = 2048, BEST = 3 };

static const char *const OWN[] = {
    "The harbour master closes the gate at ten.", "A fox was seen near the hen house.",
    "Bread rises faster in a warm kitchen.",      "The last ferry leaves before midnight.",
    "She tuned the old piano by ear.",            "Snow covered the mountain pass.",
};

static int fail(const char *what, const ember_error *err)
{
    fprintf(stderr, "%s: %s: %s\n", what, ember_status_name(err->code), err->message);
    return 1;
}

/* Reads lines, or takes those of this file where there are none. */
static size_t read_lines(ember_text *lines)
{
    static char line[LINE];
    size_t count = 0;
    while (count < MOST && fgets(line, sizeof line, stdin)) {
        size_t len = strcspn(line, "\r\n");
        char *copy = len ? (char *)malloc(len) : NULL;
        if (!copy) continue;
        memcpy(copy, line, len);
        lines[count].text = copy;
        lines[count++].len = len;
    }
    if (count == 0)
        for (; count < sizeof OWN / sizeof *OWN; count++) {
            lines[count].text = OWN[count];
            lines[count].len = strlen(OWN[count]);
        }
    return count;
}

int main(int argc, char **argv)
{
    static ember_text lines[MOST + 1];
    ember_embedder_options options = {0};
    ember_embedder_details details = {0};
    ember_model *model = NULL;
    ember_embedder *embedder = NULL;
    ember_error err;
    float *vectors = NULL, *question;
    size_t count, written, i, best;
    int result = 1;

    if (argc < 2) {
        fprintf(stderr, "usage: %s MODEL [QUESTION] < lines.txt\n", argv[0]);
        return 2;
    }
    options.struct_size = sizeof options;
    options.flags = EMBER_EMBEDDER_TRUNCATE; /* of a long line, the beginning counts */
    options.normalize = EMBER_NORMALIZE_ON;  /* so that a dot product is the cosine */
    details.struct_size = sizeof details;
    if (ember_model_load(argv[1], strlen(argv[1]), NULL, &model, &err) != EMBER_OK) return fail(argv[1], &err);
    if (ember_embedder_create(model, &options, &embedder, &err) != EMBER_OK ||
        ember_embedder_info(embedder, &details, &err) != EMBER_OK) {
        fail("embedder", &err);
        goto end;
    }

    /* The question is embedded together with the lines: it is the last text. */
    count = read_lines(lines);
    lines[count].text = argc > 2 ? argv[2] : "When does the last boat go?";
    lines[count].len = strlen(lines[count].text);
    vectors = (float *)malloc((count + 1) * details.dimension * sizeof *vectors);
    if (!vectors) goto end;
    if (ember_embed(embedder, lines, count + 1, vectors, (count + 1) * details.dimension, &written, &err) != EMBER_OK) {
        fail("embed", &err);
        goto end;
    }
    question = vectors + count * details.dimension;
    for (best = 0; best < BEST && best < count; best++) {
        size_t nearest = 0;
        float closeness = -2;
        for (i = 0; i < count; i++) {
            float dot = 0;
            unsigned d;
            if (!lines[i].text) continue;
            for (d = 0; d < details.dimension; d++) dot += question[d] * vectors[i * details.dimension + d];
            if (dot > closeness) closeness = dot, nearest = i;
        }
        printf("%6.3f  %.*s\n", (double)closeness, (int)lines[nearest].len, lines[nearest].text);
        lines[nearest].text = NULL; /* not again */
    }
    result = 0;
end:
    free(vectors);
    ember_embedder_free(embedder);
    ember_model_free(model);
    return result;
}
