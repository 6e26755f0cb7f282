"""The local file system of our sessions: as Spark's own, but that it starts no process to set permissions."""

from __future__ import annotations

import pytest

from recovery.spark.jvm.local_files import LOCAL, OURS, SPARKS


@pytest.fixture
def file_systems(spark):
    """Ours, which Hadoop gives to whoever asks, and Spark's own."""
    place, conf = spark._jvm.java.net.URI(LOCAL), spark._jsc.hadoopConfiguration()
    hadoop = spark._jvm.org.apache.hadoop.fs.FileSystem
    return hadoop.get(place, conf), hadoop.newInstance(place, conf)


def test_it_takes_the_place_of_spark_s(file_systems):
    assert [each.getClass().getName() for each in file_systems] == [OURS, SPARKS]


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o755, 0o000, 0o1777])
def test_permissions_are_set_as_by_spark_s(spark, file_systems, tmp_path, mode):
    wanted = spark._jvm.org.apache.hadoop.fs.permission.FsPermission(mode)
    found = []
    for name, files in zip(("ours", "theirs"), file_systems, strict=True):
        path = tmp_path / name
        path.mkdir()
        files.setPermission(spark._jvm.org.apache.hadoop.fs.Path(str(path)), wanted)
        found.append(path.stat().st_mode & 0o7777)
    assert found == [mode, mode]


def test_files_and_directories_are_made_as_by_spark_s(spark, file_systems, tmp_path):
    """With their checksums, with permissions by the umask, and none over another file."""
    made = []
    for name, files in zip(("ours", "theirs"), file_systems, strict=True):
        directory = spark._jvm.org.apache.hadoop.fs.Path(str(tmp_path / name))
        assert files.mkdirs(directory)
        for file in ("a", "b"):
            stream = files.create(spark._jvm.org.apache.hadoop.fs.Path(directory, file))
            stream.write(7)
            stream.close()
        assert not files.rename(
            spark._jvm.org.apache.hadoop.fs.Path(directory, "a"), spark._jvm.org.apache.hadoop.fs.Path(directory, "b")
        )
        below = tmp_path / name
        made.append([(each.name, each.stat().st_mode) for each in sorted(below.iterdir())] + [below.stat().st_mode])
    assert made[0] == made[1]
    assert [name for name, _ in made[0][:-1]] == [".a.crc", ".b.crc", "a", "b"]


def test_a_missing_file_is_said_to_be_missing(spark, file_systems, tmp_path):
    wanted = spark._jvm.org.apache.hadoop.fs.permission.FsPermission(0o600)
    with pytest.raises(Exception, match="NoSuchFile"):
        file_systems[0].setPermission(spark._jvm.org.apache.hadoop.fs.Path(str(tmp_path / "none")), wanted)
