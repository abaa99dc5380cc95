//! The products of a step, with the making of their inputs: by kernels that do both, where there are such.

use super::StepOperations;
use crate::backend::Work;
use crate::backend::cuda::launch::adapters::{AdaptedInput, Adapters};
use crate::backend::cuda::launch::args;
use crate::backend::cuda::launch::attention::RowsOf;
use crate::backend::cuda::launch::batch_f16;
use crate::backend::cuda::launch::feed_forward::MlpPlan;
use crate::backend::cuda::launch::matrix::{Forms, Inputs, Matrix};
use crate::backend::cuda::launch::own_input::LayerInputPlan;
use crate::backend::cuda::launch::product::{Finish, Product, RowInput};
use crate::backend::cuda::launch::span::Span;
use crate::backend::cuda::network::walk::{Addition, MlpInput, Operations};
use crate::error::Result;

impl StepOperations<'_> {
    /// A dense feed-forward part up to the input of its last product, which is where it says.
    pub(super) fn mlp(&self, input: MlpInput, mlp: &MlpPlan) -> Result<RowInput> {
        let at = self.buffers.at();
        match input {
            MlpInput::Residual(norm) => {
                if let Some(inner) = self.fused_mlp(norm, mlp)? {
                    return Ok(inner);
                }
                if let Some(inner) = self.gated_f16(norm, mlp)? {
                    return Ok(inner);
                }
                self.normed(norm, &mlp.up, at.rows.wide)?;
            }
            MlpInput::OfExperts(norm) => {
                // Experts of several rows may still read the input where the fused product writes.
                if self.batch == 1
                    && let Some(inner) = self.fused_mlp(norm, mlp)?
                {
                    return Ok(inner);
                }
                let inputs = at.inputs.only(mlp.up.forms());
                self.matvec(&mlp.up, &inputs, at.rows.wide, 0)?;
            }
            MlpInput::Beside(first) => {
                let inner = Span {
                    address: at.experts.inner + u64::from(first) * 4,
                    stride: mlp.n_ff,
                };
                return self.row_input(inner, mlp.n_ff, None, &mlp.down);
            }
        }
        self.mark(Work::GateUp, mlp.up.bytes())?;
        // SAFETY: *workspace*, which `self` promises.
        unsafe { self.eval.sparse_gates(&at.rows, mlp, self.batch)? };
        let inputs = self.activate(mlp)?;
        self.mark(Work::Norm, 0)?;
        Ok(RowInput::Rounded(inputs))
    }

    /// The same in f16, where one product does the gate as well.
    fn gated_f16(&self, norm: Option<args::Norm>, mlp: &MlpPlan) -> Result<Option<RowInput>> {
        let (at, e) = (self.buffers.at(), &self.eval);
        let forms = [&mlp.up, &mlp.down].map(|matrix| self.forms(matrix));
        if !forms.iter().all(|forms| forms.f16) || !e.kernels.gates_f16(mlp) {
            return Ok(None);
        }
        self.settle()?;
        let inputs = self.input(norm, mlp.up.groups, forms[0])?;
        self.mark(Work::Norm, 0)?;
        let (wide, gate) = (at.rows.wide, Some(mlp.activation));
        let to = (wide.address, wide.stride, 0);
        // SAFETY: addresses of the *weights* and the *workspace*, which `self` promises; the input was written for as many columns.
        unsafe { (e.kernels).product_f16(e.stream, &mlp.up, &inputs, to, self.batch, gate)? };
        self.mark(Work::GateUp, mlp.up.bytes())?;
        let inner = args::QuantizeInput {
            source: args::Source::Copy as u32,
            largest: inputs.largest,
            ..mlp.inner(&at.rows)
        };
        let inputs = self.write_input(inputs, inner)?;
        self.mark(Work::Norm, 0)?;
        Ok(Some(RowInput::Rounded(inputs)))
    }

    /// The same by one kernel, if there is one and another for the last product that reads what it
    /// writes.
    fn fused_mlp(&self, norm: Option<args::Norm>, mlp: &MlpPlan) -> Result<Option<RowInput>> {
        if !self.fuses_mlp(norm, mlp) {
            return Ok(None);
        }
        let at = self.buffers.at();
        let finish = finish(mlp);
        let kernels = self.eval.kernels;
        let product = Product {
            matrix: &mlp.up,
            rows: self.batch,
            input: self.take_residual(norm, &mlp.up)?,
            finish,
            out: at.inputs.f32,
            stride: mlp.n_ff,
            adapted: self.adapted(&mlp.up),
        };
        // SAFETY: addresses of the *weights* and the *workspace*, which `self` promises.
        unsafe { kernels.product(self.eval.stream, &product)? };
        self.mark(Work::GateUp, mlp.up.bytes())?;
        Ok(Some(RowInput::Row {
            x: at.inputs.f32,
            norm: mlp.inner_norm,
        }))
    }

    /// Whether that does a feed-forward part.
    pub(super) fn fuses_mlp(&self, norm: Option<args::Norm>, mlp: &MlpPlan) -> bool {
        let kernels = self.eval.kernels;
        mlp.cutoff.is_none()
            && self.fuses(&mlp.up, norm, finish(mlp).halves())
            && self.adds_adapters(&mlp.down)
            && kernels.makes_input(&mlp.down, mlp.inner_norm.is_some(), mlp.n_ff, 1, self.batch)
    }

    /// Whether one kernel makes the input of a product from the residual stream, and does the product.
    fn fuses(&self, matrix: &Matrix, norm: Option<args::Norm>, halves: u32) -> bool {
        let len = self.eval.plan.hidden;
        let kernels = self.eval.kernels;
        self.adds_adapters(matrix)
            && kernels.makes_input(matrix, norm.is_some(), len, halves, self.batch)
    }

    /// `out = matrix * norm(residual stream)`.
    pub(in crate::backend::cuda) fn normed(
        &self,
        norm: Option<args::Norm>,
        matrix: &Matrix,
        out: Span,
    ) -> Result<()> {
        if self.fuses(matrix, norm, 1) {
            let input = self.take_residual(norm, matrix)?;
            return self.product_of(matrix, &input, out, 0);
        }
        self.settle()?;
        let inputs = self.input(norm, matrix.groups, self.forms(matrix))?;
        self.mark(Work::Norm, 0)?;
        self.matvec(matrix, &inputs, out, 0)
    }

    /// `out = matrix * input + residual`; without it where that is 0.
    pub(in crate::backend::cuda) fn product_of(
        &self,
        matrix: &Matrix,
        input: &RowInput,
        out: Span,
        residual: u64,
    ) -> Result<()> {
        if let RowInput::Rounded(inputs) = input {
            return self.matvec(matrix, inputs, out, residual);
        }
        let product = Product {
            matrix,
            rows: self.batch,
            input: *input,
            finish: Finish::Plain { residual },
            out: out.address,
            stride: out.stride,
            adapted: self.adapted(matrix),
        };
        // SAFETY: addresses of the *weights* and the *workspace*, which `self` promises. Only `fuses`
        // lets an input be a row, so there is one.
        unsafe { self.eval.kernels.product(self.eval.stream, &product) }
    }

    /// The last product of a part of one row, added up over all ranks, if there is a kernel that does both. Whether there is one is the
    /// answer.
    pub(super) fn linked_output(
        &self,
        matrix: &Matrix,
        input: &RowInput,
        addition: &Addition,
    ) -> Result<bool> {
        let e = &self.eval;
        let links = self.batch == 1 && !e.adapts(matrix) && e.kernels.links(matrix);
        let Some(link) = e.link.filter(|_| links) else {
            return Ok(false);
        };
        let Some(row) = link.linked(self.met.get()) else {
            return Ok(false);
        };
        self.met.set(self.met.get() + 1);
        self.settle()?;
        let rows = self.rows();
        let (out, residual) = match addition.is_as_it_is() {
            true => (addition.to, addition.base),
            false => (addition.from, None),
        };
        let residual = residual.map_or(0, |residual| rows.of(residual).address);
        let product = Product {
            matrix,
            rows: 1,
            input: *input,
            finish: Finish::Ranks { row, residual },
            out: rows.of(out).address,
            stride: rows.of(out).stride,
            adapted: None,
        };
        // SAFETY: addresses of the *weights* and the *workspace*, which `self` promises, as that all ranks do the same.
        unsafe { e.kernels.product(e.stream, &product)? };
        if !addition.is_as_it_is() {
            self.add(addition)?;
        }
        Ok(true)
    }

    /// The forms in which a product of this step reads its input.
    pub(in crate::backend::cuda) fn forms(&self, matrix: &Matrix) -> Forms {
        let e = &self.eval;
        let many = self.batch >= batch_f16::FROM && self.rows_of == RowsOf::Sessions;
        let takes = many && matches!(e.adapters, Adapters::None) && e.kernels.takes_f16(matrix);
        match takes && self.buffers.at().inputs.f16 != 0 {
            true => Forms {
                q8: false,
                f32: false,
                f16: true,
            },
            false => matrix.forms(),
        }
    }

    /// Writes an input that is made so, in the forms that `inputs` has places for.
    fn write_input(&self, inputs: Inputs, made: args::QuantizeInput) -> Result<Inputs> {
        let quantize_input = args::QuantizeInput {
            q8: inputs.q8,
            q8_scale: inputs.q8_scale,
            f32: inputs.f32,
            f16: inputs.f16,
            f16_scale: inputs.f16_scale,
            columns: match inputs.f16 {
                0 => 0,
                _ => batch_f16::columns(self.batch).unwrap_or_default(),
            },
            ..made
        };
        let e = &self.eval;
        // SAFETY: addresses of the *weights* and the *workspace*, which `self` promises.
        unsafe { (e.kernels).quantize_input(e.stream, &quantize_input, self.batch)? };
        Ok(inputs)
    }

    /// Rows of `len` floats, or their norm, as rows of so many groups in these forms.
    fn write_rows(
        &self,
        rows: Span,
        len: u32,
        norm: Option<args::Norm>,
        (groups, forms): (u32, Forms),
    ) -> Result<Inputs> {
        let inputs = self.buffers.at().inputs.only(forms);
        let source = match norm {
            Some(_) => args::Source::Norm,
            None => args::Source::Copy,
        };
        let made = args::QuantizeInput {
            x: rows.address,
            norm: norm.unwrap_or_default(),
            inverse_len: 1.0 / len as f32,
            clear: inputs.largest,
            x_stride: rows.stride,
            len,
            groups,
            source: source as u32,
            ..Default::default()
        };
        self.write_input(inputs, made)
    }

    /// The input of a product, as rows of `groups` groups in these forms: the residual stream or its norm.
    pub(super) fn input(
        &self,
        norm: Option<args::Norm>,
        groups: u32,
        forms: Forms,
    ) -> Result<Inputs> {
        let (residual, hidden) = (self.rows().residual, self.eval.plan.hidden);
        self.write_rows(residual, hidden, norm, (groups, forms))
    }

    /// The input of a feed-forward part's last product, from the outputs of its first.
    fn activate(&self, mlp: &MlpPlan) -> Result<Inputs> {
        let at = self.buffers.at();
        let inputs = at.inputs.only(self.forms(&mlp.down));
        self.write_input(inputs, mlp.inner(&at.rows))
    }

    /// The same by the product of the gate, if there are kernels that do both products with inputs of their own.
    pub(super) fn fused_weighted(
        &self,
        layer: usize,
        own: &LayerInputPlan,
    ) -> Result<Option<RowInput>> {
        let at = self.buffers.at();
        let kernels = self.eval.kernels;
        let fused = self.batch == 1
            && self.fuses(&own.gate, None, 1)
            && kernels.makes_input(&own.projection, false, own.gate.rows, 1, 1);
        if !fused {
            return Ok(None);
        }
        let weighted = own.weighted(layer, &at.rows);
        let product = Product {
            matrix: &own.gate,
            rows: 1,
            input: self.take_residual(None, &own.gate)?,
            finish: Finish::Weigh(own.activation, weighted.gate),
            out: at.inputs.f32,
            stride: own.gate.rows,
            adapted: self.adapted(&own.gate),
        };
        // SAFETY: addresses of the *weights* and the *workspace*, which `self` promises.
        unsafe { kernels.product(self.eval.stream, &product)? };
        Ok(Some(RowInput::Row {
            x: at.inputs.f32,
            norm: None,
        }))
    }

    /// The input of the projection of a layer's own input, from what its gate has left.
    pub(super) fn weighted_input(&self, layer: usize, own: &LayerInputPlan) -> Result<RowInput> {
        let at = self.buffers.at();
        let inputs = at.inputs.only(self.forms(&own.projection));
        let inputs = self.write_input(inputs, own.weighted(layer, &at.rows))?;
        Ok(RowInput::Rounded(inputs))
    }

    /// Rows of `len` floats, or their norm, as the input of a product: as they are, if its kernel
    /// makes its own of them, else in the forms that it reads.
    pub(in crate::backend::cuda) fn row_input(
        &self,
        rows: Span,
        len: u32,
        norm: Option<args::Norm>,
        matrix: &Matrix,
    ) -> Result<RowInput> {
        let x = rows.address;
        let e = &self.eval;
        if self.batch == 1
            && self.adds_adapters(matrix)
            && e.kernels.makes_input(matrix, norm.is_some(), len, 1, 1)
        {
            return Ok(RowInput::Row { x, norm });
        }
        Ok(RowInput::Rounded(self.rounded(rows, len, norm, matrix)?))
    }

    /// Rows of `len` floats, or their norm, in the forms that a matrix reads.
    pub(super) fn rounded(
        &self,
        rows: Span,
        len: u32,
        norm: Option<args::Norm>,
        matrix: &Matrix,
    ) -> Result<Inputs> {
        self.rounded_to(rows, len, norm, (matrix.groups, self.forms(matrix)))
    }

    /// The same as rows of so many groups in these forms.
    pub(super) fn rounded_to(
        &self,
        rows: Span,
        len: u32,
        norm: Option<args::Norm>,
        form: (u32, Forms),
    ) -> Result<Inputs> {
        let inputs = self.write_rows(rows, len, norm, form)?;
        self.mark(Work::Norm, 0)?;
        Ok(inputs)
    }

    /// Whether a kernel that makes the input of a product adds what adapters have for it, if there may be some.
    fn adds_adapters(&self, matrix: &Matrix) -> bool {
        match &self.eval.adapters {
            _ if matrix.adapted.is_none() => true,
            Adapters::None => true,
            Adapters::One(one) => self.batch == 1 && self.eval.kernels.adds_adapters(matrix, one),
            Adapters::Any(_) => false,
        }
    }

    /// What it then adds.
    fn adapted(&self, matrix: &Matrix) -> Option<args::Adapted> {
        match &self.eval.adapters {
            Adapters::One(one) => one.adapted(matrix),
            Adapters::None | Adapters::Any(_) => None,
        }
    }

    /// `out = matrix * input + residual`, of the input that is there, with what adapters add; without residual where that is 0.
    fn matvec(&self, matrix: &Matrix, inputs: &Inputs, out: Span, residual: u64) -> Result<()> {
        let e = &self.eval;
        if inputs.f16 != 0 {
            let to = (out.address, out.stride, residual);
            // SAFETY: addresses of the *weights* and the *workspace*, which `self` promises; the input was written for as many columns.
            return unsafe {
                (e.kernels).product_f16(e.stream, matrix, inputs, to, self.batch, None)
            };
        }
        if e.adapts(matrix) && self.batch == 1 && self.adds_adapters(matrix) {
            let product = Product {
                matrix,
                rows: 1,
                input: RowInput::Rounded(*inputs),
                finish: Finish::Plain { residual },
                out: out.address,
                stride: out.stride,
                adapted: self.adapted(matrix),
            };
            // SAFETY: addresses of the *weights* and the *workspace*, which `self` promises.
            return unsafe { e.kernels.product(e.stream, &product) };
        }
        let input = AdaptedInput::Step(inputs.only(matrix.forms()));
        let adaptation = e.adaptation(matrix, input, out, self.batch);
        // SAFETY: addresses of the *weights*, the *sessions* and the *workspace*, which `self` promises.
        unsafe {
            // While this is worked out, the product asks for its weights.
            if let Some(adaptation) = &adaptation {
                e.kernels.lora_down(e.stream, adaptation)?;
            }
            e.kernels.matvec(
                e.stream,
                matrix,
                inputs,
                out.address,
                out.stride,
                residual,
                self.batch,
            )?;
            match &adaptation {
                Some(adaptation) => e.kernels.lora_up(e.stream, adaptation),
                None => Ok(()),
            }
        }
    }
}

/// What is written of a feed-forward part's first product.
fn finish(mlp: &MlpPlan) -> Finish {
    match mlp.gated {
        true => Finish::Gate(mlp.activation),
        false => Finish::Activate(mlp.activation),
    }
}
