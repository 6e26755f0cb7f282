"""Options: one name for one thing in all commands, and names of earlier versions that are still understood."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from recovery.cli import main
from recovery.cli.option import LinkedOption
from tests.cli.reference import every_option
from tests.report.support import clock, run_epochs
from tests.shares import some

MEANINGS = {
    "--at": "^Where to listen",
    "--backup-interval": "^Keep superseded snapshots",
    "--discard-history": "^Allow .*shorter",
    "--drop-step": "^(Discard|Leave out) .*step",
    "--dry-run": "(change|write|remove) nothing|[Ss]how (what|where|which|how)",
    "--epoch": "state after this epoch|as of this epoch",
    "--every": " at this interval, until SIGTERM",
    "--flow": "^The name of the flow that continues",
    "--force": "go on although",
    "--insecure": "^Listen on another interface than loopback without TLS",
    "--jars": "[Jj]ars",
    "--keep-step": "^Keep a step's state unchanged|as --keep-step of the run",
    "--key": r"\[key\]\(file-format.md#keys\)",
    "--limit": "most .* to show",
    "--lose-epochs": "epochs.* lacks",
    "--operator": r"operator.*Starts Spark\.$",
    "--output-file": "[Ww]rite",
    "--owner": r"^An \[owner\]",
    "--packages": "from Maven",
    "--pattern": "only (ids or )?keys that match",
    "--place": "backups",
    "--rename-step": "state.* (new id|step NEW)",
    "--resume-after": "^(Plan a )?.?[Rr]ewind",
    "--scratch": "^Where to keep what need not survive",
    "--step": "step of the flow|only .*this step",
    "--takeover": "the store|writer",
    "--tls-ca": "PEM file of certificates that verify the owner",
    "--tls-cert": "certificate",
    "--token-file": "owners",
    "--wait-limit": "this long",
}
"""What every help of an option says that has several: the one thing that its name means."""


def command(*words: object) -> Result:
    """What `recovery` does with these words."""
    return CliRunner().invoke(main, [*map(str, words)])


def commands(group: click.Command = main, name: str = "") -> dict[str, click.Command]:
    """Every command by its whole name."""
    if not isinstance(group, click.Group):
        return {name: group}
    context = click.Context(group)
    found = {each: group.get_command(context, each) for each in group.list_commands(context)}
    return {
        whole: below
        for each, of_group in found.items()
        if of_group is not None
        for whole, below in commands(of_group, f"{name} {each}".strip()).items()
    }


def test_to_write_a_file_has_one_name():
    """`-o`, `--output-file`, in every command that writes one."""
    named = {
        name: [each.opts for each in command.params if {"-o", "--output", "--output-file"} & {*each.opts}]
        for name, command in commands().items()
    }
    writing = {name: found for name, found in named.items() if found}
    assert set(writing) == {"report", "diff", "state export", "quarantine export"}
    assert all(found == [["-o", "--output-file"]] for found in writing.values()), writing


def test_a_name_means_one_thing():
    """In all commands that have it: each help says it, and each value is of the same kind."""
    helps: dict[str, set[str]] = {}
    kinds: dict[str, list[set[str]]] = {}
    for each in every_option():
        helps.setdefault(each.flag, set()).add(each.help)
        kinds.setdefault(each.flag, []).append(set(re.findall("[A-Z]+", each.forms)))
    several = {flag: texts for flag, texts in helps.items() if len(texts) > 1}
    assert set(several) == set(MEANINGS)
    said = {flag: re.compile(meaning, re.IGNORECASE) for flag, meaning in MEANINGS.items()}
    assert [(flag, text) for flag, texts in several.items() for text in texts if not said[flag].search(text)] == []
    assert {flag: found for flag, found in kinds.items() if any(found) and not set.intersection(*found)} == {}


def test_a_letter_has_one_name():
    """`-o` is `--output-file` wherever it occurs, and no other letter stands for it."""
    pairs = {(letter, each.flag) for each in every_option() for letter in re.findall(r"`(-\w)`", each.forms)}
    assert len({letter for letter, _ in pairs}) == len({flag for _, flag in pairs}) == len(pairs)


RENAMED = [
    (name, each)
    for name, of_name in commands().items()
    for each in of_name.params
    if isinstance(each, LinkedOption) and each.was
]


@pytest.mark.parametrize(("name", "renamed"), RENAMED, ids=lambda each: str(getattr(each, "was", each)))
def test_an_earlier_name_is_understood(name, renamed):
    """An earlier name gives the same option, and no help shows it."""
    of_name = commands()[name]
    with click.Context(of_name) as context:
        found, *_ = of_name.make_parser(context).parse_args([renamed.was, *([] if renamed.is_flag else ["a=b"])])
        assert renamed.name in found
        assert not re.search(rf"(?<![-\w]){renamed.was}(?![-\w])", of_name.get_help(context))


@pytest.fixture
def pair(make_store) -> tuple[Path, Path]:
    """Two stores with different states."""
    made = make_store(1), make_store(1)
    for number, directory in enumerate(made):
        run_epochs(directory, 2, clock(), seed=number)
    return made


OUTPUTS = {
    "report": ("report", "{a}", "page.html"),
    "diff": ("diff", "{a}", "{b}", "differences.csv"),
    "state export": ("state", "export", "{a}", "states.jsonl"),
    "quarantine export": ("quarantine", "export", "{a}", "rows.jsonl"),
}


@pytest.mark.parametrize("words", some(OUTPUTS.values(), *OUTPUTS.values()), ids=lambda words: words[0])
def test_a_file_is_written_by_each_spelling(pair, tmp_path, words):
    """Also by the one of 0.3.0, which no help shows."""
    *named, file = [each.format(a=pair[0], b=pair[1]) for each in words]
    spellings = ["-o", "--output-file", *(["--output"] if named[0] in ("report", "diff") else [])]
    written = []
    for number, spelling in enumerate(spellings):
        path = tmp_path / f"{number}-{file}"
        done = command(*named, spelling, path)
        assert done.exit_code in (0, 1), done.output
        written.append(path.read_bytes())
    assert len({len(each) for each in written}) == 1
    assert "--output " not in command(*named[: 1 + (len(named) > 2 and named[0] != "diff")], "--help").output


def test_diff_still_takes_a_pattern_as_its_key(pair):
    """As in 0.3.0."""
    new, old = (command("diff", *pair, spelling, "k1", "--json") for spelling in ("--pattern", "--key"))
    assert (new.stdout, new.exit_code) == (old.stdout, old.exit_code)
