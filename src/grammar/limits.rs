//! What keeps a hostile grammar from taking time and memory, and what finds grammars that no text
//! can meet.

use crate::budget::Interrupt;
use crate::error::{Result, fail};
use crate::memory::Room;
use llguidance::api::ParserLimits;
use llguidance::derivre::{ExprRef, RegexAst};
use llguidance::earley::lexerspec::{LexemeIdx, LexerSpec};
use llguidance::earley::{CGrammar, CSymIdx, Parser};

/// Longest text of a schema or grammar, in bytes.
pub(super) const MAX_TEXT_BYTES: usize = 1 << 20;
/// Longest regular expression, in bytes.
pub(super) const MAX_REGEX_BYTES: usize = 64 << 10;
/// Levels of nesting that the compiler may recurse through; each takes up to 8 KiB of its stack.
pub(super) const MAX_LEVELS: usize = 6000;
/// Stack of the thread that compiles. Memory that is not used is never touched.
pub(super) const STACK_BYTES: usize = 64 << 20;
/// Address space for what compiling takes when memory runs out meanwhile.
pub(super) const COMPILE_ROOM_BYTES: usize = 128 << 20;
/// Largest `multipleOf` (as an integer without trailing decimal zeros), and largest least common
/// multiple of those that may have to hold together: a state of the lexer for each remainder.
pub(super) const MAX_DIVISOR: u64 = 20_000;
/// Most memory of a grammar's lexer, which grows while an answer is made.
pub(super) const MAX_LEXER_BYTES: usize = 64 << 20;
/// Most alternatives in all expressions and their parts, see [`check_expressions`].
const MAX_ALTERNATIVES: u64 = 2_000_000;
/// As many expressions may have to hold together whatever they are.
const FEW: usize = 3;
/// Most intersections of more expressions that are tried, and the work of each.
const MAX_INTERSECTIONS: usize = 500;
const INTERSECTION_FUEL: u64 = 20_000;

/// Address space for what a parser's lexer takes in the next steps when memory runs out: in each it grows by a few MB at most,
/// by vectors that double.
pub(super) fn room(parser: &Parser) -> Result<Room> {
    Room::new((16 << 20) + 4 * parser.lexer_stats().num_bytes)
}

/// Whether a room is still large enough.
pub(super) fn room_is_enough(room: &Room, parser: &Parser) -> bool {
    room.bytes() >= (8 << 20) + 3 * parser.lexer_stats().num_bytes
}

/// The limits that llguidance keeps by itself. Times are those of one core.
pub(super) fn parser_limits() -> ParserLimits {
    ParserLimits {
        // An object with many optional properties has about five for each.
        max_items_in_row: 16_000,
        // About 20 ms.
        initial_lexer_fuel: 1_000_000,
        // About 15 ms.
        step_lexer_fuel: 200_000,
        // About 3 ms.
        step_max_items: 50_000,
        // Up to 1 KiB each.
        max_lexer_states: 40_000,
        max_grammar_size: 250_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}

/// The tags of llguidance's expressions that matter here; a test compares them.
pub(super) mod tag {
    pub const BYTE_CONCAT: u8 = 5;
    pub const CONCAT: u8 = 10;
    pub const OR: u8 = 11;
    pub const AND: u8 = 12;
}

/// Refuses expressions whose derivatives would be too large, which llguidance finds out only when
/// it has made them.
///
/// The derivative of `a?a?a?...` by one byte has as many alternatives as there are optional parts,
/// and one more expression of almost that size comes from each suffix. The number of alternatives
/// of each expression follows from those of its parts, which stand before it in the set.
pub(super) fn check_expressions(spec: &LexerSpec) -> Result<()> {
    let set = spec.regex_builder.exprset();
    let mut widths: Vec<u64> = Vec::new();
    if widths.try_reserve_exact(set.len()).is_err() {
        fail!(OutOfMemory, "grammar of {} expressions", set.len());
    }
    let mut total = 0u64;
    for index in 0..set.len() as u32 {
        let e = ExprRef::new(index);
        if !e.is_valid() {
            widths.push(0);
            continue;
        }
        let width_of = |e: &ExprRef| widths.get(e.as_usize()).copied().unwrap_or(1);
        let args = set.get_args(e);
        let width = match set.get_tag(e) as u8 {
            tag::CONCAT => match args {
                [head, tail] if set.is_nullable(*head) => {
                    width_of(head).saturating_add(width_of(tail))
                }
                _ => args.first().map_or(1, width_of),
            },
            tag::OR | tag::AND => args
                .iter()
                .fold(0, |sum: u64, arg| sum.saturating_add(width_of(arg))),
            tag::BYTE_CONCAT => 1,
            _ => args.first().map_or(1, width_of),
        };
        widths.push(width);
        total = total.saturating_add(width);
    }
    if total > MAX_ALTERNATIVES {
        fail!(
            Grammar,
            "it is too large: its regular expressions have {total} alternatives, {MAX_ALTERNATIVES} are allowed"
        );
    }
    Ok(())
}

/// Refuses intersections of many expressions that take too long to follow: of each only the
/// first ones, then one more, until all are in or their intersection is too much work.
pub(super) fn check_intersections(spec: &LexerSpec) -> Result<()> {
    let set = spec.regex_builder.exprset();
    let mut left = MAX_INTERSECTIONS;
    for index in 0..set.len() as u32 {
        let e = ExprRef::new(index);
        if !e.is_valid() || set.get_tag(e) as u8 != tag::AND {
            continue;
        }
        let args = set.get_args(e);
        if args.len() <= FEW {
            continue;
        }
        for count in FEW..=args.len() {
            left = left.saturating_sub(1);
            let parts = args[..count].iter().map(|arg| RegexAst::ExprRef(*arg));
            let mut builder = spec.regex_builder.clone();
            let limited = builder
                .mk(&RegexAst::And(parts.collect()))
                .and_then(|both| builder.to_regex_limited(both, INTERSECTION_FUEL));
            if left == 0 || limited.is_err() {
                fail!(
                    Grammar,
                    "it is too large: {} expressions have to hold together",
                    args.len()
                );
            }
        }
    }
    Ok(())
}

/// Refuses grammars that no text meets, like a rule that needs itself, or an intersection of
/// expressions that share no text.
pub(super) fn check_productive(parser: &mut Parser, interrupt: &Interrupt) -> Result<()> {
    let n_lexemes = parser.grammar().lexer_spec().lexemes.len();
    let mut possible = Vec::with_capacity(n_lexemes);
    for index in 0..n_lexemes {
        if index % 64 == 0 {
            interrupt.check()?;
        }
        let mut set = parser.grammar().lexer_spec().alloc_lexeme_set();
        set.add(LexemeIdx::new(index));
        possible.push(parser.with_recognizer(|r| {
            let state = r.lexer_mut().start_state(&set);
            !state.is_dead()
        }));
    }
    let grammar = parser.grammar();
    let reachable = Reachable::new(grammar, &possible);
    match reachable.first_unproductive() {
        Some(symbol) if !reachable.productive[grammar.start().as_index()] => fail!(
            Grammar,
            "no text can meet it: {} never comes to an end",
            grammar.sym_name(symbol)
        ),
        _ => Ok(()),
    }
}

/// The symbols that the start symbol leads to.
struct Reachable {
    /// In the order of discovery.
    symbols: Vec<CSymIdx>,
    /// By symbol: whether it matches any text at all.
    productive: Vec<bool>,
}

/// A rule whose symbols are not all known to be productive.
struct OpenRule {
    symbol: usize,
    missing: usize,
}

impl Reachable {
    fn new(grammar: &CGrammar, possible: &[bool]) -> Reachable {
        let size = usize::from(u16::MAX) + 1;
        let mut seen = vec![false; size];
        let mut productive = vec![false; size];
        let mut symbols = vec![grammar.start()];
        seen[grammar.start().as_index()] = true;
        let mut open = Vec::new();
        // By symbol: the rules that have it on their right side, once for each time.
        let mut users = vec![Vec::new(); size];
        let mut found = Vec::new();
        let mut next = 0;
        while next < symbols.len() {
            let symbol = symbols[next];
            next += 1;
            let data = grammar.sym_data(symbol);
            let ends = match data.lexeme {
                Some(lexeme) => possible.get(lexeme.as_usize()).copied().unwrap_or(true),
                None => data.is_nullable || !data.cond_nullable.is_empty(),
            };
            if ends || data.is_nullable {
                found.push(symbol.as_index());
            }
            for rule in &data.rules {
                let (rhs, ..) = grammar.rule_rhs(*rule);
                for part in rhs {
                    users[part.as_index()].push(open.len());
                    if !std::mem::replace(&mut seen[part.as_index()], true) {
                        symbols.push(*part);
                    }
                }
                open.push(OpenRule {
                    symbol: symbol.as_index(),
                    missing: rhs.len(),
                });
            }
        }
        while let Some(symbol) = found.pop() {
            if std::mem::replace(&mut productive[symbol], true) {
                continue;
            }
            for rule in std::mem::take(&mut users[symbol]) {
                open[rule].missing -= 1;
                if open[rule].missing == 0 {
                    found.push(open[rule].symbol);
                }
            }
        }
        Reachable {
            symbols,
            productive,
        }
    }

    /// The one that names the fault best: the last found that does not lie behind another.
    fn first_unproductive(&self) -> Option<CSymIdx> {
        let mut unproductive = self
            .symbols
            .iter()
            .filter(|s| !self.productive[s.as_index()]);
        unproductive.next_back().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llguidance::derivre::{RegexAst, RegexBuilder};

    #[test]
    fn tags_are_those_of_the_expressions() {
        let mut builder = RegexBuilder::new();
        let mut tag_of = |ast: RegexAst| {
            let e = builder.mk(&ast).unwrap();
            builder.exprset().get_tag(e) as u8
        };
        let regex = |text: &str| RegexAst::Regex(text.to_owned());
        assert_eq!(tag_of(regex("abc")), tag::BYTE_CONCAT);
        assert_eq!(tag_of(regex("[ab]?[cd]")), tag::CONCAT);
        assert_eq!(tag_of(regex("abc|cde*")), tag::OR);
        let both = RegexAst::And(vec![regex("a*b"), regex("(ab)*")]);
        assert_eq!(tag_of(both), tag::AND);
    }
}
