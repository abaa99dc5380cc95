//! Frames on a connection that waits for nobody.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Bytes by which a rank shows that it has the id.
pub const SECRET_BYTES: usize = 16;

/// The most bytes of a frame: those of 64 rows are some ten thousand.
const MAX_FRAME: usize = 1 << 16;

/// A connection to another rank.
#[derive(Debug)]
pub struct Line {
    stream: TcpStream,
    /// What has come and was not taken yet.
    part: Vec<u8>,
    has_ended: bool,
    /// The most bytes of a frame.
    most: usize,
}

/// Waits a moment for something that takes microseconds or seconds.
pub fn pause(begun: Instant) {
    match begun.elapsed() {
        waited if waited < Duration::from_micros(200) => std::hint::spin_loop(),
        waited => {
            let (least, most) = (Duration::from_micros(50), Duration::from_millis(2));
            std::thread::sleep((waited / 16).clamp(least, most));
        }
    }
}

impl Line {
    pub fn new(stream: TcpStream) -> io::Result<Line> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Line {
            stream,
            part: Vec::new(),
            has_ended: false,
            most: MAX_FRAME,
        })
    }

    /// One on which no frame has more bytes than these.
    pub fn limited(self, most: usize) -> Line {
        Line { most, ..self }
    }

    /// One on which frames have any number that there is a use for.
    pub fn unlimited(self) -> Line {
        self.limited(MAX_FRAME)
    }

    /// Sends a frame.
    pub fn send(&mut self, frame: &[u8], deadline: Instant) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(4 + frame.len());
        bytes.extend_from_slice(&(frame.len() as u32).to_le_bytes());
        bytes.extend_from_slice(frame);
        let begun = Instant::now();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(n) => rest = &rest[n..],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {
                    pause(begun);
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Takes in what has come, up to a whole frame at least.
    pub fn pump(&mut self) {
        let mut bytes = [0; 4096];
        while !self.has_ended && self.part.len() < 4 + self.most {
            match self.stream.read(&mut bytes) {
                Ok(0) => self.has_ended = true,
                // Without memory for it, this end goes.
                Ok(n) if self.part.try_reserve(n).is_err() => self.has_ended = true,
                Ok(n) => self.part.extend_from_slice(&bytes[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // The other one's system has closed it.
                Err(_) => self.has_ended = true,
            }
        }
    }

    /// The first frame that has come. `InvalidData` for one that is too long.
    pub fn peek(&self) -> io::Result<Option<&[u8]>> {
        let Some((len, rest)) = self.part.split_first_chunk::<4>() else {
            return Ok(None);
        };
        match u32::from_le_bytes(*len) as usize {
            len if len > self.most => Err(ErrorKind::InvalidData.into()),
            len => Ok(rest.get(..len)),
        }
    }

    /// The next frame, if it has come. `UnexpectedEof` if none comes any more.
    pub fn receive(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.pump();
        let Some(frame) = self.peek()?.map(<[u8]>::to_vec) else {
            return match self.has_ended {
                true => Err(ErrorKind::UnexpectedEof.into()),
                false => Ok(None),
            };
        };
        self.part.drain(..4 + frame.len());
        Ok(Some(frame))
    }

    /// Nothing comes any more but what has come already.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Ends it; what was sent still arrives.
    pub fn close(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }
}
