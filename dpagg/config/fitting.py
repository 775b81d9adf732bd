"""The sections of a private fit that reads rows itself."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from dpagg.config.declared import SchemaConfig
from dpagg.config.fields import Count, Model, Number, Positive, a_number, refused
from dpagg.config.ledger import LedgerConfig, refuse_empty_ledger
from dpagg.config.models import Config, OutputConfig
from dpagg.config.source import InputConfig
from dpagg.kernels.encoding import Schema

Accounting: TypeAlias = Literal["exact", "paper"]
SketchSize: TypeAlias = Annotated[int, BeforeValidator(a_number), Field(ge=2)] | None


class _Solver(Model):
    """What every solver takes."""

    norm_bound: Positive | None = None
    """Bound on the Euclidean norm of the coefficients in encoded units, the intercept counted from the middle of the
    label's bounds; none by default."""
    row_bound: Positive | None = None
    """Bound on the norm of an encoded row, longer ones being scaled down with their label; the norm that no row exceeds
    by default."""


class IhmConfig(_Solver):
    """Iterative Hessian mixing with whitened rows: the default."""

    name: Literal["ihm"]
    """Iterative Hessian mixing with whitened rows, the default."""
    num_iterations: Count = 5
    """Rounds."""
    sketch_size: SketchSize = None
    """Rows of the Gaussian sketches that release the two Hessians; symmetric noise by default."""


class IhmPaperConfig(_Solver):
    """Iterative Hessian mixing as in its paper; with exact accounting unless told otherwise."""

    name: Literal["ihm-paper"]
    """Iterative Hessian mixing as in its paper."""
    accounting: Accounting = "exact"
    """exact, or the paper's bounds, which need more noise."""
    num_iterations: Count = 3
    """Rounds, each with a sketch of its own."""
    sketch_size: SketchSize = None
    """Rows of a sketch, at least columns + 2; by default the paper's choice."""
    residual_clip: Positive | None = None
    """Bound on a residual, in units of the label; by default half the label's range, without an intercept its largest
    size."""
    ridge_term: bool = True
    """Whether gradients hold the term of the ridge that sketches add; without it the limit is a ridge solution."""


class LinearMixingConfig(_Solver):
    """Least squares on one Gaussian sketch of features and label."""

    name: Literal["linear-mixing"]
    """Least squares on one Gaussian sketch of features and label."""
    accounting: Accounting = "exact"
    """exact, or the paper's bounds, which need more noise."""
    sketch_size: SketchSize = None
    """Rows of the sketch, at least columns + 2; by default chosen from the guarantee."""


class AdaSSPConfig(_Solver):
    """Least squares on noisy sufficient statistics."""

    name: Literal["adassp"]
    """Least squares on noisy sufficient statistics."""
    accounting: Accounting = "exact"
    """exact, or the paper's thirds of epsilon and delta, which need more noise."""


class DpGdConfig(_Solver):
    """Gradient descent with noisy full gradients."""

    name: Literal["dp-gd"]
    """Gradient descent with noisy full gradients."""
    num_iterations: Count = 20
    """Gradients."""
    residual_clip: Positive | None = None
    """Bound on a residual, in units of the label; by default half the label's range, without an intercept its largest
    size."""


class LabelGaussianConfig(_Solver):
    """Label-DP only: normal noise on the whitened least-squares statistics."""

    name: Literal["label-gaussian"]
    """Normal noise on whitened least-squares statistics; protects labels only."""


SolverConfig: TypeAlias = Annotated[
    IhmConfig | IhmPaperConfig | LinearMixingConfig | AdaSSPConfig | DpGdConfig | LabelGaussianConfig,
    Field(discriminator="name"),
]
SOLVERS = frozenset({"ihm", "ihm-paper", "linear-mixing", "adassp", "dp-gd", "label-gaussian"})


class FitPrivacyConfig(Model):
    """The guarantee of a fit, and for which neighbouring tables."""

    epsilon: Positive
    """The claim's epsilon."""
    delta: Annotated[Number, Field(gt=0, lt=1)]
    """The claim's delta, less than one over the number of rows."""
    adjacency: Literal["zero_out_one_row", "change_one_label"]
    """What is protected: zero_out_one_row all of a row, change_one_label the label of one row (features are public)."""
    num_rows: Count | None = None
    """Rows of the table, declared and public; needed for zero_out_one_row and never compared with the table."""

    @model_validator(mode="after")
    def _declares_rows(self) -> Self:
        if self.adjacency == "zero_out_one_row" and self.num_rows is None:
            raise refused(
                "a required key is missing: under zero_out_one_row the number of rows is public",
                field="num_rows",
                remedy="Declare how many rows the table has; it is never compared with the table.",
            )
        return self


class FitPerformanceConfig(Model):
    """Settings that change speed and memory, never privacy."""

    rows_per_block: Count | None = None
    """Rows that are encoded and cached as one piece."""


class PrivateFitConfig(Config):
    """One private model fitted on a table: table, schema, solver, guarantee, output."""

    input: InputConfig
    """The table."""
    schema_: SchemaConfig = Field(alias="schema")
    """Features and label with their declared bounds."""
    mechanism: SolverConfig = IhmConfig(name="ihm")
    """The solver."""
    privacy: FitPrivacyConfig
    """The guarantee."""
    output: OutputConfig
    """Where the model goes."""
    ledger: LedgerConfig | None = None
    """The budget to charge; without it nobody adds up what several fits cost."""
    performance: FitPerformanceConfig = FitPerformanceConfig()
    """Speed and memory only."""

    @model_validator(mode="before")
    @classmethod
    def _one_kind(cls, given: Any) -> Any:
        if isinstance(given, dict) and "release" in given:
            raise refused(
                "a fit reads either a release or a table",
                field="release",
                remedy="Keep release (made by dpagg aggregate), or input, schema and privacy.",
            )
        mechanism = given.get("mechanism") if isinstance(given, dict) else None
        name = mechanism.get("name") if isinstance(mechanism, dict) else None
        if name in ("wtd-flag", "sampled-wtd-flag", "sampled-noisy-wtd-lag", "unweighted-sums"):
            raise refused(
                f"{name} is a mechanism of dpagg aggregate",
                field="mechanism.name",
                remedy="To fit what it has released, give release: {path: PATH} and output alone.",
            )
        refuse_empty_ledger(given)
        return given

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        if self.input.row_id is not None:
            raise refused(
                "a fit needs no row key, and to check one would tell of rows",
                field="input.row_id",
                remedy="Leave it out.",
            )
        name, adjacency = self.mechanism.name, self.privacy.adjacency
        if name != "ihm" and (name == "label-gaussian") != (adjacency == "change_one_label"):
            raise refused(
                f"{name} is for {'change_one_label' if name == 'label-gaussian' else 'zero_out_one_row'} only, "
                f"{adjacency} is given",
                field="privacy.adjacency",
                remedy="The mechanism ihm answers for both.",
            )
        size, columns = getattr(self.mechanism, "sketch_size", None), self.encoding.num_columns
        if size is not None and name == "ihm" and adjacency == "change_one_label":
            raise refused(
                "under change_one_label the Hessian is public and not sketched",
                field="mechanism.sketch_size",
                remedy="Leave it out.",
            )
        if size is not None and size < columns + 2:
            raise refused(
                f"{size} rows are given for {columns} encoded columns, expected at least {columns + 2}",
                field="mechanism.sketch_size",
            )
        return self

    @cached_property
    def encoding(self) -> Schema:
        """The schema as the encoder takes it."""
        return self.schema_.to_kernel()

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that the run reads, the label last."""
        return self.schema_.columns()
