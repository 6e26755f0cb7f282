"""Which state is meant: operator, store and variable, by what a checkpoint holds."""

from __future__ import annotations

from recovery.checkpoint.operators import NativeOperator
from recovery.errors import ConfigurationError, StateNotFoundError

JOIN_SIDES = ("left", "right")
ONE_STORE = "default"


def choose_operator(
    found: tuple[NativeOperator, ...], number: int, store: str | None, variable: str | None, epoch: int
) -> NativeOperator:
    """The operator of this number.

    Raises StateNotFoundError when it, its store or its variable is not there, ConfigurationError when there are several
    and none is named.
    """
    chosen = next((each for each in found if each.number == number), None)
    if chosen is None:
        listed = ", ".join(f"{each.number} ({each.name})" for each in found)
        raise StateNotFoundError(
            f"Spark's operator {number} has no state at epoch {epoch}",
            cause=f"Operators with state are {listed}." if found else "No operator of Spark's own has state there.",
            remedy="See which there are: python -m recovery checkpoint show DIR",
        )
    sides = JOIN_SIDES if any(name.startswith(JOIN_SIDES) for name in chosen.stores) else ()
    _check(chosen, "store", store, (*sides, *chosen.stores), needed=ONE_STORE not in chosen.stores)
    _check(chosen, "variable", variable, chosen.variables, needed=bool(chosen.variables))
    return chosen


def _check(operator: NativeOperator, what: str, given: str | None, names: tuple[str, ...], *, needed: bool) -> None:
    if given is not None and given not in names:
        raise StateNotFoundError(
            f"operator {operator.number} ({operator.name}) has no {what} {given!r:.80}",
            cause=f"It has {', '.join(names)}." if names else f"Operators of its kind have no {what}s.",
            remedy="See which there are: python -m recovery checkpoint show DIR",
        )
    if given is None and needed and names:
        raise ConfigurationError(
            f"operator {operator.number} ({operator.name}) has several {what}s",
            cause="Each has keys and values of its own.",
            remedy=f"Name one of them (--{what}, or {what}=): {', '.join(names)}.",
        )
