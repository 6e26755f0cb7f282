"""Which class looks at a source: by its format."""

from __future__ import annotations

from pyspark.sql import SparkSession

from recovery.checkpoint.source_places import FILE_FORMATS
from recovery.spark.clusters import Input
from recovery.spark.inputs.appended import AppendedInput
from recovery.spark.inputs.delta import DeltaInput
from recovery.spark.inputs.files import FilesInput
from recovery.spark.inputs.kafka import KafkaInput
from recovery.spark.inputs.others import GeneratedInput, OtherInput
from recovery.spark.inputs.protocol import Resumes, StreamInput
from recovery.spark.planner.iceberg_tables import IcebergInput
from recovery.spark.steps.ticks import FORMAT as TICKS

GENERATED = {"rate", "rate-micro-batch", TICKS}
"""Formats whose rows are made from numbers and times."""
KINDS = (FilesInput, AppendedInput, KafkaInput, DeltaInput, IcebergInput, GeneratedInput, OtherInput)
"""Every class that stands for sources. `IcebergInput` looks at all Iceberg tables of a flow."""


def input_of(stream: Input, resumes: Resumes, spark: SparkSession) -> StreamInput:
    """Return what looks at a source. Iceberg tables are not among these sources."""
    name = stream.format.lower()
    if name in FILE_FORMATS:
        return FilesInput(stream, resumes)
    if name == "appended":
        return AppendedInput(stream, resumes)
    if name == "kafka":
        return KafkaInput(stream, resumes, spark)
    if name == "delta":
        return DeltaInput(stream, resumes, spark)
    return GeneratedInput() if name in GENERATED else OtherInput()
