//! What Python's strings know about characters.

use crate::text::charset::CharSet;
use std::sync::OnceLock;

/// Digits that are no decimal ones, like `²` (`Numeric_Type=Digit`, from Python's unicodedata 14).
const DIGITS: [(char, char); 20] = [
    ('\u{B2}', '\u{B3}'),
    ('\u{B9}', '\u{B9}'),
    ('\u{1369}', '\u{1371}'),
    ('\u{19DA}', '\u{19DA}'),
    ('\u{2070}', '\u{2070}'),
    ('\u{2074}', '\u{2079}'),
    ('\u{2080}', '\u{2089}'),
    ('\u{2460}', '\u{2468}'),
    ('\u{2474}', '\u{247C}'),
    ('\u{2488}', '\u{2490}'),
    ('\u{24EA}', '\u{24EA}'),
    ('\u{24F5}', '\u{24FD}'),
    ('\u{24FF}', '\u{24FF}'),
    ('\u{2776}', '\u{277E}'),
    ('\u{2780}', '\u{2788}'),
    ('\u{278A}', '\u{2792}'),
    ('\u{10A40}', '\u{10A43}'),
    ('\u{10E60}', '\u{10E68}'),
    ('\u{11052}', '\u{1105A}'),
    ('\u{1F100}', '\u{1F10A}'),
];

/// Letters that stand for numbers, like `一` (`Numeric_Type=Numeric`, from Python's unicodedata 14).
const NUMERALS: [(char, char); 72] = [
    ('\u{3405}', '\u{3405}'),
    ('\u{3483}', '\u{3483}'),
    ('\u{382A}', '\u{382A}'),
    ('\u{3B4D}', '\u{3B4D}'),
    ('\u{4E00}', '\u{4E00}'),
    ('\u{4E03}', '\u{4E03}'),
    ('\u{4E07}', '\u{4E07}'),
    ('\u{4E09}', '\u{4E09}'),
    ('\u{4E5D}', '\u{4E5D}'),
    ('\u{4E8C}', '\u{4E8C}'),
    ('\u{4E94}', '\u{4E94}'),
    ('\u{4E96}', '\u{4E96}'),
    ('\u{4EBF}', '\u{4EC0}'),
    ('\u{4EDF}', '\u{4EDF}'),
    ('\u{4EE8}', '\u{4EE8}'),
    ('\u{4F0D}', '\u{4F0D}'),
    ('\u{4F70}', '\u{4F70}'),
    ('\u{5104}', '\u{5104}'),
    ('\u{5146}', '\u{5146}'),
    ('\u{5169}', '\u{5169}'),
    ('\u{516B}', '\u{516B}'),
    ('\u{516D}', '\u{516D}'),
    ('\u{5341}', '\u{5341}'),
    ('\u{5343}', '\u{5345}'),
    ('\u{534C}', '\u{534C}'),
    ('\u{53C1}', '\u{53C4}'),
    ('\u{56DB}', '\u{56DB}'),
    ('\u{58F1}', '\u{58F1}'),
    ('\u{58F9}', '\u{58F9}'),
    ('\u{5E7A}', '\u{5E7A}'),
    ('\u{5EFE}', '\u{5EFF}'),
    ('\u{5F0C}', '\u{5F0E}'),
    ('\u{5F10}', '\u{5F10}'),
    ('\u{62FE}', '\u{62FE}'),
    ('\u{634C}', '\u{634C}'),
    ('\u{67D2}', '\u{67D2}'),
    ('\u{6F06}', '\u{6F06}'),
    ('\u{7396}', '\u{7396}'),
    ('\u{767E}', '\u{767E}'),
    ('\u{8086}', '\u{8086}'),
    ('\u{842C}', '\u{842C}'),
    ('\u{8CAE}', '\u{8CAE}'),
    ('\u{8CB3}', '\u{8CB3}'),
    ('\u{8D30}', '\u{8D30}'),
    ('\u{9621}', '\u{9621}'),
    ('\u{9646}', '\u{9646}'),
    ('\u{964C}', '\u{964C}'),
    ('\u{9678}', '\u{9678}'),
    ('\u{96F6}', '\u{96F6}'),
    ('\u{F96B}', '\u{F96B}'),
    ('\u{F973}', '\u{F973}'),
    ('\u{F978}', '\u{F978}'),
    ('\u{F9B2}', '\u{F9B2}'),
    ('\u{F9D1}', '\u{F9D1}'),
    ('\u{F9D3}', '\u{F9D3}'),
    ('\u{F9FD}', '\u{F9FD}'),
    ('\u{20001}', '\u{20001}'),
    ('\u{20064}', '\u{20064}'),
    ('\u{200E2}', '\u{200E2}'),
    ('\u{20121}', '\u{20121}'),
    ('\u{2092A}', '\u{2092A}'),
    ('\u{20983}', '\u{20983}'),
    ('\u{2098C}', '\u{2098C}'),
    ('\u{2099C}', '\u{2099C}'),
    ('\u{20AEA}', '\u{20AEA}'),
    ('\u{20AFD}', '\u{20AFD}'),
    ('\u{20B19}', '\u{20B19}'),
    ('\u{22390}', '\u{22390}'),
    ('\u{22998}', '\u{22998}'),
    ('\u{23B1B}', '\u{23B1B}'),
    ('\u{2626D}', '\u{2626D}'),
    ('\u{2F890}', '\u{2F890}'),
];

fn is_in(ranges: &[(char, char)], c: char) -> bool {
    let at = ranges.partition_point(|(_, last)| *last < c);
    ranges.get(at).is_some_and(|(first, _)| *first <= c)
}

/// A set that is made once.
fn of(cell: &'static OnceLock<CharSet>, class: &str, c: char) -> bool {
    cell.get_or_init(|| CharSet::new(class)).contains(c)
}

/// `str.isdecimal` of one character.
pub(super) fn is_decimal(c: char) -> bool {
    static SET: OnceLock<CharSet> = OnceLock::new();
    of(&SET, r"\p{Nd}", c)
}

/// `str.isdigit` of one character.
pub(super) fn is_digit(c: char) -> bool {
    is_decimal(c) || is_in(&DIGITS, c)
}

/// `str.isnumeric` of one character.
pub(super) fn is_numeric(c: char) -> bool {
    static SET: OnceLock<CharSet> = OnceLock::new();
    of(&SET, r"\p{N}", c) || is_in(&NUMERALS, c)
}

/// `str.isalpha` of one character.
pub(super) fn is_alpha(c: char) -> bool {
    static SET: OnceLock<CharSet> = OnceLock::new();
    of(&SET, r"\p{L}", c)
}

/// `str.isalnum` of one character.
pub(super) fn is_alphanumeric(c: char) -> bool {
    is_alpha(c) || is_numeric(c)
}

/// Whether a character is a letter with a case (`Cased`).
pub(super) fn is_cased(c: char) -> bool {
    static SET: OnceLock<CharSet> = OnceLock::new();
    of(&SET, r"\p{Cased}", c)
}

/// Whether the case of letters does not depend on this character between them (`Case_Ignorable`).
pub(super) fn is_case_ignorable(c: char) -> bool {
    static SET: OnceLock<CharSet> = OnceLock::new();
    of(&SET, r"\p{Case_Ignorable}", c)
}
