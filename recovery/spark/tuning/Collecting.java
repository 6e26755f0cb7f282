package recovery;

import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Paths;
import org.apache.spark.sql.catalyst.plans.logical.Statistics;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.arrow.ArrowConverters$;
import org.apache.spark.sql.execution.exchange.ShuffleExchangeExec;
import org.apache.spark.util.ThreadUtils;
import scala.Option;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.concurrent.Future;
import scala.concurrent.duration.Duration;
import scala.math.BigInt;
import scala.util.Try;

/** Gives the driver's Python the rows of a plan that is about to run: see collecting.py. */
public class Collecting {
    /** Runs the plan, and writes its rows to a file as an Arrow stream; writes nothing if there are none. */
    public static void collect(SparkPlan plan, String timeZone, String file) throws Exception {
        Iterator rows = (Iterator) ((Tuple2) plan.executeCollectIterator())._2();
        Iterator streams = ArrowConverters$.MODULE$.toBatchWithSchemaIterator(
            rows, plan.schema(), Long.MAX_VALUE, Long.MAX_VALUE, timeZone, false, false);
        OutputStream out = Files.newOutputStream(Paths.get(file));
        try {
            while (streams.hasNext()) {
                out.write((byte[]) streams.next());
            }
        } finally {
            out.close();
        }
    }

    /**
     * Runs what is below an exchange, and returns the number of rows, or the greatest long if they have more than
     * `mostBytes` bytes. It does not run again for the plan.
     */
    public static long count(ShuffleExchangeExec exchange, long mostBytes) throws Exception {
        Future job = (Future) ThreadUtils.awaitReady(exchange.submitShuffleJob(), Duration.Inf());
        ((Try) job.value().get()).get();
        Statistics statistics = exchange.runtimeStatistics();
        Option rows = statistics.rowCount();
        boolean many = rows.isEmpty() || statistics.sizeInBytes().longValue() > mostBytes;
        return many ? Long.MAX_VALUE : ((BigInt) rows.get()).longValue();
    }
}
