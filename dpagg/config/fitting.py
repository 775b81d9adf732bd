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
    """What every solver takes.

    ``norm_bound`` bounds the Euclidean norm of the coefficients in encoded units, the intercept counted from the middle
    of the label's bounds. ``row_bound`` is a declared bound on the norm of an encoded row, longer ones being scaled
    down with their label; without it the one that no row exceeds.
    """

    norm_bound: Positive | None = None
    row_bound: Positive | None = None


class IhmConfig(_Solver):
    """Iterative Hessian mixing with whitened rows: the default.

    Hessians are released with symmetric noise, or as Gaussian sketches of ``sketch_size`` rows.
    """

    name: Literal["ihm"]
    num_iterations: Count = 5
    sketch_size: SketchSize = None


class IhmPaperConfig(_Solver):
    """Iterative Hessian mixing as in its paper; with exact accounting unless told otherwise."""

    name: Literal["ihm-paper"]
    accounting: Accounting = "exact"
    num_iterations: Count = 3
    sketch_size: SketchSize = None
    residual_clip: Positive | None = None
    ridge_term: bool = True


class LinearMixingConfig(_Solver):
    """Least squares on one Gaussian sketch of features and label."""

    name: Literal["linear-mixing"]
    accounting: Accounting = "exact"
    sketch_size: SketchSize = None


class AdaSSPConfig(_Solver):
    """Least squares on noisy sufficient statistics."""

    name: Literal["adassp"]
    accounting: Accounting = "exact"


class DpGdConfig(_Solver):
    """Gradient descent with noisy full gradients; ``residual_clip`` in the units of the label."""

    name: Literal["dp-gd"]
    num_iterations: Count = 20
    residual_clip: Positive | None = None


class LabelGaussianConfig(_Solver):
    """Label-DP only: normal noise on the whitened least-squares statistics."""

    name: Literal["label-gaussian"]


SolverConfig: TypeAlias = Annotated[
    IhmConfig | IhmPaperConfig | LinearMixingConfig | AdaSSPConfig | DpGdConfig | LabelGaussianConfig,
    Field(discriminator="name"),
]
SOLVERS = frozenset({"ihm", "ihm-paper", "linear-mixing", "adassp", "dp-gd", "label-gaussian"})


class FitPrivacyConfig(Model):
    """The guarantee of a fit, and for which neighbouring tables.

    ``zero_out_one_row``: everything in a row is protected; ``num_rows`` is declared and public.
    ``change_one_label``: only labels are protected, features are public.
    """

    epsilon: Positive
    delta: Annotated[Number, Field(gt=0, lt=1)]
    adjacency: Literal["zero_out_one_row", "change_one_label"]
    num_rows: Count | None = None

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


class PrivateFitConfig(Config):
    """One private model fitted on a table: table, schema, solver, guarantee, output."""

    input: InputConfig
    schema_: SchemaConfig = Field(alias="schema")
    mechanism: SolverConfig = IhmConfig(name="ihm")
    privacy: FitPrivacyConfig
    output: OutputConfig
    ledger: LedgerConfig | None = None
    performance: FitPerformanceConfig = FitPerformanceConfig()

    @model_validator(mode="before")
    @classmethod
    def _one_kind(cls, given: Any) -> Any:
        if isinstance(given, dict) and "release" in given:
            raise refused(
                "a fit reads either a release or a table",
                field="release",
                remedy="Keep release (made by dpagg aggregate), or input, schema and privacy.",
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
