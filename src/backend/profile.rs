//! Where the time of a decode step goes.

/// A kind of work in a decode step. A device that does two of them at once counts both as the one
/// that reads more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// Looking up the token's embedding, and rope tables.
    Embed = 0,
    /// Norms, and encoding of what products read.
    Norm = 1,
    /// Queries, keys and values.
    Qkv = 2,
    /// Rope, appending to the KV cache, attention.
    Attention = 3,
    /// Output projection of attention.
    Output = 4,
    /// The first products of the feed-forward, and the activation.
    GateUp = 5,
    /// The last product of the feed-forward.
    Down = 6,
    /// Final norm and the logits.
    Head = 7,
    /// Choosing a token.
    Sample = 8,
}

impl Work {
    /// All kinds, in the order of a step.
    pub const ALL: [Work; 9] = [
        Work::Embed,
        Work::Norm,
        Work::Qkv,
        Work::Attention,
        Work::Output,
        Work::GateUp,
        Work::Down,
        Work::Head,
        Work::Sample,
    ];

    /// A short name, for example `gate_up`.
    pub fn name(self) -> &'static str {
        match self {
            Work::Embed => "embed",
            Work::Norm => "norm",
            Work::Qkv => "qkv",
            Work::Attention => "attention",
            Work::Output => "output",
            Work::GateUp => "gate_up",
            Work::Down => "down",
            Work::Head => "head",
            Work::Sample => "sample",
        }
    }
}

/// What one kind of work took in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProfileEntry {
    /// How often it was done: kernels, or phases between barriers.
    pub calls: u32,
    /// Time from the end of the work before it to its end, in microseconds.
    pub microseconds: f64,
    /// Bytes of weights and KV cache that it read.
    pub bytes: u64,
}

/// One entry per kind of work, in the order of [`Work::ALL`]; without calls where a device does
/// that work as part of another.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Profile {
    entries: [ProfileEntry; Work::ALL.len()],
}

impl Profile {
    /// Adds a call.
    pub fn add(&mut self, work: Work, microseconds: f64, bytes: u64) {
        let entry = &mut self.entries[work as usize];
        entry.calls += 1;
        entry.microseconds += microseconds;
        entry.bytes += bytes;
    }

    /// What a kind of work took.
    pub fn entry(&self, work: Work) -> ProfileEntry {
        self.entries[work as usize]
    }

    /// The kinds of work that were done.
    pub fn done(&self) -> impl Iterator<Item = (Work, ProfileEntry)> {
        let all = Work::ALL.into_iter().zip(self.entries);
        all.filter(|(_, entry)| entry.calls > 0)
    }
}
