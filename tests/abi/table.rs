//! The header as a table of what compiled programs count on, and the rule by which the table may grow.

use std::collections::BTreeMap;

/// A field, and the comment before it.
pub struct Field {
    pub name: String,
    /// As C has it, for example `const uint32_t *` or `char[32]`.
    pub kind: String,
    pub comment: String,
}

/// What the header declares, in its order.
#[derive(Default)]
pub struct Header {
    /// Names and values.
    pub macros: Vec<(String, String)>,
    /// Names and comments.
    pub values: Vec<(String, String)>,
    /// The underlying type of each enum.
    pub enums: Vec<(String, String)>,
    pub structs: Vec<(String, Vec<Field>)>,
    /// Names, signatures (types alone) and comments of functions and of types of callbacks.
    pub functions: Vec<(String, String, String)>,
    pub callbacks: Vec<(String, String)>,
    /// Names of numbers that are no enums.
    pub aliases: Vec<(String, String)>,
}

/// The next declaration and what it is preceded by.
enum Part<'a> {
    Comment(&'a str),
    Code(&'a str),
}

/// Comments, lines of the preprocessor that define something, and declarations.
fn parts(text: &str) -> Vec<Part<'_>> {
    let mut out = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let end = if rest.starts_with("/*") {
            rest.find("*/").expect("a comment ends") + 2
        } else if rest.starts_with("//") || rest.starts_with('#') {
            rest.find('\n').unwrap_or(rest.len())
        } else {
            // A declaration ends with its semicolon, outside of braces.
            let mut depth = 0;
            let mut end = rest.len();
            for (at, c) in rest.char_indices() {
                match c {
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    ';' if depth == 0 => {
                        end = at + 1;
                        break;
                    }
                    _ => {}
                }
            }
            end
        };
        let (part, after) = rest.split_at(end);
        match part.starts_with("/*") {
            true => out.push(Part::Comment(part)),
            false => out.push(Part::Code(part)),
        }
        rest = after.trim_start();
    }
    out
}

/// One space between words, none beside parentheses, commas and stars but before a star; without the word `struct`.
fn plain(text: &str) -> String {
    let mut spaced = String::new();
    for c in text.chars() {
        match c {
            '*' | '(' | ')' | ',' => spaced.extend([' ', c, ' ']),
            c => spaced.push(c),
        }
    }
    let mut out = String::new();
    for word in spaced.split_whitespace().filter(|w| *w != "struct") {
        let joined = out.is_empty() || out.ends_with(['*', '(']) || word.starts_with([')', ',']);
        if !joined {
            out.push(' ');
        }
        out += word;
    }
    out
}

/// Name and type of a variable: `const char *name[4]` is (`name`, `const char *[4]`).
fn variable(text: &str) -> (String, String) {
    let text = plain(text);
    let (text, length) = match text.split_once('[') {
        Some((text, length)) => (text, format!("[{length}")),
        None => (&*text, String::new()),
    };
    let at = text.rfind([' ', '*']).map_or(0, |at| at + 1);
    let (kind, name) = text.split_at(at);
    (name.to_owned(), kind.trim_end().to_owned() + &length)
}

/// The types of parameters, without their names.
fn parameters(text: &str) -> String {
    let types: Vec<_> = text
        .split(',')
        .map(|one| match one.trim() {
            "void" => "void".to_owned(),
            one => variable(one).1,
        })
        .collect();
    types.join(", ")
}

/// The lines of a block with the comment before each, lines of the preprocessor left out.
fn members(block: &str, separator: char) -> Vec<(String, String)> {
    let mut out = Vec::new();
    let mut comment = String::new();
    for part in parts(&block.replace(separator, ";")) {
        match part {
            Part::Comment(text) => comment = text.to_owned(),
            Part::Code(code) => {
                let code = code.trim_end_matches(';').trim().to_owned();
                out.push((code, std::mem::take(&mut comment)));
            }
        }
    }
    out
}

impl Header {
    pub fn parse(text: &str) -> Header {
        let mut header = Header::default();
        let mut comment = String::new();
        // Blocks that only C++ sees, and the conditions around the types of enums.
        let text = text
            .lines()
            .filter(|line| !line.starts_with("extern \"C\"") && !line.starts_with("}  // extern"))
            .filter(|line| !line.starts_with('#') || line.starts_with("#define EMBER_"))
            .collect::<Vec<_>>()
            .join("\n");
        for part in parts(&text) {
            let code = match part {
                Part::Comment(text) => {
                    comment = text.to_owned();
                    continue;
                }
                Part::Code(code) => code.trim_end_matches(';'),
            };
            let comment = std::mem::take(&mut comment);
            if let Some(define) = code.strip_prefix("#define ") {
                let (name, value) = define.split_once(' ').expect("a macro has a value");
                header
                    .macros
                    .push((name.to_owned(), value.trim().to_owned()));
            } else if let Some(rest) = code.strip_prefix("enum ") {
                let (head, block) = rest.split_once('{').expect("an enum has a block");
                let (name, kind) = head.split_once(':').expect("an enum has a type");
                let named = (name.trim().to_owned(), kind.trim().to_owned());
                header.enums.push(named);
                for (code, comment) in members(block.trim_end_matches('}'), ',') {
                    let name = code.split(' ').next().unwrap_or_default();
                    header.values.push((name.to_owned(), comment));
                }
            } else if let Some(rest) = code.strip_prefix("typedef ") {
                header.typedef(rest);
            } else if code.contains('(') {
                let (head, rest) = code.split_once('(').unwrap();
                let (name, result) = variable(head);
                let types = parameters(rest.trim_end().trim_end_matches(')'));
                header
                    .functions
                    .push((name, format!("{result} ({types})"), comment));
            }
        }
        header
    }

    fn typedef(&mut self, rest: &str) {
        if let Some((head, block)) = rest.split_once('{') {
            let name = head.trim().trim_start_matches("struct ").to_owned();
            let (block, _) = block.rsplit_once('}').expect("a struct has an end");
            let fields = members(block, ';').into_iter().map(|(code, comment)| {
                let (name, kind) = variable(&code);
                Field {
                    name,
                    kind,
                    comment,
                }
            });
            self.structs.push((name, fields.collect()));
        } else if let Some((result, rest)) = rest.split_once("(*") {
            let (name, rest) = rest.split_once(')').expect("a name in parentheses");
            let types = rest.trim().trim_start_matches('(').trim_end_matches(')');
            let signature = format!("{} ({})", plain(result), parameters(types));
            self.callbacks.push((name.to_owned(), signature));
        } else {
            let (name, kind) = variable(rest);
            let is_number = kind.ends_with("_t") && self.enums.iter().all(|(of, _)| *of != name);
            if is_number {
                self.aliases.push((name, kind));
            }
        }
    }

    /// The lines of the table that no compiler has to compute.
    pub fn lines(&self) -> Vec<String> {
        let mut out = Vec::new();
        let constant = ["EMBER_ABI_VERSION", "EMBER_VERSION_NUMBER"];
        for (name, value) in &self.macros {
            if !constant.contains(&&**name) {
                out.push(format!("{name} {value}"));
            }
        }
        for (name, kind) in &self.enums {
            out.push(format!("enum {name} {kind}"));
        }
        for (name, kind) in &self.aliases {
            out.push(format!("alias {name} {kind}"));
        }
        for (name, signature) in &self.callbacks {
            out.push(format!("callback {name} {signature}"));
        }
        for (name, signature, _) in &self.functions {
            out.push(format!("function {name} {signature}"));
        }
        out
    }

    /// Items that a table has not, and whose comments do not tell the version that they came with.
    pub fn undated(&self, table: &str) -> Vec<String> {
        let known = Table::parse(table);
        let fields = self.structs.iter().flat_map(|(of, fields)| {
            let named =
                move |field: &Field| (format!("{of}.{}", field.name), field.comment.clone());
            fields.iter().map(named)
        });
        let functions = self.functions.iter();
        let functions = functions.map(|(name, _, comment)| (name.clone(), comment.clone()));
        // The fields of a new struct are as old as the function that takes it.
        fields
            .filter(|(name, _)| known.items.contains_key(name.split('.').next().unwrap()))
            .chain(self.values.iter().cloned())
            .chain(functions)
            .filter(|(name, comment)| {
                !known.items.contains_key(name) && !comment.contains("Since ")
            })
            .map(|(name, _)| name)
            .collect()
    }

    /// For words (`size_t`, pointers) of so many bytes and numbers of 8 bytes that are aligned to `align`, the structs with padding.
    pub fn padded(&self, word: usize, align: usize) -> Vec<String> {
        let mut found = Vec::new();
        for (name, fields) in &self.structs {
            let (mut end, mut most) = (0usize, 1);
            for field in fields {
                let (size, align) = layout(&field.kind, word, align);
                if !end.is_multiple_of(align) {
                    found.push(format!("{name}.{}", field.name));
                }
                end = end.next_multiple_of(align) + size;
                most = most.max(align);
            }
            if !end.is_multiple_of(most) {
                found.push(format!("the end of {name}"));
            }
        }
        found
    }
}

/// Size and alignment of a type.
fn layout(kind: &str, word: usize, align: usize) -> (usize, usize) {
    let (element, length) = match kind.split_once('[') {
        Some((element, length)) => (element, length.trim_end_matches(']').parse().unwrap()),
        None => (kind, 1),
    };
    let (size, align) = match element {
        "char" => (1, 1),
        "int32_t" | "uint32_t" | "float" | "ember_status" => (4, 4),
        "int64_t" | "uint64_t" | "double" => (8, align),
        kind if kind == "size_t" || kind.ends_with('*') || kind.ends_with("_fn") => (word, word),
        kind => panic!("a field of an unknown type {kind:?}"),
    };
    (size * length, align)
}

/// The table in a file: what stands behind each name.
pub struct Table<'a> {
    items: BTreeMap<String, &'a str>,
}

impl<'a> Table<'a> {
    pub fn parse(text: &'a str) -> Table<'a> {
        let items = BTreeMap::new();
        let mut table = Table { items };
        table.extend(text);
        table
    }

    /// Adds lines, in place of older ones of the same names.
    pub fn extend(&mut self, text: &'a str) {
        for line in text.lines() {
            let line = ["function ", "callback ", "enum ", "alias "]
                .iter()
                .find_map(|word| line.strip_prefix(word))
                .unwrap_or(line);
            let (name, rest) = line.split_once(' ').expect("a name and a value");
            self.items.insert(name.to_owned(), rest);
        }
    }

    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// The lines that another table has not.
    pub fn without(&self, other: &Table<'_>) -> Vec<String> {
        let lacks = |(name, rest): &(&String, &&str)| other.get(name) != Some(**rest);
        let lines = self.items.iter().filter(lacks);
        lines.map(|(name, rest)| format!("{name} {rest}")).collect()
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.items.get(name).copied()
    }

    /// Names of structs and their sizes.
    pub fn structs(&self) -> impl Iterator<Item = (&str, usize)> {
        self.items.iter().filter_map(|(name, rest)| {
            let is_struct = name.starts_with("ember_") && !name.contains('.');
            let size = rest.parse().ok().filter(|_| is_struct)?;
            Some((&**name, size))
        })
    }

    /// What of an older table does not hold in this one, by name: all of it stays, but a struct with `struct_size` may grow at its end.
    pub fn broken(&self, older: &Table<'_>) -> Vec<String> {
        let mut found = Vec::new();
        let sizes: BTreeMap<_, _> = older.structs().collect();
        let sized = |name: &str| older.get(&format!("{name}.struct_size")).is_some();
        for (name, was) in &older.items {
            let holds = match (self.get(name), sizes.get(&**name)) {
                (None, _) => false,
                (Some(is), Some(size)) if sized(name) => {
                    is.parse().is_ok_and(|is: usize| is >= *size)
                }
                (Some(is), _) => is == *was,
            };
            if !holds {
                let is = self.get(name).unwrap_or("gone");
                found.push(format!("{name} was {was}, is {is}"));
            }
        }
        for (name, rest) in &self.items {
            let Some((of, _)) = name
                .split_once('.')
                .filter(|_| !older.items.contains_key(name))
            else {
                continue;
            };
            let at: usize = rest.split(' ').next().unwrap_or_default().parse().unwrap();
            if sizes.get(of).is_some_and(|size| at < *size) {
                found.push(format!("{name} is new, but not at the end of the struct"));
            }
        }
        found
    }
}
