"""Makes tokenizers.jsonl.xz: small tokenizers in the format of Hugging Face's tokenizers library, each with
texts, the ids that the library gives them, and the text that it makes of the ids.

    python make_tokenizers.py        # needs the package tokenizers, made with 0.23
"""

import json
import lzma
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors, trainers
from tokenizers import pre_tokenizers as pre

HERE = Path(__file__).parent
CORPUS = [
    "The miller's daughter walked to the village well, and the well was dry.",
    "It's 1234567 o'clock; don't ask why they'd say so! We'll see, I'm sure.",
    "def main(argv):\n    return [x ** 2 for x in range(10)]\n\n\tprint('done')\r\n",
    "Grüße aus München: naïve façade, œuvre, Straße und Ärger.",
    "Он пошёл домой. 中文字符和标点。日本語のテキスト、カタカナ。 नमस्ते दुनिया",
    "walked walking walks talked talking talks jumped jumping jumps",
] * 3
TEXTS = [
    "",
    " ",
    "   ",
    "a",
    "Hello world",
    " Hello  world ",
    "The village well walked.\n\n\n  don't WE'LL 12345",
    "naïve cafe\u0301 \u00bd \ufb01 \u212b Ⅷ \u1e9e Straße",
    "中文a日本語b नमस्ते 🦙👩‍👩‍👧 \u200b\ufeff",
    "<s>x</s> <mask> y<mask>z  <tool> <|end|>",
    "wordtag tag tagged tag.",
    "tabs\tand\u00a0spaces\u3000\u2028here\x00\x7f",
    "▁under▁score ▁",
    "x" * 120,
    "Is this so ? Yes , it 's not ! I 'm",
]
ADDED = [
    AddedToken("<s>", special=True, normalized=False),
    AddedToken("</s>", special=True, normalized=False),
    AddedToken("<|end|>", special=True, normalized=False, rstrip=True),
    AddedToken("<mask>", special=True, normalized=False, lstrip=True),
    AddedToken("tag", normalized=True, single_word=True),
    AddedToken("<tool>", normalized=False),
]


def train(model, trainer, normalizer, pre_tokenizer, decoder, added=ADDED, post=None):
    tokenizer = Tokenizer(model)
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    if decoder:
        tokenizer.decoder = decoder
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(added)
    if post:
        tokenizer.post_processor = post(tokenizer)
    return tokenizer


def bpe(size=420, **settings):
    alphabet = pre.ByteLevel.alphabet() if settings.pop("bytes", False) else []
    special = settings.pop("special", [])
    return trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, special_tokens=special, show_progress=False, **settings
    )


def template(tokenizer):
    ids = [(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")]
    return processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ids)


def split(pattern, behavior="isolated", invert=False):
    return pre.Split(Regex(pattern), behavior, invert)


LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
POSSESSIVE = r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s+$|\s+"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
META = decoders.Metaspace


def tokenizers():
    byte_decoder = decoders.ByteLevel()
    no_regex = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    for name, steps in {
        "gpt2": pre.ByteLevel(add_prefix_space=False),
        "prefix_space": pre.ByteLevel(add_prefix_space=True),
        "llama3": pre.Sequence([split(LLAMA3), no_regex]),
        "possessive": pre.Sequence([split(POSSESSIVE), no_regex]),
        "digits": pre.Sequence([pre.Digits(True), pre.ByteLevel(add_prefix_space=False)]),
        "falcon": pre.Sequence(
            [pre.Punctuation("contiguous"), pre.ByteLevel(False), pre.Digits(False), split("[0-9][0-9][0-9]")]
        ),
        "groups": pre.Sequence([split(r"(?=(\d{3})+(?!\d))"), no_regex]),
        "removed": pre.Sequence([split(r"[,.]", "removed"), split(" ", "merged_with_next"), no_regex]),
        "joined": pre.Sequence([split(r"\w+", "removed", True), split("[aeiou]", "merged_with_previous"), no_regex]),
        "fixed": pre.Sequence([pre.FixedLength(5), pre.ByteLevel(False, use_regex=False)]),
    }.items():
        yield name, train(models.BPE(), bpe(bytes=True), None, steps, byte_decoder, post=template)
    yield "nfc_ignore_merges", train(
        models.BPE(ignore_merges=True), bpe(bytes=True), normalizers.NFC(), pre.ByteLevel(False), byte_decoder
    )
    llama = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    llama_decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    fallback = models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    yield "llama2", train(
        fallback, bpe(700, special=["<unk>", *BYTES]), llama, None, llama_decoder, ADDED, template
    )
    unknown = models.BPE(unk_token="<unk>", fuse_unk=False)
    yield "characters", train(unknown, bpe(special=["<unk>"]), None, pre.Whitespace(), None)
    unknown = models.BPE(unk_token="<unk>", fuse_unk=False)
    yield "whitespace", train(unknown, bpe(special=["<unk>"]), normalizers.Lowercase(), pre.WhitespaceSplit(), None)
    fused = models.BPE(unk_token="<unk>", fuse_unk=True)
    yield "metaspace_first", train(
        fused, bpe(special=["<unk>"]), None, pre.Metaspace(prepend_scheme="first"), META(prepend_scheme="first")
    )
    suffix = models.BPE(unk_token="<unk>", end_of_word_suffix="</w>")
    yield "suffix", train(
        suffix,
        bpe(special=["<unk>"], end_of_word_suffix="</w>"),
        normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]),
        pre.BertPreTokenizer(),
        decoders.BPEDecoder("</w>"),
    )
    unigram = dict(vocab_size=200, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    yield "unigram", train(
        models.Unigram(),
        trainers.UnigramTrainer(**unigram),
        normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]),
        pre.Metaspace(),
        META(),
        post=template,
    )
    yield "unigram_never", train(
        models.Unigram(),
        trainers.UnigramTrainer(**unigram),
        normalizers.Strip(),
        pre.Metaspace(prepend_scheme="never", split=False),
        META(prepend_scheme="never"),
    )
    wordpiece = trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]"], show_progress=False)
    yield "bert", train(
        models.WordPiece(unk_token="[UNK]"),
        wordpiece,
        normalizers.BertNormalizer(),
        pre.BertPreTokenizer(),
        decoders.WordPiece(),
        post=lambda t: processors.BertProcessing(("</s>", t.token_to_id("</s>")), ("<s>", t.token_to_id("<s>"))),
    )
    yield "bert_cased", train(
        models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=6),
        wordpiece,
        normalizers.BertNormalizer(lowercase=False, handle_chinese_chars=False),
        pre.Sequence([pre.WhitespaceSplit(), pre.CharDelimiterSplit("'")]),
        decoders.WordPiece(cleanup=False),
    )
    words = trainers.WordLevelTrainer(vocab_size=100, special_tokens=["[UNK]"], show_progress=False)
    yield "words", train(models.WordLevel(unk_token="[UNK]"), words, None, pre.Whitespace(), None)


with lzma.open(HERE / "tokenizers.jsonl.xz", "wt", encoding="utf-8") as out:
    for name, tokenizer in tokenizers():
        cases = []
        for text in TEXTS:
            ids = tokenizer.encode(text).ids
            cases.append([text, ids, tokenizer.decode(ids, skip_special_tokens=False)])
        line = {"name": name, "tokenizer": json.loads(tokenizer.to_str()), "cases": cases}
        out.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
