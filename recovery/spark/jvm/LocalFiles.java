package recovery;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hive.ql.io.ProxyLocalFileSystem;

/** The local file system of Spark's sessions, setting permissions by a system call: see local_files.py. */
public class LocalFiles extends ProxyLocalFileSystem {
    /** Called by Hadoop, which knows only the name of the class. */
    public LocalFiles() {
        fs = new Raw();
    }

    /** The files without their checksums. */
    public static class Raw extends RawLocalFileSystem {
        public void setPermission(Path path, FsPermission permission) throws IOException {
            if (permission.getStickyBit()) {
                super.setPermission(path, permission);
                return;
            }
            Files.setPosixFilePermissions(
                pathToFile(path).toPath(), PosixFilePermissions.fromString(permission.toString()));
        }
    }
}
