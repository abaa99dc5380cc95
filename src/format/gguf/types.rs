//! Names of the tensor types that files may have and the library does not read.

/// The name and number of a tensor type, for messages.
pub(super) fn describe(id: u32) -> String {
    let name = match id {
        4 => "Q4_2, removed from the format",
        5 => "Q4_3, removed from the format",
        9 => "Q8_1",
        15 => "Q8_K",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        31 => "Q4_0_4_4, removed from the format",
        32 => "Q4_0_4_8, removed from the format",
        33 => "Q4_0_8_8, removed from the format",
        36 => "IQ4_NL_4_4, removed from the format",
        37 => "IQ4_NL_4_8, removed from the format",
        38 => "IQ4_NL_8_8, removed from the format",
        _ => return format!("number {id}"),
    };
    format!("{name} (number {id})")
}
