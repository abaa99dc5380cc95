//! The linear layers of a network that adapters can be added to.

use crate::backend::cuda::launch::adapters::AdaptedApart;
use crate::backend::cuda::launch::args::{AdapterPiece, MAX_LINEARS};
use crate::backend::cuda::launch::matrix::Adapted;
use crate::format::TensorId;
use crate::model::{
    Linear, MatrixCut, Network, adaptable_cut, adaptable_linears, linears_adaptable_apart,
};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// What adapters cannot be added to: what the host evaluates.
pub const ON_HOST: &str =
    "a matrix that the CPU evaluates for the GPU, with experts; adapters of it are not supported";

/// A linear layer of a network that adapters can be added to.
#[derive(Clone, Debug)]
pub struct AdaptedLinear {
    /// What of a matrix in the file it is.
    pub(super) cut: MatrixCut,
    /// Its place among those of its fused matrix.
    pub(super) place: u32,
    /// How many matrices it is: those of experts or heads.
    pub(super) matrices: usize,
    /// Whether it is one of those apart: [`adapt_each`](crate::backend::cuda::launch::kernels::Kernels::adapt_each) adds to these.
    pub(super) is_apart: bool,
}

/// Rows of a fused matrix that are rows of a linear layer: `run` at a time from row `first` on, the next ones `step` further.
#[derive(Clone, Copy)]
pub struct Piece<'a> {
    /// The layer.
    pub linear: &'a Linear,
    /// How many.
    pub rows: usize,
    /// The first of them in the layer.
    pub first: usize,
    /// How many lie behind each other there.
    pub run: usize,
    /// From the first of those to the first of the next.
    pub step: usize,
}

impl<'a> Piece<'a> {
    /// All rows of a layer.
    pub fn whole(linear: &'a Linear) -> Piece<'a> {
        let rows = linear.weight.rows();
        Piece {
            linear,
            rows,
            first: 0,
            run: rows,
            step: rows,
        }
    }
}

/// The linear layers of a network that adapters can be added to, as they are found.
#[derive(Default)]
pub struct Linears {
    /// Those that there are, with their rows.
    all: HashMap<TensorId, (usize, MatrixCut)>,
    /// Those apart.
    apart: HashMap<TensorId, MatrixCut>,
    /// Those of the matrices so far.
    pub found: Vec<AdaptedLinear>,
}

impl Linears {
    /// Those of a network.
    pub fn of(network: &Network) -> Linears {
        let cut = |linear: &Linear| adaptable_cut(network, linear);
        Linears {
            all: adaptable_linears(network)
                .map(|l| (l.weight.id(), (l.weight.rows(), cut(l))))
                .collect(),
            apart: linears_adaptable_apart(network)
                .map(|l| (l.weight.id(), cut(l)))
                .collect(),
            found: Vec::new(),
        }
    }

    /// What adapters can be added to of as many matrices, one below the other, of each of which the output has so many rows.
    pub fn find_apart(
        &mut self,
        linear: &Linear,
        matrices: usize,
        rows: Range<usize>,
    ) -> Option<AdaptedApart> {
        let cut = self.apart.get(&linear.weight.id())?;
        let found = self.found.iter().position(|l| l.is_apart && l.cut == *cut);
        let place = found.unwrap_or(self.found.len());
        if found.is_none() {
            self.found.push(AdaptedLinear {
                cut: cut.clone(),
                place: 0,
                matrices,
                is_apart: true,
            });
        }
        Some(AdaptedApart {
            linear: place as u32,
            matrices: matrices as u32,
            matrix_rows: (linear.weight.rows() / matrices) as u32,
            first: rows.start as u32,
            outputs: rows.len() as u32,
        })
    }

    /// What adapters can be added to of a matrix of these pieces.
    pub fn find(&mut self, pieces: &[Piece<'_>]) -> Option<Arc<Adapted>> {
        if pieces.len() > MAX_LINEARS {
            return None;
        }
        let cut = |p: &Piece<'_>| {
            let (rows, cut) = self.all.get(&p.linear.weight.id())?;
            (*rows == p.linear.weight.rows()).then_some(cut)
        };
        let cuts: Vec<&MatrixCut> = pieces.iter().map(cut).collect::<Option<_>>()?;
        let mut adapted = Adapted {
            first: self.found.len() as u32,
            ..Adapted::default()
        };
        let mut end = 0;
        let pieces = pieces.iter().zip(cuts);
        for (to, (piece, cut)) in adapted.pieces.iter_mut().zip(pieces) {
            let mine = &self.found[adapted.first as usize..];
            let linear = match mine.iter().position(|l| l.cut == *cut) {
                Some(place) => place as u32,
                None => {
                    let linear = AdaptedLinear {
                        cut: cut.clone(),
                        place: mine.len() as u32,
                        matrices: 1,
                        is_apart: false,
                    };
                    self.found.push(linear);
                    self.found.len() as u32 - adapted.first - 1
                }
            };
            end += piece.rows as u32;
            *to = AdapterPiece {
                end,
                linear,
                first: piece.first as u32,
                run: piece.run as u32,
                step: piece.step as u32,
            };
        }
        adapted.n_linears = self.found.len() as u32 - adapted.first;
        Some(Arc::new(adapted))
    }
}
