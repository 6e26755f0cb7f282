"""What each page of `recovery ui` shows, and each route under /api/ answers, as JSON values.

Each module has one function for each page, which takes a `ShownFlow` (`flows`) and returns a dict. The values come from
the functions behind the commands' --json; nothing is computed a second time here. Every function only reads, raises
only errors of `recovery.errors`, and is bounded in rows, bytes and time (`limits`).

    now.flow_facts            status --json, with the rate of rows, the newest micro-batch and advice
    now.partition_facts       a range of its partitions
    epochs.epoch_facts        the time line: a range of epochs, executions, backups
    steps.step_facts          each step: declaration, keys, bytes, growth, largest keys
    keys.page_facts           a range of the keys of a step
    keys.key_facts            one key at an epoch
    keys.history_facts        history --json of one key
    compare.compare_facts     diff --json of two epochs, or of two flows
    sources.source_facts      positions of the input, lag, and what the sink has shown
    copies.copy_facts         backups, chains, replica, standby, and what a loss of the disk would cost
    plans.plan_facts          plan --json, also without some partitions
    waiting.quarantine_facts  quarantine list --json and quarantine show --json
    waiting.owner_facts       owners, as in status --json
    waiting.mark_facts        hwm list --json
"""
