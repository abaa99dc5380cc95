//! Heads of EAGLE-3: models that are one layer, which reads hidden states of the model that it was trained for.

use super::heads::Head;
use super::model::check_vocabulary;
use crate::backend::Weights;
use crate::engine::Model;
use crate::error::{Result, fail};
use crate::model::{Fusion, Network};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A head as a file has it, and beside the model that it last drafted for.
pub struct Drafter {
    network: Network,
    beside: Mutex<Option<Beside>>,
}

/// A model that a head drafts for, and the head on its device, as long as both are there.
struct Beside {
    model: Weak<Model>,
    weights: Weak<dyn Weights>,
}

impl Drafter {
    /// The network of a model, if it is such a head.
    #[inline(never)]
    pub fn of(network: &Network) -> Option<Drafter> {
        fusion(network)?;
        Some(Drafter {
            network: network.clone(),
            beside: Mutex::default(),
        })
    }

    /// It on the device of a model, with what it takes of that. Sessions of the model share it.
    fn beside(&self, target: &Arc<Model>) -> Result<Arc<dyn Weights>> {
        let mut beside = self.beside.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(beside) = &*beside
            && std::ptr::eq(beside.model.as_ptr(), Arc::as_ptr(target))
            && let Some(weights) = beside.weights.upgrade()
        {
            return Ok(weights);
        }
        let mut network = self.network.clone();
        if fusion(&network).is_some_and(|fusion| !fusion.own_embedding) {
            network.embedding = target.embedding()?.clone();
        }
        let weights = target.weights().clone().load_predictor(&network)?;
        *beside = Some(Beside {
            model: Arc::downgrade(target),
            weights: Arc::downgrade(&weights),
        });
        Ok(weights)
    }
}

fn fusion(network: &Network) -> Option<&Fusion> {
    network.entry.as_ref()?.fusion.as_ref()
}

/// The head that a model is, for another one.
///
/// Errors: `InvalidArgument` if it is not one for that model; `Unsupported` if that is not on a CPU; those of the device.
pub(super) fn head_for(target: &Arc<Model>, drafts: &Arc<Model>) -> Result<Head> {
    let found = drafts.drafter();
    let Some((drafter, fusion)) = found.and_then(|d| Some((d, fusion(&d.network)?))) else {
        fail!(Internal, "a model that is no head");
    };
    check_vocabulary(target, drafts)?;
    target.embedding()?;
    let (network, details) = (&drafter.network, target.details());
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
