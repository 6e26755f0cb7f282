"""Which state the user means: operator, store and variable, among those in a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from recovery.checkpoint.state_stores.operators import StatefulOperator
from recovery.errors import ConfigurationError, StateNotFoundError

JOIN_SIDES = ("left", "right")
ONE_STORE = "default"


@dataclass(frozen=True, slots=True)
class WantedState:
    """The wanted state: of an operator, by its number; of one of its stores, if it has several, or of a variable; or
    its timers."""

    operator: int = 0
    store: str | None = None
    variable: str | None = None
    timers: bool = False


def choose_operator(found: tuple[StatefulOperator, ...], wanted: WantedState, epoch: int) -> StatefulOperator:
    """Return the operator whose state is wanted.

    Raises StateNotFoundError when the operator, its store, its variable or its timers do not exist, ConfigurationError
    when there are several and none is named.
    """
    chosen = next((each for each in found if each.number == wanted.operator), None)
    if chosen is None:
        listed = ", ".join(f"{each.number} ({each.name})" for each in found)
        raise StateNotFoundError(
            f"Spark's operator {wanted.operator} has no state at epoch {epoch}",
            cause=f"The operators with state are {listed}." if found else "No operator of Spark's own has state there.",
            remedy="List the operators: python -m recovery checkpoint show DIR",
        )
    if wanted.timers:
        _check_timers(chosen, wanted)
        return chosen
    sides = JOIN_SIDES if any(name.startswith(JOIN_SIDES) for name in chosen.stores) else ()
    _check(chosen, "store", wanted.store, (*sides, *chosen.stores), needed=ONE_STORE not in chosen.stores)
    _check(chosen, "variable", wanted.variable, chosen.variables, needed=bool(chosen.variables))
    return chosen


def _check_timers(operator: StatefulOperator, wanted: WantedState) -> None:
    if not operator.timers:
        raise StateNotFoundError(
            f"operator {operator.number} ({operator.name}) has no timers",
            cause="The operator is a transformWithState with the time mode None."
            if operator.variables
            else "Timers are registered by transformWithState, with the time mode EventTime or ProcessingTime.",
            remedy="List the operators: python -m recovery checkpoint show DIR",
        )
    if wanted.store is not None or wanted.variable is not None:
        raise ConfigurationError(
            "timers cannot be combined with a store or variable", cause="", remedy="Ask for timers, or for a variable."
        )


def _check(operator: StatefulOperator, what: str, given: str | None, names: tuple[str, ...], *, needed: bool) -> None:
    if given is not None and given not in names:
        raise StateNotFoundError(
            f"operator {operator.number} ({operator.name}) has no {what} {given!r:.80}",
            cause=f"The operator has {', '.join(names)}." if names else f"Operators of this kind have no {what}s.",
            remedy="List the operators: python -m recovery checkpoint show DIR",
        )
    if given is None and needed and names:
        raise ConfigurationError(
            f"operator {operator.number} ({operator.name}) has several {what}s",
            cause=f"Each {what} has keys and values of its own.",
            remedy=f"Name one of them (--{what}, or {what}=): {', '.join(names)}.",
        )
