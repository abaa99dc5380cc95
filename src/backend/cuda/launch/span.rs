//! Where rows are in device memory.

/// Where rows are: the first one's address, and floats from one to the next.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend::cuda) struct Span {
    pub address: u64,
    pub stride: u32,
}

impl Span {
    /// What begins so many floats later in each row.
    pub fn from(&self, floats: u32) -> Span {
        Span {
            address: self.address + u64::from(floats) * 4,
            ..*self
        }
    }
}
