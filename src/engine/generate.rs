//! Decoding until there is a reason to end.

use super::Session;
use crate::error::{Result, Status};
use crate::memory::Room;
use crate::text::{TokenStream, Tokenizer};

/// What to generate, and when to end.
#[derive(Clone, Copy, Debug, Default)]
pub struct GenerateOptions<'a> {
    /// Appended to the context first; may be empty.
    pub prompt: &'a [u32],
    /// The most tokens to make; 0 means as many as the context holds.
    pub limit: usize,
    /// Strings at which the text ends.
    pub stops: &'a [&'a str],
    /// Write the names of control tokens.
    pub show_special: bool,
    /// Go on behind tokens that end an answer.
    pub ignore_end: bool,
    /// The text is one of its own, and not the rest of the prompt's: leave out a space that the tokenizer puts
    /// before every text.
    pub new_text: bool,
}

/// Why it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The most tokens were made.
    Limit,
    /// The last token ends an answer.
    EndToken,
    /// The text has come to the stop string of this index.
    Stop(usize),
    /// The callback wanted no more.
    Callback,
    /// Another thread has interrupted it.
    Interrupted,
    /// The context has no room for another token.
    ContextFull,
}

/// What was generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generated {
    /// Why it ended.
    pub end: End,
    /// Where the tokens begin in the context.
    pub position: usize,
    /// How many there are.
    pub n_tokens: usize,
    /// The last of them.
    pub last: Option<u32>,
    /// Bytes of text that the callback got.
    pub text_bytes: usize,
}

/// Hears each piece of text with the token that completed it, or with none for what was held back until the
/// end. `false` ends the generation.
pub type Piece<'a> = dyn FnMut(&str, Option<u32>) -> bool + 'a;

impl Session {
    /// Appends the prompt, and then tokens until there is a reason to end. Each is told to `piece` with the text that
    /// is certain by then, which may be empty.
    ///
    /// Errors: those of `prefill` and `decode`, but for the reasons to end; those of [`TokenStream::new`] and
    /// [`super::Model::tokenizer`]. The session is as it was before then. An interrupt is an error as long as
    /// the prompt is being evaluated.
    pub fn generate(
        &mut self,
        options: &GenerateOptions<'_>,
        piece: &mut Piece<'_>,
    ) -> Result<Generated> {
        let model = self.model.clone();
        let tokenizer = model.tokenizer()?;
        let mut stream = TokenStream::new(options.stops, !options.show_special)?;
        if !options.new_text {
            stream = stream.continued();
        }
        // Before the prompt is, which may be none.
        let begun = self.begin_work();
        self.answered(begun)?;
        let before = self.tokens.len();
        match options.prompt {
            [] => self.need_tokens()?,
            prompt => self.prefill(prompt)?,
        }
        let result = self.decode_text(tokenizer, stream, options, piece);
        if result.is_err() {
            self.take_back(before);
        }
        result
    }

    fn decode_text(
        &mut self,
        tokenizer: &Tokenizer,
        mut stream: TokenStream,
        options: &GenerateOptions<'_>,
        piece: &mut Piece<'_>,
    ) -> Result<Generated> {
        let mut made = Generated {
            end: End::Limit,
            position: self.tokens.len(),
            n_tokens: 0,
            last: None,
            text_bytes: 0,
        };
        let mut text = String::new();
        made.end = loop {
            if self.interrupts.is_asked() {
                self.interrupts.clear();
                break End::Interrupted;
            }
            if options.limit != 0 && made.n_tokens == options.limit {
                break End::Limit;
            }
            if self.tokens.len() == self.context() {
                break End::ContextFull;
            }
            let token = match self.decode() {
                Ok(token) => token,
                Err(e) if e.status == Status::Interrupted => break End::Interrupted,
                Err(e) => return Err(e),
            };
            made.n_tokens += 1;
            made.last = Some(token);
            if !options.ignore_end && tokenizer.is_end(token) {
                break End::EndToken;
            }
            text.clear();
            {
                let room = Room::for_input(tokenizer.token_bytes(token)?.len())?;
                let _in_room = room.enter();
                stream.push(tokenizer, &[token], &mut text)?;
            }
            made.text_bytes += text.len();
            let goes_on = piece(&text, Some(token));
            if let Some(stop) = stream.stopped() {
                break End::Stop(stop);
            }
            if !goes_on {
                break End::Callback;
            }
        };
        if !matches!(made.end, End::Stop(_) | End::Callback) {
            text.clear();
            stream.finish(&mut text);
            if !text.is_empty() {
                made.text_bytes += text.len();
                piece(&text, None);
            }
        }
        Ok(made)
    }
}
