//! Decoding until there is a reason to end.

use super::Session;
use super::queue::Started;
use super::session::try_copy;
use crate::error::{Result, Status, fail};
use crate::memory::{self, Room};
use crate::text::TokenStream;

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
    /// Continue after tokens that end an answer.
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
    /// The caller wanted no more.
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

/// Receives each piece of a session's text with the token that completed it, or with none for what was held back until the
/// end. `false` ends the generation.
pub type Piece<'a> = dyn FnMut(&Session, &str, Option<u32>) -> bool + 'a;

/// Takes a piece of a session's text with its token, or with none for what was held back until the end.
pub type Take<'a> = dyn FnMut(&Session, &str, Option<u32>) -> Result<()> + 'a;

/// A generation that is under way.
pub(super) struct Generation {
    stream: TokenStream,
    /// What is still to be appended.
    prompt: Vec<u32>,
    limit: usize,
    ignore_end: bool,
    made: Generated,
    /// Why it ended, once it has.
    end: Option<End>,
    /// The last piece, and whether it was not taken yet.
    text: String,
    token: Option<u32>,
    waits: bool,
}

/// What a step of a generation came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Work is under way.
    Pending,
    /// There is a piece with a token.
    Token,
    /// There is what was held back, which may be empty, and nothing comes after it.
    Last,
}

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
        let before = self.tokens.len();
        let mut generation = self.begin_generation(options)?;
        loop {
            let step = self.step(&mut generation, true);
            let step = step.inspect_err(|_| self.take_back_to(before))?;
            match step {
                Step::Pending => fail!(Internal, "a generation that was to wait"),
                Step::Token => {
                    if !piece(self, &generation.text, generation.token) && generation.end.is_none()
                    {
                        generation.end = Some(End::Callback);
                    }
                }
                Step::Last => {
                    if !generation.text.is_empty() {
                        piece(self, &generation.text, None);
                    }
                    return Ok(generation.result());
                }
            }
        }
    }

    /// Goes back to where a generation has begun, if the session is beyond it.
    fn take_back_to(&mut self, before: usize) {
        if self.tokens.len() > before {
            self.take_back(before);
        }
    }

    /// Starts what `generate` does; [`generate_next`](Session::generate_next) does it, piece by piece. Until
    /// [`generate_end`](Session::generate_end), other calls fail with `DecodePending`, except for `rewind`.
    ///
    /// Errors: those of `generate` that are known before any work.
    pub fn generate_start(&mut self, options: &GenerateOptions<'_>) -> Result<()> {
        let generation = Box::new(self.begin_generation(options)?);
        // Nothing that is kept was made with memory of the reserve.
        memory::check()?;
        self.generation = Some(generation);
        Ok(())
    }

    /// The next piece, which `take` gets: its text, and its token, or none for what was held back until the end, which may be
    /// empty and comes again from then on. If `take` fails, the same piece comes next. `false` if it is not there yet, which
    /// is never so if the call is to `wait`.
    ///
    /// Errors: `NothingPending` if none was started; those of `prefill` and `decode`, but for the reasons to end. The
    /// context has what was made before then, and the next call tries again.
    pub fn generate_next(&mut self, wait: bool, take: &mut Take<'_>) -> Result<bool> {
        let Some(mut generation) = self.generation.take() else {
            fail!(NothingPending, "no generation was started");
        };
        let result = self.next_piece(&mut generation, wait, take);
        self.generation = Some(generation);
        result
    }

    fn next_piece(
        &mut self,
        generation: &mut Generation,
        wait: bool,
        take: &mut Take<'_>,
    ) -> Result<bool> {
        if !generation.waits {
            if self.step(generation, wait)? == Step::Pending {
                return Ok(false);
            }
            generation.waits = true;
        }
        take(self, &generation.text, generation.token)?;
        generation.waits = false;
        Ok(true)
    }

    /// Ends the generation that was started, and what of it is under way. What was made stays in the context.
    ///
    /// Errors: `NothingPending` if none was started.
    pub fn generate_end(&mut self) -> Result<Generated> {
        let Some(mut generation) = self.generation.take() else {
            fail!(NothingPending, "no generation was started");
        };
        self.stop();
        generation.end.get_or_insert(End::Callback);
        if generation.made.n_tokens == 0 {
            generation.made.position = self.tokens.len();
        }
        Ok(generation.result())
    }

    /// Checks what can be checked before any work.
    fn begin_generation(&mut self, options: &GenerateOptions<'_>) -> Result<Generation> {
        let model = self.model.clone();
        model.tokenizer()?;
        let mut stream = TokenStream::new(options.stops, !options.show_special)?;
        if !options.new_text {
            stream = stream.continued();
        }
        // Before the prompt is, which may be none.
        let begun = self.begin_work();
        self.answered(begun)?;
        match options.prompt {
            [] => self.need_tokens()?,
            prompt => self.check_prompt(prompt)?,
        }
        Ok(Generation {
            stream,
            prompt: try_copy(options.prompt)?,
            limit: options.limit,
            ignore_end: options.ignore_end,
            made: Generated {
                end: End::Limit,
                position: self.tokens.len(),
                n_tokens: 0,
                last: None,
                text_bytes: 0,
            },
            end: None,
            text: String::new(),
            token: None,
            waits: false,
        })
    }

    /// Makes the next piece. After an error, the session and the generation are as before.
    fn step(&mut self, generation: &mut Generation, wait: bool) -> Result<Step> {
        if !generation.prompt.is_empty() {
            if !self.append_prompt(&generation.prompt, wait)? {
                return Ok(Step::Pending);
            }
            generation.prompt.clear();
            generation.made.position = self.tokens.len();
        }
        if generation.end.is_some() {
            // Nothing is held back that is wanted.
            generation.text.clear();
            generation.token = None;
            return Ok(Step::Last);
        }
        let end = match self.next_token(generation, wait)? {
            Next::Pending => return Ok(Step::Pending),
            Next::Token(token) => match self.put_into_text(generation, token) {
                Ok(None) => return Ok(Step::Token),
                Ok(Some(end)) => end,
                Err(e) => {
                    // It is chosen again by the next call.
                    self.take_back(self.tokens.len() - 1);
                    return Err(e);
                }
            },
            Next::End(end) => end,
        };
        generation.text.clear();
        generation.token = None;
        generation.stream.finish(&mut generation.text);
        generation.made.text_bytes += generation.text.len();
        generation.end = Some(end);
        Ok(Step::Last)
    }

    /// Appends the prompt; `false` while that is under way.
    fn append_prompt(&mut self, prompt: &[u32], wait: bool) -> Result<bool> {
        if wait && self.started == Started::Nothing {
            return self.prefill(prompt).map(|()| true);
        }
        if self.started == Started::Nothing {
            self.prefill_start(prompt)?;
        }
        if wait {
            return self.prefill_wait().map(|()| true);
        }
        self.prefill_poll().map(|(done, _)| done)
    }

    /// The next token, or the reason why there is none.
    fn next_token(&mut self, generation: &Generation, wait: bool) -> Result<Next> {
        if self.started == Started::Nothing {
            if self.is_interrupted() {
                self.interrupts.clear();
                return Ok(Next::End(End::Interrupted));
            }
            if generation.limit != 0 && generation.made.n_tokens == generation.limit {
                return Ok(Next::End(End::Limit));
            }
            if self.tokens.len() == self.context() {
                return Ok(Next::End(End::ContextFull));
            }
        }
        let token = match wait {
            true if self.started == Started::Nothing => self.decode().map(Some),
            true => self.decode_wait().map(Some),
            false if self.started == Started::Nothing => {
                self.decode_start(1).and_then(|()| self.decode_poll())
            }
            false => self.decode_poll(),
        };
        match token {
            Ok(Some(token)) => Ok(Next::Token(token)),
            Ok(None) => Ok(Next::Pending),
            Err(e) if e.status == Status::Interrupted => Ok(Next::End(End::Interrupted)),
            Err(e) => Err(e),
        }
    }

    /// Puts a token that was decoded into the text: the reason to end without a piece for it, if there is one.
    fn put_into_text(&self, generation: &mut Generation, token: u32) -> Result<Option<End>> {
        let tokenizer = self.model.tokenizer()?;
        let is_end = !generation.ignore_end && tokenizer.is_end(token);
        if !is_end {
            let mut stream = generation.stream.clone();
            let mut text = String::new();
            {
                let room = Room::for_input(tokenizer.token_bytes(token)?.len())?;
                let _in_room = room.enter();
                stream.push(tokenizer, &[token], &mut text)?;
            }
            // Nothing that is kept was made with memory of the reserve.
            memory::check()?;
            generation.stream = stream;
            generation.made.text_bytes += text.len();
            generation.text = text;
            generation.token = Some(token);
            generation.end = generation.stream.stopped().map(End::Stop);
        }
        generation.made.n_tokens += 1;
        generation.made.last = Some(token);
        Ok(is_end.then_some(End::EndToken))
    }
}

/// What comes next.
enum Next {
    Pending,
    Token(u32),
    End(End),
}

impl Generation {
    fn result(&self) -> Generated {
        Generated {
            end: self.end.unwrap_or(End::Callback),
            ..self.made
        }
    }
}
