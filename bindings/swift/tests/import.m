// Every kind of declaration of the header, through the module.
@import CEmberLM;

_Static_assert(sizeof(ember_error) == 1024, "a struct");
_Static_assert(EMBER_ABI_VERSION == 1 && EMBER_VERSION_NUMBER >= 1000, "numbers");
_Static_assert(EMBER_KV_Q8_0 == 3, "a value of an enum");

static int32_t piece(void *user, const char *text, size_t len, const ember_token *token)
{
    (void)user, (void)text, (void)len, (void)token;
    return 0;
}

ember_status generate(ember_session *session)
{
    ember_generate_options options = {0};
    options.struct_size = sizeof options;
    options.piece = piece;
    return ember_generate(session, &options, 0, 0);
}
