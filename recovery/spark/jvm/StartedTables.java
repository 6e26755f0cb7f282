package recovery;

import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Makes tables of Python sources whose readers get the start of each micro-batch: see stream_readers.py. */
public class StartedTables {
    public SupportsRead around(SupportsRead table) {
        return new StartedTable(table);
    }
}

class StartedTable implements SupportsRead {
    private final SupportsRead table;

    StartedTable(SupportsRead table) {
        this.table = table;
    }

    public String name() {
        return table.name();
    }

    public StructType schema() {
        return table.schema();
    }

    public Transform[] partitioning() {
        return table.partitioning();
    }

    public Map properties() {
        return table.properties();
    }

    public Set capabilities() {
        return table.capabilities();
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return new StartedScan(table.newScanBuilder(options).build());
    }

    /** Spark takes equal relations for one source. */
    public boolean equals(Object other) {
        return other instanceof StartedTable && table.equals(((StartedTable) other).table);
    }

    public int hashCode() {
        return table.hashCode();
    }
}

class StartedScan implements ScanBuilder, Scan {
    private final Scan scan;

    StartedScan(Scan scan) {
        this.scan = scan;
    }

    public Scan build() {
        return this;
    }

    public StructType readSchema() {
        return scan.readSchema();
    }

    public String description() {
        return scan.description();
    }

    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        return new StartedStream(scan.toMicroBatchStream(checkpoint));
    }

    public CustomMetric[] supportedCustomMetrics() {
        return scan.supportedCustomMetrics();
    }

    public CustomTaskMetric[] reportDriverMetrics() {
        return scan.reportDriverMetrics();
    }

    public Scan.ColumnarSupportMode columnarSupportMode() {
        return scan.columnarSupportMode();
    }
}

/** What is sent to the reader goes by way of `commit`, whose argument is the only one that Spark passes on unread. */
class StartedStream implements MicroBatchStream, SupportsTriggerAvailableNow {
    private final MicroBatchStream stream;

    StartedStream(MicroBatchStream stream) {
        this.stream = stream;
    }

    private void send(String what, String json) {
        stream.commit(stream.deserializeOffset("{\"recovery_" + what + "\": " + json + "}"));
    }

    public void prepareForTriggerAvailableNow() {
        send("available_now", "true");
    }

    /** Spark gives no limit for sources that set none; the reader knows its own. */
    public Offset latestOffset(Offset start, ReadLimit limit) {
        send("start", start.json());
        return stream.latestOffset();
    }

    public Offset latestOffset() {
        throw new UnsupportedOperationException("latestOffset needs the start of the micro-batch");
    }

    public Offset initialOffset() {
        return stream.initialOffset();
    }

    public Offset deserializeOffset(String json) {
        return stream.deserializeOffset(json);
    }

    public InputPartition[] planInputPartitions(Offset start, Offset end) {
        return stream.planInputPartitions(start, end);
    }

    public PartitionReaderFactory createReaderFactory() {
        return stream.createReaderFactory();
    }

    public void commit(Offset end) {
        stream.commit(end);
    }

    public void stop() {
        stream.stop();
    }
}
