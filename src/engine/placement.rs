//! Which device runs which layers of a model.
//!
//! A model whose limit of GPU memory is too small for all of it has its last layers, with the head, on the GPU, and the
//! others, with the embedding, which is looked up and not multiplied, on the CPU. With mixtures of experts, the GPU keeps all layers
//! as long as there is room for them without experts, and the CPU has the experts of the first layers: a token needs few of their bytes.
//!
//! Several devices share the layers in their order, the last with the head. Each has as many as it was told to have, or
//! GPUs have so many that the bytes of their weights are in proportion to their memory. Where the limit of their memory does
//! not allow that, each has as many as it has room for, from the last one on, and the CPU those that are left.

use super::device::{self, Device};
use super::speculate::HeadDrafts;
use crate::backend::cpu::host;
use crate::backend::parts::{Devices, PartsWeights};
use crate::backend::{
    DeviceKind, Estimate, LoadOptions, MAX_SPLIT, Progress, RunnerOptions, Share, Weights,
};
use crate::error::{Result, fail};
use crate::model::{Block, Network, Rank};
use arrayvec::ArrayVec;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

/// Some layers of a network on a device.
pub(super) struct Place {
    /// Of the device.
    index: usize,
    device: Device,
    kind: DeviceKind,
    layers: Range<usize>,
}

impl Place {
    fn new(index: usize, layers: Range<usize>) -> Result<Place> {
        let device = device::get(index)?;
        let kind = device.backend.device_info(device.index).kind;
        Ok(Place {
            index,
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

    /// The options for them, of those for the whole model, which may be for a GPU.
    fn options(&self, options: &LoadOptions, for_gpu: bool) -> LoadOptions {
        match self.is_on_host() && for_gpu {
            false => options.clone(),
            true => for_host(options),
        }
    }
}

/// The same for experts, which the CPU evaluates when the driver calls it: its thread needs a core, too.
fn for_host_experts(options: &LoadOptions) -> LoadOptions {
    LoadOptions {
        threads: match options.threads {
            0 => host::physical_cores().saturating_sub(1).max(1),
            threads => threads,
        },
        ..for_host(options)
    }
}

/// Options of a model for a GPU, for what the CPU has of it.
fn for_host(options: &LoadOptions) -> LoadOptions {
    LoadOptions {
        cuda_context: 0,
        session_memory_limit: 0,
        ..options.clone()
    }
}

/// Where all layers of a model go.
pub(super) struct Places {
    /// The first layers' first.
    list: Vec<Place>,
    /// A GPU was to have some, so that limits of memory are about GPUs.
    for_gpu: bool,
    /// Each place has a share of all layers, in place of some layers.
    by_tensors: bool,
    /// Of ranks that are loaded by themselves, which one the only place has.
    rank: Option<Rank>,
    /// Layers of the one GPU whose experts are on the CPU.
    host_experts: usize,
}

impl Places {
    /// Layers on a GPU whose experts are on the CPU.
    pub fn host_experts(&self) -> usize {
        self.host_experts
    }

    /// The networks of what the CPU has.
    pub fn networks_on_host(&self, network: &Network) -> Result<Vec<Arc<Network>>> {
        let mut networks = Vec::new();
        for place in self.list.iter().filter(|place| place.is_on_host()) {
            networks.push(Arc::new(place.network(network)?));
        }
        if self.host_experts > 0 {
            networks.push(network.experts_apart(self.host_experts).1);
        }
        Ok(networks)
    }

    /// Whether the last layers and the head are on a CPU.
    pub fn ends_on_host(&self) -> bool {
        self.list.last().is_some_and(Place::is_on_host)
    }

    /// Whether one device has all layers.
    pub fn is_whole(&self) -> bool {
        self.list.len() == 1 && !self.by_tensors && self.rank.is_none()
    }

    /// What is where.
    pub fn parts(&self) -> Vec<PartDetails> {
        self.list.iter().map(PartDetails::of).collect()
    }

    /// Whether a place is on the device that the model is for, or on one of these.
    fn is_on_device(&self, place: &Place) -> bool {
        !(self.for_gpu && place.is_on_host())
    }

    /// Layers on GPUs; all of a model for CPUs.
    pub fn device_layers(&self) -> usize {
        if self.by_tensors {
            return self.list.first().map_or(0, |place| place.layers.len());
        }
        let there = self.list.iter().filter(|place| self.is_on_device(place));
        there.map(|place| place.layers.len()).sum()
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

/// The index of the device that has a model's logits: the one that was named, or of those that share the layers the last one, of those
/// that share each layer the first one.
pub(super) fn main_device(device_index: usize, options: &LoadOptions) -> usize {
    let share = match options.by_tensors {
        true => options.split.first(),
        false => options.split.last(),
    };
    share.map_or(device_index, |share| share.device)
}

/// Where the layers of a model go that is loaded onto a device, or onto those that share it. Beside the last ones is the head that guesses
/// further tokens, if there is one. A head of EAGLE-3 goes to the device of the models that it is for.
///
/// Errors: `Unsupported` for what a device cannot run, and for layers that cannot be apart; `InvalidArgument` for numbers of
/// layers that the model does not have; `OutOfMemory`.
#[inline(never)]
pub(super) fn places(
    network: &Network,
    predictor: Option<&Network>,
    device_index: usize,
    options: &LoadOptions,
) -> Result<Places> {
    if network.fusion().is_some() {
        return of_head(network, device_index, options);
    }
    let split = &options.split;
    if let Some(group) = &options.group {
        if options.host_experts > 0 {
            fail!(Unsupported, "{ONE_GPU}");
        }
        let own = Share {
            device: device_index,
            layers: 0,
        };
        let mut places = ranks(network, &[own])?;
        places.rank = Some(group.rank());
        return Ok(places);
    }
    if options.by_tensors && split.len() > 1 {
        if options.host_experts > 0 {
            fail!(Unsupported, "{ONE_GPU}");
        }
        return ranks(network, split);
    }
    let one = match split[..] {
        [] => Some(device_index),
        [share] if share.layers == 0 => Some(share.device),
        _ => None,
    };
    let last = main_device(device_index, options);
    let beside = match predictor {
        Some(predictor) => head_bytes(network, predictor, last, options)?,
        None => 0,
    };
    if let Some(places) = with_host_experts(network, one, options, beside)? {
        return Ok(places);
    }
    let list = match split[..] {
        [] => limited(network, &[device_index], options, beside),
        [_] if split[0].layers == 0 => limited(network, &[split[0].device], options, beside),
        _ if split.iter().any(|share| share.layers > 0) => named(network.blocks.len(), split),
        _ => {
            let devices: ArrayVec<usize, MAX_SPLIT> = split.iter().map(|s| s.device).collect();
            balanced(network, &devices, options, beside)
        }
    }?;
    let is_limited = options.memory_limit > 0 || options.session_memory_limit > 0;
    for (i, place) in list.iter().enumerate() {
        if is_limited && !place.is_on_host() && list[..i].iter().any(|p| p.index == place.index) {
            fail!(
                InvalidArgument,
                "device {} has two parts of the model, of which each would have a limit of memory of its own",
                place.index
            );
        }
    }
    let main = device::info(main_device(device_index, options))?;
    let any_on_gpu = list.iter().any(|place| !place.is_on_host());
    Ok(Places {
        list,
        for_gpu: any_on_gpu || main.kind != DeviceKind::Cpu,
        by_tensors: false,
        rank: None,
        host_experts: 0,
    })
}

/// Where a head of EAGLE-3 goes that is for models on a device.
///
/// Errors: `Unsupported` for several devices, and for what the device cannot run.
#[inline(never)]
fn of_head(network: &Network, device_index: usize, options: &LoadOptions) -> Result<Places> {
    if !options.split.is_empty() || options.group.is_some() {
        fail!(
            Unsupported,
            "the model is a head of EAGLE-3, which is on one device as a whole"
        );
    }
    let places = whole(network, device_index)?;
    if let [place] = &places.list[..]
        && !place.is_on_host()
    {
        estimate_place(place, network, options, &RunnerOptions::default())?;
    }
    Ok(places)
}

/// Where such a head is until a model has it beside it: in host memory, as its file has it.
#[inline(never)]
pub(super) fn on_host(network: &Network) -> Result<Places> {
    whole(network, cpu()?)
}

fn whole(network: &Network, device_index: usize) -> Result<Places> {
    let place = Place::new(device_index, 0..network.blocks.len())?;
    Ok(Places {
        for_gpu: !place.is_on_host(),
        list: vec![place],
        by_tensors: false,
        rank: None,
        host_experts: 0,
    })
}

/// What is wrong with experts on the CPU of models that several devices share.
const ONE_GPU: &str = "experts stay on the CPU only beside one GPU that has the rest of the model";

/// A model on one GPU whose experts of some layers are on the CPU: as many as were asked for, and as many more as the limit of the
/// GPU's memory demands. None where no experts have to be there, or where even then the GPU has no room for all layers.
fn with_host_experts(
    network: &Network,
    device: Option<usize>,
    options: &LoadOptions,
    beside: u64,
) -> Result<Option<Places>> {
    let separable = network.separable_experts();
    let wanted = options.host_experts.min(separable);
    let Some(device) = device else {
        match wanted {
            0 => return Ok(None),
            _ => fail!(Unsupported, "{ONE_GPU}"),
        }
    };
    let place = Place::new(device, 0..network.blocks.len())?;
    if place.is_on_host() || separable == 0 || wanted == 0 && options.memory_limit == 0 {
        return Ok(None);
    }
    let fits = |count: usize, limit: u64| {
        let rest = network.experts_apart(count).0;
        let (backend, index) = (place.device.backend, place.device.index);
        let e = backend.estimate(index, &rest, options, &RunnerOptions::default())?;
        Result::Ok(e.weights_bytes + e.model_workspace_bytes + beside <= limit)
    };
    let host_experts = match options.memory_limit {
        0 => Some(wanted),
        limit => fewest_that_fit(wanted..=separable, |count| fits(count, limit))?,
    };
    let Some(host_experts) = host_experts.filter(|count| *count > 0) else {
        return Ok(None);
    };
    Ok(Some(Places {
        list: vec![place],
        for_gpu: true,
        by_tensors: false,
        rank: None,
        host_experts,
    }))
}

/// The fewest layers with experts on the CPU that leave the GPU few enough bytes, if any number does. The first one on the CPU takes
/// memory of its own, and each further one gives some back.
fn fewest_that_fit(
    counts: RangeInclusive<usize>,
    fits: impl Fn(usize) -> Result<bool>,
) -> Result<Option<usize>> {
    let (least, most) = counts.into_inner();
    if fits(least)? {
        return Ok(Some(least));
    }
    let fewest = first_where(least + 1..most + 1, fits)?;
    Ok((fewest <= most).then_some(fewest))
}

/// A share of all layers for each of some GPUs.
fn ranks(network: &Network, split: &[Share]) -> Result<Places> {
    let mut list: Vec<Place> = Vec::new();
    for share in split {
        if share.layers > 0 {
            fail!(
                InvalidArgument,
                "numbers of layers are for a split by layers; split by tensors, each device has a share of all layers"
            );
        }
        if list.iter().any(|place| place.index == share.device) {
            fail!(
                InvalidArgument,
                "device {} is named twice; split by tensors, each device has one share",
                share.device
            );
        }
        let place = Place::new(share.device, 0..network.blocks.len())?;
        if place.is_on_host() {
            fail!(
                Unsupported,
                "device {} is a CPU; a model can be split by tensors among GPUs only",
                share.device
            );
        }
        list.push(place);
    }
    Ok(Places {
        list,
        for_gpu: true,
        by_tensors: true,
        rank: None,
        host_experts: 0,
    })
}

/// As many layers for each device as its share names.
fn named(n: usize, split: &[Share]) -> Result<Vec<Place>> {
    let named = split
        .iter()
        .fold(0usize, |sum, share| sum.saturating_add(share.layers));
    let open = split.iter().filter(|share| share.layers == 0).count();
    if open > 1 {
        fail!(
            InvalidArgument,
            "the numbers of layers leave {open} devices without one; at most one can have those that are left"
        );
    }
    if named > n || named < n && open == 0 {
        fail!(
            InvalidArgument,
            "the numbers of layers add up to {named}, but the model has {n}"
        );
    }
    let mut places = Vec::new();
    let mut first = 0;
    for share in split {
        let layers = match share.layers {
            0 => n - named,
            layers => layers,
        };
        if layers > 0 {
            places.push(Place::new(share.device, first..first + layers)?);
        }
        first += layers;
    }
    Ok(places)
}

/// Bytes of the head of a network that guesses further tokens on a device, as far as a limit counts them.
fn head_bytes(
    network: &Network,
    head: &Network,
    device: usize,
    options: &LoadOptions,
) -> Result<u64> {
    let place = Place::new(device, 0..network.blocks.len())?;
    if options.memory_limit == 0 || place.is_on_host() {
        return Ok(0);
    }
    let (backend, index) = (place.device.backend, place.device.index);
    let both = (options, &RunnerOptions::default());
    let e = backend.estimate_predictor(index, (network, head), 0, both);
    // What the device cannot have is refused, or left out, when the model is loaded.
    Ok(e.map_or(0, |e| e.weights_bytes + e.model_workspace_bytes))
}

/// From the last device on, as many layers for each as `memory_limit` has room for, on the last one with so many bytes `beside` them.
/// Those that are left go to the CPU.
fn limited(
    network: &Network,
    devices: &[usize],
    options: &LoadOptions,
    beside: u64,
) -> Result<Vec<Place>> {
    let mut places = Vec::new();
    let mut end = network.blocks.len();
    for (i, &device) in devices.iter().rev().enumerate() {
        let beside = if i == 0 { beside } else { 0 };
        let first = match end {
            0 => break,
            end => first_with_room(network, device, end, options, beside)?,
        };
        if first < end {
            places.push(Place::new(device, first..end)?);
        }
        end = first;
    }
    if end > 0 {
        places.push(Place::new(cpu()?, 0..end)?);
    }
    places.reverse();
    Ok(places)
}

/// The first of the layers up to `end` that a device has room for together; `end` where it has none for the last one.
fn first_with_room(
    network: &Network,
    device: usize,
    end: usize,
    options: &LoadOptions,
    beside: u64,
) -> Result<usize> {
    if options.memory_limit == 0 || Place::new(device, 0..end)?.is_on_host() {
        return Ok(0);
    }
    // Fewer layers take less; those that cannot be parts alone stay with those before them.
    let cut = |from: usize| (from..end).find(|at| *at == 0 || network.can_be_cut(*at));
    let takes = |from: usize| {
        let Some(from) = cut(from) else {
            return Ok(None);
        };
        let place = Place::new(device, from..end)?;
        let estimate = estimate_place(&place, network, options, &RunnerOptions::default())?;
        Ok(Some(
            estimate.weights_bytes + estimate.model_workspace_bytes + beside,
        ))
    };
    let first = first_that_fits(end, options.memory_limit, takes)?;
    Ok(cut(first).unwrap_or(end))
}

/// Layers for each of some GPUs in proportion to their memory, or as many as it has room for.
fn balanced(
    network: &Network,
    devices: &[usize],
    options: &LoadOptions,
    beside: u64,
) -> Result<Vec<Place>> {
    let mut memory = ArrayVec::<u64, MAX_SPLIT>::new();
    for &index in devices {
        let device = device::get(index)?;
        let info = device.backend.device_info(device.index);
        if info.kind == DeviceKind::Cpu {
            fail!(
                InvalidArgument,
                "device {index} is a CPU, which shares a model only where the numbers of layers are named"
            );
        }
        memory.push(info.memory_total.max(1));
    }
    let bytes: Vec<u64> = network.blocks.iter().map(block_bytes).collect();
    let [embedding, head] = [&network.embedding, &network.head.weight];
    let ends = [embedding, head].map(|tensor| tensor.byte_len() as u64);
    let cuts = proportional_cuts(&bytes, ends, &memory, |at| network.can_be_cut(at));
    let mut places = Vec::new();
    for (&device, layers) in devices.iter().zip(cuts) {
        if !layers.is_empty() {
            places.push(Place::new(device, layers)?);
        }
    }
    if options.memory_limit > 0 {
        for (i, place) in places.iter().enumerate() {
            let e = estimate_place(place, network, options, &RunnerOptions::default())?;
            let beside_it = if i + 1 == places.len() { beside } else { 0 };
            if e.weights_bytes + e.model_workspace_bytes + beside_it > options.memory_limit {
                return limited(network, devices, options, beside);
            }
        }
    }
    Ok(places)
}

/// The bytes of a block's matrices.
fn block_bytes(block: &Block) -> u64 {
    let linears = block.linears().into_iter();
    linears.map(|linear| linear.weight.byte_len() as u64).sum()
}

/// Shares layers of so many bytes, with what is in front of the first one and behind the last, among devices in proportion to their
/// memory: so that the largest quotient of a device's bytes and its memory is the least that can be had. There are cuts only
/// where `can_be_cut` says so; a device for which there is none gets no layers.
fn proportional_cuts(
    bytes: &[u64],
    ends: [u64; 2],
    memory: &[u64],
    can_be_cut: impl Fn(usize) -> bool,
) -> Vec<Range<usize>> {
    let n = bytes.len();
    let mut sums = vec![0];
    for (i, layer) in bytes.iter().enumerate() {
        let front = if i == 0 { ends[0] } else { 0 };
        let behind = if i + 1 == n { ends[1] } else { 0 };
        sums.push(sums[i] + front + layer + behind);
    }
    let may_end = |at: usize| at == 0 || at == n || can_be_cut(at);
    // The least largest quotient of the first devices with the first layers, and where the last of these devices begins.
    let mut least = vec![f64::INFINITY; n + 1];
    least[0] = 0.0;
    let mut begins = Vec::new();
    for memory in memory {
        let mut next = vec![f64::INFINITY; n + 1];
        let mut from = vec![0; n + 1];
        for end in (0..=n).filter(|at| may_end(*at)) {
            for first in (0..=end).filter(|at| may_end(*at)) {
                let own = (sums[end] - sums[first]) as f64 / *memory as f64;
                let largest = least[first].max(own);
                if largest < next[end] {
                    (next[end], from[end]) = (largest, first);
                }
            }
        }
        least = next;
        begins.push(from);
    }
    let mut cuts = Vec::new();
    let mut end = n;
    for from in begins.iter().rev() {
        cuts.push(from[end]..end);
        end = from[end];
    }
    cuts.reverse();
    cuts
}

/// The first of `n` layers from which on all fit a limit; `n` where none do. `takes` says how many bytes those from a layer
/// on take, if they can be apart.
fn first_that_fits(
    n: usize,
    limit: u64,
    takes: impl Fn(usize) -> Result<Option<u64>>,
) -> Result<usize> {
    first_where(0..n, |n| Ok(takes(n)?.is_none_or(|bytes| bytes <= limit)))
}

/// The first of some numbers for which something holds that then holds for all behind it; the end where there is none.
fn first_where(numbers: Range<usize>, holds: impl Fn(usize) -> Result<bool>) -> Result<usize> {
    let (mut least, mut most) = (numbers.start, numbers.end);
    while least < most {
        let middle = least.midpoint(most);
        match holds(middle)? {
            true => most = middle,
            false => least = middle + 1,
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

/// Layers of a model that are on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartDetails {
    /// Index of the device.
    pub device: usize,
    /// The first of the layers.
    pub first_layer: usize,
    /// How many they are.
    pub layers: usize,
}

impl PartDetails {
    fn of(place: &Place) -> PartDetails {
        PartDetails {
            device: place.index,
            first_layer: place.layers.start,
            layers: place.layers.len(),
        }
    }
}

/// What a model and a session of it would take.
#[derive(Clone, Debug, Default)]
pub struct PlacedEstimate {
    /// On all GPUs, or on the CPU for a model that is for no GPU.
    pub device: Estimate,
    /// On the CPU, for a model that is for a GPU.
    pub host: Estimate,
    /// Layers that `device` is about.
    pub device_layers: usize,
    /// Of these, layers whose experts are on the CPU.
    pub host_experts: usize,
    /// Each part of the model, the first layers' first.
    pub parts: Vec<(PartDetails, Estimate)>,
}

/// What a model in these places and a session of it would take.
pub(super) fn estimate(
    places: &Places,
    network: &Network,
    options: &LoadOptions,
    runner: &RunnerOptions,
) -> Result<PlacedEstimate> {
    let mut all = PlacedEstimate {
        device_layers: places.device_layers(),
        host_experts: places.host_experts,
        ..Default::default()
    };
    let mut network = network;
    let rest;
    if places.host_experts > 0 {
        let (without, experts) = network.experts_apart(places.host_experts);
        let (cpu, options) = (device::get(cpu()?)?, for_host_experts(options));
        all.host = cpu
            .backend
            .estimate(cpu.index, &experts, &options, runner)?;
        rest = without;
        network = &rest;
    }
    for (index, place) in places.list.iter().enumerate() {
        let options = place.options(options, places.for_gpu);
        let rank = places.rank.unwrap_or(Rank {
            index,
            count: places.list.len(),
        });
        let (device, both) = (place.device, (&options, runner));
        let e = match places.by_tensors {
            true => device
                .backend
                .estimate_rank(device.index, network, rank, both)?,
            false => estimate_place(place, network, &options, runner)?,
        };
        let sum = match places.is_on_device(place) {
            true => &mut all.device,
            false => &mut all.host,
        };
        sum.weights_bytes += e.weights_bytes;
        sum.kv_bytes_per_token += e.kv_bytes_per_token;
        sum.kv_bytes = sum.kv_bytes.saturating_add(e.kv_bytes);
        sum.model_workspace_bytes += e.model_workspace_bytes;
        sum.session_workspace_bytes += e.session_workspace_bytes;
        all.parts.push((PartDetails::of(place), e));
    }
    Ok(all)
}

/// Adds what the head of a network takes that guesses further tokens, beside the last layers, and a session's drafts of it.
pub(super) fn add_head(
    places: &Places,
    network: &Network,
    head: &Network,
    (options, runner): (&LoadOptions, &RunnerOptions),
    all: &mut PlacedEstimate,
) -> Result<()> {
    let (Some(place), Some((_, last))) = (places.list.last(), all.parts.last_mut()) else {
        return Ok(());
    };
    let (device, options) = (place.device, place.options(options, places.for_gpu));
    let (runner, states) = HeadDrafts::of_session(runner);
    let e = device.backend.estimate_predictor(
        device.index,
        (network, head),
        states,
        (&options, &runner),
    )?;
    let sum = match places.is_on_device(place) {
        true => &mut all.device,
        false => &mut all.host,
    };
    for sum in [sum, last] {
        sum.weights_bytes += e.weights_bytes;
        sum.kv_bytes_per_token += e.kv_bytes_per_token;
        sum.kv_bytes = sum.kv_bytes.saturating_add(e.kv_bytes);
        sum.model_workspace_bytes += e.model_workspace_bytes;
        sum.session_workspace_bytes += e.session_workspace_bytes;
    }
    Ok(())
}

/// Adds the hidden states that a session keeps for a head of EAGLE-3, if the network is one. They are where the head is.
pub(super) fn add_fused_states(
    places: &Places,
    network: &Network,
    runner: &RunnerOptions,
    all: &mut PlacedEstimate,
) {
    let Some(place) = places.list.last() else {
        return;
    };
    let bytes = HeadDrafts::fused_bytes(place.device.backend, network, runner);
    if let Some((_, last)) = all.parts.last_mut() {
        for sum in [&mut all.device, last] {
            sum.session_workspace_bytes = sum.session_workspace_bytes.saturating_add(bytes);
        }
    }
}

/// Brings a network to its places.
#[inline(never)]
pub(super) fn load(
    places: &Places,
    network: &Network,
    options: &LoadOptions,
    progress: &mut Progress<'_>,
) -> Result<Arc<dyn Weights>> {
    if places.by_tensors
        && let Some(first) = places.list.first()
    {
        let backend = first.device.backend;
        if let Some(group) = &options.group {
            let meeting = group.meeting()?;
            let (index, both) = (first.device.index, (&meeting, options));
            let (parts, ranks) = backend.load_rank(index, network, both, progress)?;
            let placement = options.placement;
            return Ok(PartsWeights::of_ranks(network, parts, ranks, placement)?);
        }
        let indices: Vec<usize> = places.list.iter().map(|p| p.device.index).collect();
        let (parts, ranks) = backend.load_ranks(&indices, network, options, progress)?;
        let placement = options.placement;
        return Ok(PartsWeights::of_ranks(network, parts, ranks, placement)?);
    }
    if places.host_experts > 0
        && let [place] = &places.list[..]
    {
        let (rest, experts) = network.experts_apart(places.host_experts);
        let cpu = device::get(cpu()?)?;
        let share = experts.blocks.len() as f32 / network.blocks.len().max(1) as f32 * 0.5;
        let host = cpu.backend.load(
            cpu.index,
            &experts,
            &for_host_experts(options),
            &mut |done| progress(share * done.clamp(0.0, 1.0)),
        )?;
        let options = LoadOptions {
            host_part: host.host_layers(),
            ..options.clone()
        };
        let device = place.device;
        return device
            .backend
            .load(device.index, &rest, &options, &mut |done| {
                progress(share + (1.0 - share) * done.clamp(0.0, 1.0))
            });
    }
    let mut parts = Vec::new();
    for place in &places.list {
        let layers = network.blocks.len().max(1) as f32;
        let (before, share) = (
            place.layers.start as f32 / layers,
            place.layers.len() as f32 / layers,
        );
        let options = place.options(options, places.for_gpu);
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
            let on_host = places.list.iter().filter(|p| p.is_on_host()).count();
            let devices = match on_host {
                0 => Devices::Gpus,
                n if n == parts.len() => Devices::Cpus,
                _ => Devices::Both,
            };
            Ok(PartsWeights::new(
                network,
                parts,
                devices,
                options.placement,
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Share, fewest_that_fit, first_that_fits, named, proportional_cuts};
    use crate::error::Status;

    #[test]
    fn layers_are_shared_in_proportion_to_memory() {
        let cut =
            |layers: &[u64], memory: &[u64]| proportional_cuts(layers, [0, 0], memory, |_| true);
        assert_eq!(cut(&[10; 8], &[1, 1]), [0..4, 4..8]);
        assert_eq!(cut(&[10; 8], &[3, 1]), [0..6, 6..8]);
        assert_eq!(cut(&[10; 7], &[1, 1, 1]).len(), 3);
        // A head as large as four layers.
        let with_head = proportional_cuts(&[10; 8], [0, 40], &[1, 1], |_| true);
        assert_eq!(with_head, [0..6, 6..8]);
        // More devices than layers: some get none.
        let few = cut(&[10], &[1, 1, 1]);
        assert_eq!(few.iter().map(ExactSizeIterator::len).sum::<usize>(), 1);
        // Only one place to cut at, and none.
        let once = proportional_cuts(&[10; 8], [0, 0], &[1, 1], |at| at == 1);
        assert_eq!(once, [0..1, 1..8]);
        let never = proportional_cuts(&[10; 8], [0, 0], &[1, 1], |_| false);
        assert_eq!(never.iter().filter(|range| range.len() == 8).count(), 1);
        // Every layer is somewhere, in order.
        for (layers, memory) in [
            (32, vec![24, 8, 80]),
            (5, vec![7, 7, 7, 7]),
            (3, vec![1, 1000]),
        ] {
            let cuts = cut(&vec![7; layers], &memory);
            let mut at = 0;
            for range in &cuts {
                assert_eq!(range.start, at);
                at = range.end;
            }
            assert_eq!((cuts.len(), at), (memory.len(), layers));
        }
    }

    #[test]
    fn numbers_of_layers_have_to_add_up() {
        let split = |layers: &[usize]| {
            let shares: Vec<_> = layers
                .iter()
                .map(|&layers| Share { device: 0, layers })
                .collect();
            let places = named(8, &shares);
            places.map(|places| places.iter().map(|p| p.layers.clone()).collect::<Vec<_>>())
        };
        assert_eq!(split(&[3, 5]).unwrap(), [0..3, 3..8]);
        assert_eq!(split(&[3, 0, 1]).unwrap(), [0..3, 3..7, 7..8]);
        assert_eq!(split(&[3, 5, 0]).unwrap(), [0..3, 3..8]);
        for wrong in [&[3, 4][..], &[3, 6], &[9, 0], &[0, 0, 3], &[usize::MAX, 2]] {
            let e = split(wrong).unwrap_err();
            assert_eq!(
                e.status,
                Status::InvalidArgument,
                "{wrong:?}: {}",
                e.message
            );
        }
    }

    #[test]
    fn as_few_experts_as_possible_stay_on_the_cpu() {
        // Experts of a layer take 100, their place on the GPU 150, and the rest 1000.
        let takes = |count: usize| 1000 + 100 * (20 - count) + if count > 0 { 150 } else { 0 };
        let fewest = |counts, limit| fewest_that_fit(counts, |n| Ok(takes(n) <= limit)).unwrap();
        for limit in 0..3200 {
            for least in [0, 1, 7, 20] {
                let first = (least..=20).find(|n| takes(*n) <= limit);
                assert_eq!(fewest(least..=20, limit), first, "{limit} from {least}");
            }
        }
        assert_eq!(fewest(0..=20, 3000), Some(0));
        assert_eq!(fewest(0..=20, 2999), Some(2));
        assert_eq!(fewest(0..=20, 1149), None);
    }

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
