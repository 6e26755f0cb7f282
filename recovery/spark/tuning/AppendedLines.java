package appended;

import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.Collections;
import java.util.Iterator;
import java.util.Map;
import java.util.OptionalLong;
import java.util.Set;
import java.util.function.Function;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/** The format `appended`, found by Spark under this name: see appended_lines.py, which answers the questions. */
public class DefaultSource implements TableProvider {
    private PythonDataSourceV2 python;

    public void answerBy(Function function) {
        Driver.function = function;
    }

    public boolean supportsExternalMetadata() {
        return true;
    }

    public StructType inferSchema(CaseInsensitiveStringMap options) {
        String schema = Driver.ask(Driver.about("schema", options.asCaseSensitiveMap()));
        return schema.isEmpty() ? inPython().inferSchema(options) : StructType.fromDDL(schema);
    }

    public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
        ObjectNode about = Driver.about("table", properties).put("schema", schema.json());
        return Driver.ask(about).isEmpty()
            ? inPython().getTable(schema, partitioning, properties) : new LinesTable(schema);
    }

    private PythonDataSourceV2 inPython() {
        if (python == null) {
            python = new PythonDataSourceV2();
            python.setShortName("appended");
        }
        return python;
    }
}

/** Questions to the driver's Python. */
class Driver {
    static volatile Function function;
    private static final ObjectMapper JSON =
        new ObjectMapper().configure(JsonGenerator.Feature.ESCAPE_NON_ASCII, true);

    static ObjectNode about(String what, Map options) {
        ObjectNode question = JSON.createObjectNode().put("ask", what);
        ObjectNode given = question.putObject("options");
        for (Iterator each = options.entrySet().iterator(); each.hasNext();) {
            Map.Entry entry = (Map.Entry) each.next();
            given.put((String) entry.getKey(), (String) entry.getValue());
        }
        return question;
    }

    static ObjectNode about(String what) {
        return JSON.createObjectNode().put("ask", what);
    }

    static String ask(ObjectNode question) {
        return (String) answer(question);
    }

    /** An answer is bytes, or a text behind "=". Any other text is an error of Python's. */
    static Object answer(ObjectNode question) {
        Object answer = function.apply(text(question));
        if (answer instanceof byte[]) {
            return answer;
        }
        String said = (String) answer;
        if (!said.startsWith("=")) {
            throw new IllegalArgumentException(said);
        }
        return said.substring(1);
    }

    static JsonNode in(JsonNode object, String name) {
        return (JsonNode) object.get(name);
    }

    /** In ASCII, since names of files need not be text. */
    private static String text(ObjectNode question) {
        try {
            return JSON.writeValueAsString(question);
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    static JsonNode parsed(String text) {
        try {
            return JSON.readTree(text);
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }
}

class LinesTable implements SupportsRead {
    private final StructType schema;

    LinesTable(StructType schema) {
        this.schema = schema;
    }

    public String name() {
        return "appended";
    }

    public StructType schema() {
        return schema;
    }

    public Set capabilities() {
        return Collections.singleton(TableCapability.MICRO_BATCH_READ);
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return new LinesScan(schema, options.asCaseSensitiveMap());
    }
}

class LinesScan implements ScanBuilder, SupportsReportStatistics {
    private final StructType schema;
    private final Map options;
    private LinesStream stream;

    LinesScan(StructType schema, Map options) {
        this.schema = schema;
        this.options = options;
    }

    public Scan build() {
        return this;
    }

    public StructType readSchema() {
        return schema;
    }

    public String description() {
        return "appended";
    }

    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        stream = new LinesStream(schema, options);
        return stream;
    }

    /** The bytes of the micro-batch that is being planned. */
    public Statistics estimateStatistics() {
        return new LinesSize(stream == null ? OptionalLong.empty() : stream.bytes());
    }
}

class LinesSize implements Statistics {
    private final OptionalLong bytes;

    LinesSize(OptionalLong bytes) {
        this.bytes = bytes;
    }

    public OptionalLong sizeInBytes() {
        return bytes;
    }

    public OptionalLong numRows() {
        return OptionalLong.empty();
    }
}

class LinesOffset extends Offset {
    private final String json;

    LinesOffset(String json) {
        this.json = json;
    }

    public String json() {
        return json;
    }
}

/** A stream whose planner is in the driver's Python, under a number. */
class LinesStream implements MicroBatchStream, SupportsTriggerAvailableNow {
    private final StructType schema;
    private final Map options;
    private final String number;
    /** Where the micro-batch that is being planned begins and ends; null for one that an earlier run has planned. */
    private volatile String[] planned;

    LinesStream(StructType schema, Map options) {
        this.schema = schema;
        this.options = options;
        this.number = Driver.ask(Driver.about("open", options));
    }

    private ObjectNode about(String what) {
        return Driver.about(what).put("stream", number);
    }

    public Offset initialOffset() {
        return new LinesOffset(Driver.ask(about("initial")));
    }

    public void prepareForTriggerAvailableNow() {
        Driver.ask(about("fix_end"));
    }

    public ReadLimit getDefaultReadLimit() {
        return new PlannersLimit();
    }

    public Offset latestOffset(Offset start, ReadLimit limit) {
        boolean limited = limit instanceof PlannersLimit;
        String end = Driver.ask(about("latest").put("start", start.json()).put("limited", limited));
        planned = new String[] {start.json(), end};
        return new LinesOffset(end);
    }

    OptionalLong bytes() {
        String[] places = planned;
        return places == null ? OptionalLong.empty() : OptionalLong.of(Long.parseLong(
            Driver.ask(Driver.about("bytes").put("start", places[0]).put("end", places[1]))));
    }

    public Offset latestOffset() {
        throw new UnsupportedOperationException("latestOffset needs the start of the micro-batch");
    }

    public Offset deserializeOffset(String json) {
        return new LinesOffset(json);
    }

    public InputPartition[] planInputPartitions(Offset start, Offset end) {
        JsonNode tasks =
            Driver.parsed(Driver.ask(about("tasks").put("start", start.json()).put("end", end.json())));
        InputPartition[] partitions = new InputPartition[tasks.size()];
        for (int i = 0; i < partitions.length; i++) {
            partitions[i] = new LinesPartition(tasks.get(i).toString());
        }
        return partitions;
    }

    public PartitionReaderFactory createReaderFactory() {
        boolean fails = "fail".equalsIgnoreCase(new CaseInsensitiveStringMap(options).get("encodingErrors"));
        return new LinesFactory(schema.fieldNames(), fails);
    }

    public void commit(Offset end) {
    }

    public void stop() {
        Driver.ask(about("stop"));
    }

    public String toString() {
        return "appended";
    }
}

/** The limit that the options name, which the planner knows. */
class PlannersLimit implements ReadLimit {
}

class LinesPartition implements InputPartition {
    final String slices;

    LinesPartition(String slices) {
        this.slices = slices;
    }
}

class LinesFactory implements PartitionReaderFactory {
    private final String[] columns;
    private final boolean fails;

    LinesFactory(String[] columns, boolean fails) {
        this.columns = columns;
        this.fails = fails;
    }

    public PartitionReader createReader(InputPartition partition) {
        return new LinesReader(columns, fails, Driver.parsed(((LinesPartition) partition).slices));
    }
}

/** The lines of a task's slices. A row and its strings are good until the next one is asked for. */
class LinesReader implements PartitionReader {
    static int window = 2 << 20;
    private static final long MAX_LINE = (1L << 31) - 1024;
    private static final long ONES = 0x0101010101010101L, HIGHS = 0x8080808080808080L;
    private static final long NEWLINES = 0x0A0A0A0A0A0A0A0AL;
    /** What the search for a line end may look at behind the data. */
    private static final int PADDING = 8;

    private final JsonNode slices;
    private final boolean fails;
    private final int valueColumn, fileColumn, offsetColumn;
    private final Object[] values;
    private final InternalRow row;
    private int nextSlice = 0;
    private SliceFile file;
    private UTF8String path;
    private long position, stop, end;
    private byte[] data = new byte[window + PADDING];
    /** data[at..length) are whole lines, and data[0] is at `place` in the file. */
    private int at = 0, length = 0;
    private long place;

    LinesReader(String[] columns, boolean fails, JsonNode slices) {
        this.slices = slices;
        this.fails = fails;
        valueColumn = Arrays.asList(columns).indexOf("value");
        fileColumn = Arrays.asList(columns).indexOf("file");
        offsetColumn = Arrays.asList(columns).indexOf("offset");
        values = new Object[columns.length];
        row = new GenericInternalRow(values);
    }

    public boolean next() throws IOException {
        if (at >= length && !fill()) {
            return false;
        }
        int from = at, newline = at;
        long seen = 0;
        while (newline < length) {
            long word = Platform.getLong(data, (long) Platform.BYTE_ARRAY_OFFSET + newline);
            long different = word ^ NEWLINES;
            long found = (different - ONES) & ~different & HIGHS;
            if (found != 0) {
                int before = Long.numberOfTrailingZeros(found) >>> 3;
                seen |= before == 0 ? 0 : word & (-1L >>> (64 - 8 * before));
                newline += before;
                break;
            }
            seen |= word;
            newline += 8;
        }
        newline = Math.min(newline, length);
        at = newline + 1;
        int to = newline > from && data[newline - 1] == '\r' ? newline - 1 : newline;
        if (valueColumn >= 0) {
            values[valueColumn] = value(from, to, (seen & HIGHS) == 0);
        }
        if (offsetColumn >= 0) {
            values[offsetColumn] = Long.valueOf(place + from);
        }
        return true;
    }

    private UTF8String value(int from, int to, boolean ascii) {
        if (ascii) {
            return UTF8String.fromBytes(data, from, to - from);
        }
        boolean marked = place + from == 0 && to - from >= 3
            && data[from] == (byte) 0xEF && data[from + 1] == (byte) 0xBB && data[from + 2] == (byte) 0xBF;
        int begin = marked ? from + 3 : from;
        UTF8String value = UTF8String.fromBytes(data, begin, to - begin);
        if (value.isValid()) {
            return value;
        }
        String bytes = new String(data, begin, to - begin, StandardCharsets.ISO_8859_1);
        ObjectNode question = Driver.about("decode").put("file", path.toString()).put("bytes", bytes);
        return UTF8String.fromString(Driver.ask(question.put("place", place + begin).put("fails", fails)));
    }

    public Object get() {
        return row;
    }

    public void close() throws IOException {
        if (file != null) {
            file.close();
        }
    }

    /** Read the next whole lines into `data`; false if there are none. */
    private boolean fill() throws IOException {
        while (file == null || position >= stop) {
            if (nextSlice == slices.size()) {
                return false;
            }
            open((JsonNode) slices.get(nextSlice++));
        }
        int wanted = (int) Math.min(window, stop - position);
        read(position, wanted);
        int lines = wanted;
        while (lines > 0 && data[lines - 1] != '\n') {
            lines--;
        }
        if (lines == 0) {
            // The line is longer than the window or extends into the next slice: read it in one call.
            long whole = lineEnd(position + wanted) - position;
            if (whole > MAX_LINE) {
                Driver.ask(Driver.about("too_long").put("file", path.toString()).put("place", position).put("length", whole));
            }
            lines = (int) whole;
            read(position, lines);
        }
        place = position;
        at = 0;
        length = lines;
        position += lines;
        return true;
    }

    private void open(JsonNode slice) throws IOException {
        close();
        file = new SliceFile(slice);
        path = UTF8String.fromString(Driver.in(slice, "file").asText());
        if (fileColumn >= 0) {
            values[fileColumn] = path;
        }
        long start = Driver.in(slice, "start").asLong(), begin = Driver.in(slice, "begin").asLong();
        stop = Driver.in(slice, "stop").asLong();
        end = Driver.in(slice, "end").asLong();
        position = begin;
        if (start > begin) {
            position = lineEnd(start - 1);
        } else if (Driver.in(slice, "after_unfinished").asBoolean()) {
            int ending = (int) Math.min(2, end - begin);
            read(begin, ending);
            boolean returns = data[0] == '\r';
            // A return at the very end is the first half of a line end; the second half is not written yet.
            position += data[0] == '\n' || returns && ending == 1 ? 1 : returns && data[1] == '\n' ? 2 : 0;
        }
    }

    /** The place just after the first line end from `start` on, or the end of the range. */
    private long lineEnd(long start) throws IOException {
        while (start < end) {
            int count = (int) Math.min(window, end - start);
            read(start, count);
            for (int i = 0; i < count; i++) {
                if (data[i] == '\n') {
                    return start + i + 1;
                }
            }
            start += count;
        }
        return end;
    }

    private void read(long offset, int count) throws IOException {
        if (data.length - PADDING < count) {
            data = new byte[count + PADDING];
        }
        file.read(data, offset, count);
    }
}

/** The file of a slice. What this class cannot read with certainty, the driver's Python reads. */
class SliceFile {
    private static final int HEAD = 4096, TAIL = 1024;
    private static final int PIECE = 4 << 20;

    private final JsonNode slice;
    private final long needed;
    private RandomAccessFile file;
    private byte[] ends;

    SliceFile(JsonNode slice) {
        this.slice = slice;
        this.needed = Driver.in(slice, "end").asLong();
        if (Driver.in(slice, "check").isTextual()) {
            try {
                File named = new File(Driver.in(slice, "path").asText());
                file = named.isFile() ? new RandomAccessFile(named, "r") : null;
                ends = file == null ? null : ends();
                if (ends != null && !Driver.in(slice, "check").asText().equals(hash(ends))) {
                    close();
                }
            } catch (IOException error) {
                close();
            }
        }
    }

    /** Put exactly these bytes at the beginning of `data`. The check follows the read, as in reach.py. */
    void read(byte[] data, long offset, int count) throws IOException {
        if (file != null) {
            try {
                file.seek(offset);
                file.readFully(data, 0, count);
                if (Arrays.equals(ends, ends())) {
                    return;
                }
            } catch (IOException error) {
                // Python says what is wrong, if it is.
            }
            close();
        }
        for (int done = 0; done < count; done += PIECE) {
            int piece = Math.min(PIECE, count - done);
            ObjectNode question = Driver.about("read").put("offset", offset + done).put("length", piece);
            question.set("slice", slice);
            System.arraycopy((byte[]) Driver.answer(question), 0, data, done, piece);
        }
    }

    void close() {
        if (file != null) {
            try {
                file.close();
            } catch (IOException error) {
                // It was read only.
            }
        }
        file = null;
    }

    /** What `fingerprint` in position.py takes of the file; null if it is too short to be the one. */
    private byte[] ends() throws IOException {
        if (file.length() < needed) {
            return null;
        }
        int head = (int) Math.min(needed, HEAD), tail = needed > HEAD ? TAIL : 0;
        byte[] read = new byte[head + tail];
        file.seek(0);
        file.readFully(read, 0, head);
        file.seek(needed - tail);
        file.readFully(read, head, tail);
        return read;
    }

    private static String hash(byte[] bytes) throws IOException {
        try {
            byte[] digest = MessageDigest.getInstance("SHA-256").digest(bytes);
            StringBuilder text = new StringBuilder();
            for (int i = 0; i < digest.length; i++) {
                text.append(String.format("%02x", new Object[] {Byte.valueOf(digest[i])}));
            }
            return text.toString();
        } catch (java.security.NoSuchAlgorithmException error) {
            throw new IOException(error);
        }
    }
}
