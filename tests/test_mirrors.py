"""Which tests to look at, and to extend, when a module changes.

A module's mirror is test_<module>.py in the folder of its room, or of a room around that one. A module without one is
in the table, with the tests that cover it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import recovery

PACKAGE = Path(recovery.__file__).parent
TESTS = Path(__file__).parent
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    for path in PACKAGE.rglob("*.py")
    if path.name != "__init__.py"
}

COVERED_BY = {
    # One idea in several modules.
    "appended/test_content.py": "appended.files appended.line_ends",
    "appended/test_empty_logs.py": "appended.position appended.survey",
    "appended/test_plan.py": "appended.options",
    "appended/test_rotation.py": "appended.locate appended.planner appended.reach",
    "backup/test_missing.py": "cli.restore_missing",
    "ui/api/test_app.py": "ui.api.tags ui.api.unchanged",
    "idle/test_look.py": "cli.idle idle.note spark.run.reporting.read_input",
    "backup/test_fork.py": "cli.fork host.cloned host.new_directory",
    "backup/test_hostile_manifests.py": "backup.manifest",
    "places/test_object_stores.py": "places.bucket places.opening",
    "backup/test_faults.py": "places.directory",
    "backup/test_round_trip.py": """backup.make backup.note backup.repository backup.restore backup.sources
        storage.copies""",
    "backup/test_writers.py": "backup.writer",
    "backup/test_incremental.py": """backup.links backup.objects backup.stored storage.sqlite.transfer.changes_file
        storage.sqlite.transfer.replay""",
    "backup/test_lazy.py": "places.frames storage.hydration storage.lazy.names storage.lazy.pages storage.lazy.vfs",
    "backup/test_lease.py": "backup.conditional",
    "backup/standby/test_commands.py": "cli.follow cli.promote",
    "backup/standby/test_follow.py": "backup.standby.document backup.standby.fetch storage.standby",
    "replication/test_spread.py": "backup.share backup.spread owner.shipping",
    "replication/test_process.py": "replication.__main__ replication.messages replication.serving",
    "spark/jvm/test_stream_thread.py": "spark.run.under_way",
    "spark/test_replication.py": "spark.run.parts.replicating",
    "checkpoint/test_beginning.py": "checkpoint.offsets checkpoint.source_places",
    "checkpoint/test_capture.py": "checkpoint.home checkpoint.restore checkpoint.rows",
    "checkpoint/test_sources.py": "checkpoint.position",
    "operators/test_import_and_export.py": """checkpoint.directories checkpoint.relocate
        checkpoint.state_stores.state_files operators.choose operators.exporting operators.held operators.importing""",
    "cli/test_erase.py": "cli.erase_copies",
    "operators/test_into_step.py": "cli.checkpoint_into_step",
    "faults/test_clocks.py": "base.clock",
    "faults/test_hostile_files.py": "base.threads",
    "importing/test_bytewax.py": "cli.import_bytewax cli.import_group importing.positions",
    "metrics/test_meter.py": "metrics.exposition metrics.memory",
    "operational/test_owned.py": "owner.documents",
    "operational/test_directory.py": "operational.locks operational.manager",
    "places/test_addresses.py": "places.address",
    "places/test_documents.py": "places.protocol",
    "operational/test_remote.py": """operational.backends.leases operational.backends.migrate
        operational.backends.open""",
    "operational/test_keyed.py": "cli.state_scopes",
    "operational/test_rewinds.py": "epochs.execution",
    "operational/test_scopes.py": "operational.backends.backend",
    "operational/test_steps.py": "epochs.writer operational.steps.step_edits storage.snapshot",
    "report/test_page.py": """report.charts report.facts report.html report.partitions report.quarantine report.timeline
        report.trends""",
    "sinks/test_output.py": "sinks.disk sinks.files sinks.manifest",
    "sinks/test_delivery.py": "sinks.plain",
    "sinks/test_delta.py": """sinks.delta.features sinks.delta.merge sinks.delta.operations sinks.delta.sink
        sinks.delta.table sinks.tables.columns sinks.tables.log sinks.tables.sink""",
    "sinks/test_changed_tables.py": "sinks.tables.commits sinks.tables.forgotten sinks.tables.takeback",
    "sinks/test_upsert.py": """sinks.upsert.checks sinks.upsert.effects sinks.upsert.going_back sinks.upsert.sink
        sinks.upsert.table""",
    "sinks/test_postgresql.py": "sinks.upsert.holders sinks.upsert.retry",
    "sinks/test_reasons.py": "sinks.upsert.culprits",
    "sinks/test_kafka.py": """sinks.kafka.broker sinks.kafka.client sinks.kafka.marker sinks.kafka.production
        sinks.kafka.reading sinks.kafka.sink sinks.kafka.staged""",
    "sinks/test_kafka_compensation.py": "sinks.kafka.kept",
    "spark/test_kafka_sink.py": "sinks.kafka.rows",
    "sinks/test_iceberg.py": """sinks.iceberg.columns sinks.iceberg.partitions sinks.iceberg.sink
        sinks.iceberg.table""",
    "ui/beside/test_process.py": "ui.beside.__main__ ui.beside.serving",
    "ui/api/test_answering.py": """ui.api.openapi ui.api.routes ui.api.schemas ui.facts.compare
        ui.facts.epochs ui.facts.now ui.facts.plans ui.facts.sources ui.facts.waiting""",
    "storage/test_contract.py": "storage.owned storage.seam storage.spread",
    "storage/test_deltas.py": """storage.connect storage.deltas.delta storage.deltas.touched
        storage.sqlite.execution_deltas""",
    "storage/test_partition.py": """storage.sqlite.close storage.sqlite.columns storage.sqlite.describe
        storage.sqlite.fold storage.sqlite.rewind storage.sqlite.snap_rows""",
    "owner/test_moving.py": """cli.moves storage.moving.arriving storage.moving.blocks storage.moving.departed
        storage.moving.leaving storage.moving.mover storage.moving.task wire.move_calls""",
    "storage/test_reach.py": "base.credentials.task_key",
    "sinks/test_hadoop_disk.py": "hadoop.reports sinks.places",
    "cluster/test_reading.py": "spark.jvm.executors",
    "cluster/test_yarn.py": "spark.jvm.yarn_queue",
    "cluster/test_counts.py": "host.identity spark.run.parts.serving spark.steps.sent",
    "storage/test_readers.py": "storage.owner_reader storage.reading",
    "storage/test_store.py": "host.open_files storage.deltas.scratch storage.scan",
    # A connection has two ends, and an owner several parts: their tests see the whole.
    "owner/test_step_rows.py": "owner.reading",
    "wire/test_connections.py": """wire.address wire.answers wire.client wire.line wire.messages wire.server wire.served
        wire.service wire.task_calls""",
    "owner/test_service.py": """base.credentials.token cli.owners cli.serve owner.holding
        owner.runs wire.calls
        wire.run_calls wire.run_client""",
    "owner/test_directories.py": "owner.watch.disk",
    "owner/test_copying.py": "storage.copied",
    "owner/test_operating.py": """metrics.owners owner.watch.credentials owner.watch.facts report.owners
        wire.looking""",
    "owner/test_process.py": "owner.__main__ owner.serving owner.spool owner.tasks",
    "storage/test_epoch_log.py": "cli.gc storage.history",
    "storage/test_initialize.py": "storage.sqlite.file.tables",
    "storage/test_opening.py": """storage.sqlite.file.connections storage.sqlite.file.log_files
        storage.sqlite.file.reading storage.sqlite.file.statements""",
    "storage/test_open_deltas.py": "storage.sqlite.file.forked storage.sqlite.task_store",
    "storage/test_watched_files.py": "storage.documents",
    "values/test_kernels.py": "aggregates spark.steps.aggregate spark.steps.aggregate_functions",
    "spark/steps/test_arrow_step.py": "spark.tasks.arrow_task",
    "spark/tasks/test_quarantine_model.py": "spark.tasks.arrow_quarantine_task spark.tasks.quarantining",
    "values/test_quarantine.py": "values.quarantined_rows",
    "operational/test_erasing.py": "storage.erasing storage.sqlite.erase",
    "cli/test_quarantine.py": "operational.steps.quarantine",
    "spark/test_quarantine.py": "spark.run.parts.waiting",
    "spark/steps/test_quarantine.py": "spark.steps.replayed",
    "spark/tasks/test_step_task.py": """spark.steps.definition spark.tasks.changes spark.tasks.chunks
        spark.tasks.retries spark.tasks.run_tasks
        spark.tasks.spool""",
    "spark/tasks/test_output_values.py": "spark.steps.column_types",
    "spark/tasks/test_input_values.py": "spark.steps.key_columns",
    # Code around the JVM: only a session shows whether it is right.
    "spark/test_session.py": """spark.jvm.java spark.jvm.java_sources spark.jvm.launch
        spark.jvm.startup.sitecustomize""",
    "spark/jvm/test_versions.py": "spark.jvm.connect_sessions spark.jvm.stream_readers",
    "test_without_spark.py": "places.arrow spark.jvm.installed",
    "spark/test_warmup.py": "cli.warmup spark.jvm.cache.class_archive spark.run.warmup_flows",
    "operators/test_addresses.py": "hadoop.checkpoint",
    "spark/test_plan.py": "spark.jvm.plan_nodes",
    "spark/test_steps.py": """flow spark.planner.replay spark.run.execution spark.run.parts.mailboxes
        spark.run.position spark.run.query spark.run.start spark.run.stream spark.steps.input_keys
        spark.steps.picklable spark.steps.state_columns spark.steps.stateful spark.steps.ticks""",
    "spark/test_refused_plans.py": "spark.planner.bind",
    "spark/inputs/test_look.py": """operational.steps.input_again spark.inputs.kinds
        spark.inputs.others spark.inputs.protocol spark.jvm.tables""",
    "spark/test_arrow.py": "sinks.all_keys",
    "spark/test_combining.py": "spark.steps.combine",
    "spark/test_merging.py": "spark.tuning.collecting",
    "spark/test_row_width.py": "spark.tuning.outcome",
    "spark/test_tuning.py": "spark.tuning.back_off",
    "spark/test_history.py": "spark.run.parts.recording",
    "spark/test_metrics.py": """spark.run.reporting.events spark.run.reporting.listener
        spark.run.reporting.measuring spark.run.reporting.reports spark.run.status""",
    "spark/test_several.py": "spark.run.launch",
    "spark/test_closing.py": "spark.run.parts.checking spark.run.prepare",
    "spark/run/test_until.py": "checkpoint.until",
    "spark/test_state_source.py": "spark.sources.compared spark.sources.state_reader",
    "spark/test_quarantined_source.py": "spark.sources.quarantined",
    "operational/test_step_history.py": "cli.history operational.steps.epoch_input",
    "spark/test_changed_sources.py": "spark.run.source_starts",
    "spark/test_operators.py": "spark.planner.state_store spark.run.reporting.operator_rows",
    "spark/test_operator_state.py": """spark.sources.formats spark.sources.operator_diff spark.sources.operator_history
        spark.sources.operator_source""",
    "spark/test_appended.py": "spark.sources.driver_relay",
    "spark/test_pipelines.py": "cli.nodes spark.pipelines.run",
    "spark/test_crashes.py": "base.faults cli.run demo.flights demo.flow",
    "epochs/test_snapshot.py": "base.reserved",
    "epochs/test_closer.py": "base.ids",
    "planning/test_resume.py": "planning.values",
    "partitioning/test_repartition.py": """cli.repartition partitioning.__main__ partitioning.in_place
        partitioning.worker partitioning.workers planning.moving storage.repartition
        storage.sqlite.transfer.draft_partition storage.sqlite.transfer.tally""",
    # Commands: their tests call them as users do.
    "backup/test_at_owners.py": "cli.restore_to_owners",
    "backup/test_commands.py": """backup.progress cli.backup cli.backup_progress cli.readable cli.restore
        cli.restore_output""",
    "backup/test_drill.py": "backup.drills cli.drill",
    "operators/test_progress.py": "cli.checkpoint cli.checkpoint_progress cli.operators cli.status_line",
    "metrics/test_progress.py": "cli.progress",
    "operational/test_commands.py": """cli.hwm cli.operational cli.state cli.state_common cli.state_files
        cli.state_transfer operational.exports""",
    "operational/test_comparison.py": "cli.diff cli.diff_output",
    "spark/test_kafka.py": "spark.jvm.lost_topics",
    "spark/test_kafka_lag.py": "spark.inputs.kafka_group spark.jvm.kafka_groups",
    "spark/test_source_lag.py": "spark.inputs.watch spark.run.parts.lagging",
    "cli/test_at_owners.py": "cli.without_owners",
    "cli/test_config_options.py": "setting",
    "cli/test_output.py": "cli.common cli.init cli.output_errors cli.status",
    "operational/test_runs.py": "cli.runs host.processes",
    "report/test_commands.py": "cli.advise cli.plan cli.report cli.verify report.lag report.plan report.status",
    "ui/pages/test_app.py": "cli.ui ui.pages.rendering ui.pages.views ui.server.app",
    "ui/server/test_service.py": """ui.server.admission ui.server.gate ui.server.headers ui.server.listening
        ui.server.prefix ui.server.signed_in""",
    "host/test_signals.py": "cli.signals",
    "host/test_durable.py": "cli.demo demo.story",
    "cli/test_reader_gone.py": "__main__",
    # Documented names of what lies in other rooms.
    "values/test_keys.py": "keys",
}


def mirror(module: str) -> Path | None:
    """The test of a module that its name leads to."""
    *rooms, name = module.split(".")
    folders = (TESTS.joinpath(*rooms[:depth]) for depth in range(len(rooms), -1, -1))
    return next((path for each in folders if (path := each / f"test_{name}.py").exists()), None)


LISTED = [module for modules in COVERED_BY.values() for module in modules.split()]


def test_every_module_leads_to_its_tests():
    """By its name or by the table, and not by both."""
    assert len(MODULES) > 200
    assert len(LISTED) == len(set(LISTED))
    assert {module for module in MODULES if mirror(module) is None} == set(LISTED)


@pytest.mark.parametrize("file", COVERED_BY)
def test_the_table_names_tests(file):
    assert "def test_" in (TESTS / file).read_text()
