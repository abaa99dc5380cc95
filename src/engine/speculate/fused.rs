//! Heads of EAGLE-3: models that are one layer, which reads hidden states of the model that it was trained for.

use super::heads::Head;
use super::model::check_vocabulary;
use crate::backend::Weights;
use crate::engine::Model;
use crate::error::{Result, fail};
use crate::model::Network;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A head as a file has it, and the models beside which it is.
pub struct Drafter {
    network: Network,
    targets: Mutex<Vec<Weak<Model>>>,
}

/// The heads of files of their own that are on a model's device beside it: as long as it and their models are there.
#[derive(Default)]
pub struct HeadsBeside(Mutex<Vec<Beside>>);

struct Beside {
    /// Of the head's [`Drafter`], which is in one place as long as this is here.
    drafter: usize,
    weights: Arc<dyn Weights>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing is half done in between.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HeadsBeside {
    fn find_or_load(
        &self,
        drafter: usize,
        load: impl FnOnce() -> Result<Arc<dyn Weights>>,
    ) -> Result<Arc<dyn Weights>> {
        let mut all = lock(&self.0);
        if let Some(beside) = all.iter().find(|beside| beside.drafter == drafter) {
            return Ok(beside.weights.clone());
        }
        let weights = load()?;
        all.push(Beside {
            drafter,
            weights: weights.clone(),
        });
        Ok(weights)
    }

    fn forget(&self, drafter: usize) {
        let mut all = lock(&self.0);
        let gone: Vec<Beside> = all.extract_if(.., |b| b.drafter == drafter).collect();
        drop(all);
        drop(gone);
    }

    /// They go with their model, as its own head does.
    pub(in crate::engine) fn evict(&self) -> Result<()> {
        lock(&self.0).iter().try_for_each(|b| b.weights.evict())
    }

    /// And come back with it.
    pub(in crate::engine) fn resume(&self) -> Result<()> {
        lock(&self.0).iter().try_for_each(|b| b.weights.resume())
    }
}

impl Drafter {
    /// The network of a model, if it is such a head.
    #[inline(never)]
    pub fn of(network: &Network) -> Option<Drafter> {
        network.fusion()?;
        Some(Drafter {
            network: network.clone(),
            targets: Mutex::default(),
        })
    }

    /// What tells it from other heads.
    fn number(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// It on the device of a model, with what it takes of that. Sessions of the model share it.
    fn beside(&self, target: &Arc<Model>) -> Result<Arc<dyn Weights>> {
        let load = || target.weights().clone().load_predictor(&self.network);
        let weights = target.heads_beside().find_or_load(self.number(), load)?;
        let mut targets = lock(&self.targets);
        targets.retain(|known| known.strong_count() > 0);
        let is_known = |known: &Weak<Model>| std::ptr::eq(known.as_ptr(), Arc::as_ptr(target));
        if !targets.iter().any(is_known) {
            targets.push(Arc::downgrade(target));
        }
        Ok(weights)
    }
}

impl Drop for Drafter {
    fn drop(&mut self) {
        let number = self.number();
        for target in lock(&self.targets).iter().filter_map(Weak::upgrade) {
            target.heads_beside().forget(number);
        }
    }
}

/// The head that a model is, for another one.
///
/// Errors: `InvalidArgument` if it is not one for that model, or on another device; those of the device.
pub(super) fn head_for(target: &Arc<Model>, drafts: &Arc<Model>) -> Result<Head> {
    let found = drafts.drafter();
    let Some((drafter, fusion)) = found.and_then(|d| Some((d, d.network.fusion()?))) else {
        fail!(Internal, "a model that is no head");
    };
    check_vocabulary(target, drafts)?;
    let (network, details) = (&drafter.network, target.details());
    let device = drafts.details().device;
    if device != details.device {
        fail!(
            InvalidArgument,
            "draft_model is an EAGLE-3 head on device {device}, and the session's model is on device {}; a head drafts on the device of its model",
            details.device
        );
    }
    let Some(entry) = &network.entry else {
        fail!(Internal, "a head without an entry");
    };
    let projection = &entry.projection.weight;
    if projection.row_len() != 3 * details.hidden {
        fail!(
            InvalidArgument,
            "draft_model is a head for another model: its tensor {} has rows of {} elements; for the session's model, of width {}, it needs {}",
            projection.name,
            projection.row_len(),
            details.hidden,
            3 * details.hidden
        );
    }
    if !fusion.own_embedding && network.hidden != details.hidden {
        fail!(
            InvalidArgument,
            "draft_model has no tensor embed_tokens.weight, and is {} wide; the embedding of the session's model is {} wide",
            network.hidden,
            details.hidden
        );
    }
    let Some(places) = fusion.places_in(details.n_layers) else {
        fail!(
            InvalidArgument,
            "draft_model reads hidden states of layers that the session's model, of {} layers, does not have",
            details.n_layers
        );
    };
    Ok(Head {
        weights: drafter.beside(target)?,
        fused: Some((drafts.clone(), places)),
    })
}
