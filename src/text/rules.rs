//! How byte-level vocabularies of model files cut text: one entry per name that
//! `tokenizer.ggml.pre` may have.
//!
//! The patterns are those of the models' published `tokenizer.json` or tiktoken definitions.

use super::charset::CharSet;
use super::pattern::Pattern as Compiled;
use super::pretokenizer::{Behavior, Cutter, PreTokenizer};
use crate::budget::Budget;
use crate::error::{Result, fail};

/// One step of cutting; each works on the pieces of the step before it, and sees nothing else.
enum Step {
    /// Matches of the pattern and the texts between them become pieces.
    Pattern(&'static str),
    /// See [`Cutter::SpelledNumbers`].
    SpelledNumbers,
    /// See [`Cutter::Thousands`]: of characters of this class, and whether they are pieces apart.
    Thousands(&'static str, bool),
}

use Step::{Pattern, SpelledNumbers, Thousands};

macro_rules! contraction {
    () => {
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    };
}
/// Line ends and other white space, the same at the end of most patterns.
macro_rules! spaces {
    () => {
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    };
}
macro_rules! upper {
    () => {
        r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
    };
}
macro_rules! lower {
    () => {
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    };
}
/// Words of o200k: capitals then small letters, with this after each.
macro_rules! cased_words {
    ($suffix:expr) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?",
            upper!(),
            "*",
            lower!(),
            "+",
            $suffix,
            r"|[^\r\n\p{L}\p{N}]?",
            upper!(),
            "+",
            lower!(),
            "*",
            $suffix
        )
    };
}

pub(crate) const GPT2: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
pub(crate) const DIGIT: &str = r"\p{N}";
pub(crate) const LLAMA3: &str = concat!(
    contraction!(),
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    spaces!()
);
pub(crate) const QWEN2: &str = concat!(
    contraction!(),
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    spaces!()
);
const UFAKZEKA: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    spaces!()
);
const QWEN35: &str = concat!(
    contraction!(),
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    spaces!()
);
const JAIS2: &str = concat!(
    contraction!(),
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
    r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)",
    r"|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s"
);
pub(crate) const O200K: &str = concat!(
    cased_words!(concat!(contraction!(), "?")),
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*",
    spaces!()
);
pub(crate) const TEKKEN: &str = concat!(
    cased_words!(""),
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*",
    spaces!()
);
const KIMI_K2: &str = concat!(
    r"\p{Han}+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    contraction!(),
    r"?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    contraction!(),
    r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    spaces!()
);
const BAILING: &str = concat!(
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
);
const SEED: &str = concat!(
    contraction!(),
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+",
    spaces!()
);
const EXAONE_MOE: &str = concat!(
    contraction!(),
    r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
);
/// Before digits that are threes up to the end of a number.
pub(crate) const THOUSANDS: &str = r"(?=(\d{3})+(?!\d))";
pub(crate) const NUMBERS: &str = r"\p{N}+";
/// Threes from the end of a number, which no letter follows.
pub(crate) const TINY_AYA: &str = r"\d{1,3}(?=(?:\d{3})*\b)";
/// Words of o200k, each digit alone.
const YOUTU: &str = concat!(
    cased_words!(concat!(contraction!(), "?")),
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*",
    spaces!()
);
/// Hangul, punctuation of full width, Bopomofo, Han and Kana, in runs of their own.
const YOUTU_SCRIPTS: &str = concat!(
    r"[\u{AC00}-\u{D7A3}\u{3131}-\u{318E}]+",
    r"|[\u{FF01}\u{2026}\u{201C}\u{201D}\u{2018}\u{2019}\u{2014}\u{FF1A}\u{FF1B}\u{FF0C}\u{3001}-\u{303F}",
    r"\u{FE30}-\u{FE4F}]+|[\u{3105}-\u{312F}]+|[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+"
);
/// Scripts of East and Southeast Asia.
const AFMOE_SCRIPTS: &str = concat!(
    r"[\u{4E00}-\u{9FFF}\u{3400}-\u{4DBF}\u{F900}-\u{FAFF}\u{3040}-\u{309F}\u{30A0}-\u{30FF}\u{FF65}-\u{FF9F}",
    r"\u{2F00}-\u{2FDF}\u{E40}-\u{E7F}\u{E80}-\u{EFF}\u{1780}-\u{17FF}\u{1000}-\u{109F}\u{AA60}-\u{AA7F}",
    r"\u{A9E0}-\u{A9FF}\u{AC00}-\u{D7AF}\u{1100}-\u{11FF}]+"
);
const BLOOM: &str = r" ?[^(\s|.,!?\u{2026}\u{3002}\u{FF0C}\u{3001}\u{964}\u{6D4}\u{60C})]+";
const CJK_WORDS: &str = r"[\u{4E00}-\u{9FA5}\u{800}-\u{4E00}\u{AC00}-\u{D7FF}]+";
const CHINESE_AND_KANA: &str = r"[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+";
const SPARK_WORDS: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+",
    r"|[\r\n]|\s+(?!\S)|\s+"
);
const DEEPSEEK_V3_WORDS: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*",
    spaces!()
);
/// Letters of the scripts with case, then the punctuation, that DeepSeek LLM lists one by one.
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[A-Za-z",
    r"\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}",
    r"\u{295}-\u{2AF}\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}",
    r"\u{388}-\u{38A}\u{38C}\u{38E}-\u{3A1}\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}",
    r"\u{531}-\u{556}\u{10A0}-\u{10C5}\u{13A0}-\u{13F5}\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}",
    r"\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}\u{1D79}-\u{1D9A}",
    r"\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}",
    r"\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}",
    r"\u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}",
    r"\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}",
    r"\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}\u{2126}\u{2128}\u{212A}-\u{212D}",
    r"\u{212F}-\u{2134}\u{2139}\u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}",
    r"\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}\u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}",
    r"\u{A680}-\u{A69B}\u{A722}-\u{A76F}\u{A771}-\u{A787}\u{A78B}-\u{A78E}",
    r"\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}",
    r"\u{FF41}-\u{FF5A}\u{10400}-\u{1044F}\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}",
    r"\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}\u{118A0}-\u{118DF}\u{1E900}-\u{1E943}",
    r"]+"
);
const DEEPSEEK_PUNCTUATION: &str =
    r"\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3000}-\u{3002}]+";

/// A name's rule.
pub(super) struct Rule {
    steps: &'static [Step],
    /// Text is brought to Unicode normalization form C first.
    pub nfc: bool,
    /// A piece that is a token is not merged from its bytes.
    pub whole_pieces: bool,
    /// A BOS token goes first where the file does not say.
    pub add_bos: bool,
}

const fn rule(steps: &'static [Step]) -> Rule {
    Rule {
        steps,
        nfc: false,
        whole_pieces: false,
        add_bos: false,
    }
}

fn rule_of(name: &str) -> Option<Rule> {
    let nfc = |rule| Rule { nfc: true, ..rule };
    let whole = |rule| Rule {
        whole_pieces: true,
        ..rule
    };
    let bos = |rule| Rule {
        add_bos: true,
        ..rule
    };
    Some(match name {
        // What files from before the key existed were made for.
        "default" => rule(&[
            Pattern(r"[\p{P}\$\+<=>\^~\|]+"),
            Pattern(GPT2),
            Pattern(r"\p{N}+"),
            Pattern("[0-9]{3}"),
        ]),
        "gpt-2" | "gpt2" | "phi-2" | "gigachat" | "a.x-4.0" | "mellum" | "exaone4" | "jais"
        | "trillion" | "granite-docling" | "jina-es" | "jina-de" | "jina-v1-en" | "jina-v2-es"
        | "jina-v2-de" | "jina-v2-code" | "roberta-bpe" => rule(&[Pattern(GPT2)]),
        "mpt" | "olmo" | "modern-bert" => nfc(rule(&[Pattern(GPT2)])),
        "chameleon" => bos(rule(&[
            Pattern("<sentinel:[0-9]+>"),
            Pattern("IMGIMG[A-I]{1,4}Z"),
            Pattern("[\\t\\n]|    |  "),
            Pattern(DIGIT),
            Pattern(r"[\p{P}!-/:-@\[-`{-~]"),
            Pattern(GPT2),
        ])),
        "smollm" | "starcoder" | "refact" | "codeshell" | "exaone" | "minerva-7b" | "mellum2" => {
            rule(&[Pattern(DIGIT), Pattern(GPT2)])
        }
        "command-r" => nfc(rule(&[Pattern(DIGIT), Pattern(GPT2)])),
        "falcon" => rule(&[
            // Its own tokenizer has the tables of Unicode 8.
            Pattern(r"[[\p{P}&&\p{Age=8.0}]\$\+<=>\^~\|`]+"),
            Pattern(GPT2),
            SpelledNumbers,
        ]),
        "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0"
        | "lfm2" | "jina-v5-nano" => bos(whole(rule(&[Pattern(LLAMA3)]))),
        "dbrx" | "smaug-bpe" | "chatglm-bpe" => rule(&[Pattern(LLAMA3)]),
        "glm4" | "glm5" => whole(rule(&[Pattern(LLAMA3)])),
        "jais-2" => rule(&[Pattern(JAIS2)]),
        "minicpm5" => whole(rule(&[Pattern(r"\p{N}{1,3}"), Pattern(LLAMA3)])),
        "qwen2" | "deepseek-r1-qwen" | "megrez" | "stablelm2" | "f2llmv2" => {
            nfc(rule(&[Pattern(QWEN2)]))
        }
        // Suffixes of Turkish stay at their apostrophes.
        "ufakzeka" => rule(&[Pattern(UFAKZEKA)]),
        "hunyuan" | "solar-open" | "grok-2" | "kormo" => rule(&[Pattern(QWEN2)]),
        // Normalized by the model's own tokenizer.json, though not by llama.cpp.
        "qwen35" => nfc(rule(&[Pattern(QWEN35)])),
        "gpt-4o" | "o200k" | "llama4" | "kanana2" | "minimax-m2" | "talkie" => {
            rule(&[Pattern(O200K)])
        }
        "granite-embed-multi-97m" => whole(rule(&[Pattern(O200K)])),
        "tekken" => bos(whole(rule(&[Pattern(TEKKEN)]))),
        "kimi-k2" => rule(&[Pattern(KIMI_K2)]),
        "deepseek-llm" => rule(&[
            Pattern(r"[\r\n]"),
            Pattern(DEEPSEEK_LETTERS),
            Pattern(DEEPSEEK_PUNCTUATION),
            Pattern(r"\s+$"),
            Pattern(CJK_WORDS),
            Pattern(DIGIT),
        ]),
        "deepseek-coder" => rule(&[
            Pattern(r"[\r\n]"),
            Pattern(r"\s?\p{L}+"),
            Pattern(r"\s?\p{P}+"),
            Pattern(CJK_WORDS),
            Pattern(DIGIT),
        ]),
        "deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4" => rule(&[
            Pattern(r"\p{N}{1,3}"),
            Pattern(CHINESE_AND_KANA),
            Pattern(DEEPSEEK_V3_WORDS),
        ]),
        "spark2_5" => rule(&[
            Pattern(r"\p{N}{1,3}"),
            Pattern(CHINESE_AND_KANA),
            Pattern(SPARK_WORDS),
            Pattern(DIGIT),
        ]),
        "superbpe" => rule(&[Pattern(NUMBERS), Thousands(r"\d", false)]),
        "afmoe" => rule(&[
            Thousands(r"\p{N}", true),
            Pattern(AFMOE_SCRIPTS),
            Pattern(DEEPSEEK_V3_WORDS),
        ]),
        "tiny_aya" | "cohere2moe" => rule(&[Pattern(TINY_AYA), Pattern(O200K)]),
        "youtu" => whole(rule(&[Pattern(YOUTU_SCRIPTS), Pattern(YOUTU)])),
        "laguna" => rule(&[Pattern(r"[^\n]+|[\n]+"), Pattern(QWEN2)]),
        "bloom" | "poro-chat" | "gpt3-finnish" => rule(&[Pattern(BLOOM)]),
        "viking" => rule(&[Pattern(BLOOM), Pattern(DIGIT)]),
        "bailingmoe" | "bailingmoe2" | "llada-moe" => rule(&[Pattern(BAILING)]),
        "seed-coder" => rule(&[Pattern(SEED)]),
        "exaone-moe" => rule(&[Pattern(EXAONE_MOE)]),
        _ => return None,
    })
}

impl Rule {
    /// The rule of this name; `Unsupported` naming it if it is unknown.
    pub fn of(name: &str) -> Result<Rule> {
        match rule_of(name) {
            Some(rule) => Ok(rule),
            None => {
                let name: String = name.chars().take(100).collect();
                fail!(
                    Unsupported,
                    "tokenizer.ggml.pre: unknown pre-tokenizer {name:?}"
                )
            }
        }
    }

    /// The compiled steps.
    pub fn compile(&self, budget: &Budget) -> Result<PreTokenizer> {
        let mut cutters = Vec::new();
        for step in self.steps {
            cutters.push(match step {
                Step::Pattern(pattern) => Cutter::Split {
                    pattern: Compiled::regex(pattern, "tokenizer.ggml.pre", budget)?,
                    behavior: Behavior::Isolated,
                    invert: false,
                },
                Step::SpelledNumbers => Cutter::SpelledNumbers,
                Step::Thousands(class, isolated) => Cutter::Thousands {
                    digits: CharSet::new(class),
                    isolated: *isolated,
                },
            });
        }
        Ok(PreTokenizer { cutters })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(name: &str, text: &str) -> Vec<String> {
        let budget = Budget::for_text(text.len());
        let cutter = Rule::of(name).unwrap().compile(&budget).unwrap();
        let mut pieces = Vec::new();
        let mut each = |piece: &[u8]| {
            pieces.push(String::from_utf8_lossy(piece).into_owned());
            Ok(())
        };
        cutter.split(text, true, &budget, &mut each).unwrap();
        pieces
    }

    /// Expected: Hugging Face's tokenizers 0.23 with the steps of the model's tokenizer.json.
    #[test]
    fn chameleon_cuts_as_its_own_tokenizer() {
        let expected = [
            "It",
            "'",
            "s",
            " ",
            "1",
            "2",
            ",",
            "3",
            "4",
            "5",
            "\t",
            " or",
            "\n",
            "\n",
            "    ",
            " five",
            "  ",
            "IMGIMGABZ",
            " ",
            "<",
            "sentinel",
            ":",
            "1",
            "2",
            ">",
            "x",
            " ",
            "«",
            "ein",
            "»",
            "…",
        ];
        let text = "It's 12,345\t or\n\n     five  IMGIMGABZ <sentinel:12>x «ein»…";
        assert_eq!(pieces("chameleon", text), expected);
        let expected = [
            "a", "  ", "b", "  ", " c", "    ", "d", "    ", " e", " ", ".", ".", ".", " don", "'",
            "t", " ", "$", "5", "+", "6", "=", "1", "1", "~", " 日本", "、", "語", "!",
        ];
        let text = "a  b   c    d     e ... don't $5+6=11~ 日本、語!";
        assert_eq!(pieces("chameleon", text), expected);
    }

    #[test]
    fn names_of_one_kind_cut_alike() {
        let text = "Don't\tcut 12345 naïve  words\r\n  (or do): 日本語 ...";
        for (name, like) in [
            ("jina-v2-de", "gpt-2"),
            ("jina-v1-en", "gpt-2"),
            ("jina-v2-code", "gpt-2"),
            ("roberta-bpe", "gpt-2"),
            ("granite-embed-multi-97m", "gpt-4o"),
            ("modern-bert", "olmo"),
            ("jina-v5-nano", "llama-bpe"),
            ("talkie", "gpt-4o"),
            ("hy_v4", "deepseek-v3"),
            ("f2llmv2", "qwen2"),
        ] {
            assert_eq!(pieces(name, text), pieces(like, text), "{name}");
        }
        assert!(Rule::of("none of these").is_err());
    }

    /// Expected: Hugging Face's tokenizers 0.23 with the same patterns; `|` is between the pieces.
    #[test]
    fn numbers_are_cut_in_threes_and_scripts_apart() {
        let text = "It's 1234567 or 123456x, \u{BD}1234 and 12\n\n  日本語です。 하나，둘 ไทย12 ABCdef's 3.14159 '789'";
        for (name, expected) in [
            (
                "superbpe",
                "It's |1|234|567| or |123|456|x, |\u{BD}1|234| and |12|\n\n  日本語です。 하나，둘 ไทย|12| ABCdef's |3|.|14|159| '|789|'",
            ),
            (
                "afmoe",
                "It|'s| |1|234|567| or| |123|456|x|,| |\u{BD}1|234| and| |12|\n\n|  |日本語です|。| |하나|，|둘| |ไ|ทย|12| ABCdef|'s| |3|.|14|159| '|789|'",
            ),
            (
                "tiny_aya",
                "It's| |1|234|567| or| |123|456|x|,| |\u{BD}|1|234| and| |12|\n\n| | 日本語です|。| 하나|，둘| ไทย|12| ABCdef's| |3|.|14|159| '|789|'",
            ),
            (
                "youtu",
                "It's| |1|2|3|4|5|6|7| or| |1|2|3|4|5|6|x|,| |\u{BD}|1|2|3|4| and| |1|2|\n\n|  |日本語です|。| |하나|，|둘| ไทย|1|2| ABCdef's| |3|.|1|4|1|5|9| '|7|8|9|'",
            ),
            (
                "spark2_5",
                "It|'s| |1|2|3|4|5|6|7| or| |1|2|3|4|5|6|x|,| |\u{BD}|1|2|3|4| and| |1|2|\n|\n|  |日本語です|。| 하나|，|둘| ไทย|1|2| ABCdef|'s| |3|.|1|4|1|5|9| '|7|8|9|'",
            ),
            (
                "ufakzeka",
                "It|'s| |1|2|3|4|5|6|7| or| |1|2|3|4|5|6|x|,| |\u{BD}|1|2|3|4| and| |1|2|\n\n| | 日本語です|。| 하나|，둘| ไทย|1|2| ABCdef|'s| |3|.|1|4|1|5|9| '|7|8|9|'",
            ),
            (
                "granite-embed-multi-97m",
                "It's| |123|456|7| or| |123|456|x|,| |\u{BD}12|34| and| |12|\n\n| | 日本語です|。| 하나|，둘| ไทย|12| ABCdef's| |3|.|141|59| '|789|'",
            ),
            (
                "laguna",
                "It|'s| |1|2|3|4|5|6|7| or| |1|2|3|4|5|6|x|,| |\u{BD}|1|2|3|4| and| |1|2|\n\n| | 日本語です|。| 하나|，둘| ไทย|1|2| ABCdef|'s| |3|.|1|4|1|5|9| '|7|8|9|'",
            ),
        ] {
            assert_eq!(pieces(name, text).join("|"), expected, "{name}");
        }
        let turkish = "Ankara'da İstanbul'un\r\n\r\n  .. 'tis";
        let cut = "Ankara|'da| İstanbul|'un|\r\n\r\n| | ..| '|tis";
        assert_eq!(pieces("ufakzeka", turkish).join("|"), cut);
        assert_eq!(pieces("superbpe", "1234").join("|"), "1|234");
        assert_eq!(pieces("afmoe", "x123456").join("|"), "x|123|456");
    }
}
