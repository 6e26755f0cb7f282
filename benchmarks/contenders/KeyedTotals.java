import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Encoder;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.streaming.OutputMode;
import org.apache.spark.sql.streaming.StatefulProcessor;
import org.apache.spark.sql.streaming.TTLConfig;
import org.apache.spark.sql.streaming.TimeMode;
import org.apache.spark.sql.streaming.TimerValues;
import org.apache.spark.sql.streaming.ValueState;
import scala.Tuple2;
import scala.Tuple3;

/** Count and sum of the values of each key, kept by Spark's transformWithState. */
public final class KeyedTotals
        extends StatefulProcessor<String, Tuple2<String, Long>, Tuple3<String, Long, Long>> {
    private static final Encoder<Tuple2<Long, Long>> STATE = Encoders.tuple(Encoders.LONG(), Encoders.LONG());

    private transient ValueState<Tuple2<Long, Long>> state;

    /** Rows of key and value to rows of key, count and sum. */
    public static Dataset<Row> of(Dataset<Row> events) {
        return events.groupBy("key")
            .as(Encoders.STRING(), Encoders.tuple(Encoders.STRING(), Encoders.LONG()))
            .transformWithState(
                new KeyedTotals(), TimeMode.None(), OutputMode.Update(),
                Encoders.tuple(Encoders.STRING(), Encoders.LONG(), Encoders.LONG()))
            .toDF("key", "n", "total");
    }

    @Override
    public void init(OutputMode outputMode, TimeMode timeMode) {
        state = getHandle().getValueState("totals", STATE, TTLConfig.NONE());
    }

    @Override
    public scala.collection.Iterator<Tuple3<String, Long, Long>> handleInputRows(
            String key, scala.collection.Iterator<Tuple2<String, Long>> rows, TimerValues timerValues) {
        Tuple2<Long, Long> before = state.get();
        long n = before == null ? 0 : before._1();
        long total = before == null ? 0 : before._2();
        while (rows.hasNext()) {
            n += 1;
            total += rows.next()._2();
        }
        state.update(new Tuple2<>(n, total));
        return scala.collection.Iterator$.MODULE$.single(new Tuple3<>(key, n, total));
    }
}
