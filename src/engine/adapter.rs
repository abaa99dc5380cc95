//! LoRA adapters of a loaded model, and the sessions and embedders that use them.

use super::model::room_for;
use super::{Model, Session, residence::Residence};
use crate::error::{Error, Result, Status, fail};
use crate::format::ModelSource;
use crate::log::log;
use crate::model::{self, AdapterSet, AdapterUse};
use std::path::Path;
use std::sync::Arc;

/// The most adapters of a session, or of an embedder.
pub const MAX_ADAPTERS: usize = 16;

/// An adapter, loaded for a model. Immutable; shared by the sessions and embedders that use it.
pub struct Adapter {
    /// Kept, because pairs are found by where the model's matrices are.
    model: Arc<Model>,
    data: Arc<model::Adapter>,
}

impl Adapter {
    /// Loads an adapter of a model from a folder as PEFT writes it or from a GGUF file.
    ///
    /// Errors: those of [`model::Adaptable::read`]; `Unsupported` for devices that cannot have adapters;
    /// `OutOfMemory` also where the memory of sessions has a limit, which adapters count to.
    pub fn load(model: Arc<Model>, path: &Path) -> Result<Adapter> {
        model.weights().check_adapters()?;
        let Some(adaptable) = model.adaptable() else {
            fail!(
                Unsupported,
                "models of {} cannot have adapters",
                model.details().architecture
            );
        };
        let room = room_for(&ModelSource::Path(path))?;
        let _in_room = room.enter();
        let mut data = adaptable.read(path)?;
        model.weights().take_adapter(&mut data)?;
        log!(
            Info,
            "loaded adapter {}: rank {}, {} tensors",
            path.display(),
            data.max_rank,
            data.n_tensors
        );
        // Nothing that is kept was made with memory of the reserve.
        crate::memory::check()?;
        let data = Arc::new(data);
        Ok(Adapter { model, data })
    }

    /// The model that it was loaded for.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// What it is.
    pub fn data(&self) -> &model::Adapter {
        &self.data
    }
}

/// Adapters that a session or an embedder is to use, with their scales.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// The adapter.
    pub adapter: &'a Adapter,
    /// Factor on what it adds.
    pub scale: f32,
}

/// `InvalidArgument` for more adapters than can be used together.
pub fn check_count(count: usize) -> Result<()> {
    if count > MAX_ADAPTERS {
        fail!(
            InvalidArgument,
            "{count} adapters are too many; at most {MAX_ADAPTERS} are used together"
        );
    }
    Ok(())
}

/// The set that sessions and embedders of a model keep; none where nothing is added.
///
/// Errors: `InvalidArgument` names the adapter by its index.
pub(super) fn set_of(model: &Arc<Model>, wanted: &[Wanted<'_>]) -> Result<Option<Arc<AdapterSet>>> {
    check_count(wanted.len())?;
    let mut set = AdapterSet::new();
    for (i, wanted) in wanted.iter().enumerate() {
        let invalid = |problem: String| {
            let message = format!("adapter at index {i}: {problem}");
            Error::new(Status::InvalidArgument, message).at(i)
        };
        if !Arc::ptr_eq(&wanted.adapter.model, model) {
            return Err(invalid("it was loaded for another model".to_owned()));
        }
        if !wanted.scale.is_finite() {
            return Err(invalid(format!(
                "its scale is {}, which is not finite",
                wanted.scale
            )));
        }
        if wanted.scale != 0.0 {
            set.push(AdapterUse {
                adapter: wanted.adapter.data.clone(),
                scale: wanted.scale,
            });
        }
    }
    Ok((!set.is_empty()).then(|| Arc::new(set)))
}

/// Whether both add the same.
fn alike(a: Option<&AdapterSet>, b: Option<&AdapterSet>) -> bool {
    let (a, b) = (a.map_or(&[][..], |a| a), b.map_or(&[][..], |b| b));
    let same = |(a, b): (&AdapterUse, &AdapterUse)| {
        Arc::ptr_eq(&a.adapter, &b.adapter) && a.scale.to_bits() == b.scale.to_bits()
    };
    a.len() == b.len() && a.iter().zip(b).all(same)
}

impl Session {
    /// Uses these adapters from now on, in place of those before. The context is evaluated again by the next
    /// call that needs it, unless `keep`: then keys, values and logits stay as they are. Nothing is done if
    /// the adapters are the same as before.
    ///
    /// Errors: `InvalidArgument` for too many, for those of another model, and for scales; `DecodePending`;
    /// those of the backend. The session is as it was then.
    pub fn set_adapters(&mut self, wanted: &[Wanted<'_>], keep: bool) -> Result<()> {
        self.begin()?;
        let set = set_of(&self.model, wanted)?;
        if alike(set.as_deref(), self.adapters.as_deref()) {
            return Ok(());
        }
        crate::memory::check()?;
        // A state that is not on the device gets them when it comes back.
        if let Residence::Device(runner) = &mut self.residence {
            runner.set_adapters(set.clone())?;
        }
        self.adapters = set;
        if !keep {
            self.residence.roll_back_to(0);
        }
        Ok(())
    }

    /// What it uses: fingerprints and scales.
    pub(super) fn saved_adapters(&self) -> Vec<(u64, f32)> {
        saved(self.adapters.as_deref())
    }
}

/// What a file of a session says about adapters.
pub(super) fn saved(set: Option<&AdapterSet>) -> Vec<(u64, f32)> {
    let uses = set.into_iter().flatten();
    uses.map(|u| (u.adapter.fingerprint, u.scale)).collect()
}

/// `StateForeign` unless a session that was saved with some adapters is restored with the same.
pub(super) fn check_saved(saved: &[(u64, f32)], given: &[(u64, f32)]) -> Result<()> {
    let list = |all: &[(u64, f32)]| match all {
        [] => "none".to_owned(),
        all => {
            let names = all
                .iter()
                .map(|(f, scale)| format!("{f:016x} times {scale}"));
            names.collect::<Vec<_>>().join(", ")
        }
    };
    let bits = |all: &[(u64, f32)]| -> Vec<(u64, u32)> {
        all.iter().map(|(f, scale)| (*f, scale.to_bits())).collect()
    };
    if bits(saved) != bits(given) {
        fail!(
            StateForeign,
            "the session was saved with other adapters: {}; given are {}",
            list(saved),
            list(given)
        );
    }
    Ok(())
}
