"""Step ids under which the driver keeps its own values. No step of a flow may have such a name."""

from recovery.base.ids import StepId

RESERVED_PREFIX = "$"
CHECKPOINT_STEP = StepId("$checkpoint")
"""Files of Spark's checkpoint, by path: the position, and the state of Spark's own operators."""
CLOCK_STEP = StepId("$clock")
"""The recovery clock, by which epochs age."""
EPOCH_STEP = StepId("$hwm")
"""High-water marks that epochs move."""
SINK_STEP = StepId("$sink")
"""The sink's note."""
SOURCES_STEP = StepId("$sources")
"""The sources that the flow reads."""
DECLARATIONS_STEP = StepId("$steps")
"""What each step declared when its state was written, by step id."""
QUARANTINE_PREFIX = "$bad "
"""Begins the id of a step's quarantine: the rows that wait because `update` failed for their key."""


def quarantine_of(step: StepId) -> StepId:
    """Return the id under which the quarantined rows of a step are stored."""
    return StepId(QUARANTINE_PREFIX + step)


def quarantined_step(step: str) -> StepId | None:
    """Return the step whose quarantine has the id `step`; None for any other id."""
    return StepId(step.removeprefix(QUARANTINE_PREFIX)) if step.startswith(QUARANTINE_PREFIX) else None
