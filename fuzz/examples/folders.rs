//! Writes the inputs that fuzzing of the target `safetensors` starts from, one of each folder with
//! a tiny model: `cargo run --example folders DIR`.

#[path = "../../tests/common/xz.rs"]
mod xz;

use std::path::Path;
use std::{fs, io};

/// Longer files are more than the target reads.
const MAX_BYTES: usize = 1 << 18;

fn main() -> io::Result<()> {
    let Some(dir) = std::env::args_os().nth(1) else {
        return Err(io::Error::other("usage: folders DIR"));
    };
    let dir = Path::new(&dir);
    fs::create_dir_all(dir)?;
    let families = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/families");
    for folder in fs::read_dir(families)? {
        let folder = folder?.path();
        let (Ok(mut input), Some(name)) =
            (fs::read(folder.join("config.json")), folder.file_name())
        else {
            continue;
        };
        // Those of most folders are packed.
        let weights = match fs::read(folder.join("weights.xz")) {
            Ok(packed) => xz::weights(&packed).1,
            Err(_) => fs::read(folder.join("model.safetensors"))?,
        };
        input.push(0);
        input.extend(weights);
        if input.len() <= MAX_BYTES {
            fs::write(dir.join(name), input)?;
        }
    }
    Ok(())
}
