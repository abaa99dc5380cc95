//! Which device runs which layers of a model.
//!
//! A model whose limit of GPU memory is too small for all of it has its last layers, with the head, on the GPU, and the
//! others, with the embedding, which is looked up and not multiplied, on the CPU.

use super::device::{self, Device};
use crate::backend::parts::PartsWeights;
use crate::backend::{DeviceKind, Estimate, LoadOptions, Progress, RunnerOptions, Weights};
use crate::error::{Result, fail};
use crate::model::Network;
use std::ops::Range;
use std::sync::Arc;

/// Some layers of a network on a device.
pub(super) struct Place {
    device: Device,
    kind: DeviceKind,
    layers: Range<usize>,
}

impl Place {
    fn new(index: usize, layers: Range<usize>) -> Result<Place> {
        let device = device::get(index)?;
        let kind = device.backend.device_info(device.index).kind;
        Ok(Place {
            device,
            kind,
            layers,
        })
    }

    /// Whether they are on a CPU.
    pub fn is_on_host(&self) -> bool {
        self.kind == DeviceKind::Cpu
    }

    /// The network of these layers.
    pub fn network(&self, network: &Network) -> Result<Network> {
        match self.layers == (0..network.blocks.len()) {
            true => Ok(network.clone()),
            false => network.part(self.layers.clone()),
        }
    }

    /// The options for them, of those for the whole model on a device of a kind.
    fn options(&self, options: &LoadOptions, kind: DeviceKind) -> LoadOptions {
        match self.kind == kind {
            true => options.clone(),
            // They are about a GPU.
            false => LoadOptions {
                cuda_context: 0,
                session_memory_limit: 0,
                ..options.clone()
            },
        }
    }
}

/// The index of the CPU in the list of devices.
fn cpu() -> Result<usize> {
    for index in 0..device::count()? {
        let device = device::get(index)?;
        if device.backend.device_info(device.index).kind == DeviceKind::Cpu {
            return Ok(index);
        }
    }
    fail!(NoDevice, "there is no CPU in the list of devices")
}

/// Where the layers of a model go that is loaded onto a device.
///
/// Errors: `Unsupported` for what the device cannot run; `OutOfMemory`.
pub(super) fn places(
    network: &Network,
    device_index: usize,
    options: &LoadOptions,
) -> Result<Vec<Place>> {
    let n = network.blocks.len();
    if let Some(cuts) = &options.cuts {
        let mut places = Vec::new();
        let mut first = 0;
        for &(end, index) in cuts.iter().filter(|(end, _)| *end > 0) {
            places.push(Place::new(index, first..end)?);
            first = end;
        }
        places.push(Place::new(device_index, first..n)?);
        return Ok(places);
    }
    let whole = Place::new(device_index, 0..n)?;
    if whole.is_on_host() || options.memory_limit == 0 {
        return Ok(vec![whole]);
    }
    let takes = |from: usize| {
        let place = Place::new(device_index, from..n)?;
        let estimate = estimate_place(&place, network, options, &RunnerOptions::default())?;
        Ok(estimate.weights_bytes + estimate.model_workspace_bytes)
    };
    // Fewer layers take less; those that cannot be parts alone stay with those before them.
    let first = first_that_fits(n, options.memory_limit, |from| {
        let from = (from..n).find(|at| *at == 0 || network.can_be_cut(*at));
        from.map(takes).transpose()
    })?;
    let first = (first..n).find(|at| *at == 0 || network.can_be_cut(*at));
    match first {
        Some(0) => Ok(vec![whole]),
        Some(first) => Ok(vec![
            Place::new(cpu()?, 0..first)?,
            Place::new(device_index, first..n)?,
        ]),
        None => Ok(vec![Place::new(cpu()?, 0..n)?]),
    }
}

/// The first of `n` layers from which on all fit a limit; `n` where none do. `takes` says how many bytes those from a layer
/// on take, if they can be apart.
fn first_that_fits(
    n: usize,
    limit: u64,
    takes: impl Fn(usize) -> Result<Option<u64>>,
) -> Result<usize> {
    let (mut least, mut most) = (0, n);
    while least < most {
        let middle = least.midpoint(most);
        match takes(middle)? {
            Some(bytes) if bytes > limit => least = middle + 1,
            _ => most = middle,
        }
    }
    Ok(least)
}

/// What a part would take.
fn estimate_place(
    place: &Place,
    network: &Network,
    options: &LoadOptions,
    runner: &RunnerOptions,
) -> Result<Estimate> {
    let network = place.network(network)?;
    let device = place.device;
    device
        .backend
        .estimate(device.index, &network, options, runner)
}

/// What a model and a session of it would take.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlacedEstimate {
    /// On the device.
    pub device: Estimate,
    /// On the CPU, where the device is a GPU.
    pub host: Estimate,
    /// Layers on the device.
    pub device_layers: usize,
}

/// What a model in these places and a session of it would take, on a device of a kind.
pub(super) fn estimate(
    places: &[Place],
    kind: DeviceKind,
    network: &Network,
    options: &LoadOptions,
    runner: &RunnerOptions,
) -> Result<PlacedEstimate> {
    let mut all = PlacedEstimate::default();
    for place in places {
        let options = place.options(options, kind);
        let e = estimate_place(place, network, &options, runner)?;
        let sum = match place.kind == kind {
            true => &mut all.device,
            false => &mut all.host,
        };
        sum.weights_bytes += e.weights_bytes;
        sum.kv_bytes_per_token += e.kv_bytes_per_token;
        sum.kv_bytes = sum.kv_bytes.saturating_add(e.kv_bytes);
        sum.model_workspace_bytes += e.model_workspace_bytes;
        sum.session_workspace_bytes += e.session_workspace_bytes;
    }
    all.device_layers = device_layers(places, kind);
    Ok(all)
}

/// Layers on devices of a kind.
pub(super) fn device_layers(places: &[Place], kind: DeviceKind) -> usize {
    let there = places.iter().filter(|place| place.kind == kind);
    there.map(|place| place.layers.len()).sum()
}

/// Brings a network to its places, the last of which is on a device of a kind.
pub(super) fn load(
    places: &[Place],
    kind: DeviceKind,
    network: &Network,
    options: &LoadOptions,
    progress: &mut Progress<'_>,
) -> Result<Arc<dyn Weights>> {
    let mut parts = Vec::new();
    for place in places {
        let layers = network.blocks.len().max(1) as f32;
        let (before, share) = (
            place.layers.start as f32 / layers,
            place.layers.len() as f32 / layers,
        );
        let options = place.options(options, kind);
        parts.push(place.device.backend.load(
            place.device.index,
            &place.network(network)?,
            &options,
            &mut |done| progress(before + share * done.clamp(0.0, 1.0)),
        )?);
    }
    match parts.len() {
        1 => Ok(parts.remove(0)),
        _ => {
            // A GPU evaluates many tokens with other sums than one.
            let alike = places.iter().all(Place::is_on_host);
            let weights = PartsWeights::new(network, parts, alike, options.placement);
            Ok(weights)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::first_that_fits;

    #[test]
    fn as_many_layers_as_fit_go_to_the_device() {
        // The head takes 50, each layer 10.
        let first = |limit| first_that_fits(8, limit, |from| Ok(Some(50 + 10 * (8 - from as u64))));
        assert_eq!(first(1000).unwrap(), 0);
        assert_eq!(first(130).unwrap(), 0);
        assert_eq!(first(129).unwrap(), 1);
        assert_eq!(first(60).unwrap(), 7);
        assert_eq!(first(59).unwrap(), 8);
    }
}
